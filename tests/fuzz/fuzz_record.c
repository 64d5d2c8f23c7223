/* fuzz_record.c -- a record may come from any process that reaches Redis: what was read can be written, and
 * what the streams carry is refused with a sentence or can be used. */
#include "samples/id.h"
#include "samples/messages.h"
#include "samples/train.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { VOCAB = 100, MAX_IDS = 1000 };
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every number of references is there. */
static double sum_items(const cr_item_refs *refs)
{
    double sum = 0;

    for (size_t i = 0; i < refs->num * CR_ITEM_DIGEST; i++)
        sum += (double)refs->digests[i];
    for (size_t i = 0; i < refs->num * CR_ITEM_GRID; i++) {
        CR_CHECK(refs->grids[i] > 0, "a side of %d", refs->grids[i]);
        sum += refs->grids[i];
    }
    return sum;
}

static void read_prompt(const cr_record *r)
{
    cr_prompt p;
    cr_err err = {0};

    if (cr_prompt_read(r, &p, &err) == CR_OK)
        CR_CHECK(p.samples.num > 0 && p.blocks.num > 0 && sum_items(&p.items) >= 0, "%zu samples",
                 p.samples.num);
    else
        CR_CHECK(err.status == CR_EFORMAT && err.msg[0], "%s", err.msg);
}

static void read_sample(const cr_record *r)
{
    cr_sample s = {0};
    cr_sample_reward x = {0};
    cr_err err = {0};
    bool is_read = cr_sample_read(r, MAX_IDS, &s, &err) == CR_OK;

    if (is_read)
        CR_CHECK(s.num_ids > 0 && s.num_ids <= MAX_IDS &&
                     isfinite(s.log_prob_infer[s.num_ids - 1]) && s.response,
                 "%zu tokens", s.num_ids);
    else
        CR_CHECK(err.status == CR_EFORMAT && err.msg[0], "%s", err.msg);
    err = (cr_err){0};
    if (cr_sample_reward_read(r, s.num_ids, &x, &err) == CR_OK)
        CR_CHECK(isfinite(x.score) && isfinite(x.reward) && x.detail && x.outcome &&
                     (!x.token_rewards || !x.num_ids || isfinite(x.token_rewards[x.num_ids - 1])),
                 "%s", cr_outcome_name(x.outcome));
    else
        CR_CHECK(err.status == CR_EFORMAT && err.msg[0] && !x.has_come, "%s", err.msg);
    cr_sample_reward_free(&x);
    for (size_t t = 0, at = 0; is_read && s.kept.num && t < s.num_ids; t++)
        for (int32_t k = 0; k < s.kept.num[t]; k++, at++)
            CR_CHECK(at < s.kept.num_ids && s.kept.ids[at] >= 0, "kept id %zu", at);
    cr_sample_free(&s);
}

/* Each message of a sample's life: what is read is written and read again, with the same number of fields. */
static void read_messages(const cr_record *r)
{
    for (int i = 0; i < CR_NUM_MESSAGES; i++) {
        union {
            cr_prompt prompt;
            cr_prompt_row row;
            cr_question question;
            cr_response response;
            cr_scored scored;
        } one, two;
        cr_record again = {0};
        cr_err err = {0};
        if (cr_message_read(&cr_messages[i], r, &one, &err) != CR_OK) {
            CR_CHECK(err.status == CR_EFORMAT && err.msg[0], "%s", err.msg);
            continue;
        }
        cr_message_write(&cr_messages[i], &one, &again);
        CR_CHECK(cr_message_read(&cr_messages[i], &again, &two, &err) == CR_OK, "%s", err.msg);
        cr_record_free(&again);
    }
}

static void read_step(const cr_record *r, const cr_samples *s)
{
    const float *column[CR_NUM_COLUMNS];
    const uint64_t *counts;
    float sum = 0;
    cr_err err = {0};

    if (cr_step_columns_read(r, s, column, &err) == CR_OK)
        for (int c = 0; c < CR_NUM_COLUMNS; c++)
            for (size_t i = 0;
                 i < (cr_batch_columns[c].is_per_sample ? s->num : s->num_tokens) && column[c]; i++)
                sum += column[c][i];
    else
        CR_CHECK(err.status == CR_EFORMAT && err.msg[0], "%s", err.msg);
    err = (cr_err){0};
    if (cr_counts_read(r, 2, &counts, &err) == CR_OK) sum += (float)counts[2 * CR_MINI_COUNTS - 1];
    if (sum > 1e30F) fputs("", stderr); /* every number was read */
}

