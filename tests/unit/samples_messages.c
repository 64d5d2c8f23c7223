/* samples_messages.c -- what other programs send: records of the streams, lines and answers of scoring. What is
 * wrong is refused with a sentence; halves of surrogate pairs and NUL are mended, and nothing else is.
 * Not covered: arbitrary bytes (tests/fuzz); the streams themselves (exchange_streams.c, e2e/run_rewards.sh).
 */
#include "samples/messages.h"
#include "samples/rows.h"
#include "samples/train.h"
#include "scorers/score_line.h"
#include "scorers/scorer.h"
#include "tests/check_near.h"

#include <string.h>

/* A record that is a response and a verdict at once: messages read their own fields. */
static cr_status read_both(const cr_record *r, size_t max_ids, cr_sample *s, cr_err *err)
{
    s->rewards = CR_NEW_ARRAY(cr_sample_reward, 1);
    s->num_rewards = 1;
    CR_TRY(cr_sample_read(r, max_ids, s, err));
    return cr_sample_reward_read(r, s->num_ids, s->rewards, err);
}

/* A sample; wrong: 0 nothing, else what the sentence has to say. */
static void sample_of(int wrong, const char *says)
{
    const int32_t ids[] = {1, 2};
    const float log_probs[] = {-1, wrong == 1    ? NAN
                                   : wrong == 2  ? -INFINITY
                                   : wrong == 10 ? 0.5f
                                                 : -2};
    size_t num = wrong == 3 ? 0 : 2;
    static const char *const texts[] = {"finish", "status", "detail", "response"};
    cr_record r = {0};
    cr_sample s = {0};
    cr_err err = {0};

    cr_record_set_real(&r, "score", wrong == 9 ? 1e300 : 1);
    cr_record_set_real(&r, "reward", 0.5);
    cr_record_set_int(&r, "version", 3);
    for (int i = 0; i < (wrong == 5 ? 3 : 4); i++)
        cr_record_set_text(&r, texts[i], i == 1 ? (wrong == 6 ? "banana" : "ok") : "t\0xt",
                           i == 1 ? (wrong == 6 ? 6 : 2) : 4);
    if (wrong == 7) cr_record_add(&r, "token_rewards", CR_RECORD_FLOAT32, log_probs, 1);
    if (wrong == 8) cr_record_set_text(&r, "metrics", "[1]", 3);
    cr_record_add(&r, "ids", CR_RECORD_INT32, ids, num);
    cr_record_add(&r, "log_probs", CR_RECORD_FLOAT32, log_probs, wrong == 4 ? 1 : num);
    assert_int_equal(read_both(&r, wrong == 11 ? 1 : 2, &s, &err), wrong ? CR_EFORMAT : CR_OK);
    if (wrong && !strstr(err.msg, says)) fail_msg("%s", err.msg);
    assert_int_equal(s.rewards->has_come, wrong == 0);
    if (!wrong) {
        check_near(s.log_prob_infer[1], -2, 0);
        assert_int_equal(s.response_bytes, 4);
        assert_memory_equal(s.response, "t\0xt", 4);
    }
    cr_sample_free(&s);
    cr_record_free(&r);
}

static void samples(void **state)
{
    (void)state;
    sample_of(0, "");
    sample_of(1, "the log-prob of token 1 is not finite");
    sample_of(2, "the log-prob of token 1 is not finite");
    sample_of(3, "no tokens");
    sample_of(4, "log_probs has 1 numbers, expected 2");
    sample_of(5, "response");
    sample_of(6, "the status is banana");
    sample_of(7, "token_rewards has 1 numbers, expected 2");
    sample_of(8, "metrics is not an object");
    sample_of(9, "the score is outside");
    sample_of(10, "the log-prob of token 1 is not finite, or above 0");
    sample_of(11, "it has 2 tokens, and sequence_length leaves room for 1");
}

