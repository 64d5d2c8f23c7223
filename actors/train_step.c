/* train_step.c -- updates of actor_train, sft_train, student and critic: mini-batches of a record, their loss, and what
 * they add up to (see trainer_impl.h). */
#include "actors/trainer_impl.h"
#include "base/rng.h"
#include "mesh/collectives.h"
#include "rl/loss.h"

#include <math.h>
#include <string.h>

typedef struct step {
    cr_trainer *t;
    const cr_samples *s;
    const float *column[CR_NUM_COLUMNS]; /* of the record; NULL: none */
    const size_t *order;                 /* of the micro-batch */
    size_t num;
    const cr_loss_config *loss;
    cr_denominators all;
    cr_old_log_probs old_from;
    bool is_first; /* update of the rollout: these weights sampled it */
    cr_ask ask;
    cr_teacher_outputs teacher; /* num 0: no teacher */
    cr_logits_loss whole;       /* of its states */
    double whole_distance;      /* their loss over this rank's labels: not a ulysses group's */
    cr_train_sums sum;
    bool has_only; /* the gradient is that of one sample alone, `only` */
    uint64_t only;
    bool wants_terms, has_old; /* the reply has what the losses read; old log-probs were computed */
    float *answers;            /* [NUM_ANSWERS][tokens of all samples] (owned); NULL: none yet */
} step;

/* Numbers of each token that a reply may have. */
enum {
    ANSWER_OLD, /* log-probs of the weights before the step, when the sampler's were not equal, */
    ANSWER_OLD_ENTROPY, /* and entropies */
    ANSWER_LOG_PROBS,   /* of the pass; of a critic values */
    ANSWER_ENTROPY,
    ANSWER_USED_OLD,
    NUM_ANSWERS
};

static float *answer_of(step *p, int which)
{
    if (!p->answers) p->answers = CR_NEW_ARRAY(float, NUM_ANSWERS * p->s->num_tokens + 1);
    return p->answers + (size_t)which * p->s->num_tokens;
}

/* x: of the micro-batch, as its loss read it. */
static void put_answer(step *p, int which, const double *x)
{
    if (!p->wants_terms) return;
    for (size_t k = 0; k < p->num; k++) {
        float *to = answer_of(p, which) + p->s->first_token[p->order[k]];
        for (size_t t = p->t->start[k]; t < p->t->start[k + 1]; t++)
            *to++ = (float)x[t];
    }
}

/* ---- losses ---- */

static cr_status sft_loss(void *ctx, const cr_outputs *out, size_t num, const cr_outputs *grad,
                          cr_err *err)
{
    const float *log_prob = out->of[CR_LOG_PROB];
    float *grad_log_prob = grad->of[CR_LOG_PROB];
    step *p = ctx;

    for (size_t i = 0; i < num; i++) {
        if (!isfinite(log_prob[i]))
            return cr_fail(err, CR_ENUMERIC,
                           "a log-prob is not finite (have the weights diverged?)");
        p->sum.loss.total_loss -= (double)log_prob[i] / p->all.tokens;
        grad_log_prob[i] = (float)(-1 / p->all.tokens);
    }
    return CR_OK;
}

/* The sampler's log-probs against those of the pass under the same weights. */
static void compare(step *p, const double *log_prob, const double *infer, const double *entropy,
                    size_t num)
{
    for (size_t i = 0; i < num; i++) {
        p->sum.num_different += log_prob[i] < infer[i] || log_prob[i] > infer[i];
        p->sum.loss.infer_diff_max = fmax(p->sum.loss.infer_diff_max, fabs(log_prob[i] - infer[i]));
        p->sum.entropy_sum += entropy[i];
    }
    p->sum.num_compared += (int64_t)num;
}

/* Numbers of the micro-batch, a column after the other in the trainer's work memory. */
static double *take_work(cr_trainer *t, size_t need)
{
    if (need > t->capacity_work || !t->work) {
        cr_free(t->work);
        t->capacity_work = need + 1024;
        t->work = CR_NEW_ARRAY(double, t->capacity_work);
    }
    return t->work;
}

