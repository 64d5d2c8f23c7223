/* compose.c -- files into one tree: `defaults`, overrides, interpolation (see yaml.h). */
#include "configs/yaml/yaml_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_INCLUDES = 16, MAX_CHAIN = 50, MAX_INTERPOLATED = 1 << 24 };

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
    if (!equals[1 + strspn(equals + 1, " ")]) {
        cr_diagnose(d, CR_ERROR, place, "'%.100s' gives no value (KEY=null means the default)",
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

static bool resolve(cr_yaml *yaml, struct cr_item *item, int chain, cr_diagnostics *d);

/* ${oc.env:NAME} or ${oc.env:NAME,default}: a text; alone in its value, a number or a boolean that it reads as. NULL after a diagnostic. */
static cr_node *from_environment(cr_yaml *yaml, const char *path, size_t n, bool is_alone,
                                 cr_place place, cr_diagnostics *d)
{
    const char *comma = memchr(path, ',', n), *value;
    size_t name_bytes = comma ? (size_t)(comma - path) : n;
    char *name = cr_strndup(path, name_bytes), *standard = NULL;
    cr_diagnostics ignored = {0};
    cr_node *text = NULL, *read;

    if (comma) standard = cr_strndup(comma + 1, n - name_bytes - 1);
    value = getenv(name);
    if (!value) value = standard;
    if (!value) {
        cr_diagnose(d, CR_ERROR, place,
                    "${oc.env:%s}: this variable is not in the environment (${oc.env:%s,default} "
                    "gives a default)",
                    name, name);
    } else {
        text = cr_node_new(yaml, CR_NODE_TEXT, place);
        text->text = cr_arena_strndup(yaml->arena, value, strlen(value));
        read = is_alone ? cr_yaml_parse_value(yaml, value, place, &ignored) : NULL;
        if (read && read->kind != CR_NODE_LIST && read->kind != CR_NODE_MAP) text = read;
    }
    cr_diagnostics_free(&ignored);
    cr_free(name);
    cr_free(standard);
    return text;
}

/* The value that ${path} stands for, resolved; NULL after a diagnostic. */
static cr_node *lookup(cr_yaml *yaml, const char *path, size_t n, bool is_alone, cr_place place,
                       int chain, cr_diagnostics *d)
{
    static const char env[] = "oc.env:";
    cr_node *map = yaml->root;
    char part[256];

    if (n > strlen(env) && strncmp(path, env, strlen(env)) == 0)
        return from_environment(yaml, path + strlen(env), n - strlen(env), is_alone, place, d);
    if (n == 0 || memchr(path, ':', n) || memchr(path, '$', n)) {
        cr_diagnose(d, CR_ERROR, place,
                    "${%.*s}: a dotted path of keys is expected, or oc.env:NAME; other resolvers, "
                    "and one ${ in another, are not supported",
                    (int)n, path);
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
        item->is_read = true;
        if (!resolve(yaml, item, chain + 1, d)) return NULL;
        map = item->value;
        p += k;
        if (p >= end) return map;
        p++;
    }
    cr_diagnose(d, CR_ERROR, place, "${%.*s}: there is no such key", (int)n, path);
    return NULL;
}

/* The text of a value with what its interpolations stand for, or, if it is one of them and nothing else, what that stands
 * for; NULL after a diagnostic. */
static cr_node *expand(cr_yaml *yaml, const char *key, const cr_node *n, int chain, cr_buf *out,
                       cr_diagnostics *d)
{
    cr_node *value;

    for (const char *p = n->text, *close; *p; p = close + 1) {
        bool is_alone;
        while (*p && strncmp(p, "${", 2) != 0)
            cr_buf_addc(out, *p++);
        if (!*p) break;
        close = strchr(p, '}');
        if (!close) {
            cr_diagnose(d, CR_ERROR, n->place, "'%.60s': a ${ without its }", n->text);
            return NULL;
        }
        is_alone = p == n->text && close[1] == 0;
        value = lookup(yaml, p + 2, (size_t)(close - p - 2), is_alone, n->place, chain, d);
        if (!value) return NULL;
        if (is_alone) { /* it keeps its type */
            value = cri_node_copy(yaml, value);
            value->place = n->place;
            return value;
        }
        cri_node_text(value, out);
        if (yaml->interpolated_bytes + out->num_bytes > MAX_INTERPOLATED) {
            cr_diagnose(d, CR_ERROR, n->place,
                        "%s%s'%.60s': the texts of all interpolations have more than %d bytes",
                        key ? key : "", key ? ": " : "", n->text, MAX_INTERPOLATED);
            return NULL;
        }
    }
    yaml->interpolated_bytes += out->num_bytes;
    value = cr_node_new(yaml, CR_NODE_TEXT, n->place);
    value->text = cr_arena_strndup(yaml->arena, out->data ? out->data : "", out->num_bytes);
    return value;
}

/* Resolve one value in place. Maps and lists that a path leads through are resolved by the walk. */
static bool resolve(cr_yaml *yaml, struct cr_item *item, int chain, cr_diagnostics *d)
{
    const cr_node *n = item->value;
    cr_node *value = NULL;
    cr_buf out = {0};

    if (n->kind != CR_NODE_TEXT || !strstr(n->text, "${")) return true;
    if (chain == 0) yaml->resolving = n->place;
    if (chain > MAX_CHAIN)
        cr_diagnose(d, CR_ERROR, yaml->resolving,
                    "interpolations refer to one another in a circle");
    else
        value = expand(yaml, item->key, n, chain, &out, d);
    cr_buf_free(&out);
    item->value = value ? value : cr_node_new(yaml, CR_NODE_NULL, n->place); /* reported once */
    return value != NULL;
}

static void resolve_all(cr_yaml *yaml, cr_node *n, int depth, cr_diagnostics *d)
{
    if (depth > 400) return;
    for (size_t i = 0; i < n->num; i++) {
        resolve(yaml, &n->items[i], 0, d);
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
