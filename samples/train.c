/* train.c -- see train.h. */
#include "samples/train.h"
#include "samples/protocol.h"
#include "samples/sample.h"

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

/* One of each sample. */
static cr_status read_each(const cr_record *r, const char *name, size_t num, const int32_t **out,
                           cr_err *err)
{
    size_t is;

    CR_TRY(get_ints(r, name, out, &is, err));
    return is == num ? CR_OK : cr_fail(err, CR_EFORMAT, "%zu samples with %zu %s", num, is, name);
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
    for (size_t k = s->first_id[i]; k < s->first_id[i + 1]; k++)
        if (s->ids[k] < 0 || s->ids[k] >= vocab_size)
            return cr_fail(err, CR_EFORMAT, "id %d is outside the vocabulary", s->ids[k]);
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
        const int32_t *ids = s->ids + s->first_id[i];
        for (size_t t = s->first_token[i]; t < s->first_token[i + 1]; t++) {
            s->first_kept[t] = at;
            if (cr_kept_check(t - s->first_token[i], ids[s->place[t]], s->num_kept[t], s->kept_ids,
                              num_ids, vocab_size, &at, err) != CR_OK)
                return of_sample(s, i, err);
        }
    }
    if (at != num_ids)
        return cr_fail(err, CR_EFORMAT, "tokens of %zu kept_ids came with %zu", at, num_ids);
    return CR_OK;
}

/* ---- sequences ---- */

/* How the record has them. */
typedef struct layout {
    const int32_t *prompts, *lengths; /* [num] tokens of the prompt, and after it */
    const int32_t *prompt_of;         /* [num]; NULL: each has a prompt of its own */
    const int32_t *num_spans, *spans; /* of each sample; NULL: one each, generated */
    size_t num_ids, num_all_spans;
} layout;

static cr_status read_layout(const cr_record *r, layout *l, cr_samples *s, cr_err *err)
{
    CR_TRY(get_ints(r, CR_FIELD_LENGTHS, &l->lengths, &s->num, err));
    CR_TRY(read_each(r, CR_FIELD_PROMPTS, s->num, &l->prompts, err));
    CR_TRY(read_each(r, CR_FIELD_MINI, s->num, &s->mini, err));
    CR_TRY(get_ints(r, CR_FIELD_IDS, &s->ids, &l->num_ids, err));
    if (cr_record_has(r, CR_FIELD_PROMPT_OF))
        CR_TRY(read_each(r, CR_FIELD_PROMPT_OF, s->num, &l->prompt_of, err));
    if (!cr_record_has(r, CR_FIELD_NUM_SPANS)) return CR_OK;
    CR_TRY(read_each(r, CR_FIELD_NUM_SPANS, s->num, &l->num_spans, err));
    return get_ints(r, CR_FIELD_SPANS, &l->spans, &l->num_all_spans, err);
}

/* Where each sequence begins, with its prompt. */
static cr_status find_sequences(const layout *l, cr_samples *s, cr_err *err)
{
    s->first_id = CR_NEW_ARRAY(size_t, s->num + 1);
    s->first_token = CR_NEW_ARRAY(size_t, s->num + 1);
    for (size_t i = 0; i < s->num; i++) {
        if (l->prompts[i] < 1 || l->lengths[i] < 0)
            return cr_fail(err, CR_EFORMAT, "sample %zu has %d prompt and %d response tokens", i,
                           l->prompts[i], l->lengths[i]);
        s->first_id[i + 1] = s->first_id[i] + (size_t)l->prompts[i] + (size_t)l->lengths[i];
    }
    return CR_OK;
}

/* prompt_of: ids have the prompt of sample prompt_of[i], which is not after sample i, once. Each gets its own. */
static cr_status repeat_prompts(const layout *l, cr_samples *s, cr_err *err)
{
    size_t at = 0;

    for (size_t i = 0; i < s->num; i++) {
        int64_t of = l->prompt_of ? l->prompt_of[i] : (int64_t)i;
        if (of < 0 || of > (int64_t)i || (of < (int64_t)i && l->prompt_of[of] != of) ||
            l->prompts[of] != l->prompts[i])
            return cr_fail(err, CR_EFORMAT, "sample %zu has the prompt of sample %lld", i,
                           (long long)of);
        at += (size_t)l->lengths[i] + (of == (int64_t)i ? (size_t)l->prompts[i] : 0);
    }
    if (at != l->num_ids)
        return cr_fail(err, CR_EFORMAT, "samples of %zu ids came with %zu", at, l->num_ids);
    if (!l->prompt_of) return CR_OK;
    s->all_ids = CR_NEW_ARRAY(int32_t, s->first_id[s->num] + 1);
    at = 0;
    for (size_t i = 0; i < s->num; i++) {
        int32_t *to = s->all_ids + s->first_id[i];
        size_t prompt = (size_t)l->prompts[i], length = (size_t)l->lengths[i];
        bool is_own = l->prompt_of[i] == (int32_t)i;
        memcpy(to, is_own ? s->ids + at : s->all_ids + s->first_id[l->prompt_of[i]], prompt * 4);
        at += is_own ? prompt : 0;
        memcpy(to + prompt, s->ids + at, length * 4);
        at += length;
    }
    s->ids = s->all_ids;
    return CR_OK;
}

