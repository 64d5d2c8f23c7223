/* worker.c -- MODEL and worker keys to a model that is ready to run (see worker.h). */
#include "actors/worker.h"

#include "strategies/strategies.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* ---- worker keys ---- */

typedef struct keys {
    const char *dtype, *freeze;
    int64_t infer_batch_size, train_batch_size;
    bool is_recompute_off;
} keys;

static cr_status take_count(const char *key, const char *text, int64_t *out, cr_err *err)
{
    char *end;

    errno = 0;
    *out = strtoll(text, &end, 10);
    if (end == text || *end || errno || *out < 1)
        return cr_fail(err, CR_EUSAGE, "%s must be a whole number from 1, not '%s'", key, text);
    return CR_OK;
}

static cr_status take_bool(const char *key, const char *text, bool *out, cr_err *err)
{
    *out = strcmp(text, "true") == 0;
    if (!*out && strcmp(text, "false") != 0)
        return cr_fail(err, CR_EUSAGE, "%s must be true or false, not '%s'", key, text);
    return CR_OK;
}

static bool is_key(const char *word, const char *key, const char **value)
{
    size_t num = strlen(key);

    if (strncmp(word, key, num) != 0 || word[num] != '=') return false;
    *value = word + num + 1;
    return true;
}

static cr_status take_key(keys *k, cr_worker_kind kind, const char *word, cr_err *err)
{
    const char *value, *equals = strchr(word, '=');

    if (!equals) return cr_fail(err, CR_EUSAGE, "'%s' is no key=value", word);
    if (is_key(word, "model_args.dtype", &value)) {
        k->dtype = value;
        return CR_OK;
    }
    if (is_key(word, "device_mapping", &value) &&
        (strcmp(value, "list(range(0,1))") == 0 || strcmp(value, "[0]") == 0))
        return CR_OK;
    if (kind != CR_WORKER_TRAIN && is_key(word, "infer_batch_size", &value))
        return take_count("infer_batch_size", value, &k->infer_batch_size, err);
    if (kind == CR_WORKER_TRAIN) {
        if (is_key(word, "training_args.per_device_train_batch_size", &value))
            return take_count("per_device_train_batch_size", value, &k->train_batch_size, err);
        if (is_key(word, "model_args.disable_gradient_checkpointing", &value))
            return take_bool("disable_gradient_checkpointing", value, &k->is_recompute_off, err);
        if (is_key(word, "model_args.freeze_module_prefix", &value)) {
            k->freeze = value;
            return CR_OK;
        }
    }
    return cr_fail(err, CR_EABSENT, "%.*s with this value is not available yet here",
                   (int)(equals - word), word);
}

static cr_status choose_dtype(const char *name, const cr_model *model, cr_dtype *out, cr_err *err)
{
    if (!name && model->config.storage_dtype == CR_F16)
        return cr_fail(err, CR_EABSENT,
                       "the checkpoint is fp16, and computing in it is not available yet (add "
                       "model_args.dtype=bf16 or fp32)");
    if (!name) {
        *out = model->config.storage_dtype;
    } else if (strcmp(name, "fp32") == 0) {
        *out = CR_F32;
    } else if (strcmp(name, "bf16") == 0) {
        *out = CR_BF16;
    } else if (strcmp(name, "fp16") == 0) {
        return cr_fail(err, CR_EABSENT,
                       "model_args.dtype=fp16 is not available yet (fp32 and bf16 "
                       "are)");
    } else {
        return cr_fail(err, CR_ECONFIG, "model_args.dtype '%s' is unknown (fp32 or bf16)", name);
    }
    return CR_OK;
}

/* ---- opening ---- */

