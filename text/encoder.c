/* encoder.c -- see encoder.h. */
#include "text/encoder.h"

cr_status cr_encoder_open(cr_encoder *e, const char *folder, cr_err *err)
{
    if (e->tokenizer) return CR_OK;
    if (!e->folder) e->folder = cr_strdup(folder);
    return cr_tokenizer_open(folder, &e->tokenizer, err);
}

void cr_encoder_close(cr_encoder *e)
{
    cr_image_reader_destroy(e->images);
    cr_image_items_free(&e->items);
    cr_tokenizer_close(e->tokenizer);
    cr_chat_close(e->chat);
    cr_buf_free(&e->text);
    cr_free(e->folder);
    *e = (cr_encoder){0};
}

cr_status cr_encode_text(const cr_tokenizer *tokenizer, const char *text, size_t num_bytes,
                         bool add_special, int32_t **ids, size_t *num, cr_err *err)
{
    cr_ids out = {0};

    *ids = NULL;
    *num = 0;
    if (cr_tokenizer_encode(tokenizer, text, num_bytes, add_special, &out, err) != CR_OK) {
        cr_ids_free(&out);
        return err->status;
    }
    *ids = out.id ? out.id : CR_NEW_ARRAY(int32_t, 1);
    *num = out.num;
    return CR_OK;
}

static cr_status open_images(cr_encoder *e, cr_err *err)
{
    cr_image_processor processor;

    if (e->images || !e->reads_images || !cr_image_processor_exists(e->folder)) return CR_OK;
    CR_TRY(cr_image_processor_read(e->folder, &processor, err));
    processor.alpha = e->image_alpha;
    e->images = cr_image_reader_create(&processor, e->image_folder);
    if (e->keeps_values) cr_image_reader_keep_values(e->images, e->max_image_tokens);
    return CR_OK;
}

/* Messages to e->text. */
static cr_status render(cr_encoder *e, const json_t *messages, cr_err *err)
{
    cr_buf text = {0};

    if (!e->chat) CR_TRY(cr_chat_open(e->folder, &e->chat, err));
    CR_TRY(open_images(e, err));
    if (!e->images) return cr_chat_render(e->chat, NULL, messages, true, &e->text, err);
    CR_TRY(cr_image_reader_read(e->images, messages, NULL, &e->items, err));
    if (cr_chat_render(e->chat, NULL, e->items.messages, true, &text, err) == CR_OK)
        cr_note(cr_image_items_expand(&e->items, text.data ? text.data : "", text.num_bytes,
                                      &e->text, err));
    cr_buf_free(&text);
    return err->status;
}

cr_status cr_encoder_encode(cr_encoder *e, const json_t *text, bool is_messages, int32_t **ids,
                            size_t *num, cr_err *err)
{
    size_t num_inserted;

    *ids = NULL;
    *num = 0;
    cr_buf_clear(&e->text);
    cr_image_items_free(&e->items);
    if (is_messages) {
        CR_TRY(render(e, text, err));
    } else {
        cr_buf_add(&e->text, json_string_value(text), json_string_length(text));
    }
    CR_TRY(cr_encode_text(e->tokenizer, e->text.data ? e->text.data : "", e->text.num_bytes,
                          !is_messages && !e->has_no_special, ids, num, err));
    return cr_image_items_insert(&e->items, ids, NULL, num, &num_inserted, err);
}
