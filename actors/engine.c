/* engine.c -- see engine.h.
 *
 * A sequence is waiting (its prompt, or after preemption its prompt and output, must be computed),
 * filling (chunks of it are) or running (one row a step). Samples of one request wait for the first
 * of them, the leader; when its prompt is done they fork from it: full blocks are counted, the last
 * partial block is copied, and each draws its first token from the leader's row of logits.
 */
#include "actors/engine.h"
#include "actors/sampling.h"
#include "base/rng.h"

#include <string.h>

typedef enum seq_state { SEQ_WAITING, SEQ_FOLLOWING, SEQ_FILLING, SEQ_RUNNING } seq_state;

typedef struct group {
    int32_t *prompt;
    size_t num_prompt;
    cr_generating how;
    char **stop;
    void *user;
    size_t num_alive; /* sequences that refer to it */
} group;

typedef struct seq {
    struct seq *next;   /* in its list */
    struct seq *leader; /* FOLLOWING: whose prompt it waits for */
    group *group;
    uint64_t id;
    seq_state state;
    int slot;           /* row of the block table, -1: none */
    int64_t num_cached; /* positions in the cache */
    int64_t fill_to;    /* FILLING: positions to compute before it runs */
    int32_t *output;    /* [max_new_tokens] */
    float *log_probs;
    size_t num_output;
    cr_buf text;
    const char *finish;
    int64_t age; /* order of admission: the youngest is preempted */
} seq;

typedef struct list {
    seq *first, *last;
    size_t num;
} list;

struct cr_engine {
    cr_model *model;
    cr_device *dev;
    cr_engine_limits limits;
    cr_stack *scratch;
    list waiting, running, finished; /* running: FOLLOWING, FILLING and RUNNING */
    /* cache */
    void **layer_blocks; /* [num_layers] */
    size_t block_bytes;
    int64_t num_blocks, max_blocks; /* of the pool; of one sequence */
    int32_t *free_block, *ref;
    int64_t num_free;
    int32_t *table; /* [max_running, max_blocks] */
    int *free_slot;
    int num_free_slots;
    /* one step */
    int32_t *ids, *row_slot, *row_pos, *pick, *labels, *drawn; /* [max_rows + max_running] */
    seq **picked;
    float *logits; /* [num picks, vocab], grown */
    int64_t logits_rows;
    float *log_prob;
    /* packed weights */
    struct {
        void *data;
        size_t num_bytes;
    } * packed; /* [num_params] */
    cr_sampler sampler;
    cr_engine_decode decode;
    void *decode_ctx;
    cr_engine_on_token on_token;
    void *on_token_ctx;
    int64_t age;
    cr_engine_stats stats;
};

/* ---- lists ---- */

static void push(list *l, seq *s)
{
    s->next = NULL;
    if (l->last)
        l->last->next = s;
    else
        l->first = s;
    l->last = s;
    l->num++;
}

static void push_front(list *l, seq *s)
{
    s->next = l->first;
    l->first = s;
    if (!l->last) l->last = s;
    l->num++;
}

static void take_out(list *l, seq *s)
{
    seq *before = NULL;

    for (seq *x = l->first; x != s; x = x->next)
        before = x;
    if (before)
        before->next = s->next;
    else
        l->first = s->next;
    if (l->last == s) l->last = before;
    l->num--;
    s->next = NULL;
}

/* ---- life ---- */

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

