/* last_words.h -- why a rank of a run has failed, as a record that its launcher reads.
 *
 * The record is a line "STATUS HOST MESSAGE" at the key hb:<role>:<rank>:last of the run's exchange. A rank that has no exchange
 * writes it beside its flight record, flight/rank-NN.last, where a launcher with the same folder finds it; what the rank has
 * written to stderr is the last resort (mpirun/watched.h).
 *
 * A rank does not leave when its record is there: mpirun kills all ranks when the first one leaves, and with them the words of the
 * one that is the cause (the others have CR_EPEER). It stays until the launcher, which has the record, ends it. So do the ranks of
 * a command (session.h), whose rank 0 gives its launcher the record by a socket (ranks.h).
 */
#ifndef CR_LAST_WORDS_H
#define CR_LAST_WORDS_H

#include "exchange/exchange.h"
#include "samples/roles.h"

/* How long a launcher waits for the words of the cause; ranks stay twice as long. */
enum { CR_LAST_WORDS_S = 10 };

typedef struct cr_last_words {
    int world_rank;
    char host[64];
    cr_err why; /* of the rank; CR_OK: none has said anything */
} cr_last_words;

/* On a rank. x: NULL, or its connection. True: the exchange has the record, and the rank can stay. */
bool cr_last_words_put(cr_exchange *x, const cr_layout *layout, int world_rank,
                       const char *output_dir, const cr_err *why);
/* Ends with the rank, or returns after that time. */
void cr_last_words_stay(void);

/* On the launcher: of the ranks that have failed the one that is the cause, as far as its status shows. x: NULL: from files. */
CR_MUST cr_status cr_last_words_find(cr_exchange *x, const cr_layout *layout,
                                     const char *output_dir, cr_last_words *out, cr_err *err);

#endif
