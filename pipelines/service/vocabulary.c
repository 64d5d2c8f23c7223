/* vocabulary.c -- an id means the same token to a role's model as to the trained one (see service.h). */
#include "pipelines/service/service.h"

#include "base/json.h"
#include "text/tokenizer.h"

#include <string.h>

cr_status cr_model_number_read(const char *folder, const char *key, int64_t *out, cr_err *err)
{
    char *path = cr_path_join(folder, "config.json");
    json_t *root = NULL, *inner;

    if (cr_json_read_file(path, &root, err) == CR_OK) {
        inner = json_object_get(root, "text_config");
        *out = json_integer_value(json_object_get(inner ? inner : root, key));
    }
    json_decref(root);
    cr_free(path);
    return err->status;
}

/* Every id of the first one is the same token in the second. */
static cr_status compare_tokens(const cr_tokenizer *first, const cr_tokenizer *second, cr_err *err)
{
    for (int32_t id = 0; id < cr_tokenizer_num_ids(first); id++) {
        size_t num[2] = {0};
        const char *token[2] = {cr_tokenizer_token(first, id, &num[0]),
                                cr_tokenizer_token(second, id, &num[1])};
        if (!token[0]) continue;
        if (!token[1])
            return cr_fail(err, CR_ECONFIG,
                           "id %d is '%.*s' in the run's tokenizer and none in its", id,
                           num[0] < 40 ? (int)num[0] : 40, token[0]);
        if (num[0] != num[1] || memcmp(token[0], token[1], num[0]) != 0)
            return cr_fail(
                err, CR_ECONFIG, "id %d is '%.*s' in the run's tokenizer and '%.*s' in its", id,
                num[0] < 40 ? (int)num[0] : 40, token[0], num[1] < 40 ? (int)num[1] : 40, token[1]);
    }
    return CR_OK;
}

cr_status cr_vocabulary_check(const cr_config *c, const cr_worker_config *w,
                              const cr_tokenizer *tokenizer, cr_err *err)
{
    cr_tokenizer *other = NULL;
    int64_t own = 0, its = 0;

    if (strcmp(w->model_path, c->train.model_path) == 0) return CR_OK;
    CR_TRY_GOTO(out, cr_model_number_read(c->train.model_path, "vocab_size", &own, err));
    CR_TRY_GOTO(out, cr_model_number_read(w->model_path, "vocab_size", &its, err));
    if (its < own)
        cr_fail(err, CR_ECONFIG, "its vocabulary has %lld ids, that of the run %lld",
                (long long)its, (long long)own);
    CR_TRY_GOTO(out, err->status);
    CR_TRY_GOTO(out, cr_tokenizer_open(w->model_path, &other, err));
    cr_note(compare_tokens(tokenizer, other, err));
out:
    cr_tokenizer_close(other);
    if (err->status != CR_OK) err->status = CR_ECONFIG; /* nothing was started */
    return err->status == CR_OK ? CR_OK : cr_fail_add(err, "%s %.160s", w->name, w->model_path);
}
