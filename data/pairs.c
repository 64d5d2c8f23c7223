/* pairs.c -- a prompt and two answers: ids of the prompt, of the chosen and of the rejected answer (see prompts.h). */
#include "data/columns.h"
#include "data/messages.h"
#include "data/prompts_impl.h"

#include <string.h>

/* A pair's prompt and answers on their way to ids. */
typedef struct pair_row {
    cr_prompt_maker *m;
    json_t *prompt, *answer[2], *vars; /* messages, and `tools` or NULL; owned */
    cr_row part[3]; /* ids of the prompt, of it with the chosen, with the rejected */
} pair_row;

/* An answer as messages of its own: a list, or a text as one of the assistant. */
static cr_status answer_messages(const json_t *column, const char *name, json_t **out, cr_err *err)
{
    json_t *list;

    if (json_is_array(column)) {
        CR_TRY(cri_messages_read(column, name, &list, err));
        *out = json_copy(list);
        json_decref(list);
        return CR_OK;
    }
    CR_TRY(cri_prompt_check_text(column, name, "", err));
    *out = json_array();
    cri_prompt_add_message(*out, "assistant", column);
    return CR_OK;
}

/* TRL's implicit prompt: the messages that both answers begin with. They are taken off the answers. */
static cr_status split_prompt(pair_row *p, const char *name, cr_err *err)
{
    json_t *chosen = p->answer[0], *rejected = p->answer[1], *message;

    p->prompt = json_array();
    while ((message = json_array_get(chosen, 0)) &&
           json_equal(message, json_array_get(rejected, 0))) {
        json_array_append(p->prompt, message);
        json_array_remove(chosen, 0);
        json_array_remove(rejected, 0);
    }
    if (json_array_size(p->prompt) && json_array_size(chosen) && json_array_size(rejected))
        return CR_OK;
    return cr_fail(err, CR_EFORMAT,
                   "the row has no column %s (prompt_key), and its answers are not two chats that "
                   "begin with the same messages and end with others",
                   name);
}

/* The prompt, of which the rejected answer's chat has no second one any more. */
static cr_status read_prompt(pair_row *p, cr_row *row, cr_err *err)
{
    const cr_config *c = p->m->config;
    const char *name = c->rows.prompt_key;
    json_t *prompt = json_object_get(row->json, name);

    if (!prompt) {
        CR_TRY(split_prompt(p, name, err));
        json_object_set(row->json, c->rows.rejected_key, p->answer[1]);
        return CR_OK;
    }
    if (json_is_string(prompt)) {
        p->prompt = cri_prompt_messages(c, row, prompt);
        return CR_OK;
    }
    if (json_is_array(prompt)) return cri_messages_read(prompt, name, &p->prompt, err);
    return cr_fail(err, CR_EFORMAT,
                   "the column %s (prompt_key) is neither a text nor a list of messages", name);
}

static cr_status read_chats(pair_row *p, cr_row *row, cr_err *err)
{
    const cr_config *c = p->m->config;
    const char *names[] = {c->rows.chosen_key, c->rows.rejected_key};
    json_t *tools = json_object_get(row->json, "tools");

    if (json_is_array(tools)) p->vars = json_pack("{s:O}", "tools", tools);
    for (int k = 0; k < 2; k++)
        CR_TRY(answer_messages(json_object_get(row->json, names[k]), names[k], &p->answer[k], err));
    CR_TRY(read_prompt(p, row, err));
    for (int k = 0; k < 2; k++)
        if (cri_messages_text_only(p->answer[k], "an answer is", err) != CR_OK)
            return cr_fail_add(err, "%s", names[k]);
    return CR_OK;
}

/* Ids of the prompt's chat (k 0), or of the chat with an answer. */
static cr_status encode_chat(pair_row *p, int k, cr_err *err)
{
    json_t *all = json_copy(p->m->images.items.messages);
    cr_buf text = {0};

    if (k) json_array_extend(all, p->answer[k - 1]);
    if (cr_chat_render_with(p->m->chat, cri_prompt_template(p->m), all, p->vars, k == 0, &text,
                            err) == CR_OK)
        cr_note(cri_prompt_encode(p->m, text.data, text.num_bytes, /*add_special=*/false,
                                  &p->part[k], err));
    json_decref(all);
    cr_buf_free(&text);
    return err->status;
}

/* Ready text: answers follow the prompt as they are, and end with the end-of-text token. */
static cr_status read_ready(pair_row *p, const cr_row *row, cr_err *err)
{
    const cr_config *c = p->m->config;
    const char *names[] = {p->m->from->data.prompt, c->rows.chosen_key, c->rows.rejected_key};

    for (int k = 0; k < 3; k++)
        CR_TRY(cri_prompt_check_text(json_object_get(row->json, names[k]), names[k],
                                     k ? "" : " (data_args.prompt)", err));
    for (int k = 0; k < 2; k++)
        p->answer[k] = json_incref(json_object_get(row->json, names[k + 1]));
    p->prompt = json_array();
    cri_prompt_add_message(p->prompt, "user", json_object_get(row->json, names[0]));
    return CR_OK;
}

