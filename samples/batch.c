/* batch.c -- see batch.h. */
#include "samples/batch.h"
#include "samples/protocol.h"

#include <stdlib.h>
#include <string.h>

void cr_sample_batch_init(cr_sample_batch *b, size_t num)
{
    *b = (cr_sample_batch){.samples = CR_NEW_ARRAY(struct cr_batch_sample, num),
                           .pairs = cr_alloc(num * sizeof *b->pairs),
                           .num = num,
                           .start = CR_NEW_ARRAY(size_t, num + 1)};
}

void cr_sample_batch_count(cr_sample_batch *b)
{
    for (size_t i = 0; i < b->num; i++) {
        struct cr_batch_sample *s = &b->samples[i];
        s->num_ids = cr_segments_num_ids(s->segments, s->num_segments, CR_NUM_SEGMENT_KINDS);
        s->num_response = cr_segments_num_ids(s->segments, s->num_segments, CR_SEGMENT_GENERATED);
        b->start[i + 1] = b->start[i] + s->num_response;
    }
    b->num_tokens = b->start[b->num];
}

void cr_sample_batch_pair(cr_sample_batch *b, size_t i, const int32_t *prompt, size_t num_prompt,
                          const int32_t *response, size_t num_response)
{
    cr_segment *pair = b->pairs[i];

    pair[0] = (cr_segment){.kind = CR_SEGMENT_PROMPT, .ids = prompt, .num_ids = num_prompt};
    pair[1] = (cr_segment){.kind = CR_SEGMENT_GENERATED, .ids = response, .num_ids = num_response};
    b->samples[i].segments = pair;
    b->samples[i].num_segments = 2;
}

bool *cr_sample_batch_after_observed(const cr_sample_batch *b)
{
    bool *out = CR_NEW_ARRAY(bool, b->num_tokens + 1), *at = out;

    for (size_t i = 0; i < b->num; i++)
        for (size_t k = 1; k < b->samples[i].num_segments; k++) {
            const cr_segment *s = &b->samples[i].segments[k];
            if (s->kind != CR_SEGMENT_GENERATED) continue;
            *at = s[-1].kind == CR_SEGMENT_OBSERVED;
            at += s->num_ids;
        }
    return out;
}

void cr_sample_batch_add_sampled(cr_sample_batch *b)
{
    double *infer = cr_sample_batch_add(b, CR_COLUMN_INFER),
           *mask = cr_sample_batch_add(b, CR_COLUMN_MASK);

    for (size_t i = 0; i < b->num; i++)
        for (size_t k = 0; k < b->samples[i].num_segments; k++) {
            const cr_segment *s = &b->samples[i].segments[k];
            for (size_t t = 0; s->kind == CR_SEGMENT_GENERATED && t < s->num_ids; t++) {
                *infer++ = s->log_probs[t];
                *mask++ = 1;
            }
        }
}

void cr_sample_batch_free(cr_sample_batch *b)
{
    cr_free(b->samples);
    cr_free(b->pairs);
    cr_free(b->start);
    for (int c = 0; c < CR_NUM_COLUMNS; c++)
        cr_free(b->of[c]);
    cr_free(b->teacher.ids);
    cr_free(b->teacher.numbers);
    *b = (cr_sample_batch){0};
}

static size_t column_length(const cr_sample_batch *b, cr_batch_column column)
{
    return cr_batch_columns[column].is_per_sample ? b->num : b->num_tokens;
}

double *cr_sample_batch_add(cr_sample_batch *b, cr_batch_column column)
{
    if (!b->of[column]) b->of[column] = CR_NEW_ARRAY(double, column_length(b, column) + 1);
    return b->of[column];
}

static bool is_one(const double *x, size_t num)
{
    for (size_t i = 0; i < num; i++)
        if (x[i] < 1 || x[i] > 1) return false;
    return true;
}

unsigned cr_sample_batch_columns(const cr_sample_batch *b)
{
    unsigned columns = 0;

    for (int c = 0; c < CR_NUM_COLUMNS; c++) {
        cr_batch_travel travel = cr_batch_columns[c].travel;
        if (!b->of[c] || travel == CR_TRAVEL_NEVER) continue;
        if (travel == CR_TRAVEL_UNLESS_1 && is_one(b->of[c], column_length(b, (cr_batch_column)c)))
            continue;
        columns |= 1U << c;
    }
    return columns;
}

/* ---- a part ---- */

/* Its samples in the order sent: [*num] (owned). */
static size_t *take_part(const cr_sample_batch *b, const cr_deal *deal, int part, size_t *num)
{
    size_t *out = CR_NEW_ARRAY(size_t, b->num + 1);

    *num = 0;
    for (size_t k = 0; k < b->num; k++) {
        size_t i = deal->order ? deal->order[k] : k;
        int of = deal->part ? deal->part[i] : (int)(i % (size_t)deal->num);
        if (of == part) out[(*num)++] = i;
    }
    return out;
}

