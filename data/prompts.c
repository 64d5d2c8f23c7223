/* prompts.c -- see prompts.h. */
#include "data/columns.h"
#include "data/messages.h"
#include "data/prompts_impl.h"
#include "images/reader.h"
#include "rewards/rules.h"
#include "text/encoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

cr_status cri_prompt_check_text(const json_t *column, const char *name, const char *key,
                                cr_err *err)
{
    if (json_is_string(column)) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "the column %s%s is %s", name, key,
                   column ? "no text" : "missing");
}

/* Blocks of rewards by name: a text, or a list of texts that are all known. An unknown text is no error. */
static cr_status find_named(const cr_config *c, const json_t *domain, cr_row *row, cr_err *err)
{
    size_t num = json_is_array(domain) ? json_array_size(domain) : 1;

    if (json_is_array(domain) && (num == 0 || num > c->num_rewards))
        return cr_fail(err, CR_EFORMAT,
                       "the column domain is a list of %zu names (1 to %zu blocks of rewards)", num,
                       c->num_rewards);
    for (size_t k = 0; k < num; k++) {
        const json_t *v = json_is_array(domain) ? json_array_get(domain, k) : domain;
        const char *name = json_string_value(v);
        size_t i = 0;
        while (i < c->num_rewards && (!name || strcmp(c->rewards[i].domain, name) != 0))
            i++;
        for (size_t j = 0; j < row->num_rewards && i < c->num_rewards; j++)
            if (row->rewards[j] == (int32_t)i)
                return cr_fail(err, CR_EFORMAT, "the column domain names %.60s twice", name);
        if (i < c->num_rewards)
            row->rewards[row->num_rewards++] = (int32_t)i;
        else if (json_is_array(domain))
            return cr_fail(err, CR_EFORMAT, "the column domain: %.60s is no block of rewards",
                           name ? name : "what is no text");
    }
    return CR_OK;
}

/* Blocks of rewards that score a row, its domain first: its own column `domain`, else those that include its tag. The
 * domain stays -1 for a row that no block is for and that is to be left out. */
static cr_status find_domain(const cr_prompt_maker *m, cr_row *row, cr_err *err)
{
    const cr_config *c = m->config;
    const char *column = m->from->data.tag ? m->from->data.tag : "tag",
               *tag = json_string_value(json_object_get(row->json, column));
    const json_t *domain = json_object_get(row->json, "domain");

    if (!json_is_string(domain) && !json_is_array(domain)) domain = NULL;
    row->rewards = CR_NEW_ARRAY(int32_t, c->num_rewards);
    if (domain)
        CR_TRY(find_named(c, domain, row, err));
    else if (tag)
        row->num_rewards = cr_config_rewards_of(c, tag, row->rewards);
    else if (c->num_rewards == 1)
        row->num_rewards = 1; /* the only one: index 0 */
    if (row->num_rewards) row->domain = row->rewards[0];
    if (row->domain >= 0 || domain || m->from->data.drops_unknown_tags) return CR_OK;
    if (tag)
        return cr_fail(err, CR_EFORMAT,
                       "no block of rewards includes the tag '%.60s' (add it to a tag_included, or "
                       "leave such rows out with data_args.unknown_tag: drop)",
                       tag);
    return cr_fail(err, CR_EFORMAT, "the row has neither the column domain nor %s", column);
}

const char *cri_prompt_template(const cr_prompt_maker *m)
{
    return m->config->global_template ? m->config->global_template : m->from->data.template;
}

/* tag_to_template comes before them. */
static const char *template_of_row(const cr_prompt_maker *m, const cr_row *row)
{
    const cr_tag_templates *all = &m->config->templates;
    const char *column = m->from->data.tag ? m->from->data.tag : "tag",
               *tag = json_string_value(json_object_get(row->json, column));

    for (size_t i = 0; tag && i < all->num_tags; i++)
        if (strcmp(all->of_tag[i].tag, tag) == 0) return all->of_tag[i].template;
    return cri_prompt_template(m);
}

cr_status cri_prompt_encode(cr_prompt_maker *m, const char *text, size_t num_bytes,
                            bool add_special, cr_row *row, cr_err *err)
{
    cr_buf with = {0};

    if (!text) text = "";
    if (m->images.reader) {
        cr_note(cr_image_items_expand_part(&m->images.items, text, num_bytes, &m->images.next,
                                           &with, err));
        text = with.data ? with.data : "";
        num_bytes = with.num_bytes;
    }
    if (err->status == CR_OK)
        cr_note(cr_encode_text(m->tokenizer, text, num_bytes, add_special, &row->ids, &row->num_ids,
                               err));
    cr_buf_free(&with);
    return err->status;
}

