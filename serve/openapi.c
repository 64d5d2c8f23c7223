/* openapi.c -- the description of the service, made of the tables of fields (see answer.h). */
#include "serve/answer.h"
#include "serve/fields.h"

#include <math.h>
#include <string.h>

static void add_text(cr_buf *out, const char *text)
{
    cr_json_add_string(out, text, strlen(text));
}

/* {"type":[NAME,"null"] : the brace stays open for more. */
static void add_type(cr_buf *out, const char *name)
{
    cr_buf_addf(out, "{\"type\":[\"%s\",\"null\"]", name);
}

static void add_range(cr_buf *out, const cri_field *f)
{
    if (fabs(f->min) < 9e15) cr_buf_addf(out, ",\"minimum\":%.17g", f->min);
    if (fabs(f->max) < 9e15) cr_buf_addf(out, ",\"maximum\":%.17g", f->max);
}

#define ID    "{\"type\":\"integer\",\"minimum\":0,\"maximum\":2147483647}"
#define SOME  "{\"type\":\"array\",\"minItems\":1,\"items\":"
#define LISTS SOME ID "}," SOME "{\"type\":\"array\",\"items\":" ID "}}" /* one, or several */
static const char TEXTS[] = "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}",
                  MESSAGE[] = "{\"type\":\"object\",\"required\":[\"role\"],\"properties\":{"
                              "\"role\":{\"enum\":[\"system\",\"developer\",\"user\","
                              "\"assistant\",\"tool\"]},"
                              "\"content\":{\"anyOf\":[{\"type\":[\"string\",\"null\"]},"
                              "{\"type\":\"array\",\"items\":{\"type\":\"object\","
                              "\"required\":[\"type\",\"text\"],\"properties\":{\"type\":"
                              "{\"const\":\"text\"},\"text\":{\"type\":\"string\"}}}}]}}}";

static void add_groups(cr_buf *out, const cri_field_group *const *groups, bool is_body);

static void add_built(cr_buf *out, const cri_field *f)
{
    switch (f->type) {
    case CRI_FLAG:
        add_type(out, "boolean");
        break;
    case CRI_INTEGER:
    case CRI_NUMBER:
        add_type(out, f->type == CRI_INTEGER ? "integer" : "number");
        add_range(out, f);
        break;
    case CRI_TEXT:
        add_type(out, "string");
        cr_buf_addf(out, ",\"maxLength\":%.0f", f->max);
        break;
    case CRI_TEXTS:
        cr_buf_addf(out, "{\"anyOf\":[{\"type\":[\"string\",\"null\"]},%s]", TEXTS);
        break;
    case CRI_IDS:
        cr_buf_addf(out, "{\"type\":[\"array\",\"null\"],\"minItems\":%.0f,\"items\":" ID, f->min);
        break;
    case CRI_ID_LISTS:
        cr_buf_addf(out, "{\"anyOf\":[" LISTS ",{\"type\":\"null\"}]");
        break;
    case CRI_PROMPT:
        cr_buf_addf(out, "{\"anyOf\":[{\"type\":\"string\"},%s," LISTS "]", TEXTS);
        break;
    case CRI_BIAS:
        add_type(out, "object");
        cr_buf_adds(out, ",\"additionalProperties\":{\"type\":\"number\"");
        add_range(out, f);
        cr_buf_addc(out, '}');
        break;
    case CRI_TREE:
        add_type(out, f->max > 0 ? "object" : "array");
        if (cri_is_prompt(f)) cr_buf_addf(out, ",\"items\":%s", MESSAGE);
        break;
    case CRI_CHOICE:
        cr_buf_adds(out, "{\"enum\":[null");
        for (size_t i = 0; f->choices[i]; i++)
            cr_buf_addf(out, ",\"%s\"", f->choices[i]);
        cr_buf_addc(out, ']');
        break;
    case CRI_OBJECT:
        add_groups(out, f->groups, /*is_body=*/false);
        out->num_bytes--; /* its brace stays open */
        break;
    }
}

static void add_field(cr_buf *out, const cri_field *f)
{
    add_text(out, f->name);
    cr_buf_addc(out, ':');
    if (f->state == CRI_IGNORED) {
        cr_buf_adds(out, "{\"description\":\"without effect\"}");
        return;
    }
    if (f->state == CRI_NEUTRAL) {
        cr_buf_adds(out, "{\"enum\":[null");
        for (size_t i = 0; f->choices[i]; i++)
            cr_buf_addf(out, ",%s", f->choices[i]);
        cr_buf_adds(out, "],\"description\":\"not supported: only values without effect\"}");
        return;
    }
    add_built(out, f);
    cr_buf_adds(out, ",\"description\":");
    add_text(out, f->help);
    cr_buf_addc(out, '}');
}

