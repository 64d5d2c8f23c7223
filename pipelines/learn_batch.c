/* learn_batch.c -- the batch of a step, and log-probs or values of a role over it (see assemble_impl.h). */
#include "actors/distribution.h"
#include "data/row_images.h"
#include "exchange/record.h"
#include "pipelines/assemble_impl.h"

#include <string.h>

void cri_learn_batch_init(cri_learn_batch *b, cr_rollout *r, const cr_dataset *data,
                          const cr_config *config)
{
    static const cr_batch_column columns[] = {
        CR_COLUMN_OLD,        CR_COLUMN_TEACHER,       CR_COLUMN_ENTROPY,
        CR_COLUMN_FINAL,      CR_COLUMN_TOKEN_REWARDS, CR_COLUMN_KL,
        CR_COLUMN_OPD_KL,     CR_COLUMN_RETURNS,       CR_COLUMN_RAW_ADVANTAGES,
        CR_COLUMN_ADVANTAGES, CR_COLUMN_SCORES,        CR_COLUMN_REWARDS};

    *b = (cri_learn_batch){.r = r, .data = data};
    cr_sample_batch_init(&b->batch, r->num_samples);
    b->batch.has_ids = true;
    b->batch.has_temperatures = config->infer.num_domains > 0;
    for (size_t i = 0; i < r->num_samples; i++) {
        const cr_sample *s = &r->samples[i];
        const cr_row *row = &data->rows[s->row];
        s->segments[0].ids = row->ids;
        s->segments[0].num_ids = row->num_ids;
        b->batch.samples[i] = (struct cr_batch_sample){
            .id = s->id,
            .segments = s->segments,
            .num_segments = s->num_segments,
            .kept = s->kept.num ? &s->kept : NULL,
            .temperature = cr_distribution_of(config, s->domain).temperature,
            .items = cr_row_items(row)};
    }
    cr_sample_batch_count(&b->batch);
    cr_sample_batch_add_sampled(&b->batch);
    for (size_t c = 0; c < CR_COUNT(columns); c++)
        cr_sample_batch_add(&b->batch, columns[c]);
    for (size_t i = 0; i < r->num_samples; i++)
        b->batch.of[CR_COLUMN_SCORES][i] = r->samples[i].score;
}

cr_status cri_ask_role(cr_run *run, cr_role role, cri_learn_batch *b, cr_batch_column column,
                       cr_metrics *m, cr_err *err)
{
    const cr_config *c = run->config;
    const bool is_train = cr_ask_is_for(CR_ASK_TRAIN_STEP, run->layout.role[role].worker),
               is_critic = role == CR_ROLE_CRITIC;
    cr_record command = {0};
    cr_role_call call = {.role = role,
                         .ask = is_critic ? CR_ASK_VALUES : CR_ASK_LOG_PROBS,
                         .command = &command,
                         .batch = &b->batch,
                         .metrics = m};

    if (is_train ||
        (role == CR_ROLE_REFERENCE && c->reference.is_of_trainer && !c->teacher.is_needed))
        cr_record_set_int(&command, CR_FIELD_OFFLOAD, 0); /* these ranks train next */
    if (cr_role_call_run(run, &call, err) == CR_OK)
        cr_note(cr_role_call_read(&call, is_critic ? CR_FIELD_VALUES : CR_FIELD_LOG_PROBS, column,
                                  err));
    if (err->status == CR_OK && is_train)
        cr_note(cr_role_call_read(&call, CR_FIELD_ENTROPY, CR_COLUMN_ENTROPY, err));
    cr_role_call_free(&call);
    cr_record_free(&command);
    return err->status;
}