/* A service that scores is sent ids alone. */
static cr_status check_services(const cr_config *c, cr_err *err)
{
    const cr_worker_config *const workers[] = {&c->reference, &c->teacher};

    for (size_t i = 0; i < CR_COUNT(workers); i++)
        if (workers[i]->service.url)
            return cr_fail(err, CR_EFORMAT,
                           "the row has images, and %s.service is sent token ids alone (give %s "
                           "ranks of its own)",
                           workers[i]->name, workers[i]->name);
    return CR_OK;
}

cr_status cri_prompt_read_images(cr_prompt_maker *m, const cr_row *row, const json_t *messages,
                                 bool *is_dropped, cr_err *err)
{
    CR_TRY(cri_row_images_read(&m->images, m->config->train.model_path, &m->from->data, row,
                               messages, is_dropped, err));
    return m->images.items.num ? check_services(m->config, err) : CR_OK;
}

cr_status cri_prompt_end_images(const cr_prompt_maker *m, cr_err *err)
{
    return m->images.reader ? cr_image_items_end(&m->images.items, m->images.next, err) : CR_OK;
}

cr_status cri_prompt_insert_image(cr_prompt_maker *m, cr_row *row, cr_err *err)
{
    size_t num;

    CR_TRY(
        cr_image_items_insert(&m->images.items, &row->ids, &row->learns, &row->num_ids, &num, err));
    row->num_prompt += num;
    if (num) m->images.next = m->images.items.num;
    return CR_OK;
}

/* Files of ROLL have it as a number or as text. */
static cr_status read_difficulty(cr_row *row, cr_err *err)
{
    const json_t *x = json_object_get(row->json, "difficulty");
    const char *text = json_string_value(x);
    char *end = NULL;

    row->difficulty = text ? strtod(text, &end) : json_number_value(x);
    if (text ? end == text || *end != 0 || !isfinite(row->difficulty) : !json_is_number(x))
        return cr_fail(err, CR_EFORMAT,
                       "the row has no number \"difficulty\", which difficulty_loss_weight reads");
    return CR_OK;
}

/* Of a content in parts the last one; borrowed, NULL: none. */
static json_t *last_content(const json_t *messages)
{
    size_t num = json_array_size(messages);
    json_t *content = json_object_get(json_array_get(messages, num - 1), "content");

    num = json_array_size(content);
    return num ? json_object_get(json_array_get(content, num - 1), "text") : content;
}

static bool ends_with_answer(const json_t *messages)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));

    return role && strcmp(role, "assistant") == 0;
}

/* What no rule can judge is left out; the first is named. */
static bool can_judge(cr_prompt_maker *m, const cr_row *row)
{
    for (size_t k = 0; k < row->num_rewards; k++) {
        const char *rule = m->config->rewards[row->rewards[k]].rule;
        cr_err why = {0};
        if (!rule || cr_rule_can_judge(rule, row->json, &why) == CR_OK) continue;
        if (m->num_unread++ == 0)
            snprintf(m->first_unread, sizeof m->first_unread, "row %d: %.250s", row->line, why.msg);
        return false;
    }
    return true;
}

/* As ROLL: too short or too long is dropped, never cut. What is kept has its images. */
static cr_status settle_prompt(cr_prompt_maker *m, const json_t *messages, const char *column,
                               cr_row *row, cr_err *err)
{
    CR_TRY(cri_prompt_end_images(m, err));
    CR_TRY(cri_prompt_insert_image(m, row, err));
    row->num_prompt = row->num_ids;
    if (row->num_ids > 5 && (int64_t)row->num_ids <= m->prompt_length)
        return cri_row_images_keep(&m->images, messages, column, row, err);
    *(row->num_ids <= 5 ? &m->num_short : &m->num_long) += 1;
    cr_free(row->ids);
    row->ids = NULL;
    return CR_OK;
}

bool cri_prompt_are_too_long(cr_prompt_maker *m, int64_t max_tokens, size_t *count)
{
    bool is = cri_row_images_tokens(&m->images) > max_tokens;

    *count += is;
    return is;
}

