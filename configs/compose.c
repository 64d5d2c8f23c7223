/* compose.c -- files into one tree: `defaults`, overrides, interpolation (see yaml.h). */
#include "configs/yaml_impl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_INCLUDES = 16, MAX_CHAIN = 50 };

static const char *own_file(cr_yaml *yaml, const char *path)
{
    yaml->files = cr_realloc(yaml->files, yaml->num_files * sizeof *yaml->files,
                             (yaml->num_files + 1) * sizeof *yaml->files);
    return yaml->files[yaml->num_files++] = cr_strdup(path);
}

/* b over a: maps are merged, everything else replaces. */
static void merge(cr_yaml *yaml, cr_node *a, const cr_node *b)
{
    for (size_t i = 0; i < b->num; i++) {
        cr_node *old = cr_node_get(a, b->items[i].key);
        if (old && old->kind == CR_NODE_MAP && b->items[i].value->kind == CR_NODE_MAP)
            merge(yaml, old, b->items[i].value);
        else
            cr_node_set(yaml, a, b->items[i].key, b->items[i].place, b->items[i].value);
    }
}

static void remove_key(cr_node *map, const char *key)
{
    struct cr_item *item = cr_node_item(map, key);

    if (!item) return;
    memmove(item, item + 1, (size_t)(map->items + map->num - item - 1) * sizeof *item);
    map->num--;
}

static cr_node *load_file(cr_yaml *yaml, const char *path, cr_place from, int depth,
                          cr_diagnostics *d);

/* `- ../config/traj_envs@_here_`: the content of that file (or of its ..@package) below this one. */
static void include(cr_yaml *yaml, const cr_node *entry, const char *folder, cr_node *root,
                    int depth, cr_diagnostics *d)
{
    const char *text = entry->kind == CR_NODE_TEXT ? entry->text : "";
    size_t n = strcspn(text, "@");
    char *path;
    cr_node *other;

    if (strcmp(text, "_self_") == 0) return;
    if (entry->kind != CR_NODE_TEXT || (text[n] && strcmp(text + n, "@_here_") != 0)) {
        cr_diagnose(
            d, CR_ERROR, entry->place,
            "defaults: only FILE and FILE@_here_ are supported (write the keys here instead)");
        return;
    }
    path = cr_asprintf("%s%.*s.yaml", folder, (int)n, text);
    other = load_file(yaml, path, entry->place, depth + 1, d);
    cr_free(path);
    if (other) merge(yaml, root, other);
}

/* The keys of a file whose bytes these are, with what it includes. */
static cr_node *compose(cr_yaml *yaml, const char *file, const cr_buf *text, int depth,
                        cr_diagnostics *d)
{
    const char *slash = strrchr(file, '/');
    char *folder;
    cr_place start = {file, 1, 1};
    cr_node *own = cri_yaml_parse(yaml, text->data, text->num_bytes, file, d), *root, *defaults;

    if (!own && d->num_errors) return NULL;
    if (!own) own = cr_node_new(yaml, CR_NODE_MAP, start);
    if (own->kind != CR_NODE_MAP) {
        cr_diagnose(d, CR_ERROR, own->place, "the file must be a map of keys, not a %s",
                    own->kind == CR_NODE_LIST ? "list" : "single value");
        return NULL;
    }
    folder = slash ? cr_strndup(file, (size_t)(slash - file) + 1) : cr_strdup("");
    root = cr_node_new(yaml, CR_NODE_MAP, start);
    defaults = cr_node_get(own, "defaults");
    for (size_t i = 0; defaults && defaults->kind == CR_NODE_LIST && i < defaults->num; i++)
        include(yaml, defaults->items[i].value, folder, root, depth, d);
    merge(yaml, root, own);
    if (defaults && defaults->kind == CR_NODE_LIST) remove_key(root, "defaults");
    cr_free(folder);
    return root;
}

static cr_node *load_file(cr_yaml *yaml, const char *path, cr_place from, int depth,
                          cr_diagnostics *d)
{
    const char *file = own_file(yaml, path);
    cr_place start = {file, 1, 1};
    cr_buf text = {0};
    cr_err err = {0};
    cr_node *root = NULL;

    if (depth > MAX_INCLUDES)
        cr_diagnose(d, CR_ERROR, from, "defaults: files include one another more than %d deep",
                    MAX_INCLUDES);
    else if (cr_dir_exists(path))
        cr_diagnose(d, CR_ERROR, from.file ? from : start,
                    "%s is a directory, a YAML file is expected", path);
    else if (cr_file_read(path, &text, &err) != CR_OK)
        cr_diagnose(d, CR_ERROR, from.file ? from : (cr_place){file, 0, 0},
                    "%s (is the file there?)", err.msg);
    else
        root = compose(yaml, file, &text, depth, d);
    cr_buf_free(&text);
    return root;
}

/* ---- overrides ---- */

