/* best.c -- see best.h. */
#include "pipelines/best/best.h"
#include "pipelines/checkpoint.h"

#include <math.h>

cr_status cr_best_see(cr_best *b, const cr_best_keys *keys, const cr_metrics *m, const char *head,
                      int64_t step, bool is_counted, bool *is_new, cr_err *err)
{
    char *name = cr_asprintf("%s%s", head, keys->metric);
    const double *x = cr_metrics_get(m, name);
    bool is_better;

    *is_new = false;
    cr_free(name);
    if (!x || isnan(*x))
        return cr_fail(
            err, CR_ECONFIG,
            "metric_for_best_model: a validation has no number %s (val_correct/all/mean, "
            "val_score/all/mean, val_pass@2/all, .. are some of rlvr, sft_train/val_loss of sft, "
            "val/loss and val/rewards/accuracies of dpo: metrics.jsonl has all)",
            keys->metric);
    is_better = !b->has_value || (keys->is_greater_better ? *x > b->value : *x < b->value);
    if (is_counted)
        b->num_worse = is_better && (!b->has_value || fabs(*x - b->value) > keys->threshold)
                           ? 0
                           : b->num_worse + 1;
    if (!is_better) return CR_OK;
    *is_new = true;
    b->has_value = true;
    b->value = *x;
    b->step = step;
    return CR_OK;
}

bool cr_best_should_stop(const cr_best *b, const cr_best_keys *keys)
{
    return keys->metric && keys->patience > 0 && b->num_worse >= keys->patience;
}

cr_status cr_best_validated(cr_best *b, cr_saver *saver, const cr_metrics *m, const char *head,
                            int64_t step, bool *is_last, cr_err *err)
{
    const cr_config *c = saver->run->config;
    bool is_new;

    *is_last = false;
    if (!c->best.metric) return CR_OK;
    CR_TRY(cr_best_see(b, &c->best, m, head, step, !*head, &is_new, err));
    if (is_new && step >= 0) {
        CR_TRY(cr_saver_wait(saver, err));
        CR_TRY(cr_checkpoint_link(c->checkpoint_dir, "best", step, err));
    }
    *is_last = !*head && cr_best_should_stop(b, &c->best);
    if (*is_last)
        cr_log(CR_LOG_INFO, cr_pipeline_names[c->kind],
               "%s has not been better than %g for %lld validations: this is the last step "
               "(early_stopping_patience)",
               c->best.metric, b->value, (long long)b->num_worse);
    return CR_OK;
}

bool cr_best_has_ended(const cr_best *b, const cr_config *config)
{
    if (!cr_best_should_stop(b, &config->best)) return false;
    cr_log(CR_LOG_WARN, cr_pipeline_names[config->kind],
           "%s had not been better for %lld validations when this run was saved: nothing is "
           "trained (a larger early_stopping_patience goes on)",
           config->best.metric, (long long)b->num_worse);
    return true;
}

bool cr_best_needs_save(const cr_config *config, int64_t step)
{
    return config->best.metric && (step + 1) % config->eval_steps == 0;
}

/* ---- checkpoints ---- */

void cr_best_put(const cr_best *b, json_t *root)
{
    if (b->has_value)
        json_object_set_new(root, "best",
                            json_pack("{s:f,s:I,s:I}", "value", b->value, "step",
                                      (json_int_t)b->step, "worse", (json_int_t)b->num_worse));
}

static bool is_int(const json_t *v, int64_t min)
{
    return json_is_integer(v) && json_integer_value(v) >= min &&
           json_integer_value(v) < (int64_t)1 << 53;
}

cr_status cr_best_get(cr_best *b, const json_t *root, cr_err *err)
{
    const json_t *best = json_object_get(root, "best"), *step = json_object_get(best, "step"),
                 *value = json_object_get(best, "value"), *worse = json_object_get(best, "worse");

    *b = (cr_best){0};
    if (!best) return CR_OK; /* no validation was looked at */
    if (!is_int(step, -1) || !is_int(worse, 0) || !json_is_number(value) ||
        !isfinite(json_number_value(value)))
        return cr_fail(err, CR_EFORMAT, "\"best\" has no value, step or count");
    *b = (cr_best){true, json_number_value(value), json_integer_value(step),
                   json_integer_value(worse)};
    return CR_OK;
}
