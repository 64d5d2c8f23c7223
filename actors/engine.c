/* engine.c -- see engine.h.
 *
 * A sequence waits, then fills (chunks of its prompt and, after preemption, of its output are
 * computed), then runs (one row a step). A request's prompt is filled once: samples that are let in
 * while a sibling fills follow it, and fork when it is done, drawing their first token from its row
 * of logits; samples let in later share the blocks of any sibling that runs. Blocks that the prompt
 * fills are shared and counted, the last partial one is copied, so a block that is written to has
 * one owner.
 *
 * `running` is in order of admission. When blocks run out, its last sample goes back to the head of
 * `waiting`; the first one always gets what it needs, because one sequence always fits the pool.
 */
#include "actors/engine.h"
#include "actors/sampling.h"
#include "base/rng.h"
#include "kernels/lanes.h"

#include <math.h>
#include <string.h>

typedef enum seq_state { SEQ_WAITING, SEQ_FOLLOWING, SEQ_FILLING, SEQ_RUNNING } seq_state;

typedef struct seq seq;

typedef struct group {
    int32_t *prompt;
    int64_t num_prompt;
    cr_generating how; /* stop lists are copies */
    void *user;
    size_t num_alive; /* sequences that refer to it */
    seq *donor;       /* one of them that fills or runs, NULL: none */
} group;

struct seq {
    seq *prev, *next; /* in its list */
    group *group;
    uint64_t id;
    seq_state state;
    int slot;           /* row of the block table, -1: none */
    int64_t num_blocks; /* held, in its row of the table */
    int64_t num_cached; /* positions in the cache */
    int32_t *output;    /* [max_new_tokens] */
    float *log_probs;
    int64_t num_output;
    cr_buf text;
    cr_token_stream stream;
    const char *finish;
};

typedef struct list {
    seq *first, *last;
    int64_t num;
} list;

/* What a lane does of a step. */
typedef struct part {
    cr_stack *scratch;
    cr_sampler sampler;
    int64_t row0, row1, pick0, pick1;
} part;

struct cr_engine {
    cr_model *model;
    cr_device *dev;
    cr_engine_limits limits;
    cr_lanes *lanes;
    part *parts; /* [lanes]; the first one's is also that of a step that is not cut */
    list waiting, running, finished; /* running: FOLLOWING, FILLING and RUNNING */
    /* cache */
    void **layer_blocks; /* [num_layers], reserved with the first weights */
    size_t block_bytes;
    int64_t num_blocks, max_blocks; /* of the pool; of one sequence */
    int32_t *free_block, *ref;
    int64_t num_free;
    int32_t *table; /* [max_running, max_blocks] */
    int *free_slot;
    int num_free_slots;
    /* one step */
    int32_t *ids, *row_slot, *row_pos, *pick, *drawn; /* [max_rows + max_running] */
    seq **picked;
    float *logits; /* [logits_rows, vocab], grown */
    int64_t logits_rows;
    float *log_prob;
    /* packed weights */
    struct {
        void *data;
        size_t num_bytes;
    } * packed; /* [num_params] */
    size_t packed_bytes;
    const cr_tokenizer *tokenizer;
    cr_engine_on_token on_token;
    void *on_token_ctx;
    cr_engine_stats stats;
};

/* ---- lists ---- */

static void insert(list *l, seq *s, seq *before) /* before NULL: at the end */
{
    s->next = before;
    s->prev = before ? before->prev : l->last;
    *(s->prev ? &s->prev->next : &l->first) = s;
    *(before ? &before->prev : &l->last) = s;
    l->num++;
}

static void take_out(list *l, seq *s)
{
    *(s->prev ? &s->prev->next : &l->first) = s->next;
    *(s->next ? &s->next->prev : &l->last) = s->prev;
    l->num--;
}

/* ---- life ---- */

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Blocks that hold positions 0 .. num-1. */
static int64_t blocks_of(int64_t num)
{
    return (num + CR_KV_BLOCK - 1) / CR_KV_BLOCK;
}

static void reserve_steps(cr_engine *e)
{
    int64_t rows = e->limits.max_rows + e->limits.max_running;

    e->table = CR_NEW_ARRAY(int32_t, e->limits.max_running * e->max_blocks);
    e->free_slot = CR_NEW_ARRAY(int, e->limits.max_running);
    e->ids = CR_NEW_ARRAY(int32_t, rows);
    e->row_slot = CR_NEW_ARRAY(int32_t, rows);
    e->row_pos = CR_NEW_ARRAY(int32_t, rows);
    e->pick = CR_NEW_ARRAY(int32_t, rows);
    e->drawn = CR_NEW_ARRAY(int32_t, rows);
    e->picked = CR_NEW_ARRAY(seq *, rows);
    e->log_prob = CR_NEW_ARRAY(float, rows);
    for (int i = (int)e->limits.max_running; i-- > 0;)
        e->free_slot[e->num_free_slots++] = i;
}

