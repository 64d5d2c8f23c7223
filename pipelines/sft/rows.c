/* sft_rows.c -- see rows.h. */
#include "pipelines/sft/rows.h"

#include "actors/packing.h"

/* The first token has nothing to be predicted from, so it is always of the prompt. */
static size_t prompt_of(const cr_row *row)
{
    return row->num_prompt ? row->num_prompt : 1;
}

size_t cr_sft_num_learnt(const cr_row *row)
{
    size_t num = 0;

    for (size_t t = prompt_of(row); t < row->num_ids; t++)
        num += !row->learns || row->learns[t];
    return num;
}

/* Rows that are cut before their answer begins have nothing to learn. */
static cr_status check_answers(const cr_dataset *data, int64_t sequence_length, const char *what,
                               cr_err *err)
{
    size_t num_empty = 0;

    for (size_t i = 0; i < data->num_rows; i++)
        num_empty += cr_sft_num_learnt(&data->rows[i]) == 0;
    if (num_empty && num_empty == data->num_rows)
        return cr_fail(
            err, CR_ECONFIG,
            "%s: no row has a token of its answer within sequence_length %lld (raise it)", what,
            (long long)sequence_length);
    if (num_empty)
        cr_log(CR_LOG_WARN, "sft",
               "%s: %zu of %zu rows have no token of their answer within sequence_length %lld",
               what, num_empty, data->num_rows, (long long)sequence_length);
    return CR_OK;
}

cr_status cr_sft_load(cr_dataset *data, const cr_config *config, const cr_worker_config *from,
                      cr_tokenizer *tokenizer, cr_chat *chat, cr_err *err)
{
    cr_prompt_maker maker = {.config = config, .from = from, .tokenizer = tokenizer, .chat = chat};

    for (size_t i = 0; i < from->data.num_file_names; i++)
        CR_TRY(cr_dataset_load(data, from->data.file_names[i], cr_prompt_encode_sft, &maker, err));
    cr_prompt_report(&maker, from->name);
    if (!data->num_rows)
        return cr_fail(err, CR_ECONFIG, "%s: its files (%s%s) have no row to take", from->name,
                       from->data.file_names[0], from->data.num_file_names > 1 ? ", .." : "");
    return check_answers(data, config->sequence_length, from->name, err);
}

void cr_sft_batch(const cr_row *from, const uint32_t *rows, size_t num, cr_sample_batch *b)
{
    bool has_mask = false;
    size_t n = 0;

    cr_sample_batch_init(b, num);
    for (size_t i = 0; i < num; i++) {
        const cr_row *row = &from[rows ? rows[i] : i];
        size_t prompt = prompt_of(row);
        if (row->num_ids < prompt) continue;
        b->samples[n++] = (struct cr_batch_sample){.id = i,
                                                   .prompt = row->ids,
                                                   .response = row->ids + prompt,
                                                   .num_prompt = prompt,
                                                   .num_response = row->num_ids - prompt};
        has_mask = has_mask || row->learns;
    }
    b->num = n;
    cr_sample_batch_count(b);
    for (size_t k = 0; k < n && has_mask; k++) {
        const cr_row *row = &from[rows ? rows[b->samples[k].id] : b->samples[k].id];
        double *mask = cr_sample_batch_add(b, CR_COLUMN_MASK) + b->start[k];
        for (size_t t = prompt_of(row); t < row->num_ids; t++)
            *mask++ = !row->learns || row->learns[t];
    }
}

cr_deal cr_sft_deal(const cr_worker_config *w, const cr_sample_batch *b, uint32_t *order,
                    int32_t *part)
{
    size_t *tokens = CR_NEW_ARRAY(size_t, b->num);

    for (size_t i = 0; i < b->num; i++) {
        tokens[i] = b->samples[i].num_prompt + b->samples[i].num_response;
        order[i] = (uint32_t)i;
    }
    cr_packing_deal_mini(tokens, (int)cr_worker_num_batches(w),
                         (size_t)w->training.per_device_train_batch_size, order, b->num, part);
    cr_free(tokens);
    return (cr_deal){.order = order, .part = part};
}
