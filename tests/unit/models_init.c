/* models_init.c -- random weights: a part of a parameter has the numbers of the whole, whichever part and however many.
 * Not covered: what the numbers are (unit/models_vl_numbers), ranks (unit/strategies_load).
 */
#include "tests/check_near.h"
#include "tests/model_bench.h"

static const char config[] =
    "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"num_key_value_heads\":2,"
    "\"hidden_size\":32,\"intermediate_size\":48,\"num_attention_heads\":4,\"vocab_size\":70,"
    "\"initializer_range\":0.3}";

/* Parts of `step` elements from `first` on have the bits of the whole. */
static void check_parts(const cr_model *model, const cr_param *p, int64_t first, int64_t step)
{
    float *whole = CR_NEW_ARRAY(float, p->num_elems), *part = CR_NEW_ARRAY(float, step);

    cr_param_init(model, p, 11, first, p->num_elems, whole + first);
    for (int64_t begin = first; begin < p->num_elems; begin += step) {
        int64_t end = begin + step < p->num_elems ? begin + step : p->num_elems;
        cr_param_init(model, p, 11, begin, end, part);
        assert_memory_equal(part, whole + begin, (size_t)(end - begin) * sizeof *part);
    }
    cr_free(whole);
    cr_free(part);
}

static void parts_are_those_of_the_whole(void **state)
{
    cr_model *model;
    cr_param many;
    cr_err err = {0};

    (void)state;
    if (build_model(config, &model, &err) != CR_OK) fail_msg("%s", err.msg);
    check_parts(model, model->params[0], 0, 13);
    many = *model->params[1]; /* more than one core fills them, where there is one */
    many.num_elems = 50001;
    many.init = CR_INIT_NORMAL;
    many.init_std = 1;
    check_parts(model, &many, 3, 7);
    cr_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_are_those_of_the_whole)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