/* The first part's is the device's, as it is that of steps that are not cut. */
static void make_scratch(cr_engine *e)
{
    for (int i = 0; i < cr_lanes_num(e->lanes); i++)
        e->parts[i].scratch = cr_stack_create(i ? cr_lanes_device(e->lanes, i) : e->dev);
}

cr_status cr_engine_create(cr_model *model, cr_device *dev, const cr_engine_limits *limits,
                           cr_engine **out, cr_err *err)
{
    const cr_model_config *c = &model->config;
    cr_engine_limits l = *limits;
    cr_engine *e;

    *out = NULL;
    if (l.max_rows == 0) l.max_rows = 512;
    if (l.max_model_len == 0) l.max_model_len = c->max_position_embeddings;
    if (c->position_limit) l.max_model_len = min64(l.max_model_len, c->position_limit);
    if (l.max_running < 1 || l.max_rows < 1 || l.max_model_len < 2 || l.kv_bytes < 0)
        return cr_fail(err, CR_EARG,
                       "engine limits: %lld running samples, %lld rows, length %lld, %lld bytes",
                       (long long)l.max_running, (long long)l.max_rows, (long long)l.max_model_len,
                       (long long)l.kv_bytes);
    e = CR_NEW(cr_engine);
    e->model = model;
    e->dev = dev;
    e->limits = l;
    e->lanes = cr_lanes_create(dev);
    e->parts = CR_NEW_ARRAY(part, cr_lanes_num(e->lanes));
    make_scratch(e);
    e->max_blocks = blocks_of(l.max_model_len);
    e->layer_blocks = CR_NEW_ARRAY(void *, c->num_layers);
    e->packed = cr_alloc(model->num_params * sizeof *e->packed);
    reserve_steps(e);
    *out = e;
    return CR_OK;
}

/* The cache, when the dtype of the weights is known. */
static cr_status reserve_cache(cr_engine *e, cr_dtype dtype, cr_err *err)
{
    const cr_model_config *c = &e->model->config;
    int64_t all = e->limits.max_running * e->max_blocks, fit;

    e->block_bytes = cr_kv_block_bytes(e->dev, dtype, c->num_kv_heads, c->head_dim);
    fit = e->limits.kv_bytes / (int64_t)e->block_bytes / c->num_layers;
    e->num_blocks = e->limits.kv_bytes ? min64(fit, all) : all;
    if (e->num_blocks < e->max_blocks)
        return cr_fail(err, CR_EARG,
                       "a cache of %lld bytes holds %lld tokens, fewer than one sequence of %lld: "
                       "give it %lld bytes or shorten max_model_len",
                       (long long)e->limits.kv_bytes, (long long)(fit * CR_KV_BLOCK),
                       (long long)e->limits.max_model_len,
                       (long long)(e->max_blocks * (int64_t)e->block_bytes * c->num_layers));
    for (int64_t l = 0; l < c->num_layers; l++)
        CR_TRY(cr_device_alloc(e->dev, (size_t)e->num_blocks * e->block_bytes, &e->layer_blocks[l],
                               err));
    e->free_block = CR_NEW_ARRAY(int32_t, e->num_blocks);
    e->ref = CR_NEW_ARRAY(int32_t, e->num_blocks);
    for (int64_t i = e->num_blocks; i-- > 0;)
        e->free_block[e->num_free++] = (int32_t)i;
    return CR_OK;
}

static void drop_weights_and_cache(cr_engine *e)
{
    for (int64_t l = 0; l < e->model->config.num_layers; l++) {
        cr_device_free(e->dev, e->layer_blocks[l], (size_t)e->num_blocks * e->block_bytes);
        e->layer_blocks[l] = NULL;
    }
    for (size_t i = 0; i < e->model->num_params; i++) {
        if (!e->packed[i].data) continue;
        cr_device_free(e->dev, e->packed[i].data, e->packed[i].num_bytes);
        e->packed[i].data = NULL;
        e->model->params[i]->weight.packed = NULL;
    }
    cr_free(e->free_block);
    cr_free(e->ref);
    cr_free(e->logits);
    e->free_block = e->ref = NULL;
    e->logits = NULL;
    e->logits_rows = e->num_blocks = e->num_free = 0;
    e->packed_bytes = 0;
    for (int i = 0; i < cr_lanes_num(e->lanes); i++) {
        cr_stack_destroy(e->parts[i].scratch);
        e->parts[i].scratch = NULL;
    }
}

