/* trainer.c -- actor_train, sft_train, reference and critic: commands, and passes over records of samples
 * (see trainer_impl.h). */
#include "actors/packing.h"
#include "actors/trainer_impl.h"
#include "rl/distill.h"

#include <string.h>

static cr_status offload(cr_trainer *t, cr_err *err);

cr_status cr_trainer_open(cr_actor *a, cr_trainer **out, cr_err *err)
{
    const cr_worker_config *w = a->ranks->worker;
    cr_trainer *t = CR_NEW(cr_trainer);
    cr_fsdp_args args = cr_fsdp_args_of(w, cr_task_trains(w->task));

    args.source = w->model_path;
    args.seed = (uint64_t)a->config->seed;
    args.max_grad_norm = a->config->algorithm.max_grad_norm;
    *out = NULL;
    t->a = a;
    t->is_train = args.is_train;
    t->distribution = cr_distribution_of_all(a->config);
    if (a->config->kind == CR_PIPELINE_DISTILL && a->role == CR_ROLE_TEACHER)
        t->distribution.temperature = cr_kd_teacher_temperature(&a->config->distill.kd);
    t->is_shared = cr_phase_is_shared(&a->layout, a->role);
    cr_experts_set(a->model, w);
    cr_note(cr_fsdp_create(a->model, a->dev, a->mesh, &args, &t->f, err));
    if (err->status == CR_OK) cr_note(cr_fsdp_check_finite(t->f, err));
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
    cr_packed_free(&t->packed);
    cr_packed_images_free(&t->images);
    cr_item_loader_destroy(t->loader);
    cr_free(t->work);
    cr_free(t->start);
    cr_processor_arrays_free(&t->processors);
    cr_free(t->chosen);
    cr_free(t->teacher);
    cr_free(t->teacher_logits);
    cr_vocab_table_close(t->table);
    cr_free(t->drop_keys);
    cr_free(t->save_folder);
    cr_free(t->save_mark);
    cr_free(t);
}

/* ---- packing ---- */

cr_status cri_read_samples(const cr_trainer *t, const cr_record *command, cr_samples *s,
                           cr_err *err)
{
    CR_TRY(cr_samples_read(command, t->a->model->config.vocab_size, s, err));
    return cr_distribution_check(&t->distribution, s->num_kept != NULL, err);
}

/* Images of a sample, which are loaded, fit its placeholders and the model. */
static cr_status check_images(const cr_trainer *t, const cr_samples *s, size_t i, cr_err *err)
{
    const cr_item_refs *refs = &s->items[i];
    float *second_per_grid = CR_NEW_ARRAY(float, refs->num);
    cr_seq_images images = {
        .grid = refs->grids, .num = refs->num, .second_per_grid = second_per_grid};

    for (size_t k = 0; k < refs->num; k++) {
        const cr_image_patches *p =
            cr_item_loader_get(t->loader, refs->digests + CR_ITEM_DIGEST * k);
        images.num_pixels += (size_t)(p->num_patches * p->patch_dim);
        second_per_grid[k] = p->second_per_grid;
    }
    if (cr_seq_images_check(&t->a->model->config, s->ids + s->first_id[i], cr_samples_num_ids(s, i),
                            &images, err) != CR_OK)
        cr_fail_add(err, "sample %zu", i);
    cr_free(second_per_grid);
    return err->status;
}

/* Those of the micro-batch's samples, in their order. */
static cr_status pack_images(cr_trainer *t, const cr_samples *s, const size_t *order, size_t num,
                             cr_batch *batch, cr_err *err)
{
    cr_item_refs *refs = CR_NEW_ARRAY(cr_item_refs, num + 1);

    if (!t->loader)
        CR_TRY_GOTO(out, cr_item_loader_open(t->a->ranks->worker->model_path, t->a->config,
                                             &t->loader, err));
    for (size_t k = 0; k < num; k++)
        refs[k] = s->items[order[k]];
    CR_TRY_GOTO(out, cr_item_loader_load(t->loader, t->a->x, refs, num, err));
    cr_packed_images_clear(&t->images);
    for (size_t k = 0; k < num; k++) {
        CR_TRY_GOTO(out, check_images(t, s, order[k], err));
        for (size_t i = 0; i < refs[k].num; i++) {
            const cr_image_patches *p =
                cr_item_loader_get(t->loader, refs[k].digests + CR_ITEM_DIGEST * i);
            cr_packed_images_add(&t->images,
                                 &(cr_seq_images){p->grid, 1, p->values,
                                                  (size_t)(p->num_patches * p->patch_dim),
                                                  &p->second_per_grid});
        }
        cr_packed_images_end_seq(&t->images);
    }
    cr_note(cr_packed_images_end(&t->images, &t->a->model->config, batch, err));
out:
    cr_free(refs);
    return err->status;
}