/* Arrays of a record, one after the other in memory that the record owns. */
typedef struct writer {
    cr_record *record;
    char *at;
} writer;

static void *add_array(writer *w, const char *name, cr_record_kind kind, size_t num)
{
    const size_t bytes = kind == CR_RECORD_UINT64 ? 8 : 4;
    void *data = w->at += -(uintptr_t)w->at % bytes;

    cr_record_add(w->record, name, kind, data, num);
    w->at += num * bytes;
    return data;
}

typedef struct prompt_at {
    const int32_t *prompt;
    size_t num_prompt, k;
} prompt_at;

static int by_prompt(const void *a, const void *b)
{
    const prompt_at *x = a, *y = b;

    if (x->prompt != y->prompt) return (uintptr_t)x->prompt < (uintptr_t)y->prompt ? -1 : 1;
    if (x->num_prompt != y->num_prompt) return x->num_prompt < y->num_prompt ? -1 : 1;
    return (x->k > y->k) - (x->k < y->k);
}

/* The first sample of the part with the same prompt, maybe itself: prompts are the same array where they
 * are of one data row. */
static void find_prompts(const cr_sample_batch *b, const size_t *mine, size_t num,
                         int32_t *prompt_of)
{
    prompt_at *sorted = CR_NEW_ARRAY(prompt_at, num), *first = sorted;

    for (size_t k = 0; k < num; k++) {
        const cr_segment *prompt = b->samples[mine[k]].segments;
        sorted[k] = (prompt_at){prompt->ids, prompt->num_ids, k};
    }
    if (num) qsort(sorted, num, sizeof *sorted, by_prompt);
    for (prompt_at *p = sorted; p < sorted + num; p++) {
        if (p->prompt != first->prompt || p->num_prompt != first->num_prompt) first = p;
        prompt_of[p->k] = (int32_t)first->k;
    }
    cr_free(sorted);
}

/* num_items, item_digests, item_grids: those of a prompt are written once. */
static void write_items(writer *w, const cr_sample_batch *b, const size_t *mine, size_t num,
                        size_t num_items)
{
    int32_t *prompt_of = CR_NEW_ARRAY(int32_t, num + 1);
    uint64_t *digests;
    int32_t *nums, *grids;

    find_prompts(b, mine, num, prompt_of);
    for (size_t k = 0; k < num; k++)
        if ((size_t)prompt_of[k] != k) num_items -= b->samples[mine[k]].items.num;
    digests = add_array(w, CR_FIELD_ITEM_DIGESTS, CR_RECORD_UINT64, CR_ITEM_DIGEST * num_items);
    nums = add_array(w, CR_FIELD_NUM_ITEMS, CR_RECORD_INT32, num);
    grids = add_array(w, CR_FIELD_ITEM_GRIDS, CR_RECORD_INT32, CR_ITEM_GRID * num_items);
    for (size_t k = 0; k < num; k++) {
        const cr_item_refs *from = &b->samples[mine[k]].items;
        nums[k] = (int32_t)from->num;
        if ((size_t)prompt_of[k] != k || !from->num) continue;
        memcpy(digests, from->digests, from->num * CR_ITEM_DIGEST * sizeof *digests);
        memcpy(grids, from->grids, from->num * CR_ITEM_GRID * sizeof *grids);
        digests += CR_ITEM_DIGEST * from->num;
        grids += CR_ITEM_GRID * from->num;
    }
    cr_free(prompt_of);
}

/* sample_ids, prompts, lengths, prompt_of, mini, ids. */
static void write_samples(writer *w, const cr_sample_batch *b, const cr_deal *deal,
                          const size_t *mine, size_t num)
{
    uint64_t *names = b->has_ids ? add_array(w, CR_FIELD_SAMPLE_IDS, CR_RECORD_UINT64, num) : NULL;
    int32_t *prompts = add_array(w, CR_FIELD_PROMPTS, CR_RECORD_INT32, num),
            *lengths = add_array(w, CR_FIELD_LENGTHS, CR_RECORD_INT32, num),
            *prompt_of = add_array(w, CR_FIELD_PROMPT_OF, CR_RECORD_INT32, num),
            *mini = add_array(w, CR_FIELD_MINI, CR_RECORD_INT32, num), *ids;
    size_t num_ids = 0;

    find_prompts(b, mine, num, prompt_of);
    for (size_t k = 0; k < num; k++) {
        const struct cr_batch_sample *s = &b->samples[mine[k]];
        if (names) names[k] = s->id;
        prompts[k] = (int32_t)s->segments->num_ids;
        lengths[k] = (int32_t)s->num_ids - prompts[k];
        mini[k] = deal->mini ? deal->mini[mine[k]] : 0;
        num_ids += s->num_ids - ((size_t)prompt_of[k] == k ? 0 : s->segments->num_ids);
    }
    ids = add_array(w, CR_FIELD_IDS, CR_RECORD_INT32, num_ids);
    for (size_t k = 0; k < num; k++) {
        const struct cr_batch_sample *s = &b->samples[mine[k]];
        for (size_t i = (size_t)prompt_of[k] == k ? 0 : 1; i < s->num_segments; i++) {
            if (s->segments[i].num_ids) memcpy(ids, s->segments[i].ids, s->segments[i].num_ids * 4);
            ids += s->segments[i].num_ids;
        }
    }
}

