/* rollout_write.c -- the files rollouts/: what was sampled, what was said of it, what it taught. */
#include "pipelines/rollout.h"

#include <string.h>

/* A member; null if there is no value. */
static cr_status add_column(cr_buf *out, const char *name, const json_t *value, cr_err *err)
{
    cr_buf_addf(out, ",\"%s\":", name);
    if (value) return cr_json_add_value(out, value, err);
    cr_buf_adds(out, "null");
    return CR_OK;
}

static cr_status add_floats(cr_buf *out, const char *name, const float *x, size_t num, cr_err *err)
{
    cr_buf_addf(out, ",\"%s\":", name);
    return cr_json_add_floats(out, x, num, err);
}

/* One number where all tokens have the same, else one a token. */
static cr_status add_advantage(cr_buf *out, const cr_sample *s, cr_err *err)
{
    for (size_t t = 1; t < s->num_ids; t++)
        if (s->advantages[t] != s->advantages[0])
            return add_floats(out, "advantage", s->advantages, s->num_ids, err);
    cr_buf_adds(out, ",\"advantage\":");
    return cr_json_add_float(out, s->advantages[0], err);
}

static void add_text(cr_buf *out, const char *name, const char *text, size_t num_bytes)
{
    cr_buf_addf(out, ",\"%s\":", name);
    cr_json_add_string(out, text, num_bytes);
}

/* Members of a verdict, of a sample or of one of its rewards. Without a verdict there is no score. */
static cr_status add_numbers(cr_buf *out, cr_outcome outcome, const char *detail, double score,
                             double reward, cr_err *err)
{
    const char *status = cr_outcome_name(outcome);

    if (outcome == CR_OUTCOME_OK) {
        cr_buf_adds(out, "\"score\":");
        CR_TRY(cr_json_add_double(out, score, err));
        cr_buf_adds(out, ",\"reward\":");
        CR_TRY(cr_json_add_double(out, reward, err));
    } else {
        cr_buf_adds(out, "\"score\":null,\"reward\":null");
    }
    add_text(out, "status", status, strlen(status));
    add_text(out, "detail", detail, strlen(detail));
    return CR_OK;
}

static cr_status add_extras(cr_buf *out, const float *tokens, size_t num, const json_t *metrics,
                            cr_err *err)
{
    if (tokens) CR_TRY(add_floats(out, "token_rewards", tokens, num, err));
    if (!metrics) return CR_OK;
    cr_buf_adds(out, ",\"metrics\":");
    return cr_json_add_value(out, metrics, err);
}

/* What each block of rewards said, where there are several. */
static cr_status add_rewards(cr_buf *out, const cr_config *c, const cr_sample *s, cr_err *err)
{
    cr_buf_adds(out, ",\"rewards\":");
    for (size_t k = 0; k < s->num_rewards; k++) {
        const cr_sample_reward *x = &s->rewards[k];
        const char *name = c->rewards[x->block].domain;
        cr_buf_addc(out, k ? ',' : '{');
        cr_json_add_string(out, name, strlen(name));
        cr_buf_adds(out, ":{");
        CR_TRY(add_numbers(out, x->outcome, x->detail, x->score, x->reward, err));
        CR_TRY(add_extras(out, x->token_rewards, x->num_ids, x->metrics, err));
        cr_buf_addc(out, '}');
    }
    cr_buf_addc(out, '}');
    return CR_OK;
}

static cr_status add_verdict(cr_buf *out, const cr_config *c, const cr_sample *s, cr_err *err)
{
    const json_t *metrics = s->num_rewards == 1 ? s->rewards->metrics : NULL;

    cr_buf_addc(out, ',');
    CR_TRY(add_numbers(out, s->outcome, s->detail, s->score, s->reward, err));
    CR_TRY(add_extras(out, s->token_rewards, s->num_ids, metrics, err));
    if (s->num_rewards > 1) CR_TRY(add_rewards(out, c, s, err));
    if (s->advantages) CR_TRY(add_advantage(out, s, err));
    if (s->values) CR_TRY(add_floats(out, "values", s->values, s->num_ids, err));
    return s->returns ? add_floats(out, "returns", s->returns, s->num_ids, err) : CR_OK;
}

