/* args.c -- options of a command from one table (see args.h). */
#include "base/args.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void print_help(const cr_command *c, const cr_option *options, size_t num_options)
{
    printf("usage: croll %s\n\n%s\n\noptions:\n", c->usage, c->summary);
    for (size_t i = 0; i < num_options; i++) {
        char left[80];
        snprintf(left, sizeof left, "--%s%s%s", options[i].name, options[i].meta ? " " : "",
                 options[i].meta ? options[i].meta : "");
        printf("  %-26s %s\n", left, options[i].help);
    }
    printf("  %-26s %s\n", "--help", "show this text");
    printf("\nexample:\n  %s\n\nexit codes: 0 done, 2 wrong usage or input, 1 failed, 3 a deadline "
           "passed, "
           "130 stopped by a signal\n",
           c->example);
}

void cr_words_add(cr_words *words, const char *word)
{
    words->word = cr_realloc(words->word, words->num * sizeof *words->word,
                             (words->num + 1) * sizeof *words->word);
    words->word[words->num++] = word;
}

void cr_words_free(cr_words *words)
{
    cr_free(words->word);
    *words = (cr_words){0};
}

static cr_status take_value(const cr_option *o, const char *text, cr_err *err)
{
    char *end = NULL;

    errno = 0;
    switch (o->kind) {
    case CR_OPT_FLAG:
        *(bool *)o->value = true;
        return CR_OK;
    case CR_OPT_STRING:
        *(const char **)o->value = text;
        return CR_OK;
    case CR_OPT_LIST:
        cr_words_add(o->value, text);
        return CR_OK;
    case CR_OPT_INT:
        *(int64_t *)o->value = strtoll(text, &end, 10);
        break;
    case CR_OPT_DOUBLE:
        *(double *)o->value = strtod(text, &end);
        break;
    }
    if (end == text || *end || errno)
        return cr_fail(err, CR_EUSAGE, "--%s takes %s, not '%s'", o->name,
                       o->kind == CR_OPT_INT ? "a whole number" : "a number", text);
    return CR_OK;
}

cr_status cr_args_parse(const cr_command *command, const cr_option *options, size_t num_options,
                        int argc, char **argv, cr_words *words, bool *is_help, cr_err *err)
{
    *is_help = false;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(command, options, num_options);
            *is_help = true;
            return CR_OK;
        }
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *equals;
        const cr_option *found = NULL;
        size_t n;
        if (strncmp(a, "--", 2) != 0) {
            cr_words_add(words, a);
            continue;
        }
        if (a[2] == 0) { /* "--": the rest are words */
            while (++i < argc)
                cr_words_add(words, argv[i]);
            break;
        }
        equals = strchr(a, '=');
        n = equals ? (size_t)(equals - a - 2) : strlen(a + 2);
        for (size_t k = 0; k < num_options; k++)
            if (strlen(options[k].name) == n && strncmp(options[k].name, a + 2, n) == 0)
                found = &options[k];
        if (!found) {
            const char **names = CR_NEW_ARRAY(const char *, num_options + 1);
            char *given = cr_strndup(a + 2, n);
            const char *near;
            for (size_t k = 0; k < num_options; k++)
                names[k] = options[k].name;
            near = cr_nearest(given, names, num_options);
            cr_fail(err, CR_EUSAGE, "unknown option --%s%s%s (see croll %s --help)", given,
                    near ? ", did you mean --" : "", near ? near : "", command->name);
            cr_free(given);
            cr_free(names);
            return err->status;
        }
        if (found->kind == CR_OPT_FLAG) {
            if (equals) return cr_fail(err, CR_EUSAGE, "--%s takes no value", found->name);
            CR_TRY(take_value(found, NULL, err));
        } else if (equals) {
            CR_TRY(take_value(found, equals + 1, err));
        } else if (i + 1 < argc) {
            CR_TRY(take_value(found, argv[++i], err));
        } else {
            return cr_fail(err, CR_EUSAGE, "--%s needs a value", found->name);
        }
    }
    return CR_OK;
}

int cr_command_fail(const cr_command *command, const cr_err *err)
{
    char *line = cr_asprintf("croll %s: %s", command->name, err->msg);

    fflush(stdout);
    cr_put_line(STDERR_FILENO, line);
    cr_free(line);
    return cr_exit_code(err->status);
}

/* One word from *at on, which advances past it, written to *to. */
static bool take_word(const char **at, char **to)
{
    const char *p = *at;
    char quote = 0;

    for (; *p && (quote || !strchr(" \t\r\n", *p)); p++) {
        if (quote ? *p == quote : *p == '\'' || *p == '"')
            quote = quote ? 0 : *p;
        else if (*p == '\\' && p[1] && (!quote || (quote == '"' && (p[1] == '"' || p[1] == '\\'))))
            *(*to)++ = *++p;
        else
            *(*to)++ = *p;
    }
    *(*to)++ = 0;
    *at = p;
    return !quote;
}

cr_status cr_split_words(const char *text, char ***words, cr_err *err)
{
    size_t max = strlen(text) / 2 + 2, num = 0;
    char **list = cr_alloc(max * sizeof *list + strlen(text) + 2), *to = (char *)(list + max);

    *words = NULL;
    for (const char *at = text; *(at += strspn(at, " \t\r\n"));) {
        list[num++] = to;
        if (!take_word(&at, &to)) cr_fail(err, CR_EUSAGE, "a quote is not closed in: %.200s", text);
    }
    if (num == 0) cr_fail(err, CR_EUSAGE, "there is no word");
    if (err->status == CR_OK)
        *words = list;
    else
        cr_free(list);
    return err->status;
}
