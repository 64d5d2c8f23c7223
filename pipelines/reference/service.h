/* service.h -- log-probs of the reference from a running `croll serve` (reference.service) instead of ranks.
 *
 * Flow 6 of 7. Token ids go out, float32 come back as they are (base64); both sides use ids of one tokenizer. The service
 * is looked at once before anything starts: its weights (the identity that all answers must have from then on), its
 * tokenizer, its vocabulary and its longest sequence. A step's samples are cut into requests of which a few are under
 * way at a time; what fails is tried again until service.timeout. Failures are errors: CR_ETIMEOUT when the time is
 * over, CR_EPEER when the service answers with an error or with other weights.
 */
#ifndef CR_REFERENCE_SERVICE_H
#define CR_REFERENCE_SERVICE_H

#include "base/digest.h"
#include "configs/configs.h"

typedef struct cr_reference_identity {
    char weights[CR_DIGEST_TEXT], tokenizer[CR_DIGEST_TEXT], dtype[24], model[256];
    int64_t max_model_len, vocab_size;
} cr_reference_identity;

typedef struct cr_reference cr_reference;
/* CR_EABSENT: it cannot be reached; CR_ECONFIG: it is not the reference of this run. */
CR_MUST cr_status cr_reference_open(const cr_config *config, cr_reference **out, cr_err *err);
void cr_reference_close(cr_reference *r); /* accepts NULL */
/* Write OUTPUT_DIR/reference.json: a run that is resumed must have the weights that are written there. */
CR_MUST cr_status cr_reference_record(const cr_reference *r, const char *output_dir, cr_err *err);

/* ---- what comes back: any bytes (pure functions) ---- */

/* From the body of GET /models: the model of that name, or the first. */
CR_MUST cr_status cr_reference_read_identity(const char *body, size_t num_bytes, const char *model,
                                             cr_reference_identity *out, cr_err *err);
/* One answer: for each of num prompts the log-probs of its places first[i] .. first[i] + num_each[i] - 1 into out, one after the
 * other; the answer begins with place `start`. CR_EFORMAT. */
typedef struct cr_reference_want {
    const char *weights;
    size_t num, start;
    const size_t *first, *num_each; /* [num] */
} cr_reference_want;
CR_MUST cr_status cr_reference_read_answer(const char *body, size_t num_bytes,
                                           const cr_reference_want *want, float *out, cr_err *err);

#endif