/* Ready text; <image> in it is a place for an image, as in a message. */
static cr_status encode_ready_prompt(cr_prompt_maker *m, cr_row *row, cr_err *err)
{
    const char *column = m->from->data.prompt;
    json_t *prompt = json_object_get(row->json, column), *messages;
    const json_t *text;
    bool is_dropped;

    CR_TRY(cri_prompt_check_text(prompt, column, " (data_args.prompt)", err));
    messages = json_pack("[{s:s,s:O}]", "role", "user", "content", prompt);
    if (cri_prompt_read_images(m, row, messages, &is_dropped, err) == CR_OK && !is_dropped &&
        !cri_prompt_are_too_long(m, m->prompt_length, &m->num_long)) {
        text = json_object_get(json_array_get(m->images.items.messages, 0), "content");
        row->asked = json_incref(prompt);
        if (cri_prompt_encode(m, json_string_value(text), json_string_length(text),
                              /*add_special=*/true, row, err) == CR_OK)
            cr_note(settle_prompt(m, NULL, NULL, row, err));
    }
    json_decref(messages);
    return err->status;
}

static cr_status encode_prompt(cr_prompt_maker *m, cr_row *row, cr_err *err)
{
    const char *column = m->from->data.messages;
    json_t *messages;
    cr_buf text = {0};
    bool is_dropped;

    CR_TRY(cri_messages_read(json_object_get(row->json, column), column, &messages, err));
    if (cri_prompt_read_images(m, row, messages, &is_dropped, err) == CR_OK && !is_dropped &&
        !cri_prompt_are_too_long(m, m->prompt_length, &m->num_long)) {
        row->asked = json_incref(last_content(messages));
        m->num_answered += ends_with_answer(messages);
        if (cr_chat_render(m->chat, template_of_row(m, row), m->images.items.messages,
                           /*add_generation_prompt=*/true, &text, err) == CR_OK &&
            cri_prompt_encode(m, text.data, text.num_bytes, /*add_special=*/false, row, err) ==
                CR_OK)
            cr_note(settle_prompt(m, messages, column, row, err));
    }
    json_decref(messages);
    cr_buf_free(&text);
    return err->status;
}

cr_status cr_prompt_encode_rlvr(void *ctx, cr_row *row, cr_err *err)
{
    cr_prompt_maker *m = ctx;
    const cr_worker_config *w = m->from;

    CR_TRY(cr_columns_make(&w->data, row, err));
    CR_TRY(cr_columns_add_tag(m->config, &w->data, row, err));
    CR_TRY(find_domain(m, row, err));
    if (row->domain < 0) {
        m->num_unknown++;
        return CR_OK;
    }
    for (size_t k = 0; k < row->num_rewards; k++) {
        const char *rule = m->config->rewards[row->rewards[k]].rule;
        if (rule) CR_TRY(cr_rule_check_row(rule, row->json, err));
    }
    if (!can_judge(m, row)) return CR_OK;
    if (m->config->algorithm.difficulty_loss_weight && w == &m->config->train)
        CR_TRY(read_difficulty(row, err));
    return w->data.prompt ? encode_ready_prompt(m, row, err) : encode_prompt(m, row, err);
}

/* ---- SFT: prompt and answer columns ---- */

void cri_prompt_add_message(json_t *list, const char *role, const json_t *content)
{
    json_array_append_new(list, json_pack("{s:s,s:O}", "role", role, "content", content));
}

/* Less one newline at the end, as ROLL, unless it ends in a prompt. */
static cr_status render(cr_prompt_maker *m, const json_t *messages, const json_t *vars,
                        bool is_prompt, cr_buf *text, cr_err *err)
{
    cr_buf_clear(text);
    CR_TRY(
        cr_chat_render_with(m->chat, cri_prompt_template(m), messages, vars, is_prompt, text, err));
    if (!is_prompt && text->num_bytes && text->data[text->num_bytes - 1] == '\n')
        text->data[--text->num_bytes] = 0;
    return CR_OK;
}

static void add_text(cr_buf *text, const json_t *value)
{
    cr_buf_add(text, json_string_value(value), json_string_length(value));
}

