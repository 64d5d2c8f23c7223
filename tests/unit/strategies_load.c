/* strategies_load.c -- what each rank of a mesh reads and keeps, one rank after another played in this
 * process: every element of the checkpoint is read once, by its owner; values, also random ones, are the
 * same for every number of ranks; padding is zero. The files themselves: models_files.c.
 * // also on far
 * // also on cuda
 */
#include "strategies/fsdp_impl.h"
#include "tests/memory.h"
#include "tests/model_bench.h"

#include <setjmp.h> /* cmocka needs these before it */
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* ---- a checkpoint that counts ---- */

enum { SEED = 5, MAX_PARAMS = 64, MAX_ELEMS = 8192 };

struct cr_weights {
    const cr_model *model;
};
static unsigned char reads[MAX_PARAMS][MAX_ELEMS];
static int64_t num_read;

cr_status cr_weights_open(const char *folder, const cr_model *model, cr_weights **out, cr_err *err)
{
    (void)folder;
    *out = CR_NEW(cr_weights);
    (*out)->model = model;
    return err->status;
}

void cr_weights_close(cr_weights *weights)
{
    cr_free(weights);
}

cr_status cr_weights_fill(const cr_weights *weights, const cr_model *model, const cr_param *param,
                          uint64_t seed, int64_t begin, int64_t end, float *out, cr_err *err)
{
    size_t i = 0;

    cr_param_init(model, param, weights ? SEED : seed, begin, end, out);
    while (weights && weights->model->params[i] != param)
        i++;
    if (!weights) return CR_OK;
    assert_true(i < MAX_PARAMS && end <= MAX_ELEMS && begin < end && end <= param->num_elems);
    for (int64_t e = begin; e < end; e++)
        reads[i][e]++;
    num_read += end - begin;
    return err->status;
}

/* ---- ranks in turn ---- */

static cr_model *make_model(void)
{
    static const char text[] =
        "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"vocab_size\":37,"
        "\"hidden_size\":20,\"intermediate_size\":27,\"num_hidden_layers\":2,"
        "\"num_attention_heads\":5,\"num_key_value_heads\":1,\"max_position_embeddings\":64,"
        "\"rms_norm_eps\":1e-6,\"initializer_range\":0.1,\"torch_dtype\":\"float32\"}";
    cr_err err = {0};
    cr_model *model;

    assert_int_equal(build_model(text, &model, &err), CR_OK);
    assert_int_equal(cr_model_freeze(model, "model.layers.1.mlp", &err), CR_OK);
    return model;
}

/* Copies the elements of one rank's shards into whole [params of the model]. Returns how many. */
static int64_t collect(const cr_fsdp *f, int rank, float *whole)
{
    size_t trained = (size_t)f->units.trained_shard.elems,
           frozen = (size_t)f->units.frozen_shard.elems;
    float *of[] = {downloaded(cri_home(f), f->master, trained * sizeof(float)),
                   downloaded(cri_home(f), f->frozen, frozen * sizeof(float))};
    int64_t num = 0;

    for (size_t i = 0; i < 2 * f->units.num; i++) {
        const cr_flat *flat = i % 2 ? &f->units.unit[i / 2].frozen : &f->units.unit[i / 2].trained;
        const float *shard = of[i % 2] + flat->first.elems;
        int64_t here = 0;
        for (size_t k = 0; k < flat->num_params; k++) {
            int64_t begin, end, at, offset = 0;
            for (size_t p = 0; f->model->params[p] != flat->params[k]; p++)
                offset += f->model->params[p]->num_elems;
            if (!cri_shard_range(flat, k, rank, &begin, &end, &at)) continue;
            memcpy(whole + offset + begin, shard + at, (size_t)(end - begin) * sizeof(float));
            here += end - begin;
            for (int64_t e = 0; e < at && k == 0 && rank > 0 && begin == 0; e++)
                assert_true(shard[e] == 0); /* nothing but padding comes before it */
        }
        num += here;
        if (here == 0)
            for (int64_t e = 0; e < flat->shard_elems; e++)
                assert_true(shard[e] == 0);
    }
    cr_free(of[0]);
    cr_free(of[1]);
    return num;
}