/* How many ids the filters kept for each token; the ids themselves only where a step has few. */
static cr_status add_kept(cr_buf *out, const cr_sample *s, bool has_ids, cr_err *err)
{
    const int32_t *ids = s->kept.ids;

    if (!s->kept.num) return CR_OK;
    CR_TRY(add_floats(out, "log_mass", s->kept.log_mass, s->num_ids, err));
    if (!has_ids) return CR_OK;
    cr_buf_adds(out, ",\"kept_ids\":[");
    for (size_t t = 0; t < s->num_ids; t++) {
        if (t) cr_buf_addc(out, ',');
        cr_json_add_ids(out, ids, (size_t)s->kept.num[t]);
        ids += s->kept.num[t];
    }
    cr_buf_addc(out, ']');
    return CR_OK;
}

/* Segments that are more than a response at once: samples/segments.h. */
static void add_spans(cr_buf *out, const cr_sample *s)
{
    int32_t *spans = CR_NEW_ARRAY(int32_t, 2 * s->num_segments);
    const size_t num = cr_segments_spans(s->segments, s->num_segments, spans);
    const char *between = "";

    if (num > 1) {
        cr_buf_adds(out, ",\"spans\":");
        cr_json_add_ids(out, spans, num);
        cr_buf_adds(out, ",\"observed_ids\":");
        cr_json_add_ids(out, s->ids + s->num_ids,
                        cr_segments_num_ids(s->segments, s->num_segments, CR_SEGMENT_OBSERVED));
        cr_buf_adds(out, ",\"versions\":[");
        for (size_t k = 1; k < s->num_segments; k++) {
            if (s->segments[k].kind != CR_SEGMENT_GENERATED) continue;
            cr_buf_addf(out, "%s%lld", between, (long long)s->segments[k].version);
            between = ",";
        }
        cr_buf_addc(out, ']');
    }
    cr_free(spans);
}

static bool has_few_kept(const cr_rollout *rollout)
{
    const size_t max = 4 << 20; /* about 25 MB */
    size_t num = 0;

    for (size_t i = 0; i < rollout->num_samples; i++)
        num += rollout->samples[i].kept.num_ids;
    return num <= max;
}

/* is_first: of its group, whose row it has, so that the samples can be scored again. */
static cr_status add_sample(cr_buf *out, const cr_run *run, const cr_sample *s, const cr_row *row,
                            bool has_ids, bool is_first, cr_err *err)
{
    const char *domain = run->config->rewards[s->domain].domain;

    cr_buf_addf(out, "{\"id\":\"%016llx\",\"group\":%zu", (unsigned long long)s->id, s->group);
    add_text(out, "domain", domain, strlen(domain));
    CR_TRY(add_column(out, "tag", json_object_get(row->json, "tag"), err));
    CR_TRY(add_column(out, "prompt", row->asked, err));
    CR_TRY(add_column(out, "ground_truth", json_object_get(row->json, "ground_truth"), err));
    add_text(out, "response", s->response, s->response_bytes);
    cr_buf_adds(out, ",\"prompt_ids\":");
    cr_json_add_ids(out, row->ids, row->num_ids);
    cr_buf_adds(out, ",\"ids\":");
    cr_json_add_ids(out, s->ids, s->num_ids);
    add_spans(out, s);
    CR_TRY(add_floats(out, "log_probs", s->log_prob_infer, s->num_ids, err));
    CR_TRY(add_kept(out, s, has_ids, err));
    CR_TRY(add_verdict(out, run->config, s, err));
    add_text(out, "finish", s->finish, strlen(s->finish));
    cr_buf_addf(out, ",\"version\":%lld", (long long)s->version);
    if (is_first) CR_TRY(add_column(out, "row", row->json, err));
    cr_buf_adds(out, "}\n");
    return CR_OK;
}

cr_status cr_rollout_write(const cr_run *run, const cr_rollout *rollout, const cr_dataset *data,
                           int64_t step, bool is_validation, cr_err *err)
{
    char *folder = cr_path_join(run->output_dir, "rollouts"),
         *path = cr_asprintf("%s/%s-%06lld.jsonl", folder, is_validation ? "val" : "step",
                             (long long)step);
    cr_buf out = {0};
    bool has_ids = has_few_kept(rollout);

    cr_note(cr_mkdirs(folder, err));
    for (size_t i = 0; i < rollout->num_samples && err->status == CR_OK; i++)
        cr_note(add_sample(&out, run, &rollout->samples[i], &data->rows[rollout->samples[i].row],
                           has_ids, i % rollout->group_size == 0, err));
    if (err->status == CR_OK)
        cr_note(cr_file_write_atomic(path, out.data ? out.data : "", out.num_bytes, err));
    cr_buf_free(&out);
    cr_free(path);
    cr_free(folder);
    return err->status;
}