/* In question_template, with the row's images in front if it has no places for them; a new reference. */
static json_t *put_question(const char *template, const cr_row *row, const cr_buf *question)
{
    const char *at = strstr(template, CR_QUESTION);
    size_t num = cri_row_images_column(row->json);
    cr_buf text = {0};
    json_t *out;

    if (memmem(question->data, question->num_bytes, CR_IMAGE_TAG, sizeof CR_IMAGE_TAG - 1)) num = 0;
    while (num--)
        cr_buf_adds(&text, CR_IMAGE_TAG);
    cr_buf_add(&text, template, (size_t)(at - template));
    cr_buf_add(&text, question->data, question->num_bytes);
    cr_buf_adds(&text, at + strlen(CR_QUESTION));
    out = json_stringn(text.data, text.num_bytes);
    cr_buf_free(&text);
    return out;
}

json_t *cri_prompt_messages(const cr_config *c, const cr_row *row, json_t *prompt)
{
    json_t *query = c->rows.query_key ? json_object_get(row->json, c->rows.query_key) : NULL,
           *system = c->rows.system_key ? json_object_get(row->json, c->rows.system_key) : NULL,
           *messages = json_array(), *question;
    cr_buf text = {0};

    if (json_is_string(system)) cri_prompt_add_message(messages, "system", system);
    cr_buf_reserve(&text, 1);
    add_text(&text, prompt);
    if (json_is_string(query) && json_string_length(query)) {
        cr_buf_addc(&text, '\n');
        add_text(&text, query);
    }
    question = c->rows.question_template ? put_question(c->rows.question_template, row, &text)
                                         : json_stringn(text.data, text.num_bytes);
    cri_prompt_add_message(messages, "user", question);
    json_decref(question);
    cr_buf_free(&text);
    return messages;
}

static cr_status encode_columns(cr_prompt_maker *m, cr_row *row, bool *is_dropped, cr_err *err)
{
    const cr_config *c = m->config;
    json_t *prompt = json_object_get(row->json, c->rows.prompt_key),
           *answer = json_object_get(row->json, c->rows.response_key), *messages, *asked = NULL;
    cr_row begin = {0};
    cr_buf text = {0};

    CR_TRY(cri_prompt_check_text(prompt, c->rows.prompt_key, " (prompt_key)", err));
    CR_TRY(cri_prompt_check_text(answer, c->rows.response_key, " (response_key)", err));
    messages = cri_prompt_messages(c, row, prompt);
    cri_prompt_add_message(messages, "assistant", answer);
    if (cri_prompt_read_images(m, row, messages, is_dropped, err) == CR_OK && !*is_dropped &&
        !cri_prompt_are_too_long(m, c->sequence_length, &m->num_cut_images)) {
        asked = json_copy(m->images.items.messages);
        json_array_remove(asked, json_array_size(asked) - 1);
        if (render(m, asked, NULL, true, &text, err) == CR_OK &&
            cri_prompt_encode(m, text.data, text.num_bytes, true, &begin, err) == CR_OK &&
            render(m, m->images.items.messages, NULL, false, &text, err) == CR_OK) {
            m->images.next = 0;
            cr_note(cri_prompt_encode(m, text.data, text.num_bytes, true, row, err));
        }
    }
    row->num_prompt = begin.num_ids;
    cr_free(begin.ids);
    json_decref(asked);
    json_decref(messages);
    cr_buf_free(&text);
    return err->status;
}

/* ---- SFT: messages of any number of turns ---- */

/* Where the text of a whole chat goes on after a turn of the assistant: from its generation prompt, which
 * must be a beginning of the chat, to the end-of-turn text, which is what stands after the turn when it is
 * the last. Templates may write other parts of a turn differently inside a chat and at its end (Qwen3 shows
 * no reasoning of earlier turns): what is learnt is the text of the whole chat. */
typedef struct chat_row {
    cr_prompt_maker *m;
    json_t *messages, *vars;
    cr_buf whole, part; /* the chat, and what was rendered last */
    size_t done;        /* bytes of whole that are encoded */
    cr_row *row;
} chat_row;

static cr_status render_first(chat_row *c, size_t num, bool is_prompt, cr_err *err)
{
    json_t *first = json_array();
    cr_status status;

    for (size_t i = 0; i < num; i++)
        json_array_append(first, json_array_get(c->messages, i));
    status = render(c->m, first, c->vars, is_prompt, &c->part, err);
    json_decref(first);
    return status;
}