/* The loss reads it: it came, or it is all 1. */
static bool is_read(const step *p, int column)
{
    return p->column[column] || cr_batch_columns[column].travel == CR_TRAVEL_UNLESS_1;
}

/* A column of the record in the order of the micro-batch; returns the memory after it. */
static double *gather(const step *p, cr_batch_column column, double *at)
{
    bool is_per_sample = cr_batch_columns[column].is_per_sample;
    const float *from = p->column[column];

    for (size_t i = 0; i < p->num; i++) {
        size_t sample = p->order[i], first = is_per_sample ? sample : p->s->first_token[sample],
               n = is_per_sample ? 1 : cr_samples_num_tokens(p->s, sample);
        for (size_t j = 0; j < n; j++)
            *at++ = from ? from[first + j] : 1;
    }
    return at;
}

/* Log-probs of the pass as numbers of the loss. */
static cr_status take_log_probs(const cr_outputs *out, size_t num, double *to, cr_err *err)
{
    for (size_t i = 0; i < num; i++) {
        to[i] = out->of[CR_LOG_PROB][i];
        if (!isfinite(to[i]))
            return cr_fail(err, CR_ENUMERIC,
                           "a log-prob is not finite (have the weights diverged?)");
    }
    return CR_OK;
}

/* The micro-batch has whole pairs, the chosen answer of each first. */
static cr_status dpo_loss(void *ctx, const cr_outputs *out, size_t num, const cr_outputs *grad,
                          cr_err *err)
{
    step *p = ctx;
    double *log_probs = take_work(p->t, 3 * num);
    cr_pair_args args = {.rows = {p->num, p->t->start},
                         .log_probs = log_probs,
                         .ref = log_probs + num,
                         .grad = log_probs + 2 * num,
                         .num_pairs = p->all.final_samples,
                         .num_chosen_tokens = p->all.final_tokens};
    cr_train_sums part = {0};

    CR_TRY(take_log_probs(out, num, log_probs, err));
    gather(p, CR_COLUMN_REF, log_probs + num);
    cr_pair_losses(&p->t->a->config->pairs, &args);
    part.loss.total_loss = args.metrics.loss;
    part.pairs = args.metrics;
    cr_train_sums_add(&p->sum, &part, /*is_same_update=*/true);
    for (size_t i = 0; i < num; i++)
        grad->of[CR_LOG_PROB][i] = (float)args.grad[i];
    return CR_OK;
}

/* Into the gradient that the pass derives: of all samples, or of one alone. */
static void put_grad(const step *p, const double *from, float *to)
{
    for (size_t k = 0; k < p->num; k++) {
        bool is_derived = !p->has_only || p->s->sample_ids[p->order[k]] == p->only;
        for (size_t t = p->t->start[k]; t < p->t->start[k + 1]; t++)
            to[t] = is_derived ? (float)from[t] : 0;
    }
}

static cr_status rl_loss(void *ctx, const cr_outputs *out, size_t num, const cr_outputs *grad,
                         cr_err *err)
{
    step *p = ctx;
    const float *entropy = out->of[CR_ENTROPY];
    size_t need = 4 * num;
    double *at, *log_probs, *entropies;
    bool is_of_pass =
        p->old_from == CR_OLD_OF_PASS || (p->is_first && p->old_from == CR_OLD_OF_SAMPLER);
    cr_loss_args args = {.rows = {p->num, p->t->start}, .all = p->all};
    cr_train_sums part;

    for (int c = 0; c < CR_NUM_COLUMNS; c++)
        if (is_read(p, c)) need += cr_batch_columns[c].is_per_sample ? p->num : num;
    log_probs = take_work(p->t, need);
    entropies = log_probs + num;
    args.grad_log_probs = log_probs + 2 * num;
    args.grad_entropy = log_probs + 3 * num;
    at = log_probs + 4 * num;
    for (int c = 0; c < CR_NUM_COLUMNS; c++) {
        if (!is_read(p, c)) continue;
        args.of[c] = at;
        at = gather(p, (cr_batch_column)c, at);
    }
    CR_TRY(take_log_probs(out, num, log_probs, err));
    for (size_t i = 0; i < num; i++)
        entropies[i] = entropy[i];
    args.of[CR_COLUMN_LOG_PROBS] = log_probs;
    args.of[CR_COLUMN_ENTROPY] = entropies;
    if (is_of_pass) args.of[CR_COLUMN_OLD] = log_probs;
    if (p->is_first) compare(p, log_probs, args.of[CR_COLUMN_INFER], entropies, num);
    put_answer(p, ANSWER_LOG_PROBS, log_probs);
    put_answer(p, ANSWER_ENTROPY, entropies);
    put_answer(p, ANSWER_USED_OLD, args.of[CR_COLUMN_OLD]);
    cr_policy_loss(p->loss, &args);
    part = (cr_train_sums){.loss = args.metrics};
    part.loss.infer_diff_max = 0; /* of these weights, which may have been updated */
    cr_train_sums_add(&p->sum, &part, /*is_same_update=*/true);
    put_grad(p, args.grad_log_probs, grad->of[CR_LOG_PROB]);
    put_grad(p, args.grad_entropy, grad->of[CR_ENTROPY]);
    return CR_OK;
}

