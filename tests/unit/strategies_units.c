/* strategies_units.c -- which modules become units, how the wrapped tree reads, which parameters a stage
 * trains: policies of ROLL and of the seeds on a vision-language tree made by hand, and on the tree of a
 * 7B model. Gradients under these wraps: tests/mesh/modes.c.
 */
#include "strategies/units.h"
#include "tests/model_bench.h"

#include <setjmp.h> /* cmocka needs these before it */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- a tree by hand ---- */

enum { MAX_MODULES = 80 };

typedef struct tree {
    cr_model model;
    cr_module modules[MAX_MODULES], *children[MAX_MODULES][8], *layers[2];
    cr_param params[MAX_MODULES], *list[MAX_MODULES];
    size_t num;
} tree;

static cr_module *add(tree *t, cr_module *parent, const char *name, const char *cls, int64_t elems)
{
    cr_module *m = &t->modules[t->num];
    cr_param *p = &t->params[t->num];

    *m = (cr_module){.cls = cls, .parent = parent, .model = &t->model, .layer = -1, .expert = -1};
    m->name = cr_asprintf("%s%s%s", parent ? parent->name : "", parent && parent->parent ? "." : "",
                          name);
    m->children = t->children[t->num++];
    if (parent) parent->children[parent->num_children++] = m;
    if (elems == 0) return m;
    *p = (cr_param){.name = cr_asprintf("%s.weight", m->name),
                    .num_dims = 1,
                    .shape = {elems},
                    .num_elems = elems,
                    .is_trainable = true};
    m->params = p;
    m->num_params = 1;
    t->list[t->model.num_params++] = p;
    return m;
}

/* Prismatic: vision tower, projector, two decoder layers. Units follow flags: the table of embeddings
 * has a class of its own. */
static tree *make_tree(bool is_tied)
{
    static const char *const no_split[] = {"LlamaDecoderLayer", NULL};
    tree *t = CR_NEW(tree);
    cr_module *root = add(t, NULL, "", "PrismaticVLM", 0), *m, *list, *embed;

    t->model.root = root;
    t->model.layers = t->layers;
    t->model.params = t->list;
    t->model.no_split = no_split;
    t->model.config.num_layers = 2;
    t->model.config.is_tied = is_tied;
    m = add(t, root, "vision", "VisionTransformer", 0);
    add(t, m, "patch_embed", "Conv2d", 300);
    list = add(t, m, "blocks", "ModuleList", 0);
    list->is_container = true;
    for (int i = 0; i < 2; i++) {
        cr_module *block = add(t, list, i ? "1" : "0", "Block", 0);
        add(t, block, "attn", "Linear", 600);
        add(t, block, "mlp", "Linear", 400);
    }
    add(t, m, "norm", "LayerNorm", 20);
    m = add(t, root, "projector", "MLPProjector", 0);
    add(t, m, "fc1", "Linear", 200);
    add(t, m, "fc2", "Linear", 200);
    m = add(t, root, "model", "LlamaModel", 0);
    embed = add(t, m, "embed_tokens", "ScaledEmbedding", 5000);
    embed->is_lookup = true;
    embed->params->is_shared = is_tied;
    list = add(t, m, "layers", "ModuleList", 0);
    list->is_container = true;
    for (int i = 0; i < 2; i++) {
        t->layers[i] = add(t, list, i ? "1" : "0", "LlamaDecoderLayer", 0);
        t->layers[i]->layer = i;
        add(t, add(t, t->layers[i], "self_attn", "LlamaAttention", 0), "q_proj", "Linear", 800);
        add(t, add(t, t->layers[i], "mlp", "LlamaMLP", 0), "up_proj", "Linear", 1600);
        add(t, t->layers[i], "norm", "LlamaRMSNorm", 32);
    }
    add(t, m, "norm", "LlamaRMSNorm", 32);
    m = add(t, root, "lm_head", "Linear", 5000);
    m->is_lm_head = true;
    if (is_tied) {
        m->params->tied_to = embed->params;
        m->params->is_shared = true;
        t->model.num_params--;
    }
    return t;
}

static void free_tree(tree *t)
{
    for (size_t i = 0; i < t->num; i++) {
        cr_free(t->modules[i].name);
        cr_free(t->params[i].name);
    }
    cr_free(t);
}

/* ---- policies ---- */

