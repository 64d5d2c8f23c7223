/* messages.c -- see messages.h. */
#include "samples/messages.h"
#include "samples/protocol.h"

#include <float.h>
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
    FIELD(cr_scored, CR_FIELD_STATUS, TEXT, status,
          .what = "`ok`, `abstain`, `timeout` or `error`"),
    FIELD(cr_scored, "detail", TEXT, detail, .what = "why"),
    FIELD(cr_scored, "seconds", REAL, seconds, CR_LENGTH_FREE, true, "how long the answer took"),
    FIELD(cr_scored, CR_FIELD_TOKEN_REWARDS, FLOATS, token_rewards, CR_LENGTH_PER_TOKEN, true,
          "of the tokens of the response"),
    FIELD(cr_scored, "metrics", JSON, metrics, CR_LENGTH_FREE, true,
          "a JSON object of numbers of the program's own")};

const cr_message cr_messages[CR_NUM_MESSAGES] = {
    [CR_MESSAGE_PROMPT] = {"prompt", CR_STREAM_PROMPTS, prompt, CR_COUNT(prompt)},
    [CR_MESSAGE_ROW] = {"row", CR_TABLE_ROWS, row, CR_COUNT(row)},
    [CR_MESSAGE_QUESTION] = {"question", CR_STREAM_GENERATED "<block>", question,
                             CR_COUNT(question)},
    [CR_MESSAGE_RESPONSE] = {"response", CR_STREAM_SAMPLED, response, CR_COUNT(response)},
    [CR_MESSAGE_VERDICT] = {"verdict", CR_STREAM_SCORED, verdict, CR_COUNT(verdict)}};

/* Phases of a step, each of which makes members of a line; its columns are of the last one. */
#define PROMPTS    "prompts"
#define GENERATION "generation"
#define REWARDS    "rewards"
#define ADVANTAGES "advantages"
#define MEMBER(name, type, member, phase) \
    FIELD(cr_sample_line, name, type, member, CR_LENGTH_FREE, false, phase)
#define OPTIONAL(name, type, member, phase) \
    FIELD(cr_sample_line, name, type, member, CR_LENGTH_FREE, true, phase)
#define OF_TOKENS(name, member, phase) \
    FIELD(cr_sample_line, name, FLOATS, member, CR_LENGTH_PER_TOKEN, true, phase)

static const cr_field line_fields[] = {
    MEMBER("id", TEXT, id, PROMPTS),
    MEMBER("group", INT, group, PROMPTS),
    MEMBER("domain", TEXT, domain, PROMPTS),
    MEMBER("tag", JSON, tag, PROMPTS),
    MEMBER("prompt", JSON, prompt, PROMPTS),
    MEMBER("ground_truth", JSON, ground_truth, PROMPTS),
    MEMBER("response", TEXT, response.text, GENERATION),
    MEMBER("prompt_ids", INT32S, prompt_ids, PROMPTS),
    MEMBER(CR_FIELD_IDS, INT32S, response.ids, GENERATION),
    OPTIONAL(CR_FIELD_SPANS, INT32S, response.spans, GENERATION),
    OPTIONAL("observed_ids", INT32S, response.observed, GENERATION),
    OPTIONAL("versions", INT32S, response.versions, GENERATION),
    OF_TOKENS(CR_FIELD_LOG_PROBS, response.log_probs, GENERATION),
    OF_TOKENS("log_mass", response.log_mass, GENERATION),
    FIELD(cr_sample_line, CR_FIELD_NUM_KEPT, COUNTS, response.num_kept, CR_LENGTH_PER_TOKEN, true,
          GENERATION),
    OPTIONAL(CR_FIELD_KEPT_IDS, LISTS, response.kept_ids, GENERATION),
    MEMBER("score", REAL, verdict.score, REWARDS),
    MEMBER("reward", REAL, verdict.reward, REWARDS),
    MEMBER(CR_FIELD_STATUS, TEXT, verdict.status, REWARDS),
    MEMBER("detail", TEXT, verdict.detail, REWARDS),
    OF_TOKENS(CR_FIELD_TOKEN_REWARDS, verdict.token_rewards, REWARDS),
    OPTIONAL("metrics", JSON, verdict.metrics, REWARDS),
    OPTIONAL("rewards", JSON, rewards, REWARDS),
    OPTIONAL("advantage", COLUMN, of[CR_COLUMN_ADVANTAGES], ADVANTAGES),
    OF_TOKENS("values", of[CR_COLUMN_VALUES], ADVANTAGES),
    OF_TOKENS("returns", of[CR_COLUMN_RETURNS], ADVANTAGES),
    MEMBER("finish", TEXT, response.finish, GENERATION),
    MEMBER("version", INT, response.version, GENERATION),
    OPTIONAL("row", JSON, row, PROMPTS)};

