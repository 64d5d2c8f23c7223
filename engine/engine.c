/* engine.c -- see engine.h and engine_impl.h: life, requests and what comes of them. */
#include "engine/engine_impl.h"
#include "engine/images.h"
#include "kernels/sampling_ranges.h"

#include <math.h>
#include <string.h>

/* ---- lists ---- */

void cri_seq_insert(cri_seq_list *l, cri_seq *s, cri_seq *before)
{
    s->next = before;
    s->prev = before ? before->prev : l->last;
    *(s->prev ? &s->prev->next : &l->first) = s;
    *(before ? &before->prev : &l->last) = s;
    l->num++;
}

void cri_seq_take_out(cri_seq_list *l, cri_seq *s)
{
    *(s->prev ? &s->prev->next : &l->first) = s->next;
    *(s->next ? &s->next->prev : &l->last) = s->prev;
    l->num--;
}

/* ---- life ---- */

static void reserve_steps(cr_engine *e)
{
    int64_t rows = cri_max_rows(e);

    e->table = CR_NEW_ARRAY(int32_t, (e->limits.max_running + 1) * e->max_blocks);
    e->free_slot = CR_NEW_ARRAY(int, e->limits.max_running);
    e->ids = CR_NEW_ARRAY(int32_t, rows);
    e->row_slot = CR_NEW_ARRAY(int32_t, rows);
    e->row_pos = CR_NEW_ARRAY(int32_t, rows);
    e->pick = CR_NEW_ARRAY(int32_t, rows);
    e->runs = CR_NEW_ARRAY(cr_vision_run, e->model->config.vision ? rows : 0);
    if (e->model->config.rope_axis) e->row_axes = cr_alloc((size_t)rows * sizeof *e->row_axes);
    e->draw_rows = CR_NEW_ARRAY(cr_draw_row, rows);
    e->drawn = CR_NEW_ARRAY(cr_drawn, rows);
    e->picked = CR_NEW_ARRAY(cri_seq *, rows);
    for (int i = (int)e->limits.max_running; i-- > 0;)
        e->free_slot[e->num_free_slots++] = i;
}

/* The first part's is the engine's, which also runs steps that are not cut. */
static cr_device *lane_device(const cr_engine *e, int lane)
{
    return lane ? cr_lanes_device(e->lanes, lane) : e->dev;
}

static void make_scratch(cr_engine *e)
{
    for (int i = 0; i < cr_lanes_num(e->lanes); i++)
        e->parts[i].scratch = cr_stack_create(lane_device(e, i));
}

/* Weights are in the dtype of the pass, but for modules that always are in float32. */
static cr_dtype pass_dtype(const cr_model *model)
{
    for (size_t i = 0; i < model->num_params; i++)
        if (!model->params[i]->is_fp32) return model->params[i]->weight.dtype;
    return CR_F32;
}

/* The cache has one dtype. */
static cr_status check_layers(const cr_model *model, cr_err *err)
{
    for (int64_t l = 0; l < model->config.num_layers; l++)
        for (size_t i = 0; i < model->layers[l]->num_children; i++) {
            const cr_module *m = model->layers[l]->children[i];
            if (m->is_fp32 && m->is_attention)
                return cr_fail(
                    err, CR_EABSENT,
                    "generation with %s in float32 is not available: its keys and values "
                    "are in one cache with those of the other layers",
                    m->name);
        }
    return CR_OK;
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
    if (c->position_limit) l.max_model_len = cri_min(l.max_model_len, c->position_limit);
    if (l.max_running < 1 || l.max_rows < 1 || l.max_model_len < 2 || l.kv_bytes < 0)
        return cr_fail(err, CR_EARG,
                       "engine limits: %lld running samples, %lld rows, length %lld, %lld bytes",
                       (long long)l.max_running, (long long)l.max_rows, (long long)l.max_model_len,
                       (long long)l.kv_bytes);
    CR_TRY(check_layers(model, err));
    e = CR_NEW(cr_engine);
    e->model = model;
    e->dev = dev;
    e->limits = l;
    e->lanes = cr_lanes_create(dev);
    e->parts = CR_NEW_ARRAY(cri_part, cr_lanes_num(e->lanes));
    for (int i = 0; i < cr_lanes_num(e->lanes); i++)
        e->parts[i].pass_state = cr_pass_state_create();
    make_scratch(e);
    e->max_blocks = cri_blocks_of(l.max_model_len);
    e->layer_blocks = CR_NEW_ARRAY(cr_mem *, c->num_layers);
    e->packed = cr_alloc(model->num_params * sizeof *e->packed);
    reserve_steps(e);
    *out = e;
    return CR_OK;
}