#define LIST(...)    ((const char *const[]){__VA_ARGS__})
#define CLASSES(...) .classes = LIST(__VA_ARGS__), .num_classes = CR_COUNT(LIST(__VA_ARGS__))
#define MODULES(...) .modules = LIST(__VA_ARGS__), .num_modules = CR_COUNT(LIST(__VA_ARGS__))
#define EXPERTS(...) \
    .expert_classes = LIST(__VA_ARGS__), .num_expert_classes = CR_COUNT(LIST(__VA_ARGS__))

static void c27_units_of_policies(void **state)
{
    const struct {
        cr_wrap_policy policy;
        bool is_tied;
        const char *want; /* units with elements, or a part of the error */
    } cases[] = {
        /* ROLL: the no-split list, children win, untied embeddings by themselves */
        {{0},
         .want = "root 7752, model.embed_tokens 5000, model.layers.0 2432, model.layers.1 2432"},
        {{0}, true, "root 7752, model.layers.0 2432, model.layers.1 2432"},
        {{CLASSES("LlamaDecoderLayer", "LlamaAttention")},
         .want = "root 11016, model.embed_tokens 5000, model.layers.0.self_attn 800, "
                 "model.layers.1.self_attn 800"},
        {{CLASSES("LlamaDecoderLayer"), .should_wrap_embeddings = true,
          .should_wrap_lm_output = true},
         .want = "root 2752, model.embed_tokens 5000, model.layers.0 2432, model.layers.1 2432, "
                 "lm_head 5000"},
        {{CLASSES("LlamaDecoderLayer"), .should_wrap_embeddings = true,
          .should_wrap_lm_output = true},
         true,
         "root 7752, model.layers.0 2432, model.layers.1 2432"},
        {{EXPERTS("LlamaMLP"), CLASSES("LlamaDecoderLayer")},
         .want = "root 7752, model.embed_tokens 5000, model.layers.0 832, model.layers.0.mlp 1600, "
                 "model.layers.1 832, model.layers.1.mlp 1600"},
        /* the seeds: or of classes, the outer ViT keeps what its blocks leave */
        {{CLASSES("VisionTransformer", "Block", "MLPProjector", "LlamaDecoderLayer"),
          .is_nested = true},
         .want =
             "root 10032, vision 320, vision.blocks.0 1000, vision.blocks.1 1000, projector 400, "
             "model.layers.0 2432, model.layers.1 2432"},
        /* by module */
        {{MODULES("projector", "model.layers.*.mlp")},
         .want = "root 14016, projector 400, model.layers.0.mlp 1600, model.layers.1.mlp 1600"},
        /* by size, from the leaves up; lists never */
        {{.min_elems = 2000},
         .want = "root 432, vision 2320, model.embed_tokens 5000, model.layers.0 2432, "
                 "model.layers.1 2432, lm_head 5000"},
        {{.min_elems = 1500},
         .want = "root 400, vision 2320, model 1696, model.embed_tokens 5000, "
                 "model.layers.0.mlp.up_proj 1600, model.layers.1.mlp.up_proj 1600, lm_head 5000"},
        {{.min_elems = 5000}, .want = "root 7616, model.embed_tokens 5000, lm_head 5000"},
        /* hybrid */
        {{CLASSES("LlamaDecoderLayer"), .min_elems = 1500, .is_nested = true},
         .want = "root 432, vision 2320, model.embed_tokens 5000, model.layers.0 832, "
                 "model.layers.0.mlp.up_proj 1600, model.layers.1 832, "
                 "model.layers.1.mlp.up_proj 1600, lm_head 5000"},
        /* errors */
        {{CLASSES("LlamaDecoder")}, .want = "no module has the class LlamaDecoder (there are Vis"},
        {{CLASSES("ModuleList")}, .want = "a ModuleList never runs"},
        {{EXPERTS("Qwen3MoeMLP")}, .want = "moe_experts: no module has the class Qwen3MoeMLP"},
        {{MODULES("model.layers.*.mpl")}, .want = "(the nearest is model.layers.0.mlp)"},
        {{MODULES("model.layers.mlp")}, .want = "no module has the name model.layers.mlp"},
        {{MODULES("model.layers")}, .want = "no module has the name model.layers"},
        {{.min_elems = 100000}, .want = "the whole model has 17616"},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        tree *t = make_tree(cases[i].is_tied);
        cr_units units;
        cr_err err = {0};
        cr_buf text = {0};
        int64_t sum = 0, all = 0;
        if (cr_units_build(&t->model, &cases[i].policy, 4, &units, &err) != CR_OK) {
            assert_int_equal(err.status, CR_ECONFIG);
            if (!strstr(err.msg, cases[i].want)) fail_msg("case %zu: %s", i, err.msg);
        } else {
            for (size_t k = 0; k < units.num; k++) {
                const cr_unit *u = &units.unit[k];
                cr_buf_addf(&text, "%s%s %lld", k ? ", " : "", u->name,
                            (long long)u->trained.num_elems);
                sum += u->trained.num_elems;
                assert_int_equal(u->trained.padded_elems % (4 * CR_FLAT_ALIGN), 0);
            }
            for (size_t k = 0; k < t->model.num_params; k++)
                all += t->list[k]->num_elems;
            if (strcmp(text.data, cases[i].want) != 0) fail_msg("case %zu: %s", i, text.data);
            assert_int_equal(sum, all);
            cr_units_free(&units);
        }
        cr_buf_free(&text);
        free_tree(t);
    }
}