/* Kept words of a sample of tokens 1 and 2, and of a train rank's samples of 10 words. */
static void kept_words(void **state)
{
    static const struct {
        int32_t num[2], ids[5];
        size_t num_ids;
        float log_mass;
        const char *sample, *samples; /* what the sentence says; NULL: fine */
    } cases[] = {
        {{2, 3}, {1, 9, 0, 2, 3}, 5, -0.5f, NULL, NULL},
        {{0, 1}, {2}, 1, 0, NULL, NULL},
        {{2, 3}, {1, 10, 0, 2, 3}, 5, -0.5f, NULL, "10 is out of place"},
        {{2, 3}, {1, 1, 0, 2, 3}, 5, -0.5f, "token 0: 1 is out of place", "out of place"},
        {{2, 3}, {1, 9, 3, 2, 4}, 5, -0.5f, "token 1: 2 is out of place", "out of place"},
        {{1, 1}, {-1, 2}, 2, -0.5f, "-1 is out of place", "-1 is out of place"},
        {{2, 2}, {1, 9, 3, 4}, 4, -0.5f, "token 1 are without itself, 2", "without itself"},
        {{2, 3}, {1, 9, 0, 2}, 4, -0.5f, "token 1 has 3 kept_ids of 2", "has 3 kept_ids of 2"},
        {{2, -1}, {1, 9}, 2, -0.5f, "token 1 has -1", "token 1 has -1"},
        {{1, 1}, {1, 2, 3}, 3, -0.5f, "tokens of 2 kept_ids came with 3", "came with 3"},
        {{1, 1}, {1, 2}, 2, 0.1f, "token 1 has log_mass 0.1", NULL},
        {{1, 1}, {1, 2}, 2, NAN, "token 1 has log_mass nan", NULL},
    };
    const int32_t tokens[2] = {1, 2}, all[4] = {7, 1, 7, 2}, ones[2] = {1, 1}, mini[2] = {0};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        const float mass[2] = {-1, cases[i].log_mass}, log_probs[2] = {-1, -1};
        static const char *const texts[] = {"finish", "status", "detail", "response"};
        cr_record r = {0}, rank = {0};
        cr_sample s = {0};
        cr_samples many;
        cr_err err = {0}, rank_err = {0};
        cr_record_set_real(&r, "score", 1);
        cr_record_set_real(&r, "reward", 1);
        cr_record_set_int(&r, "version", 0);
        for (int k = 0; k < 4; k++)
            cr_record_set_text(&r, texts[k], "ok", 2);
        cr_record_add(&r, "ids", CR_RECORD_INT32, tokens, 2);
        cr_record_add(&r, "log_probs", CR_RECORD_FLOAT32, log_probs, 2);
        cr_record_add(&r, "log_mass", CR_RECORD_FLOAT32, mass, 2);
        cr_record_add(&rank, "prompts", CR_RECORD_INT32, ones, 2);
        cr_record_add(&rank, "lengths", CR_RECORD_INT32, ones, 2);
        cr_record_add(&rank, "mini", CR_RECORD_INT32, mini, 2);
        cr_record_add(&rank, "ids", CR_RECORD_INT32, all, 4);
        for (int k = 0; k < 2; k++) {
            cr_record_add(k ? &rank : &r, "num_kept", CR_RECORD_INT32, cases[i].num, 2);
            cr_record_add(k ? &rank : &r, "kept_ids", CR_RECORD_INT32, cases[i].ids,
                          cases[i].num_ids);
        }
        assert_int_equal(cr_sample_read(&r, 2, &s, &err), cases[i].sample ? CR_EFORMAT : CR_OK);
        if (cases[i].sample && !strstr(err.msg, cases[i].sample)) fail_msg("%s", err.msg);
        if (!cases[i].sample) assert_int_equal(s.kept.num_ids, cases[i].num_ids);
        assert_int_equal(cr_samples_read(&rank, 10, &many, &rank_err),
                         cases[i].samples ? CR_EFORMAT : CR_OK);
        if (cases[i].samples && !strstr(rank_err.msg, "kept_ids")) fail_msg("%s", rank_err.msg);
        if (!cases[i].samples) assert_int_equal(many.first_kept[1], cases[i].num[0]);
        cr_samples_free(&many);
        cr_sample_free(&s);
        cr_record_free(&r);
        cr_record_free(&rank);
    }
}

