/* rows.c -- the pipelines whose rows have their answers: sft and dpo. */
#include "configs/bind.h"

static void bind_columns(cr_config *c, const cr_node *root)
{
    c->rows = (cr_row_keys){.prompt_key = cri_text_of(root, "prompt_key"),
                            .query_key = cri_text_of(root, "query_key"),
                            .system_key = cri_text_of(root, "system_key"),
                            .response_key = cri_text_of(root, "response_key"),
                            .chosen_key = cri_text_of(root, "chosen_key"),
                            .rejected_key = cri_text_of(root, "rejected_key"),
                            .shuffle = cri_flag_of(root, "shuffle"),
                            .keeps_reference = cri_flag_of(root, "cache_reference_log_probs")};
}

static void bind_length(cr_config *c, const cr_node *root, cr_diagnostics *d)
{
    c->sequence_length = cri_int_of(root, "sequence_length");
    if (!c->sequence_length)
        cr_diagnose(d, CR_ERROR, (cr_place){c->path, 1, 1}, "sequence_length must be given");
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
    cr_node *args = cr_node_at(root, "sft_train.model_args"),
            *path = cr_node_get(args, "model_name_or_path"),
            *pretrain = cr_node_get(root, "pretrain");

    if (cr_node_get(root, "sft_train")->kind == CR_NODE_NULL)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "sft_train"),
                    "sft_train is empty: there is nothing to run");
    if (cr_node_get(root, "sft_train")->kind != CR_NODE_MAP) return;
    args = cri_block_of(c, cr_node_get(root, "sft_train"), "model_args", "model_args", d);
    if (!path || path->kind != CR_NODE_TEXT) {
        if (pretrain->kind == CR_NODE_TEXT)
            cri_set_text(c, args, "model_name_or_path", pretrain->text);
        else
            cr_diagnose(d, CR_ERROR, cri_place_of(c, "sft_train"),
                        "sft_train has no model: give pretrain");
    }
    cri_bind_worker(c, root, "sft_train", &c->train, CR_TASK_TRAIN, d);
    cri_bind_validation(c, root, "sft_train", d);
    if (c->train.data.prompt)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "sft_train.data_args.prompt"),
                    "data_args.prompt is a column of rlvr (sft: prompt_key and response_key, or "
                    "data_args.messages)");
    bind_length(c, root, d);
    cri_check_sizes(c, d);
    cri_check_positions(c, d);
    cri_check_batching(c, &c->train, d);
    bind_columns(c, root);
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
    cri_bind_worker(c, root, "actor_train", &c->train, CR_TASK_TRAIN, d);
    cri_bind_worker(c, root, "reference", &c->reference, CR_TASK_SCORE, d);
    cri_bind_validation(c, root, "actor_train", d);
    bind_length(c, root, d);
    bind_columns(c, root);
    bind_pairs(c, root, d);
    c->reference.is_needed = true;
    cri_place_reference(c, d);
    cri_check_sizes(c, d);
    cri_check_positions(c, d);
    check_dpo(c, d);
}
