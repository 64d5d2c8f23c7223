/* recorded.c -- see recorded.h. */
#include "pipelines/replay/recorded.h"
#include "actors/distribution.h"
#include "base/digest.h"
#include "configs/configs.h"
#include "samples/messages.h"

#include <stdlib.h>
#include <string.h>

/* ---- members of a line ---- */

static cr_status bad(const char *name, cr_err *err)
{
    return cr_fail(err, CR_EFORMAT, "%s is missing or is not what croll run writes", name);
}

/* num: SIZE_MAX, or the length it has to have. *out: owned by the caller. */
static cr_status read_ids(const json_t *line, const char *name, size_t num, int32_t **out,
                          size_t *num_ids, cr_err *err)
{
    const json_t *list = json_object_get(line, name), *id;
    size_t i;

    if (!json_is_array(list) || (num != SIZE_MAX && json_array_size(list) != num))
        return bad(name, err);
    *num_ids = json_array_size(list);
    *out = CR_NEW_ARRAY(int32_t, *num_ids);
    json_array_foreach(list, i, id)
    {
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value > INT32_MAX) return bad(name, err);
        (*out)[i] = (int32_t)value;
    }
    return CR_OK;
}

static cr_status read_floats(const json_t *line, const char *name, size_t num, float **out,
                             cr_err *err)
{
    const json_t *list = json_object_get(line, name), *x;
    size_t i;

    if (!json_is_array(list) || json_array_size(list) != num) return bad(name, err);
    *out = CR_NEW_ARRAY(float, num);
    json_array_foreach(list, i, x)
    {
        if (!json_is_number(x)) return bad(name, err);
        (*out)[i] = (float)json_number_value(x);
    }
    return CR_OK;
}

static cr_status read_text(const json_t *line, const char *name, const char **out, cr_err *err)
{
    *out = json_string_value(json_object_get(line, name));
    return *out ? CR_OK : bad(name, err);
}

/* The response, and spans if it is not one segment. */
static cr_status read_segments(const json_t *line, cr_sample *s, cr_err *err)
{
    int32_t *ids = NULL, *spans = NULL, *observed = NULL, *versions = NULL;
    float *log_probs = NULL;
    cr_spans from = {.version = json_integer_value(json_object_get(line, "version"))};

    CR_TRY_GOTO(out, read_ids(line, "ids", SIZE_MAX, &ids, &from.num_response, err));
    CR_TRY_GOTO(out, read_floats(line, "log_probs", from.num_response, &log_probs, err));
    from.response = ids;
    from.log_probs = log_probs;
    if (json_object_get(line, "spans")) {
        CR_TRY_GOTO(out, read_ids(line, "spans", SIZE_MAX, &spans, &from.num_lengths, err));
        CR_TRY_GOTO(out,
                    read_ids(line, "observed_ids", SIZE_MAX, &observed, &from.num_observed, err));
        CR_TRY_GOTO(out, read_ids(line, "versions", SIZE_MAX, &versions, &from.num_versions, err));
        from.lengths = spans;
        from.observed = observed;
        from.versions = versions;
    }
    cr_note(cr_sample_set_response(s, &from, err));
out:
    cr_free(versions);
    cr_free(observed);
    cr_free(spans);
    cr_free(log_probs);
    cr_free(ids);
    return err->status;
}

static cr_status read_kept(const json_t *line, cr_sample *s, cr_err *err)
{
    const json_t *lists = json_object_get(line, "kept_ids"), *list, *id;
    size_t t, i, at = 0;

    if (!json_object_get(line, "log_mass")) return CR_OK;
    CR_TRY(read_floats(line, "log_mass", s->num_ids, &s->kept.log_mass, err));
    if (!lists)
        return cr_fail(
            err, CR_EABSENT,
            "kept_ids is not there (a step with more than 4 Mi of them leaves them out): "
            "what tokens were drawn from is not known");
    if (!json_is_array(lists) || json_array_size(lists) != s->num_ids) return bad("kept_ids", err);
    json_array_foreach(lists, t, list) s->kept.num_ids += json_array_size(list);
    s->kept.num = CR_NEW_ARRAY(int32_t, s->num_ids);
    s->kept.ids = CR_NEW_ARRAY(int32_t, s->kept.num_ids);
    json_array_foreach(lists, t, list)
    {
        if (!json_is_array(list)) return bad("kept_ids", err);
        s->kept.num[t] = (int32_t)json_array_size(list);
        json_array_foreach(list, i, id)
        {
            if (!json_is_integer(id) || json_integer_value(id) < 0) return bad("kept_ids", err);
            s->kept.ids[at++] = (int32_t)json_integer_value(id);
        }
    }
    return CR_OK;
}

