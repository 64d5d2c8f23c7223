/* train_data.h -- plans of small trainings, a tiny model and its batches (see train.h). */
#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H

#include "base/rng.h"
#include "mesh/flight.h"
#include "strategies/checkpoint.h"
#include "strategies/fsdp_impl.h"
#include "tests/model_bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(expr) CR_CHECK((expr) == CR_OK, "%s", err.msg)

enum { RANKS = 4, MAX_SEQS = 8, MAX_LEN = 17, VOCAB = 61, STEPS = 6 };

static cr_err err;
static cr_world *world;
static cr_group *everyone;
static int me;
static char folder[64];

/* ---- one training ---- */

typedef struct plan {
    const char *name;
    int ranks, fsdp, micro, num_seqs;
    cr_dtype dtype;
    cr_reduce_dtype reduce;
    cr_reshard reshard;
    int reshard_ranks;
    bool is_tied, is_recomputed_off, is_reduced_once, is_offloaded;
    cr_wrap_policy wrap;
    const char *frozen, *resume, *save; /* folders below `folder` */
    const char *fp32[3];                /* modules that compute in float32 */
    const char *adapters;               /* cr_adapter_options.target, of rank 3 */
    double dropout;                     /* of those */
    int first, last;                    /* steps */
    bool is_async;                      /* save before the last step, in the background */
    int inf_step; /* rank ranks-1 has an infinite gradient there; -1: nowhere */
    cr_dtype master;
    cr_optimizer_options optimizer;
    double loss_scale, lr;                       /* lr 0: 2e-3 and 3e-3 in turn */
    enum { ONCE, LAYER_THRICE, BRANCHES } calls; /* which layers run: see choose_layers */
    cr_save_kind kind;
    int away[2];    /* ranks from .. up to that have a folder of their own, as on another host */
    bool is_cycled; /* between micro-batches and steps all states go to the host and back */
} plan;

/* What the formulas of traffic need to know of a unit. */
typedef struct cr_unit_size {
    int64_t trained, frozen, shard; /* padded elements; of the trained shard */
    bool is_embedding, is_fp32;
    int layer;
} cr_unit_size;

typedef struct result {
    double loss[STEPS], norm[STEPS];
    double loss_scale[STEPS];
    bool is_skipped[STEPS];
    cr_flight_count gathers, reduces, all_reduces; /* of the last step, rank 0; by the recorder */
    cr_traffic traffic;                            /* of the last step */
    cr_fsdp_stats stats;                           /* at the end */
    cr_unit_size units[40];                        /* rank 0 */
    size_t num_units;
    int64_t num_micro; /* of the last step */
    float *grad;       /* of the first step, in the order of the model's parameters (rank 0) */
    size_t num_grad;
    const cr_model *model;
} result;

static const plan usual = {.ranks = 1, .micro = 2, .num_seqs = 6, .last = 4, .inf_step = -1};

static inline cr_model *make_model(const plan *p)
{
    const cr_model_options options = {
        .adapters = {.target = p->adapters, .rank = 3, .alpha = 6, .dropout = p->dropout}};
    char text[700];
    cr_model *model;

    snprintf(text, sizeof text,
             "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":%d,"
             "\"hidden_size\":24,\"intermediate_size\":40,\"num_hidden_layers\":3,"
             "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,"
             "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"
             "\"initializer_range\":0.1,\"tie_word_embeddings\":%s,\"torch_dtype\":\"float32\"}",
             VOCAB, p->is_tied ? "true" : "false");
    OK(build_model_with(text, &options, &model, &err));
    OK(cr_model_freeze(model, p->frozen, &err));
    for (size_t i = 0; i < CR_COUNT(p->fp32) && p->fp32[i]; i++)
        cr_module_set_fp32(cr_model_find_module(model, p->fp32[i]));
    return model;
}

typedef struct batch {
    int32_t ids[MAX_SEQS * MAX_LEN], positions[MAX_SEQS * MAX_LEN], labels[MAX_SEQS * MAX_LEN],
        cu[MAX_SEQS + 1];
    uint64_t drop_keys[MAX_SEQS * MAX_LEN];
    cr_batch b;
} batch;

/* Sequence `seq` of a step is a function of both; its first 2 rows have no label. Returns labels. */
static inline int append(batch *x, int step, int seq)
{
    uint32_t w[4];
    int num, n = (int)x->b.num_tokens, labels = 0;

    cr_rng_philox(5, CR_RNG_TEST, (uint64_t)step, (uint64_t)seq * 1000, w);
    num = 3 + (int)(w[0] % (MAX_LEN - 2));
    for (int t = 0; t < num; t++) {
        cr_rng_philox(5, CR_RNG_TEST, (uint64_t)step, (uint64_t)(seq * 1000 + t + 1), w);
        x->ids[n + t] = (int32_t)(w[0] % VOCAB);
        x->drop_keys[n + t] = (uint64_t)w[1] << 32 | w[2];
        x->positions[n + t] = t;
        x->labels[n + t] = -1;
        if (t > 2) x->labels[n + t - 1] = x->ids[n + t], labels++;
    }
    x->cu[0] = 0;
    x->cu[x->b.num_seqs + 1] = n + num;
    x->b = (cr_batch){x->ids, x->positions, x->labels, x->cu,       n + num, x->b.num_seqs + 1,
                      NULL,   NULL,         NULL,      x->drop_keys};
    return labels;
}

typedef struct loss_ctx {
    double sum, total; /* total: labels of all ranks */
    bool is_inf;
} loss_ctx;

/* Cross entropy and a little entropy, so that both gradients are there. */
static inline cr_status loss(void *ctx, const cr_outputs *out, size_t num, const cr_outputs *grad,
                             cr_err *e)
{
    const float *log_prob = out->of[CR_LOG_PROB];
    const float *entropy = out->of[CR_ENTROPY];
    float *grad_log_prob = grad->of[CR_LOG_PROB];
    float *grad_entropy = grad->of[CR_ENTROPY];
    loss_ctx *l = ctx;

    (void)e;
    for (size_t i = 0; i < num; i++) {
        l->sum -= ((double)log_prob[i] + 0.1 * (double)entropy[i]) / l->total;
        grad_log_prob[i] = l->is_inf ? INFINITY : (float)(-1 / l->total);
        grad_entropy[i] = (float)(-0.1 / l->total);
    }
    return CR_OK;
}

#endif
