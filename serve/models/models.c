/* models.c -- see models.h. */
#include "serve/models/models.h"
#include "actors/strategy_args.h"
#include "base/digest.h"
#include "base/hub.h"
#include "base/limits.h"
#include "engine/engine.h"
#include "images/reader.h"
#include "kernels/attention.h"
#include "mesh/mesh.h"
#include "models/files/peft.h"
#include "models/models.h"
#include "models/weights.h"
#include "strategies/strategies.h"
#include "text/chat.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    ROUND_TOKENS = 16384,
    MAX_SAMPLES = 64 /* of an engine at a time */
};
enum { NEXT = CR_SERVE_MAX_MODELS /* place of a model that is loaded beside the others */ };

/* ---- identity ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Of files. */
typedef struct digests {
    char (*of)[CR_DIGEST_TEXT]; /* [num] */
    size_t num, capacity;
} digests;

static cr_status add_file(digests *d, const char *folder, const char *name, cr_err *err)
{
    char *path = cr_path_join(folder, name);

    d->of = cr_grow(d->of, d->num, &d->capacity, sizeof *d->of);
    cr_note(cr_digest_file(path, d->of[d->num++], NULL, err));
    cr_free(path);
    return err->status;
}

/* All safetensors files. */
static cr_status add_weights(digests *d, const char *folder, cr_err *err)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;

    while (dir && err->status == CR_OK && (entry = readdir(dir))) {
        const char *end = strrchr(entry->d_name, '.');
        if (end && strcmp(end, ".safetensors") == 0)
            cr_note(add_file(d, folder, entry->d_name, err));
    }
    if (dir) closedir(dir);
    return err->status;
}

/* The digest of the sorted ones, which does not depend on names of files; they come into this order. */
static void digest_all(const digests *d, char hex[CR_DIGEST_TEXT])
{
    if (d->num) qsort(d->of, d->num, sizeof *d->of, by_text);
    cr_digest_bytes(d->num ? d->of[0] : "", d->num * sizeof *d->of, hex);
}

static cr_status digest_weights(const char *folder, char hex[CR_DIGEST_TEXT], cr_err *err)
{
    digests d = {0};

    if (add_weights(&d, folder, err) == CR_OK) digest_all(&d, hex);
    cr_free(d.of);
    return err->status;
}

/* Of the files of the model, and of an adapter's with them. */
static cr_status digest_names(cr_served *x, const char *folder, cr_err *err)
{
    digests base = {0};

    cr_note(add_weights(&base, folder, err));
    for (size_t i = 0; i < x->num_names && err->status == CR_OK; i++) {
        cr_served_name *n = &x->names[i];
        digests d = {0};
        for (size_t k = 0; k < base.num; k++) {
            d.of = cr_grow(d.of, d.num, &d.capacity, sizeof *d.of);
            memcpy(d.of[d.num++], base.of[k], sizeof *d.of);
        }
        if (n->adapter != CR_NO_ADAPTER) {
            const char *of = x->model->adapters[n->adapter].folder;
            cr_note(add_file(&d, of, CR_PEFT_CONFIG, err));
            cr_note(add_file(&d, of, CR_PEFT_TENSORS, err));
        }
        digest_all(&d, n->weights);
        cr_free(d.of);
    }
    cr_free(base.of);
    return err->status;
}

/* Tokenizer, templates and tokenizer_config.json, where the model has them. */
static cr_status open_texts(cr_served *x, const char *folder, cr_serve_model *identity, cr_err *err)
{
    char *tokenizer = cr_path_join(folder, "tokenizer.json"),
         *config = cr_path_join(folder, "tokenizer_config.json");
    cr_err absent = {0};

    if (cr_file_exists(tokenizer)) {
        CR_TRY_GOTO(out, cr_encoder_open(&x->texts, folder, err));
        CR_TRY_GOTO(out, cr_digest_file(tokenizer, x->tokenizer, NULL, err));
        identity->tokenizer = x->texts.tokenizer;
        identity->tokenizer_sha256 = x->tokenizer;
        identity->texts = x->strings = cr_serve_texts_create(x->texts.tokenizer);
        if (cr_chat_open(folder, &x->chat, &absent) == CR_OK) identity->chat = x->chat;
    }
    if (cr_file_exists(config)) {
        CR_TRY_GOTO(out, cr_file_read(config, &x->tokenizer_config, err));
        identity->tokenizer_config = x->tokenizer_config.data;
    }
out:
    cr_free(tokenizer);
    cr_free(config);
    return err->status;
}

