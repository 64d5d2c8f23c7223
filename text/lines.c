/* lines.c -- JSONL requests in, answers out (see lines.h). */
#include "text/lines.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

void cr_lines_init(cr_lines *lines, FILE *in, FILE *out)
{
    *lines = (cr_lines){.in = fileno(in), .out = out, .names = json_object()};
}

void cr_lines_fini(cr_lines *lines)
{
    json_decref(lines->names);
    cr_buf_free(&lines->text);
    *lines = (cr_lines){0};
}

void cr_line_free(cr_line *line)
{
    cr_free(line->id);
    cr_free(line->name);
    cr_free(line->ids);
    cr_free(line->labels);
    cr_free(line->error);
    json_decref(line->json);
    *line = (cr_line){0};
}

void cr_line_fail(cr_line *line, const char *sentence)
{
    if (!line->error) line->error = cr_asprintf("line %lld: %s", (long long)line->number, sentence);
}

/* ---- checks of one line ---- */

/* A list of ids of the vocabulary; labels know -100 as well. */
static cr_status read_ids(const json_t *list, const char *key, const cr_line_rules *rules,
                          bool is_labels, int32_t **out, size_t *num, cr_err *err)
{
    const json_t *entry;
    size_t at;

    if (!json_is_array(list))
        return cr_fail(err, CR_EFORMAT, "%s must be a list of token ids", key);
    *num = json_array_size(list);
    *out = CR_NEW_ARRAY(int32_t, *num);
    json_array_foreach(list, at, entry)
    {
        json_int_t id = json_integer_value(entry);
        if (!json_is_integer(entry))
            return cr_fail(err, CR_EFORMAT, "%s[%zu] is not a whole number", key, at);
        if (is_labels && id == -100)
            id = -1;
        else if (id < 0 || id >= rules->vocab_size)
            return cr_fail(err, CR_EFORMAT, "%s[%zu] is %lld, outside the vocabulary of %lld ids",
                           key, at, (long long)id, (long long)rules->vocab_size);
        (*out)[at] = (int32_t)id;
    }
    return CR_OK;
}

static cr_status read_input(cr_line *line, const cr_line_rules *rules, cr_err *err)
{
    const char *key = rules->text_key ? rules->text_key : "prompt";
    const json_t *ids = json_object_get(line->json, "input_ids");
    const json_t *prompt = json_object_get(line->json, key);
    const json_t *messages = json_object_get(line->json, "messages");

    if (rules->refuses_ids) ids = NULL;
    if ((ids != NULL) + (prompt != NULL) + (messages != NULL) != 1)
        return cr_fail(err, CR_EFORMAT, "the line must have one of %s%s and messages",
                       rules->refuses_ids ? "" : "input_ids, ", key);
    if (ids) {
        CR_TRY(read_ids(ids, "input_ids", rules, false, &line->ids, &line->num_ids, err));
    } else if (!rules->encode) {
        return cr_fail(err, CR_EABSENT, "%s is not available yet here, input_ids is",
                       prompt ? key : "messages");
    } else {
        if (prompt && !json_is_string(prompt))
            return cr_fail(err, CR_EFORMAT, "%s must be text", key);
        if (messages && !json_is_array(messages))
            return cr_fail(err, CR_EFORMAT, "messages must be a list");
        CR_TRY(rules->encode(rules->ctx, prompt ? prompt : messages, messages != NULL, &line->ids,
                             &line->num_ids, err));
    }
    for (size_t i = 0; i < line->num_ids; i++)
        if (rules->vocab_size && line->ids[i] >= rules->vocab_size)
            return cr_fail(err, CR_EFORMAT,
                           "token %zu has id %d: the tokenizer knows more than the %lld ids of the "
                           "model",
                           i, line->ids[i], (long long)rules->vocab_size);
    if (line->num_ids == 0 && !rules->may_be_empty)
        return cr_fail(err, CR_EFORMAT, "the line has no tokens");
    if (rules->max_tokens && (int64_t)line->num_ids > rules->max_tokens)
        return cr_fail(err, CR_EFORMAT, "the line has %zu tokens, at most %lld are possible",
                       line->num_ids, (long long)rules->max_tokens);
    return CR_OK;
}

static cr_status read_labels(cr_line *line, const cr_line_rules *rules, cr_err *err)
{
    const json_t *labels = json_object_get(line->json, "labels");
    size_t num;

    if (!rules->has_labels || !labels || json_is_null(labels)) return CR_OK;
    CR_TRY(read_ids(labels, "labels", rules, true, &line->labels, &num, err));
    if (num != line->num_ids)
        return cr_fail(err, CR_EFORMAT, "there are %zu labels for %zu tokens", num, line->num_ids);
    return CR_OK;
}

