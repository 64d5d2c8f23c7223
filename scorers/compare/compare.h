/* compare.h -- two versions of a reward on the samples of a run: which verdicts change?
 *
 * A version is a scoring program, or what the files of rollouts/ have recorded. A program gets the lines that a run would
 * send it. Samples are read file by file; some hundred are in memory at once. What changes is printed: at the end a summary
 * with a few samples of each kind of change, or (is_json) a line for each sample that changes and one with the counts.
 *
 * One thread. What the arguments point to is borrowed until the end.
 */
#ifndef CR_COMPARE_H
#define CR_COMPARE_H

#include "scorers/scorer.h"

#include <stdio.h>

typedef struct cr_version {
    const char *name;    /* as it is printed */
    cr_scorer_args args; /* without argv: what the files have recorded */
} cr_version;

typedef struct cr_compare_args {
    cr_version before, after;
    const char *domain; /* other samples are left out */
    int64_t num_shown;  /* of each kind of change */
    bool is_json;
    FILE *to;
} cr_compare_args;

typedef struct cr_compare cr_compare;
cr_compare *cr_compare_open(const cr_compare_args *args);
void cr_compare_close(cr_compare *c); /* accepts NULL; ends the programs */
/* All samples of a file. Lines that are no samples are logged and counted. CR_EIO: the file, CR_ECONFIG: a program that ends
 * again and again. */
CR_MUST cr_status cr_compare_file(cr_compare *c, const char *path, cr_err *err);
/* Print what has been found. CR_EUSAGE: no sample is of the domain. CR_EFORMAT: some lines were no samples. */
CR_MUST cr_status cr_compare_end(cr_compare *c, cr_err *err);

#endif
