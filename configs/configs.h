/* configs.h -- the configuration of a run: one ROLL YAML file, checked as a whole before anything
 * starts.
 *
 * keys.c lists every key once: type, default, range, and who reads it, why it has no effect, or that
 * croll has it not yet. Loading composes
 * the file (yaml.h), checks it against that list and across keys, fills in defaults and derived
 * values, and copies what the program needs into the plain structs below. Keys keep ROLL's names.
 * Keys without effect are accepted with a note that says why; unknown keys are errors.
 *
 * A cr_config owns everything it points to (cr_config_free). Read-only after loading: any thread.
 */
#ifndef CR_CONFIGS_H
#define CR_CONFIGS_H

#include "configs/rows.h"
#include "configs/worker.h"
#include "configs/yaml/yaml.h"
#include "rl/loss.h"
#include "rl/pairs.h"

/* How the reply of a judge says its verdict: YES or NO, or a number from least to most; in the text, in what a pattern
 * matches, or in a field of JSON. */
typedef struct cr_judge_answer {
    char *pattern, *field; /* or NULL, and not both */
    double min, max;
    bool is_number;
} cr_judge_answer;

/* What a format_pattern means: Python's re.match with DOTALL and MULTILINE. */
#define CR_FORMAT_WHOLE "\\A(?ms:%s)"

/* Of the rules format, length, repetition and detection (docs/rewards.md). */
typedef struct cr_reward_terms {
    char *format_pattern; /* NULL: ROLL's, unless there are tags */
    char **format_tags;
    size_t num_format_tags;
    int64_t overlong_tokens, max_response_tokens; /* 0: no overlong_buffer */
    double overlong_factor, repetition_max_penalty;
    int64_t repetition_n_grams, num_steps; /* of the run, for CR_IOU_DYNAMIC */
    int iou_threshold;                     /* a cr_choice_iou, or one after it */
} cr_reward_terms;

/* Of the rule code. */
typedef struct cr_code_keys {
    cr_service_keys service; /* code_url, or no URL */
    bool use_local;          /* even so */
    bool is_open;            /* sandbox: none */
    char *interpreter;
    double case_timeout; /* CPU seconds; twice as many seconds */
    int64_t case_memory_mb;
} cr_code_keys;

typedef struct cr_reward_config {
    char *domain;
    const char *rule;      /* "math_rule": the built-in that worker_cls names; NULL with exec */
    cr_service_keys judge; /* of the rule llm_judge */
    char *judge_prompt, *judge_fields; /* fields: an object of JSON for every request */
    cr_judge_answer judge_answer;
    char *reward_manager; /* reward_manager_config as JSON, for the rule remote */
    /* judge_model_type: inference: the run starts it, a process a device; judge.url: prefix of their sockets' names. model: of the rule
     * reward_model: each reward worker has it whole, on a device of its own. */
    cr_worker_config judge_model, model;
    cr_code_keys code; /* of the rule code */
    char *exec;        /* the words of a program of one's own, or NULL */
    char **tags;
    size_t num_tags;
    int64_t world_size, max_in_flight; /* lines that the program has at once */
    char **envs;                       /* system_envs of workers and program, as a worker's */
    double probability;                /* share of prompts, 0: validation only */
    char *reward_type;                 /* "loose", "soft", "strict", or NULL */
    double response_length_penalty_coef;
    cr_reward_terms terms;
    cr_query_filter filter;
    double weight;            /* of its reward in a sample's sum */
    bool is_failure_left_out; /* on_failure: abstain */
} cr_reward_config;

typedef struct cr_algorithm {
    cr_advantage_config advantage;
    cr_mask_config masks;
    cr_loss_config loss;
    cr_correction_config correction;
    double target_kl, kl_horizon, max_grad_norm, value_clip; /* value_clip 0: off */
    int64_t ppo_epochs, critic_warmup;
    bool has_target_kl, difficulty_loss_weight, length_loss_weight;
} cr_algorithm;

/* Where the log-probs before the updates of a step come from. */
typedef enum cr_old_log_probs {
    CR_OLD_OF_PASS,    /* each update's own first pass: one update a step, or recompute disabled */
    CR_OLD_OF_SAMPLER, /* the sampler's, when the first update finds them equal to its own */
    CR_OLD_RECORDED,   /* the sampler's, also if its weights were older than those that train */
    CR_OLD_COMPUTED    /* a pass over the whole batch before training */
} cr_old_log_probs;

typedef struct cr_exchange_keys {
    char *url;                            /* NULL: an embedded server */
    char *prefix;                         /* NULL: one of the run's own */
    char *ca_file, *cert_file, *key_file; /* TLS; NULL: none */
    double timeout;                       /* s that Redis may be away */
} cr_exchange_keys;