/* Encode whole[done .. end-1] after what is there. */
static cr_status add_span(chat_row *c, size_t end, bool is_learnt, cr_err *err)
{
    cr_row *row = c->row, span = {0};
    size_t old = row->num_ids;

    CR_TRY(cri_prompt_encode(c->m, c->whole.data + c->done, end - c->done,
                             /*add_special=*/c->done == 0, &span, err));
    row->ids = cr_realloc(row->ids, old * 4, (old + span.num_ids) * 4);
    row->learns = cr_realloc(row->learns, old, old + span.num_ids);
    memcpy(row->ids + old, span.ids, span.num_ids * 4);
    memset(row->learns + old, is_learnt, span.num_ids);
    row->num_ids += span.num_ids;
    if (is_learnt && row->num_prompt == 0) row->num_prompt = old;
    c->done = end;
    cr_free(span.ids);
    return CR_OK;
}

/* Where text holds `find` for the last time; NULL: nowhere. */
static const char *find_last(const char *text, const char *find)
{
    const char *last = NULL;

    for (const char *at = text; *find && (at = strstr(at, find)); at++)
        last = at;
    return last;
}

/* End of turn i, which begins at `start`, in the whole chat; c->part is the chat up to it. 0: unknown. */
static size_t turn_end(const chat_row *c, size_t start, size_t i)
{
    const char *content =
        json_string_value(json_object_get(json_array_get(c->messages, i), "content"));
    const char *at = c->whole.data + start, *closing;
    char *trimmed;
    size_t n;

    if (c->part.num_bytes > start && c->part.num_bytes <= c->whole.num_bytes &&
        memcmp(c->part.data, c->whole.data, c->part.num_bytes) == 0)
        return c->part.num_bytes;
    if (!content) return 0;
    content += strspn(content, " \t\r\n");
    for (n = strlen(content); n && strchr(" \t\r\n", content[n - 1]); n--)
        continue;
    trimmed = cr_strndup(content, n);
    closing = find_last(c->part.data, trimmed);
    cr_free(trimmed);
    if (!closing || !closing[n]) return 0;
    closing += n;
    at = strstr(at, closing);
    return at ? (size_t)(at - c->whole.data) + strlen(closing) : 0;
}

static cr_status add_turn(chat_row *c, size_t i, cr_err *err)
{
    size_t start, end;

    CR_TRY(render_first(c, i, true, err));
    start = c->part.num_bytes;
    if (start < c->done || start > c->whole.num_bytes ||
        memcmp(c->part.data, c->whole.data, start) != 0)
        return cr_fail(err, CR_EFORMAT,
                       "message %zu: the chat template's generation prompt is no beginning of the "
                       "chat, so where this turn begins is unknown (another template, or one turn "
                       "a row)",
                       i + 1);
    CR_TRY(add_span(c, start, false, err));
    CR_TRY(render_first(c, i + 1, false, err));
    end = turn_end(c, start, i);
    if (end < start || end == 0)
        return cr_fail(err, CR_EFORMAT,
                       "message %zu: the chat template writes this turn differently inside the "
                       "chat, so where it ends is unknown (another template, or one turn a row)",
                       i + 1);
    return add_span(c, end, true, err);
}

/* Each image has its placeholder in the whole chat. */
static cr_status check_places(const chat_row *c, cr_err *err)
{
    const cr_row_images *images = &c->m->images;
    cr_buf with = {0};

    if (images->reader)
        cr_note(cr_image_items_expand(&images->items, c->whole.data ? c->whole.data : "",
                                      c->whole.num_bytes, &with, err));
    cr_buf_free(&with);
    return err->status;
}

/* All turns of the assistant, and what stands before them. */
static cr_status add_turns(chat_row *c, const char *column, cr_err *err)
{
    json_t *message;
    size_t i, num_turns = 0;

    CR_TRY(render(c->m, c->messages, c->vars, false, &c->whole, err));
    if (memchr(c->whole.data ? c->whole.data : "", 0, c->whole.num_bytes))
        return cr_fail(err, CR_EFORMAT, "the column %s holds a NUL", column);
    CR_TRY(check_places(c, err));
    json_array_foreach(c->messages, i, message)
    {
        const char *role = json_string_value(json_object_get(message, "role"));
        if (!role || strcmp(role, "assistant") != 0) continue;
        CR_TRY(add_turn(c, i, err));
        num_turns++;
    }
    if (num_turns) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "the column %s has no message of the role assistant", column);
}