static void prompts(void **state)
{
    const int32_t ids[] = {1};
    const uint64_t wanted[] = {7};

    (void)state;
    for (size_t num = 0; num < 2; num++) {
        cr_record r = {0};
        cr_prompt p;
        cr_err err = {0};
        cr_record_add(&r, "rewards", CR_RECORD_INT32, ids, 1);
        cr_record_set_int(&r, "validation", 0);
        cr_record_add(&r, "prompt_ids", CR_RECORD_INT32, ids, 1);
        cr_record_add(&r, "sample_ids", CR_RECORD_UINT64, wanted, num);
        assert_int_equal(cr_prompt_read(&r, &p, &err), num ? CR_OK : CR_EFORMAT);
        cr_record_free(&r);
    }
}

/* What is written is read; what is optional and not there is left out; docs/exchange.md has each field. */
static void messages(void **state)
{
    const int32_t ids[] = {5, 6};
    const float log_probs[] = {-1, -2}, token_rewards[] = {0.5f, -0.5f};
    const cr_response response = {.version = 7,
                                  .text = {"a\0b", 3},
                                  .finish = {"stop", 4},
                                  .ids = {ids, 2},
                                  .log_probs = {log_probs, 2}};
    const cr_scored scored = {.score = 1,
                              .reward = -2,
                              .status = {"ok", 2},
                              .detail = {"", 0},
                              .token_rewards = {token_rewards, 2}};
    cr_response back;
    cr_scored verdict;
    cr_record r = {0}, v = {0};
    cr_buf table = {0}, page = {0};
    cr_err err = {0};

    (void)state;
    cr_message_write(&cr_messages[CR_MESSAGE_RESPONSE], &response, &r);
    assert_false(cr_record_has(&r, "num_kept"));
    assert_int_equal(cr_message_read(&cr_messages[CR_MESSAGE_RESPONSE], &r, &back, &err), CR_OK);
    assert_true(back.version == 7 && back.text.num_bytes == 3 && back.ids.data == ids &&
                back.log_probs.num == 2 && !back.num_kept.data);
    cr_message_write(&cr_messages[CR_MESSAGE_VERDICT], &scored, &v);
    assert_false(cr_record_has_value(&v, "seconds") || cr_record_has_value(&v, "metrics"));
    assert_int_equal(cr_message_read(&cr_messages[CR_MESSAGE_VERDICT], &v, &verdict, &err), CR_OK);
    check_near(verdict.reward, -2, 0);
    assert_true(verdict.token_rewards.num == 2 && !verdict.metrics.value);
    cr_record_free(&r);
    cr_record_free(&v);
    for (int i = 0; i < CR_NUM_MESSAGES; i++)
        cr_message_describe(&cr_messages[i], &table);
    assert_int_equal(cr_file_read("docs/exchange.md", &page, &err), CR_OK);
    if (!strstr(page.data, table.data)) fail_msg("docs/exchange.md needs:\n%s", table.data);
    cr_buf_free(&table);
    cr_buf_free(&page);
}

