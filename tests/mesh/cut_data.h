/* cut_data.h -- a tiny model and its sequences, for cut.h. */
#ifndef CUT_DATA_H
#define CUT_DATA_H

#include "base/rng.h"
#include "strategies/fsdp_impl.h"
#include "tests/model_bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define OK(expr) CR_CHECK((expr) == CR_OK, "%s", err.msg)

enum {
    NUM_SEQS = 9,
    MAX_LEN = 19,
    VOCAB = 61,
    MAX_LABELS = NUM_SEQS * MAX_LEN,
    MAX_ROWS = 2 * MAX_LABELS /* with padding */
};

static cr_err err;
static cr_world *world;
static cr_group *everyone;
static int me;

typedef struct cut {
    int ranks, fsdp, ulysses; /* fsdp 0: all of them */
    int micro;                /* samples of one forward */
    int budget;               /* not 0: tokens of one forward instead */
    int pack;                 /* sequences of a sample; 0: 1 */
    int heads, kv_heads;
    bool is_recomputed, has_bias;
    cr_reshard reshard;
    cr_dtype dtype;
    int num_tiles;
    int shortest;            /* sequence */
    int start;               /* position of the first token */
    int pad_left, pad_right; /* tokens around each sequence that are not asked for */
    bool is_one_token;       /* a sequence repeats one token: all its rows have one route */
    cr_loss_fn loss;         /* of a cut_loss; NULL: cut_loss_fn */
    int ep, efsdp;           /* expert axes; ep 0, 1: none */
    bool is_moe, is_tied, is_offloaded, is_reduced_once;
    const char *adapters, *saved; /* lora_target, additional_target; NULL: all is trained, none */
    int target, words, rank;      /* their numbers (cut_matrix.c) */
    cr_wrap_policy wrap;
} cut;

typedef struct cut_result {
    const cr_model *model; /* while it runs */
    float *grad;           /* trained parameters one after another; on rank 0 of the cut */
    size_t num_grad;
    double loss, norm;                               /* of all ranks */
    float log_prob[MAX_LABELS], entropy[MAX_LABELS]; /* of the rows this rank was given; else NaN */
    cr_fsdp_stats stats;
} cut_result;

static cr_model *cut_model(const cut *c)
{
    const char *type = c->is_moe ? "qwen3_moe" : c->has_bias ? "qwen2" : "qwen3";
    const char *cls = c->is_moe ? "Qwen3Moe" : c->has_bias ? "Qwen2" : "Qwen3";
    const cr_model_options options = {.adapters = {.target = c->adapters,
                                                   .rank = c->rank,
                                                   .alpha = 2 * c->rank,
                                                   .saved = c->saved,
                                                   .keeps_originals = true}};
    char text[900];
    cr_model *model;

    snprintf(text, sizeof text,
             "{\"architectures\":[\"%sForCausalLM\"],\"model_type\":\"%s\",\"vocab_size\":%d,"
             "\"hidden_size\":32,\"intermediate_size\":44,\"num_hidden_layers\":2,"
             "\"num_attention_heads\":%d,\"num_key_value_heads\":%d%s%s,"
             "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"
             "\"initializer_range\":0.1,\"tie_word_embeddings\":%s,\"torch_dtype\":\"float32\"}",
             cls, type, VOCAB, c->heads, c->kv_heads, c->has_bias ? "" : ",\"head_dim\":8",
             c->is_moe
                 ? ",\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":24,"
                   "\"norm_topk_prob\":true"
                 : "",
             c->is_tied ? "true" : "false");
    OK(build_model_with(text, &options, &model, &err));
    for (size_t i = 0; c->adapters && i < model->num_params; i++) { /* B = 0: A has no gradient */
        cr_param *p = model->params[i];
        if (!p->is_trainable || p->init != CR_INIT_ZEROS) continue;
        p->init = CR_INIT_UNIFORM;
        p->init_std = 0.3F;
    }
    return model;
}

typedef struct cut_batch {
    int32_t ids[MAX_ROWS], positions[MAX_ROWS], labels[MAX_ROWS], cu[2 * NUM_SEQS + 1];
    int first_label[2 * NUM_SEQS]; /* of each sequence of the batch, among all of the data */
    cr_batch b;
} cut_batch;

static int cut_length(const cut *c, int seq)
{
    uint32_t w[4];

    cr_rng_philox(7, CR_RNG_TEST, 0, (uint64_t)seq, w);
    return c->shortest + (int)(w[0] % (uint32_t)(MAX_LEN + 1 - c->shortest));
}

/* Labels of a sequence: all but the first row's. */
static int cut_num_labels(const cut *c, int seq)
{
    int num = cut_length(c, seq);

    return num > 2 ? num - 2 : 0;
}

static void cut_row(cut_batch *x, int id, int position)
{
    x->ids[x->b.num_tokens] = id;
    x->positions[x->b.num_tokens] = position;
    x->labels[x->b.num_tokens++] = -1;
}

static void cut_end_sequence(cut_batch *x, int label)
{
    x->first_label[x->b.num_seqs++] = label;
    x->cu[x->b.num_seqs] = (int32_t)x->b.num_tokens;
    x->cu[0] = 0;
    x->b = (cr_batch){x->ids, x->positions, x->labels, x->cu, x->b.num_tokens, x->b.num_seqs};
}

/* Padding on the left is a sequence of its own; on the right nothing before it sees it. */
static void cut_append(const cut *c, cut_batch *x, int seq)
{
    int num = cut_length(c, seq), label = 0;
    uint32_t w[4];

    for (int s = 0; s < seq; s++)
        label += cut_num_labels(c, s);
    for (int t = 0; t < c->pad_left; t++)
        cut_row(x, 0, 0);
    if (c->pad_left) cut_end_sequence(x, label);
    for (int t = 0; t < num; t++) {
        cr_rng_philox(7, CR_RNG_TEST, 1, (uint64_t)(seq * 1000 + (c->is_one_token ? 0 : t)), w);
        cut_row(x, (int)(w[0] % VOCAB), c->start + t);
        if (t > 1) x->labels[x->b.num_tokens - 2] = (int)(w[0] % VOCAB);
    }
    for (int t = 0; t < c->pad_right; t++)
        cut_row(x, 0, c->start + num + t);
    cut_end_sequence(x, label);
}

#endif
