/* bind.h -- from the checked tree to plain structs: what the files of this room share (configs/ only).
 *
 * read.c takes values out of the tree, worker.c and loss.c fill in a worker block, rlvr.c a pipeline; configs.c
 * calls them. Errors in the file go to the diagnostics, at their place; nothing here fails otherwise.
 */
#ifndef CR_BIND_H
#define CR_BIND_H

#include "configs/schema.h"

/* Values of a map that the schema has checked, which has all defaults; 0 or NULL where the key is null.
 * Texts are the caller's, each with its list. */
char *cri_text_of(const cr_node *map, const char *key);
char **cri_texts_of(const cr_node *map, const char *key, size_t *num);
int64_t cri_int_of(const cr_node *map, const char *key);
double cri_real_of(const cr_node *map, const char *key);
bool cri_flag_of(const cr_node *map, const char *key);
bool cri_is_given(const cr_node *map, const char *key);   /* or has a default */
bool cri_is_in_file(const cr_node *map, const char *key); /* is there, and is not null */

/* Where a key stands; the file's start if it stands nowhere. */
cr_place cri_place_of(const cr_config *c, const char *dotted);
/* Put a derived value into the resolved tree. */
void cri_set_int(cr_config *c, cr_node *map, const char *key, int64_t value);
void cri_set_flag(cr_config *c, cr_node *map, const char *key, bool value);
void cri_set_text(cr_config *c, cr_node *map, const char *key, const char *value);
/* A block that was left out, with all its defaults. */
cr_node *cri_block_of(cr_config *c, cr_node *map, const char *key, const char *block,
                      cr_diagnostics *d);

/* system_envs as NAME=VALUE, NULL at the end; NULL if there are none. A resolved file masks values whose name says
 * that they are secret, so only the run may have one: its processes inherit it. */
char **cri_envs_of(const cr_node *block, bool is_run, cr_diagnostics *d);
/* generation.c */
void cri_bind_generating(const cr_node *g, cr_generating_args *out, cr_diagnostics *d);
void cri_generating_free(cr_generating_args *g);
/* domain_generating_args of a role that generates: after rewards, and once its own lengths are derived. */
void cri_bind_domains(cr_config *c, cr_node *root, cr_worker_config *w, cr_diagnostics *d);
void cri_check_domains(const cr_config *c, cr_diagnostics *d);
/* follow.c: once the reference is placed. */
void cri_bind_follow(cr_config *c, cr_node *root, cr_diagnostics *d);
/* curriculum.c */
void cri_bind_curriculum(cr_config *c, cr_node *root, cr_diagnostics *d);
/* best.c: once validation and rollouts are bound. */
void cri_bind_best(cr_config *c, const cr_node *root, cr_diagnostics *d);
/* tag_to_template; after data_args. */
void cri_bind_templates(cr_config *c, const cr_node *root, cr_diagnostics *d);
/* schedule.c, groups.c: of training_args; after learning_rate. */
void cri_bind_schedule(const cr_node *block, cr_training_args *t, cr_diagnostics *d);
void cri_bind_optimizer(cr_config *c, cr_node *block, cr_training_args *t, cr_diagnostics *d);
void cri_bind_param_groups(const cr_node *block, cr_training_args *t, cr_diagnostics *d);
/* Once all else of the role is bound. */
void cri_check_optimizer(const cr_worker_config *w, const cr_node *block, cr_diagnostics *d);
void cri_training_free(cr_training_args *t);
/* Notes on whole blocks that a role does not read. */
void cri_note_unused(const cr_node *root, cr_diagnostics *d);
/* Everything of the block `name` of root; nothing if it is absent. */
void cri_bind_worker(cr_config *c, cr_node *root, const char *name, cr_worker_config *w,
                     cr_task task, cr_diagnostics *d);
/* Of a reward block that has a model: task, infer_batch_size and (a reward model) value_head are set. */
void cri_bind_reward_worker(cr_config *c, cr_node *block, const char *domain, cr_worker_config *w,
                            cr_diagnostics *d);