static cr_status value_loss(void *ctx, const cr_outputs *out, size_t num, const cr_outputs *grad,
                            cr_err *err)
{
    step *p = ctx;
    double *work = take_work(p->t, 5 * num), *at = work + 2 * num;
    cr_value_args args = {.rows = {p->num, p->t->start},
                          .values = work,
                          .grad_values = work + num,
                          .value_clip = p->t->a->config->algorithm.value_clip,
                          .num_samples = p->all.final_samples};
    cr_train_sums part = {0};

    args.old_values = at;
    args.returns = at = gather(p, CR_COLUMN_VALUES, at);
    args.mask = at = gather(p, CR_COLUMN_RETURNS, at);
    gather(p, CR_COLUMN_FINAL, at);
    for (size_t i = 0; i < num; i++) {
        if (!isfinite(out->of[CR_VALUE][i]))
            return cr_fail(err, CR_ENUMERIC, "a value is not finite (have the weights diverged?)");
        work[i] = out->of[CR_VALUE][i];
    }
    put_answer(p, ANSWER_LOG_PROBS, work);
    cr_value_loss(&args);
    part.value = args.metrics;
    cr_train_sums_add(&p->sum, &part, /*is_same_update=*/true);
    put_grad(p, args.grad_values, grad->of[CR_VALUE]);
    return CR_OK;
}

/* ---- distillation ---- */

/* Which response tokens of the record learn; NULL: all. */
static const float *learns_of(const step *p)
{
    return p->ask == CR_ASK_SFT_STEP || p->ask == CR_ASK_DISTILL_STEP ? p->column[CR_COLUMN_MASK]
                                                                      : NULL;
}

/* Log-probs of a row of logits at a temperature. */
static void soften(const float *logits, size_t num, double temperature, float *out)
{
    double max = -INFINITY, sum = 0;

    for (size_t v = 0; v < num; v++)
        max = fmax(max, logits[v] / temperature);
    for (size_t v = 0; v < num; v++)
        sum += exp(logits[v] / temperature - max);
    for (size_t v = 0; v < num; v++)
        out[v] = (float)(logits[v] / temperature - max - log(sum));
}

/* The distance of whole distributions, of labels first_row .. of the micro-batch, over the ids that both have. */
static cr_status whole_loss(void *ctx, int64_t first_row, int64_t num_rows, const float *logits,
                            float *grad, cr_err *err)
{
    step *p = ctx;
    cr_trainer *t = p->t;
    const cr_distill_keys *keys = &t->a->config->distill;
    const double factor = keys->distill_loss_weight / p->all.tokens, T = keys->kd.kd_temperature;
    const size_t own = (size_t)t->a->model->config.vocab_size,
                 its = (size_t)cr_vocab_table_num_ids(t->table), num = its < own ? its : own,
                 rows = (size_t)num_rows;
    double *by = CR_NEW_ARRAY(double, num), rest;
    float *log_p = CR_NEW_ARRAY(float, 2 * num), *log_q = log_p + num;
    double sum = 0;

    t->teacher_logits =
        cr_reserve(t->teacher_logits, &t->capacity_logits, rows * its, sizeof *t->teacher_logits);
    CR_TRY_GOTO(out,
                cr_vocab_table_logits(t->table, t->teacher + (size_t)first_row * p->teacher.num,
                                      num_rows, t->teacher_logits, err));
    memset(grad, 0, rows * own * sizeof *grad);
    for (size_t r = 0; r < rows; r++) {
        soften(t->teacher_logits + r * its, num, T * keys->kd.teacher_temperature, log_p);
        soften(logits + r * own, num, T, log_q);
        sum += cr_kd_chosen(&keys->kd, num, num, log_p, log_q, by, &rest);
        for (size_t v = 0; v < num; v++)
            grad[r * own + v] = (float)(factor * by[v]);
    }
    p->whole_distance += sum / p->all.tokens;
out:
    cr_free(by);
    cr_free(log_p);
    return err->status;
}