const cr_message cr_sample_lines = {"line", "rollouts/", line_fields, CR_COUNT(line_fields)};

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

/* limit: of its numbers; those of an outcome without a score are not looked at. */
static cr_status read_verdict(const cr_scored *v, double limit, size_t num_ids, cr_sample_reward *x,
                              cr_err *err)
{
    const float *tokens = v->token_rewards.data;

    x->outcome = cr_outcome_find(v->status.data);
    if (x->outcome == CR_OUTCOME_NONE)
        return cr_fail(err, CR_EFORMAT, "the status is %.40s", v->status.data);
    if (x->outcome == CR_OUTCOME_OK) x->score = v->score, x->reward = v->reward;
    if (!(fabs(x->score) <= limit) || !(fabs(x->reward) <= limit))
        return cr_fail(err, CR_EFORMAT, "the score is outside -1e6 .. 1e6");
    if (!(v->seconds >= 0 && v->seconds < 1e9))
        return cr_fail(err, CR_EFORMAT, "the seconds of its verdict are out of range");
    x->seconds = v->seconds;
    if (tokens && v->token_rewards.num != num_ids)
        return cr_fail(err, CR_EFORMAT, CR_FIELD_TOKEN_REWARDS " has %zu numbers, expected %zu",
                       v->token_rewards.num, num_ids);
    for (size_t i = 0; tokens && i < num_ids; i++)
        if (!(fabs((double)tokens[i]) <= limit))
            return cr_fail(err, CR_EFORMAT, "the reward of token %zu is out of range", i);
    if (tokens) x->token_rewards = copy_of(tokens, num_ids * sizeof *tokens);
    x->num_ids = num_ids;
    cr_free(x->detail);
    x->detail = cr_strndup(v->detail.data, v->detail.num_bytes);
    x->metrics = json_incref(v->metrics.value);
    if (json_is_string(v->metrics.value)) { /* as a record has it */
        json_decref(x->metrics);
        CR_TRY(cr_json_parse(json_string_value(v->metrics.value),
                             json_string_length(v->metrics.value), "metrics", &x->metrics, err));
    }
    if (x->metrics && !json_is_object(x->metrics))
        return cr_fail(err, CR_EFORMAT, "metrics is not an object");
    x->has_come = true;
    return CR_OK;
}