cr_status cr_engine_create(cr_model *model, cr_device *dev, const cr_engine_limits *limits,
                           cr_engine **out, cr_err *err)
{
    cr_engine *e = CR_NEW(cr_engine);
    const cr_model_config *c = &model->config;
    int64_t rows;

    *out = NULL;
    e->model = model;
    e->dev = dev;
    e->limits = *limits;
    if (e->limits.max_rows <= 0) e->limits.max_rows = 512;
    if (e->limits.max_running < 1) e->limits.max_running = 1;
    if (e->limits.max_model_len <= 0) e->limits.max_model_len = c->max_position_embeddings;
    e->scratch = cr_stack_create(dev);
    e->max_blocks = (e->limits.max_model_len + CR_KV_BLOCK - 1) / CR_KV_BLOCK;
    e->block_bytes = cr_kv_block_bytes(dev, CR_F32, c->num_kv_heads, c->head_dim);
    e->num_blocks = e->limits.kv_bytes > 0
                        ? e->limits.kv_bytes / (int64_t)e->block_bytes / c->num_layers
                        : e->limits.max_running * e->max_blocks;
    if (e->num_blocks < e->max_blocks) e->num_blocks = e->max_blocks; /* one sequence always fits */
    rows = e->limits.max_rows + e->limits.max_running;
    e->layer_blocks = CR_NEW_ARRAY(void *, c->num_layers);
    e->free_block = CR_NEW_ARRAY(int32_t, e->num_blocks);
    e->ref = CR_NEW_ARRAY(int32_t, e->num_blocks);
    e->table = CR_NEW_ARRAY(int32_t, e->limits.max_running * e->max_blocks);
    e->free_slot = CR_NEW_ARRAY(int, e->limits.max_running);
    e->ids = CR_NEW_ARRAY(int32_t, rows);
    e->row_slot = CR_NEW_ARRAY(int32_t, rows);
    e->row_pos = CR_NEW_ARRAY(int32_t, rows);
    e->pick = CR_NEW_ARRAY(int32_t, rows);
    e->labels = CR_NEW_ARRAY(int32_t, rows);
    e->drawn = CR_NEW_ARRAY(int32_t, rows);
    e->picked = CR_NEW_ARRAY(seq *, rows);
    e->log_prob = CR_NEW_ARRAY(float, rows);
    e->packed = cr_alloc(model->num_params * sizeof *e->packed);
    for (int64_t i = e->num_blocks; i-- > 0;)
        e->free_block[e->num_free++] = (int32_t)i;
    for (int i = (int)e->limits.max_running; i-- > 0;)
        e->free_slot[e->num_free_slots++] = i;
    for (int64_t l = 0; l < c->num_layers && err->status == CR_OK; l++)
        cr_note(
            cr_device_alloc(dev, (size_t)e->num_blocks * e->block_bytes, &e->layer_blocks[l], err));
    if (err->status == CR_OK)
        *out = e;
    else
        cr_engine_destroy(e);
    return err->status;
}

static void seq_free(seq *s)
{
    if (--s->group->num_alive == 0) {
        for (size_t i = 0; i < s->group->how.num_stop; i++)
            cr_free(s->group->stop[i]);
        cr_free(s->group->stop);
        cr_free(s->group->prompt);
        cr_free(s->group);
    }
    cr_free(s->output);
    cr_free(s->log_probs);
    cr_buf_free(&s->text);
    cr_free(s);
}

void cr_engine_destroy(cr_engine *e)
{
    if (!e) return;
    cr_engine_abort(e);
    for (int64_t l = 0; l < e->model->config.num_layers; l++)
        cr_device_free(e->dev, e->layer_blocks[l], (size_t)e->num_blocks * e->block_bytes);
    for (size_t i = 0; i < e->model->num_params; i++) {
        cr_device_free(e->dev, e->packed[i].data, e->packed[i].num_bytes);
        e->model->params[i]->weight.packed = NULL;
    }
    cr_stack_destroy(e->scratch);
    cr_sampler_free(&e->sampler);
    cr_free(e->packed);
    cr_free(e->layer_blocks);
    cr_free(e->free_block);
    cr_free(e->ref);
    cr_free(e->table);
    cr_free(e->free_slot);
    cr_free(e->ids);
    cr_free(e->row_slot);
    cr_free(e->row_pos);
    cr_free(e->pick);
    cr_free(e->labels);
    cr_free(e->drawn);
    cr_free(e->picked);
    cr_free(e->logits);
    cr_free(e->log_prob);
    cr_free(e);
}

void cr_engine_set_text(cr_engine *e, cr_engine_decode decode, void *ctx)
{
    e->decode = decode;
    e->decode_ctx = ctx;
}

void cr_engine_set_on_token(cr_engine *e, cr_engine_on_token on_token, void *ctx)
{
    e->on_token = on_token;
    e->on_token_ctx = ctx;
}

