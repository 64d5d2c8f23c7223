/* tree.c -- the wrapped tree as text (see units.h). Neighbours in a list that are alike, with all that
 * is below them, are written once. */
#include "strategies/units.h"

#include <string.h>

typedef struct node {
    const cr_module *module;
    const cr_unit *unit; /* whose module this is, or NULL */
    size_t size;         /* nodes of this subtree */
} node;

typedef struct tree {
    const cr_units *units;
    node *nodes; /* parents before children */
    size_t num;
    size_t next_unit;
    cr_dtype dtype;
    cr_buf *out;
} tree;

static cr_status count(void *ctx, cr_module *m, cr_err *err)
{
    tree *t = ctx;

    (void)m;
    (void)err;
    t->num++;
    return CR_OK;
}

static void list_nodes(tree *t, const cr_module *m)
{
    size_t at = t->num++;

    t->nodes[at] = (node){.module = m};
    if (t->next_unit < t->units->num && t->units->unit[t->next_unit].module == m)
        t->nodes[at].unit = &t->units->unit[t->next_unit++];
    for (size_t i = 0; i < m->num_children; i++)
        list_nodes(t, m->children[i]);
    t->nodes[at].size = t->num - at;
}

static bool is_same_flat(const cr_flat *a, const cr_flat *b)
{
    return a->num_elems == b->num_elems && a->num_params == b->num_params &&
           a->is_fp32 == b->is_fp32;
}

/* Alike in class, units and elements, all the way down. */
static bool is_same(const node *a, const node *b)
{
    if (a->size != b->size) return false;
    for (size_t i = 0; i < a->size; i++) {
        const node *x = &a[i], *y = &b[i];
        if (strcmp(x->module->cls, y->module->cls) != 0 || x->size != y->size ||
            !x->unit != !y->unit)
            return false;
        if (x->unit && (!is_same_flat(&x->unit->trained, &y->unit->trained) ||
                        !is_same_flat(&x->unit->frozen, &y->unit->frozen)))
            return false;
    }
    return true;
}

static const char *last_part(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot ? dot + 1 : name;
}

/* In a list: "model.layers.3", "model.layers.3.mlp.experts.7". */
static bool is_numbered(const cr_module *m)
{
    const char *part = last_part(m->name);

    return part[0] && part[strspn(part, "0123456789")] == 0;
}

static double mib(double bytes)
{
    return bytes / (1 << 20);
}

static void write_unit(tree *t, const cr_unit *u, size_t num_same)
{
    size_t index = (size_t)(u - t->units->unit), bytes;
    cr_dtype dtype = cr_flat_dtype(&u->trained, t->dtype);
    const cr_flat *trained = &u->trained, *frozen = &u->frozen;

    bytes = cr_dtype_bytes(dtype);
    if (num_same > 1)
        cr_buf_addf(t->out, "%zu units from #%zu, each ", num_same, index);
    else
        cr_buf_addf(t->out, "unit #%zu, ", index);
    cr_buf_addf(t->out, "%lld elements", (long long)(trained->num_elems + frozen->num_elems));
    if (frozen->num_elems) cr_buf_addf(t->out, " (%lld frozen)", (long long)frozen->num_elems);
    cr_buf_addf(t->out, ", %.2f MiB gathered in %s, shard %.2f MiB",
                mib((double)(trained->padded_elems + frozen->padded_elems) * (double)bytes),
                cr_dtype_name(dtype),
                mib((double)trained->shard_elems * (double)sizeof(float) +
                    (double)frozen->shard_elems * (double)bytes));
}

/* num_same: how many subtrees like this one a line stands for. */
static void write_node(tree *t, const node *n, int depth, const char *last, size_t num_here,
                       size_t num_same)
{
    const cr_module *m = n->module;

    cr_buf_addf(t->out, "%*s", 2 * depth, "");
    if (m->parent)
        cr_buf_addf(t->out, "(%s%s%s): ", last_part(m->name), last ? "-" : "", last ? last : "");
    if (num_here > 1) cr_buf_addf(t->out, "%zu x ", num_here);
    if (n->unit) {
        cr_buf_addf(t->out, "FSDP[%s] ", m->cls);
        write_unit(t, n->unit, num_same);
    } else {
        cr_buf_adds(t->out, m->cls);
    }
    cr_buf_adds(t->out, "\n");
    for (const node *c = n + 1, *end = n + n->size; c < end;) {
        const node *same = c + c->size, *final = c;
        size_t num = 1;
        while (is_numbered(c->module) && same < end && is_same(c, same)) {
            final = same;
            same += same->size;
            num++;
        }
        write_node(t, c, depth + 1, num > 1 ? last_part(final->module->name) : NULL, num,
                   num * num_same);
        c = same;
    }
}

static void write_totals(const cr_units *u, cr_buf *out)
{
    const cr_unit *root = &u->unit[0], *largest = NULL;
    int64_t all = u->num_trained + u->num_frozen,
            in_root = root->trained.num_elems + root->frozen.num_elems, max = 0;
    size_t num_tiny = 0;

    for (size_t i = 1; i < u->num; i++) {
        int64_t n = u->unit[i].trained.num_elems + u->unit[i].frozen.num_elems;
        num_tiny += n < 100000;
        if (n > max) max = n, largest = &u->unit[i];
    }
    cr_buf_addf(out, "%zu units on %d shards: %lld elements, %lld of them trained\n", u->num,
                u->num_shards, (long long)all, (long long)u->num_trained);
    if (u->num == 1)
        cr_buf_adds(out, "warning: the whole model is one unit: it is gathered at once, nothing is "
                         "gathered under compute\n");
    else if (in_root * 4 > all)
        cr_buf_addf(out,
                    "warning: the root keeps %.0f %% of the elements, gathered all the time (wrap "
                    "more classes%s)\n",
                    100.0 * (double)in_root / (double)all,
                    root->module->model->config.is_tied ? "; tied embeddings have to be there"
                                                        : ", or wrap_lm_output");
    if (largest && max * 2 > all && u->num > 2)
        cr_buf_addf(out, "warning: %s has %.0f %% of the elements in one unit\n", largest->name,
                    100.0 * (double)max / (double)all);
    if (cr_units_can_diverge(u, root->module->model))
        cr_buf_adds(
            out,
            "warning: experts are units, and those without tokens are not gathered: ranks that "
            "route differently stop with an error (apply_expert_patch: true calls every expert)\n");
    if (num_tiny > 256)
        cr_buf_addf(out,
                    "warning: %zu units have fewer than 100000 elements: their collectives cost "
                    "more time than they save memory\n",
                    num_tiny);
}

void cr_units_write_tree(const cr_units *units, const cr_model *model, cr_dtype param_dtype,
                         cr_buf *out)
{
    tree t = {.units = units, .dtype = param_dtype, .out = out};
    cr_err err = {0};

    cr_note(cr_module_walk(model->root, count, &t, &err));
    t.nodes = CR_NEW_ARRAY(node, t.num);
    t.num = 0;
    list_nodes(&t, model->root);
    write_node(&t, t.nodes, 0, NULL, 1, 1);
    write_totals(units, out);
    cr_free(t.nodes);
}
