/* models.c -- see models.h. */
#include "commands/serve/models.h"
#include "base/digest.h"
#include "base/hub.h"
#include "base/limits.h"
#include "kernels/attention.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUND_TOKENS = 16384, MOST_SAMPLES = 64 /* of an engine at a time */ };

/* ---- identity ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* The digest of the sorted digests of all safetensors files: it does not depend on their names. */
static cr_status digest_weights(const char *folder, char hex[CR_DIGEST_TEXT], cr_err *err)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    char(*digests)[CR_DIGEST_TEXT] = NULL;
    size_t num = 0, capacity = 0;

    while (dir && err->status == CR_OK && (entry = readdir(dir))) {
        const char *end = strrchr(entry->d_name, '.');
        char *path;
        if (!end || strcmp(end, ".safetensors") != 0) continue;
        path = cr_path_join(folder, entry->d_name);
        digests = cr_grow(digests, num, &capacity, sizeof *digests);
        cr_note(cr_digest_file(path, digests[num++], NULL, err));
        cr_free(path);
    }
    if (dir) closedir(dir);
    if (num) qsort(digests, num, sizeof *digests, by_text);
    cr_digest_bytes(num ? digests[0] : "", num * sizeof *digests, hex);
    cr_free(digests);
    return err->status;
}

/* Tokenizer, templates and tokenizer_config.json, where the model has them. */
static cr_status open_texts(cr_served *x, const char *folder, cr_err *err)
{
    char *tokenizer = cr_path_join(folder, "tokenizer.json"),
         *config = cr_path_join(folder, "tokenizer_config.json");
    cr_err absent = {0};

    if (cr_file_exists(tokenizer)) {
        CR_TRY_GOTO(out, cr_encoder_open(&x->texts, folder, err));
        CR_TRY_GOTO(out, cr_digest_file(tokenizer, x->tokenizer, NULL, err));
        x->identity.tokenizer = x->texts.tokenizer;
        x->identity.tokenizer_sha256 = x->tokenizer;
        if (cr_chat_open(folder, &x->chat, &absent) == CR_OK) x->identity.chat = x->chat;
    }
    if (cr_file_exists(config)) {
        CR_TRY_GOTO(out, cr_file_read(config, &x->tokenizer_config, err));
        x->identity.tokenizer_config = x->tokenizer_config.data;
    }
out:
    cr_free(tokenizer);
    cr_free(config);
    return err->status;
}

static cr_status describe(cr_served *x, cr_err *err)
{
    const cr_model_config *c = &x->model->config;
    char *folder = cr_hub_find(x->folder);

    x->identity = (cr_serve_model){
        .name = x->name,
        .root = x->folder,
        .weights_sha256 = x->weights,
        .weight_version = "1",
        .dtype = cr_dtype_name(x->dtype),
        .vocab_size = c->vocab_size,
        .max_model_len = c->position_limit ? c->position_limit : c->max_position_embeddings,
        .eos_ids = c->eos_ids,
        .num_eos = (size_t)c->num_eos,
        .created = time(NULL),
    };
    if (digest_weights(folder, x->weights, err) == CR_OK) cr_note(open_texts(x, folder, err));
    cr_free(folder);
    return err->status;
}

/* ---- models ---- */

/* The engine generates with packed copies of all weights, rounds are of the units. */
static cr_status open_engine(const cr_serve_models *m, cr_served *x, cr_err *err)
{
    cr_device *dev = m->worker->dev;
    const cr_model_config *c = &x->model->config;
    int64_t bytes = cr_memory_limit() / 4 / (int64_t)m->num;
    int64_t block =
        c->num_layers * (int64_t)cr_kv_block_bytes(dev, x->dtype, c->num_kv_heads, c->head_dim);
    cr_engine_limits limits = {.max_running = MOST_SAMPLES,
                               .max_model_len = x->identity.max_model_len,
                               .kv_bytes = bytes,
                               .keeps_prefixes = true};

    if (limits.max_model_len > bytes / block * CR_KV_BLOCK)
        limits.max_model_len = bytes / block * CR_KV_BLOCK;
    x->identity.max_model_len = limits.max_model_len;
    CR_TRY(cr_model_open(x->folder, &x->sampled, err));
    cr_experts_set(x->sampled, NULL);
    CR_TRY(cr_full_weights_load(&x->full, x->sampled, dev, x->dtype, x->folder, err));
    CR_TRY(cr_engine_create(x->sampled, dev, &limits, &x->engine, err));
    cr_engine_set_tokenizer(x->engine, x->identity.tokenizer);
    return cr_engine_set_weights(x->engine, err);
}