static void c27_sizes_on_7b(void **state)
{
    static const char text[] =
        "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"vocab_size\":32000,"
        "\"hidden_size\":4096,\"intermediate_size\":11008,\"num_hidden_layers\":32,"
        "\"num_attention_heads\":32,\"num_key_value_heads\":32,\"max_position_embeddings\":4096,"
        "\"rms_norm_eps\":1e-5,\"torch_dtype\":\"float16\"}";
    const struct {
        cr_wrap_policy policy;
        size_t want;
    } cases[] = {
        {{.min_elems = 1000000}, 1 + 1 + 32 * 7 + 1},  /* every product */
        {{.min_elems = 20000000}, 1 + 1 + 32 * 4 + 1}, /* gate, up, down, what attention sums to */
        {{.min_elems = 20000000, CLASSES("LlamaDecoderLayer"), .is_nested = true},
         1 + 1 + 32 * 5 + 1},
        {{0}, 1 + 1 + 32},
    };
    cr_err err = {0};
    cr_model *model;

    (void)state;
    assert_int_equal(build_model(text, &model, &err), CR_OK);
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_units units;
        assert_int_equal(cr_units_build(model, &cases[i].policy, 8, &units, &err), CR_OK);
        assert_int_equal(units.num, cases[i].want);
        cr_units_free(&units);
    }
    cr_model_free(model);
}

/* ---- modules in float32 ---- */

static void c11_float32_is_a_unit(void **state)
{
    const struct {
        cr_wrap_policy policy;
        const char *fp32, *frozen;
        bool is_tied;
        const char *want; /* units, those in float32 with a star, or a part of the error */
    } cases[] = {
        {{0},
         "vision",
         .want = "root 5432, vision* 2320, model.embed_tokens 5000, "
                 "model.layers.0 2432, model.layers.1 2432"},
        {{0},
         "model.layers.0.mlp",
         "model.layers.0.mlp",
         .want =
             "root 7752, model.embed_tokens 5000, model.layers.0 832, model.layers.0.mlp* 1600, "
             "model.layers.1 2432"},
        /* what a policy marks below is float32, too; what it marks above is not */
        {{CLASSES("Block", "LlamaDecoderLayer"), .is_nested = true},
         "vision",
         .want = "root 10432, vision* 320, vision.blocks.0* 1000, vision.blocks.1* 1000, "
                 "model.layers.0 2432, model.layers.1 2432"},
        {{CLASSES("LlamaModel"), .is_nested = true},
         "model.layers.1",
         "model.layers",
         .want = "root 7720, model 7464, model.layers.1* 2432"},
        {{.min_elems = 2000},
         "vision.blocks.1",
         .want = "root 1752, vision.blocks.1* 1000, model.embed_tokens 5000, model.layers.0 2432, "
                 "model.layers.1 2432, lm_head 5000"},
        {{0},
         "model.embed_tokens",
         .is_tied = true,
         .want = "model.embed_tokens.weight cannot be in float32"},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        tree *t = make_tree(cases[i].is_tied);
        int64_t trained = 0, frozen = 0, bytes[2] = {0};
        cr_buf text = {0};
        cr_err err = {0};
        cr_units units;
        for (size_t m = 0; m < t->num; m++) {
            t->modules[m].impl = t; /* so that it computes by itself */
            if (strcmp(t->modules[m].name, cases[i].fp32) == 0) cr_module_set_fp32(&t->modules[m]);
        }
        assert_int_equal(cr_model_freeze(&t->model, cases[i].frozen, &err), CR_OK);
        if (cr_units_build(&t->model, &cases[i].policy, 4, &units, &err) != CR_OK) {
            assert_int_equal(err.status, CR_ECONFIG);
            if (!strstr(err.msg, cases[i].want)) fail_msg("case %zu: %s", i, err.msg);
            free_tree(t);
            continue;
        }
        for (size_t k = 0; k < units.num; k++) {
            const cr_unit *u = &units.unit[k];
            const cr_flat *flats[] = {&u->trained, &u->frozen};
            cr_buf_addf(&text, "%s%s%s %lld", k ? ", " : "", u->name, u->trained.is_fp32 ? "*" : "",
                        (long long)(u->trained.num_elems + u->frozen.num_elems));
            for (int f = 0; f < 2; f++) { /* one after another, in bytes */
                assert_int_equal(cr_extent_bytes(flats[f]->first, CR_BF16), bytes[f]);
                bytes[f] += flats[f]->shard_elems *
                            (int64_t)cr_dtype_bytes(cr_flat_dtype(flats[f], CR_BF16));
                for (size_t p = 0; p < flats[f]->num_params; p++)
                    assert_int_equal(flats[f]->params[p]->is_fp32, flats[f]->is_fp32);
            }
            trained += u->trained.shard_elems;
            frozen += u->frozen.shard_elems;
        }
        if (strcmp(text.data, cases[i].want) != 0) fail_msg("case %zu: %s", i, text.data);
        assert_int_equal(units.trained_shard.elems, trained);
        assert_int_equal(units.frozen_shard.elems, frozen);
        assert_int_equal(cr_extent_bytes(units.trained_shard, CR_BF16), bytes[0]);
        assert_int_equal(cr_extent_bytes(units.frozen_shard, CR_BF16), bytes[1]);
        cr_units_free(&units);
        cr_buf_free(&text);
        free_tree(t);
    }
}

