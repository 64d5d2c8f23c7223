/* reference.h -- log-probs of the reference for pairs, each computed once: kept in memory and in a file of the run, which a resumed
 * run, or another one with the same rows and the same reference, goes on with.
 *
 * The file begins with a line of text and a digest of all that the numbers depend on: ids of the rows (so of template, tokenizer and
 * cut) and their images, weights of the reference, its dtype and the device. Pairs follow in the order in which they were computed, each with a hash; what a
 * killed run left half written is cut off.
 */
#ifndef CR_PAIR_REFERENCE_H
#define CR_PAIR_REFERENCE_H

#include "base/digest.h"
#include "data/data.h"

typedef struct cr_reference_table {
    const cr_dataset *data; /* borrowed */
    float **of;             /* [rows] owned: chosen, then rejected; NULL: not computed yet */
    size_t num_known;
    char *path;
    int fd; /* -1: closed */
} cr_reference_table;

/* Digest of the .safetensors files and config.json of a MODEL folder, all bytes of them. */
CR_MUST cr_status cr_reference_weights(const char *folder, char hex[CR_DIGEST_TEXT], cr_err *err);
/* The table of a data set in the folder, with what its file has. weights: the identity of the reference, as text. */
CR_MUST cr_status cr_reference_open(cr_reference_table *t, const cr_dataset *data,
                                    const char *folder, const char *weights, cr_err *err);
void cr_reference_close(cr_reference_table *t); /* also of {.fd = -1} */
/* log_probs: num_ids - num_prompt numbers of the row. They are copied and appended to the file. */
CR_MUST cr_status cr_reference_add(cr_reference_table *t, uint32_t row, const double *log_probs,
                                   cr_err *err);

#endif
