/* trainer.c -- actor_train, sft_train and reference: passes over records of samples.
 *
 * Flow 5, 7, 8 and 9. A record's samples are `prompts` and `lengths` (tokens of prompt and response) and
 * `ids` (both, joined); per response token whatever the loss needs. Micro-batches are packed from
 * per_device_train_batch_size (or infer_batch_size) samples; all ranks run the same number.
 */
#include "actors/actor.h"
#include "actors/messages.h"
#include "rl/loss.h"

#include <math.h>
#include <string.h>

struct cr_trainer {
    cr_actor *a;
    cr_fsdp *f;
    bool is_train;
    bool is_shared; /* its devices: states leave them behind a command */
    /* the micro-batch that runs */
    int32_t *ids, *positions, *labels, *cu;
    size_t capacity_tokens, capacity_samples;
    double *work; /* per response token, 10 arrays */
    size_t capacity_work;
    size_t *start; /* [capacity_samples + 1] */
};

static cr_status offload(cr_trainer *t, cr_err *err);

cr_status cr_trainer_open(cr_actor *a, cr_trainer **out, cr_err *err)
{
    const cr_worker_config *w = a->ranks->worker;
    cr_trainer *t = CR_NEW(cr_trainer);
    cr_fsdp_args args = cr_fsdp_args_of(w, a->role == CR_ROLE_TRAIN);

    args.source = w->model_path;
    args.seed = (uint64_t)a->config->seed;
    args.max_grad_norm = a->config->algorithm.max_grad_norm;
    *out = NULL;
    t->a = a;
    t->is_train = args.is_train;
    t->is_shared = cr_phase_is_shared(&a->layout, a->role);
    cr_experts_set(a->model, w);
    if (cr_model_prepare(a->model, &a->config->train, t->is_train, err) == CR_OK)
        cr_note(cr_fsdp_create(a->model, a->dev, a->mesh, &args, &t->f, err));
    if (err->status == CR_OK && t->is_shared) cr_note(offload(t, err));
    if (err->status == CR_OK)
        *out = t;
    else
        cr_trainer_close(t);
    return err->status;
}

void cr_trainer_close(cr_trainer *t)
{
    if (!t) return;
    cr_fsdp_destroy(t->f);
    cr_free(t->ids);
    cr_free(t->positions);
    cr_free(t->labels);
    cr_free(t->cu);
    cr_free(t->work);
    cr_free(t->start);
    cr_free(t);
}

/* ---- packing ---- */

static void reserve(cr_trainer *t, size_t tokens, size_t num)
{
    if (tokens > t->capacity_tokens) {
        cr_free(t->ids);
        cr_free(t->positions);
        cr_free(t->labels);
        t->capacity_tokens = tokens + tokens / 4;
        t->ids = CR_NEW_ARRAY(int32_t, t->capacity_tokens);
        t->positions = CR_NEW_ARRAY(int32_t, t->capacity_tokens);
        t->labels = CR_NEW_ARRAY(int32_t, t->capacity_tokens);
    }
    if (num > t->capacity_samples || !t->cu) {
        cr_free(t->cu);
        cr_free(t->start);
        t->capacity_samples = num + 16;
        t->cu = CR_NEW_ARRAY(int32_t, t->capacity_samples + 1);
        t->start = CR_NEW_ARRAY(size_t, t->capacity_samples + 1);
    }
}

/* Samples order[0 .. num-1] as one packed batch; rows that predict a response token have labels. */
static cr_batch pack(cr_trainer *t, const cr_samples *s, const size_t *order, size_t num)
{
    size_t tokens = 0, at = 0;

    for (size_t k = 0; k < num; k++)
        tokens += (size_t)(s->prompts[order[k]] + s->lengths[order[k]]);
    reserve(t, tokens, num);
    t->start[0] = 0;
    for (size_t k = 0; k < num; k++) {
        size_t i = order[k], n = (size_t)(s->prompts[i] + s->lengths[i]);
        const int32_t *ids = s->ids + s->first_id[i];
        t->cu[k] = (int32_t)at;
        for (size_t j = 0; j < n; j++, at++) {
            t->ids[at] = ids[j];
            t->positions[at] = (int32_t)j;
            t->labels[at] = j + 1 < n && j + 1 >= (size_t)s->prompts[i] ? ids[j + 1] : -1;
        }
        t->start[k + 1] = t->start[k] + (size_t)s->lengths[i];
    }
    t->cu[num] = (int32_t)at;
    return (cr_batch){t->ids, t->positions, t->labels, t->cu, (int64_t)at, (int64_t)num};
}

