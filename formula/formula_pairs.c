/* formula_pairs.c -- losses over pairs of answers, and distillation of distributions (see formula_impl.h). */
#include "formula/formula_impl.h"
#include "rl/distill.h"
#include "rl/pairs.h"

/* ---- dpo ---- */

static cr_status read_pair_config(cri_formula_request *r, const json_t *config, cr_pair_config *c,
                                  cr_err *err)
{
    int kind = CR_PAIR_SIGMOID;
    const cri_formula_field fields[] = {
        {"loss_type", CRI_F_CHOICE, 0, &kind, cr_pair_loss_names},
        {"beta", CRI_F_NUMBER, CRI_F_POSITIVE, &c->beta, NULL},
        {"label_smoothing", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->label_smoothing, NULL},
        {"rpo_alpha", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->rpo_alpha, NULL},
    };

    CR_TRY(CRI_READ(r, config, "config.", fields, err));
    c->loss_type = (cr_pair_loss)kind;
    if (c->loss_type == CR_PAIR_ROBUST && c->label_smoothing >= 0.5)
        return cr_fail(err, CR_EARG, "config.label_smoothing: below 0.5 for robust");
    return CR_OK;
}

cr_status cri_formula_dpo(cri_formula_request *r, const json_t *body, cri_formula_answer *a)
{
    cr_pair_config c = {.beta = 0.1};
    cr_pair_args args = {0};
    const json_t *config = NULL;
    const cri_formula_field fields[] = {
        {"log_probs", CRI_F_ROWS, CRI_F_REQUIRED, &args.log_probs, NULL},
        {"ref_log_probs", CRI_F_ROWS, CRI_F_REQUIRED, &args.ref, NULL},
        {"config", CRI_F_VALUE, 0, &config, NULL},
    };

    CR_TRY(CRI_READ(r, body, "", fields, a->err));
    CR_TRY(read_pair_config(r, config, &c, a->err));
    if (r->rows.num_samples % 2)
        return cr_fail(a->err, CR_EARG, "log_probs: a chosen and a rejected answer in turn");
    args.rows = r->rows;
    args.num_pairs = (double)(r->rows.num_samples / 2);
    for (size_t i = 0; i < r->rows.num_samples; i += 2)
        args.num_chosen_tokens += (double)(r->rows.start[i + 1] - r->rows.start[i]);
    args.grad = cri_tokens(r);
    cr_pair_losses(&c, &args);
    cri_put_number(a, "loss", args.metrics.loss);
    cri_put_number(a, "nll_loss", args.metrics.nll);
    cri_put_number(a, "rewards/chosen", args.metrics.chosen);
    cri_put_number(a, "rewards/rejected", args.metrics.rejected);
    cri_put_number(a, "rewards/accuracies", args.metrics.accuracies);
    cri_put_rows(a, "grad_log_probs", &r->rows, args.grad);
    return a->err->status;
}

/* ---- distill ---- */

static cr_status read_kd_config(cri_formula_request *r, const json_t *config, cr_kd_config *c,
                                cr_err *err)
{
    int kind = CR_KD_FORWARD_KL;
    double topk = (double)c->logits_topk;
    const cri_formula_field fields[] = {
        {"kd_objective", CRI_F_CHOICE, 0, &kind, cr_kd_names},
        {"logits_topk", CRI_F_COUNT, 0, &topk, NULL},
        {"is_tail", CRI_F_FLAG, 0, &c->is_tail, NULL},
        {"kd_temperature", CRI_F_NUMBER, CRI_F_POSITIVE, &c->kd_temperature, NULL},
        {"teacher_temperature", CRI_F_NUMBER, CRI_F_POSITIVE, &c->teacher_temperature, NULL},
        {"adaptive_kl_alpha", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->adaptive_kl_alpha, NULL},
        {"skew_lambda", CRI_F_NUMBER, CRI_F_NONNEGATIVE, &c->skew_lambda, NULL},
    };

    CR_TRY(CRI_READ(r, config, "config.", fields, err));
    c->kd_objective = (cr_kd)kind;
    c->logits_topk = (size_t)topk;
    return CR_OK;
}

cr_status cri_formula_distill(cri_formula_request *r, const json_t *body, cri_formula_answer *a)
{
    cr_kd_config c = {.logits_topk = 64,
                      .is_tail = true,
                      .kd_temperature = 1,
                      .teacher_temperature = 1,
                      .adaptive_kl_alpha = 0.5,
                      .skew_lambda = 0.1};
    const double *teacher = NULL, *student = NULL;
    double *losses, *grad;
    const json_t *config = NULL;
    const cri_formula_field fields[] = {
        {"teacher", CRI_F_ROWS, CRI_F_REQUIRED, &teacher, NULL},
        {"student", CRI_F_ROWS, CRI_F_REQUIRED, &student, NULL},
        {"config", CRI_F_VALUE, 0, &config, NULL},
    };

    CR_TRY(CRI_READ(r, body, "", fields, a->err));
    CR_TRY(read_kd_config(r, config, &c, a->err));
    losses = cri_numbers(r, r->rows.num_samples);
    grad = cri_tokens(r);
    for (size_t i = 0; i < r->rows.num_samples; i++) {
        size_t first = r->rows.start[i], vocab = r->rows.start[i + 1] - first;
        if (vocab)
            losses[i] = cr_kd_position(&c, vocab, teacher + first, student + first, grad + first);
    }
    cri_put_list(a, "losses", losses, r->rows.num_samples);
    cri_put_rows(a, "grad_student", &r->rows, grad);
    return a->err->status;
}
