/* index.c -- the arrays of a batch go to the device: once a pass, in one piece (cr_pass_index). */
#include "models/parts/adapters.h"
#include "models/split.h"

#include <string.h>

enum { ALIGN = 64 };

/* Up to num_bytes of array become *to; NULL: *to becomes NULL. */
static void stage(cri_staging *s, const cr_mem **to, const void *array, size_t num_bytes)
{
    *to = NULL;
    if (!array) return;
    CR_CHECK(s->num < (int)CR_COUNT(s->item), "more than %d arrays of a batch", s->num);
    s->item[s->num].to = to;
    s->item[s->num++].at = s->num_bytes;
    s->data = cr_reserve(s->data, &s->capacity, s->num_bytes + num_bytes + ALIGN, 1);
    memcpy(s->data + s->num_bytes, array, num_bytes);
    s->num_bytes = (s->num_bytes + num_bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static void stage_array(cri_staging *s, const cr_mem **to, const int32_t *array, int64_t num)
{
    stage(s, to, array, (size_t)num * sizeof *array);
}

static void stage_floats(cri_staging *s, const cr_mem **to, const float *array, int64_t num)
{
    stage(s, to, array, (size_t)num * sizeof *array);
}

/* To where a graph copies them from. */
static cr_status keep_on_host(const cri_staging *s, cr_device *dev, cr_graph_pass *r, cr_err *err)
{
    if (r->host_bytes < s->num_bytes) {
        if (r->host) cr_host_free(dev, r->host, r->host_bytes);
        r->host_bytes = 0;
        CR_TRY(cr_host_alloc(dev, 2 * s->num_bytes, &r->host, err));
        r->host_bytes = 2 * s->num_bytes;
    }
    memcpy(cr_host_address(r->host), s->data, s->num_bytes);
    return CR_OK;
}

static cr_status upload(cri_staging *s, const cr_pass *p, cr_err *err)
{
    if (p->graph) {
        CR_TRY(keep_on_host(s, p->dev, p->graph, err));
        CR_TRY(cr_stack_push(cri_keep(p), s->num_bytes, &s->all, err));
    } else {
        CR_TRY(cr_stack_push_copy(cri_keep(p), s->data, s->num_bytes, &s->all, err));
    }
    for (int i = 0; i < s->num; i++)
        *s->item[i].to = cr_mem_add_const(s->all, s->item[i].at);
    return CR_OK;
}

cr_seq_sizes cri_seq_sizes(const int32_t *cu_seqlens, int64_t num_seqs, bool is_bidirectional)
{
    cr_seq_sizes sizes = {.num_rows = num_seqs > 0 ? cu_seqlens[num_seqs] : 0};

    for (int64_t s = 0; s < num_seqs; s++) {
        int64_t num = cu_seqlens[s + 1] - cu_seqlens[s];
        sizes.max_seqlen = cr_max64(sizes.max_seqlen, num);
        sizes.num_pairs +=
            is_bidirectional ? (double)num * (double)num : (double)num * (double)(num + 1) / 2;
    }
    return sizes;
}

static cr_seq_sizes sizes_of_rows(const int32_t *row_pos, int64_t num_rows)
{
    cr_seq_sizes sizes = {0};

    for (int64_t r = 0; r < num_rows; r++) {
        sizes.max_seqlen = cr_max64(sizes.max_seqlen, row_pos[r] + 1);
        sizes.num_pairs += row_pos[r] + 1;
    }
    return sizes;
}

/* What is captured is repeated with other rows: there all are alone. */
static void stage_tiles(cri_staging *s, const cr_pass *p, cr_pass_index *x)
{
    const cr_kv_view *kv = p->kv;
    cr_row_tile *tiles;

    if (p->graph) return;
    tiles = CR_NEW_ARRAY(cr_row_tile, p->batch->num_tokens);
    x->num_tiles = cr_row_tiles(kv->row_slot, kv->row_pos, p->batch->num_tokens, tiles);
    if (x->num_tiles > 0) {
        x->num_alone = tiles[0].first;
        stage(s, &x->row_tiles, tiles, (size_t)x->num_tiles * sizeof *tiles);
    }
    cr_free(tiles);
}

static void stage_attention(cri_staging *s, cr_pass *p)
{
    const cr_batch *b = p->batch;
    const cr_kv_view *kv = p->kv;
    const int32_t *cu_seqlens = p->split ? p->split->cu_seqlens : b->cu_seqlens;
    int64_t num_seqs = p->split ? p->split->num_seqs : b->num_seqs;
    cr_pass_index *x = &p->index;

    if (kv) {
        x->sizes = sizes_of_rows(kv->row_pos, b->num_tokens);
        stage_array(s, &x->row_slot, kv->row_slot, b->num_tokens);
        stage_array(s, &x->row_pos, kv->row_pos, b->num_tokens);
        stage_array(s, &x->block_table, kv->block_table, kv->num_slots * kv->max_blocks);
        stage_tiles(s, p, x);
        return;
    }
    x->sizes = cri_seq_sizes(cu_seqlens, num_seqs, /*is_bidirectional=*/false);
    stage_array(s, &x->cu_seqlens, cu_seqlens, num_seqs + 1);
    if (p->split) stage_array(s, &x->split_lists, p->split->lists, p->split->num_in_lists);
}

/* The same for each of num rows. */
static void stage_scales(cri_staging *s, const cr_mem **to, float scale, int64_t num)
{
    float *scales = CR_NEW_ARRAY(float, num);

    for (int64_t t = 0; t < num; t++)
        scales[t] = scale;
    stage_floats(s, to, scales, num);
    cr_free(scales);
}

static void stage_angles(cri_staging *s, cr_pass *p, const cr_model_config *c)
{
    int64_t num = p->batch->num_tokens * c->head_dim / 2;
    float *angles;

    if (!p->batch->mrope) return;
    angles = CR_NEW_ARRAY(float, num);
    cri_rope_angles(c, p->batch, angles);
    stage_floats(s, &p->angles, angles, num);
    cr_free(angles);
}

static void stage_embed_scales(cri_staging *s, cr_pass *p, const cr_model *model)
{
    const cri_root *root = model->root->impl;
    const cr_adapter *own = cri_adapter_of(root->embed, p);
    float scale = model->config.embed_scale, rounded;

    if (scale != 0) {
        cr_cast_host(p->dtype, &rounded, CR_F32, &scale, 1);
        cr_cast_host(CR_F32, &scale, p->dtype, &rounded, 1);
        stage_scales(s, &p->index.embed_scales, scale, p->batch->num_tokens);
    }
    if (own) stage_scales(s, &p->index.table_scales, own->scale, p->batch->num_tokens);
}

/* Of num labelled rows. The lists that rows point into have no length of their own: as far as rows go. */
static void stage_processors(cri_staging *s, cr_row_processors_mem *to, const cr_row_processors *e,
                             int64_t num)
{
    size_t num_kept = 0, num_lists = 0, num_seen;

    to->temperature = e->temperature;
    to->penalty = e->penalty;
    if (e->temperatures) stage(s, &to->temperatures, e->temperatures, (size_t)num * sizeof(float));
    for (int64_t r = 0; r < num; r++) {
        if (e->kept_first && e->kept_first[r] + (size_t)e->kept_num[r] > num_kept)
            num_kept = e->kept_first[r] + (size_t)e->kept_num[r];
        if (e->seen_list && (size_t)e->seen_list[r] + 1 > num_lists)
            num_lists = (size_t)e->seen_list[r] + 1;
    }
    num_seen = num_lists ? e->seen_first[num_lists] : 0;
    if (e->kept_first) {
        stage(s, &to->kept_first, e->kept_first, (size_t)num * sizeof *e->kept_first);
        stage_array(s, &to->kept_num, e->kept_num, num);
        stage_array(s, &to->kept_ids, e->kept_ids, (int64_t)num_kept);
    }
    if (!e->seen_list) return;
    stage_array(s, &to->seen_list, e->seen_list, num);
    stage_array(s, &to->seen_until, e->seen_until, num);
    stage(s, &to->seen_first, e->seen_first, (num_lists + 1) * sizeof *e->seen_first);
    stage_array(s, &to->seen_ids, e->seen_ids, (int64_t)num_seen);
    stage_array(s, &to->seen_place, e->seen_place, (int64_t)num_seen);
}

cr_status cri_upload_index(const cr_model *model, cr_pass *p, cr_err *err)
{
    const cr_batch *b = p->batch;
    const cr_model_config *c = &model->config;
    const cri_head *h = &p->state->head;
    cri_staging *s = &p->state->staging;
    cr_pass_index *x = &p->index;

    *x = (cr_pass_index){0};
    s->num_bytes = 0;
    s->num = 0;
    stage_array(s, &x->ids, b->ids, b->num_tokens);
    stage_array(s, &x->positions, b->positions, b->num_tokens);
    for (int i = 0; i < CR_MAX_ROPES; i++)
        stage_floats(s, &x->inv_freq[i], c->ropes[i].inv_freq, c->head_dim / 2);
    stage(s, &x->drop_keys, b->drop_keys, (size_t)b->num_tokens * sizeof *b->drop_keys);
    stage_embed_scales(s, p, model);
    stage_angles(s, p, c);
    stage_attention(s, p);
    if (h->num_rows) {
        stage_array(s, &x->head_rows, h->rows, h->num_rows);
        if (h->rows != h->own_rows) return upload(s, p, err); /* chosen ones: no labels */
        stage_array(s, &x->labels, h->labels, h->num_rows);
        if (b->processors) stage_processors(s, &x->processors, b->processors, h->num_rows);
    }
    return upload(s, p, err);
}
