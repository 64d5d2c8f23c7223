/* table.c -- see table.h. */
#include "pipelines/eval/table.h"

#include <stdio.h>
#include <string.h>

/* ---- the object ---- */

static void add_key(cr_buf *out, const char *key)
{
    char last = out->num_bytes ? out->data[out->num_bytes - 1] : '{';

    if (last != '{' && last != '[') cr_buf_addc(out, ',');
    cr_json_add_string(out, key, strlen(key));
    cr_buf_addc(out, ':');
}

static void add_text(cr_buf *out, const char *key, const char *text)
{
    add_key(out, key);
    if (text)
        cr_json_add_string(out, text, strlen(text));
    else
        cr_buf_adds(out, "null");
}

static void add_count(cr_buf *out, const char *key, size_t x)
{
    add_key(out, key);
    cr_buf_addf(out, "%zu", x);
}

static void add_number(cr_buf *out, const char *key, double x, cr_err *err)
{
    add_key(out, key);
    cr_note(cr_json_add_double(out, x, err));
}

/* fraction: the same exactly, or NULL. */
static void add_share(cr_buf *out, const char *key, double value, double num_prompts,
                      const char *fraction, cr_err *err)
{
    double low, high;

    cr_wilson(value, num_prompts, &low, &high);
    add_key(out, key);
    cr_buf_addc(out, '{');
    add_number(out, "value", value, err);
    add_number(out, "low", low, err);
    add_number(out, "high", high, err);
    if (fraction) add_text(out, "fraction", fraction);
    cr_buf_addc(out, '}');
}

static void add_label(cr_buf *out, const cr_validation_label *l, cr_err *err)
{
    char key[32];

    add_key(out, l->name);
    cr_buf_addc(out, '{');
    add_count(out, "prompts", l->num_prompts);
    add_count(out, "samples", (size_t)l->num + l->num_without);
    add_count(out, "without_verdict", l->num_without);
    if (l->num > 0) {
        add_number(out, "score", l->score / l->num, err);
        add_share(out, "right", l->right / l->num, l->groups[0], NULL, err);
    }
    for (int e = 0; e <= CR_MAX_K && l->groups[e] > 0; e++) {
        char *fraction = cr_pass_fraction(l->counts, l->num_counts, (size_t)1 << e);
        snprintf(key, sizeof key, "pass@%d", 1 << e);
        add_share(out, key, l->pass[e] / l->groups[e], l->groups[e], fraction, err);
        cr_free(fraction);
    }
    for (int e = 1; e <= CR_MAX_K && l->groups[e] > 0; e++) {
        snprintf(key, sizeof key, "maj@%d", 1 << e);
        add_share(out, key, l->maj[e] / l->groups[e], l->groups[e], NULL, err);
    }
    cr_buf_addc(out, '}');
}

static void add_labels(cr_buf *out, const char *key, const cr_validation *v, bool are_domains,
                       cr_err *err)
{
    add_key(out, key);
    cr_buf_addc(out, '{');
    for (size_t i = 1; i < v->num; i++)
        if (v->labels[i].is_domain == are_domains) add_label(out, &v->labels[i], err);
    cr_buf_addc(out, '}');
}

cr_status cr_eval_table_write(const cr_config *c, const cr_validation *v, cr_buf *out, cr_err *err)
{
    const cr_validation_label *all = &v->labels[0];

    cr_buf_addc(out, '{');
    add_text(out, "model", c->infer.model_path);
    if (c->val_adapter) add_text(out, "adapter", c->val_adapter);
    add_count(out, "samples_a_prompt", (size_t)c->validation.generating.num_return_sequences);
    add_count(out, "prompts", all->num_prompts);
    add_count(out, "samples", (size_t)all->num + all->num_without);
    add_count(out, "without_verdict", all->num_without);
    add_label(out, all, err);
    add_labels(out, "tags", v, false, err);
    add_labels(out, "domains", v, true, err);
    cr_buf_adds(out, "}\n");
    return err->status;
}

/* ---- text ---- */

static double number_of(const json_t *x, const char *key)
{
    return json_number_value(json_object_get(x, key));
}

static void text_label(const char *kind, const char *name, const json_t *label, cr_buf *out)
{
    const char *key;
    json_t *share;
    double without = number_of(label, "without_verdict");

    cr_buf_addf(out, "\n%s%s: %.0f prompts, %.0f samples", kind, name, number_of(label, "prompts"),
                number_of(label, "samples"));
    if (without > 0) cr_buf_addf(out, ", %.0f of them without a verdict (left out)", without);
    cr_buf_adds(out, "\n                 mean   95 % interval     exact\n");
    if (json_object_get(label, "score"))
        cr_buf_addf(out, "  score     %10.4f\n", number_of(label, "score"));
    json_object_foreach((json_t *)(uintptr_t)label, key, share)
    {
        const char *fraction = json_string_value(json_object_get(share, "fraction"));
        if (!json_is_object(share)) continue;
        cr_buf_addf(out, "  %-10s%10.4f   %.4f to %.4f  %s\n", key, number_of(share, "value"),
                    number_of(share, "low"), number_of(share, "high"),
                    fraction && strlen(fraction) <= 32 ? fraction
                    : fraction                         ? "(in eval.json)"
                                                       : "");
    }
}

/* Where there is one label alone, it says what `all` says. */
static void text_labels(const char *kind, const json_t *labels, cr_buf *out)
{
    const char *name;
    json_t *label;

    if (json_object_size(labels) < 2) return;
    json_object_foreach((json_t *)(uintptr_t)labels, name, label)
        text_label(kind, name, label, out);
}

void cr_eval_table_text(const json_t *t, cr_buf *out)
{
    const char *model = json_string_value(json_object_get(t, "model")),
               *adapter = json_string_value(json_object_get(t, "adapter"));

    cr_buf_addf(out, "%s%s%s, %.0f samples a prompt\n", model ? model : "", adapter ? " with " : "",
                adapter ? adapter : "", number_of(t, "samples_a_prompt"));
    text_label("", "all", json_object_get(t, "all"), out);
    text_labels("tag ", json_object_get(t, "tags"), out);
    text_labels("domain ", json_object_get(t, "domains"), out);
}
