/* yaml.c -- libyaml events to a tree with places, and the way back (see yaml.h). */
#include "configs/yaml/yaml.h"
#include "base/json.h"
#include "configs/yaml/yaml_impl.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <yaml.h>

enum { MAX_DEPTH = 200, MAX_NODES = 1000000, MAX_BYTES = 16 << 20, MAX_ANCHORS = 1000 };

/* ---- nodes ---- */

cr_node *cr_node_new(cr_yaml *yaml, cr_node_kind kind, cr_place place)
{
    cr_node *n = cr_arena_alloc(yaml->arena, sizeof *n);

    *n = (cr_node){.kind = kind, .place = place};
    yaml->num_nodes++;
    return n;
}

static void grow(cr_yaml *yaml, cr_node *n)
{
    if (n->num && (n->num & (n->num - 1))) return; /* room up to the next power of two */
    struct cr_item *items = cr_arena_alloc(yaml->arena, (n->num ? 2 * n->num : 1) * sizeof *items);
    if (n->num) memcpy(items, n->items, n->num * sizeof *items);
    n->items = items;
}

struct cr_item *cr_node_item(const cr_node *map, const char *key)
{
    if (!map || map->kind != CR_NODE_MAP) return NULL;
    for (size_t i = 0; i < map->num; i++)
        if (strcmp(map->items[i].key, key) == 0) return &map->items[i];
    return NULL;
}

cr_node *cr_node_get(const cr_node *map, const char *key)
{
    struct cr_item *item = cr_node_item(map, key);

    return item ? item->value : NULL;
}

cr_node *cr_node_at(const cr_node *root, const char *dotted)
{
    const cr_node *n = root;
    char part[256];

    while (n && *dotted) {
        size_t k = strcspn(dotted, ".");
        if (k >= sizeof part) return NULL;
        memcpy(part, dotted, k);
        part[k] = 0;
        n = cr_node_get(n, part);
        dotted += k + (dotted[k] == '.');
    }
    return (cr_node *)(uintptr_t)n;
}

void cr_node_set(cr_yaml *yaml, cr_node *map, const char *key, cr_place place, cr_node *value)
{
    struct cr_item *item = cr_node_item(map, key);

    if (item) {
        item->value = value;
        item->place = place;
        return;
    }
    grow(yaml, map);
    map->items[map->num++] =
        (struct cr_item){cr_arena_strndup(yaml->arena, key, strlen(key)), place, value};
}

void cr_node_append(cr_yaml *yaml, cr_node *list, cr_node *value)
{
    grow(yaml, list);
    list->items[list->num++] = (struct cr_item){NULL, value->place, value};
}

cr_node *cri_node_copy(cr_yaml *yaml, const cr_node *n)
{
    cr_node *copy = cr_node_new(yaml, n->kind, n->place);
    struct cr_item *items = n->num ? cr_arena_alloc(yaml->arena, 2 * n->num * sizeof *items)
                                   : NULL; /* grow() counts on room up to the next power of two */

    *copy = *n;
    copy->items = items;
    for (size_t i = 0; i < n->num && yaml->num_nodes <= MAX_NODES; i++) {
        copy->items[i] = n->items[i];
        copy->items[i].value = cri_node_copy(yaml, n->items[i].value);
    }
    return copy;
}

/* ---- scalars ---- */

static bool matches_int(const char *s, int64_t *out, const char **why)
{
    const char *p = s + (*s == '-' || *s == '+');
    char digits[64];
    size_t n = 0;
    bool is_too_long = false;
    int base = 10;

    *why = NULL;
    if (!isdigit((unsigned char)*p)) return false;
    if (p[0] == '0' && p[1] == 'x')
        base = 16, p += 2;
    else if (p[0] == '0' && p[1] == 'b')
        base = 2, p += 2;
    else if (p[0] == '0' && p[1])
        base = 8;
    if (!*p) return false;
    for (const char *q = p; *q; q++) {
        int c = *q;
        int digit = isdigit(c) ? c - '0' : isxdigit(c) ? tolower(c) - 'a' + 10 : 99;
        if (c == '_') continue;
        if (c == ':' && base == 10 && q > p && isdigit((unsigned char)q[1])) {
            if (strspn(q, ":0123456789._") == strlen(q))
                *why = "looks like a number to base 60: quote it";
            return *why != NULL;
        }
        if (digit >= base) return false;
        if (n + 1 < sizeof digits)
            digits[n++] = (char)c;
        else
            is_too_long = true;
    }
    digits[n] = 0;
    if (base == 8 && n > 0) {
        *why = "a number with a leading 0 is octal in YAML 1.1: quote it or drop the 0";
        return true;
    }
    errno = 0;
    uint64_t u = strtoull(digits, NULL, base);
    if (errno || is_too_long || u > (uint64_t)INT64_MAX + (*s == '-'))
        *why = "the number is too large";
    /* as unsigned: the least number has no opposite */
    *out = *why ? 0 : (int64_t)(*s == '-' ? 0 - u : u);
    return n > 0;
}