static void override(cr_yaml *yaml, const char *argument, cr_diagnostics *d)
{
    const char *equals = strchr(argument, '=');
    cr_place place = {"command line", 1, 1};
    cr_node *map = yaml->root, *value;
    char part[256];

    if (!equals || equals == argument) {
        cr_diagnose(d, CR_ERROR, place, "'%.100s' is not an override (key=value is expected)",
                    argument);
        return;
    }
    value = cr_yaml_parse_value(yaml, equals + 1, place, d);
    if (!value) {
        cr_diagnose(d, CR_ERROR, place, "the override of %.*s could not be read",
                    (int)(equals - argument), argument);
        return;
    }
    for (const char *p = argument;;) {
        size_t n = strcspn(p, ".=");
        if (n == 0 || n >= sizeof part) {
            cr_diagnose(d, CR_ERROR, place, "'%.100s': the path has an empty or endless part",
                        argument);
            return;
        }
        memcpy(part, p, n);
        part[n] = 0;
        if (p[n] == '=') break;
        cr_node *next = cr_node_get(map, part);
        if (next && next->kind != CR_NODE_MAP && next->kind != CR_NODE_NULL) {
            cr_diagnose(d, CR_ERROR, place,
                        "'%.100s': %s is a single value and has no keys below it", argument, part);
            return;
        }
        if (!next || next->kind != CR_NODE_MAP) {
            next = cr_node_new(yaml, CR_NODE_MAP, place);
            cr_node_set(yaml, map, part, place, next);
        }
        map = next;
        p += n + 1;
    }
    cr_node_set(yaml, map, part, place, value);
}

/* ---- interpolation ---- */

static bool resolve(cr_yaml *yaml, cr_node **slot, int chain, cr_diagnostics *d);

/* The value that ${path} stands for, resolved; NULL after a diagnostic. */
static cr_node *lookup(cr_yaml *yaml, const char *path, size_t n, cr_place place, int chain,
                       cr_diagnostics *d)
{
    cr_node *map = yaml->root;
    char part[256];

    if (n == 0 || memchr(path, ':', n) || memchr(path, '$', n)) {
        cr_diagnose(d, CR_ERROR, place, "${%.*s}: a dotted path of keys is expected", (int)n, path);
        return NULL;
    }
    for (const char *p = path, *end = path + n;;) {
        size_t k = strcspn(p, ".}");
        struct cr_item *item;
        if (k == 0 || k >= sizeof part) break;
        memcpy(part, p, k);
        part[k] = 0;
        item = cr_node_item(map, part);
        if (!item) break;
        if (!resolve(yaml, &item->value, chain + 1, d)) return NULL;
        map = item->value;
        p += k;
        if (p >= end) return map;
        p++;
    }
    cr_diagnose(d, CR_ERROR, place, "${%.*s}: there is no such key", (int)n, path);
    return NULL;
}

/* Resolve one node in place. Maps and lists that a path leads through are resolved by the walk. */
static bool resolve(cr_yaml *yaml, cr_node **slot, int chain, cr_diagnostics *d)
{
    cr_node *n = *slot;
    cr_buf out = {0};
    const char *p;
    bool has_any = false;

    if (n->kind == CR_NODE_MAP || n->kind == CR_NODE_LIST) return true;
    if (n->kind != CR_NODE_TEXT || !strstr(n->text, "${")) return true;
    if (chain == 0) yaml->resolving = n->place;
    if (chain > MAX_CHAIN) {
        cr_diagnose(d, CR_ERROR, yaml->resolving,
                    "interpolations refer to one another in a circle");
        return false;
    }
    for (p = n->text; *p;) {
        size_t plain = strcspn(p, "$");
        const char *close;
        cr_node *value;
        cr_buf_add(&out, p, plain);
        p += plain;
        if (!*p) break;
        if (p[1] != '{') {
            cr_buf_addc(&out, *p++);
            continue;
        }
        close = strchr(p, '}');
        if (!close) {
            cr_diagnose(d, CR_ERROR, n->place, "'%.60s': a ${ without its }", n->text);
            goto bad;
        }
        value = lookup(yaml, p + 2, (size_t)(close - p - 2), n->place, chain, d);
        if (!value) goto bad;
        has_any = true;
        if (p == n->text && close[1] == 0) { /* the whole value: it keeps its type */
            cr_node *copy = cri_node_copy(yaml, value);
            copy->place = n->place;
            *slot = copy;
            cr_buf_free(&out);
            return true;
        }
        cri_node_text(value, &out);
        p = close + 1;
    }
    if (has_any) {
        cr_node *text = cr_node_new(yaml, CR_NODE_TEXT, n->place);
        text->text = cr_arena_strndup(yaml->arena, out.data ? out.data : "", out.num_bytes);
        *slot = text;
    }
    cr_buf_free(&out);
    return true;
bad:
    cr_buf_free(&out);
    *slot = cr_node_new(yaml, CR_NODE_NULL, n->place); /* told once */
    return false;
}

static void resolve_all(cr_yaml *yaml, cr_node *n, int depth, cr_diagnostics *d)
{
    if (depth > 400) return;
    for (size_t i = 0; i < n->num; i++) {
        resolve(yaml, &n->items[i].value, 0, d);
        resolve_all(yaml, n->items[i].value, depth + 1, d);
    }
}

void cr_yaml_load(cr_yaml *yaml, const char *path, const cr_buf *text, const char *const *overrides,
                  size_t num_overrides, cr_diagnostics *d)
{
    *yaml = (cr_yaml){.arena = cr_arena_create(1 << 16)};
    if (text)
        yaml->root = compose(yaml, own_file(yaml, path), text, 0, d);
    else if (path)
        yaml->root = load_file(yaml, path, (cr_place){0}, 0, d);
    if (!yaml->root) yaml->root = cr_node_new(yaml, CR_NODE_MAP, (cr_place){path, 1, 1});
    if (d->num_errors) return;
    remove_key(yaml->root, "hydra");
    for (size_t i = 0; i < num_overrides; i++)
        override(yaml, overrides[i], d);
    resolve_all(yaml, yaml->root, 0, d);
}