void cr_engine_release(cr_engine *e)
{
    CR_CHECK(cr_engine_is_idle(e), "the engine is released while samples are generated");
    drop_weights_and_cache(e);
    make_scratch(e);
}

int64_t cr_engine_scratch_bytes(const cr_engine *e)
{
    return (int64_t)cr_stack_reserved_bytes(e->parts[0].scratch);
}

void cr_engine_destroy(cr_engine *e)
{
    if (!e) return;
    cr_engine_abort(e);
    drop_weights_and_cache(e);
    for (int i = 0; i < cr_lanes_num(e->lanes); i++)
        cr_sampler_free(&e->parts[i].sampler);
    cr_lanes_destroy(e->lanes);
    void *mine[] = {e->parts,   e->packed, e->layer_blocks, e->table,  e->ids,       e->row_slot,
                    e->row_pos, e->pick,   e->drawn,        e->picked, e->free_slot, e->log_prob};
    for (size_t i = 0; i < CR_COUNT(mine); i++)
        cr_free(mine[i]);
    cr_free(e);
}

void cr_engine_set_tokenizer(cr_engine *e, const cr_tokenizer *tokenizer)
{
    e->tokenizer = tokenizer;
}

void cr_engine_set_on_token(cr_engine *e, cr_engine_on_token on_token, void *ctx)
{
    e->on_token = on_token;
    e->on_token_ctx = ctx;
}

/* Weights of products: Linear, and the embedding when it is the head, too. */
static bool is_product(const cr_model *model, const cr_param *p)
{
    static const char embed[] = "embed_tokens.weight";
    size_t n = strlen(p->name);

    if (p->num_dims != 2) return false;
    return model->config.is_tied || n < sizeof embed - 1 ||
           strcmp(p->name + n - (sizeof embed - 1), embed) != 0;
}

cr_status cr_engine_set_weights(cr_engine *e, cr_err *err)
{
    CR_CHECK(cr_engine_is_idle(e), "weights change while samples are generated");
    if (!e->ref) CR_TRY(reserve_cache(e, e->model->params[0]->weight.dtype, err));
    for (size_t i = 0; i < e->model->num_params; i++) {
        cr_param *p = e->model->params[i];
        if (!is_product(e->model, p)) continue;
        p->weight.packed = NULL;
        if (!e->packed[i].data) {
            e->packed[i].num_bytes = cr_weight_packed_bytes(e->dev, &p->weight);
            e->packed_bytes += e->packed[i].num_bytes;
            CR_TRY(cr_device_alloc(e->dev, e->packed[i].num_bytes, &e->packed[i].data, err));
        }
        CR_TRY(cr_weight_pack(e->dev, &p->weight, e->packed[i].data, err));
        p->weight.packed = e->packed[i].data;
    }
    return CR_OK;
}

/* ---- requests ---- */

cr_status cr_generating_check(const cr_generating *how, cr_err *err)
{
    if (how->max_new_tokens < 1)
        return cr_fail(err, CR_EARG, "max_new_tokens is %lld, expected 1 or more",
                       (long long)how->max_new_tokens);
    if (!(how->temperature >= 0 && isfinite(how->temperature)))
        return cr_fail(err, CR_EARG, "temperature is %g, expected 0 or more",
                       (double)how->temperature);
    if (!(how->top_p > 0) || !(how->min_p >= 0 && how->min_p <= 1))
        return cr_fail(err, CR_EARG,
                       "top_p is %g and min_p %g, expected 0 < top_p, 0 <= min_p <= 1",
                       (double)how->top_p, (double)how->min_p);
    if (!(how->repetition_penalty > 0 && isfinite(how->repetition_penalty)))
        return cr_fail(err, CR_EARG, "repetition_penalty is %g, expected more than 0",
                       (double)how->repetition_penalty);
    return CR_OK;
}