/* ---- verdicts ---- */

typedef struct verdict {
    cr_outcome outcome;
    const char *detail; /* borrowed from the line */
    double score, reward;
} verdict;

static cr_status read_verdict(const json_t *from, verdict *v, cr_err *err)
{
    const char *status;
    const json_t *score = json_object_get(from, "score"), *reward = json_object_get(from, "reward");

    CR_TRY(read_text(from, "status", &status, err));
    CR_TRY(read_text(from, "detail", &v->detail, err));
    v->outcome = cr_outcome_find(status);
    if (v->outcome == CR_OUTCOME_NONE) return bad("status", err);
    if (v->outcome != CR_OUTCOME_OK) return CR_OK;
    if (!json_is_number(score)) return bad("score", err);
    if (!json_is_number(reward)) return bad("reward", err);
    v->score = json_number_value(score);
    v->reward = json_number_value(reward);
    return CR_OK;
}

/* from: what one block said, or the whole line where there is one block. */
static cr_status read_reward(const json_t *from, size_t num_ids, cr_sample_reward *x, cr_err *err)
{
    verdict v = {0};

    CR_TRY(read_verdict(from, &v, err));
    x->outcome = v.outcome;
    x->score = v.score;
    x->reward = v.reward;
    x->detail = cr_strdup(v.detail);
    x->has_come = true;
    x->num_ids = num_ids;
    if (json_object_get(from, "metrics") && !json_is_object(json_object_get(from, "metrics")))
        return bad("metrics", err);
    x->metrics = json_incref(json_object_get(from, "metrics"));
    return json_object_get(from, "token_rewards")
               ? read_floats(from, "token_rewards", num_ids, &x->token_rewards, err)
               : CR_OK;
}

/* The sample's verdict is taken as it is written, so that it has the bits of the sum by weight. */
static cr_status read_rewards(const json_t *line, const cr_config *config, cr_sample *s,
                              cr_err *err)
{
    json_t *several = json_object_get(line, "rewards"), *one;
    const char *name;
    verdict v = {0};

    CR_TRY(read_verdict(line, &v, err));
    if (several && json_object_size(several) == 0) return bad("rewards", err);
    s->num_rewards = several ? json_object_size(several) : 1;
    s->rewards = CR_NEW_ARRAY(cr_sample_reward, s->num_rewards);
    s->rewards[0].block = s->domain;
    if (!several) CR_TRY(read_reward(line, s->num_ids, s->rewards, err));
    json_object_foreach(several, name, one)
    {
        const cr_reward_config *block = cr_config_find_reward(config, name);
        if (!block) return cr_fail(err, CR_EFORMAT, "rewards has no block '%s'", name);
        s->rewards[s->num_come].block = (int)(block - config->rewards);
        CR_TRY(read_reward(one, s->num_ids, &s->rewards[s->num_come], err));
        s->num_come++;
    }
    s->num_come = s->num_rewards;
    s->outcome = v.outcome;
    s->score = v.score;
    s->reward = v.reward;
    for (size_t k = 0; k < s->num_rewards; k++)
        if (strcmp(s->rewards[k].detail, v.detail) == 0) s->detail = s->rewards[k].detail;
    if (!s->detail) s->detail = s->rewards[0].detail;
    return json_object_get(line, "token_rewards")
               ? read_floats(line, "token_rewards", s->num_ids, &s->token_rewards, err)
               : CR_OK;
}

/* ---- a line ---- */

