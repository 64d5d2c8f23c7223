/* messages.c -- see messages.h. */
#include "samples/messages.h"
#include "samples/protocol.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FIELD(message, name, type, member, ...)                      \
    {                                                                \
        name, CR_TYPE_##type, offsetof(message, member), __VA_ARGS__ \
    }

static const cr_field prompt[] = {
    FIELD(cr_prompt, "validation", INT, is_validation, .what = "1 in a validation, else 0"),
    FIELD(cr_prompt, "prompt_ids", INT32S, ids, .what = "tokens of the prompt"),
    FIELD(cr_prompt, "sample_ids", UINT64S, samples,
          .what = "the ids of its samples, at least one"),
    FIELD(cr_prompt, "rewards", INT32S, blocks,
          .what = "the blocks that score them, by their places in the file, at least one"),
    FIELD(cr_prompt, CR_FIELD_ITEM_DIGESTS, UINT64S, item_digests, CR_LENGTH_FREE, true,
          "of its images, in the order of placeholders: SHA-256 of the file, 4 numbers each"),
    FIELD(cr_prompt, CR_FIELD_ITEM_GRIDS, INT32S, item_grids, CR_LENGTH_FREE, true,
          "of these their patches along t, h and w")};

static const cr_field row[] = {
    FIELD(cr_prompt_row, "row", TEXT, text, .what = "the data row, JSON"),
    FIELD(cr_prompt_row, "prompt_ids", INT32S, ids, .what = "tokens of the prompt")};

static const cr_field question[] = {
    FIELD(cr_question, "response", TEXT, response, .what = "the text of the response"),
    FIELD(cr_question, "finish", TEXT, finish, .what = "`stop` or `length`"),
    FIELD(cr_question, "ids", INT32S, ids, .what = "tokens of the response")};

static const cr_field response[] = {
    FIELD(cr_response, "version", INT, version,
          .what = "updates that the weights it was sampled with have had"),
    FIELD(cr_response, "response", TEXT, text, .what = "the text of the response"),
    FIELD(cr_response, "finish", TEXT, finish, .what = "`stop` or `length`"),
    FIELD(cr_response, "ids", INT32S, ids, .what = "tokens of the response, at least one"),
    FIELD(cr_response, "log_probs", FLOATS, log_probs, CR_LENGTH_PER_TOKEN,
          .what = "of the tokens, as they were sampled"),
    FIELD(cr_response, "log_mass", FLOATS, log_mass, CR_LENGTH_PER_TOKEN, true,
          "log of the mass that filters kept ([sampling.md](sampling.md))"),
    FIELD(cr_response, "num_kept", INT32S, num_kept, CR_LENGTH_PER_TOKEN, true,
          "how many ids they kept"),
    FIELD(cr_response, "kept_ids", INT32S, kept_ids, CR_LENGTH_FREE, true,
          "these ids, of one token after the other, ascending"),
    FIELD(cr_response, CR_FIELD_SPANS, INT32S, spans, CR_LENGTH_FREE, true,
          "lengths of generated and observed tokens in turn; absent: all are generated at once"),
    FIELD(cr_response, "observed_ids", INT32S, observed, CR_LENGTH_FREE, true,
          "the observed tokens of all spans"),
    FIELD(cr_response, "versions", INT32S, versions, CR_LENGTH_FREE, true,
          "of each span of generated tokens, where they differ")};

static const cr_field verdict[] = {
    FIELD(cr_scored, "score", REAL, score, .what = "within 1e6 on both sides of 0"),
    FIELD(cr_scored, "reward", REAL, reward, .what = "likewise"),
    FIELD(cr_scored, "status", TEXT, status, .what = "`ok`, `abstain`, `timeout` or `error`"),
    FIELD(cr_scored, "detail", TEXT, detail, .what = "why"),
    FIELD(cr_scored, "seconds", REAL, seconds, CR_LENGTH_FREE, true, "how long the answer took"),
    FIELD(cr_scored, "metrics", TEXT, metrics, CR_LENGTH_FREE, true,
          "a JSON object of numbers of the program's own"),
    FIELD(cr_scored, "token_rewards", FLOATS, token_rewards, CR_LENGTH_PER_TOKEN, true,
          "of the tokens of the response")};