/* ---- log-probs ---- */

/* Of all samples, in order, without gradient. out, entropy: [num_tokens]. */
static cr_status forward_all(cr_trainer *t, const cr_samples *s, float *out, float *entropy,
                             cr_err *err)
{
    size_t per = (size_t)t->a->ranks->worker->infer_batch_size, *order = CR_NEW_ARRAY(size_t, per);
    int64_t num_micros = 0;

    CR_TRY_GOTO(out,
                cr_fsdp_agree_num(t->f, (int64_t)((s->num + per - 1) / per), &num_micros, err));
    for (int64_t m = 0; m < num_micros; m++) {
        size_t first = (size_t)m * per, num = first >= s->num        ? 0
                                              : s->num - first < per ? s->num - first
                                                                     : per;
        size_t at = num ? s->first_token[first] : 0;
        cr_model_out result = {out + at, entropy + at};
        for (size_t k = 0; k < num; k++)
            order[k] = first + k;
        cr_batch batch = pack(t, s, order, num);
        CR_TRY_GOTO(out, cr_fsdp_forward(t->f, num ? &batch : NULL, &result, err));
    }
out:
    cr_free(order);
    return err->status;
}

static cr_status log_probs(cr_trainer *t, const cr_record *command, cr_record *reply, cr_err *err)
{
    float *out = NULL;
    cr_samples s;

    CR_TRY_GOTO(out, cr_samples_read(command, t->a->model->config.vocab_size, &s, err));
    out = CR_NEW_ARRAY(float, 2 * s.num_tokens);
    CR_TRY_GOTO(out, forward_all(t, &s, out, out + s.num_tokens, err));
    cr_record_add(reply, "log_probs", CR_RECORD_FLOAT32, out, s.num_tokens);
    cr_record_add(reply, "entropy", CR_RECORD_FLOAT32, out + s.num_tokens, s.num_tokens);
    reply->owned = out; /* freed with the reply */
    out = NULL;
out:
    cr_samples_free(&s);
    cr_free(out);
    return err->status;
}

/* ---- training ---- */

typedef struct step {
    cr_trainer *t;
    const cr_samples *s;
    const size_t *order; /* of the micro-batch */
    size_t num;
    const cr_loss_config *loss;
    cr_denominators all;
    cr_old_log_probs old_from;
    bool is_first; /* update of the rollout: these weights sampled it */
    bool is_sft;
    cr_loss_metrics sum;
    /* of the first update */
    double diff_max, entropy;
    int64_t num_compared, num_different;
    float *old; /* of all samples and their entropies, when the sampler's were not equal (owned) */
} step;

/* Gather a per-token float array of the record, in the order of the micro-batch, as doubles. */
static void gather(const step *p, const float *from, double *to)
{
    for (size_t k = 0; k < p->num; k++) {
        size_t i = p->order[k];
        for (size_t j = 0; j < (size_t)p->s->lengths[i]; j++)
            *to++ = from ? from[p->s->first_token[i] + j] : 0;
    }
}

static cr_status sft_loss(void *ctx, const float *log_prob, const float *entropy, size_t num,
                          float *grad_log_prob, float *grad_entropy, cr_err *err)
{
    step *p = ctx;

    (void)entropy;
    (void)grad_entropy;
    for (size_t i = 0; i < num; i++) {
        if (!isfinite(log_prob[i]))
            return cr_fail(err, CR_ENUMERIC,
                           "a log-prob is not finite (have the weights diverged?)");
        p->sum.total_loss -= (double)log_prob[i] / p->all.tokens;
        grad_log_prob[i] = (float)(-1 / p->all.tokens);
    }
    return CR_OK;
}

