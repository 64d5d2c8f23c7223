/* answer.c -- answers of a service to numbers; nothing in them is taken on trust. */
#include "pipelines/service/service.h"

#include "base/json.h"
#include "samples/train.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Exactly num floats or ids of 4 bytes, little-endian, in base64, of which those from `skipped` on go to `out`; false: it is something
 * else. */
static bool read_numbers(const json_t *scores, const char *key, size_t num, size_t skipped,
                         void *out)
{
    const json_t *text = json_object_get(scores, key);
    size_t num_bytes = json_string_length(text);
    cr_buf all = {0};
    bool is_right = json_is_string(text) && num_bytes == (num * 4 + 2) / 3 * 4 &&
                    cr_base64_read(json_string_value(text), num_bytes, &all) &&
                    all.num_bytes == num * 4;

    if (is_right) memcpy(out, all.data + skipped * 4, (num - skipped) * 4);
    cr_buf_free(&all);
    return is_right;
}

/* ---- answers ---- */

static const char *text_of(const json_t *map, const char *key)
{
    const char *text = json_string_value(json_object_get(map, key));

    return text ? text : "";
}

/* The likeliest ids of the places of prompt i. */
static cr_status check_ids(const cr_role_service_want *want, size_t i, const int32_t *ids,
                           const float *log_probs, cr_err *err)
{
    int32_t *work = CR_NEW_ARRAY(int32_t, want->top);

    for (size_t k = 0; k < want->num_each[i] && err->status == CR_OK; k++)
        if (cr_chosen_check(ids + k * want->top, log_probs + k * want->top, want->top,
                            want->vocab_size, work, err) != CR_OK)
            cr_fail_add(err, "prompt %zu, place %zu", i, want->first[i] + k);
    cr_free(work);
    return err->status;
}

/* The numbers of one prompt, of which those of the last num_each places are wanted. */
static cr_status read_choice(const json_t *choice, const cr_role_service_want *want, size_t i,
                             int32_t *ids, float *out, cr_err *err)
{
    const json_t *scores = json_object_get(choice, "croll_scores"),
                 *start = json_object_get(scores, "start");
    const char *key = want->top ? "top_log_probs" : "log_probs";
    size_t each = want->top ? want->top : 1, skipped = want->first[i] - want->start,
           num = skipped + want->num_each[i];

    if (!json_is_integer(start) || json_integer_value(start) != (json_int_t)want->start ||
        !read_numbers(scores, key, num * each, skipped * each, out) ||
        (want->top && !read_numbers(scores, "top_ids", num * each, skipped * each, ids)))
        return cr_fail(err, CR_EFORMAT,
                       "prompt %zu has no croll_scores.%s of %zu tokens from place %zu, %zu each",
                       i, key, num, want->start, each);
    if (want->top) return check_ids(want, i, ids, out, err);
    for (size_t k = 0; k < want->num_each[i]; k++)
        if (!isfinite(out[k]) || out[k] > 0)
            return cr_fail(err, CR_ENUMERIC, "prompt %zu: the log-prob at place %zu is %g", i,
                           want->first[i] + k, (double)out[k]);
    return CR_OK;
}

/* Choices may come in any order: each says which prompt it is of. */
static cr_status read_choices(const json_t *root, const cr_role_service_want *want, int32_t *ids,
                              float *out, cr_err *err)
{
    const json_t *choices = json_object_get(root, "choices"), *choice;
    const size_t each = want->top ? want->top : 1;
    bool *has = CR_NEW_ARRAY(bool, want->num);
    size_t *at = CR_NEW_ARRAY(size_t, want->num + 1), k;

    for (size_t i = 0; i < want->num; i++)
        at[i + 1] = at[i] + want->num_each[i] * each;
    if (strcmp(text_of(json_object_get(root, "croll"), "weights_sha256"), want->weights) != 0)
        cr_fail(err, CR_EFORMAT, "the answer is not of the weights %.12s", want->weights);
    else if (json_array_size(choices) != want->num)
        cr_fail(err, CR_EFORMAT, "%zu answers for %zu prompts", json_array_size(choices),
                want->num);
    json_array_foreach(choices, k, choice)
    {
        json_int_t i = json_integer_value(json_object_get(choice, "index"));
        if (err->status != CR_OK) break;
        if (i < 0 || i >= (json_int_t)want->num || has[i])
            cr_fail(err, CR_EFORMAT, "index %lld is not that of one more prompt", (long long)i);
        else
            cr_note(read_choice(choice, want, (size_t)i, want->top ? ids + at[i] : NULL,
                                out + at[i], err));
        if (err->status == CR_OK) has[i] = true;
    }
    cr_free(has);
    cr_free(at);
    return err->status;
}

cr_status cr_role_service_read_answer(const char *body, size_t num_bytes,
                                      const cr_role_service_want *want, int32_t *ids, float *out,
                                      cr_err *err)
{
    json_t *root;

    CR_TRY(cr_json_parse(body, num_bytes, "the answer", &root, err));
    cr_note(read_choices(root, want, ids, out, err));
    json_decref(root);
    return err->status;
}

/* ---- identity ---- */

static bool take_text(const json_t *map, const char *key, char *to, size_t num)
{
    const char *text = text_of(map, key);

    return *text && (size_t)snprintf(to, num, "%s", text) < num;
}

static cr_status take_identity(const json_t *root, const char *model, cr_role_service_identity *out,
                               cr_err *err)
{
    const json_t *data = json_object_get(root, "data"), *it = json_array_get(data, 0), *croll;
    cr_buf names = {0};

    for (size_t i = 0; model && i < json_array_size(data); i++) {
        const json_t *one = json_array_get(data, i);
        cr_buf_addf(&names, "%s%.80s", i ? ", " : "", text_of(one, "id"));
        it = NULL;
        if (strcmp(text_of(one, "id"), model) != 0) continue;
        it = one;
        break;
    }
    croll = json_object_get(it, "croll");
    if (!it)
        cr_fail(err, CR_EFORMAT, "it has no model %s%s%.200s%s", model ? model : "",
                names.num_bytes ? " (it has " : "", names.num_bytes ? names.data : "",
                names.num_bytes ? ")" : "");
    else if (!take_text(it, "id", out->model, sizeof out->model) ||
             !take_text(croll, "weights_sha256", out->weights, sizeof out->weights) ||
             !take_text(croll, "dtype", out->dtype, sizeof out->dtype))
        cr_fail(err, CR_EFORMAT,
                "it does not say what its weights are: it is not a croll serve, whose numbers "
                "come back as float32");
    else if (!take_text(croll, "tokenizer_sha256", out->tokenizer, sizeof out->tokenizer))
        cr_fail(err, CR_EFORMAT, "its model has no tokenizer.json to compare with the run's");
    out->max_model_len = json_integer_value(json_object_get(it, "max_model_len"));
    out->vocab_size = json_integer_value(json_object_get(croll, "vocab_size"));
    cr_buf_free(&names);
    return err->status;
}

cr_status cr_role_service_read_identity(const char *body, size_t num_bytes, const char *model,
                                        cr_role_service_identity *out, cr_err *err)
{
    json_t *root;

    *out = (cr_role_service_identity){.vocab_size = 0};
    CR_TRY(cr_json_parse(body, num_bytes, "its list of models", &root, err));
    cr_note(take_identity(root, model, out, err));
    json_decref(root);
    return err->status;
}
