/* answer.c -- answers of scoring programs (see scorer.h). */
#include "samples/protocol.h"
#include "scorers/scorer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void cr_verdict_free(cr_verdict *verdict)
{
    json_decref(verdict->metrics);
    cr_free(verdict->token_rewards);
    *verdict = (cr_verdict){0};
}

cr_status cr_answer_parse(const char *line, size_t num_bytes, json_t **root, const char **id,
                          cr_err *err)
{
    cr_err bad = {0};

    if (cr_json_parse(line, num_bytes, "", root, &bad) != CR_OK)
        return cr_fail(err, CR_EFORMAT, "not JSON");
    if (!json_is_object(*root))
        cr_fail(err, CR_EFORMAT, "not a JSON object");
    else if (!(*id = json_string_value(json_object_get(*root, "id"))))
        cr_fail(err, CR_EFORMAT, "without the \"id\" of the line that it answers");
    else if (strlen(*id) != json_string_length(json_object_get(*root, "id")))
        cr_fail(err, CR_EFORMAT, "its \"id\" has a NUL");
    if (err->status == CR_OK) return CR_OK;
    json_decref(*root);
    *root = NULL;
    return err->status;
}

static cr_status read_number(const json_t *v, const char *what, double *out, cr_err *err)
{
    *out = json_number_value(v);
    if (!json_is_number(v))
        return cr_fail(err, CR_EFORMAT, "%s is %s number", what,
                       v ? "not a" : "missing: it must be a");
    if (!(fabs(*out) <= CR_SCORE_LIMIT))
        return cr_fail(err, CR_EFORMAT, "%s is outside -1e6 .. 1e6", what);
    return CR_OK;
}

static cr_status read_status(const json_t *root, cr_verdict *out, cr_err *err)
{
    const json_t *status = json_object_get(root, "status"), *error = json_object_get(root, "error"),
                 *detail = json_object_get(root, "detail");
    const char *text;

    out->outcome = status  ? cr_outcome_find(json_string_value(status))
                   : error ? CR_OUTCOME_ERROR
                           : CR_OUTCOME_OK;
    if (out->outcome == CR_OUTCOME_NONE)
        return cr_fail(err, CR_EFORMAT,
                       "status must be \"ok\", \"abstain\", \"timeout\" or \"error\"");
    if (error && (out->outcome == CR_OUTCOME_OK || out->outcome == CR_OUTCOME_ABSTAIN))
        return cr_fail(err, CR_EFORMAT, "it has an \"error\", but status %s",
                       cr_outcome_name(out->outcome));
    if (out->outcome == CR_OUTCOME_OK && json_is_null(json_object_get(root, "score")))
        out->outcome = CR_OUTCOME_ABSTAIN;
    if (error && !json_is_string(error)) return cr_fail(err, CR_EFORMAT, "error is not a text");
    if (detail && !json_is_string(detail) && !json_is_null(detail))
        return cr_fail(err, CR_EFORMAT, "detail is not a text");
    text = json_string_value(error ? error : detail);
    if (text) snprintf(out->detail, sizeof out->detail, "%.399s", text);
    return CR_OK;
}

/* Names go into names of metrics. */
static bool is_metric_name(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-/@");

    return n > 0 && n <= 40 && !name[n];
}

static cr_status read_metrics(json_t *metrics, cr_verdict *out, cr_err *err)
{
    const char *name;
    json_t *v;
    double x;

    if (!metrics || json_is_null(metrics)) return CR_OK;
    if (!json_is_object(metrics)) return cr_fail(err, CR_EFORMAT, "metrics is not an object");
    if (json_object_size(metrics) > 32)
        return cr_fail(err, CR_EFORMAT, "there are more than 32 metrics");
    json_object_foreach(metrics, name, v)
    {
        if (!is_metric_name(name))
            return cr_fail(err, CR_EFORMAT,
                           "a metric's name has 1 to 40 letters, digits or _ . - / @");
        if (!json_is_number(v) || !isfinite(x = json_number_value(v)) || fabs(x) > 1e300)
            return cr_fail(err, CR_EFORMAT, "metrics.%s is not a number within 1e300", name);
    }
    out->metrics = json_incref(metrics);
    return CR_OK;
}

static cr_status read_tokens(const json_t *list, size_t num_tokens, cr_verdict *out, cr_err *err)
{
    const json_t *v;
    double x;
    size_t i;

    if (!list || json_is_null(list)) return CR_OK;
    if (!json_is_array(list) || json_array_size(list) != num_tokens)
        return cr_fail(err, CR_EFORMAT,
                       "token_rewards must be a list of %zu numbers, one for each token of the "
                       "response",
                       num_tokens);
    out->token_rewards = CR_NEW_ARRAY(float, num_tokens);
    out->num_tokens = num_tokens;
    json_array_foreach(list, i, v)
    {
        CR_TRY(read_number(v, "one of token_rewards", &x, err));
        out->token_rewards[i] = (float)x;
    }
    return CR_OK;
}

static cr_status read_verdict(const json_t *root, size_t num_tokens, cr_verdict *out, cr_err *err)
{
    const json_t *reward = json_object_get(root, "reward");

    CR_TRY(read_status(root, out, err));
    if (out->outcome != CR_OUTCOME_OK) return CR_OK;
    CR_TRY(read_number(json_object_get(root, "score"), "score", &out->score, err));
    out->reward = out->score;
    if (reward && !json_is_null(reward)) CR_TRY(read_number(reward, "reward", &out->reward, err));
    CR_TRY(read_metrics(json_object_get(root, "metrics"), out, err));
    return read_tokens(json_object_get(root, CR_FIELD_TOKEN_REWARDS), num_tokens, out, err);
}

void cr_verdict_read(const json_t *root, size_t num_tokens, cr_verdict *out)
{
    cr_err err = {0};

    *out = (cr_verdict){.score = 0};
    if (read_verdict(root, num_tokens, out, &err) == CR_OK) return;
    cr_verdict_free(out);
    out->is_fault = true;
    out->outcome = CR_OUTCOME_ERROR;
    snprintf(out->detail, sizeof out->detail, "the program's answer is wrong: %.200s", err.msg);
}
