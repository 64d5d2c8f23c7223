/* learn_batch.c -- the batch of a step, the payloads of its requests, log-probs (see assemble_impl.h). */
#include "pipelines/assemble_impl.h"
#include "reports/phase_metrics.h"

#include <string.h>

void cri_learn_batch_init(cri_learn_batch *b, cr_rollout *r, const cr_dataset *data)
{
    size_t n;

    *b = (cri_learn_batch){.r = r, .data = data};
    b->start = CR_NEW_ARRAY(size_t, r->num_samples + 1);
    for (size_t i = 0; i < r->num_samples; i++)
        b->start[i + 1] = b->start[i] + r->samples[i].num_ids;
    n = b->num_tokens = b->start[r->num_samples];
    b->memory = CR_NEW_ARRAY(double, 13 * n + r->num_samples);
    double **arrays[] = {&b->infer,         &b->old,   &b->ref,        &b->teacher, &b->entropy,
                         &b->mask,          &b->final, &b->advantages, &b->raw,     &b->returns,
                         &b->token_rewards, &b->kl,    &b->opd_kl,     &b->rewards};
    for (size_t k = 0; k < CR_COUNT(arrays); k++)
        *arrays[k] = b->memory + k * n;
    for (size_t i = 0; i < r->num_samples; i++)
        for (size_t t = 0; t < r->samples[i].num_ids; t++) {
            b->infer[b->start[i] + t] = r->samples[i].log_prob_infer[t];
            b->mask[b->start[i] + t] = 1;
        }
}

void cri_learn_batch_free(cri_learn_batch *b)
{
    cr_free(b->start);
    cr_free(b->memory);
    cr_free(b->entropy_mask);
    cr_free(b->is_weight);
    cr_free(b->weights);
}

/* ---- payloads ---- */

void cri_payload_free(cri_payload *s)
{
    cr_record_free(&s->record);
    for (size_t i = 0; i < s->num_buffers; i++)
        cr_buf_free(&s->buffers[i]);
    cr_free(s->samples);
}

cr_buf *cri_payload_buffer(cri_payload *s)
{
    return &s->buffers[s->num_buffers++];
}

void cri_payload_attach(cri_payload *s, const char *name, cr_record_kind kind, const cr_buf *b)
{
    cr_record_add(&s->record, name, kind, b->data ? b->data : "", b->num_bytes / 4);
}

/* What the tokens were drawn from, if filters took words away. */
static void add_kept(cri_payload *s, const cri_learn_batch *b)
{
    cr_buf *num = cri_payload_buffer(s), *ids = cri_payload_buffer(s);

    for (size_t k = 0; k < s->num; k++) {
        const cr_sample *x = &b->r->samples[s->samples[k]];
        cr_buf_add(num, x->kept.num, x->num_ids * 4);
        cr_buf_add(ids, x->kept.ids, x->kept.num_ids * 4);
    }
    cri_payload_attach(s, CR_FIELD_NUM_KEPT, CR_RECORD_INT32, num);
    cri_payload_attach(s, CR_FIELD_KEPT_IDS, CR_RECORD_INT32, ids);
}

void cri_payload_add_tokens(cri_payload *s, const cri_learn_batch *b, const int32_t *mini)
{
    cr_buf *prompts = cri_payload_buffer(s), *lengths = cri_payload_buffer(s),
           *minis = cri_payload_buffer(s), *ids = cri_payload_buffer(s),
           *names = cri_payload_buffer(s);

    for (size_t k = 0; k < s->num; k++) {
        const cr_sample *x = &b->r->samples[s->samples[k]];
        const cr_row *row = &b->data->rows[x->row];
        int32_t prompt = (int32_t)row->num_ids, length = (int32_t)x->num_ids,
                m = mini ? mini[s->samples[k]] : 0;
        cr_buf_add(prompts, &prompt, 4);
        cr_buf_add(lengths, &length, 4);
        cr_buf_add(minis, &m, 4);
        cr_buf_add(names, &x->id, 8);
        cr_buf_add(ids, row->ids, row->num_ids * 4);
        cr_buf_add(ids, x->ids, x->num_ids * 4);
    }
    cri_payload_attach(s, CR_FIELD_PROMPTS, CR_RECORD_INT32, prompts);
    cri_payload_attach(s, CR_FIELD_LENGTHS, CR_RECORD_INT32, lengths);
    cri_payload_attach(s, CR_FIELD_MINI, CR_RECORD_INT32, minis);
    cri_payload_attach(s, CR_FIELD_IDS, CR_RECORD_INT32, ids);
    cr_record_add(&s->record, CR_FIELD_SAMPLE_IDS, CR_RECORD_UINT64, names->data ? names->data : "",
                  s->num);
    if (b->r->num_samples && b->r->samples[0].kept.num) add_kept(s, b); /* all have, or none */
}

