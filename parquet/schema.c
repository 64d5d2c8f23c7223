/* schema.c -- see schema.h. */
#include "parquet/schema.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 50, MAX_FIXED = 1 << 20, MAX_DECIMAL_BYTES = 64, MAX_SCALE = 200 };

typedef struct builder {
    const cri_parquet_footer *footer;
    size_t at; /* the next element */
    size_t num_leaves;
    cr_buf path; /* of the node that is being made */
} builder;

static cr_status refuse(const builder *b, cr_status status, const char *why, cr_err *err)
{
    return cr_fail(err, status, "column %.100s %s", b->path.data ? b->path.data : "", why);
}

/* ---- leaves ---- */

static const char *const logical_names[] = {
    "none",    "STRING", "MAP",  "LIST", "ENUM", "DECIMAL", "DATE",    "TIME",     "TIMESTAMP", "9",
    "INTEGER", "NULL",   "JSON", "BSON", "UUID", "FLOAT16", "VARIANT", "GEOMETRY", "GEOGRAPHY"};

/* What values without a logical type are. */
static cri_parquet_kind plain_kind(cri_parquet_type type)
{
    static const cri_parquet_kind kinds[] = {
        [CRI_PARQUET_BOOLEAN] = CRI_KIND_BOOL, [CRI_PARQUET_INT32] = CRI_KIND_INT,
        [CRI_PARQUET_INT64] = CRI_KIND_INT,    [CRI_PARQUET_INT96] = CRI_KIND_INT96,
        [CRI_PARQUET_FLOAT] = CRI_KIND_FLOAT,  [CRI_PARQUET_DOUBLE] = CRI_KIND_DOUBLE,
        [CRI_PARQUET_BYTES] = CRI_KIND_BYTES,  [CRI_PARQUET_FIXED] = CRI_KIND_BYTES};

    return kinds[type];
}

/* Whether a leaf has a logical type that is known, on a type that may have it; then *kind. */
static bool find_kind(const cri_parquet_element *e, cri_parquet_kind *kind)
{
    const bool is_int = e->type == CRI_PARQUET_INT32 || e->type == CRI_PARQUET_INT64,
               is_bytes = e->type == CRI_PARQUET_BYTES, is_fixed = e->type == CRI_PARQUET_FIXED,
               has_unit = e->units_per_second == (e->type == CRI_PARQUET_INT32 ? 1000 : 1000000) ||
                          (e->type == CRI_PARQUET_INT64 && e->units_per_second > 0);

    switch (e->logical) {
    case CRI_LOGICAL_NONE:
        *kind = plain_kind(e->type);
        return true;
    case CRI_LOGICAL_STRING:
    case CRI_LOGICAL_ENUM:
    case CRI_LOGICAL_JSON:
        *kind = CRI_KIND_TEXT;
        return is_bytes || is_fixed;
    case CRI_LOGICAL_BSON:
        *kind = CRI_KIND_BYTES;
        return is_bytes || is_fixed;
    case CRI_LOGICAL_DECIMAL:
        *kind = CRI_KIND_DECIMAL;
        return (is_int || is_bytes || (is_fixed && e->type_length <= MAX_DECIMAL_BYTES)) &&
               e->scale >= 0 && e->scale <= MAX_SCALE;
    case CRI_LOGICAL_DATE:
        *kind = CRI_KIND_DATE;
        return e->type == CRI_PARQUET_INT32;
    case CRI_LOGICAL_TIME:
        *kind = CRI_KIND_TIME;
        return is_int && has_unit;
    case CRI_LOGICAL_TIMESTAMP:
        *kind = CRI_KIND_TIMESTAMP;
        return e->type == CRI_PARQUET_INT64 && e->units_per_second > 0;
    case CRI_LOGICAL_INTEGER:
        *kind = e->is_unsigned ? CRI_KIND_UINT : CRI_KIND_INT;
        return is_int;
    case CRI_LOGICAL_NULL:
        *kind = CRI_KIND_NULL;
        return true;
    case CRI_LOGICAL_UUID:
        *kind = CRI_KIND_UUID;
        return is_fixed && e->type_length == 16;
    case CRI_LOGICAL_FLOAT16:
        *kind = CRI_KIND_HALF;
        return is_fixed && e->type_length == 2;
    default:
        return false;
    }
}