cr_status cr_recorded_sample(const json_t *line, const cr_config *config, cr_sample *out,
                             cr_err *err)
{
    const char *id, *domain, *finish, *response;
    const cr_reward_config *block;
    char *end;

    *out = (cr_sample){0};
    CR_TRY(read_text(line, "id", &id, err));
    out->id = strtoull(id, &end, 16);
    if (strlen(id) != 16 || *end) return bad("id", err);
    CR_TRY(read_text(line, "domain", &domain, err));
    block = cr_config_find_reward(config, domain);
    if (!block) return cr_fail(err, CR_EFORMAT, "rewards has no domain '%s'", domain);
    out->domain = (int)(block - config->rewards);
    CR_TRY(read_text(line, "response", &response, err));
    out->response_bytes = json_string_length(json_object_get(line, "response"));
    out->response = cr_strndup(response, out->response_bytes);
    CR_TRY(read_text(line, "finish", &finish, err));
    if (strlen(finish) >= sizeof out->finish) return bad("finish", err);
    memcpy(out->finish, finish, strlen(finish) + 1);
    if (!json_is_integer(json_object_get(line, "version"))) return bad("version", err);
    CR_TRY(read_segments(line, out, err));
    CR_TRY(read_kept(line, out, err));
    return read_rewards(line, config, out, err);
}

/* ---- rows of the data files ---- */

typedef struct row_at {
    uint64_t sum; /* of its ids */
    uint32_t index;
} row_at;

static uint64_t sum_of(const int32_t *ids, size_t num)
{
    return cr_sum_bytes(0, ids, num * sizeof *ids);
}