/* The decoders of images, where the model has a tower and a processor that is known. */
static cr_status open_images(cr_served *x, const char *folder, cr_serve_model *identity,
                             cr_err *err)
{
    cr_image_processor processor;
    cr_err why = {0};

    if (!x->model->config.vision || !cr_image_processor_exists(folder)) return CR_OK;
    if (cr_image_processor_read(folder, &processor, &why) == CR_OK) {
        identity->images = x->images = cr_serve_images_create(&processor, &x->model->config);
        return CR_OK;
    }
    if (why.status != CR_EABSENT) return cr_fail(err, why.status, "%s", why.msg);
    cr_log(CR_LOG_WARN, "serve", "chats with images are refused: %s", why.msg);
    return CR_OK;
}

/* place: of its rounds and its engine. */
static cr_status describe(cr_served *x, size_t place, const char *template, cr_err *err)
{
    const cr_model_config *c = &x->model->config;
    char *folder = cr_hub_find(x->folder);
    cr_serve_model all = {
        .place = place,
        .weight_version = x->version,
        .dtype = cr_dtype_name(x->dtype),
        .template = template,
        .vocab_size = c->vocab_size,
        .max_model_len = c->position_limit ? c->position_limit : c->max_position_embeddings,
        .eos_ids = c->eos_ids,
        .num_eos = (size_t)c->num_eos,
        .created = time(NULL),
    };

    if (!x->version[0]) strcpy(x->version, "1");
    if (!x->names->weights[0]) cr_note(digest_names(x, folder, err));
    if (err->status == CR_OK) cr_note(open_texts(x, folder, &all, err));
    if (err->status == CR_OK) cr_note(open_images(x, folder, &all, err));
    for (size_t i = 0; i < x->num_names; i++) {
        cr_served_name *n = &x->names[i];
        n->identity = all;
        n->identity.adapter = n->adapter;
        n->identity.name = n->name;
        n->identity.root = n->root;
        n->identity.parent = i ? x->names->name : NULL;
        n->identity.weights_sha256 = n->weights;
    }
    cr_free(folder);
    return err->status;
}

/* ---- models ---- */

/* A quarter of the memory, of a GPU of this rank's share, for the caches of all models; less, where gpu_memory_utilization leaves less beside the weights. */
static cr_status cache_budget(const cr_serve_models *m, const cr_served *x, int64_t block,
                              int64_t *num_bytes, cr_err *err)
{
    const double share = m->session->keys->engine.gpu_memory_utilization;
    const int64_t weights = cr_fsdp_get_stats(x->fsdp).held_bytes +
                            cr_engine_packed_bytes(x->model, m->session->dev, x->dtype);
    cr_device_memory memory;
    int64_t left;

    CR_TRY(cr_session_memory(m->session, &memory, err));
    left = (memory.num_gpus ? memory.all_bytes : cr_memory_limit()) / 4;
    CR_TRY(cr_session_cache_bytes(&memory, left / (int64_t)(m->num + m->can_update), block,
                                  num_bytes, err));
    if (share <= 0) return CR_OK;
    left = cr_engine_cache_budget(share, memory.all_bytes, weights);
    if (left < 1)
        return cr_fail(err, CR_ECONFIG,
                       "gpu_memory_utilization %g of %lld bytes of memory leaves nothing for the "
                       "cache beside %lld bytes of weights",
                       share, (long long)memory.all_bytes, (long long)weights);
    if (left < *num_bytes) *num_bytes = left;
    return CR_OK;
}

