/* rows.c -- the pipelines whose rows have their answers: sft, dpo and distill. */
#include "configs/bind.h"

#include <string.h>

/* Its own model, or that of `pretrain`. */
static void derive_model(cr_config *c, cr_node *root, const char *role, const char *pretrain,
                         cr_diagnostics *d)
{
    cr_node *block = cr_node_get(root, role), *args;
    const cr_node *from = cr_node_get(root, pretrain);

    if (cri_is_given(block, "service")) return;
    args = cri_block_of(c, block, "model_args", "model_args", d);
    if (cri_is_given(args, "model_name_or_path")) return;
    if (from->kind == CR_NODE_NULL && strcmp(role, "student") == 0)
        from = cr_node_get(root, "pretrain");
    if (from->kind == CR_NODE_TEXT)
        cri_set_text(c, args, "model_name_or_path", from->text);
    else
        cr_diagnose(d, CR_ERROR, block->place, "%s has no model: give %s", role, pretrain);
}

/* The trained role, the length of its sequences, and the columns of its rows. */
static void bind_rows(cr_config *c, cr_node *root, const char *trained, cr_diagnostics *d)
{
    const bool is_distill = c->kind == CR_PIPELINE_DISTILL;

    cri_bind_worker(c, root, trained, &c->train, CR_TASK_TRAIN, d);
    cri_bind_validation(c, root, trained, d);
    cri_bind_best(c, root, d);
    c->sequence_length = cri_int_of(root, "sequence_length");
    if (!c->sequence_length)
        cr_diagnose(d, CR_ERROR, (cr_place){c->path, 1, 1}, "sequence_length must be given");
    c->rows =
        (cr_row_keys){.prompt_key = cri_text_of(root, is_distill ? "question_key" : "prompt_key"),
                      .query_key = cri_text_of(root, "query_key"),
                      .system_key = cri_text_of(root, "system_key"),
                      .response_key = cri_text_of(root, is_distill ? "answer_key" : "response_key"),
                      .question_template = cri_text_of(root, "question_template"),
                      .chosen_key = cri_text_of(root, "chosen_key"),
                      .rejected_key = cri_text_of(root, "rejected_key"),
                      .shuffle = cri_flag_of(root, "shuffle"),
                      .keeps_reference = cri_flag_of(root, "cache_reference_log_probs")};
}

/* The trained role has devices and rows. */
static void check_trained(const cr_config *c, cr_diagnostics *d)
{
    const cr_worker_config *w = &c->train;

    if (!w->is_mapped)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, w->name), "%s.device_mapping is missing", w->name);
    if (w->data.num_file_names == 0)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, w->name), "%s.data_args.file_name is missing",
                    w->name);
}

void cri_load_sft(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    if (cr_node_get(root, "sft_train")->kind == CR_NODE_NULL)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "sft_train"),
                    "sft_train is empty: there is nothing to run");
    if (cr_node_get(root, "sft_train")->kind != CR_NODE_MAP) return;
    derive_model(c, root, "sft_train", "pretrain", d);
    bind_rows(c, root, "sft_train", d);
    if (c->train.data.prompt)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "sft_train.data_args.prompt"),
                    "data_args.prompt is a column of rlvr (sft: prompt_key and response_key, or "
                    "data_args.messages)");
    cri_check_sizes(c, d);
    cri_check_positions(c, d);
    cri_check_batching(c, &c->train, d);
    check_trained(c, d);
}

/* ---- dpo ---- */

static void bind_pairs(cr_config *c, const cr_node *root, cr_diagnostics *d)
{
    cr_pair_config *p = &c->pairs;

    p->loss_type = (cr_pair_loss)cri_choice_of("dpo", root, "loss_type");
    p->beta = cri_real_of(root, "beta");
    p->label_smoothing = cri_real_of(root, "label_smoothing");
    p->rpo_alpha = cri_real_of(root, "rpo_alpha");
    if (cri_flag_of(root, "ipo") && p->loss_type != CR_PAIR_SIGMOID)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "ipo"),
                    "ipo and loss_type %s exclude each other (ipo: true is ROLL's IPO, of sums of "
                    "log-probs; loss_type: ipo is TRL's, of their means)",
                    cr_pair_loss_names[p->loss_type]);
    else if (cri_flag_of(root, "ipo"))
        p->loss_type = CR_PAIR_IPO_SUM;
    if (p->label_smoothing > 0 && p->loss_type != CR_PAIR_SIGMOID && p->loss_type != CR_PAIR_ROBUST)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "label_smoothing"),
                    "label_smoothing is of the losses sigmoid (cDPO) and robust, this one is %s",
                    cr_pair_loss_names[p->loss_type]);
    if (p->loss_type == CR_PAIR_ROBUST && p->label_smoothing >= 0.5)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "label_smoothing"),
                    "label_smoothing is %g: loss_type robust divides by 1 - 2 x label_smoothing, "
                    "which must be above 0",
                    p->label_smoothing);
}

