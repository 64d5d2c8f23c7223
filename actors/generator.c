/* generator.c -- actor_infer: prompts in, samples out, weights by sync.
 *
 * Flow 3 of 7. A `generate` command opens the prompts stream to this rank until `pause`. Prompts are
 * taken while the engine has room for them, so ranks share a rollout by their speed; a sample is put
 * on its domain's stream as soon as it is finished. A prompt's entry is finished with its last sample:
 * until then it is pending, and a rank that dies loses nothing.
 */
#include "actors/actor.h"
#include "actors/distribution.h"
#include "mesh/mesh.h"
#include "models/weights.h"
#include "samples/items/loader.h"
#include "samples/messages.h"
#include "samples/protocol.h"
#include "text/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct cr_generator {
    cr_actor *a;
    cr_weight_copy *weights;
    cr_full_weights own; /* val_only: of its MODEL, in place of weights */
    cr_engine *engine;
    cr_item_loader *loader; /* opened with the first prompt that has images */
    cr_tokenizer *tokenizer;
    bool is_shared;    /* its devices: the engine sleeps between rollouts */
    bool is_loaded;    /* the engine has packed the weights that it generates with */
    char commands[96]; /* this rank's command stream */
};

/* One prompt in the engine. */
typedef struct request {
    cr_entry entry; /* its stream and id; data is gone */
    cr_record record;
    cr_prompt prompt; /* borrows from record */
    size_t num_left;  /* samples that are not finished */
} request;

/* A place for the weights, unless there is one; without a trainer they are read. */
static cr_status need_weights(cr_generator *g, cr_err *err)
{
    const cr_worker_config *w = g->a->ranks->worker;

    if (g->a->config->val_only)
        return cr_full_weights_load(&g->own, g->a->model, g->a->dev, cr_dtype_of(w->dtype),
                                    w->model_path, err);
    return g->weights ? CR_OK
                      : cr_weight_copy_create(g->a->model, g->a->dev, cr_dtype_of(w->dtype),
                                              &g->weights, err);
}

/* Bytes of memory that this rank may have of its device: of a GPU, divided by the numbers of device_mapping that are on it, and elsewhere of
 * the host, divided by all ranks of the run. */
static cr_status memory_of_rank(const cr_actor *a, int64_t *num_bytes, int *num_sharers,
                                cr_err *err)
{
    int *host_of = CR_NEW_ARRAY(int, a->layout.num_ranks); /* 0: this one */
    cr_device_memory memory;

    *num_sharers = a->layout.num_ranks;
    for (int r = 0; r < a->layout.num_ranks; r++)
        host_of[r] = !cr_world_is_here(a->world, r);
    cr_note(cr_device_get_memory(a->dev, &memory, err));
    if (memory.num_gpus)
        *num_sharers =
            cr_layout_num_on_gpu(&a->layout, a->ranks->first + a->rank, memory.num_gpus, host_of);
    *num_bytes = memory.all_bytes / *num_sharers;
    cr_free(host_of);
    return err->status;
}

/* gpu_memory_utilization: the engine's share of its memory, without what its weights take. 0: no limit. */
static cr_status cache_budget(const cr_generator *g, int64_t *num_bytes, cr_err *err)
{
    const cr_actor *a = g->a;
    const cr_worker_config *w = a->ranks->worker;
    double share = w->engine.gpu_memory_utilization;
    int64_t all, weights = (int64_t)cr_device_get_stats(a->dev).bytes_now +
                           cr_engine_packed_bytes(a->model, a->dev, cr_dtype_of(w->dtype));
    int num_sharers;

    CR_TRY(memory_of_rank(a, &all, &num_sharers, err));
    *num_bytes = share > 0 ? cr_engine_cache_budget(share, all, weights) : 0;
    if (share > 0 && *num_bytes < 1)
        return cr_fail(
            err, CR_ECONFIG,
            "gpu_memory_utilization %g of %lld bytes (the memory of the device, divided by "
            "%d that share it) leaves nothing beside %lld bytes of weights",
            share, (long long)all, num_sharers, (long long)weights);
    return CR_OK;
}