/* The engine generates with all weights, on a CPU packed as well; on one rank with those that rounds have. */
static cr_status open_engine(const cr_serve_models *m, cr_served *x, cr_err *err)
{
    cr_device *dev = m->session->dev;
    const cr_model_config *c = &x->model->config;
    int64_t bytes;
    int64_t block =
        c->num_layers * (int64_t)cr_kv_block_bytes(dev, x->dtype, c->num_kv_heads, c->head_dim);
    cr_engine_limits limits = {.max_running = MAX_SAMPLES,
                               .max_model_len = x->names->identity.max_model_len,
                               .keeps_prefixes = true};

    CR_TRY(cache_budget(m, x, block, &bytes, err));
    limits.kv_bytes = bytes;
    if (limits.max_model_len > bytes / block * CR_KV_BLOCK)
        limits.max_model_len = bytes / block * CR_KV_BLOCK;
    if (m->session->keys->engine.max_model_len &&
        limits.max_model_len > m->session->keys->engine.max_model_len)
        limits.max_model_len = m->session->keys->engine.max_model_len;
    for (size_t i = 0; i < x->num_names; i++)
        x->names[i].identity.max_model_len = limits.max_model_len;
    CR_TRY(cr_model_open_with(x->folder, &m->session->options, &x->sampled, err));
    cr_experts_set(x->sampled, NULL);
    if (!cr_fsdp_lend(x->fsdp, x->sampled))
        CR_TRY(cr_full_weights_load(&x->full, x->sampled, dev, x->dtype, x->folder, err));
    CR_TRY(cr_engine_create(x->sampled, dev, &limits, &x->engine, err));
    cr_engine_set_tokenizer(x->engine, x->texts.tokenizer);
    return cr_engine_set_weights(x->engine, err);
}

/* Collective. */
static void served_free(cr_served *x)
{
    if (!x) return;
    cr_engine_destroy(x->engine);
    cr_full_weights_fini(&x->full);
    cr_model_free(x->sampled);
    cr_chat_close(x->chat);
    cr_serve_images_destroy(x->images);
    cr_serve_texts_free(x->strings);
    cr_encoder_close(&x->texts);
    cr_buf_free(&x->tokenizer_config);
    cr_fsdp_destroy(x->fsdp);
    cr_model_free(x->model);
    cr_free(x->own_folder);
    cr_free(x->names);
    cr_free(x);
}

/* Shards, on every rank. */
static cr_status load(const cr_serve_models *m, cr_served *x, cr_err *err)
{
    CR_TRY(cr_session_load(m->session, x->folder, &x->model, &x->fsdp, err));
    x->dtype = cr_session_dtype(m->session, x->model);
    return CR_OK;
}

/* What rank 0 has beside its shards, when rounds of this place can run. */
static cr_status begin(cr_serve_models *m, cr_served *x, size_t place, cr_err *err)
{
    CR_TRY(describe(x, place, m->session->keys->data.template, err));
    for (size_t i = 0; i < x->num_names; i++) {
        cr_served_name *n = &x->names[i];
        if (cr_self_check_run(m->scoring, place, n->adapter, n->identity.vocab_size,
                              n->identity.max_model_len, m->may_be_random, &n->self_check,
                              err) != CR_OK)
            return i ? cr_fail_add(err, "%s", n->name) : err->status;
        n->identity.self_check = n->self_check.digest;
    }
    return m->service.only_scores ? CR_OK : open_engine(m, x, err);
}

static cr_served *served_new(const char *name, const char *folder)
{
    cr_served *x = CR_NEW(cr_served);

    x->folder = folder;
    x->names = CR_NEW_ARRAY(cr_served_name, CR_SERVE_MAX_MODELS);
    x->names[x->num_names++] =
        (cr_served_name){.name = name, .root = folder, .adapter = CR_NO_ADAPTER};
    return x;
}