/* ---- the wrapped tree as text ---- */

static void c28_tree(void **state)
{
    static const char want[] =
        "FSDP[PrismaticVLM] unit #0, 10032 elements, 0.02 MiB gathered in bf16, shard 0.01 MiB\n"
        "  (vision): FSDP[VisionTransformer] unit #1, 320 elements (320 frozen), 0.00 MiB gathered "
        "in bf16, shard 0.00 MiB\n"
        "    (patch_embed): Conv2d\n"
        "    (blocks): ModuleList\n"
        "      (0-1): 2 x FSDP[Block] 2 units from #2, each 1000 elements (1000 frozen), 0.00 MiB "
        "gathered in bf16, shard 0.00 MiB\n"
        "        (attn): Linear\n"
        "        (mlp): Linear\n"
        "    (norm): LayerNorm\n"
        "  (projector): FSDP[MLPProjector] unit #4, 400 elements, 0.00 MiB gathered in bf16, shard "
        "0.00 MiB\n"
        "    (fc1): Linear\n"
        "    (fc2): Linear\n"
        "  (model): LlamaModel\n"
        "    (embed_tokens): ScaledEmbedding\n"
        "    (layers): ModuleList\n"
        "      (0-1): 2 x FSDP[LlamaDecoderLayer] 2 units from #5, each 2432 elements, 0.00 MiB "
        "gathered in bf16, shard 0.00 MiB\n"
        "        (self_attn): LlamaAttention\n"
        "          (q_proj): Linear\n"
        "        (mlp): LlamaMLP\n"
        "          (up_proj): Linear\n"
        "        (norm): LlamaRMSNorm\n"
        "    (norm): LlamaRMSNorm\n"
        "  (lm_head): Linear\n"
        "7 units on 4 shards: 17616 elements, 15296 of them trained\n"
        "warning: the root keeps 57 % of the elements, gathered all the time (wrap more classes, "
        "or wrap_lm_output)\n";
    tree *t = make_tree(false);
    cr_wrap_policy policy = {
        CLASSES("VisionTransformer", "Block", "MLPProjector", "LlamaDecoderLayer"),
        .is_nested = true};
    cr_units units;
    cr_buf text = {0};
    cr_err err = {0};

    (void)state;
    assert_int_equal(cr_model_freeze(&t->model, "vision", &err), CR_OK);
    assert_int_equal(cr_units_build(&t->model, &policy, 4, &units, &err), CR_OK);
    cr_units_write_tree(&units, &t->model, CR_BF16, &text);
    assert_string_equal(text.data, want);
    cr_units_free(&units);
    policy = (cr_wrap_policy){MODULES("vision.blocks.1.mlp")}; /* neighbours that are not alike */
    assert_int_equal(cr_units_build(&t->model, &policy, 4, &units, &err), CR_OK);
    cr_buf_clear(&text);
    cr_units_write_tree(&units, &t->model, CR_F32, &text);
    assert_non_null(strstr(text.data, "      (0): Block\n        (attn): Linear\n"));
    assert_non_null(strstr(text.data, "      (1): Block\n        (attn): Linear\n"
                                      "        (mlp): FSDP[Linear] unit #1, 400 elements"));
    cr_units_free(&units);
    t->layers[1]->impl = t;
    cr_module_set_fp32(t->layers[1]); /* likewise */
    policy = (cr_wrap_policy){0};
    assert_int_equal(cr_units_build(&t->model, &policy, 4, &units, &err), CR_OK);
    cr_buf_clear(&text);
    cr_units_write_tree(&units, &t->model, CR_BF16, &text);
    assert_non_null(strstr(text.data, "(0): FSDP[LlamaDecoderLayer] unit #2, 2432 elements, 0.00 "
                                      "MiB gathered in bf16"));
    assert_non_null(strstr(text.data, "(1): FSDP[LlamaDecoderLayer] unit #3, 2432 elements, 0.01 "
                                      "MiB gathered in fp32"));
    cr_buf_free(&text);
    cr_units_free(&units);
    free_tree(t);
}