static cr_status check_request(const cr_engine *e, const int32_t *prompt, size_t num_prompt,
                               const cr_generating *how, cr_err *err)
{
    long long room = (long long)e->limits.max_model_len, vocab = e->model->config.vocab_size;

    if (num_prompt == 0) return cr_fail(err, CR_EARG, "the prompt is empty");
    if (num_prompt >= (size_t)room)
        return cr_fail(err, CR_EARG,
                       "the prompt has %zu tokens; with at least one of the answer %lld fit",
                       num_prompt, room);
    for (size_t i = 0; i < num_prompt; i++)
        if (prompt[i] < 0 || prompt[i] >= vocab)
            return cr_fail(err, CR_EARG, "id %d at place %zu is outside the vocabulary of %lld",
                           prompt[i], i, vocab);
    CR_TRY(cr_generating_check(how, err));
    if (how->num_stop && !e->tokenizer)
        return cr_fail(err, CR_EARG, "stop texts need a tokenizer, and this engine has none");
    return CR_OK;
}

static void *copied(const void *src, size_t num_bytes)
{
    void *p = cr_alloc(num_bytes);

    if (num_bytes) memcpy(p, src, num_bytes);
    return p;
}

static group *group_new(const int32_t *prompt, size_t num_prompt, const cr_generating *how,
                        int64_t room, void *user)
{
    group *g = CR_NEW(group);
    char **stop = CR_NEW_ARRAY(char *, how->num_stop);

    g->prompt = copied(prompt, num_prompt * sizeof *prompt);
    g->num_prompt = (int64_t)num_prompt;
    g->how = *how;
    g->how.max_new_tokens = min64(how->max_new_tokens, room - (int64_t)num_prompt);
    for (size_t i = 0; i < how->num_stop; i++)
        stop[i] = cr_strdup(how->stop[i]);
    g->how.stop = (const char *const *)stop;
    g->how.stop_ids = copied(how->stop_ids, how->num_stop_ids * sizeof *how->stop_ids);
    g->user = user;
    return g;
}

static void group_free(group *g)
{
    for (size_t i = 0; i < g->how.num_stop; i++)
        cr_free((void *)(uintptr_t)g->how.stop[i]);
    cr_free((void *)(uintptr_t)g->how.stop);
    cr_free((void *)(uintptr_t)g->how.stop_ids);
    cr_free(g->prompt);
    cr_free(g);
}

static void seq_free(seq *s)
{
    if (--s->group->num_alive == 0) group_free(s->group);
    cr_free(s->output);
    cr_free(s->log_probs);
    if (s->stream.tokenizer) cr_token_stream_end(&s->stream, &s->text);
    cr_buf_free(&s->text);
    cr_free(s);
}

cr_status cr_engine_submit(cr_engine *e, const int32_t *prompt_ids, size_t num_prompt,
                           const uint64_t *sample_ids, size_t num_samples, const cr_generating *how,
                           void *user, cr_err *err)
{
    group *g;

    CR_TRY(check_request(e, prompt_ids, num_prompt, how, err));
    if (num_samples == 0) return CR_OK;
    g = group_new(prompt_ids, num_prompt, how, e->limits.max_model_len, user);
    for (size_t i = 0; i < num_samples; i++) {
        seq *s = CR_NEW(seq);
        s->group = g;
        s->id = sample_ids[i];
        s->slot = -1;
        s->output = CR_NEW_ARRAY(int32_t, g->how.max_new_tokens);
        s->log_probs = CR_NEW_ARRAY(float, g->how.max_new_tokens);
        if (e->tokenizer) cr_token_stream_init(&s->stream, e->tokenizer, /*skip_special=*/true);
        g->num_alive++;
        insert(&e->waiting, s, NULL);
    }
    return CR_OK;
}

/* ---- blocks ---- */

static int32_t *row_of(cr_engine *e, const seq *s)
{
    return e->table + s->slot * e->max_blocks;
}

/* The next block of s; false: none is free. */
static bool take_block(cr_engine *e, seq *s)
{
    int32_t block;

    if (e->num_free == 0) return false;
    block = e->free_block[--e->num_free];
    e->ref[block] = 1;
    row_of(e, s)[s->num_blocks++] = block;
    return true;
}

/* Another sample that holds the prompt, or else one that fills it. */
static seq *find_donor(const cr_engine *e, const group *g)
{
    seq *found = NULL;

    for (seq *x = e->running.first; x; x = x->next)
        if (x->group == g && x->state != SEQ_FOLLOWING &&
            (!found || found->num_cached < x->num_cached))
            found = x;
    return found;
}

/* s leaves `running`: its slot and its blocks are free again, or its siblings' alone. */
static void leave(cr_engine *e, seq *s)
{
    while (s->num_blocks > 0) {
        int32_t block = row_of(e, s)[--s->num_blocks];
        if (--e->ref[block] == 0) e->free_block[e->num_free++] = block;
    }
    s->num_cached = 0;
    e->free_slot[e->num_free_slots++] = s->slot;
    s->slot = -1;
    take_out(&e->running, s);
    if (s->group->donor == s) s->group->donor = find_donor(e, s->group);
}