/* There may be another name, and not this one. */
static cr_status check_name(const cr_serve_models *m, const char *name, cr_err *err)
{
    size_t num = 0;

    for (size_t i = 0; i < m->num; i++)
        for (size_t k = 0; k < m->served[i]->num_names; k++, num++)
            if (strcmp(m->served[i]->names[k].name, name) == 0)
                return cr_fail(err, CR_EUSAGE, "two models have the name %s", name);
    if (num == CR_SERVE_MAX_MODELS)
        return cr_fail(err, CR_EUSAGE, "at most %d models", CR_SERVE_MAX_MODELS);
    return CR_OK;
}

cr_status cr_serve_models_adapt(cr_serve_models *m, const char *name, const char *folder,
                                cr_err *err)
{
    cr_served *x = m->served[m->num - 1];
    char *found = cr_hub_find(folder);

    cr_free(found);
    CR_TRY(check_name(m, name, err));
    if (!found) {
        cr_note(cr_hub_absent(folder, err));
        return cr_fail_add(err, "adapter %s", name);
    }
    x->names[x->num_names] =
        (cr_served_name){.name = name, .root = folder, .adapter = (int)x->num_names - 1};
    x->num_names++;
    return CR_OK;
}

cr_status cr_serve_models_add(cr_serve_models *m, const char *name, const char *folder, cr_err *err)
{
    char *found = cr_hub_find(folder);

    cr_free(found);
    CR_TRY(check_name(m, name, err));
    if (!found) {
        cr_note(cr_hub_absent(folder, err));
        return strcmp(name, folder) != 0 ? cr_fail_add(err, "model %s", name) : err->status;
    }
    m->served[m->num++] = served_new(name, folder);
    return CR_OK;
}

cr_status cr_serve_models_open(cr_serve_models *m, cr_err *err)
{
    m->scoring = cr_scoring_create(m->session->world, m->session->mesh);
    for (size_t i = 0; i < m->num; i++) {
        if (load(m, m->served[i], err) != CR_OK)
            return m->num > 1 ? cr_fail_add(err, "model %s", m->served[i]->names->name)
                              : err->status;
        cr_scoring_set(m->scoring, i, m->served[i]->model, m->served[i]->fsdp);
    }
    return CR_OK;
}

/* What clients see from now on. */
static void show(cr_serve_models *m)
{
    cr_serve_model *models = CR_NEW_ARRAY(cr_serve_model, CR_SERVE_MAX_MODELS);
    cr_serve_service *before = m->shown, *now = CR_NEW(cr_serve_service);

    *now = m->service;
    now->models = models;
    for (size_t i = 0; i < m->num; i++)
        for (size_t k = 0; k < m->served[i]->num_names; k++)
            models[now->num_models++] = m->served[i]->names[k].identity;
    now->num_ranks = m->session->num_ranks;
    cr_server_ready(m->server, m->shown = now);
    if (before) cr_free((void *)(uintptr_t)before->models);
    cr_free(before);
}

cr_status cr_serve_models_begin(cr_serve_models *m, cr_err *err)
{
    m->lanes = cr_lanes_create(m->session->dev);
    cr_compute_init(&m->compute, m->scoring, m->lanes, ROUND_TOKENS, MAX_SAMPLES);
    for (size_t i = 0; i < m->num; i++) {
        if (begin(m, m->served[i], i, err) != CR_OK)
            return m->num > 1 ? cr_fail_add(err, "model %s", m->served[i]->names->name)
                              : err->status;
        cr_compute_set_engine(&m->compute, i, m->served[i]->engine);
    }
    show(m);
    return CR_OK;
}

/* ---- updates ---- */