static cr_status encode_turns(cr_prompt_maker *m, cr_row *row, bool *is_dropped, json_t **messages,
                              cr_err *err)
{
    const char *column = m->from->data.messages;
    const json_t *tools = json_object_get(row->json, "tools");
    chat_row c = {.m = m, .row = row};

    CR_TRY(cri_messages_read(json_object_get(row->json, column), column, messages, err));
    if (json_is_array(tools)) c.vars = json_pack("{s:O}", "tools", tools);
    if (cri_prompt_read_images(m, row, *messages, is_dropped, err) == CR_OK && !*is_dropped &&
        !cri_prompt_are_too_long(m, m->config->sequence_length, &m->num_cut_images)) {
        c.messages = m->images.items.messages;
        cr_note(add_turns(&c, column, err));
    }
    json_decref(c.vars);
    cr_buf_free(&c.whole);
    cr_buf_free(&c.part);
    return err->status;
}

/* Ids that stand for a part of an image, or of a video. */
typedef struct placeholders {
    int32_t image, video;
} placeholders;

static placeholders find_placeholders(const cr_prompt_maker *m)
{
    const cr_image_items *items = &m->images.items;

    if (items->is_inserted) return (placeholders){items->placeholder, items->placeholder};
    return (placeholders){cr_tokenizer_find(m->tokenizer, CR_IMAGE_PLACEHOLDER),
                          cr_tokenizer_find(m->tokenizer, CR_VIDEO_PLACEHOLDER)};
}

bool cri_prompt_has_all_places(const cr_prompt_maker *m, const cr_row *row)
{
    const placeholders pads = find_placeholders(m);
    int64_t num = 0;

    for (size_t i = 0; i < m->images.next && i < m->images.items.num; i++)
        num += m->images.items.item[i].num_tokens;
    for (size_t i = 0; i < row->num_ids; i++)
        num -= row->ids[i] == pads.image || row->ids[i] == pads.video;
    return num == 0;
}

/* distill_on_prompt: all but the first, which nothing comes before, and places of images, which are no text. */
static void learn_all(const cr_prompt_maker *m, cr_row *row)
{
    const placeholders pads = find_placeholders(m);

    cr_free(row->learns);
    row->learns = NULL;
    row->num_prompt = row->num_ids != 0;
    if (!m->images.items.num) return;
    row->learns = CR_NEW_ARRAY(uint8_t, row->num_ids);
    for (size_t t = row->num_prompt; t < row->num_ids; t++)
        row->learns[t] = row->ids[t] != pads.image && row->ids[t] != pads.video;
}

/* Cut at sequence_length, but not in images. */
static cr_status settle_answers(cr_prompt_maker *m, const json_t *messages, cr_row *row,
                                cr_err *err)
{
    int64_t max = m->config->sequence_length;
    bool is_long = (int64_t)row->num_ids > max;

    if (is_long) row->num_ids = (size_t)max;
    if (is_long && m->images.items.num && !cri_prompt_has_all_places(m, row)) {
        m->num_cut_images++;
        cr_free(row->ids);
        row->ids = NULL;
        return CR_OK;
    }
    m->num_cut += is_long;
    if (row->num_prompt > row->num_ids) row->num_prompt = row->num_ids;
    if (m->config->distill.distill_on_prompt) learn_all(m, row);
    row->domain = 0;
    return cri_row_images_keep(&m->images, messages, m->from->data.messages, row, err);
}

cr_status cr_prompt_encode_sft(void *ctx, cr_row *row, cr_err *err)
{
    cr_prompt_maker *m = ctx;
    json_t *messages = NULL;
    bool is_dropped = false;

    CR_TRY(cr_columns_make(&m->from->data, row, err));
    cr_note(m->from->data.messages ? encode_turns(m, row, &is_dropped, &messages, err)
                                   : encode_columns(m, row, &is_dropped, err));
    if (err->status == CR_OK && row->ids) cr_note(cri_prompt_insert_image(m, row, err));
    if (err->status == CR_OK && row->ids) cr_note(settle_answers(m, messages, row, err));
    json_decref(messages);
    return err->status;
}

/* ---- files ---- */

typedef struct file_maker {
    cr_prompt_maker *maker;
    cr_row_encode encode;
} file_maker;