/* OmegaConf's float rule: digits with a point or an exponent, or a point first. */
static bool matches_real(const char *s, double *out, const char **why)
{
    const char *p = s + (*s == '-' || *s == '+');
    bool has_point = false, has_exponent = false, has_digit = false;
    char plain[128];
    size_t n = 0;

    *why = NULL;
    if (strcasecmp(p, ".inf") == 0 || strcasecmp(s, ".nan") == 0) {
        *why = "an infinity or NaN is not a useful value here";
        return true;
    }
    if (*p == '.' && (p != s || !isdigit((unsigned char)p[1]))) return false;
    for (const char *q = p; *q; q++) {
        if (isdigit((unsigned char)*q))
            has_digit = true;
        else if (*q == '_' && q > p && !has_exponent)
            continue;
        else if (*q == '.' && !has_point && !has_exponent)
            has_point = true;
        else if ((*q == 'e' || *q == 'E') && has_digit && !has_exponent) {
            has_exponent = true;
            if (q[1] == '+' || q[1] == '-') q++;
            if (!isdigit((unsigned char)q[1])) return false;
        } else
            return false;
    }
    if (!has_digit || !(has_point || has_exponent)) return false;
    for (const char *q = s; *q && n + 1 < sizeof plain; q++)
        if (*q != '_') plain[n++] = *q;
    plain[n] = 0;
    *out = strtod(plain, NULL);
    if (!isfinite(*out)) *why = "the number is too large", *out = 0;
    return true;
}

static bool is_one_of(const char *s, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(s, *words) == 0) return true;
    return false;
}

/* What a plain scalar means. */
static void resolve_plain(cr_yaml *yaml, cr_node *n, const char *s, size_t num_bytes,
                          cr_diagnostics *d)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
    static const char *const yes[] = {"true", "True", "TRUE", "yes", "Yes",
                                      "YES",  "on",   "On",   "ON",  NULL};
    static const char *const no[] = {"false", "False", "FALSE", "no",  "No",
                                     "NO",    "off",   "Off",   "OFF", NULL};
    const char *why = NULL;

    n->text = cr_arena_strndup(yaml->arena, s, num_bytes);
    n->kind = CR_NODE_TEXT;
    if (num_bytes > 100) return;
    if (is_one_of(s, nulls))
        n->kind = CR_NODE_NULL;
    else if (is_one_of(s, yes) || is_one_of(s, no))
        n->kind = CR_NODE_BOOL, n->flag = is_one_of(s, yes);
    else if (matches_int(s, &n->integer, &why))
        n->kind = CR_NODE_INT;
    else if (!why && matches_real(s, &n->real, &why))
        n->kind = CR_NODE_REAL;
    if (why) cr_diagnose(d, CR_ERROR, n->place, "'%s': %s", s, why);
}

/* ---- parsing ---- */

typedef struct reader {
    cr_yaml *yaml;
    yaml_parser_t parser;
    const char *file;
    cr_diagnostics *d;
    struct {
        char *name;
        cr_node *node;
    } anchors[MAX_ANCHORS];
    size_t num_anchors;
    const cr_node *merge; /* the plain << that was read last */
    bool has_failed;
} reader;

static cr_place place_of(const reader *r, yaml_mark_t mark)
{
    return (cr_place){r->file, (int)mark.line + 1, (int)mark.column + 1};
}

static void fail_at(reader *r, cr_place place, const char *fmt, const char *what)
{
    if (!r->has_failed) cr_diagnose(r->d, CR_ERROR, place, fmt, what);
    r->has_failed = true;
}

