/* table.c -- see table.h. */
#include "models/parts/table.h"
#include "models/pass_impl.h"
#include "models/weights.h"

struct cr_vocab_table {
    cr_device *dev;
    cr_mem *data;
    cr_stack *scratch;
    size_t num_bytes;
    cr_weight weight;
};

static cr_status fill(cr_vocab_table *t, const cr_param *param, const cr_weights *weights,
                      cr_err *err)
{
    const int64_t row = param->shape[1];
    const cr_dtype dtype = t->weight.dtype;
    const size_t bytes = (size_t)row * sizeof(float);
    float *block = cr_alloc(bytes);
    cr_mem *wide;

    CR_TRY_GOTO(out, cr_stack_push(t->scratch, bytes, &wide, err));
    for (int64_t r = 0; r < param->shape[0]; r++) {
        cr_mem *to = cr_at(dtype, t->data, r * row);
        CR_TRY_GOTO(out, cr_weights_read(weights, param, r * row, (r + 1) * row, block, err));
        CR_TRY_GOTO(out, cr_upload(t->dev, wide, block, bytes, err));
        CR_TRY_GOTO(out,
                    cr_cast(t->dev, &(cr_cast_args){dtype, to, CR_F32, wide, (size_t)row}, err));
    }
out:
    cr_stack_release(t->scratch, 0);
    cr_free(block);
    return err->status;
}

cr_status cr_vocab_table_open(const char *folder, cr_device *dev, cr_dtype dtype,
                              cr_vocab_table **out, cr_err *err)
{
    cr_vocab_table *t = CR_NEW(cr_vocab_table);
    cr_weights *weights = NULL;
    cr_model *model = NULL;
    const cr_param *param;

    t->dev = dev;
    t->scratch = cr_stack_create(dev);
    CR_TRY_GOTO(out, cr_model_open_with(folder, NULL, &model, err));
    CR_TRY_GOTO(out, cr_weights_open(folder, model, &weights, err));
    param = ((const cri_root *)model->root->impl)->head->weight;
    t->num_bytes = (size_t)(param->shape[0] * param->shape[1]) * cr_dtype_bytes(dtype);
    CR_TRY_GOTO(out, cr_device_alloc(dev, t->num_bytes, &t->data, err));
    t->weight = (cr_weight){t->data, dtype, param->shape[0], param->shape[1], NULL};
    cr_note(fill(t, param, weights, err));
out:
    cr_weights_close(weights);
    cr_model_free(model);
    *out = err->status == CR_OK ? t : NULL;
    if (err->status != CR_OK) cr_vocab_table_close(t);
    return err->status;
}

int64_t cr_vocab_table_bytes(int64_t num_ids, int64_t num_states, cr_dtype dtype, int64_t num)
{
    const int64_t bytes = (int64_t)cr_dtype_bytes(dtype), wide = (int64_t)sizeof(float);

    return num_ids * num_states * bytes + num * (num_states * (wide + bytes) + num_ids * wide);
}

void cr_vocab_table_close(cr_vocab_table *t)
{
    if (!t) return;
    cr_device_free(t->dev, t->data, t->num_bytes);
    cr_stack_destroy(t->scratch);
    cr_free(t);
}

int64_t cr_vocab_table_num_ids(const cr_vocab_table *t)
{
    return t->weight.num_rows;
}

int64_t cr_vocab_table_num_states(const cr_vocab_table *t)
{
    return t->weight.num_cols;
}

cr_status cr_vocab_table_logits(cr_vocab_table *t, const float *states, int64_t num, float *logits,
                                cr_err *err)
{
    const size_t in = (size_t)(num * t->weight.num_cols), out = (size_t)(num * t->weight.num_rows);
    const cr_dtype dtype = t->weight.dtype;
    cr_mem *wide, *x, *z;

    CR_TRY_GOTO(out, cr_stack_push(t->scratch, in * sizeof *states, &wide, err));
    CR_TRY_GOTO(out, cr_stack_push(t->scratch, in * cr_dtype_bytes(dtype), &x, err));
    CR_TRY_GOTO(out, cr_stack_push(t->scratch, out * sizeof *logits, &z, err));
    CR_TRY_GOTO(out, cr_upload(t->dev, wide, states, in * sizeof *states, err));
    CR_TRY_GOTO(out, cr_cast(t->dev, &(cr_cast_args){dtype, x, CR_F32, wide, in}, err));
    CR_TRY_GOTO(out, cr_logits(t->dev, &(cr_logits_args){x, &t->weight, num, z}, err));
    CR_TRY_GOTO(out, cr_download(t->dev, logits, z, out * sizeof *logits, err));
out:
    cr_stack_release(t->scratch, 0);
    return err->status;
}
