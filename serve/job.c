/* job.c -- see job.h. */
#include "serve/job.h"
#include "base/rng.h"

#include <string.h>

typedef struct cr_job_place {
    cr_job *job;
    size_t prompt;
} cr_job_place;

/* ---- life ---- */

static bool is_seeded(const cr_job *job)
{
    return job->request.sampling.has_seed;
}

cr_job *cr_job_create(cr_serve_request *request, const char *id, uint64_t seed)
{
    cr_job *job = CR_NEW(cr_job);
    cr_serve_request *r = &job->request;

    *r = *request;
    *request = (cr_serve_request){0};
    job->id = cr_strdup(r->request_id ? r->request_id : id);
    job->created = (int64_t)cr_wall_s();
    job->begun_s = cr_now_s();
    job->arena = cr_arena_create(4096);
    if (!is_seeded(job)) r->sampling.seed = (int64_t)(seed >> 11); /* what a double holds */
    job->num_samples = r->num_prompts * (size_t)r->sampling.n;
    if (!cr_serve_is_scoring(r)) job->num_running = job->num_samples;
    job->samples = CR_NEW_ARRAY(cr_job_sample, job->num_samples);
    job->places = CR_NEW_ARRAY(cr_job_place, r->num_prompts);
    job->prompt_scores = CR_NEW_ARRAY(cr_serve_scores, r->num_prompts);
    job->cached = CR_NEW_ARRAY(int64_t, r->num_prompts);
    job->prompt_texts = CR_NEW_ARRAY(cr_buf, r->num_prompts);
    for (size_t i = 0; i < r->num_prompts; i++)
        job->places[i] = (cr_job_place){job, i};
    for (size_t i = 0; i < job->num_samples; i++)
        job->samples[i].stop_id = -1;
    if (r->wanted.is_stream)
        cr_serve_stream_open(&job->stream, &(cr_serve_result){.request = r,
                                                              .id = job->id,
                                                              .created = job->created,
                                                              .prompt_scores = job->prompt_scores,
                                                              .cached = job->cached});
    return job;
}

void cr_job_destroy(cr_job *job)
{
    if (!job) return;
    for (size_t i = 0; i < job->num_samples; i++) {
        cr_generated_free(&job->samples[i].made);
        cr_buf_free(&job->samples[i].text);
    }
    for (size_t i = 0; i < job->request.num_prompts; i++)
        cr_buf_free(&job->prompt_texts[i]);
    cr_serve_stream_close(&job->stream);
    cr_arena_destroy(job->arena);
    cr_buf_free(&job->out);
    cr_free(job->samples);
    cr_free(job->places);
    cr_free(job->asks);
    cr_free(job->draws);
    cr_free(job->ends.ids);
    cr_free(job->prompt_scores);
    cr_free(job->cached);
    cr_free(job->prompt_texts);
    cr_free(job->id);
    cr_serve_request_free(&job->request);
    cr_free(job);
}

void cr_job_fail(cr_job *job, int status, const char *code, const char *message)
{
    if (job->is_done) return;
    job->is_done = true;
    cr_serve_fail(&job->error, status, code, NULL, "%s", message);
    if (job->has_sent) cr_serve_stream_fail(&job->error, &job->out);
}

/* ---- answers ---- */

static cr_serve_sample sample_of(const cr_job_sample *s)
{
    return (cr_serve_sample){.ids = s->ids,
                             .num_ids = s->num_ids,
                             .text = s->text.data ? s->text.data : "",
                             .text_bytes = s->text.num_bytes,
                             .scores = s->scores,
                             .finish = s->finish,
                             .stop_text = s->stop_text,
                             .stop_id = s->stop_id};
}

/* An event of a sample, or of a part of it. */
static void send_part(cr_job *job, size_t index, const cr_serve_sample *part)
{
    cr_err err = {0};

    if (job->is_done) return;
    job->stream.result.latency_s = cr_now_s() - job->begun_s;
    if (cr_serve_stream_part(&job->stream, index, part, &job->out, &err) != CR_OK)
        cr_job_fail(job, 500, "internal_error", err.msg);
    else if (job->out.num_bytes)
        job->has_sent = true;
}

