/* sampling.c -- see sampling.h. */
#include "engine/sampling.h"

#include <string.h>

cr_ends cr_ends_of(const cr_generating *how, const int32_t *eos_ids, size_t num_eos)
{
    cr_ends e = {CR_NEW_ARRAY(int32_t, num_eos + how->num_stop_ids), num_eos + how->num_stop_ids};

    if (num_eos) memcpy(e.ids, eos_ids, num_eos * sizeof *e.ids);
    if (how->num_stop_ids)
        memcpy(e.ids + num_eos, how->stop_ids, how->num_stop_ids * sizeof *e.ids);
    return e;
}

static bool is_end(const cr_ends *ends, int32_t id)
{
    for (size_t i = 0; i < ends->num; i++)
        if (ends->ids[i] == id) return true;
    return false;
}

bool cr_ends_are_all(const cr_ends *ends, const int32_t *ids, size_t num)
{
    for (size_t i = 0; i < num; i++)
        if (!is_end(ends, ids[i])) return false;
    return true;
}

static cr_status check_ids(const char *what, const int32_t *ids, size_t num, int64_t vocab_size,
                           cr_err *err)
{
    for (size_t i = 0; i < num; i++)
        if (ids[i] < 0 || ids[i] >= vocab_size)
            return cr_fail(err, CR_EARG, "%s: id %d is outside the vocabulary of %lld", what,
                           ids[i], (long long)vocab_size);
    return CR_OK;
}

cr_status cr_edits_check(const cr_generating *how, const cr_ends *ends, int64_t vocab_size,
                         cr_err *err)
{
    const cr_word_edits *e = &how->edits;

    CR_TRY(check_ids("logit_bias", e->biased, e->num_biased, vocab_size, err));
    CR_TRY(check_ids("allowed ids", e->allowed, e->num_allowed, vocab_size, err));
    if (e->num_allowed == 0 || how->min_new_tokens == 0 ||
        !cr_ends_are_all(ends, e->allowed, e->num_allowed))
        return CR_OK;
    return cr_fail(err, CR_EARG,
                   "every allowed id ends the sample, and min_new_tokens is %lld: no id is left to "
                   "draw",
                   (long long)how->min_new_tokens);
}

cr_draw_row cr_draw_row_of(const cr_generating *how, const cr_ends *ends, float u,
                           const int32_t *prompt, size_t num_prompt, const int32_t *output,
                           size_t num_output)
{
    cr_draw_row row = {.temperature = how->temperature,
                       .penalty = how->repetition_penalty,
                       .top_p = how->top_p,
                       .min_p = how->min_p,
                       .top_k = how->top_k,
                       .is_raw = how->log_probs == CR_LOG_PROBS_RAW,
                       .has_rank = how->has_ranks,
                       .num_top = how->num_top,
                       .u = u,
                       .history = {prompt, output},
                       .num_history = {num_prompt, num_output},
                       .edits = how->edits};

    if ((int64_t)num_output < how->min_new_tokens) {
        row.edits.banned = ends->ids;
        row.edits.num_banned = ends->num;
    }
    return row;
}
