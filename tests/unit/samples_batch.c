/* samples_batch.c -- samples and their columns into records of ranks, and numbers back: every part, with and without a
 * deal, prompts in common, columns that are left out. */
#include "samples/batch.h"
#include "samples/protocol.h"
#include "samples/train.h"

#include "tests/check_near.h"

#include <string.h>

enum { SAMPLES = 5 };

static const int32_t prompt_a[] = {1, 2, 3}, prompt_b[] = {1, 2, 3, 4}, prompt_c[] = {1, 2, 3};
static const int32_t responses[] = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19};
static const uint64_t digests[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
static const int32_t grids[] = {1, 2, 4, 1, 4, 6, 1, 2, 2};

static void fill(cr_sample_batch *b)
{
    static const struct {
        const int32_t *prompt, *response;
        size_t num_prompt, num_response;
        cr_item_refs items;
    } samples[SAMPLES] = {{prompt_a, responses, 3, 2, {digests, grids, 2}},
                          {prompt_b, responses + 2, 4, 3, {0}},
                          {prompt_a, responses + 5, 3, 1, {digests, grids, 2}},
                          {prompt_c, responses + 6, 3, 0, {digests + 8, grids + 6, 1}},
                          {prompt_b, responses + 6, 4, 4, {0}}};

    cr_sample_batch_init(b, SAMPLES);
    for (size_t i = 0; i < SAMPLES; i++) {
        b->samples[i] = (struct cr_batch_sample){.id = 21 + i, .items = samples[i].items};
        cr_sample_batch_pair(b, i, samples[i].prompt, samples[i].num_prompt, samples[i].response,
                             samples[i].num_response);
    }
    b->has_ids = true;
    cr_sample_batch_count(b);
    assert_int_equal(b->num_tokens, 10);
    for (size_t t = 0; t < b->num_tokens; t++) {
        cr_sample_batch_add(b, CR_COLUMN_INFER)[t] = -(double)t;
        cr_sample_batch_add(b, CR_COLUMN_ADVANTAGES)[t] = (double)t / 2;
        cr_sample_batch_add(b, CR_COLUMN_MASK)[t] = 1;
        cr_sample_batch_add(b, CR_COLUMN_FINAL)[t] = t != 3;
        cr_sample_batch_add(b, CR_COLUMN_KL)[t] = 7;
    }
    for (size_t i = 0; i < SAMPLES; i++)
        cr_sample_batch_add(b, CR_COLUMN_SCORES)[i] = (double)i;
}

/* What a rank reads of a part is what the batch has, of the samples `mine` in their order. */
static void check_part(cr_sample_batch *b, const cr_deal *deal, int part, const size_t *mine,
                       size_t num)
{
    const float *column[CR_NUM_COLUMNS];
    size_t tokens = 0;
    cr_record r = {0}, back = {0};
    cr_buf packed = {0};
    cr_samples s;
    cr_err err = {0};

    cr_sample_batch_write(b, deal, part, cr_sample_batch_columns(b), &r);
    assert_int_equal(cr_record_pack(&r, &packed, &err), CR_OK);
    assert_int_equal(cr_record_unpack(packed.data, packed.num_bytes, &back, &err), CR_OK);
    if (cr_samples_read(&back, 20, &s, &err) != CR_OK) fail_msg("%s", err.msg);
    if (cr_step_columns_read(&back, &s, column, &err) != CR_OK) fail_msg("%s", err.msg);
    assert_int_equal(s.num, num);
    assert_non_null(s.items);
    assert_null(column[CR_COLUMN_MASK]); /* all 1 */
    assert_null(column[CR_COLUMN_KL]);   /* of the pipeline alone */
    for (size_t k = 0; k < num; k++) {
        const struct cr_batch_sample *x = &b->samples[mine[k]];
        const int32_t *ids = s.ids + s.first_id[k];
        assert_int_equal(s.sample_ids[k], x->id);
        assert_int_equal(cr_samples_num_ids(&s, k), x->num_ids);
        assert_int_equal(cr_samples_num_tokens(&s, k), x->num_response);
        assert_int_equal(s.mini[k], deal->mini ? deal->mini[mine[k]] : 0);
        assert_memory_equal(ids, x->segments[0].ids, x->segments[0].num_ids * 4);
        assert_memory_equal(ids + x->segments[0].num_ids, x->segments[1].ids, x->num_response * 4);
        assert_int_equal(s.items[k].num, x->items.num);
        if (x->items.num) {
            assert_memory_equal(s.items[k].digests, x->items.digests, x->items.num * 32);
            assert_memory_equal(s.items[k].grids, x->items.grids, x->items.num * 12);
        }
        check_near(column[CR_COLUMN_SCORES][k], (double)mine[k], 0);
        for (size_t t = 0; t < x->num_response; t++, tokens++) {
            size_t at = b->start[mine[k]] + t;
            check_near(column[CR_COLUMN_INFER][tokens], b->of[CR_COLUMN_INFER][at], 0);
            check_near(column[CR_COLUMN_FINAL][tokens], b->of[CR_COLUMN_FINAL][at], 0);
        }
    }
    assert_int_equal(s.num_tokens, tokens);
    cr_samples_free(&s);
    cr_record_free(&r);
    cr_record_free(&back);
    cr_buf_free(&packed);
}

static void parts(void **state)
{
    static const uint32_t order[SAMPLES] = {4, 2, 0, 1, 3};
    static const int32_t part[SAMPLES] = {0, 1, 0, 1, 1}, mini[SAMPLES] = {0, 1, 0, 0, 1};
    const cr_deal balanced = {2, order, part, mini}, in_turn = {.num = 2}, whole = {.num = 1};
    cr_sample_batch b;

    (void)state;
    fill(&b);
    check_part(&b, &balanced, 0, (const size_t[]){2, 0}, 2);
    check_part(&b, &balanced, 1, (const size_t[]){4, 1, 3}, 3);
    check_part(&b, &in_turn, 0, (const size_t[]){0, 2, 4}, 3);
    check_part(&b, &in_turn, 1, (const size_t[]){1, 3}, 2);
    check_part(&b, &whole, 0, (const size_t[]){0, 1, 2, 3, 4}, 5);
    cr_sample_batch_free(&b);
}

/* A prompt that samples have in common is written once: of one array, whatever another one holds. */
static void common_prompts(void **state)
{
    const cr_deal whole = {.num = 1};
    const int32_t *prompt_of;
    const void *data;
    size_t num;
    cr_record r = {0};
    cr_sample_batch b;
    cr_err err = {0};

    (void)state;
    fill(&b);
    cr_sample_batch_write(&b, &whole, 0, 0, &r);
    assert_int_equal(cr_record_get(&r, CR_FIELD_PROMPT_OF, CR_RECORD_INT32, &data, &num, &err),
                     CR_OK);
    prompt_of = data;
    assert_int_equal(num, SAMPLES);
    for (size_t i = 0; i < SAMPLES; i++)
        assert_int_equal(prompt_of[i], ((const int32_t[]){0, 1, 0, 3, 1})[i]);
    assert_int_equal(cr_record_get(&r, CR_FIELD_IDS, CR_RECORD_INT32, &data, &num, &err), CR_OK);
    assert_int_equal(num, 3 + 4 + 3 + 10);
    cr_record_free(&r);
    cr_sample_batch_free(&b);
}

static void wrong_prompts(void **state)
{
    static const struct {
        int32_t prompts[3], of[3];
        size_t num;
        const char *says;
    } cases[] = {{{2, 2, 2}, {0, 0, 2}, 3, NULL},
                 {{2, 2, 2}, {0, 0, 0}, 3, "samples of 5 ids came with 7"},
                 {{2, 2, 2}, {0, 0, 2}, 2, "3 samples with 2 prompt_of"},
                 {{2, 1, 2}, {0, 0, 2}, 3, "sample 1 has the prompt of sample 0"},
                 {{2, 2, 2}, {0, 2, 2}, 3, "sample 1 has the prompt of sample 2"},
                 {{2, 2, 2}, {0, 0, 1}, 3, "sample 2 has the prompt of sample 1"},
                 {{2, 2, 2}, {-1, 0, 2}, 3, "sample 0 has the prompt of sample -1"}};
    static const int32_t lengths[] = {1, 1, 1}, mini[] = {0, 0, 0}, ids[] = {1, 2, 3, 4, 5, 6, 7};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_record r = {0};
        cr_samples s;
        cr_err err = {0};
        cr_record_add(&r, CR_FIELD_PROMPTS, CR_RECORD_INT32, cases[i].prompts, 3);
        cr_record_add(&r, CR_FIELD_LENGTHS, CR_RECORD_INT32, lengths, 3);
        cr_record_add(&r, CR_FIELD_MINI, CR_RECORD_INT32, mini, 3);
        cr_record_add(&r, CR_FIELD_PROMPT_OF, CR_RECORD_INT32, cases[i].of, cases[i].num);
        cr_record_add(&r, CR_FIELD_IDS, CR_RECORD_INT32, ids, 7);
        assert_int_equal(cr_samples_read(&r, 10, &s, &err), cases[i].says ? CR_EFORMAT : CR_OK);
        if (cases[i].says && !strstr(err.msg, cases[i].says)) fail_msg("%s", err.msg);
        if (!cases[i].says)
            assert_memory_equal(s.ids, ((const int32_t[]){1, 2, 3, 1, 2, 4, 5, 6, 7}), 9 * 4);
        cr_samples_free(&s);
        cr_record_free(&r);
    }
}