static void finish(cr_job *job)
{
    cr_serve_sample *samples = CR_NEW_ARRAY(cr_serve_sample, job->num_samples);
    cr_serve_result result = {.request = &job->request,
                              .id = job->id,
                              .created = job->created,
                              .latency_s = cr_now_s() - job->begun_s,
                              .prompt_scores = job->prompt_scores,
                              .samples = samples,
                              .cached = job->cached,
                              .prompt_texts = job->prompt_texts};
    cr_err err = {0};

    for (size_t i = 0; i < job->num_samples; i++)
        samples[i] = sample_of(&job->samples[i]);
    if (job->request.wanted.is_stream) {
        for (size_t i = 0; i < job->num_samples; i++)
            send_part(job, i, &samples[i]);
        if (!job->is_done) cr_serve_stream_end(&job->stream, &job->out);
    } else if (cr_serve_answer(&result, &job->out, &err) != CR_OK) {
        cr_buf_clear(&job->out);
        cr_job_fail(job, 500, "internal_error", err.msg);
    }
    job->is_done = true;
    cr_free(samples);
}

/* ---- rounds ---- */

static int64_t max(int64_t a, int64_t b)
{
    return cr_max64(cr_max64(a, b), 0);
}

/* What is wanted at the places of a prompt; no place of it: only what is drawn. */
static cr_score_ask prompt_ask(const cr_serve_request *r, size_t prompt, bool has_places)
{
    const cr_serve_wanted *w = &r->wanted;
    const cr_serve_prompt *p = &r->prompts[prompt];
    size_t first = has_places ? (size_t)w->prompt_first : p->num_ids;
    cr_score_ask ask = {.ids = p->ids,
                        .num_ids = p->num_ids,
                        .first = first < p->num_ids ? first : p->num_ids,
                        .has_rank = w->prompt_logprobs >= 0 || w->logprobs >= 0,
                        .num_top = max(has_places ? w->prompt_top : 0, w->logprobs),
                        .images = p->images.seq};

    if (w->is_processed && r->sampling.temperature > 0) ask.temperature = r->sampling.temperature;
    if (!has_places) return ask;
    ask.has_entropy = w->entropy;
    ask.candidates = w->candidates.ids.id;
    ask.num_candidates = w->candidates.num_each;
    ask.num_lists = w->candidates.num_places;
    return ask;
}

/* How the samples of a prompt are drawn. */
static cr_generating generating_of(const cr_serve_request *r, size_t prompt)
{
    const cr_serve_sampling *s = &r->sampling;

    return (cr_generating){
        .temperature = s->temperature,
        .top_p = s->top_p,
        .min_p = s->min_p,
        .top_k = s->top_k,
        .repetition_penalty = s->repetition_penalty,
        .processors = {.biased = s->biased.id,
                       .bias = s->bias,
                       .num_biased = s->biased.num,
                       .presence = s->presence_penalty,
                       .frequency = s->frequency_penalty,
                       .allowed = s->allowed.id,
                       .num_allowed = s->allowed.num},
        .bad_words = {s->bad_ids.id, s->bad_lengths.id, s->bad_lengths.num},
        .log_probs = r->wanted.is_processed ? CR_LOG_PROBS_SAMPLED : CR_LOG_PROBS_RAW,
        .has_ranks = r->wanted.logprobs >= 0 && r->route == CR_SERVE_TOKENS_IN,
        .num_top = cr_max64(r->wanted.logprobs, 0),
        .max_new_tokens = r->prompts[prompt].max_tokens,
        .min_new_tokens = s->min_tokens,
        .stop = (const char *const *)s->stop,
        .num_stop = s->num_stop,
        .should_cut_stop = !s->keeps_stop,
        .stop_ids = s->stop_ids.id,
        .num_stop_ids = s->stop_ids.num,
        .ignores_eos = s->ignore_eos,
        .continues_text = true,
        .keeps_special = !s->skips_special,
        .seed = (uint64_t)s->seed,
        .cache_salt = s->cache_salt ? cr_hash64(s->cache_salt, strlen(s->cache_salt)) : 0,
        .adapter = r->model->adapter};
}

