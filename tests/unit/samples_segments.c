/* samples_segments.c -- samples of several segments from end to end: a response as it travels and as a file has it, the batch of a
 * step, the record of a rank, and the labels of a micro-batch. What is trained, and by which number, is generated; what was
 * observed is read and nothing else. Not covered: who makes such samples. */
#include "actors/trainer_impl.h"
#include "pipelines/replay/recorded.h"
#include "rl/loss.h"
#include "samples/batch.h"
#include "samples/messages.h"
#include "samples/train.h"

#include "tests/check_near.h"

#include <stdlib.h>
#include <string.h>

/* prompt 1 2, generated 10 11, observed 20 21 22, generated 12 (other weights), observed 23 at the end */
static const int32_t prompt[] = {1, 2}, response[] = {10, 11, 12}, observed[] = {20, 21, 22, 23},
                     spans[] = {2, 3, 1, 1}, versions[] = {5, 6},
                     sequence[] = {1, 2, 10, 11, 20, 21, 22, 12, 23};
static const float log_probs[] = {-0.5f, -1, -1.5f};

static cr_spans of_record(void)
{
    return (cr_spans){response, observed, log_probs, 3, 4, spans, 4, 6, versions, 2};
}

static void must(cr_status status, const cr_err *err)
{
    if (status != CR_OK) fail_msg("%s", err->msg);
}

static void check_sample(const cr_sample *s)
{
    static const struct {
        cr_segment_kind kind;
        size_t num;
        int32_t first;
        int64_t version;
    } want[] = {{CR_SEGMENT_GENERATED, 2, 10, 5},
                {CR_SEGMENT_OBSERVED, 3, 20, 0},
                {CR_SEGMENT_GENERATED, 1, 12, 6},
                {CR_SEGMENT_OBSERVED, 1, 23, 0}};
    int32_t back[10];

    assert_int_equal(s->num_segments, 5);
    for (size_t k = 0; k < 4; k++) {
        const cr_segment *x = &s->segments[k + 1];
        assert_int_equal(x->kind, want[k].kind);
        assert_int_equal(x->num_ids, want[k].num);
        assert_int_equal(x->ids[0], want[k].first);
        assert_int_equal(x->version, want[k].version);
    }
    check_near(s->segments[3].log_probs[0], -1.5, 0);
    assert_int_equal(s->num_ids, 3);
    assert_int_equal(s->version, 5); /* of the oldest */
    assert_int_equal(cr_segments_spans(s->segments, 5, back), 4);
    assert_memory_equal(back, spans, sizeof spans);
}

static void add_verdict(cr_sample *s)
{
    s->rewards = CR_NEW(cr_sample_reward);
    s->num_rewards = s->num_come = 1;
    *s->rewards = (cr_sample_reward){.outcome = CR_OUTCOME_OK, .detail = cr_strdup("fine")};
    s->outcome = CR_OUTCOME_OK;
    s->detail = s->rewards->detail;
}

/* The record of the stream, and the line of a rollout's file. */
static void round_trips(void **state)
{
    const cr_response message = {.version = 6,
                                 .text = {"x", 1},
                                 .finish = {"stop", 4},
                                 .ids = {response, 3},
                                 .log_probs = {log_probs, 3},
                                 .spans = {spans, 4},
                                 .observed = {observed, 4},
                                 .versions = {versions, 2}};
    char folder[] = "/tmp/croll.XXXXXX", *path;
    cr_reward_config reward = {.domain = (char[]){"sums"}};
    const cr_config config = {.rewards = &reward, .num_rewards = 1};
    cr_row row = {.ids = (int32_t *)(uintptr_t)prompt, .num_ids = 2};
    const cr_dataset data = {.rows = &row, .num_rows = 1};
    cr_sample s = {0}, again;
    const cr_rollout rollout = {.samples = &s, .num_samples = 1, .group_size = 1};
    cr_run run = {.config = &config, .output_dir = folder};
    cr_arena *memory = cr_arena_create(1 << 12);
    cr_sample_line of;
    json_t *line;
    cr_record r;
    cr_buf packed = {0};
    cr_err err = {0};

    (void)state;
    must(cr_message_pack(CR_MESSAGE_RESPONSE, &message, &packed, &err), &err);
    must(cr_record_unpack(packed.data, packed.num_bytes, &r, &err), &err);
    must(cr_sample_read(&r, 7, &s, &err), &err);
    check_sample(&s);
    cr_sample_free(&s);
    s = (cr_sample){0};
    assert_int_equal(cr_sample_read(&r, 6, &s, &err), CR_EFORMAT);
    assert_non_null(strstr(err.msg, "it has 7 tokens"));
    err = (cr_err){0};
    cr_sample_free(&s);
    s = (cr_sample){0};
    must(cr_sample_read(&r, 7, &s, &err), &err);
    cr_record_free(&r);

    add_verdict(&s);
    row.json = json_object();
    assert_non_null(mkdtemp(folder));
    must(cr_rollout_write(&run, &rollout, &data, 0, /*is_validation=*/false, &err), &err);
    path = cr_recorded_path(folder, 0);
    must(cr_json_read_file(path, &line, &err), &err);
    must(cr_sample_line_read(line, &config, memory, &of, &again, &err), &err);
    check_sample(&again);
    json_decref(line);
    cr_arena_destroy(memory);
    json_decref(row.json);
    must(cr_remove_tree(folder, &err), &err);
    cr_free(path);
    cr_sample_free(&again);
    cr_sample_free(&s);
    cr_buf_free(&packed);
}