/* Parameters of the same names and shapes, and what the config says beside them. */
static cr_status check_shape(const cr_model *old, const cr_model *new, cr_err *err)
{
    const cr_model_config *a = &old->config, *b = &new->config;

    if (strcmp(a->architecture, b->architecture) != 0)
        return cr_fail(err, CR_EARG, "the new weights are of %s, the model is %s", b->architecture,
                       a->architecture);
    if (a->num_heads != b->num_heads || a->head_dim != b->head_dim ||
        a->max_position_embeddings != b->max_position_embeddings ||
        a->position_limit != b->position_limit || old->num_params != new->num_params)
        return cr_fail(err, CR_EARG,
                       "the new weights are of another shape: %lld heads of %lld, %lld positions, "
                       "%zu tensors instead of %lld, %lld, %lld, %zu",
                       (long long)b->num_heads, (long long)b->head_dim,
                       (long long)b->max_position_embeddings, new->num_params,
                       (long long)a->num_heads, (long long)a->head_dim,
                       (long long)a->max_position_embeddings, old->num_params);
    for (size_t i = 0; i < old->num_params; i++) {
        const cr_param *p = old->params[i], *q = new->params[i];
        if (strcmp(p->name, q->name) != 0 || p->num_dims != q->num_dims ||
            memcmp(p->shape, q->shape, (size_t)p->num_dims * sizeof *p->shape) != 0)
            return cr_fail(err, CR_EARG, "the new weights are of another shape: %s", q->name);
    }
    return CR_OK;
}

/* What the old model takes is what the new one will, on each rank of this machine. */
static int64_t bytes_of(const cr_serve_models *m, const cr_served *x)
{
    const char *transport = cr_group_transport(m->session->mesh->group[CR_AXIS_ALL]);
    int64_t ranks = strcmp(transport, "shared") == 0 ? m->session->num_ranks : 1,
            bytes = ranks * cr_fsdp_get_stats(x->fsdp).held_bytes;

    return x->engine ? bytes + (int64_t)x->full.data_bytes + cr_engine_held_bytes(x->engine)
                     : bytes;
}

/* Everything that can be known before something is loaded. A refusal is in *error. */
static cr_status look_at(const cr_serve_models *m, const cr_served *old, cr_served *next,
                         const char *sha256, cr_serve_error *error)
{
    static const char param[] = "model_path", code[] = "invalid_value";
    char *folder = cr_hub_find(next->folder);
    cr_model *model = NULL;
    cr_err err = {0};
    int64_t need = bytes_of(m, old), left = cr_memory_left();

    if (!folder)
        cr_serve_fail(error, 400, code, param, "there is no model %.300s", next->folder);
    else if (cr_model_open(folder, &model, &err) != CR_OK ||
             check_shape(old->model, model, &err) != CR_OK ||
             digest_weights(folder, next->names->weights, &err) != CR_OK)
        cr_serve_fail(error, 400, code, param, "%s", err.msg);
    else if (sha256 && !cr_digest_is(next->names->weights, sha256))
        cr_serve_fail(error, 409, "weights_mismatch", "weights_sha256",
                      "weights_sha256 is %.64s, but %.200s has %s (at least 8 digits are compared)",
                      sha256, next->folder, next->names->weights);
    else if (need > left)
        cr_serve_fail(error, 503, "insufficient_memory", NULL,
                      "beside the old weights the new ones need %lld MB, and %lld MB are left",
                      (long long)(need >> 20), (long long)(left >> 20));
    cr_model_free(model);
    cr_free(folder);
    return error->status ? CR_EARG : CR_OK;
}

/* After these no rank knows where the others are. */
static bool is_fatal(cr_status status)
{
    return status == CR_ETIMEOUT || status == CR_EDIVERGED;
}

static cr_served *next_new(const char *folder)
{
    char *own = cr_strdup(folder);
    cr_served *x = served_new("", own);

    x->own_folder = own;
    return x;
}

/* m->next, on every rank; its rounds have the last place. */
static cr_status load_next(cr_serve_models *m, const char *folder, cr_err *err)
{
    double deadline_s = cr_world_deadline_s(m->session->world);

    if (!m->next) m->next = next_new(folder);
    cr_world_set_deadline(m->session->world, m->session->config.collective_timeout);
    cr_note(load(m, m->next, err));
    cr_world_set_deadline(m->session->world, deadline_s);
    if (err->status == CR_OK) cr_scoring_set(m->scoring, NEXT, m->next->model, m->next->fsdp);
    return err->status;
}

static void drop_next(cr_serve_models *m)
{
    cr_scoring_set(m->scoring, NEXT, NULL, NULL);
    served_free(m->next);
    m->next = NULL;
}

