/* best.c -- metric_for_best_model and early stopping. */
#include "configs/bind.h"

#include <string.h>

static const char *const standard[] = {[CR_PIPELINE_RLVR] = "val_correct/all/mean",
                                       [CR_PIPELINE_SFT] = "sft_train/val_loss",
                                       [CR_PIPELINE_DPO] = "val/loss",
                                       [CR_PIPELINE_DISTILL] = "student/val_loss"};

/* As Transformers: a loss is better if it is less. */
static bool is_greater_better(const char *metric)
{
    const size_t num = strlen(metric);

    return num < 4 || strcmp(metric + num - 4, "loss") != 0;
}

void cri_bind_best(cr_config *c, const cr_node *root, cr_diagnostics *d)
{
    cr_best_keys *b = &c->best;
    const bool has_patience = cri_is_given(root, "early_stopping_patience"),
               is_off = c->val_only || c->rollouts_from;

    b->metric = cri_text_of(root, "metric_for_best_model");
    if (!b->metric && has_patience) b->metric = cr_strdup(standard[c->kind]);
    if (!b->metric || is_off) {
        if (cri_is_in_file(root, "early_stopping_threshold") && !is_off)
            cr_diagnose_unused(d, cr_node_get(root, "early_stopping_threshold")->place,
                               "early_stopping_threshold", "there is no early_stopping_patience");
        cr_free(b->metric);
        b->metric = NULL;
        return;
    }
    b->is_greater_better = cri_is_given(root, "greater_is_better")
                               ? cri_flag_of(root, "greater_is_better")
                               : is_greater_better(b->metric);
    b->patience = cri_int_of(root, "early_stopping_patience");
    b->threshold = cri_real_of(root, "early_stopping_threshold");
    if (!c->has_validation)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "metric_for_best_model"),
                    "metric_for_best_model is of validations, and this run has no validation (give "
                    "validation)");
    if (c->kind == CR_PIPELINE_RLVR && c->model_update_frequency != 1)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "metric_for_best_model"),
                    "metric_for_best_model needs model_update_frequency 1: else validations are "
                    "not of a checkpoint's weights");
}