static bool next_event(reader *r, yaml_event_t *event)
{
    const yaml_parser_t *p = &r->parser;
    bool begins_before;
    yaml_mark_t mark;
    char *what;

    if (r->has_failed) return false;
    if (yaml_parser_parse(&r->parser, event)) return true;
    mark = p->problem_mark;
    if (p->error == YAML_READER_ERROR)
        mark = (yaml_mark_t){p->problem_offset, p->mark.line, p->mark.column};
    /* what is not closed is found where it could have ended */
    begins_before = p->problem && p->context && p->context_mark.line < mark.line;
    what = begins_before ? cr_asprintf("%s (%s, from line %zu on)", p->problem, p->context,
                                       p->context_mark.line + 1)
                         : cr_strdup(p->problem ? p->problem : "the parser ran out of memory");
    fail_at(r, place_of(r, mark), "not valid YAML: %s", what);
    cr_free(what);
    return false;
}

static void remember(reader *r, const yaml_char_t *anchor, cr_node *node)
{
    if (!anchor) return;
    if (r->num_anchors == MAX_ANCHORS) {
        fail_at(r, node->place, "more anchors than %s", "1000");
        return;
    }
    r->anchors[r->num_anchors].name =
        cr_arena_strndup(r->yaml->arena, (const char *)anchor, strlen((const char *)anchor));
    r->anchors[r->num_anchors++].node = node;
}

static cr_node *find_anchor(reader *r, const char *name)
{
    for (size_t i = r->num_anchors; i-- > 0;)
        if (strcmp(r->anchors[i].name, name) == 0) return r->anchors[i].node;
    return NULL;
}

static cr_node *read_scalar(reader *r, const yaml_event_t *event)
{
    const char *tag = (const char *)event->data.scalar.tag,
               *value = (const char *)event->data.scalar.value;
    size_t n = event->data.scalar.length;
    cr_node *node = cr_node_new(r->yaml, CR_NODE_TEXT, place_of(r, event->start_mark));
    bool is_plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;

    if (memchr(value, 0, n)) {
        fail_at(r, node->place, "a text holds %s", "a NUL byte");
        return node;
    }
    if (tag && strcmp(tag, "!") != 0 && strcmp(tag, YAML_STR_TAG) != 0) {
        resolve_plain(r->yaml, node, value, n, r->d);
        bool is_number = node->kind == CR_NODE_INT || node->kind == CR_NODE_REAL;
        if (strcmp(tag, YAML_FLOAT_TAG) == 0 && is_number) {
            if (node->kind == CR_NODE_INT) node->real = (double)node->integer;
            node->kind = CR_NODE_REAL;
        } else if (!(strcmp(tag, YAML_INT_TAG) == 0 && node->kind == CR_NODE_INT) &&
                   !(strcmp(tag, YAML_BOOL_TAG) == 0 && node->kind == CR_NODE_BOOL) &&
                   !(strcmp(tag, YAML_NULL_TAG) == 0 && node->kind == CR_NODE_NULL)) {
            fail_at(r, node->place, "the tag %s is not supported here", tag);
        }
    } else if (is_plain && !tag) {
        resolve_plain(r->yaml, node, value, n, r->d);
        if (n == 2 && memcmp(value, "<<", 2) == 0) r->merge = node;
    } else {
        node->text = cr_arena_strndup(r->yaml->arena, value, n);
    }
    return node;
}

static cr_node *read_node(reader *r, yaml_event_t *event, int depth);

/* What is not a key: << has no other meaning. */
static cr_node *read_value(reader *r, yaml_event_t *event, int depth)
{
    cr_node *node = read_node(r, event, depth);

    if (node && node == r->merge) fail_at(r, node->place, "%s is a key, not a value", "<<");
    return node;
}

/* Text of a key, as Python's str() of what it resolves to. */
static const char *key_text(reader *r, const cr_node *key)
{
    cr_buf text = {0};
    const char *copy;

    if (key->kind == CR_NODE_LIST || key->kind == CR_NODE_MAP) {
        fail_at(r, key->place, "a key must be a word, not %s", "a list or a map");
        return "";
    }
    cri_node_text(key, &text);
    copy = cr_arena_strndup(r->yaml->arena, text.data ? text.data : "", text.num_bytes);
    cr_buf_free(&text);
    return copy;
}