cr_status cri_pack(cr_trainer *t, const cr_samples *s, const size_t *order, size_t num,
                   const float *learns, cr_batch *out, cr_err *err)
{
    cr_packed *p = &t->packed;

    if (num > t->capacity_samples || !t->start) {
        cr_free(t->start);
        t->capacity_samples = num + 16;
        t->start = CR_NEW_ARRAY(size_t, t->capacity_samples + 1);
    }
    cr_packed_clear(p);
    t->start[0] = 0;
    for (size_t k = 0; k < num; k++) {
        const int32_t *ids = s->ids + s->first_id[order[k]];
        const size_t *first = &s->first_token[order[k]];
        int32_t *labels = cr_packed_add(p, ids, cr_samples_num_ids(s, order[k]));
        t->start[k + 1] = t->start[k];
        for (size_t j = first[0]; j < first[1]; j++) {
            if (learns && learns[j] <= 0) continue;
            labels[s->place[j] - 1] = ids[s->place[j]]; /* the row before a token predicts it */
            t->start[k + 1]++;
        }
    }
    if (t->a->ranks->worker->task != CR_TASK_VALUE) /* values are not of token ids */
        p->batch.processors =
            cr_distribution_processors(&t->distribution, s, order, num, &t->processors);
    if (s->items && num) CR_TRY(pack_images(t, s, order, num, &p->batch, err));
    *out = p->batch;
    return CR_OK;
}

void cri_cut(const cr_samples *s, const size_t *mine, size_t num, const cri_micro_rule *rule,
             size_t min_micros, cri_micros *out)
{
    size_t groups = num / rule->group, *tokens = CR_NEW_ARRAY(size_t, groups ? groups : 1),
           *micro = CR_NEW_ARRAY(size_t, groups ? groups : 1),
           count = (num + rule->samples - 1) / rule->samples, at = 0;

    for (size_t k = 0; k < groups * rule->group; k++) {
        tokens[k / rule->group] += cr_samples_num_ids(s, mine[k]);
        micro[k / rule->group] = k / rule->samples;
    }
    if (rule->tokens) count = cr_packing_cut(tokens, groups, rule->tokens, min_micros, micro);
    if (count < min_micros) count = min_micros;
    *out = (cri_micros){.order = CR_NEW_ARRAY(size_t, num ? num : 1),
                        .start = CR_NEW_ARRAY(size_t, count + 1),
                        .num = count};
    for (size_t m = 0; m < count; m++) {
        for (size_t k = 0; k < num; k++)
            if (micro[k / rule->group] == m) out->order[at++] = mine[k];
        out->start[m + 1] = at;
    }
    cr_free(tokens);
    cr_free(micro);
}

cr_status cri_cut_on_all(cr_trainer *t, const cr_samples *s, const size_t *mine, size_t num,
                         const cri_micro_rule *rule, cri_micros *out, cr_err *err)
{
    int64_t max;

    cri_cut(s, mine, num, rule, 0, out);
    CR_TRY(cr_fsdp_agree_num(t->f, (int64_t)out->num, &max, err));
    if ((size_t)max == out->num) return CR_OK;
    cri_micros_free(out);
    cri_cut(s, mine, num, rule, (size_t)max, out);
    return CR_OK;
}

void cri_micros_free(cri_micros *m)
{
    cr_free(m->order);
    cr_free(m->start);
    *m = (cri_micros){0};
}

/* ---- log-probs and values ---- */

/* An output with several numbers a row: where it goes, and that of a micro-batch. */
typedef struct wide {
    void *to;    /* NULL: not wanted */
    size_t each; /* bytes of a row */
    void *part;
    size_t capacity;
} wide;

static void *take_part(wide *w, size_t num_rows)
{
    if (!w->to) return NULL;
    return w->part = cr_reserve(w->part, &w->capacity, num_rows * w->each + 1, 1);
}