cr_status cr_generator_open(cr_actor *a, cr_generator **out, cr_err *err)
{
    const cr_config *c = a->config;
    const cr_worker_config *w = a->ranks->worker;
    cr_generator *g = CR_NEW(cr_generator);
    cr_engine_limits limits = {.max_running = c->max_running_requests,
                               .max_model_len = w->engine.max_model_len ? w->engine.max_model_len
                                                                        : c->sequence_length,
                               .is_eager = w->engine.enforce_eager};

    *out = NULL;
    g->a = a;
    g->is_shared = cr_phase_is_shared(&a->layout, a->role);
    snprintf(g->commands, sizeof g->commands, "cmd:%s:%d", a->ranks->name, a->rank);
    CR_TRY_GOTO(out, cr_tokenizer_open(w->model_path, &g->tokenizer, err));
    CR_TRY_GOTO(out, need_weights(g, err));
    cr_experts_set(a->model, NULL);
    CR_TRY_GOTO(out, cache_budget(g, &limits.kv_bytes, err));
    CR_TRY_GOTO(out, cr_engine_create(a->model, a->dev, &limits, &g->engine, err));
    cr_engine_set_tokenizer(g->engine, g->tokenizer);
out:
    if (err->status == CR_OK)
        *out = g;
    else
        cr_generator_close(g);
    return err->status;
}

void cr_generator_close(cr_generator *g)
{
    if (!g) return;
    cr_engine_destroy(g->engine);
    cr_item_loader_destroy(g->loader);
    cr_weight_copy_destroy(g->weights);
    cr_full_weights_fini(&g->own);
    cr_tokenizer_close(g->tokenizer);
    cr_free(g);
}

static cr_status sync_weights(cr_generator *g, cr_record *reply, cr_err *err)
{
    g->is_loaded = false;
    CR_TRY(need_weights(g, err));
    CR_TRY(cr_weight_sync_receive(g->weights, g->a->sync_group, err));
    cr_record_set_int(reply, CR_FIELD_BYTES, cr_weight_copy_synced_bytes(g->weights));
    return CR_OK;
}

/* ---- a rollout ---- */

/* Which block of rewards scores its samples as number k. */
static int32_t block_of(const request *r, size_t k)
{
    return ((const int32_t *)r->prompt.blocks.data)[k];
}

static void request_free(request *r)
{
    cr_record_free(&r->record);
    cr_free(r);
}

/* Images of a prompt, for the engine. */
static cr_status load_images(cr_generator *g, const cr_item_refs *refs, cr_prompt_images *out,
                             cr_err *err)
{
    cr_image_item *items;

    if (!refs->num) return CR_OK;
    if (!g->loader)
        CR_TRY(cr_item_loader_open(g->a->ranks->worker->model_path, g->a->config, &g->loader, err));
    CR_TRY(cr_item_loader_load(g->loader, g->a->x, refs, 1, err));
    items = CR_NEW_ARRAY(cr_image_item, refs->num);
    for (size_t i = 0; i < refs->num; i++) {
        const uint64_t *digest = refs->digests + CR_ITEM_DIGEST * i;
        cr_item_digest_text(digest, items[i].digest);
        items[i].patches = *cr_item_loader_get(g->loader, digest);
    }
    cr_prompt_images_make(items, refs->num, out);
    cr_free(items);
    return CR_OK;
}

static cr_status submit(cr_generator *g, const cr_entry *entry, cr_err *err)
{
    const cr_config *c = g->a->config;
    request *r = CR_NEW(request);
    const cr_prompt *p = &r->prompt;
    cr_prompt_images images = {0};
    cr_generating how;

    r->entry = *entry;
    r->entry.id = r->entry.data = NULL;
    CR_TRY_GOTO(bad, cr_record_unpack(entry->data, entry->num_bytes, &r->record, err));
    CR_TRY_GOTO(bad, cr_prompt_read(&r->record, &r->prompt, err));
    for (size_t k = 0; k < p->blocks.num; k++)
        if (block_of(r, k) < 0 || (size_t)block_of(r, k) >= c->num_rewards) {
            cr_fail(err, CR_EFORMAT, "there is no block %d of rewards", block_of(r, k));
            goto bad;
        }
    r->num_left = p->samples.num;
    how = cr_generating_of(
        c, cr_worker_generating(p->is_validation ? &c->validation : &c->infer, block_of(r, 0)));
    if (p->is_validation) how.log_probs = CR_LOG_PROBS_RAW; /* not trained on */
    CR_TRY_GOTO(bad, load_images(g, &p->items, &images, err));
    CR_TRY_GOTO(bad, cr_engine_submit_images(g->engine, p->ids.data, p->ids.num, &images,
                                             p->samples.data, p->samples.num, &how, r, err));
    return CR_OK;
bad:
    cr_prompt_images_free(&images);
    cr_fail_add(err, "prompt %s", entry->id);
    request_free(r);
    return err->status;
}

/* Updates that its weights have had; -1: it has none. */
static int64_t version_of(const cr_generator *g)
{
    return g->own.data ? 0 : g->weights ? cr_weight_copy_version(g->weights) : -1;
}