static void merge_into(reader *r, cr_node *map, const cr_node *value, const cr_node *own)
{
    if (value->kind == CR_NODE_LIST) {
        for (size_t i = 0; i < value->num; i++)
            merge_into(r, map, value->items[i].value, own);
        return;
    }
    if (value->kind != CR_NODE_MAP) {
        fail_at(r, value->place, "%s takes a map or a list of maps", "<<");
        return;
    }
    for (size_t i = 0; i < value->num; i++)
        if (!cr_node_item(map, value->items[i].key))
            cr_node_set(r->yaml, map, value->items[i].key, value->items[i].place,
                        cri_node_copy(r->yaml, value->items[i].value));
}

static void read_map(reader *r, cr_node *map, int depth)
{
    yaml_event_t event;
    cr_node *merges[16];
    size_t num_merges = 0;

    while (next_event(r, &event)) {
        if (event.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&event);
            break;
        }
        cr_node *key = read_node(r, &event, depth + 1), *value;
        const char *name;
        if (!key || r->has_failed) return;
        bool is_merge = key == r->merge;
        name = key_text(r, key);
        if (!next_event(r, &event)) return;
        value = read_value(r, &event, depth + 1);
        if (!value || r->has_failed) return;
        if (is_merge && num_merges < CR_COUNT(merges))
            merges[num_merges++] = value;
        else if (cr_node_item(map, name))
            cr_diagnose(r->d, CR_ERROR, key->place,
                        "the key '%.60s' is given twice (first in line %d)", name,
                        cr_node_item(map, name)->place.line);
        else
            cr_node_set(r->yaml, map, name, key->place, value);
    }
    for (size_t i = 0; i < num_merges; i++)
        merge_into(r, map, merges[i], map);
}

static void check_tag(reader *r, const yaml_char_t *tag, const char *usual,
                      const yaml_event_t *event)
{
    if (tag && strcmp((const char *)tag, usual) != 0 && strcmp((const char *)tag, "!") != 0)
        fail_at(r, place_of(r, event->start_mark), "the tag %s is not supported here",
                (const char *)tag);
}

static cr_node *read_node(reader *r, yaml_event_t *event, int depth)
{
    cr_node *node = NULL;
    yaml_event_t item;

    if (depth > MAX_DEPTH || r->yaml->num_nodes > MAX_NODES) {
        fail_at(r, place_of(r, event->start_mark),
                depth > MAX_DEPTH ? "nested deeper than %s levels" : "more than %s values",
                depth > MAX_DEPTH ? "200" : "1000000");
        yaml_event_delete(event);
        return NULL;
    }
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        node = read_scalar(r, event);
        remember(r, event->data.scalar.anchor, node);
        break;
    case YAML_ALIAS_EVENT: {
        cr_node *target = find_anchor(r, (const char *)event->data.alias.anchor);
        if (!target)
            fail_at(r, place_of(r, event->start_mark), "no anchor &%s before this alias",
                    (const char *)event->data.alias.anchor);
        else
            node = cri_node_copy(r->yaml, target);
        if (node) node->place = place_of(r, event->start_mark);
        if (r->yaml->num_nodes > MAX_NODES)
            fail_at(r, place_of(r, event->start_mark), "aliases unfold to more than %s values",
                    "1000000");
        break;
    }
    case YAML_SEQUENCE_START_EVENT:
        check_tag(r, event->data.sequence_start.tag, YAML_SEQ_TAG, event);
        node = cr_node_new(r->yaml, CR_NODE_LIST, place_of(r, event->start_mark));
        while (next_event(r, &item)) {
            cr_node *value;
            if (item.type == YAML_SEQUENCE_END_EVENT) {
                yaml_event_delete(&item);
                break;
            }
            value = read_value(r, &item, depth + 1);
            if (!value || r->has_failed) break;
            cr_node_append(r->yaml, node, value);
        }
        remember(r, event->data.sequence_start.anchor, node);
        break;
    case YAML_MAPPING_START_EVENT:
        check_tag(r, event->data.mapping_start.tag, YAML_MAP_TAG, event);
        node = cr_node_new(r->yaml, CR_NODE_MAP, place_of(r, event->start_mark));
        read_map(r, node, depth);
        remember(r, event->data.mapping_start.anchor, node);
        break;
    default:
        fail_at(r, place_of(r, event->start_mark), "%s", "a value is expected here");
    }
    yaml_event_delete(event);
    return node;
}