/* As the engine draws the first token. */
static cr_draw_row draw_of(cr_job *job, size_t index)
{
    const cr_serve_request *r = &job->request;
    size_t n = (size_t)r->sampling.n, j = is_seeded(job) ? index % n : index;
    const cr_serve_prompt *p = &r->prompts[index / n];
    cr_generating how = generating_of(r, index / n);
    size_t num_banned = job->ends.num + how.bad_words.num;
    cr_draw_row row = cr_draw_row_of(&how, &job->ends, cr_draw_number(how.seed, j, p->num_ids),
                                     p->ids, p->num_ids, NULL, 0);

    if (how.bad_words.num)
        cr_draw_row_ban_words(&row, &how, cr_arena_alloc(job->arena, num_banned * sizeof(int32_t)));
    return row;
}

/* Prompts by themselves. */
static void ask_prompts(cr_job *job)
{
    for (size_t i = 0; job->request.wanted.prompt_top >= 0 && i < job->request.num_prompts; i++)
        job->asks[job->num_asks++] = prompt_ask(&job->request, i, true);
}

/* Prompts that are scored, each with at most one token after it. */
static void ask_scoring(cr_job *job)
{
    const cr_serve_request *r = &job->request;
    size_t n = (size_t)r->sampling.n;
    bool is_scored = r->wanted.prompt_top >= 0;
    cr_generating how;

    if (r->sampling.max_tokens == 0) {
        ask_prompts(job);
        return;
    }
    how = generating_of(r, 0);
    job->ends = cr_ends_of(&how, r->model->eos_ids, r->model->num_eos);
    for (size_t i = 0; i < job->num_samples; i++) {
        job->draws[i] = draw_of(job, i);
        job->asks[i] = prompt_ask(r, i / n, is_scored && i % n == 0);
        job->asks[i].draw = &job->draws[i];
    }
    job->num_asks = job->num_samples;
}

size_t cr_job_asks(cr_job *job, const cr_score_ask **asks)
{
    *asks = NULL;
    if (job->is_done || job->num_running > 0) return 0;
    if (!job->asks) {
        job->asks = CR_NEW_ARRAY(cr_score_ask, job->request.num_prompts + job->num_samples);
        job->draws = CR_NEW_ARRAY(cr_draw_row, job->num_samples);
        if (cr_serve_is_scoring(&job->request))
            ask_scoring(job);
        else
            ask_prompts(job);
        for (size_t i = 0; job->num_asks == 0 && i < job->num_samples; i++)
            if (!job->samples[i].finish) job->samples[i].finish = "length";
        if (job->num_asks == 0) finish(job);
    }
    *asks = job->asks;
    return job->num_asks;
}

static void *copied(cr_job *job, const void *from, size_t num_bytes)
{
    void *to = from ? cr_arena_alloc(job->arena, num_bytes) : NULL;

    if (from && num_bytes) memcpy(to, from, num_bytes);
    return to;
}

/* num places of a score, from its place `from` on. */
static cr_serve_scores places_of(cr_job *job, const cr_score *s, size_t from, size_t num)
{
    size_t top = s->top_ids ? (size_t)s->num_top : 0, k = s->candidates ? s->num_candidates : 0;
    const int32_t *ranks = s->ranks ? s->ranks + from : NULL,
                  *top_ids = top ? s->top_ids + from * top : NULL;
    const float *top_log_probs = top ? s->top_log_probs + from * top : NULL,
                *candidates = k ? s->candidates + from * k : NULL,
                *entropy = s->entropy ? s->entropy + from : NULL;

    return (cr_serve_scores){.num = num,
                             .log_probs = copied(job, s->log_probs + from, num * sizeof(float)),
                             .ranks = copied(job, ranks, num * sizeof *ranks),
                             .num_top = top,
                             .top_ids = copied(job, top_ids, num * top * sizeof *top_ids),
                             .top_log_probs = copied(job, top_log_probs, num * top * sizeof(float)),
                             .num_candidates = k,
                             .candidates = copied(job, candidates, num * k * sizeof(float)),
                             .entropy = copied(job, entropy, num * sizeof(float))};
}

