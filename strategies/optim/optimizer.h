/* optimizer.h -- what an update does to each trained parameter: its group, and its learning rate and weight decay (strategies.h).
 *
 * A rule names parameters as lora_target names modules: names or ends of them after a dot, with commas between; or, with one
 * of * $ | ( in it, a regular expression of whole names. The first rule that matches a parameter has it; what no rule
 * matches is as cr_fsdp_args says. A pure function, the same on every rank.
 *
 * Muon (muon.c), if it is on, has the matrices: weights of Linears and experts, each a matrix, but for the vocabulary head,
 * tables of embeddings, value heads and adapters. All else, and what a rule says, is AdamW's.
 */
#ifndef CR_OPTIMIZER_H
#define CR_OPTIMIZER_H

#include "models/models.h"

typedef struct cr_param_rule {
    const char *params;
    double lr_scale;     /* its learning rate is that of the update times this */
    double weight_decay; /* below 0: as all others */
    bool is_adamw;       /* also of matrices that Muon would have */
} cr_param_rule;

/* As torch.optim.Muon, but its Newton-Schulz steps are in float32 (torch's are in bfloat16). */
typedef enum cr_adjust_lr { CR_ADJUST_RMS, CR_ADJUST_ORIGINAL, CR_ADJUST_SPECTRAL } cr_adjust_lr;
typedef struct cr_muon_options {
    bool is_on, is_nesterov;
    double lr_scale, weight_decay; /* as of a rule */
    double momentum, eps;
    int64_t ns_steps;
    cr_adjust_lr adjust_lr;
} cr_muon_options;

enum { CR_MAX_PARAM_RULES = 32 };
typedef struct cr_optimizer_options {
    cr_param_rule rules[CR_MAX_PARAM_RULES]; /* texts are borrowed */
    size_t num_rules;
    cr_muon_options muon;
} cr_optimizer_options;

typedef struct cr_param_choice {
    int rule; /* -1: none */
    double lr_scale, weight_decay;
    bool is_muon;
} cr_param_choice;

/* Of each of model->params, in memory of the caller; trained ones count. weight_decay: of parameters without a rule that has one. CR_ECONFIG: a rule is no pattern, or matches no trained
 * parameter that an earlier one has left, with the nearest name; Muon has nothing. */
CR_MUST cr_status cr_optimizer_choose(const cr_model *model, const cr_optimizer_options *options,
                                      double weight_decay, cr_param_choice *out, cr_err *err);
/* A line for each rule and one for the rest: rate, decay, and the names of its parameters, with * for numbers of layers. lr: of an
 * update. */
void cr_optimizer_write(const cr_model *model, const cr_optimizer_options *options,
                        const cr_param_choice *choices, double lr, cr_buf *out);

#endif