cr_node *cri_yaml_parse(cr_yaml *yaml, const char *text, size_t num_bytes, const char *file,
                        cr_diagnostics *d)
{
    reader *r = CR_NEW(reader);
    yaml_event_t event;
    cr_node *root = NULL;

    r->yaml = yaml;
    r->file = file;
    r->d = d;
    if (num_bytes > MAX_BYTES) {
        cr_diagnose(d, CR_ERROR, (cr_place){file, 1, 1},
                    "the file has %zu bytes, at most 16 MB are read", num_bytes);
        cr_free(r);
        return NULL;
    }
    yaml_parser_initialize(&r->parser);
    yaml_parser_set_input_string(&r->parser, (const unsigned char *)text, num_bytes);
    while (next_event(r, &event)) {
        if (event.type == YAML_STREAM_END_EVENT) {
            yaml_event_delete(&event);
            break;
        }
        if (event.type == YAML_STREAM_START_EVENT || event.type == YAML_DOCUMENT_START_EVENT ||
            event.type == YAML_DOCUMENT_END_EVENT) {
            yaml_event_delete(&event);
            continue;
        }
        if (root) {
            fail_at(r, place_of(r, event.start_mark), "%s",
                    "a second document: one file holds one configuration");
            yaml_event_delete(&event);
            break;
        }
        root = read_value(r, &event, 0);
        if (!root) break;
    }
    yaml_parser_delete(&r->parser);
    if (r->has_failed) root = NULL;
    cr_free(r);
    return root;
}

cr_node *cr_yaml_parse_value(cr_yaml *yaml, const char *text, cr_place place, cr_diagnostics *d)
{
    cr_diagnostics inner = {0};
    cr_node *node = cri_yaml_parse(yaml, text, strlen(text), place.file, &inner);

    if (inner.num_errors || (!node && *text)) {
        cr_diagnose(d, CR_ERROR, place, "the value '%.80s' is not valid YAML%s%s", text,
                    inner.num ? ": " : "", inner.num ? inner.items[0].text : "");
        cr_diagnostics_free(&inner);
        return NULL;
    }
    cr_diagnostics_free(&inner);
    if (!node) node = cr_node_new(yaml, CR_NODE_NULL, place);
    node->place = place;
    return node;
}

void cr_yaml_free(cr_yaml *yaml)
{
    for (size_t i = 0; i < yaml->num_files; i++)
        cr_free(yaml->files[i]);
    cr_free(yaml->files);
    cr_arena_destroy(yaml->arena);
    *yaml = (cr_yaml){0};
}

/* ---- writing ---- */

/* Python's repr() of a float: the shortest digits that read back. */
void cri_real_text(double x, cr_buf *out)
{
    char digits[40], *e;
    int precision = 1, exponent;

    do
        snprintf(digits, sizeof digits, "%.*e", precision - 1, x);
    while (strtod(digits, NULL) != x && ++precision <= 17);
    e = strchr(digits, 'e');
    exponent = atoi(e + 1);
    if (exponent < -4 || exponent >= 16) {
        *e = 0;
        cr_buf_addf(out, "%se%s%02d", digits, exponent < 0 ? "-" : "+", abs(exponent));
        return;
    }
    snprintf(digits, sizeof digits, "%.*f",
             precision - 1 - exponent > 1 ? precision - 1 - exponent : 1, x);
    cr_buf_adds(out, digits);
}

void cri_node_text(const cr_node *n, cr_buf *out)
{
    switch (n->kind) {
    case CR_NODE_NULL:
        cr_buf_adds(out, "None");
        break;
    case CR_NODE_BOOL:
        cr_buf_adds(out, n->flag ? "True" : "False");
        break;
    case CR_NODE_INT:
        cr_buf_addf(out, "%lld", (long long)n->integer);
        break;
    case CR_NODE_REAL:
        cri_real_text(n->real, out);
        break;
    case CR_NODE_TEXT:
        cr_buf_adds(out, n->text);
        break;
    case CR_NODE_LIST:
    case CR_NODE_MAP:
        cr_node_write_json(n, out);
        break;
    }
}

/* A key whose value is a secret. */
bool cri_is_secret(const char *key)
{
    static const char *const ends[] = {"api_key",    "apikey",     "password",
                                       "passwd",     "secret",     "access_token",
                                       "auth_token", "secret_key", "access_key"};
    size_t n = strlen(key);

    for (size_t i = 0; i < CR_COUNT(ends); i++) {
        size_t k = strlen(ends[i]);
        if (n >= k && strcasecmp(key + n - k, ends[i]) == 0) return true;
    }
    return false;
}