typedef struct cr_config {
    cr_yaml yaml; /* the resolved tree */
    cr_pipeline kind;
    char *checkpoint_dir; /* output_dir, if checkpoint_config has none */
    cr_choice_files checkpoint_hosts;
    char *path, *exp_name, *output_dir, *logging_dir, *tracker_log_dir, *pretrain;
    cr_choice_track track_with;
    char *track_program; /* of CR_TRACK_EXEC */
    int64_t seed, max_steps, save_steps, eval_steps, logging_steps, max_ckpt_to_keep;
    char *device; /* "cpu" or "cuda"; of a resumed run that of the run before, unless given */
    int64_t num_gpus_per_node;       /* 0: not given */
    int64_t max_failed_reward_steps; /* in a row that train nothing, before the run ends; 0: any */
    char *resume, *rollouts_from; /* NULL: no; "": the newest; a path. Whose samples are learned */
    int64_t rollout_batch_size, group_size, prompt_length, sequence_length, max_running_requests;
    int64_t val_prompt_length; /* prompt_length, if it is not given */
    int64_t model_update_frequency;
    bool is_async, enable_old_logprobs_recompute; /* samples a step ahead; as ROLL derives it */
    cr_old_log_probs old_log_probs;
    cr_choice_logprobs logprobs_mode;
    char *global_template, *val_adapter; /* the latter: PEFT's folder of val_only's engines */
    cr_tag_templates templates;
    cr_row_keys rows;
    cr_best_keys best;
    cr_follow_keys follow;
    cr_curriculum_keys curriculum;
    cr_pair_config pairs; /* the loss of dpo */
    cr_distill_keys distill;
    cr_algorithm algorithm;
    cr_worker_config train, infer, reference, teacher, critic, validation;
    cr_worker_config more_teachers[CR_MAX_TEACHERS - 1];
    cr_teacher_keys teachers[CR_MAX_TEACHERS]; /* of teacher and those */
    bool has_validation, val_only; /* val_only: engines with their own weights, no other role */
    bool is_teacher_reference;     /* without a block reference the KL terms are of the teacher */
    cr_reward_config *rewards;
    size_t num_rewards;
    cr_exchange_keys exchange;
    char **envs; /* system_envs of every process, as a worker's */
    double collective_timeout, reward_timeout, rpc_timeout;
} cr_config;

/* ---- roles: one row each; world ranks go to them in the order of the enum ----
 * Another role: a value here, its block in cr_config, a row in roles.c, its key in keys.c. The rest follows from its
 * task: how the block is bound and checked, the commands that the role takes, its part of a plan. */

typedef enum cr_role {
    CR_ROLE_TRAIN,
    CR_ROLE_INFER,
    CR_ROLE_REFERENCE,
    CR_ROLE_TEACHER,
    CR_ROLE_TEACHER_2,
    CR_ROLE_TEACHER_3,
    CR_ROLE_TEACHER_4,
    CR_ROLE_CRITIC,
    CR_NUM_ROLES
} cr_role;
typedef struct cr_role_kind {
    const char *name, *sft_name, *distill_name; /* in rlvr and dpo runs, .. ; NULL: not in one */
    cr_task task;
    size_t worker; /* its block: offset in cr_config */
} cr_role_kind;
extern const cr_role_kind cr_role_kinds[CR_NUM_ROLES];
const char *cr_role_name(cr_role role, const cr_config *config); /* in this kind of run */
/* Its block, borrowed, whether or not the role is in the run. */
cr_worker_config *cr_role_worker(cr_role role, cr_config *config);
/* NULL: the role is not in this run. */
const cr_worker_config *cr_role_in_run(cr_role role, const cr_config *config);

/* Load, check, resolve. All messages are in d; the config is usable iff d has no error and CR_OK is returned (else CR_ECONFIG). */
CR_MUST cr_status cr_config_load(const char *path, const char *const *overrides,
                                 size_t num_overrides, cr_config *out, cr_diagnostics *d,
                                 cr_err *err);
/* The same from the bytes of that file, which need not be there. */
CR_MUST cr_status cr_config_load_text(const char *path, const cr_buf *text, cr_config *out,
                                      cr_diagnostics *d, cr_err *err);
void cr_config_free(cr_config *config);
/* A worker block from key=value words, as `croll logprobs MODEL` takes them; block is "actor_train" or "reference". */
CR_MUST cr_status cr_config_worker(const char *block, const char *model,
                                   const char *const *overrides, size_t num_overrides,
                                   cr_config *out, cr_diagnostics *d, cr_err *err);
/* The resolved file, secrets masked, atomically. */
CR_MUST cr_status cr_config_write(const cr_config *config, const char *path, cr_err *err);
bool cr_reward_takes_many(const cr_reward_config *reward); /* its built-in rule: lines at once */
/* NULL: none. */
const cr_reward_config *cr_config_find_reward(const cr_config *config, const char *domain);
/* Where the judge of a domain is: judge.url, or of a judge of the run the process on device `number`, modulo their number;
 * owned by the caller. */
char *cr_judge_url(const cr_reward_config *reward, int number);

/* Blocks of rewards that score the rows of a tag, as indices, into out[num_rewards]; how many. The first is the rows'
 * domain: the first in the file that has a share of the prompts, else the first of all. The others keep their order. */
size_t cr_config_rewards_of(const cr_config *config, const char *tag, int32_t *out);

/* Of a trained role in the whole run. */
int64_t cr_rlvr_num_updates(const cr_config *config, const cr_worker_config *trained);
/* "list(range(0,8)) + [9]": integers, lists, range, list, +, parentheses. Owned array. */
CR_MUST cr_status cr_device_mapping(const char *text, int **out, int *num, cr_err *err);

#endif