/* Collective. */
static void served_free(cr_served *x)
{
    cr_engine_destroy(x->engine);
    cr_full_weights_fini(&x->full);
    cr_model_free(x->sampled);
    cr_chat_close(x->chat);
    cr_encoder_close(&x->texts);
    cr_buf_free(&x->tokenizer_config);
    cr_fsdp_destroy(x->fsdp);
    cr_model_free(x->model);
    cr_free(x);
}

/* Shards, on every rank. */
static cr_status load(const cr_serve_models *m, cr_served *x, cr_err *err)
{
    CR_TRY(cr_worker_load(m->worker, x->folder, &x->model, &x->fsdp, err));
    x->dtype = cr_worker_dtype(m->worker, x->model);
    return cr_fsdp_check_finite(x->fsdp, err);
}

/* What rank 0 has beside its shards, when rounds of this place can run. */
static cr_status begin(cr_serve_models *m, cr_served *x, size_t place, cr_err *err)
{
    CR_TRY(describe(x, err));
    x->identity.place = place;
    CR_TRY(cr_self_check_run(m->scoring, place, x->identity.vocab_size, x->identity.max_model_len,
                             m->may_be_random, &x->self_check, err));
    x->identity.self_check = x->self_check.digest;
    return m->service.only_scores ? CR_OK : open_engine(m, x, err);
}

cr_status cr_serve_models_add(cr_serve_models *m, const char *name, const char *folder, cr_err *err)
{
    cr_served *x;

    for (size_t i = 0; i < m->num; i++)
        if (strcmp(m->served[i]->name, name) == 0)
            return cr_fail(err, CR_EUSAGE, "two models have the name %s", name);
    if (m->num == CR_SERVE_MAX_MODELS)
        return cr_fail(err, CR_EUSAGE, "at most %d models", CR_SERVE_MAX_MODELS);
    x = m->served[m->num++] = CR_NEW(cr_served);
    x->name = name;
    x->folder = folder;
    return CR_OK;
}

cr_status cr_serve_models_open(cr_serve_models *m, cr_err *err)
{
    m->scoring = cr_scoring_create(m->worker->world, m->worker->mesh);
    for (size_t i = 0; i < m->num; i++) {
        if (load(m, m->served[i], err) != CR_OK)
            return m->num > 1 ? cr_fail_add(err, "model %s", m->served[i]->name) : err->status;
        cr_scoring_set(m->scoring, i, m->served[i]->model, m->served[i]->fsdp);
    }
    return CR_OK;
}

cr_status cr_serve_models_begin(cr_serve_models *m, cr_err *err)
{
    cr_serve_model *models = CR_NEW_ARRAY(cr_serve_model, m->num);

    m->service.models = models;
    m->service.num_models = m->num;
    cr_compute_init(&m->compute, m->scoring, ROUND_TOKENS, MOST_SAMPLES);
    for (size_t i = 0; i < m->num; i++) {
        if (begin(m, m->served[i], i, err) != CR_OK)
            return m->num > 1 ? cr_fail_add(err, "model %s", m->served[i]->name) : err->status;
        cr_compute_set_engine(&m->compute, i, m->served[i]->engine);
        models[i] = m->served[i]->identity;
    }
    return CR_OK;
}

void cr_serve_models_close(cr_serve_models *m)
{
    cr_compute_free(&m->compute);
    cr_scoring_destroy(m->scoring);
    for (size_t i = 0; i < m->num; i++)
        served_free(m->served[i]);
    cr_free((void *)(uintptr_t)m->service.models);
}