/* Back to the head of the waiting line: its prompt and output will be computed again. */
static void preempt(cr_engine *e, seq *s)
{
    leave(e, s);
    s->state = SEQ_WAITING;
    insert(&e->waiting, s, e->waiting.first);
    e->stats.num_preempted++;
}

/* Give s, which has none, the first num positions of from: full blocks are shared, the last partial
 * one is copied. false: no block is free for it. */
static cr_status share(cr_engine *e, seq *s, const seq *from, int64_t num, bool *is_done,
                       cr_err *err)
{
    int64_t full = num / CR_KV_BLOCK;

    *is_done = num % CR_KV_BLOCK == 0 || e->num_free > 0;
    if (!*is_done) return CR_OK;
    for (; s->num_blocks < full; s->num_blocks++)
        e->ref[row_of(e, s)[s->num_blocks] = row_of(e, from)[s->num_blocks]]++;
    s->num_cached = num;
    if (num % CR_KV_BLOCK == 0) return CR_OK;
    CR_CHECK(take_block(e, s), "a free block is gone");
    for (int64_t l = 0; l < e->model->config.num_layers; l++) {
        char *blocks = e->layer_blocks[l];
        CR_TRY(cr_kv_block_copy(e->dev, blocks + (size_t)row_of(e, s)[full] * e->block_bytes,
                                blocks + (size_t)row_of(e, from)[full] * e->block_bytes,
                                e->block_bytes, err));
    }
    return CR_OK;
}

/* ---- which rows a step has ---- */

static int32_t token_at(const seq *s, int64_t pos)
{
    int64_t n = s->group->num_prompt;

    return pos < n ? s->group->prompt[pos] : s->output[pos - n];
}

/* Positions that are computed before s runs. */
static int64_t fill_to(const seq *s)
{
    return s->group->num_prompt + s->num_output;
}

/* Free blocks that s still needs until it runs. */
static int64_t blocks_to_fill(const seq *s)
{
    int64_t has = s->state == SEQ_FOLLOWING || (s->state == SEQ_WAITING && s->group->donor)
                      ? (s->group->num_prompt - 1) / CR_KV_BLOCK
                      : s->num_blocks;
    int64_t needs = blocks_of(fill_to(s) + 1) - has;

    return s->state == SEQ_RUNNING || needs < 0 ? 0 : needs;
}

/* Take waiting samples in while there are slots, and blocks to spare for those that run. */
static void admit(cr_engine *e)
{
    int64_t spare = e->num_free - e->running.num / 4;

    if (!e->waiting.first || e->num_free_slots == 0) return;
    for (seq *s = e->running.first; s; s = s->next)
        spare -= blocks_to_fill(s);
    while (e->waiting.first && e->num_free_slots > 0) {
        seq *s = e->waiting.first;
        spare -= blocks_to_fill(s);
        if (spare < 0 && e->running.first) return;
        take_out(&e->waiting, s);
        s->slot = e->free_slot[--e->num_free_slots];
        s->state = s->group->donor ? SEQ_FOLLOWING : SEQ_FILLING;
        if (!s->group->donor) s->group->donor = s;
        insert(&e->running, s, NULL);
    }
}

/* Followers whose sibling has the prompt take it over, but for what is needed for a row of logits;
 * one whose sibling is gone fills for itself. */
static cr_status place_followers(cr_engine *e, cr_err *err)
{
    for (seq *s = e->running.first; s; s = s->next) {
        group *g = s->group;
        bool is_done = true;
        if (s->state != SEQ_FOLLOWING) continue;
        if (!g->donor)
            g->donor = s;
        else if (g->donor->num_cached < g->num_prompt)
            continue;
        else
            CR_TRY(share(e, s, g->donor, g->num_prompt - (s->num_output == 0), &is_done, err));
        if (is_done) s->state = SEQ_FILLING;
    }
    return CR_OK;
}

/* A block for the next position of each running sample, taken from the youngest if need be. */
static void reserve_next(cr_engine *e)
{
    for (seq *s = e->running.first; s; s = s->next) {
        if (s->state != SEQ_RUNNING || s->num_cached < s->num_blocks * CR_KV_BLOCK) continue;
        while (e->num_free == 0 && e->running.last != s)
            preempt(e, e->running.last);
        if (!take_block(e, s)) {
            preempt(e, s);
            return; /* it was the last */
        }
    }
}

