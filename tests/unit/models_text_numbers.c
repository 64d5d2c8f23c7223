/* models_text_numbers.c -- text models against Transformers (text_models.json, by tests/parity/text_models.py): what they say
 * of each token, and the gradient of every parameter; the same bits from the cache as in a packed pass.
 * // also on far
 * // also on cuda
 */
#include "models/files/safetensors.h"
#include "tests/golden_texts.h"
#include "tests/memory.h"

#include <stdlib.h>
#include <unistd.h>

static void numbers_of_gemma3(void **state)
{
    static const cr_pass ways[] = {{.dtype = CR_F32},
                                   {.dtype = CR_F32, .should_recompute = true, .mlp_tiles = 3}};
    json_t *all = read_cases("tests/parity/text_models.json");

    (void)state;
    for (size_t i = 0; i < CR_COUNT(ways); i++)
        check_case(find_case(all, "gemma3"), NULL, CR_LOG_PROB, &ways[i]);
    json_decref(all);
}

static const cr_model_options value_options = {.head = CR_HEAD_VALUE};

/* A value for each token, and no word. */
static void value_head(void **state)
{
    static const cr_pass ways[] = {{.dtype = CR_F32}, {.dtype = CR_F32, .should_recompute = true}};
    static const char *const sentences[] = {"gives no output 0", "has no logits", "has no logits"};
    json_t *all = read_cases("tests/parity/text_models.json"), *c = find_case(all, "value_head");
    cr_pass pass = {.dtype = CR_F32};
    model_bench b;
    inputs in;

    (void)state;
    for (size_t i = 0; i < CR_COUNT(ways); i++)
        check_case(c, &value_options, CR_VALUE, &ways[i]);
    open_bench(c, &value_options, CR_F32, &b);
    make_inputs(&in);
    pass = pass_of(&b, &in, &pass);
    assert_string_equal(b.model->root->cls, "Qwen2ForTokenClassification");
    assert_null(cr_model_find_param(b.model, "lm_head.weight"));
    for (int i = 0; i < 3; i++) {
        float out[MAX_TOKENS];
        int32_t rank[MAX_TOKENS], row = 0;
        cr_err err = {0};
        cr_outputs o = {.of = {i == 0 ? out : NULL}, .rank = i == 1 ? rank : NULL};
        cr_status status = i < 2 ? cr_model_forward(b.model, &pass, &o, &err)
                                 : cr_model_logits(b.model, &pass, &row, 1, NULL, &err);
        assert_int_equal(status, CR_EARG);
        if (!strstr(err.msg, sentences[i])) fail_msg("%s", err.msg);
    }
    model_bench_close(&b);
    json_decref(all);
}

/* Random weights of seed 11. */
static void write_model(const cr_model *model, const char *path)
{
    cr_tensor_spec *specs = CR_NEW_ARRAY(cr_tensor_spec, model->num_params);
    cr_tensor_writer *writer;
    cr_err err = {0};

    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *p = model->params[i];
        specs[i] = (cr_tensor_spec){.name = p->name, .dtype = CR_F32, .num_dims = p->num_dims};
        memcpy(specs[i].shape, p->shape, (size_t)p->num_dims * sizeof *p->shape);
    }
    must(cr_tensor_writer_open(path, specs, model->num_params, &writer, &err), &err);
    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *p = model->params[i];
        float *values = CR_NEW_ARRAY(float, (size_t)p->num_elems);
        cr_param_init(model, p, 11, 0, p->num_elems, values);
        must(cr_tensor_writer_put(writer, i, 0, p->num_elems, values, &err), &err);
        cr_free(values);
    }
    must(cr_tensor_writer_close(writer, &err), &err);
    cr_free(specs);
}

/* A checkpoint of the language model has no `score`: that is random, and the rest is read. */
static void value_head_is_added(void **state)
{
    json_t *all = read_cases("tests/parity/text_models.json");
    char *text = json_dumps(json_object_get(find_case(all, "value_head"), "config"), JSON_COMPACT);
    char folder[] = "/tmp/croll_head_XXXXXX", *path;
    float want[512], got[512];
    cr_weights *weights;
    cr_model *lm, *model;
    cr_err err = {0};

    (void)state;
    assert_non_null(mkdtemp(folder));
    path = cr_path_join(folder, "model.safetensors");
    must(build_model(text, &lm, &err), &err);
    write_model(lm, path);
    must(build_model_with(text, &value_options, &model, &err), &err);
    must(cr_weights_open(folder, model, &weights, &err), &err);
    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *p = model->params[i];
        int64_t end = p->num_elems < 512 ? p->num_elems : 512;
        cr_param_init(model, p, p->is_added ? 3 : 11, 0, end, want);
        must(cr_weights_fill(weights, model, p, 3, 0, end, got, &err), &err);
        assert_memory_equal(got, want, (size_t)end * sizeof *got);
        assert_int_equal(p->is_added, strncmp(p->name, "score.", 6) == 0);
    }
    cr_weights_close(weights);
    cr_model_free(model);
    cr_model_free(lm);
    remove(path);
    rmdir(folder);
    cr_free(path);
    free(text);
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_gemma3),
        cmocka_unit_test(value_head),
        cmocka_unit_test(value_head_is_added),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