static void read_sums(const cr_record *r)
{
    cr_train_sums all = {0}, part = {0};
    cr_err err = {0};

    if (cr_train_sums_read(r, &part, &err) == CR_OK)
        cr_train_sums_add(&all, &part, false);
    else
        CR_CHECK(err.status == CR_EFORMAT && err.msg[0], "%s", err.msg);
}

/* What a teacher says of the tokens: ids that are words, each once in a token, or none. */
static void read_words(const cr_record *r, const cr_samples *s)
{
    cr_teacher_outputs w;
    cr_err err = {0};

    if (cr_teacher_outputs_read(r, s, VOCAB, &w, &err) != CR_OK) {
        CR_CHECK(err.msg[0], "no message");
        return;
    }
    for (size_t i = 0; w.ids && i < s->num_tokens * w.num; i++) {
        CR_CHECK(w.ids[i] >= -1 && w.ids[i] < VOCAB, "id %d", w.ids[i]);
        CR_CHECK(w.numbers[i] <= 0, "log-prob %g", (double)w.numbers[i]);
        for (size_t k = i / w.num * w.num; k < i; k++)
            CR_CHECK(w.ids[i] < 0 || w.ids[k] != w.ids[i], "id %d twice", w.ids[i]);
    }
}

static void read_samples(const cr_record *r)
{
    cr_samples s;
    cr_err err = {0};

    if (cr_samples_read(r, VOCAB, &s, &err) == CR_OK) {
        size_t ids = 0, tokens = 0;
        for (size_t i = 0; i < s.num; i++) {
            CR_CHECK(s.first_id[i] == ids && s.first_token[i] == tokens, "sample %zu", i);
            for (; ids < s.first_id[i + 1]; ids++)
                CR_CHECK(s.ids[ids] >= 0 && s.ids[ids] < VOCAB, "id %d", s.ids[ids]);
            for (int32_t last = 0; tokens < s.first_token[i + 1]; last = s.place[tokens++])
                CR_CHECK(s.place[tokens] > last &&
                             (size_t)s.place[tokens] < cr_samples_num_ids(&s, i),
                         "token %zu", tokens);
        }
        CR_CHECK(tokens == s.num_tokens, "%zu tokens", tokens);
        for (size_t i = 0; s.items && i < s.num; i++)
            CR_CHECK(sum_items(&s.items[i]) >= 0, "images of sample %zu", i);
        for (size_t t = 0; s.num_kept && t < tokens; t++)
            for (int32_t k = 0; k < s.num_kept[t]; k++) {
                const int32_t *id = s.kept_ids + s.first_kept[t] + k;
                CR_CHECK(*id >= 0 && *id < VOCAB && (k == 0 || *id > id[-1]), "kept id %d", *id);
            }
        read_step(r, &s);
        read_words(r, &s);
    } else {
        CR_CHECK(err.status == CR_EFORMAT && err.msg[0], "%s", err.msg);
    }
    cr_samples_free(&s);
}

/* The name of an entry: what is taken is written in the same way. */
static void read_name(const uint8_t *data, size_t size)
{
    char *name = cr_strndup((const char *)data, size), again[CR_SAMPLE_NAME];
    uint64_t id;
    size_t k;
    bool is_second;

    if (cr_sample_name_read(name, &id, &k, &is_second)) {
        cr_sample_name(id, k, is_second, again);
        CR_CHECK(strcmp(name, again) == 0, "%s", name);
    }
    cr_free(name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cr_record r;
    cr_buf again = {0};
    cr_err err = {0};

    read_name(data, size);
    if (cr_record_unpack(data, size, &r, &err) != CR_OK) return 0;
    CR_CHECK(cr_record_pack(&r, &again, &err) == CR_OK, "%s", err.msg);
    read_prompt(&r);
    read_messages(&r);
    read_sample(&r);
    read_samples(&r);
    read_sums(&r);
    cr_record_free(&r);
    cr_buf_free(&again);
    return 0;
}