/* Replies of parts come to their places; another number of them is an error. */
static void replies(void **state)
{
    const cr_deal in_turn = {.num = 2};
    const float even[] = {1, 2, 3, 4, 5, 6, 7}, odd[] = {8, 9, 10};
    cr_record r[2] = {{0}}, wrong = {0};
    cr_sample_batch b;
    cr_err err = {0};

    (void)state;
    fill(&b);
    cr_record_add(&r[0], "log_probs", CR_RECORD_FLOAT32, even, 7);
    cr_record_add(&r[1], "log_probs", CR_RECORD_FLOAT32, odd, 3);
    cr_record_add(&wrong, "log_probs", CR_RECORD_FLOAT32, odd, 2);
    for (int part = 0; part < 2; part++)
        assert_int_equal(
            cr_sample_batch_read(&b, &in_turn, part, &r[part], "log_probs", CR_COLUMN_REF, &err),
            CR_OK);
    for (size_t t = 0; t < 10; t++)
        check_near(b.of[CR_COLUMN_REF][t], ((const double[]){1, 2, 8, 9, 10, 3, 4, 5, 6, 7})[t], 0);
    assert_int_equal(
        cr_sample_batch_read(&b, &in_turn, 1, &wrong, "log_probs", CR_COLUMN_REF, &err),
        CR_EFORMAT);
    assert_non_null(strstr(err.msg, "2 numbers of log_probs for 3 tokens"));
    err = (cr_err){0};
    assert_int_equal(cr_sample_batch_read(&b, &in_turn, 1, &r[0], "log_probs", CR_COLUMN_REF, &err),
                     CR_EFORMAT);
    assert_non_null(strstr(err.msg, "7 numbers of log_probs for 3 tokens"));
    for (int part = 0; part < 2; part++)
        cr_record_free(&r[part]);
    cr_record_free(&wrong);
    cr_sample_batch_free(&b);
}

