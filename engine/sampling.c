/* sampling.c -- see sampling.h. */
#include "engine/sampling.h"

#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

cr_ends cr_ends_of(const cr_generating *how, const int32_t *eos_ids, size_t num_eos)
{
    cr_ends e = {CR_NEW_ARRAY(int32_t, num_eos + how->num_stop_ids), num_eos + how->num_stop_ids};

    if (num_eos) memcpy(e.ids, eos_ids, num_eos * sizeof *e.ids);
    if (how->num_stop_ids)
        memcpy(e.ids + num_eos, how->stop_ids, how->num_stop_ids * sizeof *e.ids);
    return e;
}

size_t cr_bad_words_num_ids(const cr_bad_words *words)
{
    size_t num = 0;

    for (size_t i = 0; i < words->num; i++)
        num += (size_t)words->num_ids[i];
    return num;
}

static int by_id(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

bool cr_any_id_left(const cr_generating *how, const cr_ends *ends, int64_t vocab_size)
{
    const cr_bad_words *bad = &how->bad_words;
    const cr_token_processors *e = &how->processors;
    size_t num = how->min_new_tokens > 0 ? ends->num : 0, at = 0;
    int32_t *banned = CR_NEW_ARRAY(int32_t, num + bad->num);
    bool is_left = false;

    if (num) memcpy(banned, ends->ids, num * sizeof *banned);
    for (size_t i = 0; i < bad->num; i++)
        banned[num++] = bad->ids[(at += (size_t)bad->num_ids[i]) - 1];
    qsort(banned, num, sizeof *banned, by_id);
    for (int64_t i = 0; !is_left && i < (e->num_allowed ? (int64_t)e->num_allowed : vocab_size);
         i++) {
        int32_t id = e->num_allowed ? e->allowed[i] : (int32_t)i;
        is_left = !bsearch(&id, banned, num, sizeof *banned, by_id);
    }
    cr_free(banned);
    return is_left;
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

cr_status cr_processors_check(const cr_generating *how, const cr_ends *ends, int64_t vocab_size,
                              cr_err *err)
{
    const cr_token_processors *e = &how->processors;

    CR_TRY(check_ids("logit_bias", e->biased, e->num_biased, vocab_size, err));
    CR_TRY(check_ids("allowed ids", e->allowed, e->num_allowed, vocab_size, err));
    CR_TRY(check_ids("bad words", how->bad_words.ids, cr_bad_words_num_ids(&how->bad_words),
                     vocab_size, err));
    if (cr_any_id_left(how, ends, vocab_size)) return CR_OK;
    return cr_fail(
        err, CR_EARG,
        "every id that is allowed ends the sample before min_new_tokens (%lld) or is the "
        "last of a bad word: no id is left to draw",
        (long long)how->min_new_tokens);
}

float cr_draw_number(uint64_t seed, uint64_t sample_id, uint64_t position)
{
    uint32_t word[4];

    cr_rng_philox(seed, CR_RNG_SAMPLE, sample_id, position, word);
    return cr_rng_float(word[0]);
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
                       .processors = how->processors};

    if ((int64_t)num_output < how->min_new_tokens) {
        row.processors.banned = ends->ids;
        row.processors.num_banned = ends->num;
    }
    return row;
}

void cr_draw_row_ban_words(cr_draw_row *row, const cr_generating *how, int32_t *memory)
{
    const cr_bad_words *bad = &how->bad_words;
    const int32_t *word = bad->ids, *end = row->history[1];
    size_t num_output = row->num_history[1];

    if (row->processors.num_banned)
        memcpy(memory, row->processors.banned, row->processors.num_banned * sizeof *memory);
    row->processors.banned = memory;
    if (num_output) end += num_output;
    for (size_t i = 0; i < bad->num; word += bad->num_ids[i++]) {
        size_t before = (size_t)bad->num_ids[i] - 1;
        if (before <= num_output &&
            (before == 0 || memcmp(end - before, word, before * sizeof *word) == 0))
            memory[row->processors.num_banned++] = word[before];
    }
}