static cr_status make_leaf(builder *b, const cri_parquet_element *e, cri_parquet_node *out,
                           cr_err *err)
{
    static const char *const types[] = {"BOOLEAN", "INT32",  "INT64",      "INT96",
                                        "FLOAT",   "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"};
    static const int widths[] = {1, 4, 8, 12, 4, 8, 0, 0};
    const char *logical = e->logical == CRI_LOGICAL_INTERVAL ? "INTERVAL"
                          : e->logical >= 0 && e->logical < (int)CR_COUNT(logical_names)
                              ? logical_names[e->logical]
                              : "unknown";

    if (e->type < 0 || e->type >= CRI_PARQUET_NUM_TYPES)
        return refuse(b, CR_EFORMAT, "has a type that the format does not have", err);
    if (!find_kind(e, &out->kind))
        return cr_fail(err, CR_EABSENT,
                       "column %.100s is of the logical type %s on %s, which is not read",
                       b->path.data, logical, types[e->type]);
    out->width = widths[e->type];
    if (e->type == CRI_PARQUET_FIXED) {
        out->width = e->type_length;
        if (e->type_length < 1 || e->type_length > MAX_FIXED)
            return refuse(b, CR_EFORMAT, "has values of no length, or of more than 1 MiB", err);
    }
    out->num_leaves = 1;
    b->num_leaves++;
    out->path = cr_strdup(b->path.data);
    return CR_OK;
}

/* ---- groups ---- */

static cr_status make_field(builder *b, int def, int rep, int depth, cri_parquet_node *out,
                            cr_err *err);

static const cri_parquet_element *take(builder *b, cr_err *err)
{
    if (b->at < b->footer->num_elements) return &b->footer->elements[b->at++];
    cr_fail(err, CR_EFORMAT, "its footer is damaged: the schema ends early");
    return NULL;
}

