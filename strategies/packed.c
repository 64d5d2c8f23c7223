/* packed.c -- see packed.h. */
#include "strategies/packed.h"

void cr_packed_clear(cr_packed *p)
{
    p->batch = (cr_batch){
        .ids = p->ids, .positions = p->positions, .labels = p->labels, .cu_seqlens = p->cu_seqlens};
}

void cr_packed_free(cr_packed *p)
{
    cr_free(p->ids);
    cr_free(p->positions);
    cr_free(p->labels);
    cr_free(p->cu_seqlens);
    *p = (cr_packed){0};
}

int64_t cr_packed_bytes(const cr_packed *p)
{
    return (int64_t)((3 * p->capacity_tokens + p->capacity_seqs) * sizeof(int32_t));
}

static void grow(int32_t **array, size_t old, size_t num)
{
    *array = cr_realloc(*array, old * sizeof(int32_t), num * sizeof(int32_t));
}

static void reserve(cr_packed *p, size_t tokens, size_t seqs)
{
    if (tokens > p->capacity_tokens || !p->ids) {
        size_t old = p->capacity_tokens, num = tokens + tokens / 4 + 1;
        grow(&p->ids, old, num);
        grow(&p->positions, old, num);
        grow(&p->labels, old, num);
        p->capacity_tokens = num;
    }
    if (seqs + 1 > p->capacity_seqs) {
        grow(&p->cu_seqlens, p->capacity_seqs, 2 * seqs + 1);
        p->capacity_seqs = 2 * seqs + 1;
    }
    p->batch.ids = p->ids;
    p->batch.positions = p->positions;
    p->batch.labels = p->labels;
    p->batch.cu_seqlens = p->cu_seqlens;
}

int32_t *cr_packed_add(cr_packed *p, const int32_t *ids, size_t num_tokens)
{
    size_t at = (size_t)p->batch.num_tokens, seqs = (size_t)p->batch.num_seqs;

    reserve(p, at + num_tokens, seqs + 1);
    for (size_t t = 0; t < num_tokens; t++) {
        p->ids[at + t] = ids ? ids[t] : 0;
        p->positions[at + t] = (int32_t)t;
        p->labels[at + t] = -1;
    }
    p->cu_seqlens[0] = 0;
    p->cu_seqlens[seqs + 1] = (int32_t)(at + num_tokens);
    p->batch.num_tokens = (int64_t)(at + num_tokens);
    p->batch.num_seqs = (int64_t)seqs + 1;
    return p->labels + at;
}
