/* recorded.c -- see recorded.h. */
#include "scorers/compare/recorded.h"
#include "samples/fields.h"
#include "samples/id.h"
#include "samples/protocol.h"
#include "scorers/reward_program.h"

#include <stdlib.h>
#include <string.h>

bool cr_recorded_is_of(const cr_recorded *r, const char *domain)
{
    return strcmp(r->domain, domain) == 0 ||
           json_object_get(json_object_get(r->root, "rewards"), domain);
}

cr_status cr_recorded_read(const char *line, size_t num_bytes, const char *reward, cr_recorded *out,
                           cr_err *err)
{
    const json_t *of_reward, *group;

    *out = (cr_recorded){.group = -1};
    CR_TRY(cr_json_parse_integers(line, num_bytes, NULL, CR_JSON_EXACT, &out->root, err));
    out->id = json_string_value(json_object_get(out->root, "id"));
    out->domain = json_string_value(json_object_get(out->root, "domain"));
    if (!out->id || !out->domain || !json_is_string(json_object_get(out->root, "response")) ||
        !json_is_array(json_object_get(out->root, "ids")))
        return cr_fail(err, CR_EFORMAT,
                       "not a sample of rollouts/: it needs the texts id, domain and response, and "
                       "the list ids");
    if (!*out->id || strlen(out->id) != json_string_length(json_object_get(out->root, "id")))
        return cr_fail(err, CR_EFORMAT, "the id is empty or has a NUL");
    out->num_ids = json_array_size(json_object_get(out->root, "ids"));
    out->row = json_object_get(out->root, "row");
    if (!json_is_object(out->row)) out->row = NULL;
    group = json_object_get(out->root, "group");
    if (json_is_integer(group)) out->group = json_integer_value(group);
    of_reward = json_object_get(json_object_get(out->root, "rewards"), reward);
    cr_verdict_read(json_is_object(of_reward) ? of_reward : out->root, out->num_ids, &out->verdict);
    if (out->verdict.is_fault)
        return cr_fail(err, CR_EFORMAT, "it has no verdict%s", strchr(out->verdict.detail, ':'));
    return CR_OK;
}

void cr_recorded_free(cr_recorded *r)
{
    cr_verdict_free(&r->verdict);
    json_decref(r->root);
    *r = (cr_recorded){.group = -1};
}

typedef struct tokens {
    cr_field_array ids, prompt_ids;
} tokens;

static const cr_field fields[] = {
    {CR_FIELD_IDS, CR_TYPE_INT32S, offsetof(tokens, ids), .is_optional = true},
    {"prompt_ids", CR_TYPE_INT32S, offsetof(tokens, prompt_ids), .is_optional = true}};
static const cr_message message = {.fields = fields, .num_fields = CR_COUNT(fields)};

/* Columns that every sample has. */
static json_t *short_row(const json_t *root)
{
    static const char *const names[] = {"prompt", "ground_truth", "tag"};
    json_t *row = json_object();

    for (size_t i = 0; i < CR_COUNT(names); i++) {
        json_t *value = json_object_get(root, names[i]);
        if (value && !json_is_null(value)) json_object_set(row, names[i], value);
    }
    return row;
}

cr_status cr_recorded_write(const cr_recorded *r, const json_t *row, cr_buf *out, cr_err *err)
{
    const json_t *response = json_object_get(r->root, "response");
    const char *finish = json_string_value(json_object_get(r->root, "finish"));
    cr_sample_id id = cr_sample_id_read(r->id);
    cr_arena *memory = cr_arena_create(1 << 12);
    tokens of;
    json_t *made = row ? NULL : short_row(r->root);
    cr_reward_line line = {.id = r->id,
                           .response = json_string_value(response),
                           .response_bytes = json_string_length(response),
                           .finish = finish ? finish : "stop",
                           .step = id.step,
                           .is_validation = id.is_validation};
    cr_buf text = {0};

    if (cr_json_add_value(&text, row ? row : made, err) == CR_OK &&
        cr_message_read_json(&message, r->root, memory, &of, err) == CR_OK) {
        line.row = text.data;
        line.row_bytes = text.num_bytes;
        line.ids = of.ids.data;
        line.num_ids = of.ids.num;
        line.prompt_ids = of.prompt_ids.data;
        line.num_prompt_ids = of.prompt_ids.num;
        cr_note(cr_reward_line_write(&line, out, err));
    }
    json_decref(made);
    cr_buf_free(&text);
    cr_arena_destroy(memory);
    return err->status;
}