/* Each rank of a ulysses group has seen the logits of its own labels. */
static cr_status add_whole(step *p, cr_err *err)
{
    const cr_distill_keys *keys = &p->t->a->config->distill;

    if (p->ask != CR_ASK_DISTILL_STEP || keys->kd.logits_topk) return CR_OK;
    CR_TRY(cr_all_reduce_f64(p->t->a->mesh->group[CR_AXIS_ULYSSES], "distances", CR_OP_SUM,
                             &p->whole_distance, 1, err));
    p->sum.distill_loss += p->whole_distance;
    p->sum.loss.total_loss += keys->distill_loss_weight * p->whole_distance;
    return CR_OK;
}

/* What the teacher says of the micro-batch's labels, in their order; the backward that follows is over that. */
static cr_status gather_teacher(step *p, cr_err *err)
{
    cr_trainer *t = p->t;
    const cr_worker_config *teacher = &t->a->config->teacher;
    const float *learns = learns_of(p);
    const size_t each = p->teacher.num, need = t->start[p->num] * each + 1;
    size_t at = 0;

    t->chosen = cr_reserve(t->chosen, &t->capacity_chosen, need, sizeof *t->chosen);
    t->teacher = cr_reserve(t->teacher, &t->capacity_teacher, need, sizeof *t->teacher);
    for (size_t i = 0; i < p->num; i++) {
        const size_t *first = &p->s->first_token[p->order[i]];
        for (size_t k = first[0]; k < first[1]; k++) {
            if (learns && learns[k] <= 0) continue;
            if (p->teacher.ids)
                memcpy(t->chosen + at, p->teacher.ids + k * each, each * sizeof *t->chosen);
            memcpy(t->teacher + at, p->teacher.numbers + k * each, each * sizeof *t->teacher);
            at += each;
        }
    }
    if (p->teacher.ids) {
        cr_fsdp_set_chosen(t->f, t->chosen, (int64_t)each,
                           (float)t->a->config->distill.kd.kd_temperature);
        return CR_OK;
    }
    if (!t->table)
        CR_TRY(cr_vocab_table_open(teacher->model_path, t->a->dev, cr_dtype_of(teacher->dtype),
                                   &t->table, err));
    if (cr_vocab_table_num_states(t->table) != (int64_t)each)
        return cr_fail(err, CR_EFORMAT, "states of %zu numbers for a head of %lld", each,
                       (long long)cr_vocab_table_num_states(t->table));
    p->whole = (cr_logits_loss){whole_loss, p, 1};
    cr_fsdp_set_logits_loss(t->f, &p->whole);
    return CR_OK;
}

