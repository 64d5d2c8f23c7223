/* tokenizer.c -- tokenizers: opening, encoding, the vocabulary (see tokenizer.h). */
#include "base/hub.h"
#include "text/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- ids ---- */

void cr_ids_add(cr_ids *ids, int32_t id)
{
    ids->id = cr_grow(ids->id, ids->num, &ids->capacity, sizeof *ids->id);
    ids->id[ids->num++] = id;
}

void cr_ids_free(cr_ids *ids)
{
    cr_free(ids->id);
    *ids = (cr_ids){0};
}

/* ---- added tokens ---- */

static int compare_added(const void *a, const void *b)
{
    const cri_added *x = a, *y = b;
    size_t num = x->num_bytes < y->num_bytes ? x->num_bytes : y->num_bytes;
    int order = memcmp(x->text, y->text, num);

    return order ? order : (x->num_bytes > y->num_bytes) - (x->num_bytes < y->num_bytes);
}

static void list_added(cri_added_list *list, const cri_added *added, const char *text,
                       size_t num_bytes)
{
    if (num_bytes == 0) return; /* normalised away: it never matches */
    list->added = cr_grow(list->added, list->num, &list->capacity, sizeof *added);
    list->added[list->num] = *added;
    list->added[list->num].text = cr_strndup(text, num_bytes);
    list->added[list->num++].num_bytes = num_bytes;
}

static void free_added(cri_added_list *list)
{
    for (size_t i = 0; i < list->num; i++)
        cr_free(list->added[i].text);
    cr_free(list->added);
}

static cr_status get_flag(const json_t *token, size_t at, const char *key, bool fallback, bool *out,
                          cr_err *err)
{
    const json_t *value = json_object_get(token, key);

    *out = value ? json_is_true(value) : fallback;
    if (value && !json_is_boolean(value))
        return cr_fail(err, CR_EFORMAT, "added_tokens[%zu].%s must be true or false", at, key);
    return CR_OK;
}

static cr_status add_normalized(cr_tokenizer *t, const cri_added *added, const char *text,
                                size_t num_bytes, cr_err *err)
{
    cri_text whole = {0};
    cr_status status;

    cri_text_set(&whole, text, num_bytes);
    status = cri_steps_run(&t->steps, 0, t->num_normalizer_steps, &t->normalized, &whole, err);
    if (status == CR_OK) list_added(&t->normalized, added, whole.bytes.data, whole.bytes.num_bytes);
    cri_text_free(&whole);
    return status;
}

static cr_status read_added(cr_tokenizer *t, const json_t *token, size_t at, cr_err *err)
{
    const json_t *content = json_object_get(token, "content"), *id = json_object_get(token, "id");
    const char *text = json_string_value(content);
    size_t num_bytes = json_string_length(content);
    bool is_special, is_normalized;
    cri_added added = {0};

    if (!json_is_string(content) || num_bytes == 0 || !json_is_integer(id))
        return cr_fail(err, CR_EFORMAT, "added_tokens[%zu] must have a content and an id", at);
    CR_TRY(get_flag(token, at, "special", false, &is_special, err));
    CR_TRY(get_flag(token, at, "normalized", !is_special, &is_normalized, err));
    CR_TRY(get_flag(token, at, "single_word", false, &added.is_single_word, err));
    CR_TRY(get_flag(token, at, "lstrip", false, &added.strips_left, err));
    CR_TRY(get_flag(token, at, "rstrip", false, &added.strips_right, err));
    CR_TRY(cri_vocab_add(&t->bpe.vocab, text, num_bytes, json_integer_value(id), err));
    added.id = (int32_t)json_integer_value(id);
    t->bpe.vocab.token[added.id].is_added = true;
    t->bpe.vocab.token[added.id].is_special = is_special;
    if (is_normalized) return add_normalized(t, &added, text, num_bytes, err);
    list_added(&t->raw, &added, text, num_bytes);
    return CR_OK;
}

static cr_status read_all_added(cr_tokenizer *t, const json_t *list, cr_err *err)
{
    const json_t *token;
    size_t at;

    if (!list || json_is_null(list)) return CR_OK;
    if (!json_is_array(list)) return cr_fail(err, CR_EFORMAT, "added_tokens must be a list");
    json_array_foreach(list, at, token) CR_TRY(read_added(t, token, at, err));
    if (t->raw.num) qsort(t->raw.added, t->raw.num, sizeof *t->raw.added, compare_added);
    if (t->normalized.num)
        qsort(t->normalized.added, t->normalized.num, sizeof *t->normalized.added, compare_added);
    return CR_OK;
}

/* ---- opening ---- */

static void read_roles(cr_tokenizer *t, const json_t *config)
{
    static const char *const keys[] = {[CR_TOKEN_BOS] = "bos_token",
                                       [CR_TOKEN_EOS] = "eos_token",
                                       [CR_TOKEN_PAD] = "pad_token",
                                       [CR_TOKEN_UNK] = "unk_token"};

    for (size_t i = 0; i < CR_COUNT(keys); i++) {
        const json_t *value = json_object_get(config, keys[i]);
        if (json_is_object(value)) value = json_object_get(value, "content");
        if (json_is_string(value) && !t->role_text[i])
            t->role_text[i] = cr_strdup(json_string_value(value));
    }
}

static cr_status read_root(cr_tokenizer *t, const json_t *root, cr_err *err)
{
    if (!json_is_object(root)) return cr_fail(err, CR_EFORMAT, "must be a JSON object");
    CR_TRY(cri_bpe_read(&t->bpe, json_object_get(root, "model"), err));
    CR_TRY(cri_read_steps(t, root, err));
    CR_TRY(read_all_added(t, json_object_get(root, "added_tokens"), err));
    CR_TRY(cri_read_post(t, json_object_get(root, "post_processor"), err));
    return cri_read_decoder(&t->decoder, json_object_get(root, "decoder"), err);
}

