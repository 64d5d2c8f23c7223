/* strategy_args.h -- from the keys of a worker block to what strategies/ takes. Pure functions; the
 * results borrow the config's texts. */
#ifndef CR_STRATEGY_ARGS_H
#define CR_STRATEGY_ARGS_H

#include "configs/configs.h"
#include "strategies/strategies.h"

/* The kernels' dtype of a key's, in the same order. */
cr_dtype cr_dtype_of(cr_choice_dtype dtype);
cr_wrap_policy cr_wrap_policy_of(const cr_worker_config *w);
/* Whose keys say what the model of a role is: its own of a critic, else those of actor_train. */
const cr_worker_config *cr_model_keys_of(const cr_config *config, const cr_worker_config *w);
/* The model of a role that trains, or has the weights that are trained: with the adapters and the head of its keys. is_trainer: and with what
 * a reference needs that is the trainer with adapters off. */
cr_model_options cr_model_options_of(const cr_worker_config *train, bool is_trainer);
/* Freezes what the training of a run does (its stage, or its prefixes) and sets the precision of the
 * vision tower. Roles that do not train compute as the one that does, so that numbers of the same weights
 * are the same: with should_freeze false nothing is left frozen. Before units are built. */
CR_MUST cr_status cr_model_prepare(cr_model *model, const cr_worker_config *train,
                                   bool should_freeze, cr_err *err);
/* Groups of parameters, and which optimizer each has. */
cr_optimizer_options cr_optimizer_options_of(const cr_training_args *training);
/* All but source, seed and max_grad_norm. is_train: fsdp2_train. */
cr_fsdp_args cr_fsdp_args_of(const cr_worker_config *w, bool is_train);
CR_MUST cr_status cr_mesh_shape_of(const cr_worker_config *w, int num_ranks, cr_mesh_shape *out,
                                   cr_err *err);
/* apply_expert_patch and ep_size: which experts the model calls. keys NULL: the model runs whole on one rank and has
 * no collectives to match. */
void cr_experts_set(cr_model *model, const cr_worker_config *keys);
/* Weight of the routers' auxiliary loss of a micro-batch with this share of the loss's tokens: the
 * factor is moe_aux_loss_coef, or config.json's own if that asks for router logits. */
float cr_aux_weight(const cr_model *model, const cr_worker_config *keys, double share);

#endif