static int by_sum(const void *a, const void *b)
{
    const row_at *x = a, *y = b;

    if (x->sum != y->sum) return x->sum < y->sum ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

typedef struct reading {
    const cr_config *config;
    const cr_dataset *data;
    row_at *rows; /* [data->num_rows] in order of sums (owned) */
    cr_rollout *out;
    size_t capacity;
} reading;

static void index_rows(reading *r)
{
    r->rows = CR_NEW_ARRAY(row_at, r->data->num_rows);
    for (size_t i = 0; i < r->data->num_rows; i++)
        r->rows[i] = (row_at){sum_of(r->data->rows[i].ids, r->data->rows[i].num_ids), (uint32_t)i};
    if (r->data->num_rows) qsort(r->rows, r->data->num_rows, sizeof *r->rows, by_sum);
}

/* The row with these ids and this text; -1: none. */
static int64_t find_row(const reading *r, const int32_t *ids, size_t num_ids, const json_t *json)
{
    const row_at key = {sum_of(ids, num_ids), 0};
    size_t low = 0, high = r->data->num_rows;

    while (low < high) {
        size_t mid = (low + high) / 2;
        if (by_sum(&r->rows[mid], &key) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    for (; low < r->data->num_rows && r->rows[low].sum == key.sum; low++) {
        const cr_row *row = &r->data->rows[r->rows[low].index];
        if (row->num_ids == num_ids && memcmp(row->ids, ids, num_ids * sizeof *ids) == 0 &&
            json_equal(row->json, json))
            return r->rows[low].index;
    }
    return -1;
}

/* The first sample of a group has its row, the others follow it. */
static cr_status place(const reading *r, const json_t *line, cr_sample *s, cr_err *err)
{
    const json_t *json = json_object_get(line, "row");
    size_t num = r->out->num_samples, num_ids;
    int32_t *ids = NULL;
    int64_t row;

    s->group = num / r->out->group_size;
    if (num % r->out->group_size) {
        s->row = s[-1].row;
        return CR_OK;
    }
    if (!json) return bad("row", err);
    if (read_ids(line, "prompt_ids", SIZE_MAX, &ids, &num_ids, err) == CR_OK) {
        row = find_row(r, ids, num_ids, json);
        s->row = (uint32_t)row;
        if (row < 0)
            cr_fail(err, CR_EABSENT,
                    "its row is not in the data files, or has another prompt there");
    }
    cr_free(ids);
    return err->status;
}

/* A train rank has room for it, and it was drawn as the configuration says. */
static cr_status check(const reading *r, const cr_sample *s, cr_err *err)
{
    const cr_distribution of = cr_distribution_of(r->config, s->domain);
    size_t num = s->num_ids + r->data->rows[s->row].num_ids;

    if (num > (size_t)r->config->sequence_length)
        return cr_fail(err, CR_EFORMAT, "%zu tokens, more than sequence_length %lld", num,
                       (long long)r->config->sequence_length);
    return cr_distribution_check(&of, s->kept.num != NULL, err);
}

static void count(cr_rollout *out, const cr_config *config, const cr_dataset *data,
                  const cr_sample *s)
{
    out->num_timeouts += s->outcome == CR_OUTCOME_TIMEOUT;
    out->num_errors += s->outcome == CR_OUTCOME_ERROR;
    out->num_abstained += s->outcome == CR_OUTCOME_ABSTAIN;
    out->num_prompt_tokens += data->rows[s->row].num_ids;
    out->num_response_tokens += s->num_ids;
    if (!out->failure && !cr_sample_has_verdict(s)) out->failure = cr_sample_reason(config, s);
}

static cr_status add_line(reading *r, const char *text, size_t num_bytes, cr_err *err)
{
    cr_rollout *out = r->out;
    cr_sample *s;
    json_t *line = NULL;

    CR_TRY(cr_json_parse_integers(text, num_bytes, NULL, CR_JSON_EXACT, &line, err));
    out->samples = cr_grow(out->samples, out->num_samples, &r->capacity, sizeof *out->samples);
    s = &out->samples[out->num_samples];
    cr_note(cr_recorded_sample(line, r->config, s, err));
    if (err->status == CR_OK) cr_note(place(r, line, s, err));
    if (err->status == CR_OK) cr_note(check(r, s, err));
    out->num_samples++; /* cr_rollout_free has it, too */
    if (err->status == CR_OK) count(out, r->config, r->data, s);
    json_decref(line);
    return err->status;
}

char *cr_recorded_path(const char *folder, int64_t step)
{
    return cr_asprintf("%s/rollouts/step-%06lld.jsonl", folder, (long long)step);
}

cr_status cr_recorded_rollout(const char *folder, int64_t step, const cr_config *config,
                              const cr_dataset *data, cr_rollout *out, cr_err *err)
{
    reading r = {.config = config, .data = data, .out = out};
    char *path = cr_recorded_path(folder, step);
    cr_buf text = {0};
    size_t at = 0, num, number = 0;

    *out = (cr_rollout){.group_size = (size_t)config->group_size};
    if (cr_file_read(path, &text, err) == CR_OK) index_rows(&r);
    for (const char *line; err->status == CR_OK && (line = cr_line_next(&text, &at, &num));) {
        number++;
        if (add_line(&r, line, num, err) != CR_OK) cr_fail_add(err, "%s, line %zu", path, number);
    }
    if (err->status == CR_OK &&
        out->num_samples != (size_t)(config->rollout_batch_size * config->group_size))
        cr_fail(err, CR_EFORMAT, "%s has %zu samples, not the %lld of a step", path,
                out->num_samples, (long long)(config->rollout_batch_size * config->group_size));
    out->num_groups = out->num_drawn = out->num_samples / out->group_size;
    cr_free(r.rows);
    cr_buf_free(&text);
    cr_free(path);
    return err->status;
}

/* ---- places in the data ---- */

static bool are_equal(const cr_row *a, const cr_row *b)
{
    return a == b ||
           (a->num_ids == b->num_ids && memcmp(a->ids, b->ids, a->num_ids * sizeof *a->ids) == 0 &&
            json_equal(a->json, b->json));
}

/* Draws up to the group's row; returns how many, 0: the domain does not have it. */
static size_t draw_to(const cr_row *rows, const cr_row *want, cr_order *order, cr_cursor *cursor)
{
    for (size_t n = 1; n <= 2 * order->num; n++) /* each epoch has each row */
        if (are_equal(&rows[cr_order_draw(order, cursor)], want)) return n;
    return 0;
}

/* A group that is rejected is replaced by one draw of its domain, so the last draw of each is kept, and all draws
 * together are one more than the last one's number. */
bool cr_recorded_follow(const cr_rollout *r, const cr_dataset *data, cr_order *orders,
                        cr_cursor *cursors, size_t num_domains)
{
    cr_cursor *before = CR_NEW_ARRAY(cr_cursor, num_domains);
    size_t num = 0, last = 0, n = 1;

    memcpy(before, cursors, num_domains * sizeof *cursors);
    for (size_t i = 0; i < r->num_samples && n > 0; i += r->group_size) {
        const cr_sample *s = &r->samples[i];
        const size_t draw = cr_sample_id_parse(s->id).draw;
        n = draw_to(data->rows, &data->rows[s->row], &orders[s->domain], &cursors[s->domain]);
        num += n;
        last = draw > last ? draw : last;
    }
    if (n == 0 || num != last + 1) memcpy(cursors, before, num_domains * sizeof *cursors);
    cr_free(before);
    return n > 0 && num == last + 1;
}
