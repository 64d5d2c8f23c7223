/* optimizer.c -- see optimizer.h. */
#include "strategies/optimizer.h"
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
        if (r->weight_decay >= 0) out[i].weight_decay = r->weight_decay;
    }
    cr_pattern_close(m.pattern);
    if (err->status == CR_OK && !is_found) return no_match(model, r, rule > 0, err);
    return err->status;
}

cr_status cr_optimizer_choose(const cr_model *model, const cr_optimizer_options *o,
                              double weight_decay, cr_param_choice *out, cr_err *err)
{
    for (size_t i = 0; i < model->num_params; i++)
        out[i] = (cr_param_choice){-1, 1, weight_decay};
    for (size_t r = 0; r < o->num_rules; r++)
        CR_TRY(take(model, o, r, out, err));
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

static void write_group(const cr_model *model, const cr_param_choice *choices, int rule, double lr,
                        cr_buf *out)
{
    names n = {CR_NEW_ARRAY(char *, model->num_params), CR_NEW_ARRAY(int64_t, model->num_params),
               0};
    const cr_param_choice *first = NULL;
    int64_t tensors = 0, elems = 0;

    for (size_t i = 0; i < model->num_params; i++) {
        if (!model->params[i]->is_trainable || choices[i].rule != rule) continue;
        if (!first) first = &choices[i];
        tensors++;
        elems += model->params[i]->num_elems;
        count_name(&n, model->params[i]->name);
    }
    if (first)
        cr_buf_addf(out, "learning_rate %g, weight_decay %g: %lld tensor%s, %lld elements:",
                    lr * first->lr_scale, first->weight_decay, (long long)tensors,
                    tensors == 1 ? "" : "s", (long long)elems);
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
    for (int r = 0; r < (int)o->num_rules; r++)
        write_group(model, choices, r, lr, out);
    write_group(model, choices, -1, lr, out);
}