static void check_dpo(const cr_config *c, cr_diagnostics *d)
{
    const cr_worker_config *w = &c->train, *r = &c->reference;

    check_trained(c, d);
    cri_check_batching(c, w, d);
    if (w->data.messages)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "actor_train.data_args.messages"),
                    "data_args.messages is a column of rlvr and sft (dpo: prompt_key, chosen_key "
                    "and rejected_key, whose columns may hold messages)");
    if (!strcmp(c->rows.chosen_key, c->rows.rejected_key))
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "rejected_key"),
                    "chosen_key and rejected_key are both %s: of one column nothing is preferred",
                    c->rows.chosen_key);
    if (w->batching.train_tokens && w->batching.train_tokens < 2 * c->sequence_length)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "actor_train"),
                    "actor_train.max_tokens_per_microbatch_in_train is %lld, and a pair may have "
                    "2 x sequence_length %lld tokens: it must fit into a micro-batch",
                    (long long)w->batching.train_tokens, (long long)c->sequence_length);
    if (!r->is_given && !r->is_of_trainer)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "actor_train"),
                    "dpo needs a reference: a block with device_mapping, or reference: {service: "
                    "URL}");
    else if (r->is_given && !r->service.url && !r->is_of_trainer && !r->is_mapped)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "reference"),
                    "reference.device_mapping is missing");
    else if (r->is_given && !r->service.url && !r->is_of_trainer)
        cri_check_batching(c, r, d);
}

void cri_load_dpo(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    if (!cr_node_get(root, "actor_train") ||
        cr_node_get(root, "actor_train")->kind != CR_NODE_MAP) {
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "actor_train"),
                    "actor_train is missing: there is nothing to train");
        return;
    }
    cri_derive_models(c, root, d);
    bind_rows(c, root, "actor_train", d);
    cri_bind_worker(c, root, "reference", &c->reference, CR_TASK_SCORE, d);
    bind_pairs(c, root, d);
    c->reference.is_needed = true;
    cri_place_reference(c, d);
    cri_bind_follow(c, root, d);
    cri_check_sizes(c, d);
    cri_check_positions(c, d);
    check_dpo(c, d);
}

/* ---- distill ---- */

/* Rows of ROLL's distillation of vision-language models, whose template is called so: what its pipeline has in its code. */
static void derive_vl(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    static const struct {
        const char *key, *text;
    } texts[] = {{"question_key", "problem"},
                 {"answer_key", "solution"},
                 {"question_template",
                  CR_QUESTION "  Output final answer (number) in <answer> </answer> tags."}};
    static const struct {
        const char *key;
        int64_t value;
    } limits[] = {{"image_min_pixels", 56 * 56}, {"image_max_pixels", 1024 * 1024}};
    cr_node *args = cri_block_of(c, cr_node_get(root, "student"), "data_args", "data_args", d);
    const cr_node *name = cr_node_get(args, "template");
    cr_buf derived = {0};

    if (cri_is_given(root, "global_template")) name = cr_node_get(root, "global_template");
    if (!name || name->kind != CR_NODE_TEXT || strcmp(name->text, "qwen2-vl") != 0 ||
        cri_is_given(args, "messages"))
        return;
    for (size_t i = 0; i < CR_COUNT(texts); i++)
        if (!cri_is_in_file(root, texts[i].key)) {
            cri_set_text(c, root, texts[i].key, texts[i].text);
            cr_buf_addf(&derived, ", %s \"%s\"", texts[i].key, texts[i].text);
        }
    for (size_t i = 0; i < CR_COUNT(limits); i++)
        if (!cri_is_in_file(args, limits[i].key)) {
            cri_set_int(c, args, limits[i].key, limits[i].value);
            cr_buf_addf(&derived, ", %s %lld", limits[i].key, (long long)limits[i].value);
        }
    if (derived.num_bytes)
        cr_diagnose(d, CR_NOTE, name->place,
                    "template qwen2-vl: rows are those of ROLL's vision-language distillation: %s",
                    derived.data + 2);
    cr_buf_free(&derived);
}