/* The tokens of sample i: spans after its prompt are generated and observed in turn. */
static cr_status place_tokens(const layout *l, size_t i, const int32_t *spans, size_t num,
                              cr_samples *s, cr_err *err)
{
    int64_t at = l->prompts[i], end = at + l->lengths[i];

    for (size_t k = 0; k < num; k++) {
        if (spans[k] < 0 || spans[k] > end - at)
            return cr_fail(err, CR_EFORMAT, "sample %zu has a span of %d tokens", i, spans[k]);
        for (int64_t last = at + spans[k]; at < last; at++)
            if (k % 2 == 0) s->place[s->num_tokens++] = (int32_t)at;
    }
    s->first_token[i + 1] = s->num_tokens;
    if (at == end) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "sample %zu has %lld tokens that are of no span", i,
                   (long long)(end - at));
}

static cr_status place_all(const layout *l, cr_samples *s, cr_err *err)
{
    size_t at = 0;

    s->place = CR_NEW_ARRAY(int32_t, s->first_id[s->num] + 1);
    for (size_t i = 0; i < s->num; i++) {
        if (!l->num_spans) {
            CR_TRY(place_tokens(l, i, &l->lengths[i], 1, s, err));
            continue;
        }
        if (l->num_spans[i] < 0 || (size_t)l->num_spans[i] > l->num_all_spans - at)
            return cr_fail(err, CR_EFORMAT, "sample %zu has %d spans", i, l->num_spans[i]);
        CR_TRY(place_tokens(l, i, l->spans + at, (size_t)l->num_spans[i], s, err));
        at += (size_t)l->num_spans[i];
    }
    if (at != l->num_all_spans)
        return cr_fail(err, CR_EFORMAT, "samples of %zu spans came with %zu", at, l->num_all_spans);
    return CR_OK;
}

/* num_items of each sample; those of a prompt are there once. */
static cr_status read_items(const cr_record *r, const layout *l, cr_samples *s, cr_err *err)
{
    const int32_t *nums;
    const void *digests, *grids;
    size_t num_digests, num_grids, at = 0;
    cr_item_refs all;

    if (!cr_record_has(r, CR_FIELD_NUM_ITEMS)) return CR_OK;
    CR_TRY(read_each(r, CR_FIELD_NUM_ITEMS, s->num, &nums, err));
    CR_TRY(cr_record_get(r, CR_FIELD_ITEM_DIGESTS, CR_RECORD_UINT64, &digests, &num_digests, err));
    CR_TRY(cr_record_get(r, CR_FIELD_ITEM_GRIDS, CR_RECORD_INT32, &grids, &num_grids, err));
    CR_TRY(cr_item_refs_make(digests, num_digests, grids, num_grids, &all, err));
    s->items = CR_NEW_ARRAY(cr_item_refs, s->num);
    for (size_t i = 0; i < s->num; i++) {
        size_t of = l->prompt_of ? (size_t)l->prompt_of[i] : i;
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
    layout l = {0};

    *s = (cr_samples){0};
    CR_TRY(read_layout(r, &l, s, err));
    CR_TRY(read_sample_ids(r, s, err));
    CR_TRY(read_temperatures(r, s, err));
    CR_TRY(find_sequences(&l, s, err));
    CR_TRY(repeat_prompts(&l, s, err));
    CR_TRY(place_all(&l, s, err));
    for (size_t i = 0; i < s->num; i++)
        if (check_ids(s, i, vocab_size, err) != CR_OK) return of_sample(s, i, err);
    CR_TRY(read_items(r, &l, s, err));
    return read_all_kept(r, vocab_size, s, err);
}

void cr_samples_free(cr_samples *s)
{
    cr_free(s->first_id);
    cr_free(s->first_token);
    cr_free(s->place);
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