/* All parameters as num_ranks ranks hold them, each played in turn. */
static float *run_ranks(int num_ranks, const char *source, int64_t *num_elems)
{
    float *whole = CR_NEW_ARRAY(float, MAX_PARAMS *MAX_ELEMS);
    int ranks[16];

    *num_elems = 0;
    for (int i = 0; i < num_ranks; i++)
        ranks[i] = i;
    for (int r = 0; r < num_ranks; r++) {
        cr_world_args world_args = {CR_WORLD_META, r, num_ranks, 0};
        cr_fsdp_args args = {.is_train = true, .source = source, .seed = SEED};
        cr_err err = {0};
        cr_world *world;
        cr_device *dev;
        cr_mesh_shape shape;
        cr_mesh *mesh;
        cr_model *model = make_model();
        cr_fsdp *f;
        assert_int_equal(cr_world_open(&world_args, &world, &err), CR_OK);
        assert_int_equal(cr_device_open(cr_device_default(), 1, &dev, &err), CR_OK);
        assert_int_equal(cr_mesh_shape_init(&shape, num_ranks, num_ranks, 1, 1, 0, &err), CR_OK);
        assert_int_equal(cr_mesh_create(world, dev, "actor_train", ranks, &shape, &mesh, &err),
                         CR_OK);
        num_read = 0;
        if (cr_fsdp_create(model, dev, mesh, &args, &f, &err) != CR_OK) fail_msg("%s", err.msg);
        assert_true(num_read <= f->units.trained_shard.elems + f->units.frozen_shard.elems);
        *num_elems += collect(f, r, whole);
        cr_fsdp_destroy(f);
        cr_mesh_destroy(mesh);
        cr_device_close(dev);
        cr_world_close(world);
        cr_model_free(model);
    }
    return whole;
}

static void c3_c41_c42_each_rank_its_own(void **state)
{
    cr_model *model = make_model();
    int64_t all = 0, num;
    float *one = run_ranks(1, NULL, &num);

    (void)state;
    for (size_t i = 0; i < model->num_params; i++)
        all += model->params[i]->num_elems;
    assert_int_equal(num, all);
    for (int num_ranks = 1; num_ranks <= 8; num_ranks++)
        for (int is_read = 0; is_read < 2; is_read++) {
            memset(reads, 0, sizeof reads);
            float *many = run_ranks(num_ranks, is_read ? "a checkpoint" : NULL, &num);
            assert_int_equal(num, all);
            assert_memory_equal(one, many, (size_t)all * sizeof(float));
            for (size_t i = 0; i < model->num_params; i++)
                for (int64_t e = 0; e < model->params[i]->num_elems; e++)
                    assert_int_equal(reads[i][e], is_read);
            cr_free(many);
        }
    cr_free(one);
    cr_model_free(model);
}

/* ---- lent to another tree ---- */

/* Every value of the other tree is that of its name; not where shards are cut, or masters are in another dtype. */
static void lent(void **state)
{
    static const struct {
        int num_ranks;
        bool is_train, is_lent;
        cr_dtype dtype;
    } cases[] = {{1, false, true, CR_F32}, {2, false, false, CR_F32}, {1, true, false, CR_BF16}};
    const int ranks[] = {0, 1};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_world_args world_args = {CR_WORLD_META, 0, cases[i].num_ranks, 0};
        cr_fsdp_args args = {
            .is_train = cases[i].is_train, .seed = SEED, .param_dtype = cases[i].dtype};
        cr_err err = {0};
        cr_model *model = make_model(), *other = make_model();
        cr_world *world;
        cr_device *dev;
        cr_mesh_shape shape;
        cr_mesh *mesh;
        cr_fsdp *f;
        assert_int_equal(cr_world_open(&world_args, &world, &err), CR_OK);
        assert_int_equal(cr_device_open(cr_device_default(), 1, &dev, &err), CR_OK);
        assert_int_equal(
            cr_mesh_shape_init(&shape, cases[i].num_ranks, cases[i].num_ranks, 1, 1, 0, &err),
            CR_OK);
        assert_int_equal(cr_mesh_create(world, dev, "reference", ranks, &shape, &mesh, &err),
                         CR_OK);
        if (cr_fsdp_create(model, dev, mesh, &args, &f, &err) != CR_OK) fail_msg("%s", err.msg);
        assert_int_equal(cr_fsdp_lend(f, other), cases[i].is_lent);
        for (size_t k = 0; cases[i].is_lent && k < other->num_params; k++) {
            const cr_param *p = other->params[k];
            size_t num = (size_t)p->num_elems;
            float *want = CR_NEW_ARRAY(float, num),
                  *got = downloaded(dev, p->weight.data, num * sizeof *got);
            cr_param_init(other, p, SEED, 0, p->num_elems, want);
            assert_int_equal(p->weight.dtype, CR_F32);
            assert_memory_equal(got, want, num * sizeof *got);
            cr_free(want);
            cr_free(got);
        }
        cr_fsdp_destroy(f);
        cr_mesh_destroy(mesh);
        cr_device_close(dev);
        cr_world_close(world);
        cr_model_free(model);
        cr_model_free(other);
    }
}