/* Rows for the next positions of s, up to num_rows of the step; the last one's logits are wanted if
 * it completes s. Stops early when blocks run out. */
static void add_rows(cr_engine *e, seq *s, int64_t to, int64_t most, int64_t *num_rows,
                     int64_t *num_picks)
{
    int64_t row = *num_rows;

    for (; s->num_cached < to && row < most; row++) {
        int64_t pos = s->num_cached;
        if (pos == s->num_blocks * CR_KV_BLOCK && !take_block(e, s)) break;
        e->ids[row] = token_at(s, pos);
        e->row_slot[row] = s->slot;
        e->row_pos[row] = (int32_t)pos;
        s->num_cached++;
    }
    if (s->num_cached == to && row > *num_rows) {
        e->pick[*num_picks] = (int32_t)row - 1;
        e->picked[(*num_picks)++] = s;
    }
    *num_rows = row;
}

/* One row for each running sample, then chunks of those that fill. */
static cr_status plan_rows(cr_engine *e, int64_t *num_rows, int64_t *num_picks, cr_err *err)
{
    admit(e);
    for (;;) {
        int64_t most = e->limits.max_rows + e->limits.max_running, decoding;
        *num_rows = *num_picks = 0;
        CR_TRY(place_followers(e, err));
        reserve_next(e);
        for (seq *s = e->running.first; s; s = s->next)
            if (s->state == SEQ_RUNNING)
                add_rows(e, s, s->num_cached + 1, most, num_rows, num_picks);
        decoding = *num_rows;
        most = decoding + e->limits.max_rows;
        for (seq *s = e->running.first; s && *num_rows < most; s = s->next)
            if (s->state == SEQ_FILLING) add_rows(e, s, fill_to(s), most, num_rows, num_picks);
        e->stats.num_prompt_rows += *num_rows - decoding;
        if (*num_rows > 0 || !e->running.first) return CR_OK;
        CR_CHECK(e->running.num > 1, "no block for the only sample");
        preempt(e, e->running.last);
    }
}

/* ---- tokens ---- */

static bool is_end(const cr_engine *e, const seq *s, int32_t id)
{
    const cr_model_config *c = &e->model->config;

    for (int i = 0; i < c->num_eos; i++)
        if (c->eos_ids[i] == id) return true;
    for (size_t i = 0; i < s->group->how.num_stop_ids; i++)
        if (s->group->how.stop_ids[i] == id) return true;
    return false;
}

/* Whether the last token, whose text begins at `from`, completes a stop text. Bytes that the stream
 * holds back although they are whole characters are looked at, too (byte fallback). */
static bool has_stop_text(seq *s, size_t from)
{
    const cr_generating *how = &s->group->how;
    const char *held = (const char *)s->stream.run;
    size_t before = s->text.num_bytes;

    if (s->stream.num_run && cr_utf8_valid(held, s->stream.num_run))
        cr_buf_add(&s->text, held, s->stream.num_run);
    for (size_t i = 0; i < how->num_stop; i++) {
        size_t n = strlen(how->stop[i]), start = from > n ? from - n : 0;
        const char *at;
        if (n == 0 || s->text.num_bytes < n) continue;
        at = memmem(s->text.data + start, s->text.num_bytes - start, how->stop[i], n);
        if (!at) continue;
        if (how->should_cut_stop) s->text.num_bytes = (size_t)(at - s->text.data);
        s->text.data[s->text.num_bytes] = 0;
        s->stream.num_run = 0; /* is in the text, or cut off */
        return true;
    }
    if (s->text.num_bytes > before) s->text.data[s->text.num_bytes = before] = 0;
    return false;
}

/* One more token of s. */
static void accept_token(cr_engine *e, seq *s, int32_t id, float log_prob)
{
    size_t from = s->text.num_bytes;

    s->state = SEQ_RUNNING;
    s->output[s->num_output] = id;
    s->log_probs[s->num_output++] = log_prob;
    e->stats.num_tokens++;
    if (e->tokenizer) cr_token_stream_push(&s->stream, id, &s->text);
    if (e->on_token)
        e->on_token(e->on_token_ctx, s->id, id, log_prob,
                    s->text.num_bytes > from ? s->text.data + from : "", s->text.num_bytes - from);
    if (is_end(e, s, id) || (s->group->how.num_stop && has_stop_text(s, from)))
        s->finish = "stop";
    else if (s->num_output >= s->group->how.max_new_tokens)
        s->finish = "length";
    if (!s->finish) return;
    if (e->tokenizer) cr_token_stream_end(&s->stream, &s->text);
    s->stream.tokenizer = NULL;
    leave(e, s);
    insert(&e->finished, s, NULL);
}