void cri_payload_add_floats(cri_payload *s, const cri_learn_batch *b, const char *name,
                            const double *x)
{
    cr_buf *out = cri_payload_buffer(s);

    for (size_t k = 0; k < s->num; k++)
        for (size_t t = b->start[s->samples[k]]; t < b->start[s->samples[k] + 1]; t++) {
            float f = (float)x[t];
            cr_buf_add(out, &f, 4);
        }
    cri_payload_attach(s, name, CR_RECORD_FLOAT32, out);
}

/* Numbers per token that a rank answered, in the order of its samples. */
cr_status cri_payload_read_floats(const cr_record *reply, const char *name,
                                  const cri_payload *payload, const cri_learn_batch *b, double *to,
                                  cr_err *err)
{
    const void *from;
    size_t num, want = 0, at = 0;

    CR_TRY(cr_record_get(reply, name, CR_RECORD_FLOAT32, &from, &num, err));
    for (size_t k = 0; k < payload->num; k++)
        want += b->r->samples[payload->samples[k]].num_ids;
    if (num != want)
        return cr_fail(err, CR_EFORMAT, "%zu numbers of %s for %zu tokens", num, name, want);
    for (size_t k = 0; k < payload->num; k++)
        for (size_t t = b->start[payload->samples[k]]; t < b->start[payload->samples[k] + 1]; t++)
            to[t] = ((const float *)from)[at++];
    return CR_OK;
}

/* ---- log-probs of a role over the whole batch ---- */

cr_status cri_ask_log_probs(cr_run *run, cr_role role, const cri_learn_batch *b, double *log_probs,
                            double *entropy, cr_metrics *m, cr_err *err)
{
    int num = run->layout.role[role].num,
        same = (int)run->layout.role[role].worker->ulysses_size; /* ranks that get one batch */
    size_t n = b->r->num_samples;
    cri_payload *payloads = CR_NEW_ARRAY(cri_payload, num);
    cr_request *requests = CR_NEW_ARRAY(cr_request, num);

    for (int r = 0; r < num && err->status == CR_OK; r++) {
        payloads[r].samples = CR_NEW_ARRAY(size_t, n);
        for (size_t i = (size_t)(r / same); i < n; i += (size_t)(num / same))
            payloads[r].samples[payloads[r].num++] = i;
        cri_payload_add_tokens(&payloads[r], b, NULL);
        if (role == CR_ROLE_TRAIN) /* it trains next */
            cr_record_set_int(&payloads[r].record, CR_FIELD_OFFLOAD, 0);
        cr_note(
            cr_run_send(run, role, r, CR_ASK_LOG_PROBS, &payloads[r].record, &requests[r], err));
    }
    for (int r = 0; r < num && err->status == CR_OK; r++) {
        cr_record reply;
        if (cr_run_wait(run, &requests[r], &reply, err) != CR_OK) break;
        if (r == 0) cr_phase_metrics(m, run->layout.role[role].name, "compute_log_probs", &reply);
        cr_note(
            cri_payload_read_floats(&reply, CR_FIELD_LOG_PROBS, &payloads[r], b, log_probs, err));
        if (entropy && err->status == CR_OK)
            cr_note(
                cri_payload_read_floats(&reply, CR_FIELD_ENTROPY, &payloads[r], b, entropy, err));
        cr_record_free(&reply);
    }
    for (int r = 0; r < num; r++)
        cri_payload_free(&payloads[r]);
    cr_free(payloads);
    cr_free(requests);
    return err->status;
}