static cr_status distill_loss(void *ctx, const cr_outputs *out, size_t num, const cr_outputs *grad,
                              cr_err *err)
{
    step *p = ctx;
    const cr_distill_keys *keys = &p->t->a->config->distill;
    const double w = keys->distill_loss_weight, tokens = p->all.tokens;
    const size_t each = p->teacher.ids ? p->teacher.num : 0,
                 vocab = (size_t)p->t->a->model->config.vocab_size;
    double *log_probs = take_work(p->t, num + each), *by = log_probs + num, rest;
    cr_train_sums part = {0};

    CR_TRY(take_log_probs(out, num, log_probs, err));
    for (size_t i = 0; i < num; i++) {
        size_t at = i * each;
        part.student_loss -= log_probs[i] / tokens;
        grad->of[CR_LOG_PROB][i] = (float)(-(1 - w) / tokens);
        if (!each) continue; /* whole_loss does the rest */
        part.distill_loss += cr_kd_chosen(&keys->kd, each, vocab, p->t->teacher + at,
                                          out->tempered + at, by, &rest) /
                             tokens;
        for (size_t k = 0; k < each; k++)
            grad->tempered[at + k] = (float)(w * by[k] / tokens);
        grad->rest[i] = (float)(w * rest / tokens);
    }
    part.loss.total_loss = (1 - w) * part.student_loss + w * part.distill_loss;
    cr_train_sums_add(&p->sum, &part, /*is_same_update=*/true);
    return CR_OK;
}

/* ---- dropout ---- */

/* The record's name of a sample, or, where it has none, that of its tokens: no matter which rank has it. */
static uint64_t name_of(const cr_samples *s, size_t i)
{
    return s->sample_ids
               ? s->sample_ids[i]
               : cr_hash64(s->ids + s->first_id[i], cr_samples_num_ids(s, i) * sizeof *s->ids);
}

/* Keys of the micro-batch's rows, of (seed, update, sample, position): the same however the batch is cut. */
static void key_rows(const step *p, cr_batch *batch)
{
    const cr_adapter_options *o = p->t->a->model->adapters;
    cr_trainer *t = p->t;
    uint64_t seed = (uint64_t)t->a->config->seed, update = (uint64_t)cr_fsdp_num_updates(t->f);
    int64_t row = 0;

    if (!o || o->dropout <= 0) return;
    t->drop_keys = cr_reserve(t->drop_keys, &t->capacity_drop_keys, (size_t)batch->num_tokens,
                              sizeof *t->drop_keys);
    for (size_t k = 0; k < p->num; k++) {
        uint64_t name = name_of(p->s, p->order[k]);
        for (; row < batch->cu_seqlens[k + 1]; row++) {
            uint32_t words[4];
            cr_rng_philox(seed, CR_RNG_DROPOUT, name,
                          update << 32 | (uint32_t)batch->positions[row], words);
            t->drop_keys[row] = (uint64_t)words[0] << 32 | words[1];
        }
    }
    batch->drop_keys = t->drop_keys;
}

/* ---- updates ---- */

/* Each rank of a ulysses group derives the loss over its part of the tokens. */
static float aux_weight(const step *p)
{
    const cr_trainer *t = p->t;
    double parts = p->all.tokens * t->a->mesh->shape.num_ulysses;

    if (p->num == 0 || !(parts > 0)) return 0;
    return cr_aux_weight(t->a->model, t->a->ranks->worker, (double)t->start[p->num] / parts);
}

/* After the first update's passes, before its weights change: may the later updates take the sampler's
 * log-probs for those of these weights? Only if all ranks found equal bits, else they are computed. */
static cr_status choose_source_of_old(step *p, cr_err *err)
{
    cr_outputs all = {{NULL}};
    int64_t max;

    CR_TRY(cr_fsdp_agree_num(p->t->f, p->sum.num_different, &max, err));
    p->column[CR_COLUMN_OLD] = p->column[CR_COLUMN_INFER];
    if (max == 0) return CR_OK;
    p->has_old = true;
    p->column[CR_COLUMN_OLD] = all.of[CR_LOG_PROB] = answer_of(p, ANSWER_OLD);
    all.of[CR_ENTROPY] = answer_of(p, ANSWER_OLD_ENTROPY);
    return cri_forward_all(p->t, p->s, &all, err);
}

static cr_loss_fn loss_of(cr_ask ask)
{
    return ask == CR_ASK_TRAIN_STEP     ? rl_loss
           : ask == CR_ASK_VALUE_STEP   ? value_loss
           : ask == CR_ASK_DPO_STEP     ? dpo_loss
           : ask == CR_ASK_DISTILL_STEP ? distill_loss
                                        : sft_loss;
}