/* Draw for s from a row of logits. */
static cr_status draw(cr_engine *e, cr_device *dev, cr_sampler *sampler, const seq *s,
                      const float *logits, int32_t *id, cr_err *err)
{
    const group *g = s->group;
    int64_t vocab = e->model->config.vocab_size;
    uint32_t word[4];

    cr_rng_philox(g->how.seed, CR_RNG_SAMPLE, s->id, (uint64_t)s->num_output, word);
    CR_TRY(cr_sample_token(sampler, dev, logits, vocab, &g->how, g->prompt, (size_t)g->num_prompt,
                           s->output, (size_t)s->num_output, cr_rng_float(word[0]), id, err));
    if (*id < 0 || *id >= vocab)
        return cr_fail(err, CR_ENUMERIC, "token %lld of sample %llu: the logits are not finite",
                       (long long)s->num_output, (unsigned long long)s->id);
    return CR_OK;
}

static cr_status check_log_prob(const seq *s, float log_prob, cr_err *err)
{
    if (isfinite(log_prob)) return CR_OK;
    return cr_fail(err, CR_ENUMERIC, "token %lld of sample %llu has log-prob %g",
                   (long long)s->num_output, (unsigned long long)s->id, (double)log_prob);
}

/* s has just filled its prompt: its followers fork and draw from its row, too. One that gets no
 * block stays a follower. */
static cr_status fork_followers(cr_engine *e, seq *s, const float *logits, cr_err *err)
{
    for (seq *x = s->next, *next; x; x = next) {
        bool is_done;
        int32_t id;
        float log_prob;
        next = x->next;
        if (x->group != s->group || x->state != SEQ_FOLLOWING || x->num_output > 0) continue;
        CR_TRY(share(e, x, s, s->num_cached, &is_done, err));
        if (!is_done) return CR_OK;
        CR_TRY(draw(e, e->dev, &e->parts[0].sampler, x, logits, &id, err));
        CR_TRY(cr_logits_log_prob(e->dev, logits, 1, e->model->config.vocab_size, &id, &log_prob,
                                  NULL, err));
        CR_TRY(check_log_prob(x, log_prob, err));
        accept_token(e, x, id, log_prob);
    }
    return CR_OK;
}

/* Drawn tokens become part of their samples. */
static cr_status accept_tokens(cr_engine *e, int64_t num_picks, cr_err *err)
{
    int64_t vocab = e->model->config.vocab_size;

    for (int64_t i = 0; i < num_picks; i++) {
        seq *s = e->picked[i];
        CR_TRY(check_log_prob(s, e->log_prob[i], err));
        if (s->state == SEQ_FILLING && s->num_output == 0)
            CR_TRY(fork_followers(e, s, e->logits + i * vocab, err));
        accept_token(e, s, e->drawn[i], e->log_prob[i]);
    }
    return CR_OK;
}

static cr_status grow_logits(cr_engine *e, int64_t rows)
{
    if (rows <= e->logits_rows) return CR_OK;
    cr_free(e->logits);
    e->logits_rows = min64(rows + rows / 2, e->limits.max_rows + e->limits.max_running);
    e->logits = CR_NEW_ARRAY(float, e->logits_rows * e->model->config.vocab_size);
    return CR_OK;
}

/* Forward of a part of the step's rows, and tokens for those that are picked. */
static cr_status run_part(void *ctx, int lane, cr_device *dev, cr_err *err)
{
    cr_engine *e = ctx;
    part *own = &e->parts[lane];
    int64_t row0 = own->row0, pick0 = own->pick0, num_picks = own->pick1 - pick0,
            vocab = e->model->config.vocab_size;
    float *logits = e->logits + pick0 * vocab;
    int32_t cu[2] = {0, (int32_t)(own->row1 - row0)};
    cr_batch batch = {.ids = e->ids + row0,
                      .positions = e->row_pos + row0,
                      .cu_seqlens = cu,
                      .num_tokens = own->row1 - row0,
                      .num_seqs = 1};
    cr_kv_view kv = {e->layer_blocks, e->row_slot + row0, e->row_pos + row0, e->table,
                     e->max_blocks};
    cr_pass pass = {.dev = dev,
                    .dtype = e->model->params[0]->weight.dtype,
                    .scratch = own->scratch,
                    .batch = &batch,
                    .kv = &kv};

    for (int64_t i = pick0; i < own->pick1; i++)
        e->pick[i] -= (int32_t)row0;
    CR_TRY(cr_model_logits(e->model, &pass, e->pick + pick0, num_picks, logits, err));
    for (int64_t i = 0; i < num_picks; i++)
        CR_TRY(draw(e, dev, &own->sampler, e->picked[pick0 + i], logits + i * vocab,
                    &e->drawn[pick0 + i], err));
    return cr_logits_log_prob(dev, logits, num_picks, vocab, e->drawn + pick0, e->log_prob + pick0,
                              NULL, err);
}