static cr_status encode_row(void *ctx, cr_row *row, cr_err *err)
{
    const file_maker *f = ctx;

    return f->encode(f->maker, row, err);
}

/* Copies of rows are encoded as far as their images are known, which are then decoded; what is wrong is said when the rows are. */
static void look_at_rows(void *ctx, const cr_row *rows, size_t num)
{
    const file_maker *f = ctx;
    cr_prompt_maker *m = f->maker;
    const cr_prompt_maker counts = *m;
    cr_row_images images;

    m->images.is_looking = true;
    for (size_t i = 0; i < num; i++) {
        cr_row row = {.line = rows[i].line, .domain = -1, .json = json_copy(rows[i].json)};
        cr_err ignored = {0};
        if (json_is_object(row.json)) cr_note(f->encode(m, &row, &ignored));
        cr_row_free(&row);
    }
    if (m->images.reader) cr_image_reader_look(m->images.reader);
    images = m->images;
    images.is_looking = false;
    *m = counts;
    m->images = images;
}

cr_status cr_prompt_load(cr_prompt_maker *m, cr_row_encode encode_one, cr_dataset *data,
                         const char *path, cr_err *err)
{
    file_maker f = {m, encode_one};
    const char *folder = m->config->train.model_path;
    const bool has_images = folder && cr_image_processor_exists(folder);

    return cr_dataset_load(data, path,
                           &(cr_row_coder){encode_row, has_images ? look_at_rows : NULL, &f}, err);
}

static const char *plural(size_t num)
{
    return num == 1 ? "" : "s";
}

void cr_prompt_maker_close(cr_prompt_maker *m)
{
    cr_row_images_close(&m->images);
}

void cr_prompt_report(const cr_prompt_maker *m, const char *what)
{
    if (m->num_answered)
        cr_log(
            CR_LOG_WARN, "data",
            "%s: of %zu chat%s the last turn is the assistant's, which the model is shown as part "
            "of the prompt",
            what, m->num_answered, plural(m->num_answered));
    if (m->num_short)
        cr_log(CR_LOG_INFO, "data", "%s: %zu row%s left out: prompts of less than 6 tokens", what,
               m->num_short, plural(m->num_short));
    if (m->num_long)
        cr_log(CR_LOG_INFO, "data", "%s: %zu row%s left out: prompts of more than %lld tokens",
               what, m->num_long, plural(m->num_long), (long long)m->prompt_length);
    if (m->images.num_broken)
        cr_log(CR_LOG_WARN, "data", "%s: %zu row%s left out for their images; the first is %s",
               what, m->images.num_broken, plural(m->images.num_broken), m->images.first_broken);
    if (m->num_cut_images)
        cr_log(CR_LOG_INFO, "data",
               "%s: %zu row%s left out: sequence_length %lld would cut their images", what,
               m->num_cut_images, plural(m->num_cut_images), (long long)m->config->sequence_length);
    if (m->num_unread)
        cr_log(CR_LOG_WARN, "data",
               "%s: %zu row%s left out: no sample could have a verdict; the first is %s", what,
               m->num_unread, plural(m->num_unread), m->first_unread);
    if (m->num_unknown)
        cr_log(CR_LOG_INFO, "data", "%s: %zu row%s left out: no block of rewards is for them", what,
               m->num_unknown, plural(m->num_unknown));
    if (m->num_long_pairs)
        cr_log(CR_LOG_INFO, "data", "%s: %zu pair%s left out: longer than sequence_length %lld",
               what, m->num_long_pairs, plural(m->num_long_pairs),
               (long long)m->config->sequence_length);
    if (m->num_same_pairs)
        cr_log(CR_LOG_WARN, "data",
               "%s: of %zu pair%s both answers are the same tokens, so that nothing is preferred",
               what, m->num_same_pairs, plural(m->num_same_pairs));
    if (m->num_merged)
        cr_log(CR_LOG_WARN, "data",
               "%s: of %zu pair%s the prompt's ids are no beginning of the chats' (the template "
               "writes it otherwise when it stands alone, or a token goes over its end): their "
               "answers begin where the ids part",
               what, m->num_merged, plural(m->num_merged));
    if (m->num_cut)
        cr_log(CR_LOG_INFO, "data", "%s: %zu row%s cut at sequence_length %lld", what, m->num_cut,
               plural(m->num_cut), (long long)m->config->sequence_length);
}