/* One optimizer update over this rank's samples of mini-batch `mini`. */
static cr_status update(step *p, int32_t mini, double lr, cr_err *err)
{
    cr_trainer *t = p->t;
    const cr_worker_config *w = t->a->ranks->worker;
    size_t group = p->ask == CR_ASK_DPO_STEP ? 2 : 1;
    cri_micro_rule rule = {group * (size_t)w->training.per_device_train_batch_size,
                           (size_t)w->batching.train_tokens, group};
    size_t *mine = CR_NEW_ARRAY(size_t, p->s->num + 1), num = 0;
    cri_micros micros = {0};
    cr_update result;

    for (size_t i = 0; i < p->s->num; i++)
        if (p->s->mini[i] == mini) mine[num++] = i;
    CR_TRY_GOTO(out, cri_cut_on_all(t, p->s, mine, num, &rule, &micros, err));
    for (size_t m = 0; m < micros.num; m++) {
        p->order = micros.order + micros.start[m];
        p->num = micros.start[m + 1] - micros.start[m];
        cr_batch batch;
        float aux;
        CR_TRY_GOTO(out, cri_pack(t, p->s, p->order, p->num, learns_of(p), &batch, err));
        aux = aux_weight(p);
        key_rows(p, &batch);
        cr_fsdp_set_aux_weight(t->f, aux);
        if (p->teacher.num && p->num) CR_TRY_GOTO(out, gather_teacher(p, err));
        CR_TRY_GOTO(out, cr_fsdp_backward(t->f, p->num ? &batch : NULL, loss_of(p->ask), p, err));
        p->sum.loss.total_loss += (double)aux * cr_fsdp_aux_loss(t->f);
    }
    if (p->is_first && p->old_from == CR_OLD_OF_SAMPLER)
        CR_TRY_GOTO(out, choose_source_of_old(p, err));
    CR_TRY_GOTO(out, cr_fsdp_update(t->f, lr, &result, err));
    p->sum.num_updates++;
    p->sum.num_skipped += result.is_skipped;
    if (!result.is_skipped) p->sum.grad_norm += result.grad_norm;
out:
    cri_micros_free(&micros);
    cr_free(mine);
    return err->status;
}

static cr_status check_pairs(const cr_samples *s, cr_err *err)
{
    if (s->num % 2) return cr_fail(err, CR_EFORMAT, "%zu samples are not whole pairs", s->num);
    for (size_t i = 0; i < s->num; i += 2)
        if (s->mini[i] != s->mini[i + 1])
            return cr_fail(err, CR_EFORMAT, "the pair %zu is of two mini-batches", i / 2);
    return CR_OK;
}

/* Columns that are always there, or, of those that are 1 where they are not, there. */
static cr_status read_some(step *p, const cr_record *command, const cr_batch_column *columns,
                           size_t num, cr_err *err)
{
    for (size_t i = 0; i < num; i++) {
        const struct cr_batch_column_row *row = &cr_batch_columns[columns[i]];
        if (row->travel != CR_TRAVEL_UNLESS_1 || cr_record_has(command, row->name))
            CR_TRY(
                cr_floats_read(command, row->name, p->s->num_tokens, &p->column[columns[i]], err));
    }
    return CR_OK;
}

/* The columns that the loss reads, and of a policy where its old log-probs are. */
static cr_status read_columns(step *p, const cr_record *command, int64_t *is_again, cr_err *err)
{
    static const cr_batch_column of_values[] = {CR_COLUMN_VALUES, CR_COLUMN_RETURNS,
                                                CR_COLUMN_FINAL},
                                 of_pairs[] = {CR_COLUMN_REF}, of_rows[] = {CR_COLUMN_MASK};
    int64_t old_from;

    if (p->ask == CR_ASK_VALUE_STEP)
        return read_some(p, command, of_values, CR_COUNT(of_values), err);
    if (p->ask == CR_ASK_DPO_STEP) {
        CR_TRY(check_pairs(p->s, err));
        return read_some(p, command, of_pairs, CR_COUNT(of_pairs), err);
    }
    if (p->ask == CR_ASK_DISTILL_STEP)
        CR_TRY(cr_teacher_outputs_read(command, p->s, p->t->a->model->config.vocab_size,
                                       &p->teacher, err));
    if (p->ask == CR_ASK_SFT_STEP || p->ask == CR_ASK_DISTILL_STEP)
        return read_some(p, command, of_rows, CR_COUNT(of_rows), err);
    CR_TRY(cr_record_get_int(command, CR_FIELD_OLD_FROM, &old_from, err));
    CR_TRY(cr_record_get_int(command, CR_FIELD_IS_AGAIN, is_again, err));
    CR_TRY(cr_step_columns_read(command, p->s, p->column, err));
    p->old_from = (cr_old_log_probs)old_from;
    if ((old_from == CR_OLD_COMPUTED || old_from == CR_OLD_RECORDED) && !p->column[CR_COLUMN_OLD])
        return cr_fail(err, CR_EFORMAT, "%s is missing", cr_batch_columns[CR_COLUMN_OLD].name);
    return CR_OK;
}

