/* strategy_args.c -- see strategy_args.h. */
#include "actors/strategy_args.h"
#include "mesh/mesh.h"

cr_dtype cr_dtype_of(cr_choice_dtype dtype)
{
    _Static_assert((int)CR_CHOICE_FP32 == (int)CR_F32 && (int)CR_CHOICE_BF16 == (int)CR_BF16 &&
                       (int)CR_CHOICE_FP16 == (int)CR_F16,
                   "the dtypes of keys are in the order of the kernels'");
    return (cr_dtype)dtype;
}

static const char *const *classes_of(char **names, size_t num)
{
    return num ? (const char *const *)names : NULL;
}

cr_wrap_policy cr_wrap_policy_of(const cr_worker_config *w)
{
    return (cr_wrap_policy){.classes = classes_of(w->wrap.classes, w->wrap.num_classes),
                            .num_classes = w->wrap.num_classes,
                            .should_wrap_embeddings = w->wrap.embeddings,
                            .should_wrap_lm_output = w->wrap.lm_output,
                            .is_nested = w->wrap.nested,
                            .modules = classes_of(w->wrap.modules, w->wrap.num_modules),
                            .num_modules = w->wrap.num_modules,
                            .min_elems = w->wrap.min_params,
                            .expert_classes =
                                classes_of(w->wrap.moe_experts, w->wrap.num_moe_experts),
                            .num_expert_classes = w->wrap.num_moe_experts};
}

const cr_worker_config *cr_model_keys_of(const cr_config *config, const cr_worker_config *w)
{
    return w->task == CR_TASK_VALUE ? w : &config->train;
}

cr_model_options cr_model_options_of(const cr_worker_config *train, bool is_trainer)
{
    const cr_lora_keys *l = &train->lora;

    static const cr_head_kind heads[] = {CR_HEAD_WORDS, CR_HEAD_VALUE_TRL, CR_HEAD_VALUE,
                                         CR_HEAD_SCORE};

    return (cr_model_options){.head = heads[train->value_head],
                              .adapters = {.target = l->target,
                                           .rank = l->rank,
                                           .alpha = l->alpha,
                                           .use_rslora = l->use_rslora,
                                           .folder = l->folder,
                                           .saved = l->saved,
                                           .keeps_originals = is_trainer && l->keeps_originals,
                                           .dropout = l->dropout}};
}

cr_status cr_model_prepare(cr_model *model, const cr_worker_config *train, bool should_freeze,
                           cr_err *err)
{
    if (!should_freeze && !model->tower) return CR_OK;
    CR_TRY(train->stage ? cr_model_freeze_stage(model, train->stage, err)
                        : cr_model_freeze(model, train->freeze_module_prefix, err));
    cr_model_set_precision(model);
    for (size_t i = 0; i < model->num_params && !should_freeze; i++)
        model->params[i]->is_trainable = true;
    return CR_OK;
}

cr_optimizer_options cr_optimizer_options_of(const cr_training_args *t)
{
    _Static_assert((int)CR_CHOICE_SPECTRAL_UNCLAMPED == (int)CR_ADJUST_SPECTRAL &&
                       (int)CR_CHOICE_ORIGINAL == (int)CR_ADJUST_ORIGINAL,
                   "adjust_lr_fn is in the order of the optimizer's");
    cr_optimizer_options out = {.num_rules = t->num_param_groups};
    const cr_muon_keys *m = &t->muon;

    CR_CHECK(out.num_rules <= CR_MAX_PARAM_RULES, "%zu groups of parameters", out.num_rules);

    for (size_t i = 0; i < out.num_rules; i++) {
        const cr_param_group *g = &t->param_groups[i];
        const double scale = g->learning_rate < 0 ? 1 : g->learning_rate / t->learning_rate;
        out.rules[i] = (cr_param_rule){g->params, scale, g->weight_decay, g->is_adamw};
    }
    if (!m->is_on) return out;
    out.muon = (cr_muon_options){.is_on = true,
                                 .is_nesterov = m->nesterov,
                                 .lr_scale =
                                     m->learning_rate < 0 ? 1 : m->learning_rate / t->learning_rate,
                                 .weight_decay = m->weight_decay,
                                 .momentum = m->momentum,
                                 .eps = m->eps,
                                 .ns_steps = m->ns_steps,
                                 .adjust_lr = (cr_adjust_lr)m->adjust_lr_fn};
    return out;
}

cr_fsdp_args cr_fsdp_args_of(const cr_worker_config *w, bool is_train)
{
    return (cr_fsdp_args){.is_train = is_train,
                          .param_dtype = cr_dtype_of(w->dtype),
                          .master_dtype = cr_dtype_of(w->master_dtype),
                          .reduce_dtype =
                              w->reduce_dtype == CR_CHOICE_BF16 ? CR_REDUCE_BF16 : CR_REDUCE_F32,
                          .reshard = w->reshard_after_forward < 0 ? CR_RESHARD_DEFAULT
                                     : w->reshard_after_forward   ? CR_RESHARD_ALWAYS
                                                                  : CR_RESHARD_NEVER,
                          .reshard_ranks = w->reshard_ranks,
                          .is_reduced_once = w->is_reduced_once,
                          .is_offloaded = w->is_offloaded,
                          .should_recompute = w->should_recompute,
                          .mlp_tiles = w->mlp_tiles,
                          .loss_scale = is_train && w->dtype == CR_CHOICE_FP16 ? 65536 : 0,
                          .loss_scale_interval = 400, /* ROLL's */
                          .wrap = cr_wrap_policy_of(w),
                          .beta1 = w->training.adam_beta1,
                          .beta2 = w->training.adam_beta2,
                          .eps = w->training.adam_epsilon,
                          .weight_decay = w->training.weight_decay,
                          .optimizer = cr_optimizer_options_of(&w->training)};
}

cr_status cr_mesh_shape_of(const cr_worker_config *w, int num_ranks, cr_mesh_shape *out,
                           cr_err *err)
{
    return cr_mesh_shape_init(out, num_ranks, (int)w->fsdp_size, (int)w->ulysses_size,
                              (int)w->ep_size, w->ep_size > 1 ? (int)w->efsdp_size : 0, err);
}

void cr_experts_set(cr_model *model, const cr_worker_config *keys)
{
    model->skips_idle_experts = !keys || (!keys->apply_expert_patch && keys->ep_size <= 1);
}

float cr_aux_weight(const cr_model *model, const cr_worker_config *keys, double share)
{
    const cr_model_config *c = &model->config;
    double factor = keys->moe_aux_loss_coef;

    if (factor < 0) factor = c->wants_aux_loss ? (double)c->router_aux_loss_coef : 0;
    return c->num_experts ? (float)(factor * share) : 0;
}