/* Outputs of a micro-batch, whose memory is there: [CR_NUM_OUTPUTS, stride] and wide ones. */
static cr_status forward_some(cr_trainer *t, const cr_batch *batch, size_t num_rows,
                              const cr_outputs *out, float *part, size_t stride, wide more[3],
                              cr_outputs *result, cr_err *err)
{
    *result = (cr_outputs){.num_top = out->num_top, .num_states = out->num_states};
    for (int o = 0; o < CR_NUM_OUTPUTS; o++)
        if (out->of[o]) result->of[o] = part + (size_t)o * stride;
    result->top_ids = take_part(&more[0], num_rows);
    result->top_log_probs = take_part(&more[1], num_rows);
    result->states = take_part(&more[2], num_rows);
    return cr_fsdp_forward(t->f, batch, result, err);
}

cr_status cri_forward_all(cr_trainer *t, const cr_samples *s, const cr_outputs *out, cr_err *err)
{
    const cr_worker_config *w = t->a->ranks->worker;
    cri_micro_rule rule = {(size_t)w->infer_batch_size, (size_t)w->batching.infer_tokens, 1};
    size_t *all = CR_NEW_ARRAY(size_t, s->num ? s->num : 1);
    float *part = CR_NEW_ARRAY(float, CR_NUM_OUTPUTS * s->num_tokens + 1); /* of a micro-batch */
    size_t top = (size_t)out->num_top;
    wide more[3] = {{top ? out->top_ids : NULL, top * sizeof *out->top_ids, NULL, 0},
                    {top ? out->top_log_probs : NULL, top * sizeof *out->top_log_probs, NULL, 0},
                    {out->states, (size_t)out->num_states * sizeof *out->states, NULL, 0}};
    cri_micros micros = {0};

    for (size_t i = 0; i < s->num; i++)
        all[i] = i;
    CR_TRY_GOTO(out, cri_cut_on_all(t, s, all, s->num, &rule, &micros, err));
    for (size_t m = 0; m < micros.num; m++) {
        const size_t *order = micros.order + micros.start[m];
        size_t num = micros.start[m + 1] - micros.start[m];
        cr_batch batch;
        cr_outputs result;
        CR_TRY_GOTO(out, cri_pack(t, s, order, num, NULL, &batch, err));
        CR_TRY_GOTO(out, forward_some(t, num ? &batch : NULL, t->start[num], out, part,
                                      s->num_tokens, more, &result, err));
        for (size_t k = 0; k < num; k++) {
            size_t to = s->first_token[order[k]], rows = cr_samples_num_tokens(s, order[k]);
            for (int o = 0; o < CR_NUM_OUTPUTS; o++)
                if (out->of[o])
                    memcpy(out->of[o] + to, result.of[o] + t->start[k], rows * sizeof *part);
            for (size_t i = 0; i < CR_COUNT(more); i++)
                if (more[i].to)
                    memcpy((char *)more[i].to + to * more[i].each,
                           (char *)more[i].part + t->start[k] * more[i].each, rows * more[i].each);
        }
    }
out:
    cri_micros_free(&micros);
    for (size_t i = 0; i < CR_COUNT(more); i++)
        cr_free(more[i].part);
    cr_free(part);
    cr_free(all);
    return err->status;
}

typedef struct output_field {
    cr_output of;
    const char *field;
} output_field;

/* What log_probs may answer with beside them. */
typedef struct extras {
    int adapter; /* of the pass */
    int64_t top; /* likeliest ids of each token; 0: none */
    bool has_states;
} extras;

/* Outputs of all response tokens of the command's samples into the reply. */
static cr_status answer(cr_trainer *t, const cr_record *command, const output_field *fields,
                        size_t num, const extras *more, cr_record *reply, cr_err *err)
{
    cr_outputs all = {.num_top = more->top};
    size_t chosen, numbers;
    float *out = NULL;
    cr_samples s;

    CR_TRY_GOTO(out, cri_read_samples(t, command, &s, err));
    all.num_states = more->has_states ? t->a->model->config.hidden_size : 0;
    chosen = (size_t)more->top * s.num_tokens;
    numbers = (size_t)all.num_states * s.num_tokens;
    out = CR_NEW_ARRAY(float, num *s.num_tokens + 2 * chosen + numbers + 1);
    all.top_log_probs = out + num * s.num_tokens;
    all.top_ids = (int32_t *)(void *)(all.top_log_probs + chosen);
    if (more->has_states) all.states = all.top_log_probs + 2 * chosen;
    for (size_t i = 0; i < num; i++)
        all.of[fields[i].of] = out + i * s.num_tokens;
    cr_fsdp_set_adapter(t->f, more->adapter);
    cr_note(cri_forward_all(t, &s, &all, err));
    cr_fsdp_set_adapter(t->f, 0);
    CR_TRY_GOTO(out, err->status);
    for (size_t i = 0; i < num; i++)
        cr_record_add(reply, fields[i].field, CR_RECORD_FLOAT32, all.of[fields[i].of],
                      s.num_tokens);
    if (more->top) {
        cr_record_add(reply, CR_FIELD_TOP_IDS, CR_RECORD_INT32, all.top_ids, chosen);
        cr_record_add(reply, CR_FIELD_TOP_LOG_PROBS, CR_RECORD_FLOAT32, all.top_log_probs, chosen);
    }
    if (more->has_states)
        cr_record_add(reply, CR_FIELD_STATES, CR_RECORD_FLOAT32, all.states, numbers);
    reply->owned = out; /* freed with the reply */
    out = NULL;
out:
    cr_samples_free(&s);
    cr_free(out);
    return err->status;
}