/* docs/bisect.md has the members of a line of rollouts/ beside the phase that makes them. */
static void lines(void **state)
{
    static const char *const phases[] = {"prompts", "generation", "rewards"};
    cr_buf page = {0};
    cr_err err = {0};

    (void)state;
    assert_int_equal(cr_file_read("docs/bisect.md", &page, &err), CR_OK);
    for (size_t k = 0; k < CR_COUNT(phases); k++) {
        const char *between = k ? "" : "`rollouts/step-N.jsonl`: ";
        cr_buf row = {0};
        cr_buf_addf(&row, "\n| %s | ", phases[k]);
        for (size_t i = 0; i < cr_sample_lines.num_fields; i++) {
            const cr_field *f = &cr_sample_lines.fields[i];
            if (strcmp(f->what, phases[k]) != 0 || f->type == CR_TYPE_COUNTS) continue;
            cr_buf_addf(&row, "%s`%s`", between, f->name);
            between = ", ";
        }
        cr_buf_adds(&row, " |");
        if (!strstr(page.data, row.data)) fail_msg("docs/bisect.md needs: %s", row.data);
        cr_buf_free(&row);
    }
    cr_buf_free(&page);
}

/* Fields of an id, and ids as numbers in a step. */
static void ids_of_samples(void **state)
{
    const cr_sample_id id = {
        .step = 8388607, .draw = 16777215, .index = 65535, .is_validation = true};
    uint64_t bits = cr_sample_id_make(id), again;
    cr_sample_id back = cr_sample_id_parse(bits);

    (void)state;
    assert_true(bits == UINT64_MAX && back.step == id.step && back.draw == id.draw &&
                back.index == id.index && back.is_validation);
    back = cr_sample_id_read("0000070000120003-1.1");
    assert_true(back.step == 7 && back.draw == 0x12 && back.index == 3 && !back.is_validation);
    assert_true(cr_sample_id_read("text").step == 0 && cr_sample_id_read("7").index == 0);
    assert_true(cr_sample_id_of_step(7, cr_sample_id_in_step(UINT64_C(0x70000120003)), &again));
    assert_true(again == UINT64_C(0x70000120003));
    assert_false(cr_sample_id_of_step(7, -1, &again) || cr_sample_id_of_step(7, 0x1p40, &again) ||
                 cr_sample_id_of_step(1 << 23, 0, &again));
}

/* Names of entries, and texts that are not such a name. */
static void names_of_samples(void **state)
{
    static const struct {
        uint64_t id;
        size_t k;
        bool is_second;
        const char *name;
    } cases[] = {{3, 0, false, "0000000000000003"},
                 {3, 0, true, "0000000000000003.1"},
                 {UINT64_C(0x8000020000000003), 12, false, "8000020000000003-12"},
                 {3, 1, true, "0000000000000003-1.1"}};
    static const char *const none[] = {"",
                                       "3",
                                       "0000000000000003-0",
                                       "0000000000000003-01",
                                       "0000000000000003-1.2",
                                       "0000000000000003.1.1",
                                       "0000000000000003 ",
                                       "-000000000000003",
                                       "0000000000000003--1",
                                       "0000000000000003-99999999999999999999999999"};
    uint64_t id;
    size_t k;
    bool is_second;

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        char name[CR_SAMPLE_NAME];
        cr_sample_name(cases[i].id, cases[i].k, cases[i].is_second, name);
        assert_string_equal(name, cases[i].name);
        assert_true(cr_sample_name_read(name, &id, &k, &is_second));
        assert_true(id == cases[i].id && k == cases[i].k && is_second == cases[i].is_second);
    }
    for (size_t i = 0; i < CR_COUNT(none); i++)
        if (cr_sample_name_read(none[i], &id, &k, &is_second)) fail_msg("%s", none[i]);
}

