/* worker.h -- a role's block (actor_train, actor_infer, reference, critic, validation, sft_train), by topic.
 * Part of configs.h.
 */
#ifndef CR_WORKER_CONFIG_H
#define CR_WORKER_CONFIG_H

#include "base/base.h"
#include "configs/choices.h"
#include "configs/generation/generation.h"
#include "configs/training/training.h"
#include "rl/rl.h"

/* A column of a row that is made of others, or of a text (data_args.columns, docs/data.md). */
typedef struct cr_data_column_part {
    char *path;  /* into the row; NULL: value is given */
    char *value; /* the same text for every row */
    char *after; /* only what comes after the last place where this stands; NULL: all */
    char *role; /* the text is the content of a chat's message of this role; NULL: it is as it is */
} cr_data_column_part;

typedef struct cr_data_column {
    char *name;
    bool is_list; /* the parts are lists, joined to one */
    cr_data_column_part *parts;
    size_t num_parts; /* 1 if !is_list */
} cr_data_column;

typedef struct cr_data_args {
    char **file_names;
    size_t num_file_names;
    char *template;
    char *messages, *prompt, *tag; /* names of columns; messages, prompt: NULL: none */
    bool drops_unknown_tags, drops_broken_images, has_white_alpha;
    char *image_folder; /* where paths of images begin, or NULL */
    int64_t image_min_pixels,
        image_max_pixels; /* of a resized image; 0: as the model folder has it */
    int64_t video_min_pixels, video_max_pixels; /* likewise, of a video */
    double video_fps;                           /* of frames that do not say theirs; 0: as usual */
    cr_data_column *columns;
    size_t num_columns;
} cr_data_args;

/* Which modules are units (wrap_policy), and which are experts. */
typedef struct cr_wrap_args {
    bool embeddings, lm_output, nested;
    char **classes, **modules, **moe_experts;
    size_t num_classes, num_modules, num_moe_experts; /* 0: the model's own; none */
    int64_t min_params;
} cr_wrap_args;

/* Of generation. */
typedef struct cr_engine_args {
    int64_t max_model_len;         /* 0: from lengths */
    double gpu_memory_utilization; /* share of the memory for the KV cache; 0: not given */
    int64_t sleep_level; /* of an idle engine: 1 drops cache and packed weights, 2 all weights */
    bool enforce_eager;  /* its steps are not recorded, on a device that can */
} cr_engine_args;

/* Micro-batches by tokens instead of by samples; 0: not. */
typedef struct cr_batching_args {
    int64_t train_tokens, infer_tokens;
} cr_batching_args;

/* A service that answers instead of processes of the run (docs/serve.md); url NULL: none. Texts are owned. */
typedef struct cr_service_keys {
    char *url, *model;        /* model: its name there, or NULL */
    char *key_file, *key_env; /* where the key is, never the key; or NULL */
    char *ca_file;            /* of https; NULL: the system's */
    char *expect_weights;     /* SHA-256, or its beginning; NULL: those that it has at the start */
    double timeout;           /* s for the answers of a step, with all tries */
    int64_t connections;      /* requests at once */
} cr_service_keys;

/* LoRA (docs/lora.md), as cr_adapter_options; target and folder NULL: none. */
typedef struct cr_lora_keys {
    char *target, *folder, *saved; /* saved: additional_target, or NULL */
    bool keeps_originals;          /* of the trainer: a reference is it with adapters off */
    int64_t rank;                  /* of a folder 0, unless it is given, and so is alpha */
    double alpha;
    bool use_rslora;
    double dropout; /* -1: as the folder says */
} cr_lora_keys;

static inline bool cr_is_lora(const cr_lora_keys *l)
{
    return l->target || l->folder;
}

/* What the ranks of a block do. */
typedef enum cr_task {
    CR_TASK_TRAIN,    /* an optimizer and the commands of training: fsdp2_train */
    CR_TASK_GENERATE, /* an engine with a copy of the trained weights */
    CR_TASK_SCORE,    /* log-probs of a model of its own: fsdp2_infer */
    CR_TASK_FOLLOW, /* likewise, of a reference that the trained weights come to (sync_ref_model) */
    CR_TASK_VALUE   /* values of a model of its own, and their training: fsdp2_train */
} cr_task;
/* It has a model of its own, which is not the one that trains. */
static inline bool cr_task_scores(cr_task task)
{
    return task == CR_TASK_SCORE || task == CR_TASK_FOLLOW;
}
static inline bool cr_task_trains(cr_task task)
{
    return task == CR_TASK_TRAIN || task == CR_TASK_VALUE;
}

typedef struct cr_worker_config {
    const char *name; /* "actor_train" */
    cr_task task;
    bool is_given, is_needed;                          /* in the file; by the run */
    char *model_path;                                  /* model_args.model_name_or_path */
    cr_choice_dtype dtype, master_dtype, reduce_dtype; /* dtype: of compute */
    char *freeze_module_prefix, *stage;                /* or NULL, and not both */
    cr_lora_keys lora;               /* of actor_train and sft_train; the engine has the same */
    cr_choice_value_head value_head; /* of the critic */
    bool should_recompute;
    double moe_aux_loss_coef; /* -1: as config.json says */
    int64_t infer_batch_size;
    cr_training_args training;
    cr_data_args data;
    cr_generating_args generating;
    cr_domain_generating *domains; /* that draw otherwise: cr_worker_generating */
    size_t num_domains;
    char **envs; /* system_envs: NAME=VALUE, NULL at the end; or NULL */
    cr_batching_args batching;
    cr_service_keys service; /* of the reference: it has no ranks then */
    bool is_of_trainer;      /* likewise: actor_train computes its log-probs, with adapters off */
    /* devices and their strategy */
    int *devices; /* device_mapping evaluated */
    int num_devices;
    bool is_mapped; /* it is given, right or not */
    char *strategy_name;
    cr_choice_strategy strategy;
    cr_wrap_args wrap;
    cr_engine_args engine;
    int64_t ulysses_size, fsdp_size, ep_size, efsdp_size;
    int64_t mlp_tiles;                  /* tiled_num_shards if apply_tiled_mlp, else 0 */
    int reshard_after_forward;          /* -1: default (null), 0, 1 */
    int reshard_ranks;                  /* a whole number was given; 0: none */
    bool is_reshard_auto;               /* plan/run/reshard.h makes null or false of it */
    bool is_offloaded, is_reduced_once; /* reduce_scatter_during_grad_accumulation: false */
    bool apply_expert_patch;            /* experts without tokens are called, too */
    bool save_only_model, async_save_ckpt;
} cr_worker_config;

/* How its samples of a domain (index into cr_config.rewards) are drawn. */
const cr_generating_args *cr_worker_generating(const cr_worker_config *w, int domain);
/* Have both a number of device_mapping? It is then in *device, which may be NULL. */
bool cr_workers_share(const cr_worker_config *a, const cr_worker_config *b, int *device);
/* Ranks with a batch of their own: ulysses_size ranks share one. */
int64_t cr_worker_num_batches(const cr_worker_config *w);
/* What runs, whatever strategy_name the file has: "fsdp2_train", "fsdp2_infer" or "engine" (of generation). */
const char *cr_worker_runs(const cr_worker_config *w);
/* Samples of one optimizer update, on one such rank. */
int64_t cr_worker_batch_samples(const cr_worker_config *w);

#endif