static cr_status read_id(cr_lines *lines, cr_line *line, const cr_line_rules *rules, cr_err *err)
{
    const json_t *id = json_object_get(line->json, "id");
    cr_buf text = {0};
    cr_err ignored = {0};

    if (id && cr_json_add_value(&text, id, &ignored) == CR_OK) {
        cr_free(line->id);
        line->id = cr_strdup(text.data);
        if (json_is_string(id) && strlen(json_string_value(id)) == json_string_length(id))
            line->name = cr_strdup(json_string_value(id));
        else if (json_is_integer(id))
            line->name = cr_strdup(text.data);
    }
    cr_buf_free(&text);
    if (!rules->needs_name) return CR_OK;
    if (!line->name)
        return cr_fail(err, CR_EFORMAT,
                       "id must be text or a whole number here: it names a tensor");
    if (json_object_get(lines->names, line->name))
        return cr_fail(err, CR_EFORMAT, "id %s was used by an earlier line", line->id);
    json_object_set_new(lines->names, line->name, json_true());
    return CR_OK;
}

static cr_status read_line(cr_lines *lines, const cr_line_rules *rules, const char *text,
                           size_t num_bytes, cr_line *line, cr_err *err)
{
    CR_TRY(cr_json_parse(text, num_bytes, NULL, &line->json, err));
    if (!json_is_object(line->json)) return cr_fail(err, CR_EFORMAT, "must be a JSON object");
    CR_TRY(read_id(lines, line, rules, err));
    CR_TRY(read_input(line, rules, err));
    return read_labels(line, rules, err);
}

bool cr_lines_text(cr_lines *lines, char **text, size_t *num_bytes)
{
    enum { BLOCK = 1 << 16 };
    size_t seen = lines->next; /* the line does not end before this */

    for (;;) {
        char *data = lines->text.data, *end = NULL;
        size_t num = lines->text.num_bytes;
        ssize_t got;
        if (num > seen) end = memchr(data + seen, '\n', num - seen);
        if (end || num - lines->next > (lines->has_ended ? 0 : CR_LONGEST_LINE)) {
            *text = data + lines->next;
            *num_bytes = end ? (size_t)(end - *text) + 1 : num - lines->next;
            lines->next += *num_bytes;
            lines->number++;
            if (*num_bytes > CR_LONGEST_LINE) {
                lines->has_ended = true;
                lines->text.num_bytes = lines->next;
            }
            return true;
        }
        if (lines->has_ended) return false;
        if (lines->next) {
            memmove(data, data + lines->next, num - lines->next + 1);
            lines->text.num_bytes = num -= lines->next;
            lines->next = 0;
        }
        seen = num;
        cr_buf_reserve(&lines->text, num + BLOCK);
        do
            got = read(lines->in, lines->text.data + num, BLOCK);
        while (got < 0 && errno == EINTR);
        if (got < 0) cr_log(CR_LOG_ERROR, "lines", "stdin cannot be read: %s", strerror(errno));
        if (got < 0) lines->has_failed = true;
        if (got <= 0) lines->has_ended = true;
        if (got > 0) lines->text.num_bytes += (size_t)got;
        lines->text.data[lines->text.num_bytes] = 0;
    }
}

bool cr_lines_is_ready(const cr_lines *lines)
{
    struct pollfd in = {.fd = lines->in, .events = POLLIN};
    size_t rest = lines->text.num_bytes - lines->next;

    if (lines->has_ended || (rest && memchr(lines->text.data + lines->next, '\n', rest)))
        return true;
    return poll(&in, 1, 0) > 0;
}

bool cr_lines_next(cr_lines *lines, const cr_line_rules *rules, cr_line *line)
{
    char *text;
    size_t num;

    *line = (cr_line){0};
    while (cr_lines_text(lines, &text, &num)) {
        cr_err err = {0};
        size_t blank = 0;
        while (blank < num && strchr(" \t\r\n", text[blank]) && text[blank])
            blank++;
        if (blank == num) continue;
        line->number = lines->number;
        line->id = cr_strdup("null");
        if (num > CR_LONGEST_LINE)
            cr_line_fail(line, "it has more than 64 MiB; what follows is not read");
        else if (read_line(lines, rules, text, num, line, &err) != CR_OK)
            cr_line_fail(line, err.msg);
        return true;
    }
    return false;
}

/* ---- answers ---- */

cr_status cr_lines_write(cr_lines *lines, const cr_buf *text, cr_err *err)
{
    if ((text->num_bytes &&
         fwrite(text->data, 1, text->num_bytes, lines->out) != text->num_bytes) ||
        fputc('\n', lines->out) == EOF || fflush(lines->out) != 0) {
        lines->is_closed = true;
        return cr_fail(err, CR_EIO,
                       "the answers cannot be written to stdout: its disk is full, or its reader "
                       "has closed it");
    }
    return CR_OK;
}

cr_status cr_lines_write_error(cr_lines *lines, const cr_line *line, cr_err *err)
{
    cr_buf text = {0};
    cr_status status;

    cr_buf_addf(&text, "{\"id\":%s,\"error\":", line->id);
    cr_json_add_string(&text, line->error, strlen(line->error));
    cr_buf_addc(&text, '}');
    status = cr_lines_write(lines, &text, err);
    cr_buf_free(&text);
    lines->has_failed = true;
    return status;
}
