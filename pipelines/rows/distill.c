/* distill.c -- distillation on given answers: the likeliest ids of each learnt token by the teacher, and how far the student's
 * distribution is from them (rl/distill.h; see rows.h and docs/distill.md). Rows are those of sft. */
#include "exchange/record.h"
#include "pipelines/rows/rows.h"
#include "pipelines/service/service.h"
#include "reports/metrics.h"
#include "samples/batch.h"

#include <math.h>

typedef struct distill {
    cr_role_service *service; /* the teacher, or NULL */
    int64_t vocab;            /* of the student */
    int64_t top;              /* ids of a token that the teacher is asked for; 0: its states */
    int64_t hidden;           /* numbers of a state */
} distill;

static cr_status open_teacher(cr_rows *r, cr_err *err)
{
    const cr_worker_config *teacher = &r->c->teacher;
    distill *d = r->own = CR_NEW(distill);

    CR_TRY(cr_model_number_read(r->c->train.model_path, "vocab_size", &d->vocab, err));
    d->top = (int64_t)r->c->distill.kd.logits_topk;
    if (d->top > d->vocab) d->top = d->vocab; /* the teacher has no fewer */
    if (teacher->service.url) return cr_role_service_open(r->c, teacher, d->top, &d->service, err);
    CR_TRY(cr_vocabulary_check(r->c, teacher, r->tokenizer, err));
    return cr_model_number_read(teacher->model_path, "hidden_size", &d->hidden, err);
}

static cr_status load(cr_rows *r, const cr_worker_config *from, cr_dataset *data, cr_err *err)
{
    if (!r->own) CR_TRY(open_teacher(r, err));
    return cr_rows_load_answers(r, from, data, err);
}

/* Words of the teacher that the student does not have, of padding, are none: they count to the tail. */
static void drop_unknown(struct cr_batch_teacher *w, size_t num_tokens, int64_t vocab)
{
    for (size_t i = 0; i < num_tokens * w->num; i++) {
        if (w->ids[i] < vocab) continue;
        w->ids[i] = -1;
        w->numbers[i] = -INFINITY;
    }
}

static cr_status ask_ranks(cr_rows *r, cr_sample_batch *b, cr_err *err)
{
    const distill *d = r->own;
    cr_record command = {0};
    cr_role_call call = {
        .role = CR_ROLE_TEACHER, .ask = CR_ASK_LOG_PROBS, .command = &command, .batch = b};

    if (d->top)
        cr_record_set_int(&command, CR_FIELD_TOP, d->top);
    else
        cr_record_set_int(&command, CR_FIELD_STATES, 1);
    if (cr_role_call_run(r->run, &call, err) == CR_OK)
        cr_note(
            cr_role_call_read_teacher(&call, (size_t)(d->top ? d->top : d->hidden), !d->top, err));
    cr_role_call_free(&call);
    cr_record_free(&command);
    return err->status;
}

static cr_status ask_teacher(cr_rows *r, cr_sample_batch *b, cr_err *err)
{
    const distill *d = r->own;

    CR_TRY(d->service ? cr_role_service_ask_teacher(d->service, r->run, b, err)
                      : ask_ranks(r, b, err));
    if (d->top) drop_unknown(&b->teacher, b->num_tokens, d->vocab);
    return CR_OK;
}

static cr_status train(cr_rows *r, const uint32_t *rows, double lr, cr_metrics *m, cr_err *err)
{
    double start = cr_now_s(), asked, tokens;
    uint64_t counts[CR_MINI_COUNTS] = {0};
    cr_train_sums sums = {0};
    cr_sample_batch b;

    cr_note(cr_rows_answers(r, rows, &counts[CR_MINI_TOKENS], &b, err));
    tokens = (double)counts[CR_MINI_TOKENS];
    if (err->status == CR_OK) cr_note(ask_teacher(r, &b, err));
    asked = cr_now_s();
    if (err->status == CR_OK) cr_note(cr_rows_update(r, &b, counts, lr, &sums, err));
    cr_sample_batch_free(&b);
    CR_TRY(err->status);
    cr_metrics_set(m, sums.loss.total_loss, "train/loss");
    cr_metrics_set(m, sums.distill_loss, "train/train_distill_loss");
    cr_metrics_set(m, sums.student_loss, "train/train_student_loss");
    cr_metrics_set(m, sums.num_skipped ? (double)NAN : sums.grad_norm, "student/grad_norm");
    cr_metrics_set(m, (double)(float)lr, "student/lr");
    cr_metrics_set(m, tokens, "train/tokens");
    cr_metrics_set(m, asked - start, "time/teacher_forward");
    cr_metrics_set(m, cr_now_s() - asked, "time/student_train_step");
    cr_metrics_set(m, tokens / (cr_now_s() - start), "system/tps/tps");
    return CR_OK;
}

static cr_status begin(cr_rows *r, cr_err *err)
{
    const distill *d = r->own;

    return d->service ? cr_role_service_record(d->service, r->run->output_dir, err) : CR_OK;
}

static void end(cr_rows *r)
{
    distill *d = r->own;

    if (!d) return;
    cr_role_service_close(d->service);
    cr_free(d);
}

const cr_rows_kind cr_rows_distill = {.ask = CR_ASK_DISTILL_STEP,
                                      .score = "train/train_distill_loss",
                                      .val_loss = "student/val_loss",
                                      .num_samples = 1,
                                      .load = load,
                                      .train = train,
                                      .validate = cr_rows_validate_answers,
                                      .begin = begin,
                                      .end = end};
