/* scoring.h -- a round: numbers of the tokens of some prompts, by one packed forward of all ranks of a mesh.
 *
 * `croll logprobs` and the service compute with this code, so equal tokens have equal bits in both: a prompt's
 * numbers do not depend on the other prompts of its round, on the number of ranks or of threads. No key-value
 * cache is needed; a token after the last one may be drawn (max_tokens 1).
 *
 * Place t of a prompt is its token t given those before it, so place 0 has no numbers. A token that is drawn
 * is at place num_ids.
 *
 *     rank 0:  create, round, round, .., end, destroy
 *     others:  create, follow (until rank 0 ends), destroy
 *
 * Several models of one mesh have places 0, 1, ..; a round is of one of them, and of one of its adapters (cr_pass.adapter).
 *
 * A round is as large as the caller makes it: each rank runs a part of the prompts, whole ones (with ulysses_size
 * the ranks of a group share theirs), and needs memory for that part's activations. Between rounds the others
 * sleep, without a deadline. Only the thread that opened the world may call. "Collective" is over the mesh;
 * a round is refused before anything is sent (CR_EARG), so a wrong prompt does no harm; what fails later
 * breaks the mesh: leave. Prompts and arrays of a score are borrowed.
 */
#ifndef CR_SCORING_H
#define CR_SCORING_H

#include "strategies/packed.h"
#include "strategies/packed_images.h"
#include "strategies/strategies.h"

/* One prompt, and what is wanted at its places from `first` on. */
typedef struct cr_score_ask {
    const int32_t *ids; /* [num_ids] */
    size_t num_ids;     /* at least 1 */
    size_t first;       /* 1 .. num_ids; num_ids: only the token that is drawn */
    bool has_entropy, has_rank;
    int64_t num_top;   /* ids with the largest logits */
    float temperature; /* divides the logits for all numbers; 0: 1. Not of the draw */
    /* [num_lists, num_candidates] ids whose log-probs are wanted; -1: fewer in this list */
    const int32_t *candidates;
    size_t num_candidates;
    size_t
        num_lists; /* 1: the same at all places; else one a place of the prompt from `first` on */
    const cr_draw_row *
        draw; /* NULL: no token is drawn. history is the prompt, whatever it says, and is_raw true */
    cr_seq_images images;
} cr_score_ask;

/* Numbers of num consecutive places: those of the prompt, then that of the drawn token. What was not asked for is
 * NULL. The number of one id at one place has the same bits in all arrays. */
typedef struct cr_score {
    size_t num;
    const float *log_probs; /* [num] of the token at this place */
    const float *entropy;   /* [num] nats */
    const int32_t *ranks;   /* [num] 1 + ids with a larger logit */
    int64_t num_top;
    const int32_t *top_ids;     /* [num, num_top] largest logit first, of equal ones the lower id */
    const float *top_log_probs; /* [num, num_top] */
    size_t num_candidates;
    const float
        *candidates; /* [num, num_candidates]; -inf: none, as of a drawn token without a list */
    int32_t drawn;   /* id; -1: none was asked for, or (is_broken) its logits are not finite */
    bool is_broken;
} cr_score;

typedef struct cr_scoring cr_scoring;

enum { CR_SCORING_PLACES = 33 };

/* Mesh on world; both borrowed. Local. */
cr_scoring *cr_scoring_create(cr_world *world, const cr_mesh *mesh);
void cr_scoring_destroy(cr_scoring *s); /* accepts NULL */
/* The model of f gets a place, in which another one may have been; borrowed. The same on all ranks. Local. */
void cr_scoring_set(cr_scoring *s, size_t place, const cr_model *model, cr_fsdp *f);

/* CR_EARG, in a sentence: a round with this prompt would be refused. Local. */
CR_MUST cr_status cr_scoring_check(const cr_scoring *s, size_t place, const cr_score_ask *ask,
                                   cr_err *err);
/* On rank 0: num prompts, at least 1; scores [num] are valid until the next round. Collective. */
CR_MUST cr_status cr_scoring_round(cr_scoring *s, size_t place, int adapter,
                                   const cr_score_ask *asks, size_t num, cr_score *scores,
                                   cr_err *err);
/* Seconds that this rank's forward of the last round took. */
double cr_scoring_forward_s(const cr_scoring *s);
/* On rank 0: there will be no more rounds. Collective. */
CR_MUST cr_status cr_scoring_end(cr_scoring *s, cr_err *err);
/* On rank 0: a text for the other ranks, which leave cr_scoring_follow with it; not empty. Collective. */
CR_MUST cr_status cr_scoring_send(cr_scoring *s, const char *text, cr_err *err);
/* On the other ranks: their parts of all rounds until then. *text: what rank 0 sent, "" at the end; NULL: rank 0 sends
 * none. Collective. */
CR_MUST cr_status cr_scoring_follow(cr_scoring *s, cr_buf *text, cr_err *err);

#endif
