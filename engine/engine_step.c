/* engine_step.c -- one step of an engine (see engine_impl.h): samples that are taken in, the blocks
 * they hold, the rows of the forward, and the tokens that come of it. */
#include "engine/engine_impl.h"
#include "engine/images.h"

#include <math.h>
#include <string.h>

/* ---- blocks ---- */

static int32_t *row_of(cr_engine *e, const cri_seq *s)
{
    return e->table + s->slot * e->max_blocks;
}

/* The next block of s; false: none is free. */
static bool take_block(cr_engine *e, cri_seq *s)
{
    int32_t block;

    if (e->num_free == 0) return false;
    e->num_free--;
    block = e->num_unkept ? e->free_block[--e->num_unkept] : cri_prefix_take(e->prefixes);
    e->ref[block] = 1;
    row_of(e, s)[s->num_blocks++] = block;
    return true;
}

/* Another sample that holds the prompt, or else one that fills it. */
static cri_seq *find_donor(const cr_engine *e, const cri_group *g)
{
    cri_seq *found = NULL;

    for (cri_seq *x = e->running.first; x; x = x->next)
        if (x->group == g && x->state != CRI_FOLLOWING &&
            (!found || found->num_cached < x->num_cached))
            found = x;
    return found;
}

void cri_seq_leave(cr_engine *e, cri_seq *s)
{
    if (s->state == CRI_FILLING) cri_images_release(e, s);
    while (s->num_blocks > 0) {
        int32_t block = row_of(e, s)[--s->num_blocks];
        if (--e->ref[block] > 0) continue;
        e->num_free++;
        if (!e->prefixes || !cri_prefix_leave(e->prefixes, block))
            e->free_block[e->num_unkept++] = block;
    }
    s->num_cached = s->num_kept_blocks = 0;
    e->free_slot[e->num_free_slots++] = s->slot;
    s->slot = -1;
    cri_seq_take_out(&e->running, s);
    if (s->group->donor == s) s->group->donor = find_donor(e, s->group);
}

/* Back to the head of the waiting line: its prompt and output will be computed again. */
static void preempt(cr_engine *e, cri_seq *s)
{
    cri_seq_leave(e, s);
    s->state = CRI_WAITING;
    cri_seq_insert(&e->waiting, s, e->waiting.first);
    e->stats.num_preempted++;
}

/* Give s, which has none, the first num positions of from: full blocks are shared, the last partial
 * one is copied. false: no block is free for it. */
static cr_status share(cr_engine *e, cri_seq *s, const cri_seq *from, int64_t num, bool *is_done,
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
        cr_mem *blocks = e->layer_blocks[l];
        size_t to = (size_t)row_of(e, s)[full], src = (size_t)row_of(e, from)[full];
        CR_TRY(cr_copy(e->dev, cr_mem_add(blocks, to * e->block_bytes),
                       cr_mem_add(blocks, src * e->block_bytes), e->block_bytes, err));
    }
    return CR_OK;
}

/* ---- which rows a step has ---- */

static int32_t token_at(const cri_seq *s, int64_t pos)
{
    int64_t n = s->group->num_prompt;

    return pos < n ? s->group->prompt[pos] : s->output[pos - n];
}

/* Positions that are computed before s runs. */
static int64_t fill_to(const cri_seq *s)
{
    return s->group->num_prompt + s->num_output;
}

/* The ids of a block of s. */
static void ids_of_block(const cri_seq *s, int64_t block, int32_t ids[CR_KV_BLOCK])
{
    for (int64_t i = 0; i < CR_KV_BLOCK; i++)
        ids[i] = token_at(s, block * CR_KV_BLOCK + i);
}