/* num_spans, spans. */
static void write_spans(writer *w, const cr_sample_batch *b, const size_t *mine, size_t num,
                        size_t num_spans)
{
    int32_t *nums = add_array(w, CR_FIELD_NUM_SPANS, CR_RECORD_INT32, num),
            *spans = add_array(w, CR_FIELD_SPANS, CR_RECORD_INT32, num_spans);

    for (size_t k = 0; k < num; k++) {
        const struct cr_batch_sample *s = &b->samples[mine[k]];
        nums[k] = (int32_t)cr_segments_spans(s->segments, s->num_segments, spans);
        spans += nums[k];
    }
}

static void write_temperatures(writer *w, const cr_sample_batch *b, const size_t *mine, size_t num)
{
    float *out = add_array(w, CR_FIELD_TEMPERATURES, CR_RECORD_FLOAT32, num);

    for (size_t k = 0; k < num; k++)
        out[k] = b->samples[mine[k]].temperature;
}

static bool has_kept(const cr_sample_batch *b)
{
    for (size_t i = 0; i < b->num; i++)
        if (b->samples[i].kept) return true;
    return false;
}

/* What the tokens were drawn from, where filters took ids away; nothing was taken from those of a sample without. */
static void write_kept(writer *w, const cr_sample_batch *b, const size_t *mine, size_t num,
                       size_t num_tokens, size_t num_kept_ids)
{
    int32_t *num_kept = add_array(w, CR_FIELD_NUM_KEPT, CR_RECORD_INT32, num_tokens),
            *ids = add_array(w, CR_FIELD_KEPT_IDS, CR_RECORD_INT32, num_kept_ids);

    for (size_t k = 0; k < num; k++) {
        const struct cr_batch_sample *s = &b->samples[mine[k]];
        if (s->kept) {
            memcpy(num_kept, s->kept->num, s->num_response * 4);
            memcpy(ids, s->kept->ids, s->kept->num_ids * 4);
            ids += s->kept->num_ids;
        } else if (s->num_response) {
            memset(num_kept, 0, s->num_response * 4);
        }
        num_kept += s->num_response;
    }
}

static void write_column(writer *w, const cr_sample_batch *b, cr_batch_column column,
                         const size_t *mine, size_t num, size_t num_tokens)
{
    bool is_per_sample = cr_batch_columns[column].is_per_sample;
    const double *x = b->of[column];
    float *out = add_array(w, cr_batch_columns[column].name, CR_RECORD_FLOAT32,
                           is_per_sample ? num : num_tokens);

    for (size_t k = 0; k < num; k++)
        if (is_per_sample)
            *out++ = (float)x[mine[k]];
        else
            for (size_t t = b->start[mine[k]]; t < b->start[mine[k] + 1]; t++)
                *out++ = (float)x[t];
}

static void write_teacher(writer *w, const cr_sample_batch *b, const size_t *mine, size_t num,
                          size_t num_tokens)
{
    const size_t each = b->teacher.num, all = num_tokens * each;
    int32_t *ids = b->teacher.ids ? add_array(w, CR_FIELD_TOP_IDS, CR_RECORD_INT32, all) : NULL;
    float *numbers =
        add_array(w, ids ? CR_FIELD_TOP_LOG_PROBS : CR_FIELD_STATES, CR_RECORD_FLOAT32, all);

    for (size_t k = 0, at = 0; k < num; k++) {
        size_t from = b->start[mine[k]] * each, n = b->samples[mine[k]].num_response * each;
        if (ids) memcpy(ids + at, b->teacher.ids + from, n * sizeof *ids);
        memcpy(numbers + at, b->teacher.numbers + from, n * sizeof *numbers);
        at += n;
    }
}

/* Of the samples of a part together. */
typedef struct part_size {
    size_t tokens, ids, kept, items, spans; /* spans: one of each if nothing was observed */
} part_size;

