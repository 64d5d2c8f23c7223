/* self_check.c -- see self_check.h. */
#include "serve/self_check.h"

#include <math.h>

enum { LINE_TOKENS = 64 };
static const double random_entropy = 0.99, doubtful_entropy = 0.9;

/* The same ids for every model of this vocabulary, spread over it. */
static size_t make_line(int64_t vocab_size, int64_t max_len, int32_t *ids)
{
    size_t num = (size_t)(max_len < LINE_TOKENS ? max_len : LINE_TOKENS);
    uint64_t x = 12345;

    for (size_t t = 0; t < num; t++) {
        x = (x * 1103515245 + 12345) & 0x7FFFFFFF;
        ids[t] = (int32_t)(x * (uint64_t)vocab_size >> 31);
    }
    return num;
}

cr_status cr_self_check_run(cr_scoring *scoring, size_t place, int adapter, int64_t vocab_size,
                            int64_t max_len, bool may_be_random, cr_self_check *out, cr_err *err)
{
    int32_t ids[LINE_TOKENS];
    cr_score_ask ask = {.ids = ids, .first = 1, .has_entropy = true};
    cr_score score;
    bool is_finite = true;

    *out = (cr_self_check){.entropy = 0};
    ask.num_ids = make_line(vocab_size, max_len, ids);
    CR_TRY(cr_scoring_round(scoring, place, adapter, &ask, 1, &score, err));
    for (size_t t = 0; t < score.num; t++) {
        is_finite = is_finite && isfinite(score.log_probs[t]) && isfinite(score.entropy[t]);
        out->entropy += score.entropy[t] / log((double)vocab_size) / (double)score.num;
    }
    cr_digest_bytes(score.log_probs, score.num * sizeof(float), out->digest);
    if (!is_finite)
        return cr_fail(
            err, CR_EFORMAT,
            "self-check: the log-probs of a fixed line of tokens are not finite (damaged "
            "weights, or too large for this dtype)");
    if (score.num == 0 || out->entropy < doubtful_entropy) return CR_OK;
    if (out->entropy >= random_entropy && !may_be_random)
        return cr_fail(err, CR_EFORMAT,
                       "self-check: the model gives nearly equal chances to all tokens (entropy "
                       "%.2f %% of the largest): its weights are not there, or were never trained "
                       "(--allow-random serves it)",
                       100 * out->entropy);
    cr_log(CR_LOG_WARN, "serve",
           "the model is hardly better than chance on a fixed line of tokens (entropy %.2f %% of "
           "the largest): are these the weights you mean?",
           100 * out->entropy);
    return CR_OK;
}