static cr_status get_if_there(const cr_record *command, const char *name, int64_t *out, cr_err *err)
{
    *out = 0;
    return cr_record_has_value(command, name) ? cr_record_get_int(command, name, out, err) : CR_OK;
}

static cr_status log_probs(cr_trainer *t, const cr_record *command, cr_record *reply, cr_err *err)
{
    static const output_field fields[] = {{CR_LOG_PROB, CR_FIELD_LOG_PROBS},
                                          {CR_ENTROPY, CR_FIELD_ENTROPY}};
    const int64_t vocab_size = t->a->model->config.vocab_size;
    int64_t is_base, top, has_states;

    CR_TRY(get_if_there(command, CR_FIELD_IS_BASE, &is_base, err));
    CR_TRY(get_if_there(command, CR_FIELD_TOP, &top, err));
    CR_TRY(get_if_there(command, CR_FIELD_STATES, &has_states, err));
    if (top < 0 || top > vocab_size)
        return cr_fail(err, CR_EFORMAT, CR_FIELD_TOP " is %lld, the vocabulary has %lld chosen",
                       (long long)top, (long long)vocab_size);
    return answer(t, command, fields, CR_COUNT(fields),
                  &(extras){is_base ? CR_NO_ADAPTER : 0, top, has_states != 0}, reply, err);
}

static cr_status values(cr_trainer *t, const cr_record *command, cr_record *reply, cr_err *err)
{
    static const output_field fields[] = {{CR_VALUE, CR_FIELD_VALUES}};

    return answer(t, command, fields, CR_COUNT(fields), &(extras){0}, reply, err);
}

/* ---- the rest ---- */

static cr_status sync_weights(cr_trainer *t, const cr_record *command, cr_record *reply,
                              cr_err *err)
{
    const cr_worker_config *infer = t->a->layout.role[CR_ROLE_INFER].worker;

    (void)command;
    (void)reply;
    return cr_weight_sync_send(t->f, t->a->sync_group, cr_dtype_of(infer->dtype), err);
}

/* The trained role sends, a reference that follows takes. */
static cr_status sync_reference(cr_trainer *t, const cr_record *command, cr_record *reply,
                                cr_err *err)
{
    const cr_worker_config *reference = t->a->layout.role[CR_ROLE_REFERENCE].worker;
    int64_t num_bytes;

    (void)command;
    if (t->is_train)
        return cr_weight_sync_send(t->f, t->a->reference_group, cr_dtype_of(reference->dtype), err);
    CR_TRY(cr_weight_sync_blend(t->f, t->a->reference_group, t->a->config->follow.alpha, &num_bytes,
                                err));
    cr_record_set_int(reply, CR_FIELD_BYTES, num_bytes);
    return CR_OK;
}

/* ---- phases ---- */

/* Everything but what must stay; and what is packed for a micro-batch. */
static cr_status offload(cr_trainer *t, cr_err *err)
{
    cr_packed_free(&t->packed);
    cr_packed_images_free(&t->images);
    cr_free(t->work);
    cr_free(t->start);
    cr_free(t->chosen);
    cr_free(t->teacher);
    cr_free(t->teacher_logits);
    t->work = NULL;
    t->start = NULL;
    t->chosen = NULL;
    t->teacher = t->teacher_logits = NULL;
    t->capacity_samples = t->capacity_work = 0;
    t->capacity_chosen = t->capacity_teacher = t->capacity_logits = 0;
    cr_processor_arrays_free(&t->processors);
    CR_TRY(cr_fsdp_offload(t->f, cr_phase_states(t->a->dev, CR_STATE_ALL), err));
    cr_phase_trim(t->a->dev);
    return CR_OK;
}

