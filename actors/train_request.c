/* train_request.c -- one epoch over the batch: requests to the train ranks, sums of their replies
 * (see assemble_impl.h). */
#include "actors/assemble_impl.h"
#include "actors/packing.h"
#include "actors/phases.h"
#include "rl/loss.h"

#include <math.h>
#include <string.h>

static cr_status take_reply(const cr_record *reply, cri_update_sums *s, bool is_first, cr_err *err)
{
    const struct {
        const char *name;
        double *to;
    } added[] = {{"pg_loss", &s->pg_loss},     {"weighted_pg_loss", &s->weighted_pg_loss},
                 {"kl_loss", &s->kl_loss},     {"total_loss", &s->total_loss},
                 {"approxkl", &s->approxkl},   {"policykl", &s->policykl},
                 {"clip_low", &s->clip_low},   {"clip_high", &s->clip_high},
                 {"ratio_sum", &s->ratio_sum}, {"num_tokens", &s->num_tokens},
                 {"entropy_sum", &s->entropy}};
    double x, most, least;
    int64_t n;

    for (size_t i = 0; i < CR_COUNT(added); i++) {
        CR_TRY(cr_record_get_real(reply, added[i].name, &x, err));
        *added[i].to += x;
    }
    CR_TRY(cr_record_get_real(reply, "ratio_max", &most, err));
    CR_TRY(cr_record_get_real(reply, "ratio_min", &least, err));
    CR_TRY(cr_record_get_real(reply, "num_tokens", &x, err));
    if (x > 0) {
        s->ratio_max = fmax(s->ratio_max, most);
        s->ratio_min = s->ratio_min > 0 ? fmin(s->ratio_min, least) : least;
    }
    CR_TRY(cr_record_get_real(reply, "infer_diff_max", &x, err));
    s->infer_diff_max = fmax(s->infer_diff_max, x);
    CR_TRY(cr_record_get_int(reply, "compared", &n, err));
    s->num_compared += n;
    CR_TRY(cr_record_get_int(reply, "different", &n, err));
    s->num_different += n;
    if (!is_first) return CR_OK; /* the same on every rank */
    CR_TRY(cr_record_get_real(reply, "grad_norm", &x, err));
    s->grad_norm += x;
    return cr_record_get_int(reply, "skipped", &s->skipped, err);
}

/* Counts of every mini-batch over all ranks: final tokens and samples, tokens and samples, width. */
static float *count_minis(const cr_learning *l, const cri_learn_batch *b, const int32_t *mini,
                          int64_t num_minis)
{
    float *counts = CR_NEW_ARRAY(float, 5 * num_minis);

    for (size_t i = 0; i < b->r->num_samples; i++) {
        size_t start[2] = {0, b->start[i + 1] - b->start[i]};
        cr_ragged one = {1, start};
        double c[4] = {0};
        cr_count_masks(&one, b->final + b->start[i], &c[0], &c[1]);
        cr_count_masks(&one, b->mask + b->start[i], &c[2], &c[3]);
        for (int k = 0; k < 4; k++)
            counts[5 * mini[i] + k] += (float)c[k];
    }
    for (int64_t m = 0; m < num_minis; m++)
        counts[5 * m + 4] = (float)(l->config->sequence_length - l->config->prompt_length);
    return counts;
}