static bool is_eos(const cr_serve_model *m, int32_t id)
{
    for (size_t i = 0; i < m->num_eos; i++)
        if (m->eos_ids[i] == id) return true;
    return false;
}

/* The text that one token adds to the prompt's, up to a stop text; an id that ends the sample adds none, as in the
 * engine. The prompt's is kept if it is whole without it. */
static void add_token_text(cr_job *job, size_t prompt, cr_job_sample *s)
{
    const cr_serve_request *r = &job->request;
    const cr_serve_prompt *p = &r->prompts[prompt];
    cr_buf *before = &job->prompt_texts[prompt];
    cr_token_stream stream;

    if (!r->model->tokenizer) return;
    if (strcmp(s->finish, "stop") == 0 && !r->sampling.keeps_stop) return;
    cr_token_stream_init(&stream, r->model->tokenizer, r->sampling.skips_special);
    cr_buf_clear(before);
    for (size_t i = 0; i < p->num_ids; i++)
        cr_token_stream_push(&stream, p->ids[i], before);
    if (stream.num_run > 0) cr_buf_clear(before);
    cr_token_stream_push(&stream, s->ids[0], &s->text);
    cr_token_stream_end(&stream, &s->text);
    if (r->sampling.min_tokens > 0) return;
    for (size_t i = 0; i < r->sampling.num_stop && s->text.num_bytes; i++) {
        const char *stop = r->sampling.stop[i],
                   *at = memmem(s->text.data, s->text.num_bytes, stop, strlen(stop));
        if (!at) continue;
        s->finish = "stop";
        s->stop_text = stop;
        if (!r->sampling.keeps_stop) s->text.num_bytes = (size_t)(at - s->text.data);
        return;
    }
}

/* The token that a round has drawn. */
static void take_drawn(cr_job *job, size_t index, const cr_score *score, size_t num_places)
{
    const cr_serve_request *r = &job->request;
    cr_job_sample *s = &job->samples[index];

    s->ids = copied(job, &score->drawn, sizeof score->drawn);
    s->num_ids = 1;
    s->scores = places_of(job, score, num_places, 1);
    s->finish = "length";
    for (size_t i = 0; i < r->sampling.stop_ids.num; i++)
        if (r->sampling.stop_ids.id[i] == score->drawn) {
            s->finish = "stop";
            s->stop_id = score->drawn;
        }
    if (!r->sampling.ignore_eos && is_eos(r->model, score->drawn)) s->finish = "stop";
    add_token_text(job, index / (size_t)r->sampling.n, s);
}

/* What ask i was for. */
static void take_score(cr_job *job, size_t i, const cr_score *score)
{
    const cr_serve_request *r = &job->request;
    const cr_score_ask *ask = &job->asks[i];
    size_t n = (size_t)r->sampling.n, num = ask->num_ids - ask->first;

    if (ask->draw) {
        if (i % n == 0 && r->wanted.prompt_top >= 0)
            job->prompt_scores[i / n] = places_of(job, score, 0, num);
        take_drawn(job, i, score, num);
    } else {
        job->prompt_scores[i] = places_of(job, score, 0, num);
    }
}

void cr_job_take_scores(cr_job *job, const cr_score *scores, size_t num)
{
    for (size_t i = 0; i < num && !job->is_done; i++) {
        if (scores[i].is_broken)
            cr_job_fail(job, 500, "internal_error", "the model's numbers are not finite");
        else
            take_score(job, job->num_taken++, &scores[i]);
    }
    if (job->is_done || job->num_taken < job->num_asks) return;
    for (size_t i = 0; i < job->num_samples; i++) /* max_tokens 0 */
        if (!job->samples[i].finish) job->samples[i].finish = "length";
    finish(job);
}

/* ---- the engine ---- */