/* Cut the step between sequences into even parts, one for each lane; how many. One: lanes would be
 * uneven or small, or each would have to read weights that do not stay in its caches. */
static int cut_step(cr_engine *e, int64_t num_rows, int64_t num_picks)
{
    enum { LEAST_ROWS = 8, MOST_BYTES = 8 << 20 };
    int num = (int)min64(cr_lanes_num(e->lanes), num_rows / LEAST_ROWS);
    int64_t row = 0, pick = 0, most = 0;

    if (e->packed_bytes > MOST_BYTES || e->model->config.num_experts > 0) num = 1;
    for (int i = 0; i < num; i++) {
        part *p = &e->parts[i];
        p->row0 = row;
        p->pick0 = pick;
        row = num_rows * (i + 1) / num;
        if (row < p->row0) row = p->row0;
        while (row > 0 && row < num_rows && e->row_slot[row] == e->row_slot[row - 1])
            row++;
        while (pick < num_picks && e->pick[pick] < row)
            pick++;
        p->row1 = row;
        p->pick1 = pick;
        if (row - p->row0 > most) most = row - p->row0;
    }
    if (num > 1 && most * num <= num_rows + num_rows / 2) return num;
    e->parts[0].row0 = e->parts[0].pick0 = 0;
    e->parts[0].row1 = num_rows;
    e->parts[0].pick1 = num_picks;
    return 1;
}

cr_status cr_engine_step(cr_engine *e, cr_err *err)
{
    int64_t num_picks, num_rows;
    int num_parts;

    CR_CHECK(e->ref, "cr_engine_step before cr_engine_set_weights");
    CR_TRY(plan_rows(e, &num_rows, &num_picks, err));
    if (num_rows == 0) return CR_OK;
    CR_TRY(grow_logits(e, num_picks));
    num_parts = cut_step(e, num_rows, num_picks);
    if (num_parts == 1)
        CR_TRY(run_part(e, 0, e->dev, err));
    else
        CR_TRY(cr_lanes_run(e->lanes, num_parts, run_part, e, err));
    e->stats.num_steps++;
    return accept_tokens(e, num_picks, err);
}

bool cr_engine_is_idle(const cr_engine *e)
{
    return e->waiting.num == 0 && e->running.num == 0;
}

size_t cr_engine_num_waiting(const cr_engine *e)
{
    return (size_t)e->waiting.num;
}

bool cr_engine_poll(cr_engine *e, cr_generated *out)
{
    seq *s = e->finished.first;

    if (!s) return false;
    take_out(&e->finished, s);
    *out = (cr_generated){.sample_id = s->id,
                          .user = s->group->user,
                          .ids = s->output,
                          .log_probs = s->log_probs,
                          .num_ids = (size_t)s->num_output,
                          .text = s->text.data,
                          .text_bytes = s->text.num_bytes,
                          .finish = s->finish};
    if (e->tokenizer && !out->text) out->text = cr_strdup("");
    s->output = NULL;
    s->log_probs = NULL;
    s->text = (cr_buf){0};
    seq_free(s);
    return true;
}

void cr_generated_free(cr_generated *g)
{
    cr_free(g->ids);
    cr_free(g->log_probs);
    cr_free(g->text);
    *g = (cr_generated){0};
}

void cr_engine_abort(cr_engine *e)
{
    list *lists[] = {&e->waiting, &e->finished};

    while (e->running.last) {
        seq *s = e->running.last;
        leave(e, s);
        seq_free(s);
    }
    for (size_t i = 0; i < CR_COUNT(lists); i++)
        while (lists[i]->first) {
            seq *s = lists[i]->first;
            take_out(lists[i], s);
            seq_free(s);
        }
}

cr_engine_stats cr_engine_get_stats(const cr_engine *e)
{
    cr_engine_stats s = e->stats;

    s.blocks_total = e->num_blocks;
    s.blocks_used = e->num_blocks - e->num_free;
    return s;
}