/* Is the field of group g hidden by an earlier group's? */
static bool is_hidden(const cri_field_group *const *groups, const cri_field *f)
{
    return cri_find_field(groups, f->name) != f;
}

/* Exactly one of a body's prompts, and not an empty one: a field of type CRI_IDS says itself how short it may be. */
static void add_prompts(cr_buf *out, const cri_field_group *const *groups)
{
    bool is_first = true;

    cr_buf_adds(out, ",\"oneOf\":[");
    for (const cri_field_group *const *g = groups; *g; g++)
        for (size_t i = 0; i < (*g)->num_fields; i++) {
            const cri_field *f = &(*g)->fields[i];
            if (!cri_is_prompt(f) || is_hidden(groups, f)) continue;
            cr_buf_addf(out,
                        "%s{\"required\":[\"%s\"],\"properties\":{\"%s\":{\"not\":"
                        "{\"enum\":[null%s]}}}}",
                        is_first ? "" : ",", f->name, f->name, f->type == CRI_IDS ? "" : ",[]");
            is_first = false;
        }
    cr_buf_addc(out, ']');
}

static void add_groups(cr_buf *out, const cri_field_group *const *groups, bool is_body)
{
    bool is_first = true;

    cr_buf_adds(out, is_body ? "{\"type\":\"object\"" : "{\"type\":[\"object\",\"null\"]");
    if (is_body) add_prompts(out, groups);
    cr_buf_adds(out, ",\"properties\":{");
    for (const cri_field_group *const *g = groups; *g; g++)
        for (size_t i = 0; i < (*g)->num_fields; i++) {
            const cri_field *f = &(*g)->fields[i];
            if (is_hidden(groups, f)) continue;
            if (!is_first) cr_buf_addc(out, ',');
            is_first = false;
            add_field(out, f);
        }
    cr_buf_adds(out, cri_is_croll(groups) ? "},\"additionalProperties\":false}" : "}}");
}

static void add_responses(cr_buf *out, const char *content, bool has_stream)
{
    cr_buf_addf(
        out,
        "\"responses\":{\"200\":{\"description\":\"the answer\",\"content\":{\"%s\":{}%s}},"
        "\"default\":{\"description\":\"an error\",\"content\":{\"application/json\":{\"schema\":"
        "{\"$ref\":\"#/components/schemas/Error\"}}}}}",
        content, has_stream ? ",\"text/event-stream\":{}" : "");
}

static void add_post(cr_buf *out, cr_serve_route route)
{
    add_text(out, cr_serve_route_path(route));
    cr_buf_adds(out, ":{\"post\":{\"summary\":");
    add_text(out, cri_route_help(route));
    cr_buf_adds(
        out, ",\"requestBody\":{\"required\":true,\"content\":{\"application/json\":{\"schema\":");
    add_groups(out, cri_route_groups(route), /*is_body=*/true);
    cr_buf_adds(out, "}}},");
    add_responses(out, "application/json", cr_serve_is_for_model(route));
    cr_buf_adds(out, "}}");
}

static void add_get(cr_buf *out, const cr_serve_get *get)
{
    add_text(out, get->path);
    cr_buf_addf(out, ":{\"%s\":{\"summary\":", get->method);
    add_text(out, get->help);
    cr_buf_addc(out, ',');
    if (strchr(get->path, '{'))
        cr_buf_adds(out, "\"parameters\":[{\"name\":\"model\",\"in\":\"path\",\"required\":true,"
                         "\"schema\":{\"type\":\"string\"}}],");
    add_responses(out, get->content, false);
    cr_buf_adds(out, "}}");
}

void cr_serve_openapi(const cr_serve_get *gets, size_t num, cr_buf *out)
{
    cr_buf_adds(out, "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"croll "
                     "serve\",\"version\":\"1\"},\"paths\":{");
    for (int route = 0; route < CR_SERVE_NUM_ROUTES; route++) {
        if (route) cr_buf_addc(out, ',');
        add_post(out, (cr_serve_route)route);
    }
    for (size_t i = 0; i < num; i++) {
        cr_buf_addc(out, ',');
        add_get(out, &gets[i]);
    }
    cr_buf_adds(
        out,
        "},\"components\":{\"schemas\":{\"Error\":{\"type\":\"object\",\"required\":[\"error\"],"
        "\"properties\":{\"error\":{\"type\":\"object\",\"required\":[\"message\",\"type\","
        "\"param\","
        "\"code\"],\"properties\":{\"message\":{\"type\":\"string\"},\"type\":{\"type\":\"string\"}"
        ","
        "\"param\":{\"type\":[\"string\",\"null\"]},\"code\":{\"type\":\"string\"}}}}}},"
        "\"securitySchemes\":{\"key\":{\"type\":\"http\",\"scheme\":\"bearer\"}}}}");
}