static void wrong_spans(void **state)
{
    static const struct {
        int32_t lengths[4], versions[3];
        size_t num_versions;
        const char *says;
    } cases[] = {{{2, 3, 1, 1}, {5, 6}, 2, NULL},
                 {{0, 3, 3, 1}, {5}, 1, NULL}, /* something is observed first */
                 {{2, 0, 1, 4}, {5, 6}, 2, NULL},
                 {{2, 3, 2, 1}, {5, 6}, 2, "span 2 has 2 tokens"},
                 {{2, 5, 1, 0}, {5, 6}, 2, "span 1 has 5 tokens"},
                 {{2, -3, 1, 1}, {5, 6}, 2, "span 1 has -3 tokens"},
                 {{2, 3, 0, 1}, {5}, 1, "spans of 2 and 4 tokens came with 3 and 4"},
                 {{2, 2, 1, 1}, {5, 6}, 2, "spans of 3 and 3 tokens came with 3 and 4"},
                 {{2, 3, 1, 1}, {5, 6, 7}, 3, "2 segments with 3 versions"}};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_spans from = of_record();
        cr_segment *segments;
        size_t num;
        cr_err err = {0};
        from.lengths = cases[i].lengths;
        from.versions = cases[i].versions;
        from.num_versions = cases[i].num_versions;
        assert_int_equal(cr_segments_make(&from, &segments, &num, &err),
                         cases[i].says ? CR_EFORMAT : CR_OK);
        if (cases[i].says && !strstr(err.msg, cases[i].says)) fail_msg("%s", err.msg);
        if (!cases[i].says) {
            int32_t back[10];
            assert_int_equal(cr_segments_spans(segments, num, back), 4);
            assert_memory_equal(back, cases[i].lengths, sizeof cases[i].lengths);
        }
        cr_free(segments);
    }
}

/* Two samples of that kind that share a prompt, and one of a prompt and a response between them. */
static void fill(cr_sample_batch *b, cr_sample *s)
{
    cr_spans from = of_record();
    cr_err err = {0};

    must(cr_sample_set_response(s, &from, &err), &err);
    s->segments[0].ids = prompt;
    s->segments[0].num_ids = 2;
    cr_sample_batch_init(b, 3);
    for (size_t i = 0; i < 3; i += 2)
        b->samples[i] = (struct cr_batch_sample){
            .id = i, .segments = s->segments, .num_segments = s->num_segments};
    cr_sample_batch_pair(b, 1, prompt, 1, response, 2);
    b->pairs[1][1].log_probs = log_probs + 1;
    cr_sample_batch_count(b);
    cr_sample_batch_add_sampled(b);
    for (size_t t = 0; t < b->num_tokens; t++)
        cr_sample_batch_add(b, CR_COLUMN_ADVANTAGES)[t] = (double)t;
    cr_sample_batch_add(b, CR_COLUMN_SCORES);
}

/* Columns, masks and denominators are of generated tokens. */
static void columns(void **state)
{
    static const double infer[] = {-0.5, -1, -1.5, -1, -1.5, -0.5, -1, -1.5};
    cr_sample s = {0};
    cr_sample_batch b;

    (void)state;
    fill(&b, &s);
    assert_int_equal(b.num_tokens, 8);
    assert_int_equal(b.samples[0].num_ids, 9);
    assert_int_equal(b.samples[0].num_response, 3);
    assert_int_equal(b.samples[1].num_ids, 3);
    for (size_t t = 0; t < 8; t++) {
        check_near(b.of[CR_COLUMN_INFER][t], infer[t], 0);
        check_near(b.of[CR_COLUMN_MASK][t], 1, 0);
    }
    cr_sample_batch_free(&b);
    cr_sample_free(&s);
}