static cr_status encode_ready(pair_row *p, int k, cr_err *err)
{
    const json_t *prompt =
        json_object_get(json_array_get(p->m->images.items.messages, 0), "content");
    int32_t eos = cr_tokenizer_role(p->m->tokenizer, CR_TOKEN_EOS);
    cr_row *part = &p->part[k];
    cr_buf text = {0};

    cr_buf_add(&text, json_string_value(prompt), json_string_length(prompt));
    if (k)
        cr_buf_add(&text, json_string_value(p->answer[k - 1]),
                   json_string_length(p->answer[k - 1]));
    cr_note(cri_prompt_encode(p->m, text.data, text.num_bytes, /*add_special=*/true, part, err));
    cr_buf_free(&text);
    if (k == 0 || eos < 0 || (part->num_ids && part->ids[part->num_ids - 1] == eos))
        return err->status;
    part->ids = cr_realloc(part->ids, part->num_ids * 4, (part->num_ids + 1) * 4);
    part->ids[part->num_ids++] = eos;
    return err->status;
}

static size_t num_common(const cr_row *a, const cr_row *b)
{
    size_t n = 0;

    while (n < a->num_ids && n < b->num_ids && a->ids[n] == b->ids[n])
        n++;
    return n;
}

/* Answers begin where the ids of prompt and chats part, as in TRL. */
static cr_status join_pair(pair_row *p, cr_row *row, cr_err *err)
{
    const cr_row *chosen = &p->part[1], *rejected = &p->part[2];
    size_t prompt = num_common(&p->part[0], chosen), other = num_common(&p->part[0], rejected);

    if (other < prompt) prompt = other;
    if (prompt < 1 || chosen->num_ids == prompt || rejected->num_ids == prompt)
        return cr_fail(err, CR_EFORMAT, "the pair has no token of its %s",
                       prompt < 1                  ? "prompt"
                       : chosen->num_ids == prompt ? "chosen answer"
                                                   : "rejected answer");
    if (!cri_prompt_has_all_places(p->m, &(cr_row){.ids = chosen->ids, .num_ids = prompt}))
        return cr_fail(err, CR_EFORMAT,
                       "the answers begin before the end of the prompt's images (the template "
                       "writes the prompt otherwise when it stands alone)");
    p->m->num_merged += prompt < p->part[0].num_ids;
    if ((int64_t)chosen->num_ids > p->m->config->sequence_length ||
        (int64_t)rejected->num_ids > p->m->config->sequence_length) {
        p->m->num_long_pairs++;
        return CR_OK;
    }
    p->m->num_same_pairs +=
        num_common(chosen, rejected) == chosen->num_ids && chosen->num_ids == rejected->num_ids;
    row->num_prompt = prompt;
    row->num_chosen = chosen->num_ids - prompt;
    row->num_ids = chosen->num_ids + rejected->num_ids - prompt;
    row->ids = CR_NEW_ARRAY(int32_t, row->num_ids);
    memcpy(row->ids, chosen->ids, chosen->num_ids * 4);
    memcpy(row->ids + chosen->num_ids, rejected->ids + prompt, (rejected->num_ids - prompt) * 4);
    return cri_row_images_keep(&p->m->images, NULL, NULL, row, err);
}

static cr_status encode_parts(pair_row *p, cr_row *row, bool is_ready, cr_err *err)
{
    cr_prompt_maker *m = p->m;
    bool is_dropped;

    CR_TRY(cri_prompt_read_images(m, row, p->prompt, &is_dropped, err));
    if (is_dropped || cri_prompt_are_too_long(m, m->config->sequence_length, &m->num_long_pairs))
        return CR_OK;
    for (int k = 0; k < 3; k++) {
        m->images.next = 0;
        CR_TRY(is_ready ? encode_ready(p, k, err) : encode_chat(p, k, err));
        CR_TRY(cri_prompt_end_images(m, err));
        CR_TRY(cri_prompt_insert_image(m, &p->part[k], err));
    }
    return join_pair(p, row, err);
}

cr_status cr_prompt_encode_pair(void *ctx, cr_row *row, cr_err *err)
{
    pair_row p = {.m = ctx};
    const bool is_ready = p.m->from->data.prompt != NULL;

    CR_TRY(cr_columns_make(&p.m->from->data, row, err));
    if ((is_ready ? read_ready(&p, row, err) : read_chats(&p, row, err)) == CR_OK)
        cr_note(encode_parts(&p, row, is_ready, err));
    row->domain = 0;
    json_decref(p.prompt);
    json_decref(p.vars);
    for (int k = 0; k < 2; k++)
        json_decref(p.answer[k]);
    for (int k = 0; k < 3; k++)
        cr_free(p.part[k].ids);
    return err->status;
}
