/* diagnostics.c -- what is to be said of a file, and how it is printed (see yaml.h). */
#include "configs/yaml/yaml.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_BYTES = 80 };

static void add(cr_diagnostics *d, cr_severity severity, cr_place place, size_t name_bytes,
                const char *text)
{
    d->items = cr_realloc(d->items, d->num * sizeof *d->items, (d->num + 1) * sizeof *d->items);
    d->items[d->num++] = (struct cr_diagnostic){severity, place, cr_strdup(text), name_bytes};
    d->num_errors += severity == CR_ERROR;
}

void cr_diagnose(cr_diagnostics *d, cr_severity severity, cr_place place, const char *fmt, ...)
{
    char text[600];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    add(d, severity, place, 0, text);
}

void cr_diagnose_unused(cr_diagnostics *d, cr_place place, const char *name, const char *fmt, ...)
{
    char why[500], text[600];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    snprintf(text, sizeof text, "%.*s has no effect (%s)", NAME_BYTES, name, why);
    add(d, CR_NOTE, place, strnlen(name, NAME_BYTES), text);
}

/* Errors last: they are what a terminal still shows of a file with many notes. */
static int by_severity_and_place(const void *a, const void *b)
{
    const struct cr_diagnostic *x = a, *y = b;

    if (x->severity != y->severity) return x->severity < y->severity ? -1 : 1;
    if (x->place.line != y->place.line) return x->place.line < y->place.line ? -1 : 1;
    if (x->place.column != y->place.column) return x->place.column < y->place.column ? -1 : 1;
    return strcmp(x->text, y->text);
}

/* Errors have a line each: they are put right one after the other. */
static bool is_same_kind(const struct cr_diagnostic *x, const struct cr_diagnostic *y)
{
    return x->severity == y->severity && x->severity != CR_ERROR &&
           !x->name_bytes == !y->name_bytes &&
           strcmp(x->text + x->name_bytes, y->text + y->name_bytes) == 0;
}

/* The file only where it is not `file`. */
static void add_place(const char *file, cr_place place, cr_buf *out)
{
    const char *name = place.file ? place.file : "croll";

    if (!place.line)
        cr_buf_adds(out, name);
    else if (file && strcmp(file, name) == 0)
        cr_buf_addf(out, "%d:%d", place.line, place.column);
    else
        cr_buf_addf(out, "%s:%d:%d", name, place.line, place.column);
}

/* "A, B": the names of a kind, each once. *num: how many. */
static void add_names(const struct cr_diagnostic *const *kind, size_t num_kind, size_t *num,
                      cr_buf *out)
{
    *num = 0;
    for (size_t i = 0; i < num_kind; i++) {
        const char *text = kind[i]->text;
        size_t n = kind[i]->name_bytes, k = 0;
        while (k < i && (kind[k]->name_bytes != n || strncmp(kind[k]->text, text, n) != 0))
            k++;
        if (k < i) continue;
        cr_buf_addf(out, "%s%.*s", *num ? ", " : "", (int)n, text);
        ++*num;
    }
}

static void print_kind(const struct cr_diagnostic *const *kind, size_t num_kind)
{
    static const char *const word[] = {"note", "warning", "error"};
    const struct cr_diagnostic *x = kind[0];
    const char *rest = x->text + x->name_bytes, *has = " has ";
    cr_buf line = {0};
    size_t num_names;

    add_place(NULL, x->place, &line);
    cr_buf_addf(&line, ": %s: ", word[x->severity]);
    add_names(kind, num_kind, &num_names, &line);
    if (num_names > 1)
        cr_buf_addf(&line, " have %s", rest + strlen(has));
    else
        cr_buf_adds(&line, rest);
    for (size_t i = 1; i < num_kind; i++) {
        cr_buf_adds(&line, i == 1 ? "; also at " : ", ");
        add_place(x->place.file, kind[i]->place, &line);
    }
    cr_put_line(STDERR_FILENO, line.data);
    cr_buf_free(&line);
}

void cr_diagnostics_print(cr_diagnostics *d)
{
    const struct cr_diagnostic **kind = CR_NEW_ARRAY(const struct cr_diagnostic *, d->num + 1);
    bool *is_said = CR_NEW_ARRAY(bool, d->num + 1);

    if (d->num) qsort(d->items, d->num, sizeof *d->items, by_severity_and_place);
    fflush(stdout);
    for (size_t i = 0; i < d->num; i++) {
        size_t num = 0;
        for (size_t k = i; k < d->num && !is_said[i]; k++)
            if (k == i || (!is_said[k] && is_same_kind(&d->items[i], &d->items[k]))) {
                kind[num++] = &d->items[k];
                is_said[k] = k > i;
            }
        if (num) print_kind(kind, num);
    }
    cr_free(is_said);
    cr_free(kind);
}

void cr_diagnostics_free(cr_diagnostics *d)
{
    for (size_t i = 0; i < d->num; i++)
        cr_free(d->items[i].text);
    cr_free(d->items);
    *d = (cr_diagnostics){0};
}