cr_status cr_engine_set_weights(cr_engine *e, cr_err *err)
{
    CR_CHECK(cr_engine_is_idle(e), "weights change while samples are generated");
    for (size_t i = 0; i < e->model->num_params; i++) {
        cr_param *p = e->model->params[i];
        if (p->num_dims != 2) continue;
        p->weight.packed = NULL;
        if (!e->packed[i].data) {
            e->packed[i].num_bytes = cr_weight_packed_bytes(e->dev, &p->weight);
            CR_TRY(cr_device_alloc(e->dev, e->packed[i].num_bytes, &e->packed[i].data, err));
        }
        CR_TRY(cr_weight_pack(e->dev, &p->weight, e->packed[i].data, err));
        p->weight.packed = e->packed[i].data;
    }
    return CR_OK;
}

/* ---- requests ---- */

cr_status cr_engine_submit(cr_engine *e, const int32_t *prompt_ids, size_t num_prompt,
                           const uint64_t *sample_ids, size_t num_samples, const cr_generating *how,
                           void *user, cr_err *err)
{
    int64_t room = e->limits.max_model_len - (int64_t)num_prompt;
    group *g;
    seq *leader = NULL;

    if (num_prompt == 0) return cr_fail(err, CR_EARG, "the prompt is empty");
    if (room < 1)
        return cr_fail(err, CR_EARG,
                       "the prompt has %zu tokens, of %lld that the model takes with its answer",
                       num_prompt, (long long)e->limits.max_model_len);
    if (how->max_new_tokens < 1)
        return cr_fail(err, CR_EARG, "max_new_tokens is %lld", (long long)how->max_new_tokens);
    for (size_t i = 0; i < num_prompt; i++)
        if (prompt_ids[i] < 0 || prompt_ids[i] >= e->model->config.vocab_size)
            return cr_fail(err, CR_EARG, "id %d at place %zu is outside the vocabulary of %lld",
                           prompt_ids[i], i, (long long)e->model->config.vocab_size);
    g = CR_NEW(group);
    g->prompt = CR_NEW_ARRAY(int32_t, num_prompt);
    memcpy(g->prompt, prompt_ids, num_prompt * sizeof *prompt_ids);
    g->num_prompt = num_prompt;
    g->how = *how;
    g->how.max_new_tokens = min64(how->max_new_tokens, room);
    g->stop = CR_NEW_ARRAY(char *, how->num_stop);
    for (size_t i = 0; i < how->num_stop; i++)
        g->stop[i] = cr_strdup(how->stop[i]);
    g->user = user;
    for (size_t i = 0; i < num_samples; i++) {
        seq *s = CR_NEW(seq);
        s->group = g;
        s->id = sample_ids[i];
        s->slot = -1;
        s->leader = leader;
        s->output = CR_NEW_ARRAY(int32_t, g->how.max_new_tokens);
        s->log_probs = CR_NEW_ARRAY(float, g->how.max_new_tokens);
        if (!leader) leader = s;
        g->num_alive++;
        push(&e->waiting, s);
    }
    if (num_samples == 0) {
        cr_free(g->prompt);
        cr_free(g->stop);
        cr_free(g);
    }
    return CR_OK;
}

/* ---- blocks ---- */

static int32_t *row_of(cr_engine *e, const seq *s)
{
    return e->table + s->slot * e->max_blocks;
}

static void release_blocks(cr_engine *e, seq *s)
{
    for (int64_t b = 0; b * CR_KV_BLOCK < s->num_cached; b++) {
        int32_t block = row_of(e, s)[b];
        if (--e->ref[block] == 0) e->free_block[e->num_free++] = block;
    }
    s->num_cached = 0;
    e->free_slot[e->num_free_slots++] = s->slot;
    s->slot = -1;
}

/* Back to the head of the waiting line: its prompt and output will be computed again. */
static void preempt(cr_engine *e, seq *s)
{
    for (seq *x = e->running.first; x; x = x->next)
        if (x->state == SEQ_FOLLOWING && x->leader == s)
            x->leader = NULL; /* each for itself, when it is its turn */
    release_blocks(e, s);
    take_out(&e->running, s);
    s->state = SEQ_WAITING;
    s->leader = NULL;
    push_front(&e->waiting, s);
    e->stats.num_preempted++;
}