static void add_metrics(cr_loss_metrics *sum, const cr_loss_metrics *m)
{
    sum->total_loss += m->total_loss;
    sum->pg_loss += m->pg_loss;
    sum->weighted_pg_loss += m->weighted_pg_loss;
    sum->kl_loss += m->kl_loss;
    sum->entropy_loss += m->entropy_loss;
    sum->approxkl += m->approxkl;
    sum->policykl += m->policykl;
    sum->clip_low += m->clip_low;
    sum->clip_high += m->clip_high;
    if (m->num_tokens > 0) {
        sum->ratio_max = sum->num_tokens > 0 ? fmax(sum->ratio_max, m->ratio_max) : m->ratio_max;
        sum->ratio_min = sum->num_tokens > 0 ? fmin(sum->ratio_min, m->ratio_min) : m->ratio_min;
    }
    sum->ratio_sum += m->ratio_sum;
    sum->num_tokens += m->num_tokens;
}

/* The sampler's log-probs against those of the pass under the same weights. */
static void compare(step *p, const float *log_prob, const double *infer, const float *entropy,
                    size_t num)
{
    for (size_t i = 0; i < num; i++) {
        double x = log_prob[i];
        p->num_different += x < infer[i] || x > infer[i];
        p->diff_max = fmax(p->diff_max, fabs(x - infer[i]));
        p->entropy += (double)entropy[i];
    }
    p->num_compared += (int64_t)num;
}

static cr_status rl_loss(void *ctx, const float *log_prob, const float *entropy, size_t num,
                         float *grad_log_prob, float *grad_entropy, cr_err *err)
{
    enum { LP, OLD, REF, INFER, ENT, ADV, MASK, FINAL, GLP, GENT, NUM };
    step *p = ctx;
    cr_trainer *t = p->t;
    double *a[NUM], *per_sample;

    if (NUM * num + 2 * p->num > t->capacity_work) {
        cr_free(t->work);
        t->capacity_work = NUM * num + 2 * p->num + 1024;
        t->work = CR_NEW_ARRAY(double, t->capacity_work);
    }
    for (size_t k = 0; k < NUM; k++)
        a[k] = t->work + k * num;
    per_sample = t->work + NUM * num;
    for (size_t i = 0; i < num; i++) {
        if (!isfinite(log_prob[i]))
            return cr_fail(err, CR_ENUMERIC,
                           "a log-prob is not finite (have the weights diverged?)");
        a[LP][i] = log_prob[i];
        a[ENT][i] = entropy[i];
    }
    gather(p, p->s->old, a[OLD]);
    if (p->is_first || p->old_from == CR_OLD_OF_PASS) memcpy(a[OLD], a[LP], num * sizeof(double));
    gather(p, p->s->ref, a[REF]);
    gather(p, p->s->infer, a[INFER]);
    if (p->is_first) compare(p, log_prob, a[INFER], entropy, num);
    gather(p, p->s->advantages, a[ADV]);
    gather(p, p->s->mask, a[MASK]);
    gather(p, p->s->final, a[FINAL]);
    for (size_t k = 0; k < p->num; k++) {
        per_sample[k] = p->s->scores[p->order[k]];
        per_sample[p->num + k] = p->s->weights[p->order[k]];
    }
    cr_loss_args args = {.rows = {p->num, t->start},
                         .log_probs = a[LP],
                         .old_log_probs = a[OLD],
                         .ref_log_probs = p->s->ref ? a[REF] : NULL,
                         .infer_log_probs = a[INFER],
                         .entropy = a[ENT],
                         .advantages = a[ADV],
                         .mask = a[MASK],
                         .final_mask = a[FINAL],
                         .scores = per_sample,
                         .weights = per_sample + p->num,
                         .all = p->all,
                         .grad_log_probs = a[GLP],
                         .grad_entropy = a[GENT]};
    cr_policy_loss(p->loss, &args);
    add_metrics(&p->sum, &args.metrics);
    for (size_t i = 0; i < num; i++) {
        grad_log_prob[i] = (float)a[GLP][i];
        grad_entropy[i] = (float)a[GENT][i];
    }
    return CR_OK;
}