/* Domains that differ: each sample has its temperature, and one without a filter keeps all ids. */
static void mixed_domains(void **state)
{
    static const uint32_t order[SAMPLES] = {4, 2, 0, 1, 3};
    const cr_kept kept = {NULL, (int32_t[]){2, 0, 1}, (int32_t[]){3, 12, 14}, 3};
    const cr_deal whole = {1, order, NULL, NULL};
    cr_record r = {0};
    cr_sample_batch b;
    cr_samples s;
    cr_err err = {0};

    (void)state;
    fill(&b);
    b.has_temperatures = true;
    for (size_t i = 0; i < SAMPLES; i++)
        b.samples[i].temperature = 1 + (float)i / 4;
    b.samples[1].kept = &kept;
    cr_sample_batch_write(&b, &whole, 0, 0, &r);
    if (cr_samples_read(&r, 20, &s, &err) != CR_OK) fail_msg("%s", err.msg);
    for (size_t k = 0; k < SAMPLES; k++)
        check_near(s.temperatures[k], (double)(1 + (float)order[k] / 4), 0);
    for (size_t k = 0; k < SAMPLES; k++)
        for (size_t t = 0; t < cr_samples_num_tokens(&s, k); t++)
            assert_int_equal(s.num_kept[s.first_token[k] + t], order[k] == 1 ? kept.num[t] : 0);
    assert_int_equal(s.kept_ids[s.first_kept[s.first_token[3] + 2]], 14);
    cr_samples_free(&s);
    cr_record_free(&r);
    b.samples[2].temperature = 0;
    cr_sample_batch_write(&b, &whole, 0, 0, &r);
    assert_int_equal(cr_samples_read(&r, 20, &s, &err), CR_EFORMAT);
    assert_non_null(strstr(err.msg, "sample 1 has the temperature 0"));
    cr_samples_free(&s);
    cr_record_free(&r);
    cr_sample_batch_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts), cmocka_unit_test(common_prompts),
                                       cmocka_unit_test(mixed_domains),
                                       cmocka_unit_test(wrong_prompts), cmocka_unit_test(replies)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