static cr_status read_only(step *p, const cr_record *command, cr_err *err)
{
    int64_t id;

    p->has_only = cr_record_has_value(command, CR_FIELD_ONLY);
    if (!p->has_only) return CR_OK;
    if (!p->s->sample_ids) return cr_fail(err, CR_EFORMAT, "%s without sample_ids", CR_FIELD_ONLY);
    CR_TRY(cr_record_get_int(command, CR_FIELD_ONLY, &id, err));
    p->only = (uint64_t)id;
    return CR_OK;
}

static void write_reply(step *p, cr_record *reply)
{
    const bool is_critic = p->ask == CR_ASK_VALUE_STEP;
    const struct {
        int which;
        const char *name;
        bool is_there;
    } arrays[] = {
        {ANSWER_OLD, cr_batch_columns[CR_COLUMN_OLD].name, p->has_old},
        {ANSWER_LOG_PROBS, is_critic ? CR_FIELD_VALUES : CR_FIELD_LOG_PROBS, p->wants_terms},
        {ANSWER_ENTROPY, CR_FIELD_ENTROPY, p->wants_terms && !is_critic},
        {ANSWER_USED_OLD, cr_batch_columns[CR_COLUMN_USED_OLD].name, p->wants_terms && !is_critic},
    };

    cr_train_sums_write(&p->sum, reply);
    for (size_t i = 0; i < CR_COUNT(arrays); i++)
        if (arrays[i].is_there)
            cr_record_add(reply, arrays[i].name, CR_RECORD_FLOAT32, answer_of(p, arrays[i].which),
                          p->s->num_tokens);
    reply->owned = p->answers; /* freed with the reply */
    p->answers = NULL;
}

cr_status cri_train(cr_trainer *t, cr_ask ask, const cr_record *command, cr_record *reply,
                    cr_err *err)
{
    const float *lr;
    const uint64_t *counts;
    int64_t num_minis, is_again = 0;
    cr_samples s;
    step p = {.t = t,
              .s = &s,
              .loss = &t->a->config->algorithm.loss,
              .old_from = CR_OLD_OF_PASS,
              .ask = ask};

    CR_TRY_GOTO(out, cri_read_samples(t, command, &s, err));
    CR_TRY_GOTO(out, cr_record_get_int(command, CR_FIELD_MINIS, &num_minis, err));
    CR_TRY_GOTO(out, cr_floats_read(command, CR_FIELD_LR, (size_t)num_minis, &lr, err));
    CR_TRY_GOTO(out, cr_counts_read(command, (size_t)num_minis, &counts, err));
    CR_TRY_GOTO(out, read_columns(&p, command, &is_again, err));
    p.wants_terms = cr_record_has_value(command, CR_FIELD_WANTS_TERMS);
    CR_TRY_GOTO(out, read_only(&p, command, err));
    for (int64_t m = 0; m < num_minis; m++) {
        p.all = cr_mini_denominators(counts + CR_MINI_COUNTS * m);
        p.is_first =
            m == 0 && !is_again && ask == CR_ASK_TRAIN_STEP && p.old_from != CR_OLD_COMPUTED;
        CR_TRY_GOTO(out, update(&p, (int32_t)m, lr[m], err));
    }
    CR_TRY_GOTO(out, add_whole(&p, err));
    write_reply(&p, reply);
out:
    cr_free(p.answers);
    cr_samples_free(&s);
    return err->status;
}
