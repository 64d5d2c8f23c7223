/* recorded.h -- one line of a file of rollouts/: a sample as it was scored in a run, and the line by which it can be scored again.
 *
 * The files may come from anywhere: what is read is checked. Pure functions; any thread.
 */
#ifndef CR_RECORDED_H
#define CR_RECORDED_H

#include "scorers/scorer.h"

typedef struct cr_recorded {
    json_t *root; /* owned; what follows borrows from it */
    const char *id, *domain;
    const json_t
        *row;      /* the columns of the data row: they are at the first sample of a group; NULL */
    int64_t group; /* -1: none */
    cr_verdict verdict; /* owned */
    size_t num_ids;     /* tokens of the response */
} cr_recorded;

/* CR_EFORMAT: it is no sample of a rollout. reward: of which reward the verdict is meant, where the sample has several
 * of them; of any other name it is that of the whole sample. */
CR_MUST cr_status cr_recorded_read(const char *line, size_t num_bytes, const char *reward,
                                   cr_recorded *out, cr_err *err);
void cr_recorded_free(cr_recorded *r);
/* Does the sample belong to a domain, or has it a reward of that name? */
bool cr_recorded_is_of(const cr_recorded *r, const char *domain);
/* The line that a scoring program gets (with its newline). row: the columns of its group's row, or NULL: those that every
 * sample has, prompt, ground_truth and tag. CR_EFORMAT: ids are not numbers of tokens. */
CR_MUST cr_status cr_recorded_write(const cr_recorded *r, const json_t *row, cr_buf *out,
                                    cr_err *err);

#endif