static void rows_of_a_train_rank(void **state)
{
    static const struct {
        int32_t prompts[2], lengths[2], ids[4];
        size_t num_ids, num_names;
        const char *says;
    } cases[] = {{{1, 2}, {1, 0}, {0, 9, 1, 2}, 4, 0, NULL},
                 {{1, 2}, {1, 0}, {0, 9, 1, 2}, 4, 2, NULL},
                 {{1, 2}, {1, 0}, {0, 9, 1, 10}, 4, 0, "sample 1: id 10 is outside the vocabulary"},
                 {{1, 2}, {1, 0}, {0, 9, 10, 2}, 4, 2, "sample 000000000000001f: id 10 is outside"},
                 {{1, 2}, {1, 0}, {0, 9, 1, 2}, 4, 1, "2 samples with 1 sample_ids"},
                 {{1, 2}, {1, 0}, {0, -1, 1, 2}, 4, 2, "sample 0000000000000007: id -1 is outside"},
                 {{1, 2}, {1, 1}, {0, 1, 1, 2}, 4, 0, "samples of 5 ids came with 4"},
                 {{0, 2}, {1, 1}, {0, 1, 1, 2}, 4, 0, "sample 0 has 0 prompt"},
                 {{1, 3}, {1, -1}, {0, 1, 1, 2}, 4, 0, "sample 1 has 3 prompt and -1"}};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        const uint64_t names[2] = {7, 31};
        const int32_t mini[2] = {0};
        cr_record r = {0};
        cr_samples s;
        cr_err err = {0};
        cr_record_add(&r, "prompts", CR_RECORD_INT32, cases[i].prompts, 2);
        cr_record_add(&r, "lengths", CR_RECORD_INT32, cases[i].lengths, 2);
        cr_record_add(&r, "mini", CR_RECORD_INT32, mini, 2);
        cr_record_add(&r, "ids", CR_RECORD_INT32, cases[i].ids, cases[i].num_ids);
        if (cases[i].num_names)
            cr_record_add(&r, "sample_ids", CR_RECORD_UINT64, names, cases[i].num_names);
        assert_int_equal(cr_samples_read(&r, 10, &s, &err), cases[i].says ? CR_EFORMAT : CR_OK);
        if (cases[i].says && !strstr(err.msg, cases[i].says)) fail_msg("%s", err.msg);
        cr_samples_free(&s);
        cr_record_free(&r);
    }
}

/* Two ranks and two epochs; a number that is not finite stays one, in the sums it is part of. */
static void sums_of_updates(void **state)
{
    cr_train_sums all = {0}, part = {.loss.total_loss = 1,
                                     .loss.ratio_max = 2,
                                     .loss.ratio_min = 0.5,
                                     .loss.num_tokens = 3,
                                     .grad_norm = 7,
                                     .num_updates = 4,
                                     .num_skipped = 1};
    cr_err err = {0};

    (void)state;
    for (int k = 0; k < 4; k++) {
        cr_record r = {0};
        cr_train_sums back = {0};
        if (k == 2) part.loss.pg_loss = (double)INFINITY, part.loss.infer_diff_max = (double)NAN;
        if (k == 3) part.loss.num_tokens = 0, part.loss.ratio_min = 0; /* no token: no ratio */
        cr_train_sums_write(&part, &r);
        assert_int_equal(cr_train_sums_read(&r, &back, &err), CR_OK);
        cr_train_sums_add(&all, &back, k % 2 == 1);
        cr_record_free(&r);
    }
    check_near(all.loss.total_loss, 4, 0);
    check_near(all.grad_norm, 14, 0);
    check_near(all.loss.ratio_max, 2, 0);
    check_near(all.loss.ratio_min, 0.5, 0);
    assert_int_equal(all.num_updates, 8);
    assert_int_equal(all.num_skipped, 2);
    assert_true(isnan(all.loss.pg_loss) && isnan(all.loss.infer_diff_max));
}