cr_status cr_sample_reward_read(const cr_record *r, size_t num_ids, cr_sample_reward *x,
                                cr_err *err)
{
    cr_scored v;

    CR_TRY(cr_message_read(&cr_messages[CR_MESSAGE_VERDICT], r, &v, err));
    return read_verdict(&v, CR_SCORE_LIMIT, num_ids, x, err);
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

static cr_status read_response(const cr_response *x, size_t max_ids, cr_sample *s, cr_err *err)
{
    const cr_spans spans = {x->ids.data,      x->observed.data, x->log_probs.data, x->ids.num,
                            x->observed.num,  x->spans.data,    x->spans.num,      x->version,
                            x->versions.data, x->versions.num};

    if (x->ids.num == 0) return cr_fail(err, CR_EFORMAT, "it has no tokens");
    if (x->ids.num + x->observed.num > max_ids)
        return cr_fail(
            err, CR_EFORMAT,
            "it has %zu tokens, and sequence_length leaves room for %zu after its prompt",
            x->ids.num + x->observed.num, max_ids);
    for (size_t i = 0; i < x->ids.num; i++)
        if (!isfinite(spans.log_probs[i]) || spans.log_probs[i] > 1e-3f)
            return cr_fail(err, CR_EFORMAT, "the log-prob of token %zu is not finite, or above 0",
                           i);
    snprintf(s->finish, sizeof s->finish, "%s", x->finish.data);
    s->response = cr_strndup(x->text.data, x->text.num_bytes);
    s->response_bytes = x->text.num_bytes;
    CR_TRY(cr_sample_set_response(s, &spans, err));
    return read_kept(x, s, err);
}

cr_status cr_sample_read(const cr_record *r, size_t max_ids, cr_sample *s, cr_err *err)
{
    cr_response x;

    CR_TRY(cr_message_read(&cr_messages[CR_MESSAGE_RESPONSE], r, &x, err));
    return read_response(&x, max_ids, s, err);
}

/* ---- lines ---- */

static cr_field_text text_of(const char *text)
{
    return (cr_field_text){text, strlen(text)};
}

static cr_scored scored_of(const cr_sample_reward *x)
{
    const bool has_score = x->outcome == CR_OUTCOME_OK;

    return (cr_scored){.score = has_score ? x->score : (double)NAN,
                       .reward = has_score ? x->reward : (double)NAN,
                       .status = text_of(cr_outcome_name(x->outcome)),
                       .detail = text_of(x->detail),
                       .metrics.value = x->metrics,
                       .token_rewards = {x->token_rewards, x->num_ids}};
}

static cr_status write_rewards(const cr_sample *s, const cr_config *config, cr_buf *out,
                               cr_err *err)
{
    for (size_t k = 0; k < s->num_rewards; k++) {
        const cr_scored v = scored_of(&s->rewards[k]);
        const cr_field_text block = text_of(config->rewards[s->rewards[k].block].domain);
        cr_buf_addc(out, k ? ',' : '{');
        cr_json_add_string(out, block.data, block.num_bytes);
        cr_buf_adds(out, ":{");
        CR_TRY(cr_message_write_json(&cr_messages[CR_MESSAGE_VERDICT], &v, out, err));
        cr_buf_addc(out, '}');
    }
    cr_buf_addc(out, '}');
    return CR_OK;
}

/* Segments that are more than a response at once; memory: 3 * num_segments. */
static void add_spans(const cr_sample *s, int32_t *memory, cr_response *x)
{
    int32_t *versions = memory + 2 * s->num_segments;

    x->spans = (cr_field_array){memory, cr_segments_spans(s->segments, s->num_segments, memory)};
    x->observed =
        (cr_field_array){s->ids + s->num_ids,
                         cr_segments_num_ids(s->segments, s->num_segments, CR_SEGMENT_OBSERVED)};
    x->versions.data = versions;
    for (size_t k = 1; k < s->num_segments; k++)
        if (s->segments[k].kind == CR_SEGMENT_GENERATED)
            versions[x->versions.num++] = (int32_t)s->segments[k].version;
    if (x->spans.num < 2) x->spans.data = x->observed.data = x->versions.data = NULL;
}

cr_status cr_sample_line_write(const cr_sample *s, const cr_config *config, bool has_ids,
                               cr_sample_line *line, cr_buf *out, cr_err *err)
{
    const cr_sample_reward all = {.outcome = s->outcome,
                                  .detail = (char *)(uintptr_t)s->detail,
                                  .score = s->score,
                                  .reward = s->reward,
                                  .token_rewards = s->token_rewards,
                                  .num_ids = s->num_ids,
                                  .metrics = s->num_rewards == 1 ? s->rewards->metrics : NULL};
    char id[CR_SAMPLE_NAME];
    int32_t *memory = CR_NEW_ARRAY(int32_t, 3 * s->num_segments);
    cr_buf rewards = {0};

    cr_sample_name(s->id, 0, /*is_second=*/false, id);
    line->id = text_of(id);
    line->domain = text_of(config->rewards[s->domain].domain);
    line->group = (int64_t)s->group;
    line->response = (cr_response){.version = s->version,
                                   .text = {s->response, s->response_bytes},
                                   .finish = text_of(s->finish),
                                   .ids = {s->ids, s->num_ids},
                                   .log_probs = {s->log_prob_infer, s->num_ids},
                                   .log_mass = {s->kept.log_mass, s->num_ids},
                                   .num_kept = {has_ids ? s->kept.num : NULL, s->num_ids},
                                   .kept_ids = {s->kept.ids, s->kept.num_ids}};
    add_spans(s, memory, &line->response);
    line->verdict = scored_of(&all);
    if (s->num_rewards > 1) cr_note(write_rewards(s, config, &rewards, err));
    line->rewards.text = (cr_field_text){rewards.data, rewards.num_bytes};
    for (int c = 0; c < CR_NUM_COLUMNS; c++)
        line->of[c] = (cr_field_array){s->of[c], s->num_ids};
    cr_buf_addc(out, '{');
    if (err->status == CR_OK) cr_note(cr_message_write_json(&cr_sample_lines, line, out, err));
    cr_buf_adds(out, "}\n");
    cr_buf_free(&rewards);
    cr_free(memory);
    return err->status;
}

/* The sample's verdict is taken as it is written, so that it has the bits of the sum by weight. */
static cr_status read_rewards(const cr_sample_line *line, const cr_config *config, cr_arena *memory,
                              cr_sample *s, cr_err *err)
{
    json_t *several = line->rewards.value, *one;
    const char *name;
    cr_sample_reward all = {.detail = NULL};
    cr_scored v;

    s->num_rewards = several ? json_object_size(several) : 1;
    s->rewards = CR_NEW_ARRAY(cr_sample_reward, s->num_rewards);
    if (s->num_rewards == 0) return cr_fail(err, CR_EFORMAT, "rewards has no block");
    s->rewards[0].block = s->domain;
    if (!several) CR_TRY(read_verdict(&line->verdict, DBL_MAX, s->num_ids, s->rewards, err));
    json_object_foreach(several, name, one)
    {
        const cr_reward_config *block = cr_config_find_reward(config, name);
        if (!block) return cr_fail(err, CR_EFORMAT, "rewards has no block '%s'", name);
        s->rewards[s->num_come].block = (int)(block - config->rewards);
        CR_TRY(cr_message_read_json(&cr_messages[CR_MESSAGE_VERDICT], one, memory, &v, err));
        CR_TRY(read_verdict(&v, DBL_MAX, s->num_ids, &s->rewards[s->num_come++], err));
    }
    s->num_come = s->num_rewards;
    s->detail = s->rewards[0].detail;
    for (size_t k = 0; k < s->num_rewards; k++)
        if (strcmp(s->rewards[k].detail, line->verdict.detail.data) == 0)
            s->detail = s->rewards[k].detail;
    cr_note(read_verdict(&line->verdict, DBL_MAX, s->num_ids, &all, err));
    s->outcome = all.outcome;
    s->score = all.score;
    s->reward = all.reward;
    s->token_rewards = all.token_rewards;
    all.token_rewards = NULL;
    cr_sample_reward_free(&all);
    return err->status;
}

cr_status cr_sample_line_read(json_t *from, const cr_config *config, cr_arena *memory,
                              cr_sample_line *line, cr_sample *out, cr_err *err)
{
    const cr_reward_config *block;
    size_t k;
    bool is_second;

    *out = (cr_sample){0};
    CR_TRY(cr_message_read_json(&cr_sample_lines, from, memory, line, err));
    if (!cr_sample_name_read(line->id.data, &out->id, &k, &is_second) || k > 0 || is_second)
        return cr_fail(err, CR_EFORMAT, "id is not 16 hexadecimal digits");
    block = cr_config_find_reward(config, line->domain.data);
    if (!block) return cr_fail(err, CR_EFORMAT, "rewards has no domain '%s'", line->domain.data);
    out->domain = (int)(block - config->rewards);
    if (line->response.log_mass.data && !line->response.kept_ids.data)
        return cr_fail(
            err, CR_EABSENT,
            "kept_ids is not there (a step with more than 4 Mi of them leaves them out): "
            "what tokens were drawn from is not known");
    CR_TRY(read_response(&line->response, SIZE_MAX, out, err));
    return read_rewards(line, config, memory, out, err);
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
    for (int c = 0; c < CR_NUM_COLUMNS; c++)
        cr_free(s->of[c]);
    for (size_t i = 0; i < s->num_rewards; i++)
        cr_sample_reward_free(&s->rewards[i]);
    cr_free(s->rewards);
}