static int num_cpus(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static cr_status open_parts(cr_worker *w, cr_worker_kind kind, const keys *k,
                            const char *device_name, cr_err *err)
{
    CR_TRY(cr_model_open(w->folder, &w->model, err));
    CR_TRY(choose_dtype(k->dtype, w->model, &w->dtype, err));
    CR_TRY(cr_model_freeze(w->model, k->freeze, err));
    CR_TRY(cr_device_open(device_name ? device_name : "cpu", num_cpus(), &w->dev, err));
    if (cr_device_is_meta(w->dev))
        return cr_fail(err, CR_EUSAGE, "device meta only counts, it has no numbers to answer with");
    CR_TRY(cr_full_weights_load(&w->full, w->model, w->dev, w->dtype, w->folder, err));
    w->tape = cr_stack_create(w->dev);
    w->scratch = cr_stack_create(w->dev);
    w->batch_size = kind == CR_WORKER_TRAIN ? k->train_batch_size : k->infer_batch_size;
    w->should_recompute = !k->is_recompute_off;
    return kind == CR_WORKER_TRAIN ? cr_full_weights_add_grads(&w->full, w->model, err) : CR_OK;
}

cr_status cr_worker_open(cr_worker *w, cr_worker_kind kind, const cr_words *words,
                         const char *device_name, cr_err *err)
{
    keys k = {.infer_batch_size = kind == CR_WORKER_GENERATE ? 256 : 16, .train_batch_size = 8};

    *w = (cr_worker){0};
    if (words->num == 0) return cr_fail(err, CR_EUSAGE, "MODEL is missing (a folder)");
    w->folder = words->word[0];
    for (size_t i = 1; i < words->num; i++)
        CR_TRY(take_key(&k, kind, words->word[i], err));
    if (open_parts(w, kind, &k, device_name, err) != CR_OK) cr_worker_close(w);
    return err->status;
}

void cr_worker_close(cr_worker *w)
{
    cr_stack_destroy(w->tape);
    cr_stack_destroy(w->scratch);
    cr_full_weights_fini(&w->full);
    cr_model_free(w->model);
    if (w->dev) cr_device_close(w->dev);
    *w = (cr_worker){0};
}

cr_line_rules cr_worker_rules(const cr_worker *w)
{
    const cr_model_config *c = &w->model->config;

    return (cr_line_rules){.vocab_size = c->vocab_size, .max_tokens = c->position_limit};
}

cr_pass cr_worker_pass(cr_worker *w, const cr_batch *batch, bool has_tape)
{
    return (cr_pass){.dev = w->dev,
                     .dtype = w->dtype,
                     .tape = has_tape ? w->tape : NULL,
                     .scratch = w->scratch,
                     .batch = batch,
                     .should_recompute = w->should_recompute};
}

/* ---- packing ---- */

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

static void grow(int32_t **array, size_t old, size_t num)
{
    *array = cr_realloc(*array, old * sizeof(int32_t), num * sizeof(int32_t));
}

static void reserve(cr_packed *p, size_t tokens, size_t seqs)
{
    if (tokens > p->capacity_tokens) {
        size_t old = p->capacity_tokens, num = 2 * tokens;
        grow(&p->ids, old, num);
        grow(&p->positions, old, num);
        grow(&p->labels, old, num);
        p->capacity_tokens = num;
    }
    if (seqs > p->capacity_seqs) {
        grow(&p->cu_seqlens, p->capacity_seqs, 2 * seqs);
        p->capacity_seqs = 2 * seqs;
    }
}

int64_t cr_packed_add(cr_packed *p, const cr_line *line)
{
    int64_t at = p->batch.num_tokens, seqs = p->batch.num_seqs, num_labels = 0;
    const int32_t *labels = line->labels ? line->labels : line->ids;

    reserve(p, (size_t)at + line->num_ids, (size_t)seqs + 2);
    cr_packed_clear(p);
    for (size_t t = 0; t < line->num_ids; t++, at++) {
        p->ids[at] = line->ids[t];
        p->positions[at] = (int32_t)t;
        p->labels[at] = t + 1 < line->num_ids ? labels[t + 1] : -1;
        num_labels += p->labels[at] >= 0;
    }
    p->cu_seqlens[0] = 0;
    p->cu_seqlens[seqs + 1] = (int32_t)at;
    p->batch.num_tokens = at;
    p->batch.num_seqs = seqs + 1;
    return num_labels;
}