static part_size measure(const cr_sample_batch *b, const size_t *mine, size_t num)
{
    part_size out = {0};

    for (size_t k = 0; k < num; k++) {
        const struct cr_batch_sample *s = &b->samples[mine[k]];
        out.tokens += s->num_response;
        out.ids += s->num_ids;
        out.spans += cr_segments_spans(s->segments, s->num_segments, NULL);
        out.kept += s->kept ? s->kept->num_ids : 0;
        out.items += s->items.num;
    }
    return out;
}

void cr_sample_batch_write(const cr_sample_batch *b, const cr_deal *deal, int part,
                           unsigned columns, cr_record *out)
{
    size_t num, num_columns = 0, *mine = take_part(b, deal, part, &num);
    const part_size all = measure(b, mine, num);
    writer w = {.record = out};

    for (unsigned left = columns; left; left &= left - 1)
        num_columns++;
    out->owned = w.at =
        cr_alloc(8 * (num + CR_ITEM_DIGEST * all.items) +
                 sizeof(float) * (7 * num + all.spans + CR_ITEM_GRID * all.items + all.ids +
                                  all.tokens + all.kept + num_columns * (all.tokens + num) +
                                  2 * all.tokens * b->teacher.num) +
                 3 * 8); /* two arrays that are aligned to 8 bytes, and nothing at all */
    if (all.items) write_items(&w, b, mine, num, all.items);
    write_samples(&w, b, deal, mine, num);
    if (all.spans > num) write_spans(&w, b, mine, num, all.spans);
    if (b->has_temperatures) write_temperatures(&w, b, mine, num);
    if (has_kept(b)) write_kept(&w, b, mine, num, all.tokens, all.kept);
    for (int c = 0; c < CR_NUM_COLUMNS; c++)
        if (columns >> c & 1) write_column(&w, b, (cr_batch_column)c, mine, num, all.tokens);
    if (b->teacher.num) write_teacher(&w, b, mine, num, all.tokens);
    cr_free(mine);
}

cr_status cr_sample_batch_read(cr_sample_batch *b, const cr_deal *deal, int part,
                               const cr_record *reply, const char *name, cr_batch_column column,
                               cr_err *err)
{
    const void *from;
    size_t num_floats, num, want = 0, at = 0, *mine;
    double *to = cr_sample_batch_add(b, column);

    CR_TRY(cr_record_get(reply, name, CR_RECORD_FLOAT32, &from, &num_floats, err));
    mine = take_part(b, deal, part, &num);
    for (size_t k = 0; k < num; k++)
        want += b->samples[mine[k]].num_response;
    if (num_floats != want)
        cr_fail(err, CR_EFORMAT, "%zu numbers of %s for %zu tokens", num_floats, name, want);
    for (size_t k = 0; k < num && err->status == CR_OK; k++)
        for (size_t t = b->start[mine[k]]; t < b->start[mine[k] + 1]; t++)
            to[t] = ((const float *)from)[at++];
    cr_free(mine);
    return err->status;
}

cr_status cr_sample_batch_read_teacher(cr_sample_batch *b, const cr_deal *deal, int part,
                                       const cr_record *reply, size_t num, bool is_state,
                                       cr_err *err)
{
    const char *name = is_state ? CR_FIELD_STATES : CR_FIELD_TOP_LOG_PROBS;
    struct cr_batch_teacher *w = &b->teacher;
    size_t num_samples, want = 0, num_ids, num_floats, *mine;
    const void *ids = NULL, *numbers;

    CR_TRY(cr_record_get(reply, name, CR_RECORD_FLOAT32, &numbers, &num_floats, err));
    num_ids = num_floats;
    if (!is_state)
        CR_TRY(cr_record_get(reply, CR_FIELD_TOP_IDS, CR_RECORD_INT32, &ids, &num_ids, err));
    mine = take_part(b, deal, part, &num_samples);
    for (size_t k = 0; k < num_samples; k++)
        want += num * b->samples[mine[k]].num_response;
    if (num_ids != want || num_floats != want)
        cr_fail(err, CR_EFORMAT, "%zu %s and %zu ids, expected %zu", num_floats, name, num_ids,
                want);
    if (!w->numbers) {
        w->num = num;
        w->ids = is_state ? NULL : CR_NEW_ARRAY(int32_t, b->num_tokens * num + 1);
        w->numbers = CR_NEW_ARRAY(float, b->num_tokens *num + 1);
    }
    for (size_t k = 0, at = 0; k < num_samples && err->status == CR_OK; k++) {
        size_t to = b->start[mine[k]] * num, n = b->samples[mine[k]].num_response * num;
        if (ids) memcpy(w->ids + to, (const int32_t *)ids + at, n * sizeof *w->ids);
        memcpy(w->numbers + to, (const float *)numbers + at, n * sizeof *w->numbers);
        at += n;
    }
    cr_free(mine);
    return err->status;
}
