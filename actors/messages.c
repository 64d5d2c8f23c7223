/* messages.c -- see messages.h. */
#include "actors/messages.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

cr_status cr_prompt_read(const cr_record *r, cr_prompt *out, cr_err *err)
{
    const void *ids, *samples;
    int64_t is_validation;

    CR_TRY(cr_record_get_text(r, "domain", &out->domain, &out->domain_bytes, err));
    CR_TRY(cr_record_get_text(r, "row", &out->row, &out->row_bytes, err));
    CR_TRY(cr_record_get_int(r, "validation", &is_validation, err));
    CR_TRY(cr_record_get(r, "prompt_ids", CR_RECORD_INT32, &ids, &out->num_ids, err));
    CR_TRY(cr_record_get(r, "sample_ids", CR_RECORD_UINT64, &samples, &out->num_samples, err));
    if (out->num_samples == 0) return cr_fail(err, CR_EFORMAT, "no sample is wanted of it");
    out->is_validation = is_validation != 0;
    out->ids = ids;
    out->samples = samples;
    return CR_OK;
}

cr_status cr_sample_read(const cr_record *r, cr_sample *s, cr_err *err)
{
    const void *ids, *log_probs;
    const char *text, *response;
    size_t num_ids, num_log_probs, n, num_bytes;

    CR_TRY(cr_record_get(r, "ids", CR_RECORD_INT32, &ids, &num_ids, err));
    CR_TRY(cr_record_get(r, "log_probs", CR_RECORD_FLOAT32, &log_probs, &num_log_probs, err));
    if (num_ids != num_log_probs)
        return cr_fail(err, CR_EFORMAT, "%zu tokens with %zu log-probs", num_ids, num_log_probs);
    if (num_ids == 0) return cr_fail(err, CR_EFORMAT, "it has no tokens");
    for (size_t i = 0; i < num_ids; i++)
        if (!isfinite(((const float *)log_probs)[i]))
            return cr_fail(err, CR_EFORMAT, "the log-prob of token %zu is not finite", i);
    CR_TRY(cr_record_get_real(r, "score", &s->score, err));
    CR_TRY(cr_record_get_real(r, "reward", &s->reward, err));
    CR_TRY(cr_record_get_int(r, "version", &s->version, err));
    if (!isfinite(s->score) || !isfinite(s->reward))
        return cr_fail(err, CR_EFORMAT, "the score is not finite");
    CR_TRY(cr_record_get_text(r, "finish", &text, &n, err));
    snprintf(s->finish, sizeof s->finish, "%s", text);
    CR_TRY(cr_record_get_text(r, "status", &text, &n, err));
    snprintf(s->status, sizeof s->status, "%s", text);
    CR_TRY(cr_record_get_text(r, "response", &response, &num_bytes, err));
    CR_TRY(cr_record_get_text(r, "detail", &text, &n, err));
    s->detail = cr_strndup(text, n);
    s->response = cr_strndup(response, num_bytes);
    s->response_bytes = num_bytes;
    s->num_ids = num_ids;
    s->ids = CR_NEW_ARRAY(int32_t, num_ids);
    s->log_prob_infer = CR_NEW_ARRAY(float, num_ids);
    memcpy(s->ids, ids, num_ids * sizeof *s->ids);
    memcpy(s->log_prob_infer, log_probs, num_ids * sizeof *s->log_prob_infer);
    s->has_come = true;
    return CR_OK;
}

void cr_sample_free(cr_sample *s)
{
    cr_free(s->ids);
    cr_free(s->log_prob_infer);
    cr_free(s->log_prob_old);
    cr_free(s->log_prob_ref);
    cr_free(s->response);
    cr_free(s->detail);
}

/* ---- to a train rank ---- */

cr_status cr_floats_read(const cr_record *r, const char *name, size_t num, const float **out,
                         cr_err *err)
{
    const void *data;
    size_t n;

    CR_TRY(cr_record_get(r, name, CR_RECORD_FLOAT32, &data, &n, err));
    if (n != num) return cr_fail(err, CR_EFORMAT, "%s has %zu numbers, expected %zu", name, n, num);
    *out = data;
    return CR_OK;
}

static cr_status get_ints(const cr_record *r, const char *name, const int32_t **out, size_t *num,
                          cr_err *err)
{
    const void *data;

    CR_TRY(cr_record_get(r, name, CR_RECORD_INT32, &data, num, err));
    *out = data;
    return CR_OK;
}

cr_status cr_samples_read(const cr_record *r, int64_t vocab_size, cr_samples *s, cr_err *err)
{
    size_t num_prompts, num_minis;

    *s = (cr_samples){0};
    CR_TRY(get_ints(r, "prompts", &s->prompts, &num_prompts, err));
    CR_TRY(get_ints(r, "lengths", &s->lengths, &s->num, err));
    CR_TRY(get_ints(r, "mini", &s->mini, &num_minis, err));
    CR_TRY(get_ints(r, "ids", &s->ids, &s->num_ids, err));
    if (num_prompts != s->num || num_minis != s->num)
        return cr_fail(err, CR_EFORMAT, "%zu samples with %zu prompts", s->num, num_prompts);
    s->first_id = CR_NEW_ARRAY(size_t, s->num);
    s->first_token = CR_NEW_ARRAY(size_t, s->num);
    size_t ids = 0;
    for (size_t i = 0; i < s->num; i++) {
        if (s->prompts[i] < 1 || s->lengths[i] < 0)
            return cr_fail(err, CR_EFORMAT, "sample %zu has %d prompt and %d response tokens", i,
                           s->prompts[i], s->lengths[i]);
        s->first_id[i] = ids;
        s->first_token[i] = s->num_tokens;
        ids += (size_t)s->prompts[i] + (size_t)s->lengths[i];
        s->num_tokens += (size_t)s->lengths[i];
    }
    if (ids != s->num_ids)
        return cr_fail(err, CR_EFORMAT, "samples of %zu ids came with %zu", ids, s->num_ids);
    for (size_t i = 0; i < ids; i++)
        if (s->ids[i] < 0 || s->ids[i] >= vocab_size)
            return cr_fail(err, CR_EFORMAT, "id %d is outside the vocabulary", s->ids[i]);
    return CR_OK;
}

void cr_samples_free(cr_samples *s)
{
    cr_free(s->first_id);
    cr_free(s->first_token);
}
