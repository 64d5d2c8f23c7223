/* yaml.h -- a YAML file as a tree whose every key and value knows where it stands.
 *
 * Reading is libyaml's parser; meaning is that of ROLL's loader (Hydra and OmegaConf on PyYAML with
 * YAML 1.2-like floats): `defaults` with @_here_, merge keys, ${a.b} and ${oc.env:NAME,default} interpolation. What that loader
 * would silently read as something else than a person means (base-60 and octal numbers, infinities,
 * foreign tags) is refused. Problems go to a cr_diagnostics, all of them, not the first only.
 *
 * Nodes live until cr_yaml_free. Sizes are bounded: 200 levels, a million nodes, 16 MB, and as much of interpolations.
 */
#ifndef CR_YAML_H
#define CR_YAML_H

#include "base/base.h"

/* ---- diagnostics ---- */

typedef enum cr_severity { CR_NOTE, CR_WARNING, CR_ERROR } cr_severity;

typedef struct cr_place {
    const char *file; /* borrowed; "command line" for overrides */
    int line, column; /* from 1; 0: nowhere in particular */
} cr_place;

typedef struct cr_diagnostics {
    struct cr_diagnostic {
        cr_severity severity;
        cr_place place;
        char *text; /* "what is wrong (what to do)" */
        size_t
            name_bytes; /* that it begins with a key's name, which others of its kind have not; or 0 */
    } * items;
    size_t num, num_errors;
} cr_diagnostics;

void cr_diagnose(cr_diagnostics *d, cr_severity severity, cr_place place, const char *fmt, ...)
    CR_PRINTF(4, 5);
/* A note: "NAME has no effect (WHY)". */
void cr_diagnose_unused(cr_diagnostics *d, cr_place place, const char *name, const char *fmt, ...)
    CR_PRINTF(4, 5);
/* FILE:LINE:COL: error: SENTENCE, sorted by place, to stderr. Notes of one kind are one line, likewise warnings, with all
 * names and places. */
void cr_diagnostics_print(cr_diagnostics *d);
void cr_diagnostics_free(cr_diagnostics *d);

/* ---- trees ---- */

typedef enum cr_node_kind {
    CR_NODE_NULL,
    CR_NODE_BOOL,
    CR_NODE_INT,
    CR_NODE_REAL,
    CR_NODE_TEXT,
    CR_NODE_LIST,
    CR_NODE_MAP
} cr_node_kind;

typedef struct cr_node cr_node;
struct cr_node {
    cr_node_kind kind;
    cr_place place;
    char *text; /* CR_NODE_TEXT */
    bool flag;
    int64_t integer;
    double real;
    struct cr_item {
        char *key; /* MAP only */
        cr_place place;
        cr_node *value;
        bool is_read; /* by an interpolation */
    } * items;
    size_t num;
};

typedef struct cr_yaml {
    cr_arena *arena;
    cr_node *root; /* a map */
    size_t num_nodes;
    char **files; /* names that places point to (owned) */
    size_t num_files;
    size_t interpolated_bytes;
    cr_place resolving; /* the value whose interpolation is being followed */
} cr_yaml;

/* text: the bytes of the file, or NULL: it is read. path: NULL, overrides alone.
 * Read, compose (`defaults`), apply overrides ("a.b=value"), interpolate. The `hydra` and `defaults`
 * sections are gone afterwards. Problems are in d; yaml is usable for checks if d->num_errors is 0. */
void cr_yaml_load(cr_yaml *yaml, const char *path, const cr_buf *text, const char *const *overrides,
                  size_t num_overrides, cr_diagnostics *d);
void cr_yaml_free(cr_yaml *yaml);

cr_node *cr_node_get(const cr_node *map, const char *key);         /* NULL: none */
cr_node *cr_node_at(const cr_node *root, const char *dotted);      /* NULL: none */
struct cr_item *cr_node_item(const cr_node *map, const char *key); /* NULL: none */
cr_node *cr_node_new(cr_yaml *yaml, cr_node_kind kind, cr_place place);
/* Put value under key; an old value is replaced. */
void cr_node_set(cr_yaml *yaml, cr_node *map, const char *key, cr_place place, cr_node *value);
void cr_node_append(cr_yaml *yaml, cr_node *list, cr_node *value);
/* Parse a value as YAML ("1e-5", "[a, b]"). NULL after a diagnostic. */
cr_node *cr_yaml_parse_value(cr_yaml *yaml, const char *text, cr_place place, cr_diagnostics *d);

/* Write as YAML or as one line of JSON; secrets are masked. */
void cr_node_write_yaml(const cr_node *node, cr_buf *out);
void cr_node_write_json(const cr_node *node, cr_buf *out);

#endif
