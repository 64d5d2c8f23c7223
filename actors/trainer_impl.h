/* trainer_impl.h -- parts of a trainer, shared by trainer.c, train_step.c and trainer_save.c only.
 *
 * Flow 1, 6 and 7 of 7. A record's samples are sequences of ids with the places of their response tokens in
 * them (samples/train.h), and per response token whatever the loss needs. Micro-batches are packed from
 * per_device_train_batch_size (or infer_batch_size) samples, or up to a number of tokens; all ranks run
 * the same number.
 */
#ifndef CR_TRAINER_IMPL_H
#define CR_TRAINER_IMPL_H

#include "actors/actor.h"
#include "actors/distribution.h"
#include "models/parts/table.h"
#include "samples/items/loader.h"
#include "strategies/packed.h"
#include "strategies/packed_images.h"

struct cr_trainer {
    cr_actor *a;
    cr_fsdp *f;
    bool is_train;
    bool is_shared; /* its devices: states leave them after a command */
    /* the micro-batch that runs */
    cr_packed packed;
    cr_packed_images images;
    cr_item_loader *loader; /* opened with the first samples that have images */
    double *work;           /* of the loss of a micro-batch (train_step.c) */
    size_t capacity_work;
    size_t *start; /* [capacity_samples + 1] */
    size_t capacity_samples;
    cr_distribution distribution;
    cr_processor_arrays processors;
    /* of a teacher, for each label of the micro-batch: ids, log-probs or states; its logits of some labels */
    int32_t *chosen;
    float *teacher, *teacher_logits;
    size_t capacity_chosen, capacity_teacher, capacity_logits;
    cr_vocab_table *table; /* of the teacher, once states have come */
    uint64_t *drop_keys;   /* [capacity_drop_keys] of the micro-batch's tokens */
    size_t capacity_drop_keys;
    char *save_folder,
        *save_mark; /* of the save under way, if this rank has the launcher's folder; owned */
};

/* The samples of a command, checked against the model and the file. Free with cr_samples_free, also
 * after a failure. */
CR_MUST cr_status cri_read_samples(const cr_trainer *t, const cr_record *command, cr_samples *s,
                                   cr_err *err);

/* ---- micro-batches ---- */

typedef struct cri_micro_rule {
    size_t samples; /* of each micro-batch, */
    size_t tokens;  /* or, if this is not 0, at most this number of tokens */
    size_t group;   /* samples that stay together, one after the other in the record: 2 of a pair */
} cri_micro_rule;

typedef struct cri_micros { /* owned */
    size_t *order;          /* of the record's samples */
    size_t *start;          /* [num + 1] in order */
    size_t num;
} cri_micros;
/* Samples mine[num] of the record, whole groups; micro-batches up to min_micros that are empty are added. */
void cri_cut(const cr_samples *s, const size_t *mine, size_t num, const cri_micro_rule *rule,
             size_t min_micros, cri_micros *out);
/* As many on every rank as on the one that needs the most. Collective. */
CR_MUST cr_status cri_cut_on_all(cr_trainer *t, const cr_samples *s, const size_t *mine, size_t num,
                                 const cri_micro_rule *rule, cri_micros *out, cr_err *err);
void cri_micros_free(cri_micros *m);
/* Samples order[0 .. num-1] as one packed batch; rows that predict a response token have labels, less those
 * where `learns` (per response token, or NULL) is 0. t->start counts labels. Images that this rank lacks are fetched. Valid until
 * the next call. */
CR_MUST cr_status cri_pack(cr_trainer *t, const cr_samples *s, const size_t *order, size_t num,
                           const float *learns, cr_batch *out, cr_err *err);
/* Outputs of all response tokens, in the order of the record, without gradient; likeliest ids, too, but no ranks, candidates or draws. */
CR_MUST cr_status cri_forward_all(cr_trainer *t, const cr_samples *s, const cr_outputs *out,
                                  cr_err *err);
/* train_step, sft_step, dpo_step, distill_step or value_step. */
CR_MUST cr_status cri_train(cr_trainer *t, cr_ask ask, const cr_record *command, cr_record *reply,
                            cr_err *err);

/* ---- checkpoints: trainer_save.c ---- */

CR_MUST cr_status cri_trainer_save(cr_trainer *t, const cr_record *command, cr_record *reply,
                                   cr_err *err);
CR_MUST cr_status cri_trainer_save_poll(cr_trainer *t, const cr_record *command, cr_record *reply,
                                        cr_err *err);
CR_MUST cr_status cri_trainer_save_wait(cr_trainer *t, const cr_record *command, cr_record *reply,
                                        cr_err *err);
CR_MUST cr_status cri_trainer_resume(cr_trainer *t, const cr_record *command, cr_record *reply,
                                     cr_err *err);

#endif