/* The cache, when the dtype of the weights is known. */
static cr_status reserve_cache(cr_engine *e, cr_err *err)
{
    const cr_model_config *c = &e->model->config;
    int64_t all = e->limits.max_running * e->max_blocks, fit;

    e->block_bytes = cr_kv_block_bytes(e->dev, e->dtype, c->num_kv_heads, c->head_dim);
    fit = e->limits.kv_bytes / (int64_t)e->block_bytes / c->num_layers;
    e->num_blocks = e->limits.kv_bytes ? cri_min(fit, all) : all;
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
    e->num_unkept = e->num_free;
    if (e->limits.keeps_prefixes) e->prefixes = cri_prefixes_create(e->num_blocks);
    return CR_OK;
}

void cri_drop_logits(cr_engine *e)
{
    cr_device_free(e->dev, e->logits, cri_logits_bytes(e, e->logits_rows));
    e->logits = NULL;
    e->logits_rows = 0;
}

static void drop_weights_and_cache(cr_engine *e)
{
    cri_graphs_drop(e);
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
    cri_prefixes_destroy(e->prefixes);
    cri_drop_logits(e);
    e->free_block = e->ref = NULL;
    e->prefixes = NULL;
    e->num_blocks = e->num_free = e->num_unkept = 0;
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

int64_t cr_engine_held_bytes(const cr_engine *e)
{
    return (int64_t)e->packed_bytes +
           e->model->config.num_layers * e->num_blocks * (int64_t)e->block_bytes;
}

int64_t cr_engine_scratch_bytes(const cr_engine *e)
{
    return (int64_t)(cr_stack_reserved_bytes(e->parts[0].scratch) +
                     cri_logits_bytes(e, e->logits_rows));
}

void cr_engine_destroy(cr_engine *e)
{
    if (!e) return;
    cr_engine_abort(e);
    drop_weights_and_cache(e);
    for (int i = 0; i < cr_lanes_num(e->lanes); i++) {
        cr_pass_state_destroy(e->parts[i].pass_state);
        cr_free(e->parts[i].row_slot);
        cr_free(e->parts[i].table);
        cr_free(e->parts[i].mrope);
    }
    cr_lanes_destroy(e->lanes);
    void *mine[] = {e->parts,   e->packed,    e->layer_blocks, e->table,   e->ids,
                    e->row_pos, e->row_slot,  e->pick,         e->drawn,   e->picked,
                    e->runs,    e->free_slot, e->draw_rows,    e->row_axes};
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

int64_t cr_engine_cache_budget(double share, int64_t memory_bytes, int64_t weight_bytes)
{
    return (int64_t)(share * (double)memory_bytes) - weight_bytes;
}

int64_t cr_engine_packed_bytes(const cr_model *model, const cr_device *dev, cr_dtype dtype)
{
    int64_t num_bytes = 0;

    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *p = model->params[i];
        cr_weight w = {
            .dtype = p->is_fp32 ? CR_F32 : dtype, .num_rows = p->shape[0], .num_cols = p->shape[1]};
        if (p->is_product) num_bytes += (int64_t)cr_weight_packed_bytes(dev, &w);
    }
    return num_bytes;
}

cr_status cr_engine_set_weights(cr_engine *e, cr_err *err)
{
    CR_CHECK(cr_engine_is_idle(e), "weights change while samples are generated");
    e->dtype = pass_dtype(e->model);
    if (!e->ref) CR_TRY(reserve_cache(e, err));
    for (int32_t b; e->prefixes && (b = cri_prefix_take(e->prefixes)) >= 0;) /* of other weights */
        e->free_block[e->num_unkept++] = b;
    for (size_t i = 0; i < e->model->num_params; i++) {
        cr_param *p = e->model->params[i];
        if (!p->is_product) continue;
        p->weight.packed = NULL;
        if (!e->packed[i].data) {
            e->packed[i].num_bytes = cr_weight_packed_bytes(e->dev, &p->weight);
            if (!e->packed[i].num_bytes) continue;
            e->packed_bytes += e->packed[i].num_bytes;
            CR_TRY(cr_device_alloc(e->dev, e->packed[i].num_bytes, &e->packed[i].data, err));
        }
        CR_TRY(cr_weight_pack(e->dev, &(cr_weight_pack_args){&p->weight, e->packed[i].data}, err));
        p->weight.packed = e->packed[i].data;
    }
    return CR_OK;
}

/* ---- requests ---- */

bool cr_generating_has_filter(const cr_generating *how)
{
    return how->temperature > 0 && (how->top_k > 0 || how->top_p < 1 || how->min_p > 0);
}

static cr_status check_range(const char *name, double x, double min, double max, cr_err *err)
{
    if (x >= min && x <= max) return CR_OK;
    return cr_fail(err, CR_EARG, "%s is %.9g, expected %.9g to %.10g", name, x, min, max);
}
#define CHECK_WHOLE(name, x, range) \
    check_range(name, (double)(x), CR_MIN_OF(range), CR_MAX_OF(range), err)
/* x is a float, so are its bounds */
#define CHECK_REAL(name, x, range)                                  \
    check_range(name, (double)(x), (double)(float)CR_MIN_OF(range), \
                (double)(float)CR_MAX_OF(range), err)

cr_status cr_generating_check(const cr_generating *how, cr_err *err)
{
    CR_TRY(CHECK_WHOLE("max_new_tokens", how->max_new_tokens, CR_MAX_NEW_TOKENS));
    CR_TRY(CHECK_WHOLE("min_new_tokens", how->min_new_tokens, CR_MIN_NEW_TOKENS));
    CR_TRY(CHECK_REAL("temperature", how->temperature, CR_TEMPERATURE));
    if (how->temperature != 0 && how->temperature < CR_MIN_TEMPERATURE)
        return cr_fail(err, CR_EARG, "temperature is %g, expected 0 or at least %g",
                       (double)how->temperature, (double)CR_MIN_TEMPERATURE);
    CR_TRY(CHECK_REAL("top_p", how->top_p, CR_TOP_P));
    CR_TRY(CHECK_REAL("min_p", how->min_p, CR_MIN_P));
    CR_TRY(CHECK_WHOLE("top_k", how->top_k, CR_TOP_K));
    CR_TRY(CHECK_REAL("repetition_penalty", how->repetition_penalty, CR_REPETITION_PENALTY));
    CR_TRY(CHECK_REAL("presence_penalty", how->processors.presence, CR_PRESENCE_PENALTY));
    CR_TRY(CHECK_REAL("frequency_penalty", how->processors.frequency, CR_FREQUENCY_PENALTY));
    if (how->num_top < 0)
        return cr_fail(err, CR_EARG, "the %lld most likely ids", (long long)how->num_top);
    return CR_OK;
}

static cr_ends ends_of(const cr_engine *e, const cr_generating *how)
{
    return cr_ends_of(how, e->model->config.eos_ids, (size_t)e->model->config.num_eos);
}

static cr_status check_processors(const cr_engine *e, const cr_generating *how, cr_err *err)
{
    cr_ends ends = ends_of(e, how);
    cr_status status = cr_processors_check(how, &ends, e->model->config.vocab_size, err);

    cr_free(ends.ids);
    return status;
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
    if (how->adapter < CR_NO_ADAPTER || how->adapter > cr_max64(e->model->num_adapters - 1, 0))
        return cr_fail(err, CR_EARG, "adapter %d of %d", how->adapter, e->model->num_adapters);
    CR_TRY(cr_generating_check(how, err));
    CR_TRY(check_processors(e, how, err));
    if (how->num_top > vocab)
        return cr_fail(err, CR_EARG, "the %lld most likely of %lld ids", (long long)how->num_top,
                       vocab);
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

static cri_group *group_new(const cr_engine *e, const int32_t *prompt, size_t num_prompt,
                            const cr_generating *how, void *user)
{
    cri_group *g = CR_NEW(cri_group);
    char **stop = CR_NEW_ARRAY(char *, how->num_stop);
    cr_token_processors *processors = &g->how.processors;
    cr_bad_words *bad = &g->how.bad_words;
    int64_t room = e->limits.max_model_len;

    g->prompt = copied(prompt, num_prompt * sizeof *prompt);
    g->num_prompt = (int64_t)num_prompt;
    g->how = *how;
    if (e->model->num_adapters == 0) g->how.adapter = CR_NO_ADAPTER;
    g->how.max_new_tokens = cri_min(how->max_new_tokens, room - (int64_t)num_prompt);
    for (size_t i = 0; i < how->num_stop; i++)
        stop[i] = cr_strdup(how->stop[i]);
    g->how.stop = (const char *const *)stop;
    g->how.stop_ids = copied(how->stop_ids, how->num_stop_ids * sizeof *how->stop_ids);
    processors->biased =
        copied(processors->biased, processors->num_biased * sizeof *processors->biased);
    processors->bias = copied(processors->bias, processors->num_biased * sizeof *processors->bias);
    processors->allowed =
        copied(processors->allowed, processors->num_allowed * sizeof *processors->allowed);
    bad->ids = copied(bad->ids, cr_bad_words_num_ids(bad) * sizeof *bad->ids);
    bad->num_ids = copied(bad->num_ids, bad->num * sizeof *bad->num_ids);
    g->ends = ends_of(e, how);
    g->user = user;
    return g;
}

static void group_free(cri_group *g)
{
    for (size_t i = 0; i < g->how.num_stop; i++)
        cr_free((void *)(uintptr_t)g->how.stop[i]);
    const void *lists[] = {g->how.stop,
                           g->how.stop_ids,
                           g->how.processors.biased,
                           g->how.processors.bias,
                           g->how.processors.allowed,
                           g->how.bad_words.num_ids,
                           g->how.bad_words.ids,
                           g->ends.ids,
                           g->prompt};
    for (size_t i = 0; i < CR_COUNT(lists); i++)
        cr_free((void *)(uintptr_t)lists[i]);
    cri_images_free(g->images);
    cr_free(g);
}

static void seq_free(cri_seq *s)
{
    if (--s->group->num_alive == 0) group_free(s->group);
    cr_free(s->output);
    cr_free(s->log_probs);
    cr_free(s->log_mass);
    cr_free(s->num_kept);
    cr_free(s->ranks);
    cr_free(s->banned);
    cr_buf_free(&s->kept);
    cr_buf_free(&s->top_ids);
    cr_buf_free(&s->top_log_probs);
    if (s->stream.tokenizer) cr_token_stream_end(&s->stream, &s->text);
    cr_buf_free(&s->text);
    cr_free(s);
}

static void start_text(const cr_engine *e, cri_seq *s)
{
    const cri_group *g = s->group;
    cr_buf before = {0};

    if (!e->tokenizer) return;
    cr_token_stream_init(&s->stream, e->tokenizer, !g->how.keeps_special);
    for (int64_t i = 0; g->how.continues_text && i < g->num_prompt; i++)
        cr_token_stream_push(&s->stream, g->prompt[i], &before);
    cr_buf_free(&before);
}

cr_status cr_engine_submit(cr_engine *e, const int32_t *prompt_ids, size_t num_prompt,
                           const uint64_t *sample_ids, size_t num_samples, const cr_generating *how,
                           void *user, cr_err *err)
{
    cr_prompt_images none = {0};

    return cr_engine_submit_images(e, prompt_ids, num_prompt, &none, sample_ids, num_samples, how,
                                   user, err);
}

cr_status cr_engine_submit_images(cr_engine *e, const int32_t *prompt_ids, size_t num_prompt,
                                  cr_prompt_images *images, const uint64_t *sample_ids,
                                  size_t num_samples, const cr_generating *how, void *user,
                                  cr_err *err)
{
    cri_group *g;

    CR_TRY(check_request(e, prompt_ids, num_prompt, how, err));
    CR_TRY(cr_seq_images_check(&e->model->config, prompt_ids, num_prompt, &images->seq, err));
    if (num_samples == 0) return CR_OK;
    g = group_new(e, prompt_ids, num_prompt, how, user);
    if (images->seq.num) g->images = cri_images_new(e, g->prompt, g->num_prompt, images);
    for (size_t i = 0; i < num_samples; i++) {
        cri_seq *s = CR_NEW(cri_seq);
        s->group = g;
        s->id = sample_ids[i];
        s->slot = -1;
        s->output = CR_NEW_ARRAY(int32_t, g->how.max_new_tokens);
        s->log_probs = CR_NEW_ARRAY(float, g->how.max_new_tokens);
        if (how->log_probs == CR_LOG_PROBS_SAMPLED && cr_generating_has_filter(how)) {
            s->log_mass = CR_NEW_ARRAY(float, g->how.max_new_tokens);
            s->num_kept = CR_NEW_ARRAY(int32_t, g->how.max_new_tokens);
        }
        if (how->has_ranks) s->ranks = CR_NEW_ARRAY(int32_t, g->how.max_new_tokens);
        if (how->bad_words.num) s->banned = CR_NEW_ARRAY(int32_t, g->ends.num + how->bad_words.num);
        s->stop = s->stop_id = -1;
        start_text(e, s);
        g->num_alive++;
        cri_seq_insert(&e->waiting, s, NULL);
    }
    return CR_OK;
}

/* ---- what became of them ---- */

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
    cri_seq *s = e->finished.first;

    if (!s) return false;
    cri_seq_take_out(&e->finished, s);
    *out = (cr_generated){.sample_id = s->id,
                          .user = s->group->user,
                          .ids = s->output,
                          .log_probs = s->log_probs,
                          .num_ids = (size_t)s->num_output,
                          .ranks = s->ranks,
                          .top_ids = (int32_t *)(void *)s->top_ids.data,
                          .top_log_probs = (float *)(void *)s->top_log_probs.data,
                          .log_mass = s->log_mass,
                          .num_kept = s->num_kept,
                          .kept_ids = (int32_t *)(void *)s->kept.data,
                          .num_kept_ids = s->kept.num_bytes / sizeof(int32_t),
                          .text = s->text.data,
                          .text_bytes = s->text.num_bytes,
                          .finish = s->finish,
                          .stop = s->stop,
                          .stop_id = s->stop_id};
    if (e->tokenizer && !out->text) out->text = cr_strdup("");
    s->output = s->num_kept = s->ranks = NULL;
    s->log_probs = s->log_mass = NULL;
    s->text = s->kept = s->top_ids = s->top_log_probs = (cr_buf){0};
    seq_free(s);
    return true;
}

void cr_generated_free(cr_generated *g)
{
    void *mine[] = {g->ids,      g->log_probs, g->ranks,    g->top_ids, g->top_log_probs,
                    g->log_mass, g->num_kept,  g->kept_ids, g->text};

    for (size_t i = 0; i < CR_COUNT(mine); i++)
        cr_free(mine[i]);
    *g = (cr_generated){0};
}

/* user: of the samples to drop, if is_all is false. */
static void drop(cr_engine *e, bool is_all, const void *user)
{
    cri_seq_list *lists[] = {&e->running, &e->waiting, &e->finished};

    for (size_t i = 0; i < CR_COUNT(lists); i++)
        for (cri_seq *s = lists[i]->last, *before; s; s = before) {
            before = s->prev;
            if (!is_all && s->group->user != user) continue;
            if (lists[i] == &e->running)
                cri_seq_leave(e, s);
            else
                cri_seq_take_out(lists[i], s);
            seq_free(s);
        }
}

void cr_engine_cancel(cr_engine *e, const void *user)
{
    drop(e, /*is_all=*/false, user);
}

void cr_engine_abort(cr_engine *e)
{
    drop(e, /*is_all=*/true, NULL);
}

cr_engine_stats cr_engine_get_stats(const cr_engine *e)
{
    cr_engine_stats s = e->stats;

    s.blocks_total = e->num_blocks;
    s.blocks_used = e->num_blocks - e->num_free;
    return s;
}