static void check_question(const cr_config *c, cr_diagnostics *d)
{
    if (c->rows.question_template && !strstr(c->rows.question_template, CR_QUESTION))
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "question_template"),
                    "question_template has no " CR_QUESTION ", where the question goes");
}

static void bind_distill(cr_config *c, const cr_node *root, cr_diagnostics *d)
{
    cr_distill_keys *k = &c->distill;

    k->kd = (cr_kd_config){.kd_objective = (cr_kd)cri_choice_of("distill", root, "kd_objective"),
                           .logits_topk = (size_t)cri_int_of(root, "logits_topk"),
                           .is_tail = cri_choice_of("distill", root, "kd_normalize") == 0,
                           .kd_temperature = cri_real_of(root, "kd_temperature"),
                           .teacher_temperature = cri_real_of(root, "teacher_temperature"),
                           .adaptive_kl_alpha = cri_real_of(root, "adaptive_kl_alpha"),
                           .skew_lambda = cri_real_of(root, "skew_lambda")};
    k->distill_loss_weight = cri_real_of(root, "distill_loss_weight");
    k->distill_on_prompt = cri_flag_of(root, "distill_on_prompt");
    if (!(c->algorithm.max_grad_norm > 0))
        cr_diagnose(d, CR_NOTE, cri_place_of(c, "max_grad_norm"),
                    "max_grad_norm: 0 means that gradients are not clipped (ROLL's fsdp2 clips "
                    "them to a norm of 0, and learns nothing)");
}

/* ROLL's teacher has its micro-batches from training_args. */
static void derive_teacher_batch(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    cr_node *block = cr_node_get(root, "teacher"), *args = cr_node_get(block, "training_args");

    if (!args || args->kind != CR_NODE_MAP) return;
    if (!cri_is_in_file(block, "infer_batch_size") && !cri_is_given(block, "service") &&
        cri_is_in_file(args, "per_device_train_batch_size"))
        cri_set_int(c, block, "infer_batch_size", cri_int_of(args, "per_device_train_batch_size"));
    cr_diagnose(d, CR_NOTE, args->place,
                "teacher.training_args: it does not train; per_device_train_batch_size is its "
                "infer_batch_size, where that is not given");
}

static void check_distill(const cr_config *c, cr_diagnostics *d)
{
    const cr_worker_config *t = &c->teacher;

    check_trained(c, d);
    cri_check_batching(c, &c->train, d);
    if (c->train.data.prompt)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "student.data_args.prompt"),
                    "data_args.prompt is a column of rlvr (distill: question_key and answer_key, "
                    "or data_args.messages)");
    if (t->service.url && !c->distill.kd.logits_topk)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "logits_topk"),
                    "logits_topk: 0 needs the teacher's states, and teacher.service answers with "
                    "log-probs (give a number of ids, or the teacher a model and a "
                    "device_mapping)");
    else if (t->service.url)
        return;
    else if (!t->is_mapped)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "teacher"), "teacher.device_mapping is missing");
    else
        cri_check_batching(c, t, d);
}

void cri_load_distill(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    static const char *const blocks[] = {"student", "teacher"};

    for (size_t i = 0; i < CR_COUNT(blocks); i++) {
        const cr_node *block = cr_node_get(root, blocks[i]);
        if (!block || block->kind != CR_NODE_MAP)
            cr_diagnose(d, CR_ERROR, cri_place_of(c, blocks[i]),
                        "%s is missing: a distillation has a student and a teacher", blocks[i]);
    }
    if (d->num_errors) return;
    derive_model(c, root, "student", "student_pretrain", d);
    derive_model(c, root, "teacher", "teacher_pretrain", d);
    derive_teacher_batch(c, root, d);
    derive_vl(c, root, d);
    bind_rows(c, root, "student", d);
    cri_bind_worker(c, root, "teacher", &c->teacher, CR_TASK_SCORE, d);
    bind_distill(c, root, d);
    check_question(c, d);
    cri_check_sizes(c, d);
    cri_check_positions(c, d);
    check_distill(c, d);
}