static cr_loss_config loss_config(const cr_config *c)
{
    static const char *const modes[] = {"token-mean", "seq-mean-token-sum", "seq-mean-token-mean",
                                        "seq-mean-token-sum-norm"};
    const cr_algorithm *a = &c->algorithm;
    cr_loss_config l = {.pg_variant = CR_PG_PPO,
                        .pg_clip = a->pg_clip,
                        .pg_clip_low = a->pg_clip_low,
                        .pg_clip_high = a->pg_clip_high,
                        .use_pg_clip_range = a->use_pg_clip_range,
                        .dual_clip_loss = a->dual_clip_loss,
                        .use_kl_loss = a->use_kl_loss,
                        .kl_loss_coef = a->kl_loss_coef,
                        .rl_loss_coef = a->rl_loss_coef,
                        .entropy_loss_coef = a->entropy_loss_coef};

    l.is_sequence_ratio =
        strcmp(a->importance_sampling ? a->importance_sampling : "token", "seq") == 0;
    for (size_t i = 0; i < CR_COUNT(modes); i++)
        if (a->loss_agg_mode && strcmp(a->loss_agg_mode, modes[i]) == 0)
            l.loss_agg_mode = (cr_agg)i;
    return l;
}

/* Each rank of a ulysses group derives the loss over its part of the tokens. */
static float aux_weight(const step *p)
{
    const cr_trainer *t = p->t;
    double parts = p->all.tokens * t->a->mesh->shape.num_ulysses;

    if (p->num == 0 || !(parts > 0)) return 0;
    return cr_aux_weight(t->a->model, t->a->ranks->worker, (double)t->start[p->num] / parts);
}

/* Behind the first update's passes, before its weights change: may the later updates take the sampler's
 * log-probs for those of these weights? Only if all ranks found equal bits, else they are computed. */
static cr_status settle_old(step *p, cr_samples *s, cr_err *err)
{
    int64_t most;

    CR_TRY(cr_fsdp_agree_num(p->t->f, p->num_different, &most, err));
    s->old = s->infer;
    if (most == 0) return CR_OK;
    s->old = p->old = CR_NEW_ARRAY(float, 2 * s->num_tokens);
    return forward_all(p->t, s, p->old, p->old + s->num_tokens, err);
}

/* One optimizer update over this rank's samples of mini-batch `mini`. */
static cr_status update(step *p, cr_samples *s, int32_t mini, double lr, cr_update *result,
                        cr_err *err)
{
    cr_trainer *t = p->t;
    size_t per = (size_t)t->a->ranks->worker->per_device_train_batch_size,
           *mine = CR_NEW_ARRAY(size_t, p->s->num), num = 0;
    int64_t num_micros;

    for (size_t i = 0; i < p->s->num; i++)
        if (p->s->mini[i] == mini) mine[num++] = i;
    CR_TRY_GOTO(out, cr_fsdp_agree_num(t->f, (int64_t)((num + per - 1) / per), &num_micros, err));
    for (int64_t m = 0; m < num_micros; m++) {
        size_t first = (size_t)m * per;
        p->num = first >= num ? 0 : num - first < per ? num - first : per;
        p->order = mine + first;
        cr_batch batch = pack(t, p->s, p->order, p->num);
        t->a->model->aux_weight = aux_weight(p);
        CR_TRY_GOTO(out, cr_fsdp_backward(t->f, p->num ? &batch : NULL,
                                          p->is_sft ? sft_loss : rl_loss, p, err));
        p->sum.total_loss += (double)t->a->model->aux_weight * cr_model_aux_loss(t->a->model);
    }
    if (p->is_first && p->old_from == CR_OLD_OF_SAMPLER) CR_TRY_GOTO(out, settle_old(p, s, err));
    CR_TRY_GOTO(out, cr_fsdp_update(t->f, lr, result, err));
out:
    cr_free(mine);
    return err->status;
}

static void reply_metrics(cr_record *reply, const step *p, double grad_norm, int64_t num_skipped)
{
    const cr_loss_metrics *m = &p->sum;
    const struct {
        const char *name;
        double value;
    } values[] = {{"total_loss", m->total_loss},
                  {"pg_loss", m->pg_loss},
                  {"weighted_pg_loss", m->weighted_pg_loss},
                  {"kl_loss", m->kl_loss},
                  {"entropy_loss", m->entropy_loss},
                  {"approxkl", m->approxkl},
                  {"policykl", m->policykl},
                  {"clip_low", m->clip_low},
                  {"clip_high", m->clip_high},
                  {"ratio_sum", m->ratio_sum},
                  {"ratio_max", m->ratio_max},
                  {"ratio_min", m->ratio_min},
                  {"num_tokens", m->num_tokens},
                  {"infer_diff_max", p->diff_max},
                  {"entropy_sum", p->entropy},
                  {"grad_norm", grad_norm}};

    for (size_t i = 0; i < CR_COUNT(values); i++)
        cr_record_set_real(reply, values[i].name,
                           isfinite(values[i].value) ? values[i].value : 1e300);
    cr_record_set_int(reply, "skipped", num_skipped);
    cr_record_set_int(reply, "compared", p->num_compared);
    cr_record_set_int(reply, "different", p->num_different);
}