static cr_status train_step(cr_trainer *t, const cr_record *command, cr_record *reply, cr_err *err)
{
    return cri_train(t, CR_ASK_TRAIN_STEP, command, reply, err);
}

static cr_status sft_step(cr_trainer *t, const cr_record *command, cr_record *reply, cr_err *err)
{
    return cri_train(t, CR_ASK_SFT_STEP, command, reply, err);
}

static cr_status value_step(cr_trainer *t, const cr_record *command, cr_record *reply, cr_err *err)
{
    return cri_train(t, CR_ASK_VALUE_STEP, command, reply, err);
}

static cr_status dpo_step(cr_trainer *t, const cr_record *command, cr_record *reply, cr_err *err)
{
    return cri_train(t, CR_ASK_DPO_STEP, command, reply, err);
}

static cr_status distill_step(cr_trainer *t, const cr_record *command, cr_record *reply,
                              cr_err *err)
{
    return cri_train(t, CR_ASK_DISTILL_STEP, command, reply, err);
}

/* What it does, and the states it works on: loaded before it, where devices are shared. */
static const struct op {
    unsigned states;
    cr_status (*run)(cr_trainer *, const cr_record *command, cr_record *reply, cr_err *);
} ops[CR_NUM_ASKS] = {
    [CR_ASK_LOG_PROBS] = {CR_STATE_PARAMS | CR_STATE_BUFFERS, log_probs},
    [CR_ASK_TRAIN_STEP] = {CR_STATE_ALL, train_step},
    [CR_ASK_SFT_STEP] = {CR_STATE_ALL, sft_step},
    [CR_ASK_VALUES] = {CR_STATE_PARAMS | CR_STATE_BUFFERS, values},
    [CR_ASK_VALUE_STEP] = {CR_STATE_ALL, value_step},
    [CR_ASK_DPO_STEP] = {CR_STATE_ALL, dpo_step},
    [CR_ASK_DISTILL_STEP] = {CR_STATE_ALL, distill_step},
    [CR_ASK_SYNC] = {CR_STATE_PARAMS, sync_weights},
    [CR_ASK_SYNC_REFERENCE] = {CR_STATE_PARAMS, sync_reference},
    [CR_ASK_SAVE] = {CR_STATE_PARAMS | CR_STATE_MOMENTS, cri_trainer_save},
    [CR_ASK_RESUME] = {CR_STATE_PARAMS | CR_STATE_MOMENTS, cri_trainer_resume},
    [CR_ASK_SAVE_WAIT] = {0, cri_trainer_save_wait},
    [CR_ASK_SAVE_POLL] = {0, cri_trainer_save_poll},
};

static int64_t held_bytes(const cr_trainer *t)
{
    return cr_fsdp_get_stats(t->f).held_bytes + cr_packed_bytes(&t->packed) +
           (int64_t)(t->capacity_work * sizeof(double) + cr_processor_arrays_bytes(&t->processors) +
                     (t->capacity_chosen + t->capacity_teacher + t->capacity_logits) *
                         sizeof(float));
}

cr_status cr_trainer_serve(void *trainer, cr_ask ask, const cr_record *command, cr_record *reply,
                           cr_err *err)
{
    cr_trainer *t = trainer;
    const struct op *o = &ops[ask];
    unsigned states = cr_phase_states(t->a->dev, o->states);
    int64_t should_offload = 1;
    cr_phase_cycle phase = {.began_s = cr_now_s(), .bytes[0] = held_bytes(t)};

    if (!t->is_shared || !states) return o->run(t, command, reply, err);
    if (cr_record_has_value(command, CR_FIELD_OFFLOAD))
        CR_TRY(cr_record_get_int(command, CR_FIELD_OFFLOAD, &should_offload, err));
    CR_TRY(cr_fsdp_load(t->f, states, err));
    phase.loaded_s = cr_now_s();
    phase.bytes[1] = held_bytes(t);
    CR_TRY(o->run(t, command, reply, err));
    phase.done_s = cr_now_s();
    phase.bytes[2] = held_bytes(t);
    if (should_offload) CR_TRY(offload(t, err));
    phase.bytes[3] = held_bytes(t);
    cr_phase_write(&phase, reply);
    return CR_OK;
}