/* A block for position pos of s; may preempt younger samples. False: s itself must wait. */
static bool take_block(cr_engine *e, seq *s, int64_t pos)
{
    while (e->num_free == 0) {
        seq *youngest = NULL;
        for (seq *x = e->running.first; x; x = x->next)
            if (x->slot >= 0 && x->num_cached > 0 && (!youngest || x->age > youngest->age))
                youngest = x;
        if (!youngest || youngest == s || youngest->age < s->age) return false;
        preempt(e, youngest);
    }
    int32_t block = e->free_block[--e->num_free];
    e->ref[block] = 1;
    row_of(e, s)[pos / CR_KV_BLOCK] = block;
    return true;
}

/* ---- one step ---- */

static int32_t token_at(const seq *s, int64_t pos)
{
    size_t n = s->group->num_prompt;

    return (size_t)pos < n ? s->group->prompt[pos] : s->output[(size_t)pos - n];
}

/* Take waiting samples in while there are slots. */
static void admit(cr_engine *e)
{
    while (e->waiting.first && e->num_free_slots > 0) {
        seq *s = e->waiting.first;
        take_out(&e->waiting, s);
        s->slot = e->free_slot[--e->num_free_slots];
        s->age = e->age++;
        s->num_cached = 0;
        /* a leader that is past its prompt has nothing to fork from any more */
        if (s->leader && s->leader->slot >= 0 && s->leader->state == SEQ_FILLING &&
            s->leader->num_output == 0) {
            s->state = SEQ_FOLLOWING;
        } else {
            s->state = SEQ_FILLING;
            s->leader = NULL;
            for (seq *x = e->waiting.first; x && x->group == s->group; x = x->next)
                if (x->num_output == 0 && s->num_output == 0)
                    x->leader = s; /* the rest of the group follows this one */
            s->fill_to = (int64_t)(s->group->num_prompt + s->num_output);
        }
        push(&e->running, s);
    }
}

/* Add row `pos` of s; false if no block can be had. */
static bool add_row(cr_engine *e, seq *s, int64_t pos, int64_t *num_rows)
{
    if (pos % CR_KV_BLOCK == 0 && !take_block(e, s, pos)) return false;
    e->ids[*num_rows] = token_at(s, pos);
    e->row_slot[*num_rows] = s->slot;
    e->row_pos[*num_rows] = (int32_t)pos;
    s->num_cached = pos + 1;
    (*num_rows)++;
    return true;
}

/* The last block of the leader is partly filled: give s its own copy; share the full ones. */
static cr_status fork_from(cr_engine *e, seq *s, const seq *leader, bool *is_done, cr_err *err)
{
    int64_t num = (leader->num_cached + CR_KV_BLOCK - 1) / CR_KV_BLOCK,
            full = leader->num_cached / CR_KV_BLOCK;

    *is_done = false;
    for (int64_t b = 0; b < full; b++)
        e->ref[row_of(e, s)[b] = row_of(e, leader)[b]]++;
    s->num_cached = full * CR_KV_BLOCK;
    if (num > full) {
        if (!take_block(e, s, full * CR_KV_BLOCK)) { /* waits for its own turn */
            preempt(e, s);
            return CR_OK;
        }
        for (int64_t l = 0; l < e->model->config.num_layers; l++)
            CR_TRY(cr_kv_block_copy(
                e->dev, (char *)e->layer_blocks[l] + (size_t)row_of(e, s)[full] * e->block_bytes,
                (char *)e->layer_blocks[l] + (size_t)row_of(e, leader)[full] * e->block_bytes,
                e->block_bytes, err));
    }
    s->num_cached = leader->num_cached;
    s->state = SEQ_RUNNING;
    *is_done = true;
    return CR_OK;
}

static bool is_eos(const cr_engine *e, int32_t id)
{
    for (int i = 0; i < e->model->config.num_eos; i++)
        if (e->model->config.eos_ids[i] == id) return true;
    return false;
}