/* What a rank reads, and the rows that it derives. */
static void of_a_rank(void **state)
{
    static const int32_t place[] = {2, 3, 7, 1, 2, 2, 3, 7};
    static const size_t order[] = {2, 1}; /* of a micro-batch */
    const cr_deal whole = {.num = 1};
    const cr_worker_config worker = {.task = CR_TASK_TRAIN};
    const struct cr_role_ranks ranks = {.worker = &worker};
    cr_actor actor = {.ranks = &ranks};
    cr_trainer t = {.a = &actor, .distribution = {.temperature = 1, .repetition_penalty = 1}};
    const float *column[CR_NUM_COLUMNS];
    cr_sample sample = {0};
    cr_sample_batch b;
    cr_batch batch;
    cr_record r = {0};
    cr_samples s;
    cr_err err = {0};

    (void)state;
    fill(&b, &sample);
    cr_sample_batch_write(&b, &whole, 0, cr_sample_batch_columns(&b), &r);
    must(cr_samples_read(&r, 30, &s, &err), &err);
    must(cr_step_columns_read(&r, &s, column, &err), &err);
    assert_int_equal(s.num_tokens, 8);
    assert_memory_equal(s.place, place, sizeof place);
    assert_null(column[CR_COLUMN_MASK]); /* all 1 */
    check_near(column[CR_COLUMN_INFER][7], -1.5, 0);
    for (size_t i = 0; i < 3; i += 2) {
        assert_int_equal(cr_samples_num_ids(&s, i), 9);
        assert_memory_equal(s.ids + s.first_id[i], sequence, sizeof sequence);
    }
    must(cri_pack(&t, &s, order, 2, NULL, &batch, &err), &err);
    assert_int_equal(batch.num_tokens, 12);
    assert_int_equal(t.start[1], 3);
    assert_int_equal(t.start[2], 5);
    for (int64_t row = 0, label = 0; row < 12; row++) {
        static const int32_t at[] = {1, 2, 6, 9, 10}, id[] = {10, 11, 12, 10, 11};
        bool is_derived = label < 5 && row == at[label];
        assert_int_equal(batch.positions[row], row < 9 ? row : row - 9);
        assert_int_equal(batch.labels[row], is_derived ? id[label] : -1);
        label += is_derived;
    }
    cr_packed_free(&t.packed);
    cr_free(t.start);
    cr_samples_free(&s);
    cr_record_free(&r);
    cr_sample_batch_free(&b);
    cr_sample_free(&sample);
}

static void wrong_records(void **state)
{
    static const struct {
        int32_t nums[2], spans[4];
        size_t num;
        const char *says;
    } cases[] = {{{3, 1}, {1, 1, 1, 2}, 4, NULL},
                 {{3, 1}, {1, 1, 0, 2}, 4, "sample 0 has 1 tokens that are of no span"},
                 {{3, 1}, {1, 1, 2, 2}, 4, "sample 0 has a span of 2 tokens"},
                 {{3, 1}, {1, -1, 3, 2}, 4, "sample 0 has a span of -1 tokens"},
                 {{3, 2}, {1, 1, 1, 2}, 4, "sample 1 has 2 spans"},
                 {{3, -1}, {1, 1, 1, 2}, 4, "sample 1 has -1 spans"},
                 {{2, 1}, {1, 2, 2, 1}, 4, "samples of 3 spans came with 4"}};
    static const int32_t prompts[] = {1, 1}, lengths[] = {3, 2}, mini[] = {0, 0},
                         ids[] = {1, 2, 3, 4, 5, 6, 7};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_record r = {0};
        cr_samples s;
        cr_err err = {0};
        cr_record_add(&r, CR_FIELD_PROMPTS, CR_RECORD_INT32, prompts, 2);
        cr_record_add(&r, CR_FIELD_LENGTHS, CR_RECORD_INT32, lengths, 2);
        cr_record_add(&r, CR_FIELD_MINI, CR_RECORD_INT32, mini, 2);
        cr_record_add(&r, CR_FIELD_IDS, CR_RECORD_INT32, ids, 7);
        cr_record_add(&r, CR_FIELD_NUM_SPANS, CR_RECORD_INT32, cases[i].nums, 2);
        cr_record_add(&r, CR_FIELD_SPANS, CR_RECORD_INT32, cases[i].spans, cases[i].num);
        assert_int_equal(cr_samples_read(&r, 30, &s, &err), cases[i].says ? CR_EFORMAT : CR_OK);
        if (cases[i].says && !strstr(err.msg, cases[i].says)) fail_msg("%s", err.msg);
        cr_samples_free(&s);
        cr_record_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(round_trips), cmocka_unit_test(wrong_spans),
                                       cmocka_unit_test(columns), cmocka_unit_test(of_a_rank),
                                       cmocka_unit_test(wrong_records)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