/* s, which has no block, takes over those that are kept and begins to fill after them. */
static void begin_to_fill(cr_engine *e, cri_seq *s)
{
    cri_group *g = s->group;
    int64_t max = (fill_to(s) - 1) / CR_KV_BLOCK;
    int32_t ids[CR_KV_BLOCK], block;
    uint64_t chain;

    s->state = CRI_FILLING;
    g->donor = s;
    s->chain = cri_prefix_root(g->how.cache_salt, g->how.adapter);
    while (e->prefixes && s->num_blocks < max) {
        ids_of_block(s, s->num_blocks, ids);
        chain = cri_images_chain(s, s->num_blocks);
        block = cri_prefix_find(e->prefixes, &chain, ids);
        if (block < 0) break;
        s->chain = chain;
        if (e->ref[block]++ == 0) {
            cri_prefix_use(e->prefixes, block);
            e->num_free--;
        }
        row_of(e, s)[s->num_blocks++] = block;
    }
    s->num_kept_blocks = s->num_blocks;
    s->num_cached = s->num_blocks * CR_KV_BLOCK;
    if (g->has_begun) return;
    g->has_begun = true;
    g->num_reused = s->num_cached;
    e->stats.num_reused += s->num_cached;
}

/* Keep what the step has filled. */
static void keep_blocks(cr_engine *e)
{
    int32_t ids[CR_KV_BLOCK];

    for (cri_seq *s = e->running.first; e->prefixes && s; s = s->next) {
        if (s->num_kept_blocks == 0)
            s->chain = cri_prefix_root(s->group->how.cache_salt, s->group->how.adapter);
        for (; (s->num_kept_blocks + 1) * CR_KV_BLOCK <= s->num_cached; s->num_kept_blocks++) {
            ids_of_block(s, s->num_kept_blocks, ids);
            s->chain = cri_images_chain(s, s->num_kept_blocks);
            cri_prefix_keep(e->prefixes, &s->chain, ids, row_of(e, s)[s->num_kept_blocks]);
        }
    }
}

/* Free blocks that s still needs until it runs. */
static int64_t blocks_to_fill(const cri_seq *s)
{
    int64_t has = s->state == CRI_FOLLOWING || (s->state == CRI_WAITING && s->group->donor)
                      ? (s->group->num_prompt - 1) / CR_KV_BLOCK
                      : s->num_blocks;
    int64_t needs = cri_blocks_of(fill_to(s) + 1) - has;

    return s->state == CRI_RUNNING || needs < 0 ? 0 : needs;
}

/* Take waiting samples in while there are slots, and blocks to spare for those that run. */
static void admit(cr_engine *e)
{
    int64_t spare = e->num_free - e->running.num / 4;

    if (!e->waiting.first || e->num_free_slots == 0) return;
    for (cri_seq *s = e->running.first; s; s = s->next)
        spare -= blocks_to_fill(s);
    while (e->waiting.first && e->num_free_slots > 0) {
        cri_seq *s = e->waiting.first;
        spare -= blocks_to_fill(s);
        if (spare < 0 && e->running.first) return;
        cri_seq_take_out(&e->waiting, s);
        s->slot = e->free_slot[--e->num_free_slots];
        if (s->group->donor)
            s->state = CRI_FOLLOWING;
        else
            begin_to_fill(e, s);
        cri_seq_insert(&e->running, s, NULL);
    }
}

/* Followers whose sibling has the prompt take it over, but for what is needed for a row of logits;
 * one whose sibling is gone fills for itself. */
static cr_status place_followers(cr_engine *e, cr_err *err)
{
    for (cri_seq *s = e->running.first; s; s = s->next) {
        cri_group *g = s->group;
        bool is_done = true;
        if (s->state != CRI_FOLLOWING) continue;
        if (!g->donor) {
            begin_to_fill(e, s);
            continue;
        }
        if (g->donor->num_cached < g->num_prompt) continue;
        CR_TRY(share(e, s, g->donor, g->num_prompt - (s->num_output == 0), &is_done, err));
        if (is_done) s->state = CRI_FILLING;
    }
    return CR_OK;
}

/* Does the forward at hand have rows of s, if it is in this state? */
static bool is_in(const cr_engine *e, const cri_seq *s, cri_seq_state state)
{
    return s->state == state && s->group->how.adapter == e->adapter;
}