/* The sample, for the pipeline. */
static cr_status pack_response(const cr_generator *g, const cr_generated *s, cr_buf *packed,
                               cr_err *err)
{
    cr_response response = {.version = version_of(g),
                            .text = {s->text, s->text_bytes},
                            .finish = {s->finish, strlen(s->finish)},
                            .ids = {s->ids, s->num_ids},
                            .log_probs = {s->log_probs, s->num_ids}};

    if (s->num_kept) {
        response.log_mass = (cr_field_array){s->log_mass, s->num_ids};
        response.num_kept = (cr_field_array){s->num_kept, s->num_ids};
        response.kept_ids = (cr_field_array){s->kept_ids ? s->kept_ids : s->ids, s->num_kept_ids};
    }
    return cr_message_pack(CR_MESSAGE_RESPONSE, &response, packed, err);
}

/* The question, for the workers of each reward. */
static cr_status pack_question(const cr_generated *s, cr_buf *packed, cr_err *err)
{
    const cr_question question = {.response = {s->text, s->text_bytes},
                                  .finish = {s->finish, strlen(s->finish)},
                                  .ids = {s->ids, s->num_ids}};

    return cr_message_pack(CR_MESSAGE_QUESTION, &question, packed, err);
}

/* The sample and its questions in one step; with those of the last sample the prompt's entry is finished. */
static cr_status publish(cr_generator *g, const cr_generated *s, cr_err *err)
{
    request *r = s->user;
    size_t num = r->prompt.blocks.num;
    cr_stream_message *messages = CR_NEW_ARRAY(cr_stream_message, num + 1);
    char(*names)[CR_SAMPLE_NAME] = cr_alloc((num + 1) * sizeof *names);
    char(*streams)[96] = cr_alloc(num * sizeof *streams);
    cr_buf response = {0}, question = {0};
    bool is_last = --r->num_left == 0;

    if (pack_response(g, s, &response, err) == CR_OK) cr_note(pack_question(s, &question, err));
    cr_sample_name(s->sample_id, 0, /*is_second=*/false, names[num]);
    messages[0] =
        (cr_stream_message){CR_STREAM_SAMPLED, names[num], response.data, response.num_bytes};
    for (size_t k = 0; k < num; k++) {
        cr_sample_name(s->sample_id, k, /*is_second=*/false, names[k]);
        snprintf(streams[k], sizeof streams[k], CR_STREAM_GENERATED "%s",
                 g->a->config->rewards[block_of(r, k)].domain);
        messages[k + 1] =
            (cr_stream_message){streams[k], names[k], question.data, question.num_bytes};
    }
    if (err->status == CR_OK && is_last)
        cr_note(
            cr_stream_move(g->a->x, &r->entry, g->a->ranks->name, messages, num + 1, NULL, err));
    else if (err->status == CR_OK)
        cr_stream_move_later(g->a->x, NULL, NULL, messages, num + 1);
    cr_buf_free(&response);
    cr_buf_free(&question);
    cr_free(messages);
    cr_free(names);
    cr_free(streams);
    if (is_last) request_free(r);
    return err->status;
}

/* Is this entry the pause? Then reply to it. */
static cr_status take_command(cr_generator *g, const cr_entry *entry, bool *is_pause, cr_err *err)
{
    cr_record command, reply = {0};
    const char *op, *name;
    size_t n;
    cr_buf packed = {0};

    CR_TRY(cr_record_unpack(entry->data, entry->num_bytes, &command, err));
    CR_TRY_GOTO(out, cr_record_get_text(&command, CR_FIELD_OP, &op, &n, err));
    CR_TRY_GOTO(out, cr_record_get_text(&command, CR_FIELD_REQUEST, &name, &n, err));
    if (strcmp(op, cr_ask_name(CR_ASK_PAUSE)) != 0) {
        cr_fail(err, CR_EFORMAT, "the command %s came while generating", op);
        goto out;
    }
    *is_pause = true;
    cr_record_set_int(&reply, CR_FIELD_STATUS, CR_OK);
    CR_TRY_GOTO(out, cr_record_pack(&reply, &packed, err));
    CR_TRY_GOTO(out, cr_reply_put(g->a->x, name, packed.data, packed.num_bytes, err));
    cr_stream_done(g->a->x, entry, 1, g->a->ranks->name);
out:
    cr_record_free(&command);
    cr_record_free(&reply);
    cr_buf_free(&packed);
    return err->status;
}