/* ---- stages ---- */

static void c40_stages(void **state)
{
    const struct {
        const char *stage, *vision, *projector;
        const char *want; /* trained: vision, projector, first layer, last layer, head */
    } cases[] = {
        {"align", "vision.", "projector", "-P---"},
        {"finetune", "vision.", "projector", "-PLLL"},
        {"vla-train", "vision.", "projector", "-PLLL"},
        {"full-finetune", "vision.", "projector", "VPLLL"},
        {"vla-full-train", "vision.", "projector", "VPLLL"},
        {"last-layer-finetune", "vision.", "projector", "---L-"},
        {"vla-sandwich-train", "vision.", "projector", "VP-L-"},
        {"vla-sandwich-train", "vision.patch_embed, vision.blocks.1", "projector", "VP-L-"},
        {"finetune", NULL, NULL, "finetune trains the projector, but a llama has none"},
        {"vla-full-train", NULL, NULL, "trains the vision tower, but a llama has none"},
        {"last-layer-finetune", NULL, NULL, "---L-"},
        {"align", "visual", "projector", "vision: no parameter begins with 'visual'"},
        {"fine-tune", "vision.", NULL, "the nearest is finetune"},
    };
    static const char *const probes[] = {"vision.patch_embed.weight", "projector.fc2.weight",
                                         "model.layers.0.mlp.up_proj.weight",
                                         "model.layers.1.norm.weight", "lm_head.weight"};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        tree *t = make_tree(false);
        cr_err err = {0};
        cr_units units;
        cr_wrap_policy policy = {0};
        t->model.config.model_type = (char *)(uintptr_t) "llama";
        t->model.towers = (cr_towers){cases[i].vision, cases[i].projector};
        if (cr_model_freeze_stage(&t->model, cases[i].stage, &err) != CR_OK) {
            assert_int_equal(err.status, CR_ECONFIG);
            if (!strstr(err.msg, cases[i].want)) fail_msg("case %zu: %s", i, err.msg);
            free_tree(t);
            continue;
        }
        for (size_t k = 0; k < CR_COUNT(probes); k++)
            for (size_t p = 0; p < t->model.num_params; p++)
                if (strcmp(t->list[p]->name, probes[k]) == 0)
                    assert_int_equal(t->list[p]->is_trainable, cases[i].want[k] != '-');
        /* what is frozen has no master and no moments */
        assert_int_equal(cr_units_build(&t->model, &policy, 4, &units, &err), CR_OK);
        for (size_t p = 0; p < t->model.num_params; p++)
            units.num_trained -= t->list[p]->is_trainable ? t->list[p]->num_elems : 0;
        assert_int_equal(units.num_trained, 0);
        for (size_t k = 0; k < units.num; k++)
            for (size_t p = 0; p < units.unit[k].trained.num_params; p++)
                assert_true(units.unit[k].trained.params[p]->is_trainable);
        cr_units_free(&units);
        free_tree(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c27_units_of_policies),
        cmocka_unit_test(c27_sizes_on_7b),
        cmocka_unit_test(c11_float32_is_a_unit),
        cmocka_unit_test(c28_tree),
        cmocka_unit_test(c40_stages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