static cr_status train(cr_trainer *t, const cr_record *command, bool is_sft, cr_record *reply,
                       cr_err *err)
{
    cr_loss_config loss = loss_config(t->a->config);
    const float *lr, *counts;
    int64_t num_minis, old_from = CR_OLD_OF_PASS, is_again = 0, skipped = 0;
    double norms = 0;
    cr_samples s;
    step p = {.t = t, .s = &s, .loss = &loss, .is_sft = is_sft};

    CR_TRY_GOTO(out, cr_samples_read(command, t->a->model->config.vocab_size, &s, err));
    CR_TRY_GOTO(out, cr_record_get_int(command, "minis", &num_minis, err));
    CR_TRY_GOTO(out, cr_floats_read(command, "lr", (size_t)num_minis, &lr, err));
    CR_TRY_GOTO(out, cr_floats_read(command, "counts", 5 * (size_t)num_minis, &counts, err));
    if (!is_sft) {
        CR_TRY_GOTO(out, cr_record_get_int(command, "old_from", &old_from, err));
        CR_TRY_GOTO(out, cr_record_get_int(command, "is_again", &is_again, err));
        CR_TRY_GOTO(out, cr_floats_read(command, "infer", s.num_tokens, &s.infer, err));
        CR_TRY_GOTO(out, cr_floats_read(command, "advantages", s.num_tokens, &s.advantages, err));
        CR_TRY_GOTO(out, cr_floats_read(command, "mask", s.num_tokens, &s.mask, err));
        CR_TRY_GOTO(out, cr_floats_read(command, "final", s.num_tokens, &s.final, err));
        CR_TRY_GOTO(out, cr_floats_read(command, "scores", s.num, &s.scores, err));
        CR_TRY_GOTO(out, cr_floats_read(command, "weights", s.num, &s.weights, err));
        if (old_from == CR_OLD_COMPUTED)
            CR_TRY_GOTO(out, cr_floats_read(command, "old", s.num_tokens, &s.old, err));
        if (cr_record_has(command, "ref"))
            CR_TRY_GOTO(out, cr_floats_read(command, "ref", s.num_tokens, &s.ref, err));
    }
    p.old_from = (cr_old_log_probs)old_from;
    for (int64_t m = 0; m < num_minis; m++) {
        cr_update result;
        const float *c = counts + 5 * m;
        p.all = (cr_denominators){.final_tokens = c[0],
                                  .final_samples = c[1],
                                  .tokens = c[2],
                                  .samples = c[3],
                                  .width = c[4]};
        p.is_first = m == 0 && !is_again && !is_sft && old_from != CR_OLD_COMPUTED;
        CR_TRY_GOTO(out, update(&p, &s, (int32_t)m, lr[m], &result, err));
        skipped += result.is_skipped;
        norms += result.grad_norm;
    }
    reply_metrics(reply, &p, norms / (double)(num_minis > 0 ? num_minis : 1), skipped);
    if (p.old) {
        cr_record_add(reply, "old", CR_RECORD_FLOAT32, p.old, s.num_tokens);
        reply->owned = p.old;
        p.old = NULL;
    }
out:
    cr_free(p.old);
    cr_samples_free(&s);
    return err->status;
}

/* ---- the rest ---- */

static cr_status sync_weights(cr_trainer *t, cr_err *err)
{
    const struct cr_role_ranks *infer = &t->a->layout.role[CR_ROLE_INFER];
    int *receivers = CR_NEW_ARRAY(int, infer->num);

    for (int r = 0; r < infer->num; r++)
        receivers[r] = infer->first + r;
    cr_note(cr_weight_sync_send(t->f, t->a->world, receivers, infer->num,
                                cr_dtype_of(infer->worker->dtype), err));
    cr_free(receivers);
    return err->status;
}

/* ---- phases ---- */