/* ---- C4 ---- */

/* A parameter is not a matrix to a flat: its elements lie one after another and are cut where a shard ends,
 * so there is no dimension to choose and nothing that could be uneven. */
static const int64_t shapes[][4] = {{32, 16}, {6, 4},    {16, 15}, {7, 15},  {17, 8}, {5},
                                    {1},      {3, 5, 7}, {1, 129}, {129, 1}, {2, 3}};

static void c3_c4_any_shape_round_trips(void **state)
{
    cr_param params[CR_COUNT(shapes)] = {0}, *list[CR_COUNT(shapes)];
    char no_name[] = "", part_name[] = "part", param_name[] = "p";
    cr_module root = {.name = no_name, .cls = "Model", .layer = -1},
              part = {.name = part_name, .cls = "Part", .parent = &root, .layer = -1},
              *children[] = {&part};
    const char *const classes[] = {"Part"};
    cr_wrap_policy policy = {.classes = classes, .num_classes = 1, .is_nested = true};
    cr_model model = {.root = &root, .params = list, .num_params = CR_COUNT(shapes)};

    (void)state;
    root.model = part.model = &model;
    root.children = children;
    root.num_children = 1;
    part.params = params;
    part.num_params = CR_COUNT(shapes);
    for (size_t i = 0; i < CR_COUNT(shapes); i++) {
        cr_param *p = list[i] = &params[i];
        p->name = param_name;
        p->num_elems = 1;
        for (int d = 0; d < 4 && shapes[i][d]; d++) {
            p->shape[p->num_dims++] = shapes[i][d];
            p->num_elems *= shapes[i][d];
        }
    }
    for (int kind = 0; kind < 2; kind++) /* trained, frozen */
        for (int num_ranks = 1; num_ranks <= 13; num_ranks++) {
            cr_units units;
            cr_err err = {0};
            for (size_t i = 0; i < CR_COUNT(shapes); i++)
                params[i].is_trainable = kind == 0;
            assert_int_equal(cr_units_build(&model, &policy, num_ranks, &units, &err), CR_OK);
            const cr_flat *flat = kind ? &units.unit[1].frozen : &units.unit[1].trained;
            uint32_t *gathered = CR_NEW_ARRAY(uint32_t, flat->padded_elems);
            int64_t num = 0;
            assert_int_equal(flat->shard_elems * num_ranks, flat->padded_elems);
            for (int r = 0; r < num_ranks; r++) { /* shards next to each other: an all-gather */
                uint32_t *shard = gathered + r * flat->shard_elems;
                for (size_t i = 0; i < flat->num_params; i++) {
                    int64_t begin, end, at;
                    if (!cri_shard_range(flat, i, r, &begin, &end, &at)) continue;
                    for (int64_t e = begin; e < end; e++, num++)
                        shard[at + e - begin] = (uint32_t)(i << 16) + (uint32_t)e + 1;
                }
            }
            for (size_t i = 0; i < flat->num_params; i++) /* a parameter is a view of it */
                for (int64_t e = 0; e < flat->params[i]->num_elems; e++, num--)
                    assert_int_equal(gathered[flat->offset[i] + e],
                                     (uint32_t)(i << 16) + (uint32_t)e + 1);
            assert_int_equal(num, 0);
            for (int64_t e = 0; e < flat->padded_elems; e++)
                num += gathered[e] != 0;
            for (size_t i = 0; i < flat->num_params; i++)
                num -= flat->params[i]->num_elems;
            assert_int_equal(num, 0); /* padding is zero */
            cr_free(gathered);
            cr_units_free(&units);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c3_c4_any_shape_round_trips),
        cmocka_unit_test(c3_c41_c42_each_rank_its_own),
        cmocka_unit_test(lent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