static const cri_parquet_element *peek(const builder *b)
{
    return b->at < b->footer->num_elements ? &b->footer->elements[b->at] : NULL;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Fields of one name would be one member of a JSON object. */
static cr_status check_names(const builder *b, const cri_parquet_node *node, cr_err *err)
{
    const size_t num = node->num_children;
    char **names = CR_NEW_ARRAY(char *, num);
    size_t i;

    for (i = 0; i < num; i++)
        names[i] = node->children[i].key;
    qsort(names, num, sizeof *names, by_text);
    for (i = 1; i < num && strcmp(names[i - 1], names[i]) != 0; i++)
        continue;
    if (i < num)
        cr_fail(err, CR_EFORMAT, "two columns of %s have the name %.60s",
                b->path.num_bytes ? b->path.data : "a row", names[i]);
    cr_free(names);
    return err->status;
}

static cr_status make_children(builder *b, size_t num, int def, int rep, int depth,
                               cri_parquet_node *out, cr_err *err)
{
    size_t capacity = 0;

    for (size_t i = 0; i < num; i++) {
        out->children = cr_grow(out->children, i, &capacity, sizeof *out->children);
        out->children[i] = (cri_parquet_node){0};
        out->num_children++;
        CR_TRY(make_field(b, def, rep, depth + 1, &out->children[i], err));
    }
    return CR_OK;
}

/* Whether the repeated child of a LIST is its element, and not a group around it (the format's rules for older writers). */
static bool is_element(const builder *b, const cri_parquet_element *repeated, const char *list)
{
    const cri_parquet_element *inner = &b->footer->elements[b->at];
    const size_t n = strlen(list);

    return repeated->type != CRI_PARQUET_GROUP || repeated->num_children != 1 ||
           repeated->logical == CRI_LOGICAL_LIST || repeated->logical == CRI_LOGICAL_MAP ||
           b->at >= b->footer->num_elements || inner->repetition == CRI_PARQUET_REPEATED ||
           strcmp(repeated->name, "array") == 0 ||
           (strncmp(repeated->name, list, n) == 0 && strcmp(repeated->name + n, "_tuple") == 0);
}

static cr_status make_value(builder *b, const cri_parquet_element *e, int def, int rep, int depth,
                            cri_parquet_node *out, cr_err *err);

static cr_status make_list(builder *b, const cri_parquet_element *e, int rep, int depth,
                           cri_parquet_node *out, cr_err *err)
{
    const cri_parquet_element *repeated;

    if (e->num_children != 1 || !peek(b) || peek(b)->repetition != CRI_PARQUET_REPEATED)
        return refuse(b, CR_EFORMAT, "is called a list, and has not one repeated field", err);
    repeated = take(b, err);
    out->kind = CRI_KIND_LIST;
    if (!is_element(b, repeated, e->name))
        return make_children(b, 1, out->item_def, rep + 1, depth, out, err);
    out->children = CR_NEW(cri_parquet_node);
    out->num_children = 1;
    return make_value(b, repeated, out->item_def, rep + 1, depth + 1, out->children, err);
}

static cr_status make_map(builder *b, const cri_parquet_element *e, int rep, int depth,
                          cri_parquet_node *out, cr_err *err)
{
    const cri_parquet_element *pair = peek(b);

    if (e->num_children != 1 || !pair || pair->repetition != CRI_PARQUET_REPEATED ||
        pair->type != CRI_PARQUET_GROUP || pair->num_children != 2)
        return refuse(b, CR_EFORMAT,
                      "is called a map, and has not one repeated pair of key and value", err);
    b->at++;
    out->kind = CRI_KIND_MAP;
    return make_children(b, 2, out->item_def, rep + 1, depth, out, err);
}

/* A node without its repetition, whose values are there from def on. */
static cr_status make_value(builder *b, const cri_parquet_element *e, int def, int rep, int depth,
                            cri_parquet_node *out, cr_err *err)
{
    if (depth > MAX_DEPTH) return refuse(b, CR_EFORMAT, "is nested too deeply", err);
    out->element = e;
    out->def = def;
    out->item_def = def + 1;
    out->item_rep = rep + 1;
    out->first_leaf = b->num_leaves;
    if (e->type != CRI_PARQUET_GROUP) return make_leaf(b, e, out, err);
    if (e->num_children < 1) return refuse(b, CR_EFORMAT, "is a group without fields", err);
    if (e->logical == CRI_LOGICAL_LIST) {
        CR_TRY(make_list(b, e, rep, depth, out, err));
    } else if (e->logical == CRI_LOGICAL_MAP) {
        CR_TRY(make_map(b, e, rep, depth, out, err));
    } else if (e->logical != CRI_LOGICAL_NONE) {
        return refuse(b, CR_EABSENT,
                      "is a group of a logical type that is not read (VARIANT, or one unknown)",
                      err);
    } else {
        out->kind = CRI_KIND_STRUCT;
        CR_TRY(make_children(b, (size_t)e->num_children, def, rep, depth, out, err));
        CR_TRY(check_names(b, out, err));
    }
    out->num_leaves = b->num_leaves - out->first_leaf;
    return CR_OK;
}

/* A field of a struct, or an element, key or value, with its repetition. */
static cr_status make_field(builder *b, int def, int rep, int depth, cri_parquet_node *out,
                            cr_err *err)
{
    const cri_parquet_element *e = take(b, err);
    const size_t before = b->path.num_bytes;
    cr_buf key = {0};

    if (!e) return err->status;
    if (before) cr_buf_addc(&b->path, '.');
    cr_buf_adds(&b->path, e->name);
    if (!cr_utf8_valid(e->name, strlen(e->name)))
        return refuse(b, CR_EFORMAT, "has a name that is not UTF-8", err);
    if (e->repetition == CRI_PARQUET_REPEATED) {
        *out = (cri_parquet_node){.kind = CRI_KIND_LIST,
                                  .element = e,
                                  .def = def,
                                  .item_def = def + 1,
                                  .item_rep = rep + 1,
                                  .first_leaf = b->num_leaves,
                                  .children = CR_NEW(cri_parquet_node),
                                  .num_children = 1};
        CR_TRY(make_value(b, e, def + 1, rep + 1, depth + 1, out->children, err));
        out->num_leaves = b->num_leaves - out->first_leaf;
    } else {
        out->is_optional = e->repetition == CRI_PARQUET_OPTIONAL;
        CR_TRY(make_value(b, e, def + out->is_optional, rep, depth, out, err));
    }
    cr_json_add_string(&key, e->name, strlen(e->name));
    cr_buf_addc(&key, ':');
    out->key = key.data;
    b->path.num_bytes = before;
    b->path.data[before] = 0;
    return CR_OK;
}

cr_status cri_parquet_schema_make(const cri_parquet_footer *footer, cri_parquet_node *root,
                                  cr_err *err)
{
    builder b = {.footer = footer, .at = 1};
    const cri_parquet_element *e = footer->elements;

    *root = (cri_parquet_node){.kind = CRI_KIND_STRUCT, .element = e};
    if (footer->num_elements == 0 || e->type != CRI_PARQUET_GROUP || e->num_children < 1) {
        cr_fail(err, CR_EFORMAT, "its schema has no columns");
    } else if (make_children(&b, (size_t)e->num_children, 0, 0, 0, root, err) == CR_OK) {
        b.path.num_bytes = 0;
        cr_note(check_names(&b, root, err));
    }
    if (err->status == CR_OK && b.at != footer->num_elements)
        cr_fail(err, CR_EFORMAT, "its footer is damaged: the schema does not end where it should");
    root->num_leaves = b.num_leaves;
    cr_buf_free(&b.path);
    return err->status;
}

void cri_parquet_node_free(cri_parquet_node *node)
{
    for (size_t i = 0; i < node->num_children; i++)
        cri_parquet_node_free(&node->children[i]);
    cr_free(node->children);
    cr_free(node->path);
    cr_free(node->key);
}