/* Everything but what must stay; and what is packed for a micro-batch. */
static cr_status offload(cr_trainer *t, cr_err *err)
{
    void **mine[] = {(void **)&t->ids, (void **)&t->positions, (void **)&t->labels,
                     (void **)&t->cu,  (void **)&t->work,      (void **)&t->start};

    for (size_t i = 0; i < CR_COUNT(mine); i++) {
        cr_free(*mine[i]);
        *mine[i] = NULL;
    }
    t->capacity_tokens = t->capacity_samples = t->capacity_work = 0;
    CR_TRY(cr_fsdp_offload(t->f, cr_phase_states(t->a->dev, CR_STATE_ALL), err));
    cr_phase_trim(t->a->dev);
    return CR_OK;
}

/* What a command works on. */
static unsigned states_of(const char *op)
{
    static const struct {
        const char *op;
        unsigned states;
    } needs[] = {{"log_probs", CR_STATE_PARAMS | CR_STATE_BUFFERS},
                 {"train_step", CR_STATE_ALL},
                 {"sft_step", CR_STATE_ALL},
                 {"sync", CR_STATE_PARAMS},
                 {"save", CR_STATE_PARAMS | CR_STATE_MOMENTS},
                 {"resume", CR_STATE_PARAMS | CR_STATE_MOMENTS}};

    for (size_t i = 0; i < CR_COUNT(needs); i++)
        if (strcmp(needs[i].op, op) == 0) return needs[i].states;
    return 0;
}

static cr_status dispatch(cr_trainer *t, const char *op, const cr_record *command, cr_record *reply,
                          cr_err *err)
{
    const cr_worker_config *w = t->a->ranks->worker;
    const char *folder;
    size_t n;

    if (strcmp(op, "log_probs") == 0) return log_probs(t, command, reply, err);
    if (strcmp(op, "train_step") == 0 && t->is_train) return train(t, command, false, reply, err);
    if (strcmp(op, "sft_step") == 0 && t->is_train) return train(t, command, true, reply, err);
    if (strcmp(op, "sync") == 0 && t->is_train) return sync_weights(t, err);
    if (strcmp(op, "save") == 0 || strcmp(op, "resume") == 0) {
        CR_TRY(cr_record_get_text(command, "folder", &folder, &n, err));
        if (op[0] == 's')
            return cr_fsdp_save_start(t->f, folder, t->a->ranks->name, w->model_path,
                                      w->save_only_model, err);
        return cr_fsdp_resume(t->f, folder, t->a->ranks->name, err);
    }
    if (strcmp(op, "save_wait") == 0) return cr_fsdp_save_wait(t->f, err);
    if (strcmp(op, "save_poll") == 0) {
        cr_record_set_int(reply, "busy", cr_fsdp_is_saving(t->f));
        return CR_OK;
    }
    if (strcmp(op, "memory") == 0) {
        cr_record_set_int(reply, "device_peak_bytes",
                          (int64_t)cr_device_get_stats(t->a->dev).bytes_peak);
        return CR_OK;
    }
    return cr_fail(err, CR_EFORMAT, "%s does not know the command %s", t->a->ranks->name, op);
}

static int64_t held_bytes(const cr_trainer *t)
{
    return cr_fsdp_get_stats(t->f).held_bytes +
           (int64_t)(3 * t->capacity_tokens * sizeof(int32_t) + t->capacity_work * sizeof(double));
}

cr_status cr_trainer_serve(void *trainer, const char *op, const cr_record *command,
                           cr_record *reply, cr_err *err)
{
    cr_trainer *t = trainer;
    unsigned states = cr_phase_states(t->a->dev, states_of(op));
    int64_t should_offload = 1;
    cr_phase_cycle phase = {.began_s = cr_now_s(), .bytes[0] = held_bytes(t)};

    if (!t->is_shared || !states) return dispatch(t, op, command, reply, err);
    if (cr_record_has_value(command, "is_offload_states"))
        CR_TRY(cr_record_get_int(command, "is_offload_states", &should_offload, err));
    CR_TRY(cr_fsdp_load(t->f, states, err));
    phase.loaded_s = cr_now_s();
    phase.bytes[1] = held_bytes(t);
    CR_TRY(dispatch(t, op, command, reply, err));
    phase.done_s = cr_now_s();
    phase.bytes[2] = held_bytes(t);
    if (should_offload) CR_TRY(offload(t, err));
    phase.bytes[3] = held_bytes(t);
    cr_phase_report(&phase, reply);
    return CR_OK;
}
