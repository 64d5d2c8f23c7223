/* service.h -- log-probs of a role that scores (reference, teacher), of tokens or of the likeliest ids, from a running `croll serve` instead of ranks, and
 * whether its ids are those of the run, which every such role is asked before anything starts.
 *
 * Flow 6 of 7. Token ids go out, float32 come back as they are (base64); both sides use ids of one tokenizer. The service
 * is looked at once before anything starts: its weights (the identity that all answers must have from then on), its
 * tokenizer, its vocabulary and its longest sequence. A step's samples are cut into requests of which a few are under
 * way at a time; what fails is tried again until service.timeout. Failures are errors: CR_ETIMEOUT when the time is
 * over, CR_EPEER when the service answers with an error or with other weights.
 */
#ifndef CR_ROLE_SERVICE_H
#define CR_ROLE_SERVICE_H

#include "base/digest.h"
#include "configs/configs.h"
#include "launch/run.h"
#include "samples/batch.h"
#include "text/tokenizer.h"

typedef struct cr_role_service_identity {
    char weights[CR_DIGEST_TEXT], tokenizer[CR_DIGEST_TEXT], dtype[24], model[256];
    int64_t max_model_len, vocab_size;
} cr_role_service_identity;

typedef struct cr_role_service cr_role_service;
/* The service of the role w (borrowed), which will be asked for the log-prob of each token, or, top above 0, for those of its top
 * likeliest ids at the temperature of a distillation's teacher. CR_EABSENT: it cannot be reached; CR_ECONFIG: it does not fit this run. */
CR_MUST cr_status cr_role_service_open(const cr_config *config, const cr_worker_config *w,
                                       int64_t top, cr_role_service **out, cr_err *err);
void cr_role_service_close(cr_role_service *r); /* accepts NULL */
/* Write OUTPUT_DIR/ROLE.json: a run that is resumed must have the weights that are written there. */
CR_MUST cr_status cr_role_service_record(const cr_role_service *r, const char *output_dir,
                                         cr_err *err);
/* Identity of its weights. */
const char *cr_role_service_weights(const cr_role_service *r);
/* Log-probs of all response tokens of the batch, into the column, or the likeliest ids of each, into b->teacher. A failure ends its
 * use: only cr_role_service_close may follow. */
CR_MUST cr_status cr_role_service_ask(cr_role_service *r, cr_run *run, cr_sample_batch *b,
                                      cr_batch_column column, cr_err *err);
CR_MUST cr_status cr_role_service_ask_teacher(cr_role_service *r, cr_run *run, cr_sample_batch *b,
                                              cr_err *err);

/* ---- a role with ranks ---- */

/* Whether each id of the run's tokenizer is the same token in that of w's model, which has no fewer ids. CR_ECONFIG. */
CR_MUST cr_status cr_vocabulary_check(const cr_config *config, const cr_worker_config *w,
                                      const cr_tokenizer *tokenizer, cr_err *err);
/* A number of config.json, or of its text_config: vocab_size, hidden_size; 0: it says none. */
CR_MUST cr_status cr_model_number_read(const char *folder, const char *key, int64_t *out,
                                       cr_err *err);

/* ---- what comes back: any bytes (pure functions) ---- */

/* From the body of GET /models: the model of that name, or the first. */
CR_MUST cr_status cr_role_service_read_identity(const char *body, size_t num_bytes,
                                                const char *model, cr_role_service_identity *out,
                                                cr_err *err);
/* One answer: for each of num prompts the log-probs of its places first[i] .. first[i] + num_each[i] - 1 into out, one after the
 * other; the answer begins with place `start`. With top: those of the top likeliest ids of each place, and the ids. CR_EFORMAT. */
typedef struct cr_role_service_want {
    const char *weights;
    size_t num, start;
    const size_t *first, *num_each; /* [num] */
    size_t top;
    int64_t vocab_size; /* with top */
} cr_role_service_want;
CR_MUST cr_status cr_role_service_read_answer(const char *body, size_t num_bytes,
                                              const cr_role_service_want *want, int32_t *ids,
                                              float *out, cr_err *err);

#endif
