/* read.c -- values of a checked tree, and values put into it. */
#include "configs/bind.h"
#include "configs/yaml/yaml_impl.h"

#include <string.h>

char *cri_text_of(const cr_node *map, const char *key)
{
    const cr_node *n = cr_node_get(map, key);
    cr_buf out = {0};

    if (!n || n->kind == CR_NODE_NULL) return NULL;
    if (n->kind == CR_NODE_TEXT) return cr_strdup(n->text);
    cr_node_write_json(n, &out);
    return out.data;
}

int64_t cri_int_of(const cr_node *map, const char *key)
{
    const cr_node *n = cr_node_get(map, key);

    return n && n->kind == CR_NODE_INT ? n->integer : 0;
}

double cri_real_of(const cr_node *map, const char *key)
{
    const cr_node *n = cr_node_get(map, key);

    return n && n->kind == CR_NODE_REAL  ? n->real
           : n && n->kind == CR_NODE_INT ? (double)n->integer
                                         : 0;
}

bool cri_is_given(const cr_node *map, const char *key)
{
    const cr_node *n = cr_node_get(map, key);

    return n && n->kind != CR_NODE_NULL;
}

bool cri_is_in_file(const cr_node *map, const char *key)
{
    const cr_node *n = cr_node_get(map, key);

    return n && n->kind != CR_NODE_NULL && n->place.line > 0;
}

bool cri_flag_of(const cr_node *map, const char *key)
{
    const cr_node *n = cr_node_get(map, key);

    return n && n->kind == CR_NODE_BOOL && n->flag;
}

char **cri_texts_of(const cr_node *map, const char *key, size_t *num)
{
    const cr_node *n = cr_node_get(map, key);
    char **out;

    *num = 0;
    if (!n || n->kind == CR_NODE_NULL) return NULL;
    if (n->kind != CR_NODE_LIST) {
        out = CR_NEW_ARRAY(char *, 1);
        out[(*num)++] = cri_text_of(map, key);
        return out;
    }
    out = CR_NEW_ARRAY(char *, n->num + 1);
    for (size_t i = 0; i < n->num; i++) {
        cr_buf b = {0};
        if (n->items[i].value->kind == CR_NODE_TEXT)
            cr_buf_adds(&b, n->items[i].value->text);
        else
            cr_node_write_json(n->items[i].value, &b);
        out[(*num)++] = b.data ? b.data : cr_strdup("");
    }
    return out;
}

char **cri_envs_of(const cr_node *block, bool is_run, cr_diagnostics *d)
{
    const cr_node *map = cr_node_get(block, "system_envs");
    char **out;
    size_t num = 0;

    if (!map || map->kind != CR_NODE_MAP || map->num == 0) return NULL;
    out = CR_NEW_ARRAY(char *, map->num + 1);
    for (size_t i = 0; i < map->num; i++) {
        const struct cr_item *item = &map->items[i];
        cr_node_kind kind = item->value->kind;
        if (!*item->key || strchr(item->key, '=') || kind == CR_NODE_NULL || kind == CR_NODE_LIST ||
            kind == CR_NODE_MAP) {
            cr_diagnose(d, CR_ERROR, item->place, "system_envs: %.60s needs one text as its value",
                        item->key);
        } else if (!is_run && cri_is_secret(item->key)) {
            cr_diagnose(d, CR_ERROR, item->place,
                        "system_envs: %.60s is hidden in the run's config.yaml, which the ranks "
                        "read (put it into system_envs of the run)",
                        item->key);
        } else {
            char *value = cri_text_of(map, item->key);
            out[num++] = cr_asprintf("%s=%s", item->key, value);
            cr_free(value);
        }
    }
    return out;
}

cr_place cri_place_of(const cr_config *c, const char *dotted)
{
    const cr_node *n = cr_node_at(c->yaml.root, dotted);

    return n && n->place.line ? n->place : (cr_place){c->path, 1, 1};
}

void cri_set_int(cr_config *c, cr_node *map, const char *key, int64_t value)
{
    cr_node *n = cr_node_new(&c->yaml, CR_NODE_INT, (cr_place){c->path, 0, 0});

    n->integer = value;
    cr_node_set(&c->yaml, map, key, n->place, n);
}

void cri_set_flag(cr_config *c, cr_node *map, const char *key, bool value)
{
    cr_node *n = cr_node_new(&c->yaml, CR_NODE_BOOL, (cr_place){c->path, 0, 0});

    n->flag = value;
    cr_node_set(&c->yaml, map, key, n->place, n);
}

void cri_set_text(cr_config *c, cr_node *map, const char *key, const char *value)
{
    cr_node *n = cr_node_new(&c->yaml, CR_NODE_TEXT, (cr_place){c->path, 0, 0});

    n->text = cr_arena_strndup(c->yaml.arena, value, strlen(value));
    cr_node_set(&c->yaml, map, key, n->place, n);
}

/* A block that was left out, with all its defaults. */
cr_node *cri_block_of(cr_config *c, cr_node *map, const char *key, const char *block,
                      cr_diagnostics *d)
{
    cr_node *n = cr_node_get(map, key);

    if (n && n->kind == CR_NODE_MAP) return n;
    n = cri_check_block(&c->yaml, block,
                        cr_node_new(&c->yaml, CR_NODE_MAP, (cr_place){c->path, 0, 0}), d);
    cr_node_set(&c->yaml, map, key, n->place, n);
    return n;
}