static cr_status generate(cr_generator *g, const cr_record *command, cr_record *reply, cr_err *err)
{
    const char *const streams[] = {g->commands, CR_STREAM_PROMPTS};
    int64_t step;
    bool is_paused = false;
    char consumer[32];
    /* a round trip is waited for: a tenth of the time while samples run */
    double ask_again_s = 0, send_again_s = 0;
    cr_engine_stats before = cr_engine_get_stats(g->engine), after;
    cr_generated s;

    snprintf(consumer, sizeof consumer, "actor-%d", g->a->rank);
    CR_TRY(cr_record_get_int(command, CR_FIELD_STEP, &step, err));
    cr_heartbeat_say(g->a->heart, "generating for step %lld", (long long)step);
    while (!is_paused) {
        bool is_idle = cr_engine_is_idle(g->engine);
        double asked_s = cr_now_s();
        cr_entries entries = {0};
        /* keep a few prompts ahead of the free places, no more: the other ranks want some, too */
        if (is_idle || (cr_engine_num_waiting(g->engine) == 0 && asked_s >= ask_again_s)) {
            CR_TRY(cr_stream_take(g->a->x, streams, 2, g->a->ranks->name, consumer, 2,
                                  is_idle ? 1.0 : 0, CR_RANK_CLAIM_SECONDS, &entries, err));
            ask_again_s = is_idle ? 0 : cr_now_s() + fmin(10 * (cr_now_s() - asked_s), 1);
        }
        for (size_t i = 0; i < entries.num && err->status == CR_OK; i++)
            if (strcmp(entries.items[i].stream, CR_STREAM_PROMPTS) == 0)
                cr_note(submit(g, &entries.items[i], err));
            else
                cr_note(take_command(g, &entries.items[i], &is_paused, err));
        cr_entries_free(&entries);
        CR_TRY(err->status);
        CR_TRY(cr_engine_step(g->engine, err));
        while (cr_engine_poll(g->engine, &s)) {
            cr_note(publish(g, &s, err));
            cr_generated_free(&s);
            CR_TRY(err->status);
        }
        /* samples go with the next question; while others run, they are sent a tenth of the time, too */
        asked_s = cr_now_s();
        if (cr_engine_is_idle(g->engine) || asked_s < send_again_s) continue;
        CR_TRY(cr_exchange_flush(g->a->x, err));
        send_again_s = cr_now_s() + fmin(10 * (cr_now_s() - asked_s), 1);
    }
    CR_TRY(cr_exchange_flush(g->a->x, err));
    after = cr_engine_get_stats(g->engine);
    cr_record_set_int(reply, CR_FIELD_TOKENS, after.num_tokens - before.num_tokens);
    cr_record_set_int(reply, CR_FIELD_PREEMPTED, after.num_preempted - before.num_preempted);
    return CR_OK;
}

/* ---- phases ---- */

/* Without what steps work in: how samples come together depends on time, and a run's numbers do not. */
static int64_t held_bytes(const cr_generator *g)
{
    return (int64_t)cr_device_get_stats(g->a->dev).bytes_now - cr_engine_scratch_bytes(g->engine);
}

/* Weights that came since are packed, and a cache is there. */
static cr_status load(cr_generator *g, cr_err *err)
{
    if (g->is_loaded) return CR_OK;
    if (version_of(g) < 0)
        return cr_fail(err, CR_EARG,
                       "actor_infer has no weights to generate with (sync comes first)");
    CR_TRY(cr_engine_set_weights(g->engine, err));
    g->is_loaded = true;
    return CR_OK;
}

static void offload(cr_generator *g)
{
    cr_engine_release(g->engine);
    g->is_loaded = false;
    if (g->a->ranks->worker->engine.sleep_level > 1) {
        cr_weight_copy_destroy(g->weights);
        g->weights = NULL;
    }
    cr_phase_trim(g->a->dev);
}

static cr_status serve_rollout(cr_generator *g, const cr_record *command, cr_record *reply,
                               cr_err *err)
{
    int64_t should_offload = 1;
    cr_phase_cycle phase = {.began_s = cr_now_s(), .bytes[0] = held_bytes(g)};

    if (cr_record_has_value(command, CR_FIELD_OFFLOAD))
        CR_TRY(cr_record_get_int(command, CR_FIELD_OFFLOAD, &should_offload, err));
    CR_TRY(load(g, err));
    phase.loaded_s = cr_now_s();
    phase.bytes[1] = held_bytes(g);
    CR_TRY(generate(g, command, reply, err));
    phase.done_s = cr_now_s();
    phase.bytes[2] = held_bytes(g);
    if (!g->is_shared) return CR_OK;
    if (should_offload) offload(g);
    phase.bytes[3] = held_bytes(g);
    cr_phase_write(&phase, reply);
    return CR_OK;
}

cr_status cr_generator_serve(void *generator, cr_ask ask, const cr_record *command,
                             cr_record *reply, cr_err *err)
{
    cr_generator *g = generator;

    if (ask == CR_ASK_SYNC) return sync_weights(g, reply, err);
    if (ask == CR_ASK_GENERATE) return serve_rollout(g, command, reply, err);
    return cr_fail(err, CR_EFORMAT, "the command %s came while nothing is generated",
                   cr_ask_name(ask));
}