cr_status cri_train_epoch(cr_learning *l, cr_run *run, cri_learn_batch *b, int64_t step,
                          int64_t epoch, cri_update_sums *s, cr_metrics *m, cr_err *err)
{
    int64_t num_epochs = l->config->algorithm.ppo_epochs;
    bool is_again = epoch > 0, is_last = epoch == num_epochs - 1;
    int num = run->layout.role[CR_ROLE_TRAIN].num,
        same = (int)l->config->train.ulysses_size; /* ranks that get one batch */
    size_t n = b->r->num_samples, *tokens = CR_NEW_ARRAY(size_t, n);
    uint32_t *order = CR_NEW_ARRAY(uint32_t, n);
    int32_t *mini = CR_NEW_ARRAY(int32_t, n), *rank = CR_NEW_ARRAY(int32_t, n);
    int64_t num_minis = ((int64_t)n + l->mini_size - 1) / l->mini_size;
    float *counts, *lr = CR_NEW_ARRAY(float, num_minis);
    cr_old_log_probs old_from = is_again ? CR_OLD_COMPUTED : b->old_from;
    cri_payload *payloads = CR_NEW_ARRAY(cri_payload, num);
    cr_request *requests = CR_NEW_ARRAY(cr_request, num);

    for (size_t i = 0; i < n; i++)
        tokens[i] = b->data->rows[b->r->samples[i].row].num_ids + b->r->samples[i].num_ids;
    cr_packing_deal(tokens, n, b->r->group_size, num / same,
                    (size_t)l->config->train.per_device_train_batch_size, (size_t)l->mini_size,
                    (uint64_t)l->config->seed, (uint64_t)(step * num_epochs + epoch), order, mini,
                    rank);
    counts = count_minis(l, b, mini, num_minis);
    for (int64_t k = 0; k < num_minis; k++)
        lr[k] = (float)cr_learning_rate(l->schedule, l->config->train.learning_rate,
                                        l->warmup_steps, l->schedule_steps, l->updates + k);
    for (int r = 0; r < num && err->status == CR_OK; r++) {
        cri_payload *payload = &payloads[r];
        cr_buf *scores = cri_payload_buffer(payload), *weights = cri_payload_buffer(payload);
        float one = 1;
        payload->samples = CR_NEW_ARRAY(size_t, n);
        for (size_t k = 0; k < n; k++)
            if (rank[order[k]] == r / same) payload->samples[payload->num++] = order[k];
        cri_payload_add_tokens(payload, b, mini);
        cri_payload_add_floats(payload, b, "infer", b->infer);
        cri_payload_add_floats(payload, b, "advantages", b->advantages);
        cri_payload_add_floats(payload, b, "mask", b->mask);
        cri_payload_add_floats(payload, b, "final", b->final);
        if (old_from == CR_OLD_COMPUTED) cri_payload_add_floats(payload, b, "old", b->old);
        if (b->has_ref) cri_payload_add_floats(payload, b, "ref", b->ref);
        for (size_t k = 0; k < payload->num; k++) {
            float score = (float)b->r->samples[payload->samples[k]].score;
            cr_buf_add(scores, &score, 4);
            cr_buf_add(weights, &one, 4);
        }
        cri_payload_attach(payload, "scores", CR_RECORD_FLOAT32, scores);
        cri_payload_attach(payload, "weights", CR_RECORD_FLOAT32, weights);
        cr_record_add(&payload->record, "lr", CR_RECORD_FLOAT32, lr, (size_t)num_minis);
        cr_record_add(&payload->record, "counts", CR_RECORD_FLOAT32, counts, 5 * (size_t)num_minis);
        cr_record_set_int(&payload->record, "minis", num_minis);
        cr_record_set_int(&payload->record, "old_from", old_from);
        cr_record_set_int(&payload->record, "is_again", is_again);
        cr_record_set_int(&payload->record, "is_offload_states", is_last);
        cr_note(
            cr_run_send(run, CR_ROLE_TRAIN, r, "train_step", &payload->record, &requests[r], err));
    }
    for (int r = 0; r < num && err->status == CR_OK; r++) {
        cr_record reply;
        if (cr_run_wait(run, &requests[r], &reply, err) != CR_OK) break;
        if (r == 0) cr_phase_metrics(m, "actor_train", "train_step", &reply);
        if (r % same == 0) cr_note(take_reply(&reply, s, r == 0, err));
        if (cr_record_has(&reply, "old"))
            cr_note(cri_payload_read_floats(&reply, "old", &payloads[r], b, b->old, err));
        cr_record_free(&reply);
    }
    l->updates += num_minis - s->skipped;
    s->num_updates += num_minis;
    for (int r = 0; r < num; r++)
        cri_payload_free(&payloads[r]);
    cr_free(payloads);
    cr_free(requests);
    cr_free(tokens);
    cr_free(order);
    cr_free(mini);
    cr_free(rank);
    cr_free(lr);
    cr_free(counts);
    return err->status;
}
