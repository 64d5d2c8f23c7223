/* train.c -- see train.h. */
#include "samples/train.h"
#include "samples/kept.h"
#include "samples/protocol.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static cr_status get_ints(const cr_record *r, const char *name, const int32_t **out, size_t *num,
                          cr_err *err)
{
    const void *data;

    CR_TRY(cr_record_get(r, name, CR_RECORD_INT32, &data, num, err));
    *out = data;
    return CR_OK;
}

cr_status cr_floats_read(const cr_record *r, const char *name, size_t num, const float **out,
                         cr_err *err)
{
    const void *data;
    size_t n;

    CR_TRY(cr_record_get(r, name, CR_RECORD_FLOAT32, &data, &n, err));
    if (n != num) return cr_fail(err, CR_EFORMAT, "%s has %zu numbers, expected %zu", name, n, num);
    *out = data;
    return CR_OK;
}

static int by_id(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

cr_status cr_chosen_check(const int32_t *ids, const float *log_probs, size_t num,
                          int64_t vocab_size, int32_t *sorted, cr_err *err)
{
    memcpy(sorted, ids, num * sizeof *ids);
    qsort(sorted, num, sizeof *sorted, by_id);
    for (size_t i = 0; i < num; i++) {
        bool is_twice = i > 0 && sorted[i] >= 0 && sorted[i] == sorted[i - 1];
        if (sorted[i] < -1 || sorted[i] >= vocab_size || is_twice)
            return cr_fail(err, CR_EFORMAT, "id %d of " CR_FIELD_TOP_IDS " is %s", sorted[i],
                           is_twice ? "there twice" : "outside the vocabulary");
        if (ids[i] < 0 ? !isinf(log_probs[i]) || log_probs[i] > 0
                       : !isfinite(log_probs[i]) || log_probs[i] > 0)
            return cr_fail(err, CR_ENUMERIC, "a log-prob of the teacher is %g",
                           (double)log_probs[i]);
    }
    return CR_OK;
}

cr_status cr_teacher_outputs_read(const cr_record *r, const cr_samples *s, int64_t vocab_size,
                                  cr_teacher_outputs *out, cr_err *err)
{
    const bool is_state = cr_record_has(r, CR_FIELD_STATES);
    const void *numbers;
    size_t all, num_ids;
    int32_t *sorted;

    *out = (cr_teacher_outputs){.num = 1};
    CR_TRY(cr_record_get(r, is_state ? CR_FIELD_STATES : CR_FIELD_TOP_LOG_PROBS, CR_RECORD_FLOAT32,
                         &numbers, &all, err));
    if (s->num_tokens) out->num = all / s->num_tokens;
    if (out->num == 0 || out->num * s->num_tokens != all)
        return cr_fail(err, CR_EFORMAT, "%zu numbers of a teacher for %zu tokens", all,
                       s->num_tokens);
    out->numbers = numbers;
    if (is_state) return CR_OK;
    CR_TRY(get_ints(r, CR_FIELD_TOP_IDS, &out->ids, &num_ids, err));
    if (num_ids != all)
        return cr_fail(err, CR_EFORMAT, "%zu " CR_FIELD_TOP_IDS ", %zu " CR_FIELD_TOP_LOG_PROBS,
                       num_ids, all);
    sorted = CR_NEW_ARRAY(int32_t, out->num);
    for (size_t at = 0; at < all && err->status == CR_OK; at += out->num)
        cr_note(
            cr_chosen_check(out->ids + at, out->numbers + at, out->num, vocab_size, sorted, err));
    cr_free(sorted);
    return err->status;
}

/* Says which one an error is of. */
static cr_status of_sample(const cr_samples *s, size_t i, cr_err *err)
{
    if (s->sample_ids)
        return cr_fail_add(err, "sample %016llx", (unsigned long long)s->sample_ids[i]);
    return cr_fail_add(err, "sample %zu", i);
}

static cr_status read_sample_ids(const cr_record *r, cr_samples *s, cr_err *err)
{
    const void *ids;
    size_t num;

    if (!cr_record_has(r, CR_FIELD_SAMPLE_IDS)) return CR_OK;
    CR_TRY(cr_record_get(r, CR_FIELD_SAMPLE_IDS, CR_RECORD_UINT64, &ids, &num, err));
    if (num != s->num)
        return cr_fail(err, CR_EFORMAT, "%zu samples with %zu sample_ids", s->num, num);
    s->sample_ids = ids;
    return CR_OK;
}

static cr_status read_temperatures(const cr_record *r, cr_samples *s, cr_err *err)
{
    if (!cr_record_has(r, CR_FIELD_TEMPERATURES)) return CR_OK;
    CR_TRY(cr_floats_read(r, CR_FIELD_TEMPERATURES, s->num, &s->temperatures, err));
    for (size_t i = 0; i < s->num; i++)
        if (!(s->temperatures[i] > 0 && isfinite(s->temperatures[i])))
            return cr_fail(err, CR_EFORMAT, "sample %zu has the temperature %g", i,
                           (double)s->temperatures[i]);
    return CR_OK;
}

/* Those of sample i are in the vocabulary. */
static cr_status check_ids(const cr_samples *s, size_t i, int64_t vocab_size, cr_err *err)
{
    const int32_t *ids = s->ids + s->first_id[i];

    for (int64_t k = 0; k < (int64_t)s->prompts[i] + s->lengths[i]; k++)
        if (ids[k] < 0 || ids[k] >= vocab_size)
            return cr_fail(err, CR_EFORMAT, "id %d is outside the vocabulary", ids[k]);
    return CR_OK;
}

static cr_status read_all_kept(const cr_record *r, int64_t vocab_size, cr_samples *s, cr_err *err)
{
    size_t num, num_ids, at = 0;

    if (!cr_record_has(r, CR_FIELD_NUM_KEPT)) return CR_OK;
    CR_TRY(get_ints(r, CR_FIELD_NUM_KEPT, &s->num_kept, &num, err));
    CR_TRY(get_ints(r, CR_FIELD_KEPT_IDS, &s->kept_ids, &num_ids, err));
    if (num != s->num_tokens)
        return cr_fail(err, CR_EFORMAT, "%zu response tokens with %zu num_kept", s->num_tokens,
                       num);
    s->first_kept = CR_NEW_ARRAY(size_t, num);
    for (size_t i = 0; i < s->num; i++) {
        const int32_t *tokens = s->ids + s->first_id[i] + s->prompts[i],
                      *num_kept = s->num_kept + s->first_token[i];
        size_t first = at;
        if (cri_kept_check(tokens, (size_t)s->lengths[i], num_kept, s->kept_ids, num_ids,
                           vocab_size, &at, err) != CR_OK)
            return of_sample(s, i, err);
        for (size_t t = 0; t < (size_t)s->lengths[i]; t++) {
            s->first_kept[s->first_token[i] + t] = first;
            first += (size_t)num_kept[t];
        }
    }
    if (at != num_ids)
        return cr_fail(err, CR_EFORMAT, "tokens of %zu kept_ids came with %zu", at, num_ids);
    return CR_OK;
}

/* Where the ids of each sample begin, if each has its prompt; *num_ids: of all of them. */
static cr_status count_samples(cr_samples *s, size_t *num_ids, cr_err *err)
{
    *num_ids = 0;
    s->first_id = CR_NEW_ARRAY(size_t, s->num);
    s->first_token = CR_NEW_ARRAY(size_t, s->num);
    for (size_t i = 0; i < s->num; i++) {
        if (s->prompts[i] < 1 || s->lengths[i] < 0)
            return cr_fail(err, CR_EFORMAT, "sample %zu has %d prompt and %d response tokens", i,
                           s->prompts[i], s->lengths[i]);
        s->first_id[i] = *num_ids;
        s->first_token[i] = s->num_tokens;
        *num_ids += (size_t)s->prompts[i] + (size_t)s->lengths[i];
        s->num_tokens += (size_t)s->lengths[i];
    }
    return CR_OK;
}

/* prompt_of: ids have the prompt of sample prompt_of[i], which is not after sample i, once. Each gets its own. */
static cr_status repeat_prompts(const cr_record *r, cr_samples *s, size_t num_ids, cr_err *err)
{
    const int32_t *prompt_of;
    size_t num, at = 0;

    if (!cr_record_has(r, CR_FIELD_PROMPT_OF)) return CR_OK;
    CR_TRY(get_ints(r, CR_FIELD_PROMPT_OF, &prompt_of, &num, err));
    if (num != s->num)
        return cr_fail(err, CR_EFORMAT, "%zu samples with %zu prompt_of", s->num, num);
    for (size_t i = 0; i < num; i++) {
        int64_t of = prompt_of[i];
        if (of < 0 || of > (int64_t)i || prompt_of[of] != of || s->prompts[of] != s->prompts[i])
            return cr_fail(err, CR_EFORMAT, "sample %zu has the prompt of sample %lld", i,
                           (long long)of);
        at += (size_t)s->lengths[i] + (of == (int64_t)i ? (size_t)s->prompts[i] : 0);
    }
    if (at != s->num_ids)
        return cr_fail(err, CR_EFORMAT, "samples of %zu ids came with %zu", at, s->num_ids);
    s->all_ids = CR_NEW_ARRAY(int32_t, num_ids + 1);
    at = 0;
    for (size_t i = 0; i < num; i++) {
        int32_t *to = s->all_ids + s->first_id[i];
        size_t prompt = (size_t)s->prompts[i], length = (size_t)s->lengths[i];
        bool is_own = prompt_of[i] == (int32_t)i;
        memcpy(to, is_own ? s->ids + at : s->all_ids + s->first_id[prompt_of[i]], prompt * 4);
        at += is_own ? prompt : 0;
        memcpy(to + prompt, s->ids + at, length * 4);
        at += length;
    }
    s->ids = s->all_ids;
    s->num_ids = num_ids;
    return CR_OK;
}

/* num_items of each sample; those of a prompt are there once. */
static cr_status read_items(const cr_record *r, cr_samples *s, cr_err *err)
{
    const int32_t *nums, *prompt_of = NULL;
    const void *digests, *grids;
    size_t num, num_digests, num_grids, at = 0;
    cr_item_refs all;

    if (!cr_record_has(r, CR_FIELD_NUM_ITEMS)) return CR_OK;
    CR_TRY(get_ints(r, CR_FIELD_NUM_ITEMS, &nums, &num, err));
    CR_TRY(cr_record_get(r, CR_FIELD_ITEM_DIGESTS, CR_RECORD_UINT64, &digests, &num_digests, err));
    CR_TRY(cr_record_get(r, CR_FIELD_ITEM_GRIDS, CR_RECORD_INT32, &grids, &num_grids, err));
    CR_TRY(cr_item_refs_make(digests, num_digests, grids, num_grids, &all, err));
    if (num != s->num)
        return cr_fail(err, CR_EFORMAT, "%zu samples with %zu num_items", s->num, num);
    if (cr_record_has(r, CR_FIELD_PROMPT_OF)) /* repeat_prompts has checked it */
        CR_TRY(get_ints(r, CR_FIELD_PROMPT_OF, &prompt_of, &num, err));
    s->items = CR_NEW_ARRAY(cr_item_refs, num);
    for (size_t i = 0; i < num; i++) {
        size_t of = prompt_of ? (size_t)prompt_of[i] : i;
        if (nums[i] < 0 || (of != i && nums[i] != nums[of]) ||
            (of == i && (size_t)nums[i] > all.num - at))
            return cr_fail(err, CR_EFORMAT, "sample %zu has %d images", i, nums[i]);
        s->items[i] = s->items[of];
        if (of != i) continue;
        s->items[i] = (cr_item_refs){all.digests + CR_ITEM_DIGEST * at,
                                     all.grids + CR_ITEM_GRID * at, (size_t)nums[i]};
        at += (size_t)nums[i];
    }
    if (at != all.num)
        return cr_fail(err, CR_EFORMAT, "samples of %zu images came with %zu", at, all.num);
    return CR_OK;
}

cr_status cr_samples_read(const cr_record *r, int64_t vocab_size, cr_samples *s, cr_err *err)
{
    size_t num_prompts, num_minis, num_ids;

    *s = (cr_samples){0};
    CR_TRY(get_ints(r, CR_FIELD_PROMPTS, &s->prompts, &num_prompts, err));
    CR_TRY(get_ints(r, CR_FIELD_LENGTHS, &s->lengths, &s->num, err));
    CR_TRY(get_ints(r, CR_FIELD_MINI, &s->mini, &num_minis, err));
    CR_TRY(get_ints(r, CR_FIELD_IDS, &s->ids, &s->num_ids, err));
    if (num_prompts != s->num || num_minis != s->num)
        return cr_fail(err, CR_EFORMAT, "%zu samples with %zu prompts", s->num, num_prompts);
    CR_TRY(read_sample_ids(r, s, err));
    CR_TRY(read_temperatures(r, s, err));
    CR_TRY(count_samples(s, &num_ids, err));
    CR_TRY(repeat_prompts(r, s, num_ids, err));
    if (num_ids != s->num_ids)
        return cr_fail(err, CR_EFORMAT, "samples of %zu ids came with %zu", num_ids, s->num_ids);
    for (size_t i = 0; i < s->num; i++)
        if (check_ids(s, i, vocab_size, err) != CR_OK) return of_sample(s, i, err);
    CR_TRY(read_items(r, s, err));
    return read_all_kept(r, vocab_size, s, err);
}

void cr_samples_free(cr_samples *s)
{
    cr_free(s->first_id);
    cr_free(s->first_token);
    cr_free(s->first_kept);
    cr_free(s->all_ids);
    cr_free(s->items);
}

/* ---- train_step ---- */

cr_status cr_step_columns_read(const cr_record *r, const cr_samples *s,
                               const float *out[CR_NUM_COLUMNS], cr_err *err)
{
    for (int c = 0; c < CR_NUM_COLUMNS; c++) {
        const struct cr_batch_column_row *row = &cr_batch_columns[c];
        out[c] = NULL;
        if (row->travel == CR_TRAVEL_NEVER) continue;
        if (row->travel != CR_TRAVEL_ALWAYS && !cr_record_has(r, row->name)) continue;
        CR_TRY(cr_floats_read(r, row->name, row->is_per_sample ? s->num : s->num_tokens, &out[c],
                              err));
    }
    return CR_OK;
}

cr_denominators cr_mini_denominators(const uint64_t counts[CR_MINI_COUNTS])
{
    return (cr_denominators){.final_tokens = (double)counts[CR_MINI_FINAL_TOKENS],
                             .final_samples = (double)counts[CR_MINI_FINAL_SAMPLES],
                             .tokens = (double)counts[CR_MINI_TOKENS],
                             .samples = (double)counts[CR_MINI_SAMPLES],
                             .entropy_tokens = (double)counts[CR_MINI_ENTROPY_TOKENS],
                             .entropy_samples = (double)counts[CR_MINI_ENTROPY_SAMPLES],
                             .width = (double)counts[CR_MINI_WIDTH]};
}

cr_status cr_counts_read(const cr_record *r, size_t num_minis, const uint64_t **out, cr_err *err)
{
    const void *data;
    size_t n;

    CR_TRY(cr_record_get(r, CR_FIELD_COUNTS, CR_RECORD_UINT64, &data, &n, err));
    if (n % CR_MINI_COUNTS != 0 || n / CR_MINI_COUNTS != num_minis)
        return cr_fail(err, CR_EFORMAT, "%zu counts of %zu mini-batches", n, num_minis);
    *out = data;
    return CR_OK;
}

/* How parts of a sum come together. */
typedef enum part_kind {
    ADDED,
    GREATEST,  /* of numbers >= 0 */
    MIN_NUM,   /* of the parts that have tokens */
    OF_UPDATES /* added over updates, the same on every rank */
} part_kind;

static const struct real_field {
    const char *name;
    size_t at;
    part_kind part;
} reals[] = {
#define LOSS(name, part)                                \
    {                                                   \
#name, offsetof(cr_train_sums, loss.name), part \
    }
    LOSS(total_loss, ADDED),
    LOSS(pg_loss, ADDED),
    LOSS(weighted_pg_loss, ADDED),
    LOSS(kl_loss, ADDED),
    LOSS(entropy_loss, ADDED),
    LOSS(approxkl, ADDED),
    LOSS(policykl, ADDED),
    LOSS(clip_low, ADDED),
    LOSS(clip_high, ADDED),
    LOSS(ratio_sum, ADDED),
    LOSS(num_tokens, ADDED),
    LOSS(factor_sum, ADDED),
    LOSS(masked_low, ADDED),
    LOSS(masked_high, ADDED),
    LOSS(log_ratio_sum, ADDED),
    LOSS(log_ratio_abs, ADDED),
    LOSS(log_ratio_squares, ADDED),
    LOSS(policy_abs, ADDED),
    LOSS(ratio_max, GREATEST),
    LOSS(ratio_min, MIN_NUM),
    LOSS(infer_diff_max, GREATEST),
    {"value_loss", offsetof(cr_train_sums, value.loss), ADDED},
    {"value_clipfrac", offsetof(cr_train_sums, value.clipfrac), ADDED},
    {"old_value", offsetof(cr_train_sums, value.old_value), ADDED},
    {"value", offsetof(cr_train_sums, value.value), ADDED},
    {"value_error", offsetof(cr_train_sums, value.error), ADDED},
#define PAIR(name)                                                 \
    {                                                              \
        "pairs_" #name, offsetof(cr_train_sums, pairs.name), ADDED \
    }
    PAIR(nll),
    PAIR(chosen),
    PAIR(rejected),
    PAIR(margins),
    PAIR(accuracies),
    PAIR(chosen_log_probs),
    PAIR(rejected_log_probs),
    {"distill_loss", offsetof(cr_train_sums, distill_loss), ADDED},
    {"student_loss", offsetof(cr_train_sums, student_loss), ADDED},
    {"entropy_sum", offsetof(cr_train_sums, entropy_sum), ADDED},
    {"grad_norm", offsetof(cr_train_sums, grad_norm), OF_UPDATES}
#undef LOSS
#undef PAIR
};

static const struct int_field {
    const char *name;
    size_t at;
    part_kind part;
} ints[] = {{"compared", offsetof(cr_train_sums, num_compared), ADDED},
            {"different", offsetof(cr_train_sums, num_different), ADDED},
            {"updates", offsetof(cr_train_sums, num_updates), OF_UPDATES},
            {"skipped", offsetof(cr_train_sums, num_skipped), OF_UPDATES}};

static double *real_at(cr_train_sums *s, const struct real_field *f)
{
    return (double *)(void *)((char *)s + f->at);
}

static int64_t *int_at(cr_train_sums *s, const struct int_field *f)
{
    return (int64_t *)(void *)((char *)s + f->at);
}

void cr_train_sums_write(const cr_train_sums *s, cr_record *r)
{
    cr_train_sums copy = *s;

    for (size_t i = 0; i < CR_COUNT(reals); i++)
        if (isfinite(*real_at(&copy, &reals[i])))
            cr_record_set_real(r, reals[i].name, *real_at(&copy, &reals[i]));
    for (size_t i = 0; i < CR_COUNT(ints); i++)
        cr_record_set_int(r, ints[i].name, *int_at(&copy, &ints[i]));
}

cr_status cr_train_sums_read(const cr_record *r, cr_train_sums *s, cr_err *err)
{
    for (size_t i = 0; i < CR_COUNT(reals); i++) {
        *real_at(s, &reals[i]) = (double)NAN;
        if (cr_record_has_value(r, reals[i].name))
            CR_TRY(cr_record_get_real(r, reals[i].name, real_at(s, &reals[i]), err));
    }
    for (size_t i = 0; i < CR_COUNT(ints); i++)
        CR_TRY(cr_record_get_int(r, ints[i].name, int_at(s, &ints[i]), err));
    return CR_OK;
}

/* fmax and fmin would leave NaN out. */
void cr_train_sums_add(cr_train_sums *to, const cr_train_sums *from, bool is_same_update)
{
    cr_train_sums part = *from;
    bool has_tokens = to->loss.num_tokens > 0, adds_tokens = from->loss.num_tokens > 0;

    for (size_t i = 0; i < CR_COUNT(reals); i++) {
        double *x = real_at(to, &reals[i]), y = *real_at(&part, &reals[i]);
        if (reals[i].part == ADDED || (reals[i].part == OF_UPDATES && !is_same_update)) *x += y;
        if (reals[i].part == GREATEST) *x = isnan(*x) || isnan(y) ? (double)NAN : fmax(*x, y);
        if (reals[i].part == MIN_NUM && adds_tokens)
            *x = !has_tokens ? y : isnan(*x) || isnan(y) ? (double)NAN : fmin(*x, y);
    }
    for (size_t i = 0; i < CR_COUNT(ints); i++)
        if (ints[i].part == ADDED || !is_same_update)
            *int_at(to, &ints[i]) += *int_at(&part, &ints[i]);
}
