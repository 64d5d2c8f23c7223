/* terms_show.c -- terms/step-N.jsonl for people (see terms_file.h). */
#include "pipelines/why/terms_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* NaN: null, or not there. */
static double number(const json_t *of, const char *name)
{
    const json_t *x = json_object_get(of, name);

    return json_is_number(x) ? json_number_value(x) : NAN;
}

static double sum_of(const json_t *sample, const char *name)
{
    return number(json_object_get(sample, "sums"), name);
}

static void add_terms(const json_t *of, const char *name, cr_buf *out)
{
    cr_buf_addf(out, "%s %.9g = pg %.6g", name, sum_of(of, "total"), sum_of(of, "pg"));
    if (sum_of(of, "kl") != 0) cr_buf_addf(out, " + kl %.6g", sum_of(of, "kl"));
    if (sum_of(of, "entropy") != 0) cr_buf_addf(out, " + entropy %.6g", sum_of(of, "entropy"));
    cr_buf_addf(out, ", a mean over %.0f update%s", sum_of(of, "updates"),
                sum_of(of, "updates") == 1 ? "" : "s");
}

/* ---- a step ---- */

static int by_gradient(const void *a, const void *b)
{
    const double x = sum_of(*(json_t *const *)a, "gradient"),
                 y = sum_of(*(json_t *const *)b, "gradient");

    return (x < y) - (x > y);
}

/* Of a part of the step: its share of the gradient, in per cent. */
static double share(const cri_terms_file *f, const json_t *sample)
{
    const double all = sum_of(f->head, "gradient");

    return all > 0 ? 100 * sum_of(sample, "gradient") / all : 0;
}

void cri_terms_show_step(const cri_terms_file *f, size_t max_samples, cr_buf *out)
{
    const size_t num = json_array_size(f->samples);
    json_t **order = CR_NEW_ARRAY(json_t *, num + 1), *one;
    const bool has_critic = json_object_get(json_object_get(f->head, "sums"), "critic");
    size_t i;

    json_array_foreach(f->samples, i, one) order[i] = one;
    qsort(order, num, sizeof *order, by_gradient);
    cr_buf_addf(out, "step %.0f, %zu samples\n", number(f->head, "step"), num);
    add_terms(f->head, "actor/total_loss", out);
    if (has_critic) cr_buf_addf(out, "\ncritic/loss %.9g", sum_of(f->head, "critic"));
    cr_buf_addf(out, "\n\n%-16s %5s %9s %9s %11s %11s %11s %11s%s\n", "sample", "group", "reward",
                "gradient", "total", "pg", "kl", "entropy", has_critic ? "      critic" : "");
    for (i = 0; i < num && i < max_samples; i++) {
        const json_t *x = order[i];
        cr_buf_addf(out, "%-16s %5.0f %9.4g %8.2f%% %11.4g %11.4g %11.4g %11.4g",
                    json_string_value(json_object_get(x, "id")), number(x, "group"),
                    number(json_object_get(x, "advantage"), "reward"), share(f, x),
                    sum_of(x, "total"), sum_of(x, "pg"), sum_of(x, "kl"), sum_of(x, "entropy"));
        if (has_critic) cr_buf_addf(out, " %11.4g", sum_of(x, "critic"));
        cr_buf_addc(out, '\n');
    }
    if (i < num) cr_buf_addf(out, ".. %zu more (--json has all)\n", num - i);
    cr_free(order);
}

/* ---- columns of a sample's tokens ---- */

enum { MAX_COLUMNS = 24 };

typedef struct table {
    const json_t *ids;
    const cr_tokenizer *tokenizer;
    struct table_column {
        const char *name;
        const json_t *x;
    } columns[MAX_COLUMNS];
    size_t num;
} table;

static double at_token(const json_t *x, size_t t)
{
    if (json_is_array(x)) x = json_array_get(x, t);
    return json_is_number(x) ? json_number_value(x) : NAN;
}