const cr_message cr_messages[CR_NUM_MESSAGES] = {
    [CR_MESSAGE_PROMPT] = {"prompt", CR_STREAM_PROMPTS, prompt, CR_COUNT(prompt)},
    [CR_MESSAGE_ROW] = {"row", CR_TABLE_ROWS, row, CR_COUNT(row)},
    [CR_MESSAGE_QUESTION] = {"question", CR_STREAM_GENERATED "<block>", question,
                             CR_COUNT(question)},
    [CR_MESSAGE_RESPONSE] = {"response", CR_STREAM_SAMPLED, response, CR_COUNT(response)},
    [CR_MESSAGE_VERDICT] = {"verdict", CR_STREAM_SCORED, verdict, CR_COUNT(verdict)}};

static void *copy_of(const void *data, size_t num_bytes)
{
    return memcpy(cr_alloc(num_bytes), data, num_bytes);
}

cr_status cr_message_pack(cr_message_kind kind, const void *message, cr_buf *packed, cr_err *err)
{
    cr_record record = {0};

    cr_message_write(&cr_messages[kind], message, &record);
    cr_note(cr_record_pack(&record, packed, err));
    cr_record_free(&record);
    return err->status;
}

cr_status cr_prompt_read(const cr_record *r, cr_prompt *out, cr_err *err)
{
    CR_TRY(cr_message_read(&cr_messages[CR_MESSAGE_PROMPT], r, out, err));
    if (out->samples.num == 0) return cr_fail(err, CR_EFORMAT, "no sample is wanted of it");
    if (out->blocks.num == 0) return cr_fail(err, CR_EFORMAT, "no reward is wanted of it");
    return cr_item_refs_make(out->item_digests.data, out->item_digests.num, out->item_grids.data,
                             out->item_grids.num, &out->items, err);
}

/* ---- verdicts ---- */

/* What its scoring program said beside the verdict. */
static cr_status read_extras(const cr_scored *v, size_t num_ids, cr_sample_reward *x, cr_err *err)
{
    const float *tokens = v->token_rewards.data;

    if (tokens && v->token_rewards.num != num_ids)
        return cr_fail(err, CR_EFORMAT, "token_rewards has %zu numbers, expected %zu",
                       v->token_rewards.num, num_ids);
    for (size_t i = 0; tokens && i < num_ids; i++)
        if (!(fabsf(tokens[i]) <= (float)CR_SCORE_LIMIT))
            return cr_fail(err, CR_EFORMAT, "the reward of token %zu is out of range", i);
    if (tokens) x->token_rewards = copy_of(tokens, num_ids * sizeof *tokens);
    if (!v->metrics.data) return CR_OK;
    CR_TRY(cr_json_parse(v->metrics.data, v->metrics.num_bytes, "metrics", &x->metrics, err));
    if (!json_is_object(x->metrics)) return cr_fail(err, CR_EFORMAT, "metrics is not an object");
    return CR_OK;
}

cr_status cr_sample_reward_read(const cr_record *r, size_t num_ids, cr_sample_reward *x,
                                cr_err *err)
{
    cr_scored v;

    CR_TRY(cr_message_read(&cr_messages[CR_MESSAGE_VERDICT], r, &v, err));
    if (!(fabs(v.score) <= CR_SCORE_LIMIT) || !(fabs(v.reward) <= CR_SCORE_LIMIT))
        return cr_fail(err, CR_EFORMAT, "the score is outside -1e6 .. 1e6");
    x->outcome = cr_outcome_find(v.status.data);
    if (x->outcome == CR_OUTCOME_NONE)
        return cr_fail(err, CR_EFORMAT, "the status is %.40s", v.status.data);
    if (!(v.seconds >= 0 && v.seconds < 1e9))
        return cr_fail(err, CR_EFORMAT, "the seconds of its verdict are out of range");
    x->score = v.score;
    x->reward = v.reward;
    x->seconds = v.seconds;
    x->num_ids = num_ids;
    cr_free(x->detail);
    x->detail = cr_strndup(v.detail.data, v.detail.num_bytes);
    CR_TRY(read_extras(&v, num_ids, x, err));
    x->has_come = true;
    return CR_OK;
}

