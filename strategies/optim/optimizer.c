/* optimizer.c -- see optimizer.h. */
#include "strategies/optim/optimizer.h"
#include "base/pattern.h"

#include <string.h>

/* One of a rule's words, or its regular expression. */
typedef struct matcher {
    const char *text;
    cr_pattern *pattern; /* or NULL */
} matcher;

static bool is_end_of(const char *name, const char *word, size_t num_word)
{
    size_t num = strlen(name);

    return num >= num_word && memcmp(name + num - num_word, word, num_word) == 0 &&
           (num == num_word || name[num - num_word - 1] == '.');
}

static cr_status matches(const matcher *m, const char *name, bool *is_so, cr_err *err)
{
    size_t at = 0, num;

    *is_so = false;
    if (m->pattern) return cr_pattern_next(m->pattern, name, strlen(name), &at, is_so, err);
    for (const char *word = m->text; *word && !*is_so; word += num + (word[num] == ',')) {
        word += strspn(word, " ");
        num = strcspn(word, ",");
        *is_so = num && is_end_of(name, word, num);
    }
    return CR_OK;
}

static cr_status no_match(const cr_model *model, const cr_param_rule *rule, bool has_earlier,
                          cr_err *err)
{
    const char **names = CR_NEW_ARRAY(const char *, model->num_params), *near;
    size_t num = 0;

    for (size_t i = 0; i < model->num_params; i++)
        if (model->params[i]->is_trainable) names[num++] = model->params[i]->name;
    near = cr_nearest(rule->params, names, num);
    cr_fail(err, CR_ECONFIG, "param_groups: no trained parameter%s is named '%.200s' (%s %s)",
            has_earlier ? " that an earlier group has left" : "", rule->params,
            near  ? "the nearest is"
            : num ? "one of them is"
                  : "none is trained:",
            near  ? near
            : num ? names[num - 1]
                  : "all are frozen");
    cr_free(names);
    return err->status;
}

static cr_status take(const cr_model *model, const cr_optimizer_options *o, size_t rule,
                      cr_param_choice *out, cr_err *err)
{
    const cr_param_rule *r = &o->rules[rule];
    matcher m = {.text = r->params};
    bool is_found = false, is_so;

    if (cr_adapter_is_pattern(r->params)) {
        char *whole = cr_asprintf("\\A(?:%s)\\z", r->params);
        if (cr_pattern_open(whole, &m.pattern, err) != CR_OK)
            cr_fail_add(err, "param_groups: '%.200s'", r->params);
        cr_free(whole);
    }
    for (size_t i = 0; i < model->num_params && err->status == CR_OK; i++) {
        if (!model->params[i]->is_trainable || out[i].rule >= 0) continue;
        if (matches(&m, model->params[i]->name, &is_so, err) != CR_OK || !is_so) continue;
        is_found = true;
        out[i].rule = (int)rule;
        out[i].lr_scale = r->lr_scale;
        out[i].is_muon &= !r->is_adamw;
        if (r->weight_decay >= 0) out[i].weight_decay = r->weight_decay;
    }
    cr_pattern_close(m.pattern);
    if (err->status == CR_OK && !is_found) return no_match(model, r, rule > 0, err);
    return err->status;
}

/* Matrices of hidden layers. */
static void choose_muon(const cr_module *m, const cr_muon_options *o, double weight_decay,
                        cr_param_choice *out)
{
    const cr_param *w = m->weight;

    if (w && w->is_trainable && w->is_product && w->num_dims == 2 && !m->is_lookup &&
        !m->is_lm_head && !w->is_shared && !w->is_added && !w->is_adapter && !w->copy_of)
        out[w->index] = (cr_param_choice){
            -1, o->lr_scale, o->weight_decay >= 0 ? o->weight_decay : weight_decay, true};
    for (size_t i = 0; i < m->num_children; i++)
        choose_muon(m->children[i], o, weight_decay, out);
}

cr_status cr_optimizer_choose(const cr_model *model, const cr_optimizer_options *o,
                              double weight_decay, cr_param_choice *out, cr_err *err)
{
    bool has_muon = false;

    for (size_t i = 0; i < model->num_params; i++)
        out[i] = (cr_param_choice){-1, 1, weight_decay, false};
    if (o->muon.is_on) choose_muon(model->root, &o->muon, weight_decay, out);
    for (size_t r = 0; r < o->num_rules; r++)
        CR_TRY(take(model, o, r, out, err));
    for (size_t i = 0; i < model->num_params; i++)
        has_muon |= out[i].is_muon;
    if (o->muon.is_on && !has_muon)
        return cr_fail(err, CR_ECONFIG,
                       "optim: muon: no matrix is trained by it (it has weights of Linears and "
                       "experts, but those of adapters, heads and groups with optim: adamw_torch)");
    return CR_OK;
}

/* ---- as text ---- */

/* A name with * for its numbers. */
static void add_name(const char *name, cr_buf *out)
{
    for (const char *part = name; part; part = strchr(part, '.') ? strchr(part, '.') + 1 : NULL) {
        size_t num = strcspn(part, ".");
        if (part > name) cr_buf_addc(out, '.');
        if (strspn(part, "0123456789") == num)
            cr_buf_addc(out, '*');
        else
            cr_buf_add(out, part, num);
    }
}

typedef struct names {
    char **name; /* [num] (owned) */
    int64_t *num_of;
    size_t num;
} names;

static void count_name(names *n, const char *name)
{
    cr_buf text = {0};
    size_t i = 0;

    add_name(name, &text);
    while (i < n->num && strcmp(n->name[i], text.data) != 0)
        i++;
    n->num_of[i]++;
    if (i < n->num)
        cr_buf_free(&text);
    else
        n->name[n->num++] = text.data;
}

/* Those of a rule that Muon has, or AdamW. */
static void write_group(const cr_model *model, const cr_param_choice *choices, int rule,
                        bool is_muon, double lr, cr_buf *out)
{
    names n = {CR_NEW_ARRAY(char *, model->num_params), CR_NEW_ARRAY(int64_t, model->num_params),
               0};
    const cr_param_choice *first = NULL;
    int64_t tensors = 0, elems = 0;

    for (size_t i = 0; i < model->num_params; i++) {
        if (!model->params[i]->is_trainable || choices[i].rule != rule ||
            choices[i].is_muon != is_muon)
            continue;
        if (!first) first = &choices[i];
        tensors++;
        elems += model->params[i]->num_elems;
        count_name(&n, model->params[i]->name);
    }
    if (first)
        cr_buf_addf(out, "%s, learning_rate %g, weight_decay %g: %lld tensor%s, %lld elements:",
                    is_muon ? "muon" : "adamw", lr * first->lr_scale, first->weight_decay,
                    (long long)tensors, tensors == 1 ? "" : "s", (long long)elems);
    for (size_t i = 0; i < n.num; i++) {
        cr_buf_addf(out, "%s %s", i ? "," : "", n.name[i]);
        if (n.num_of[i] > 1) cr_buf_addf(out, " (%lld)", (long long)n.num_of[i]);
        cr_free(n.name[i]);
    }
    if (first) cr_buf_addc(out, '\n');
    cr_free(n.name);
    cr_free(n.num_of);
}

void cr_optimizer_write(const cr_model *model, const cr_optimizer_options *o,
                        const cr_param_choice *choices, double lr, cr_buf *out)
{
    for (int k = 0; k <= (int)o->num_rules; k++)
        for (int is_muon = 0; is_muon < 2; is_muon++)
            write_group(model, choices, k < (int)o->num_rules ? k : -1, is_muon, lr, out);
}