static void columns_of_a_step(void **state)
{
    const float x[3] = {1, 2, 3};
    const uint64_t counts[2 * CR_MINI_COUNTS] = {UINT64_C(1) << 53};
    const float *column[CR_NUM_COLUMNS];
    const uint64_t *got;
    cr_samples s = {.num = 2, .num_tokens = 3};

    (void)state;
    for (int missing = -1; missing < CR_NUM_COLUMNS; missing++) {
        bool is_needed = missing == CR_COLUMN_INFER || missing == CR_COLUMN_ADVANTAGES ||
                         missing == CR_COLUMN_SCORES;
        cr_record r = {0};
        cr_err err = {0};
        for (int c = 0; c < CR_NUM_COLUMNS; c++)
            if (c != missing)
                cr_record_add(&r, cr_batch_columns[c].name, CR_RECORD_FLOAT32, x,
                              cr_batch_columns[c].is_per_sample ? 2 : 3);
        cr_record_add(&r, "counts", CR_RECORD_UINT64, counts, 2 * CR_MINI_COUNTS);
        assert_int_equal(cr_step_columns_read(&r, &s, column, &err),
                         is_needed ? CR_EFORMAT : CR_OK);
        if (missing >= 0 && !is_needed) assert_null(column[missing]);
        if (!is_needed) assert_ptr_equal(column[CR_COLUMN_TEACHER], NULL); /* it does not travel */
        err = (cr_err){0};
        assert_int_equal(cr_counts_read(&r, 2, &got, &err), CR_OK);
        assert_true(got[0] == UINT64_C(1) << 53);
        assert_int_equal(cr_counts_read(&r, 3, &got, &err), CR_EFORMAT);
        cr_record_free(&r);
    }
}

/* The rule of the lines below: it answers with the response. */
static void echo(const cr_rule_args *a, cr_rule_result *out)
{
    *out = (cr_rule_result){.score = 1, .reward = 1, .outcome = CR_OUTCOME_OK};
    memcpy(out->detail, a->response, a->response_bytes);
}

static void escapes_without_a_character(void **state)
{
    static const struct {
        const char *escaped, *text; /* NULL: refused */
    } cases[] = {{"\\ud83e\\udd17", "\xf0\x9f\xa4\x97"},
                 {"\\ud83e", "\xef\xbf\xbd"},
                 {"\\uDD17\\uD83E", "\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\\ud83e\\ud83e\\udd17", "\xef\xbf\xbd\xf0\x9f\xa4\x97"},
                 {"\\\\ud83e", "\\\\ud83e"},
                 {"\\ud7ff", "\xed\x9f\xbf"},
                 {"a\\u0000b", "a\xef\xbf\xbd\x62"},
                 {"\\\\u0000", "\\\\u0000"},
                 {"\\ud8ZZ", NULL},
                 {"\\udcZ7", NULL},
                 {"\\ud8", NULL}};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        const cr_rule_args settings = {.deadline_s = 5};
        cr_buf line = {0}, out = {0};
        cr_verdict verdict;
        json_t *root;
        cr_err err = {0};
        cr_buf_addf(&line, "{\"ground_truth\":\"\",\"response\":\"%s\"}", cases[i].escaped);
        if (cr_score_line(echo, &settings, CR_SCORE_PLAIN, line.data, line.num_bytes, 1, &out) !=
            !!cases[i].text)
            fail_msg("%s: %s", cases[i].escaped, out.data);
        out.num_bytes--;
        assert_int_equal(cr_json_parse(out.data, out.num_bytes, "answer", &root, &err), CR_OK);
        cr_verdict_read(root, 0, &verdict);
        json_decref(root);
        assert_string_equal(cr_outcome_name(verdict.outcome), cases[i].text ? "ok" : "error");
        if (cases[i].text && !strstr(out.data, cases[i].text))
            fail_msg("%s: %s", cases[i].escaped, out.data);
        cr_buf_free(&line);
        cr_buf_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(samples),
                                       cmocka_unit_test(kept_words),
                                       cmocka_unit_test(prompts),
                                       cmocka_unit_test(names_of_samples),
                                       cmocka_unit_test(ids_of_samples),
                                       cmocka_unit_test(messages),
                                       cmocka_unit_test(lines),
                                       cmocka_unit_test(rows_of_a_train_rank),
                                       cmocka_unit_test(sums_of_updates),
                                       cmocka_unit_test(columns_of_a_step),
                                       cmocka_unit_test(escapes_without_a_character)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