/* Text so far, and whether a stop text has come. Only the tail can hold a new one. */
static bool has_stop_text(cr_engine *e, seq *s)
{
    size_t before = s->text.num_bytes, longest = 0;

    cr_buf_clear(&s->text);
    e->decode(e->decode_ctx, s->output, s->num_output, &s->text);
    for (size_t i = 0; i < s->group->how.num_stop; i++) {
        size_t n = strlen(s->group->stop[i]);
        char *at;
        if (n > longest) longest = n;
        if (n == 0 || s->text.num_bytes < n) continue;
        at = strstr(s->text.data + (before > n ? before - n : 0), s->group->stop[i]);
        if (!at) continue;
        if (s->group->how.should_cut_stop) {
            s->text.num_bytes = (size_t)(at - s->text.data);
            *at = 0;
        }
        return true;
    }
    return false;
}

/* One more token of s. */
static void accept_token(cr_engine *e, seq *s, int32_t id, float log_prob)
{
    s->output[s->num_output] = id;
    s->log_probs[s->num_output++] = log_prob;
    e->stats.num_tokens++;
    if (e->on_token) e->on_token(e->on_token_ctx, s->id, id, log_prob);
    if (is_eos(e, id))
        s->finish = "stop";
    else if (e->decode && s->group->how.num_stop && has_stop_text(e, s))
        s->finish = "stop";
    else if ((int64_t)s->num_output >= s->group->how.max_new_tokens)
        s->finish = "length";
    if (!s->finish) return;
    if (e->decode &&
        !(s->group->how.num_stop && strcmp(s->finish, "stop") == 0 && !is_eos(e, id))) {
        cr_buf_clear(&s->text);
        e->decode(e->decode_ctx, s->output, s->num_output, &s->text);
    }
    release_blocks(e, s);
    take_out(&e->running, s);
    push(&e->finished, s);
}

static cr_status sample(cr_engine *e, seq *s, const float *logits, int32_t *id, cr_err *err)
{
    uint32_t word[4];

    cr_rng_philox(s->group->how.seed, CR_RNG_SAMPLE, s->id, s->num_output, word);
    return cr_sample_token(&e->sampler, e->dev, logits, e->model->config.vocab_size, &s->group->how,
                           s->group->prompt, s->group->num_prompt, s->output, s->num_output,
                           cr_rng_float(word[0]), id, err);
}

/* Rows of this step: one for each running sample, then chunks of prompts. */
static int64_t build_rows(cr_engine *e, int64_t *num_picks)
{
    int64_t rows = 0, budget;

    *num_picks = 0;
    for (seq *s = e->running.first, *next; s; s = next) {
        next = s->next;
        if (s->state != SEQ_RUNNING) continue;
        if (!add_row(e, s, s->num_cached, &rows)) {
            preempt(e, s);
            continue;
        }
        e->pick[*num_picks] = (int32_t)rows - 1;
        e->picked[(*num_picks)++] = s;
    }
    budget = rows + e->limits.max_rows;
    for (seq *s = e->running.first; s && rows < budget; s = s->next) {
        int64_t from = s->num_cached;
        if (s->state != SEQ_FILLING) continue;
        while (s->num_cached < s->fill_to && rows < budget)
            if (!add_row(e, s, s->num_cached, &rows)) break;
        e->stats.num_prompt_rows += s->num_cached - from;
        if (s->num_cached < s->fill_to) continue;
        e->pick[*num_picks] = (int32_t)rows - 1;
        e->picked[(*num_picks)++] = s;
    }
    return rows;
}

/* A preempted sample must not keep rows in this step: rows are built again without it. */
static int64_t plan_rows(cr_engine *e, int64_t *num_picks)
{
    for (;;) {
        int64_t preempted = e->stats.num_preempted, rows;
        rows = build_rows(e, num_picks);
        if (e->stats.num_preempted == preempted) return rows;
        for (seq *s = e->running.first; s; s = s->next) { /* take the rows back; blocks stay */
            int64_t kept = s->num_cached;
            for (int64_t r = 0; r < rows; r++)
                if (e->row_slot[r] == s->slot && e->row_pos[r] < kept) kept = e->row_pos[r];
            for (int64_t b = (kept + CR_KV_BLOCK - 1) / CR_KV_BLOCK;
                 b * CR_KV_BLOCK < s->num_cached; b++) {
                int32_t block = row_of(e, s)[b];
                if (--e->ref[block] == 0) e->free_block[e->num_free++] = block;
            }
            s->num_cached = kept;
        }
    }
}