/* reward_model.c: of a block with that rule. */
void cri_bind_reward_model(cr_config *c, cr_node *block, cr_reward_config *r, cr_diagnostics *d);
/* service.c: `service` of a role. True: the service does its work, and nothing else of the block counts. */
bool cri_bind_service(const cr_node *block, cr_worker_config *w, cr_diagnostics *d);
void cri_check_service_keys(const cr_node *n, const cr_service_keys *s, const char *where,
                            cr_diagnostics *d);
/* judge.c: judge of a domain, and ROLL's keys of the same meaning; before its rule is looked for. */
void cri_bind_judge(cr_config *c, cr_node *block, cr_reward_config *r, cr_diagnostics *d);
/* rewards.c: weights, rules that are terms of a sum; once all are bound, blocks that share a tag. */
void cri_bind_terms(cr_config *c, cr_node *block, cr_reward_config *r, cr_diagnostics *d);
void cri_check_shared(cr_config *c, cr_node *root, cr_diagnostics *d);
/* How programs of a domain are run; after its rule is known. */
void cri_bind_code(cr_config *c, cr_node *block, cr_reward_config *r, cr_diagnostics *d);
/* Its log-probs are those that this run wants. */
void cri_check_service(cr_config *c, cr_diagnostics *d);
/* loss.c: the policy loss (its variant is of actor_train), and micro-batches by tokens of a worker. */
void cri_bind_loss(const cr_node *root, cr_loss_config *l, cr_diagnostics *d);
/* Notes on keys of the loss in a block that has none. */
void cri_note_loss(const cr_node *block, const char *role, cr_diagnostics *d);
void cri_bind_batching(const cr_node *block, cr_worker_config *w, cr_diagnostics *d);
/* Whether a sample fits into a micro-batch, once lengths are known. */
void cri_check_batching(const cr_config *c, const cr_worker_config *w, cr_diagnostics *d);
void cri_bind_correction(cr_config *c, cr_node *root, cr_correction_config *k, cr_diagnostics *d);
/* Settings of the loss that exclude each other, and what critic_warmup means here. */
void cri_check_loss(const cr_config *c, cr_diagnostics *d);
/* columns.c: data_args.columns; NULL: none. */
cr_data_column *cri_columns_of(const cr_node *block, size_t *num, cr_diagnostics *d);
void cri_columns_free(cr_data_column *columns, size_t num);
/* data_args that validation does not give itself are those of training. */
void cri_bind_validation(cr_config *c, cr_node *root, const char *train, cr_diagnostics *d);
/* opd.c: before the schema, other shapes of the same: student_train, student_infer, a list of one teacher; before the
 * algorithm, what is_pure_opd means for its keys; after the workers, distillation. */
void cri_read_opd(cr_yaml *yaml, cr_diagnostics *d);
void cri_fix_pure_opd(cr_config *c, cr_node *root, cr_diagnostics *d);
void cri_bind_opd(cr_config *c, cr_node *root, cr_diagnostics *d);
/* critic.c: model_type; after opd.c, who needs the critic, and keys that only it reads. */
void cri_bind_value_head(const cr_node *model, cr_worker_config *w, cr_diagnostics *d);
void cri_bind_critic(cr_config *c, cr_node *root, cr_diagnostics *d);
/* engines.c: before the schema, strategy blocks of Megatron-Core and DeepSpeed as fsdp2, if as_fsdp2 asks for it. */
void cri_map_engines(cr_config *c, cr_diagnostics *d);
bool cri_is_mappable(const char *strategy_name); /* it would map that strategy */
/* A pipeline's own keys and roles: rlvr.c, rows.c. */
void cri_load_rlvr(cr_config *c, cr_node *root, cr_diagnostics *d);
void cri_load_sft(cr_config *c, cr_node *root, cr_diagnostics *d);
void cri_load_dpo(cr_config *c, cr_node *root, cr_diagnostics *d);
void cri_load_distill(cr_config *c, cr_node *root, cr_diagnostics *d);
/* rlvr.c, also of dpo: models of roles whose blocks name none; where a reference that is needed runs. */
void cri_derive_models(cr_config *c, cr_node *root, cr_diagnostics *d);
void cri_place_reference(cr_config *c, cr_diagnostics *d);

#endif
