/* answer.c -- answers of a service to numbers; nothing in them is taken on trust. */
#include "pipelines/service/service.h"

#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Exactly num floats, little-endian, in base64; false: it is something else. */
static bool read_floats(const char *text, size_t num_bytes, size_t num, cr_buf *out)
{
    cr_buf_clear(out);
    return num_bytes == (num * sizeof(float) + 2) / 3 * 4 && cr_base64_read(text, num_bytes, out) &&
           out->num_bytes == num * sizeof(float);
}

/* ---- answers ---- */

static const char *text_of(const json_t *map, const char *key)
{
    const char *text = json_string_value(json_object_get(map, key));

    return text ? text : "";
}

/* The numbers of one prompt, of which the last num_each are wanted. */
static cr_status read_choice(const json_t *choice, const cr_role_service_want *want, size_t i,
                             float *out, cr_err *err)
{
    const json_t *scores = json_object_get(choice, "croll_scores"),
                 *start = json_object_get(scores, "start"),
                 *numbers = json_object_get(scores, "log_probs");
    size_t skipped = want->first[i] - want->start, num = skipped + want->num_each[i];
    cr_buf floats = {0};

    if (!json_is_integer(start) || json_integer_value(start) != (json_int_t)want->start ||
        !json_is_string(numbers) ||
        !read_floats(json_string_value(numbers), json_string_length(numbers), num, &floats)) {
        cr_buf_free(&floats);
        return cr_fail(err, CR_EFORMAT,
                       "prompt %zu has no croll_scores.log_probs of %zu tokens from place %zu", i,
                       num, want->start);
    }
    memcpy(out, floats.data + skipped * sizeof *out, want->num_each[i] * sizeof *out);
    cr_buf_free(&floats);
    for (size_t k = 0; k < want->num_each[i]; k++)
        if (!isfinite(out[k]) || out[k] > 0)
            return cr_fail(err, CR_ENUMERIC, "prompt %zu: the log-prob at place %zu is %g", i,
                           want->first[i] + k, (double)out[k]);
    return CR_OK;
}

/* Choices may come in any order: each says which prompt it is of. */
static cr_status read_choices(const json_t *root, const cr_role_service_want *want, float *out,
                              cr_err *err)
{
    const json_t *choices = json_object_get(root, "choices"), *choice;
    bool *has = CR_NEW_ARRAY(bool, want->num);
    size_t *at = CR_NEW_ARRAY(size_t, want->num + 1), k;

    for (size_t i = 0; i < want->num; i++)
        at[i + 1] = at[i] + want->num_each[i];
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
            cr_note(read_choice(choice, want, (size_t)i, out + at[i], err));
        if (err->status == CR_OK) has[i] = true;
    }
    cr_free(has);
    cr_free(at);
    return err->status;
}

cr_status cr_role_service_read_answer(const char *body, size_t num_bytes,
                                      const cr_role_service_want *want, float *out, cr_err *err)
{
    json_t *root;

    CR_TRY(cr_json_parse(body, num_bytes, "the answer", &root, err));
    cr_note(read_choices(root, want, out, err));
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
