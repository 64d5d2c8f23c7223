/* texts.c -- see texts.h. */
#include "serve/texts.h"
#include "base/json.h"
#include "base/rng.h"

struct cr_serve_texts {
    cr_buf json;
    int32_t num;
    cr_serve_text *of; /* [num] */
};

/* The string itself, not as JSON. */
static void add_string(const cr_tokenizer *tokenizer, int32_t id, bool as_id, cr_buf *out)
{
    size_t num;
    char *piece;

    if (!as_id && tokenizer) cr_tokenizer_piece(tokenizer, id, out);
    num = out->num_bytes;
    if (num == 0) {
        cr_buf_adds(out, "token_id:");
        cr_json_add_int(out, id);
        return;
    }
    if (cr_utf8_valid(out->data, num)) return;
    piece = cr_strndup(out->data, num);
    cr_buf_clear(out);
    cr_buf_adds(out, "bytes:");
    for (size_t i = 0; i < num; i++)
        cr_buf_addf(out, "\\x%02x", (unsigned char)piece[i]);
    cr_free(piece);
}

/* Append the string as JSON. scratch: the string itself. */
static cr_serve_text make(const cr_tokenizer *tokenizer, int32_t id, bool as_id, cr_buf *scratch,
                          cr_buf *json)
{
    cr_serve_text text = {0};
    size_t from = json->num_bytes;

    cr_buf_clear(scratch);
    add_string(tokenizer, id, as_id, scratch);
    text.hash = cr_hash64(scratch->data, scratch->num_bytes);
    for (size_t i = 0; i < scratch->num_bytes; i++)
        text.num_code_points += ((unsigned char)scratch->data[i] & 0xC0) != 0x80;
    cr_json_add_string(json, scratch->data, scratch->num_bytes);
    text.num_bytes = json->num_bytes - from;
    return text;
}

cr_serve_texts *cr_serve_texts_create(const cr_tokenizer *tokenizer)
{
    cr_serve_texts *texts = CR_NEW(cr_serve_texts);
    cr_buf scratch = {0};
    size_t at = 0;

    texts->num = cr_tokenizer_num_ids(tokenizer);
    texts->of = CR_NEW_ARRAY(cr_serve_text, texts->num);
    for (int32_t id = 0; id < texts->num; id++)
        texts->of[id] = make(tokenizer, id, false, &scratch, &texts->json);
    for (int32_t id = 0; id < texts->num; at += texts->of[id++].num_bytes)
        texts->of[id].json = texts->json.data + at; /* where it came to lie */
    cr_buf_free(&scratch);
    return texts;
}

void cr_serve_texts_free(cr_serve_texts *texts)
{
    if (!texts) return;
    cr_buf_free(&texts->json);
    cr_free(texts->of);
    cr_free(texts);
}

cr_serve_text cr_serve_text_of(const cr_serve_model *model, int32_t id, bool as_id, cr_buf *scratch)
{
    const cr_serve_texts *texts = model->texts;
    cr_serve_text text;
    cr_buf string = {0};

    if (texts && !as_id && id >= 0 && id < texts->num) return texts->of[id];
    cr_buf_clear(scratch);
    text = make(model->tokenizer, id, as_id, &string, scratch);
    text.json = scratch->data;
    cr_buf_free(&string);
    return text;
}
