/* columns.c -- data_args.columns: columns that are made of others when a row is read. */
#include "configs/bind.h"

#include <string.h>

static char *text_or_null(const cr_node *n)
{
    return n && n->kind == CR_NODE_TEXT && *n->text ? cr_strdup(n->text) : NULL;
}

/* {path: PATH} or {value: TEXT}, with after and role. */
static void bind_map(const struct cr_item *column, const cr_node *map, cr_data_column_part *p,
                     cr_diagnostics *d)
{
    static const char *const keys[] = {"path", "value", "after", "role"};

    for (size_t i = 0; i < map->num; i++) {
        const struct cr_item *item = &map->items[i];
        size_t k = 0;
        while (k < CR_COUNT(keys) && strcmp(keys[k], item->key) != 0)
            k++;
        if (k == CR_COUNT(keys))
            cr_diagnose(d, CR_ERROR, item->place,
                        "columns: %.60s: unknown key %.60s (path, value, after and role are known)",
                        column->key, item->key);
        else if (item->value->kind != CR_NODE_TEXT || !*item->value->text)
            cr_diagnose(d, CR_ERROR, item->place, "columns: %.60s: a text is expected for %s%s",
                        column->key, item->key, k == 1 ? " (quote a number)" : "");
    }
    p->path = text_or_null(cr_node_get(map, "path"));
    p->value = text_or_null(cr_node_get(map, "value"));
    p->after = text_or_null(cr_node_get(map, "after"));
    p->role = text_or_null(cr_node_get(map, "role"));
    if (!cr_node_get(map, "path") == !cr_node_get(map, "value"))
        cr_diagnose(d, CR_ERROR, column->place,
                    "columns: %.60s: path or value is expected, one of them", column->key);
}

static void bind_part(const struct cr_item *column, const cr_node *n, cr_data_column_part *p,
                      cr_diagnostics *d)
{
    if (n->kind == CR_NODE_MAP)
        bind_map(column, n, p, d);
    else if (n->kind == CR_NODE_TEXT && *n->text)
        p->path = cr_strdup(n->text);
    else
        cr_diagnose(
            d, CR_ERROR, column->place,
            "columns: %.60s: a path into the row, {path: .., after: .., role: ..}, {value: ..} "
            "or a list of these is expected",
            column->key);
}

cr_data_column *cri_columns_of(const cr_node *block, size_t *num, cr_diagnostics *d)
{
    const cr_node *map = cr_node_get(block, "columns");
    cr_data_column *out;

    *num = 0;
    if (!map || map->kind != CR_NODE_MAP || map->num == 0) return NULL;
    out = CR_NEW_ARRAY(cr_data_column, map->num);
    for (size_t i = 0; i < map->num; i++) {
        const struct cr_item *item = &map->items[i];
        const cr_node *n = item->value;
        cr_data_column *c = &out[(*num)++];
        c->name = cr_strdup(item->key);
        c->is_list = n->kind == CR_NODE_LIST;
        c->num_parts = c->is_list ? n->num : 1;
        c->parts = CR_NEW_ARRAY(cr_data_column_part, c->num_parts + 1);
        if (c->num_parts == 0)
            cr_diagnose(d, CR_ERROR, item->place, "columns: %.60s: the list is empty", item->key);
        for (size_t k = 0; k < c->num_parts; k++)
            bind_part(item, c->is_list ? n->items[k].value : n, &c->parts[k], d);
    }
    return out;
}

void cri_columns_free(cr_data_column *columns, size_t num)
{
    for (size_t i = 0; i < num; i++) {
        for (size_t k = 0; k < columns[i].num_parts; k++) {
            const cr_data_column_part *p = &columns[i].parts[k];
            char *const texts[] = {p->path, p->value, p->after, p->role};
            for (size_t t = 0; t < CR_COUNT(texts); t++)
                cr_free(texts[t]);
        }
        cr_free(columns[i].parts);
        cr_free(columns[i].name);
    }
    cr_free(columns);
}