cr_status cr_tokenizer_parse(const char *json, size_t num_bytes, const char *config_json,
                             const char *what, cr_tokenizer **out, cr_err *err)
{
    cr_tokenizer *t = CR_NEW(cr_tokenizer);
    json_t *root = NULL, *config = NULL;

    *out = NULL;
    if (cr_json_parse(json, num_bytes, what, &root, err) == CR_OK && read_root(t, root, err))
        cr_fail_add(err, "%s", what);
    if (!err->status && config_json &&
        cr_json_parse(config_json, strlen(config_json), "tokenizer_config.json", &config, err) ==
            CR_OK)
        read_roles(t, config);
    json_decref(root);
    json_decref(config);
    if (err->status)
        cr_tokenizer_close(t);
    else
        *out = t;
    return err->status;
}

static cr_status read_role_file(cr_tokenizer *t, const char *folder, const char *name, cr_err *err)
{
    char *path = cr_path_join(folder, name);
    cr_status status = CR_OK;
    json_t *json = NULL;

    if (cr_file_exists(path)) status = cr_json_read_file(path, &json, err);
    if (status == CR_OK && json && !json_is_object(json))
        status = cr_fail(err, CR_EFORMAT, "%s: must be a JSON object", path);
    if (status == CR_OK && json) read_roles(t, json);
    json_decref(json);
    cr_free(path);
    return status;
}

cr_status cr_tokenizer_open(const char *name, cr_tokenizer **out, cr_err *err)
{
    char *found = cr_hub_find(name), *path;
    const char *folder = found ? found : name;
    cr_tokenizer *t = NULL;
    cr_buf text = {0};
    cr_status status;

    *out = NULL;
    if (!found && cr_hub_is_name(name)) return cr_hub_absent(name, err);
    path = cr_path_join(folder, "tokenizer.json");
    if (!cr_file_exists(path))
        status = cr_fail(err, CR_EFORMAT, "%s does not exist: a tokenizer is needed here", path);
    else
        status = cr_file_read(path, &text, err);
    if (status == CR_OK)
        status = cr_tokenizer_parse(text.data, text.num_bytes, NULL, path, &t, err);
    if (status == CR_OK) status = read_role_file(t, folder, "tokenizer_config.json", err);
    if (status == CR_OK) status = read_role_file(t, folder, "special_tokens_map.json", err);
    cr_buf_free(&text);
    cr_free(path);
    cr_free(found);
    if (status == CR_OK)
        *out = t;
    else
        cr_tokenizer_close(t);
    return status;
}

void cr_tokenizer_close(cr_tokenizer *t)
{
    if (!t) return;
    cri_bpe_free(&t->bpe);
    free_added(&t->raw);
    free_added(&t->normalized);
    cri_steps_free(&t->steps);
    cr_ids_free(&t->before);
    cr_ids_free(&t->after);
    cr_free(t->decoder.from);
    cr_free(t->decoder.to);
    cr_free(t->decoder.strip);
    for (int i = 0; i < CR_NUM_TOKEN_ROLES; i++)
        cr_free(t->role_text[i]);
    cr_free(t);
}

/* ---- encoding ---- */

static void add_list(cr_ids *ids, const cr_ids *more)
{
    for (size_t i = 0; i < more->num; i++)
        cr_ids_add(ids, more->id[i]);
}

cr_status cr_tokenizer_encode(const cr_tokenizer *t, const char *bytes, size_t num_bytes,
                              bool add_special, cr_ids *ids, cr_err *err)
{
    cri_text text = {0};
    cr_status status;

    if (!cr_utf8_valid(bytes, num_bytes))
        return cr_fail(err, CR_EFORMAT, "text to be encoded is not valid UTF-8");
    cri_text_set(&text, bytes, num_bytes);
    cri_text_cut_added(&text, &t->raw);
    status = cri_steps_run(&t->steps, 0, t->steps.num, &t->normalized, &text, err);
    if (status == CR_OK) {
        if (add_special) add_list(ids, &t->before);
        for (size_t i = 0; i < text.num; i++) {
            const cri_piece *p = &text.piece[i];
            if (p->id >= 0)
                cr_ids_add(ids, p->id);
            else
                cri_bpe_encode(&t->bpe, text.bytes.data + p->begin, p->end - p->begin, ids);
        }
        if (add_special) add_list(ids, &t->after);
    }
    cri_text_free(&text);
    return status;
}

/* ---- the vocabulary ---- */

int32_t cr_tokenizer_num_ids(const cr_tokenizer *t)
{
    return t->bpe.vocab.num_ids;
}

static const cri_text_token *token_of(const cr_tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->bpe.vocab.num_ids || !t->bpe.vocab.token[id].is_used) return NULL;
    return &t->bpe.vocab.token[id];
}

const char *cr_tokenizer_token(const cr_tokenizer *t, int32_t id, size_t *num_bytes)
{
    const cri_text_token *token = token_of(t, id);

    if (num_bytes) *num_bytes = token ? (size_t)token->num_bytes : 0;
    return token ? t->bpe.vocab.bytes.data + token->begin : NULL;
}

int32_t cr_tokenizer_find(const cr_tokenizer *t, const char *token)
{
    return cri_vocab_find(&t->bpe.vocab, token, strlen(token));
}

bool cr_tokenizer_is_special(const cr_tokenizer *t, int32_t id)
{
    const cri_text_token *token = token_of(t, id);

    return token && token->is_special;
}

int32_t cr_tokenizer_role(const cr_tokenizer *t, cr_token_role role)
{
    return t->role_text[role] ? cr_tokenizer_find(t, t->role_text[role]) : -1;
}