static void add_column(table *t, const json_t *of, const char *member, const char *name)
{
    const json_t *x = json_object_get(of, member);

    if (x && t->num < MAX_COLUMNS) t->columns[t->num++] = (struct table_column){name, x};
}

/* As JSON without its quotes, so that it is of one line; at most 12 characters. */
static void add_piece(const table *t, size_t i, cr_buf *out)
{
    cr_buf piece = {0}, text = {0};
    size_t num = 0, end = 1;

    if (!t->tokenizer) return;
    cr_tokenizer_piece(t->tokenizer, (int32_t)json_integer_value(json_array_get(t->ids, i)),
                       &piece);
    cr_json_add_string(&text, piece.data ? piece.data : "", piece.num_bytes);
    while (end + 1 < text.num_bytes && num < 12) {
        end++;
        while (((unsigned char)text.data[end] & 0xC0) == 0x80)
            end++;
        num++;
    }
    cr_buf_addf(out, " %.*s%*s", (int)(end - 1), text.data + 1, 12 - (int)num, "");
    cr_buf_free(&piece);
    cr_buf_free(&text);
}

/* What all tokens have in common first, then a line for each token. */
static void show_table(const table *t, const char *title, cr_buf *out)
{
    const size_t num = json_array_size(t->ids);
    size_t num_single = 0;

    cr_buf_addf(out, "\n%s\n", title);
    for (size_t k = 0; k < t->num; k++) {
        if (json_is_array(t->columns[k].x)) continue;
        cr_buf_addf(out, "%s %s %.6g", num_single++ ? "," : "  all tokens:", t->columns[k].name,
                    at_token(t->columns[k].x, 0));
    }
    if (num_single) cr_buf_addc(out, '\n');
    if (num_single == t->num) return;
    cr_buf_addf(out, "  %5s %7s%s", "token", "id", t->tokenizer ? " text        " : "");
    for (size_t k = 0; k < t->num; k++)
        if (json_is_array(t->columns[k].x)) cr_buf_addf(out, " %12s", t->columns[k].name);
    cr_buf_addc(out, '\n');
    for (size_t i = 0; i < num; i++) {
        cr_buf_addf(out, "  %5zu %7lld", i,
                    (long long)json_integer_value(json_array_get(t->ids, i)));
        add_piece(t, i, out);
        for (size_t k = 0; k < t->num; k++)
            if (json_is_array(t->columns[k].x))
                cr_buf_addf(out, " %12.6g", at_token(t->columns[k].x, i));
        cr_buf_addc(out, '\n');
    }
}

/* ---- a sample ---- */

/* "(reward 1 - mean 0.5) / std 0.53 = 0.94", where it was normalised. */
static void add_normalised(const json_t *x, cr_buf *out)
{
    if (!json_object_get(x, "normalised")) return;
    cr_buf_addf(out, ": (reward %.6g - mean %.6g) / std %.6g = %.6g", number(x, "reward"),
                number(x, "mean"), number(x, "std"), number(x, "normalised"));
}

static void show_advantage(const json_t *sample, table t, cr_buf *out)
{
    const json_t *a = json_object_get(sample, "advantage"), *of = json_object_get(sample, "tokens"),
                 *one;
    json_t *step;
    const char *name;
    size_t i;

    cr_buf_adds(out, "\nof what its advantage was made\n");
    json_array_foreach(json_object_get(a, "rewards"), i, one)
    {
        cr_buf_addf(out, "  %s: %s, reward %.6g, weight %.6g",
                    json_string_value(json_object_get(one, "block")),
                    json_string_value(json_object_get(one, "status")), number(one, "reward"),
                    number(one, "weight"));
        add_normalised(one, out);
        cr_buf_addc(out, '\n');
    }
    cr_buf_adds(out, "  normalised");
    add_normalised(a, out);
    cr_buf_addf(out, "; used %.6g\n", number(a, "used"));
    add_column(&t, of, "kl", "kl");
    add_column(&t, of, "opd_kl", "opd_kl");
    add_column(&t, of, "values", "values");
    add_column(&t, of, "final", "final_mask");
    json_object_foreach(json_object_get(a, "steps"), name, step)
    {
        add_column(&t, json_object_get(a, "steps"), name, name);
    }
    show_table(&t, "  its tokens after each step", out);
}

