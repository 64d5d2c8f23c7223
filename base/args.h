/* args.h -- the command line of one command: options from a table, positional words, --help.
 *
 * One table of cr_option drives parsing, defaults and the help text. `--name value` and
 * `--name=value` are the same. An unknown option is CR_EUSAGE with the nearest name. Words of the
 * form key=value are positional: commands hand them to configs as overrides.
 */
#ifndef CR_ARGS_H
#define CR_ARGS_H

#include "base/base.h"

#define CR_NOT_GIVEN INT64_MIN /* an integer option before it is read, where 0 is no default */

typedef enum cr_option_kind {
    CR_OPT_FLAG,
    CR_OPT_INT,
    CR_OPT_DOUBLE,
    CR_OPT_STRING,
    CR_OPT_LIST
} cr_option_kind;

typedef struct cr_option {
    const char *name; /* without dashes */
    cr_option_kind kind;
    void *value;      /* bool*, int64_t*, double*, const char** (borrowed from argv), cr_words* */
    const char *meta; /* shown for the value, NULL for flags */
    const char *help; /* one line; say the default and the unit */
} cr_option;

typedef struct cr_words {
    const char **word; /* owned array of borrowed strings */
    size_t num;
} cr_words;

typedef struct cr_command {
    const char *name, *usage;          /* "generate MODEL [key=value ..]" */
    const char *summary;               /* one sentence */
    const char *example;               /* can be pasted */
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns the exit code */
    bool is_hidden;                    /* croll starts it itself: not in the list of commands */
} cr_command;

/* Parse argv[1..]. words gets what is not an option (free with cr_words_free). If --help was given it is
 * printed and *is_help is true. */
CR_MUST cr_status cr_args_parse(const cr_command *command, const cr_option *options,
                                size_t num_options, int argc, char **argv, cr_words *words,
                                bool *is_help, cr_err *err);
void cr_words_add(cr_words *words, const char *word); /* word: borrowed */
void cr_words_free(cr_words *words);
/* Words of a command line, apart at blanks as a shell has them: 'as is', "with \" and \\", and \ before any
 * character outside of quotes; nothing else is special. NULL-terminated and owned (one cr_free).
 * CR_EUSAGE: a quote is open, or there is no word. */
CR_MUST cr_status cr_split_words(const char *text, char ***words, cr_err *err);
/* Print "croll COMMAND: MESSAGE" to stderr; returns the exit code of err. */
int cr_command_fail(const cr_command *command, const cr_err *err);

#endif