/* user:password@ in a URL. */
static char *masked(const char *text)
{
    const char *scheme = strstr(text, "://"), *at, *colon;
    cr_buf out = {0};

    at = scheme ? strchr(scheme + 3, '@') : NULL;
    colon = at ? memchr(scheme + 3, ':', (size_t)(at - scheme - 3)) : NULL;
    if (!colon) return cr_strdup(text);
    cr_buf_add(&out, text, (size_t)(colon + 1 - text));
    cr_buf_adds(&out, "***");
    cr_buf_adds(&out, at);
    return out.data;
}

static void write_text(const cr_node *n, const char *key, cr_buf *out)
{
    if (key && cri_is_secret(key)) {
        cr_buf_adds(out, "\"***\"");
        return;
    }
    char *shown = masked(n->text);
    cr_json_add_string(out, shown, strlen(shown));
    cr_free(shown);
}

static void write_json(const cr_node *n, const char *key, cr_buf *out)
{
    switch (n->kind) {
    case CR_NODE_NULL:
        cr_buf_adds(out, "null");
        return;
    case CR_NODE_BOOL:
        cr_buf_adds(out, n->flag ? "true" : "false");
        return;
    case CR_NODE_INT:
        cr_buf_addf(out, "%lld", (long long)n->integer);
        return;
    case CR_NODE_REAL:
        cri_real_text(n->real, out);
        return;
    case CR_NODE_TEXT:
        write_text(n, key, out);
        return;
    case CR_NODE_LIST:
    case CR_NODE_MAP:
        break;
    }
    cr_buf_addc(out, n->kind == CR_NODE_MAP ? '{' : '[');
    for (size_t i = 0; i < n->num; i++) {
        if (i) cr_buf_adds(out, ", ");
        if (n->kind == CR_NODE_MAP) {
            cr_json_add_string(out, n->items[i].key, strlen(n->items[i].key));
            cr_buf_adds(out, ": ");
        }
        write_json(n->items[i].value, n->kind == CR_NODE_MAP ? n->items[i].key : key, out);
    }
    cr_buf_addc(out, n->kind == CR_NODE_MAP ? '}' : ']');
}

void cr_node_write_json(const cr_node *n, cr_buf *out)
{
    write_json(n, NULL, out);
}

/* Words that read back as themselves are written plain; everything else as a JSON string, which is
 * YAML, too. */
static void write_word(const char *text, cr_buf *out)
{
    bool is_plain =
        *text && strlen(text) < 60 && isalpha((unsigned char)*text) &&
        strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-") ==
            strlen(text);
    static const char *const reserved[] = {"true", "false", "yes", "no", "on",
                                           "off",  "null",  "y",   "n",  "none"};

    for (size_t i = 0; i < CR_COUNT(reserved); i++)
        if (strcasecmp(text, reserved[i]) == 0) is_plain = false;
    if (is_plain)
        cr_buf_adds(out, text);
    else
        cr_json_add_string(out, text, strlen(text));
}

static void write_yaml(const cr_node *n, const char *key, int indent, cr_buf *out)
{
    for (size_t i = 0; i < n->num; i++) {
        const cr_node *v = n->items[i].value;
        const char *name = n->kind == CR_NODE_MAP ? n->items[i].key : key;
        bool is_block = (v->kind == CR_NODE_MAP || v->kind == CR_NODE_LIST) && v->num > 0;
        cr_buf_addf(out, "%*s", indent, "");
        if (n->kind == CR_NODE_MAP) {
            write_word(name, out);
            cr_buf_addc(out, ':');
        } else {
            cr_buf_addc(out, '-');
        }
        if (is_block) {
            cr_buf_addc(out, '\n');
            write_yaml(v, name, indent + 2, out);
            continue;
        }
        cr_buf_addc(out, ' ');
        if (v->kind == CR_NODE_TEXT && !cri_is_secret(name ? name : "") && !strstr(v->text, "://"))
            write_word(v->text, out);
        else
            write_json(v, name, out);
        cr_buf_addc(out, '\n');
    }
}

void cr_node_write_yaml(const cr_node *n, cr_buf *out)
{
    write_yaml(n, NULL, 0, out);
}