/* ---- responses ---- */

static cr_status read_kept(const cr_response *from, cr_sample *s, cr_err *err)
{
    const int32_t *num_kept = from->num_kept.data, *ids = from->kept_ids.data;
    const float *log_mass = from->log_mass.data;
    size_t num_ids = from->kept_ids.num, at = 0;

    if (!num_kept) return CR_OK;
    if (!ids || !log_mass)
        return cr_fail(err, CR_EFORMAT, "num_kept came without kept_ids or log_mass");
    for (size_t t = 0; t < s->num_ids; t++)
        CR_TRY(cr_kept_check(t, s->ids[t], num_kept[t], ids, num_ids, INT64_MAX, &at, err));
    if (at != num_ids)
        return cr_fail(err, CR_EFORMAT, "tokens of %zu kept_ids came with %zu", at, num_ids);
    for (size_t t = 0; t < s->num_ids; t++)
        if (!(log_mass[t] <= 1e-3f && log_mass[t] > -INFINITY))
            return cr_fail(err, CR_EFORMAT, "token %zu has log_mass %g", t, (double)log_mass[t]);
    s->kept = (cr_kept){copy_of(log_mass, s->num_ids * sizeof *log_mass),
                        copy_of(num_kept, s->num_ids * sizeof *num_kept),
                        copy_of(ids, num_ids * sizeof *ids), num_ids};
    return CR_OK;
}

cr_status cr_sample_read(const cr_record *r, size_t max_ids, cr_sample *s, cr_err *err)
{
    cr_response x;
    cr_spans spans;

    CR_TRY(cr_message_read(&cr_messages[CR_MESSAGE_RESPONSE], r, &x, err));
    spans = (cr_spans){x.ids.data,      x.observed.data, x.log_probs.data, x.ids.num,
                       x.observed.num,  x.spans.data,    x.spans.num,      x.version,
                       x.versions.data, x.versions.num};
    if (x.ids.num == 0) return cr_fail(err, CR_EFORMAT, "it has no tokens");
    if (x.ids.num + x.observed.num > max_ids)
        return cr_fail(
            err, CR_EFORMAT,
            "it has %zu tokens, and sequence_length leaves room for %zu after its prompt",
            x.ids.num + x.observed.num, max_ids);
    for (size_t i = 0; i < x.ids.num; i++)
        if (!isfinite(spans.log_probs[i]) || spans.log_probs[i] > 1e-3f)
            return cr_fail(err, CR_EFORMAT, "the log-prob of token %zu is not finite, or above 0",
                           i);
    snprintf(s->finish, sizeof s->finish, "%s", x.finish.data);
    s->response = cr_strndup(x.text.data, x.text.num_bytes);
    s->response_bytes = x.text.num_bytes;
    CR_TRY(cr_sample_set_response(s, &spans, err));
    return read_kept(&x, s, err);
}

void cr_sample_reward_free(cr_sample_reward *x)
{
    cr_free(x->detail);
    cr_free(x->token_rewards);
    json_decref(x->metrics);
}

void cr_sample_free(cr_sample *s)
{
    cr_free(s->segments);
    cr_free(s->ids);
    cr_free(s->log_prob_infer);
    cr_free(s->kept.log_mass);
    cr_free(s->kept.num);
    cr_free(s->kept.ids);
    cr_free(s->response);
    cr_free(s->token_rewards);
    cr_free(s->advantages);
    cr_free(s->values);
    cr_free(s->returns);
    for (size_t i = 0; i < s->num_rewards; i++)
        cr_sample_reward_free(&s->rewards[i]);
    cr_free(s->rewards);
}