static void show_update(const json_t *sample, const json_t *update, table t, cr_buf *out)
{
    static const char *const names[][2] = {{"log_probs", "log_prob"},
                                           {"old", "old"},
                                           {"ratio", "ratio"},
                                           {"cut", "cut"},
                                           {"is_weight", "is_weight"},
                                           {"weight", "weight"},
                                           {"pg", "pg"},
                                           {"kl", "kl"},
                                           {"entropy", "entropy"},
                                           {"entropy_term", "entropy term"},
                                           {"grad_log_probs", "d log_prob"},
                                           {"grad_kl", "of it kl"},
                                           {"grad_entropy", "d entropy"}};
    const json_t *of = json_object_get(sample, "tokens");
    cr_buf title = {0};

    cr_buf_addf(&title, "update %.0f", number(update, "update"));
    add_column(&t, of, "infer", "sampler");
    add_column(&t, of, "ref", "reference");
    add_column(&t, of, "teacher", "teacher");
    add_column(&t, of, "advantages", "advantage");
    add_column(&t, update, "sample_weight", "sample weight");
    for (size_t k = 0; k < CR_COUNT(names); k++)
        add_column(&t, update, names[k][0], names[k][1]);
    show_table(&t, title.data, out);
    cr_buf_free(&title);
}

static void show_critic(const json_t *update, table t, cr_buf *out)
{
    static const char *const names[][2] = {{"values", "value"},
                                           {"old_values", "old value"},
                                           {"returns", "return"},
                                           {"loss", "loss"},
                                           {"grad_values", "d value"}};
    cr_buf title = {0};

    cr_buf_addf(&title, "update %.0f of the critic", number(update, "update"));
    for (size_t k = 0; k < CR_COUNT(names); k++)
        add_column(&t, update, names[k][0], names[k][1]);
    show_table(&t, title.data, out);
    cr_buf_free(&title);
}

void cri_terms_show_sample(const cri_terms_file *f, json_t *sample, const cr_tokenizer *tokenizer,
                           cr_buf *out)
{
    const table t = {.ids = json_object_get(json_object_get(sample, "tokens"), "ids"),
                     .tokenizer = tokenizer};
    const json_t *response = json_object_get(sample, "response"), *update;
    size_t i;

    cr_buf_addf(out, "sample %s of step %.0f: group %.0f, domain %s, %s, %zu tokens\n  response ",
                json_string_value(json_object_get(sample, "id")), number(f->head, "step"),
                number(sample, "group"), json_string_value(json_object_get(sample, "domain")),
                json_string_value(json_object_get(sample, "status")), json_array_size(t.ids));
    cr_json_add_string(out, json_string_value(response), json_string_length(response));
    add_terms(sample, "\n  loss", out);
    cr_buf_addf(out, "\n  of the step's actor/total_loss %.9g", sum_of(f->head, "total"));
    if (json_object_get(sample, "critic"))
        cr_buf_addf(out, "\n  critic's loss %.9g of the step's critic/loss %.9g",
                    sum_of(sample, "critic"), sum_of(f->head, "critic"));
    cr_buf_addf(out,
                "\n  gradient %.6g: sum of |d loss / d log_prob|, %.4g %% of that of all samples\n",
                sum_of(sample, "gradient"), share(f, sample));
    if (json_object_get(sample, "gradient_norm"))
        cr_buf_addf(out, "  norm of its gradient alone %.6g; of the step's %.6g\n",
                    number(sample, "gradient_norm"), number(sample, "step_gradient_norm"));
    show_advantage(sample, t, out);
    json_array_foreach(json_object_get(sample, "updates"), i, update)
        show_update(sample, update, t, out);
    json_array_foreach(json_object_get(sample, "critic"), i, update) show_critic(update, t, out);
}