/* A block for the next position of each running sample, taken from the youngest if need be. */
static void reserve_next(cr_engine *e)
{
    for (cri_seq *s = e->running.first; s; s = s->next) {
        if (!is_in(e, s, CRI_RUNNING) || s->num_cached < s->num_blocks * CR_KV_BLOCK) continue;
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
static void add_rows(cr_engine *e, cri_seq *s, int64_t to, int64_t max, int64_t *num_rows,
                     int64_t *num_picks)
{
    int64_t row = *num_rows;

    for (; s->num_cached < to && row < max; row++) {
        int64_t pos = s->num_cached;
        if (pos == s->num_blocks * CR_KV_BLOCK && !take_block(e, s)) break;
        e->ids[row] = token_at(s, pos);
        e->row_slot[row] = s->slot;
        e->row_pos[row] = (int32_t)pos;
        cri_images_row(e, s, pos, row);
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
    int64_t max = e->limits.max_rows + e->limits.max_running, decoding;

    *num_rows = *num_picks = e->num_runs = 0;
    CR_TRY(place_followers(e, err));
    reserve_next(e);
    for (cri_seq *s = e->running.first; s; s = s->next)
        if (is_in(e, s, CRI_RUNNING)) add_rows(e, s, s->num_cached + 1, max, num_rows, num_picks);
    decoding = *num_rows;
    max = decoding + e->limits.max_rows;
    for (cri_seq *s = e->running.first; s && *num_rows < max; s = s->next)
        if (is_in(e, s, CRI_FILLING)) add_rows(e, s, fill_to(s), max, num_rows, num_picks);
    e->stats.num_prompt_rows += *num_rows - decoding;
    return CR_OK;
}

/* ---- tokens ---- */

static bool is_end(const cr_engine *e, cri_seq *s, int32_t id)
{
    const cr_model_config *c = &e->model->config;
    const cr_generating *how = &s->group->how;

    for (size_t i = 0; i < how->num_stop_ids; i++)
        if (how->stop_ids[i] == id) {
            s->stop_id = id;
            return true;
        }
    for (int i = 0; i < c->num_eos && !how->ignores_eos; i++)
        if (c->eos_ids[i] == id) return true;
    return false;
}

/* Whether the last token, whose text begins at `from`, completes a stop text: none that was complete before, which
 * min_new_tokens let pass. Bytes that the stream holds back although they are whole characters are looked at, too
 * (byte fallback). */
static bool has_stop_text(cri_seq *s, size_t from)
{
    const cr_generating *how = &s->group->how;
    const char *held = (const char *)s->stream.run;
    size_t before = s->text.num_bytes;

    if (s->stream.num_run && cr_utf8_valid(held, s->stream.num_run))
        cr_buf_add(&s->text, held, s->stream.num_run);
    for (size_t i = 0; i < how->num_stop; i++) {
        size_t n = strlen(how->stop[i]), start = from + 1 > n ? from + 1 - n : 0;
        const char *at;
        if (n == 0 || s->text.num_bytes < n) continue;
        at = memmem(s->text.data + start, s->text.num_bytes - start, how->stop[i], n);
        if (!at) continue;
        if (how->should_cut_stop) s->text.num_bytes = (size_t)(at - s->text.data);
        s->text.data[s->text.num_bytes] = 0;
        s->stream.num_run = 0; /* is in the text, or cut off */
        s->stop = (int)i;
        return true;
    }
    if (s->text.num_bytes > before) s->text.data[s->text.num_bytes = before] = 0;
    return false;
}

/* What came last of s, whose text was `from` bytes long before. */
static void report_tokens(const cr_engine *e, const cri_seq *s, size_t from)
{
    int64_t at = s->num_output - 1, top = at * s->group->how.num_top;
    const int32_t *ids = (const int32_t *)(const void *)s->top_ids.data;
    const float *log_probs = (const float *)(const void *)s->top_log_probs.data;

    e->on_token(e->on_token_ctx, s->group->user,
                &(cr_new_token){.sample_id = s->id,
                                .id = s->output[at],
                                .num_reused = s->group->num_reused,
                                .rank = s->ranks ? s->ranks[at] : 0,
                                .log_prob = s->log_probs[at],
                                .top_ids = ids ? ids + top : NULL,
                                .top_log_probs = log_probs ? log_probs + top : NULL,
                                .text = s->text.num_bytes > from ? s->text.data + from : "",
                                .num_bytes = s->text.num_bytes - from});
}

/* One more token of s. */
static void accept_token(cr_engine *e, cri_seq *s, int32_t id, float log_prob)
{
    const cr_generating *how = &s->group->how;
    size_t from = s->text.num_bytes;
    bool is_ended;

    s->state = CRI_RUNNING;
    s->output[s->num_output] = id;
    s->log_probs[s->num_output++] = log_prob;
    e->stats.num_tokens++;
    is_ended = is_end(e, s, id);
    if (e->tokenizer && !(is_ended && how->should_cut_stop))
        cr_token_stream_push(&s->stream, id, &s->text);
    if (e->on_token) report_tokens(e, s, from);
    if (is_ended ||
        (how->num_stop && s->num_output > how->min_new_tokens && has_stop_text(s, from)))
        s->finish = "stop";
    else if (s->num_output >= how->max_new_tokens)
        s->finish = "length";
    if (!s->finish) return;
    if (e->tokenizer) cr_token_stream_end(&s->stream, &s->text);
    s->stream.tokenizer = NULL;
    cri_seq_leave(e, s);
    cri_seq_insert(&e->finished, s, NULL);
}

/* Memory for num elements more. */
static void *next_top(cr_buf *buf, int64_t num, size_t elem_bytes)
{
    size_t at = buf->num_bytes;

    cr_buf_reserve(buf, at + (size_t)num * elem_bytes);
    buf->num_bytes += (size_t)num * elem_bytes;
    return buf->data + at;
}

void cri_prepare_draws(cri_seq *const *seqs, int64_t num, cr_draw_row *rows, cr_drawn *out)
{
    for (int64_t i = 0; i < num; i++) {
        cri_seq *s = seqs[i];
        const cri_group *g = s->group;
        float u = cr_draw_number(g->how.seed, s->id, (uint64_t)fill_to(s));
        rows[i] = cr_draw_row_of(&g->how, &g->ends, u, g->prompt, (size_t)g->num_prompt, s->output,
                                 (size_t)s->num_output);
        if (s->banned) cr_draw_row_ban_words(&rows[i], &g->how, s->banned);
        out[i] = (cr_drawn){.kept = s->num_kept ? &s->kept : NULL};
        if (g->how.num_top) {
            out[i].top_ids = next_top(&s->top_ids, g->how.num_top, sizeof *out->top_ids);
            out[i].top_log_probs =
                next_top(&s->top_log_probs, g->how.num_top, sizeof *out->top_log_probs);
        }
    }
}

/* What num samples have drawn beside the token and its log-prob. */
static cr_status keep_drawn(cri_seq *const *seqs, int64_t num, const cr_drawn *out, cr_err *err)
{
    for (int64_t i = 0; i < num; i++) {
        cri_seq *s = seqs[i];
        if (out[i].id < 0)
            return cr_fail(err, CR_ENUMERIC, "token %lld of sample %llu: the logits are not finite",
                           (long long)s->num_output, (unsigned long long)s->id);
        if (s->ranks) s->ranks[s->num_output] = out[i].rank;
        if (!s->num_kept) continue;
        s->log_mass[s->num_output] = out[i].log_mass;
        s->num_kept[s->num_output] = (int32_t)out[i].num_kept;
    }
    return CR_OK;
}

/* Draw for num samples, each from its row of logits; rows and out are memory for that. */
static cr_status draw(const cr_engine *e, cr_device *dev, cri_seq *const *seqs, int64_t num,
                      const cr_mem *logits, cr_draw_row *rows, cr_drawn *out, cr_err *err)
{
    cri_prepare_draws(seqs, num, rows, out);
    CR_TRY(cr_draw(dev,
                   &(cr_draw_args){.logits = logits,
                                   .num_rows = num,
                                   .vocab_size = e->model->config.vocab_size,
                                   .rows = rows,
                                   .out = out},
                   err));
    return keep_drawn(seqs, num, out, err);
}

static cr_status check_log_prob(const cri_seq *s, float log_prob, cr_err *err)
{
    if (isfinite(log_prob)) return CR_OK;
    return cr_fail(err, CR_ENUMERIC, "token %lld of sample %llu has log-prob %g",
                   (long long)s->num_output, (unsigned long long)s->id, (double)log_prob);
}

/* s has just filled its prompt: its followers fork and draw from its row, too. One that gets no
 * block stays a follower. */
static cr_status fork_followers(cr_engine *e, cri_seq *s, const cr_mem *logits, cr_err *err)
{
    for (cri_seq *x = s->next, *next; x; x = next) {
        bool is_done;
        cr_draw_row row;
        cr_drawn drawn;
        next = x->next;
        if (x->group != s->group || x->state != CRI_FOLLOWING || x->num_output > 0) continue;
        CR_TRY(share(e, x, s, s->num_cached, &is_done, err));
        if (!is_done) return CR_OK;
        CR_TRY(draw(e, e->dev, &x, 1, logits, &row, &drawn, err));
        CR_TRY(check_log_prob(x, drawn.log_prob, err));
        accept_token(e, x, drawn.id, drawn.log_prob);
    }
    return CR_OK;
}

/* Drawn tokens become part of their samples. */
static cr_status accept_tokens(cr_engine *e, int64_t num_picks, cr_err *err)
{
    int64_t vocab = e->model->config.vocab_size;

    for (int64_t i = 0; i < num_picks; i++) {
        cri_seq *s = e->picked[i];
        CR_TRY(check_log_prob(s, e->drawn[i].log_prob, err));
        if (s->state == CRI_FILLING && s->num_output == 0)
            CR_TRY(fork_followers(e, s, cr_at(CR_F32, e->logits, i * vocab), err));
        accept_token(e, s, e->drawn[i].id, e->drawn[i].log_prob);
    }
    return CR_OK;
}

static cr_status grow_logits(cr_engine *e, int64_t rows, cr_err *err)
{
    if (rows <= e->logits_rows) return CR_OK;
    cri_drop_logits(e);
    rows = cri_min(rows + rows / 2, cri_max_rows(e));
    CR_TRY(cr_device_alloc(e->dev, cri_logits_bytes(e, rows), &e->logits, err));
    e->logits_rows = rows;
    return CR_OK;
}

/* Rows of a part, with those that are added. */
static int64_t rows_of(const cri_part *own)
{
    return own->graph ? own->graph->num_rows : own->row1 - own->row0;
}

/* The cache as a part's rows see it: their samples, numbered from 0, and as many blocks as the longest has. In a step that is
 * captured all has the size that its shape says. */
static cr_kv_view view_of(const cr_engine *e, cri_part *own)
{
    int64_t num_rows = rows_of(own), num_slots = 0, num_blocks = 1, num;
    const int32_t *slot = e->row_slot + own->row0, *pos = e->row_pos + own->row0;

    own->row_slot =
        cr_reserve(own->row_slot, &own->capacity_rows, (size_t)num_rows, sizeof *own->row_slot);
    for (int64_t r = 0; r < num_rows; r++) {
        num_slots += r == 0 || slot[r] != slot[r - 1];
        own->row_slot[r] = (int32_t)num_slots - 1;
        if (pos[r] / CR_KV_BLOCK >= num_blocks) num_blocks = pos[r] / CR_KV_BLOCK + 1;
    }
    if (own->graph) {
        num_slots = num_rows;
        num_blocks = own->graph->max_blocks;
    }
    num = num_slots * num_blocks;
    own->table = cr_reserve(own->table, &own->capacity_table, (size_t)num, sizeof *own->table);
    if (own->graph) memset(own->table, 0, (size_t)num * sizeof *own->table); /* has unused rows */
    for (int64_t r = 0; r < num_rows; r++)
        if (r == 0 || slot[r] != slot[r - 1])
            memcpy(own->table + own->row_slot[r] * num_blocks, e->table + slot[r] * e->max_blocks,
                   (size_t)num_blocks * sizeof *own->table);
    return (cr_kv_view){e->layer_blocks, own->row_slot, pos,          own->table,
                        num_slots,       num_blocks,    e->num_blocks};
}

/* Positions of a part's rows along the axes of the model; NULL: it has one. */
static const int32_t *axes_of(const cr_engine *e, cri_part *own)
{
    int64_t num = rows_of(own);

    if (!e->row_axes) return NULL;
    own->mrope = cr_reserve(own->mrope, &own->capacity_mrope, 3 * (size_t)num, sizeof *own->mrope);
    for (int64_t r = 0; r < num; r++)
        for (int64_t a = 0; a < 3; a++)
            own->mrope[a * num + r] = e->row_axes[own->row0 + r][a];
    return own->mrope;
}

/* The draws of a step that is recorded. */
typedef struct step_draws {
    cr_device *dev;
    cr_draw_args args;
} step_draws;

static cr_status queue_draws(void *ctx, cr_err *err)
{
    const step_draws *d = ctx;

    return cr_draw(d->dev, &d->args, err);
}

/* Forward and draws of a step that is captured, queued at once. */
static cr_status graph_run(cr_engine *e, cr_pass *pass, const cri_part *own, cr_err *err)
{
    step_draws all = {pass->dev,
                      {.logits = e->logits,
                       .num_rows = own->graph->num_rows,
                       .vocab_size = e->model->config.vocab_size,
                       .rows = e->draw_rows,
                       .out = e->drawn,
                       .part = CR_DRAW_QUEUE}};

    pass->graph = &e->graph_pass;
    e->graph_pass.graph = &own->graph->graph;
    e->graph_pass.key = own->graph->draw;
    e->graph_pass.then = queue_draws;
    e->graph_pass.ctx = &all;
    CR_TRY(cr_model_logits(e->model, pass, e->pick, all.args.num_rows, e->logits, err));
    all.args.part = CR_DRAW_TAKE;
    CR_TRY(cr_draw(pass->dev, &all.args, err));
    return keep_drawn(e->picked, own->pick1, e->drawn, err);
}

/* Forward of a part of the step's rows, and tokens for those that are picked. */
static cr_status run_part(void *ctx, int lane, cr_device *dev, cr_err *err)
{
    cr_engine *e = ctx;
    cri_part *own = &e->parts[lane];
    int64_t row0 = own->row0, pick0 = own->pick0, num_picks = own->pick1 - pick0,
            num_rows = rows_of(own), vocab = e->model->config.vocab_size;
    cr_mem *logits = cr_at(CR_F32, e->logits, pick0 * vocab);
    int32_t cu[2] = {0, (int32_t)num_rows};
    cr_batch batch = {.ids = e->ids + row0,
                      .positions = e->row_pos + row0,
                      .cu_seqlens = cu,
                      .num_tokens = num_rows,
                      .num_seqs = 1,
                      .mrope = axes_of(e, own),
                      .runs = e->runs + own->run0,
                      .num_runs = own->run1 - own->run0};
    cr_kv_view kv = view_of(e, own);
    cr_pass pass = {.state = own->pass_state,
                    .dev = dev,
                    .dtype = e->dtype,
                    .scratch = own->scratch,
                    .batch = &batch,
                    .kv = &kv,
                    .adapter = e->adapter};

    if (own->graph) return graph_run(e, &pass, own, err);
    for (int64_t i = pick0; i < own->pick1; i++)
        e->pick[i] -= (int32_t)row0;
    for (int64_t i = own->run0; i < own->run1; i++)
        e->runs[i].first_token -= row0;
    CR_TRY(cr_model_logits(e->model, &pass, e->pick + pick0, num_picks, logits, err));
    return draw(e, dev, e->picked + pick0, num_picks, logits, e->draw_rows + pick0,
                e->drawn + pick0, err);
}

static int whole_step(cr_engine *e, int64_t num_rows, int64_t num_picks)
{
    e->parts[0].row0 = e->parts[0].pick0 = e->parts[0].run0 = 0;
    e->parts[0].row1 = num_rows;
    e->parts[0].run1 = e->num_runs;
    e->parts[0].pick1 = num_picks;
    return 1;
}

/* Cut the step between sequences into even parts, one for each lane; how many. One: lanes would be
 * uneven or small, or each would have to read weights that do not stay in its caches. */
static int cut_step(cr_engine *e, int64_t num_rows, int64_t num_picks)
{
    enum { MIN_ROWS = 8, MAX_BYTES = 8 << 20 };
    int num = (int)cri_min(cr_lanes_num(e->lanes), num_rows / MIN_ROWS);
    int64_t row = 0, pick = 0, run = 0, max = 0;

    if (e->packed_bytes > MAX_BYTES) num = 1;
    for (int i = 0; i < num; i++) {
        cri_part *p = &e->parts[i];
        p->row0 = row;
        p->pick0 = pick;
        p->run0 = run;
        row = num_rows * (i + 1) / num;
        if (row < p->row0) row = p->row0;
        while (row > 0 && row < num_rows && e->row_slot[row] == e->row_slot[row - 1])
            row++;
        while (pick < num_picks && e->pick[pick] < row)
            pick++;
        while (run < e->num_runs && e->runs[run].first_token < row)
            run++;
        p->row1 = row;
        p->pick1 = pick;
        p->run1 = run;
        if (row - p->row0 > max) max = row - p->row0;
    }
    if (num > 1 && max * num <= num_rows + num_rows / 2) return num;
    return whole_step(e, num_rows, num_picks);
}

/* One forward, of the samples with e->adapter that can go on, and what comes of it; *rows 0: no sample can. */
static cr_status run_forward(cr_engine *e, int64_t *rows, cr_err *err)
{
    int64_t num_picks, num_rows;
    cri_step_graph *graph;
    int num_parts;

    CR_TRY(plan_rows(e, &num_rows, &num_picks, err));
    *rows = num_rows;
    if (num_rows == 0) return CR_OK;
    CR_TRY(cri_images_compute(e, err));
    CR_TRY(cri_graph_of_step(e, num_rows, num_picks, &graph, err));
    e->parts[0].graph = graph;
    CR_TRY(grow_logits(e, graph ? graph->num_rows : num_picks, err));
    num_parts = graph ? whole_step(e, num_rows, num_picks) : cut_step(e, num_rows, num_picks);
    if (num_parts == 1)
        CR_TRY(run_part(e, 0, e->dev, err));
    else
        CR_TRY(cr_lanes_run(e->lanes, num_parts, run_part, e, err));
    e->stats.num_steps++;
    keep_blocks(e);
    for (cri_seq *s = e->running.first; s; s = s->next)
        if (s->state == CRI_FILLING && s->group->images && s->num_cached >= s->group->images->end)
            cri_images_release(e, s);
    return accept_tokens(e, num_picks, err);
}

cr_status cr_engine_step(cr_engine *e, cr_err *err)
{
    int64_t num_all = 0, num_rows;

    CR_CHECK(e->ref, "cr_engine_step before cr_engine_set_weights");
    admit(e);
    while (num_all == 0 && e->running.first) {
        for (e->adapter = CR_NO_ADAPTER; e->adapter < e->model->num_adapters; e->adapter++) {
            CR_TRY(run_forward(e, &num_rows, err));
            num_all += num_rows;
        }
        if (num_all > 0 || !e->running.first) break;
        CR_CHECK(e->running.num > 1, "no block for the only sample");
        preempt(e, e->running.last);
    }
    return CR_OK;
}