static cr_status grow_logits(cr_engine *e, int64_t rows)
{
    if (rows <= e->logits_rows) return CR_OK;
    cr_free(e->logits);
    e->logits_rows = rows + rows / 2;
    e->logits = CR_NEW_ARRAY(float, e->logits_rows * e->model->config.vocab_size);
    return CR_OK;
}

/* Tokens for the picked rows. The samples that follow a filled prompt draw from its row, too. */
static cr_status draw_tokens(cr_engine *e, int64_t num_picks, cr_err *err)
{
    int64_t vocab = e->model->config.vocab_size;

    for (int64_t i = 0; i < num_picks; i++)
        CR_TRY(sample(e, e->picked[i], e->logits + i * vocab, &e->labels[i], err));
    CR_TRY(
        cr_logits_log_prob(e->dev, e->logits, num_picks, vocab, e->labels, e->log_prob, NULL, err));
    for (int64_t i = 0; i < num_picks; i++) {
        seq *s = e->picked[i], *x, *next;
        bool is_first = s->state == SEQ_FILLING;
        s->state = SEQ_RUNNING;
        for (x = is_first ? e->running.first : NULL; x;
             x = next) { /* before the leader may end and give up its blocks */
            bool is_done;
            int32_t id;
            float log_prob;
            next = x->next;
            if (x->state != SEQ_FOLLOWING || x->leader != s) continue;
            CR_TRY(fork_from(e, x, s, &is_done, err));
            x->leader = NULL;
            if (!is_done) continue;
            CR_TRY(sample(e, x, e->logits + i * vocab, &id, err));
            CR_TRY(cr_logits_log_prob(e->dev, e->logits + i * vocab, 1, vocab, &id, &log_prob, NULL,
                                      err));
            accept_token(e, x, id, log_prob);
        }
        accept_token(e, s, e->labels[i], e->log_prob[i]);
    }
    return CR_OK;
}

cr_status cr_engine_step(cr_engine *e, cr_err *err)
{
    int64_t num_picks, rows;
    int32_t cu[2];

    admit(e);
    /* followers whose leader is gone fill for themselves */
    for (seq *s = e->running.first; s; s = s->next)
        if (s->state == SEQ_FOLLOWING && (!s->leader || s->leader->state != SEQ_FILLING)) {
            s->state = SEQ_FILLING;
            s->leader = NULL;
            s->fill_to = (int64_t)(s->group->num_prompt + s->num_output);
        }
    rows = plan_rows(e, &num_picks);
    if (rows == 0) return CR_OK;
    cu[0] = 0;
    cu[1] = (int32_t)rows;
    cr_batch batch = {.ids = e->ids,
                      .positions = e->row_pos,
                      .cu_seqlens = cu,
                      .num_tokens = rows,
                      .num_seqs = 1};
    cr_kv_view kv = {e->layer_blocks, e->row_slot, e->row_pos, e->table, e->max_blocks};
    cr_pass pass = {.dev = e->dev,
                    .dtype = e->model->params[0]->weight.dtype,
                    .scratch = e->scratch,
                    .batch = &batch,
                    .kv = &kv};
    CR_TRY(grow_logits(e, num_picks));
    CR_TRY(cr_model_logits(e->model, &pass, e->pick, num_picks, e->logits, err));
    e->stats.num_steps++;
    return draw_tokens(e, num_picks, err);
}

bool cr_engine_is_idle(const cr_engine *e)
{
    return e->waiting.num == 0 && e->running.num == 0;
}

size_t cr_engine_num_waiting(const cr_engine *e)
{
    return e->waiting.num;
}

bool cr_engine_poll(cr_engine *e, cr_generated *out)
{
    seq *s = e->finished.first;

    if (!s) return false;
    take_out(&e->finished, s);
    *out = (cr_generated){s->id,         s->group->user, s->output,         s->log_probs,
                          s->num_output, s->text.data,   s->text.num_bytes, s->finish};
    if (e->decode && !out->text) out->text = cr_strdup("");
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
    list *lists[] = {&e->running, &e->waiting, &e->finished};

    for (size_t i = 0; i < CR_COUNT(lists); i++)
        while (lists[i]->first) {
            seq *s = lists[i]->first;
            if (s->slot >= 0) release_blocks(e, s);
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