void cr_job_submit_next(cr_job *job, cr_engine *engine)
{
    const cr_serve_request *r = &job->request;
    const cr_serve_sampling *s = &r->sampling;
    size_t i = job->num_submitted++;
    uint64_t *ids = CR_NEW_ARRAY(uint64_t, s->n);
    cr_err err = {0};
    cr_generating how = generating_of(r, i);
    cr_prompt_images copy = {0}, *images = &job->request.prompts[i].images;

    if (r->wanted.prompt_top >= 0 && images->seq.num) { /* a round needs them, too */
        cr_prompt_images_copy(images, &copy);
        images = &copy;
    }

    for (size_t j = 0; j < (size_t)s->n; j++)
        ids[j] = is_seeded(job) ? j : i * (size_t)s->n + j;
    cr_note(cr_engine_submit_images(engine, r->prompts[i].ids, r->prompts[i].num_ids, images, ids,
                                    (size_t)s->n, &how, &job->places[i], &err));
    cr_prompt_images_free(&copy);
    cr_free(ids);
    if (err.status == CR_OK) return;
    cr_job_cancel(job, engine);
    cr_job_fail(job, 400, "invalid_value", err.msg);
}

void cr_job_cancel(cr_job *job, cr_engine *engine)
{
    for (size_t i = 0; i < job->request.num_prompts; i++)
        cr_engine_cancel(engine, &job->places[i]);
    job->num_running = 0;
}

static size_t num_top(const cr_serve_request *r)
{
    return (size_t)cr_max64(r->wanted.logprobs, 0);
}

static size_t index_of(const cr_job_place *place, uint64_t sample_id)
{
    const cr_job *job = place->job;
    size_t n = (size_t)job->request.sampling.n;

    return is_seeded(job) ? place->prompt * n + (size_t)sample_id : (size_t)sample_id;
}

void cr_job_on_token(void *ctx, void *user, const cr_new_token *token)
{
    cr_job_place *place = user;
    cr_job *job = place->job;
    const cr_serve_sampling *how = &job->request.sampling;
    size_t index = index_of(place, token->sample_id), num;
    cr_job_sample *s = &job->samples[index];
    cr_serve_sample part = {.ids = &token->id, .num_ids = 1, .stop_id = -1};

    (void)ctx;
    job->num_sampled++;
    job->cached[place->prompt] = token->num_reused;
    if (!job->request.wanted.is_stream) return;
    cr_buf_add(&s->text, token->text, token->num_bytes);
    s->num_ids++;
    num = s->text.num_bytes - s->num_sent;
    part.scores = (cr_serve_scores){.num = 1,
                                    .log_probs = &token->log_prob,
                                    .ranks = &token->rank,
                                    .num_top = num_top(&job->request),
                                    .top_ids = token->top_ids,
                                    .top_log_probs = token->top_log_probs};
    part.text = s->text.data + s->num_sent;
    part.text_bytes = num ? cr_serve_sendable(part.text, num, how->stop, how->num_stop,
                                              (int64_t)s->num_ids > how->min_tokens)
                          : 0;
    s->num_sent += part.text_bytes;
    send_part(job, index, &part);
}

cr_job *cr_job_take_sample(cr_generated *g)
{
    cr_job_place *place = g->user;
    cr_job *job = place->job;
    size_t index = index_of(place, g->sample_id);
    cr_job_sample *s = &job->samples[index];
    cr_serve_sample part;

    s->made = *g;
    s->ids = g->ids;
    s->num_ids = g->num_ids;
    s->finish = g->finish;
    s->stop_text = g->stop < 0 ? NULL : job->request.sampling.stop[g->stop];
    s->stop_id = g->stop_id;
    s->scores = (cr_serve_scores){.num = g->num_ids,
                                  .log_probs = g->log_probs,
                                  .ranks = g->ranks,
                                  .num_top = num_top(&job->request),
                                  .top_ids = g->top_ids,
                                  .top_log_probs = g->top_log_probs};
    cr_buf_clear(&s->text);
    if (g->text) cr_buf_add(&s->text, g->text, g->text_bytes);
    *g = (cr_generated){0};
    job->num_running--;
    if (!job->request.wanted.is_stream) return job;
    part = sample_of(s); /* its tokens have been sent, and this much of its text */
    CR_CHECK(s->num_sent <= s->text.num_bytes, "text after a stop was sent");
    part.num_ids = 0;
    part.text += s->num_sent;
    part.text_bytes -= s->num_sent;
    send_part(job, index, &part);
    if (job->num_running > 0 || job->is_done) return job;
    cr_serve_stream_end(&job->stream, &job->out);
    job->is_done = true;
    return job;
}