static void take_next(cr_serve_models *m, size_t place)
{
    cr_served *old = m->served[place];

    m->next->names->name = m->next->names->identity.name = old->names->name;
    m->next->names->identity.place = place;
    m->served[place] = m->next;
    cr_scoring_set(m->scoring, place, m->next->model, m->next->fsdp);
    cr_compute_set_engine(&m->compute, place, m->next->engine);
    m->next = NULL;
    if (m->session->rank == 0) show(m);
    served_free(old);
}

static void set_version(cr_served *next, const cr_served *old, const char *wanted)
{
    next->num_before = old->num_before + 1;
    if (wanted)
        snprintf(next->version, sizeof next->version, "%s", wanted);
    else
        snprintf(next->version, sizeof next->version, "%lld", (long long)next->num_before + 1);
}

/* On rank 0: load, check, and send the result to the others. Not CR_OK: nothing has changed, unless it is fatal. */
static cr_status try_next(cr_serve_models *m, cr_err *err)
{
    char *text = cr_asprintf("load %s", m->next->folder);
    cr_status status = cr_scoring_send(m->scoring, text, err);

    cr_free(text);
    CR_TRY(status);
    CR_TRY(load_next(m, NULL, err));
    return begin(m, m->next, NEXT, err);
}

cr_status cr_serve_models_update(void *models, const cr_serve_update *wanted, size_t place,
                                 cr_serve_error *error, cr_err *err)
{
    cr_serve_models *m = models;
    const cr_served *old = m->served[place];
    char text[32];
    bool has_loaded;

    m->next = next_new(wanted->path);
    m->next->names->name = old->names->name;
    set_version(m->next, old, wanted->version);
    if (look_at(m, old, m->next, wanted->sha256, error) != CR_OK) {
        served_free(m->next);
        m->next = NULL;
        return CR_OK;
    }
    if (try_next(m, err) == CR_OK) {
        snprintf(text, sizeof text, "take %zu", place);
        CR_TRY(cr_scoring_send(m->scoring, text, err));
        take_next(m, place);
        cr_log(CR_LOG_INFO, "serve", "%s has version %s: weights %.12s of %s",
               m->served[place]->names->name, m->served[place]->version,
               m->served[place]->names->weights, m->served[place]->folder);
        return CR_OK;
    }
    if (is_fatal(err->status)) return err->status;
    cr_serve_fail(error, 400, "invalid_value", "model_path", "%s", err->msg);
    *err = (cr_err){0};
    has_loaded = m->next->fsdp != NULL;
    if (has_loaded) CR_TRY(cr_scoring_send(m->scoring, "drop", err));
    drop_next(m);
    return CR_OK;
}

/* What rank 0 sends. A rank that could not load has the error of all. */
static cr_status obey(cr_serve_models *m, const char *text, cr_err *err)
{
    if (strncmp(text, "load ", 5) == 0) {
        if (load_next(m, text + 5, err) == CR_OK || is_fatal(err->status)) return err->status;
        *err = (cr_err){0};
        if (!m->next->fsdp) drop_next(m);
    } else if (strncmp(text, "take ", 5) == 0) {
        take_next(m, strtoul(text + 5, NULL, 10));
    } else {
        drop_next(m);
    }
    return CR_OK;
}

cr_status cr_serve_models_follow(cr_serve_models *m, cr_err *err)
{
    cr_buf command = {0};

    while (err->status == CR_OK) {
        cr_note(cr_scoring_follow(m->scoring, &command, err));
        if (err->status != CR_OK || command.num_bytes == 0) break;
        cr_note(obey(m, command.data, err));
    }
    cr_buf_free(&command);
    return err->status;
}

void cr_serve_models_close(cr_serve_models *m)
{
    cr_compute_free(&m->compute);
    cr_lanes_destroy(m->lanes);
    cr_scoring_destroy(m->scoring);
    for (size_t i = 0; i < m->num; i++)
        served_free(m->served[i]);
    served_free(m->next);
    if (m->shown) cr_free((void *)(uintptr_t)m->shown->models);
    cr_free(m->shown);
}
