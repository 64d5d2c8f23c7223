/* full.c -- all parameters of a model unsharded in one buffer of one device (see weights.h). */
#include "models/weights.h"

#include <float.h>
#include <math.h>

enum { BLOCK_ELEMS = 1 << 16 };

static cr_dtype dtype_of(const cr_param *param, cr_dtype dtype)
{
    return param->is_fp32 ? CR_F32 : dtype;
}

/* Offset of the next parameter, and of the end at last. */
static size_t after(size_t at, const cr_param *param, cr_dtype dtype)
{
    return (at + (size_t)param->num_elems * cr_dtype_bytes(dtype) + 63) / 64 * 64;
}

static bool is_finite_in(cr_dtype dtype, const float *block, size_t num)
{
    const float max =
        dtype == CR_F16 ? 65519.0f : FLT_MAX; /* what is above is rounded to infinity */
    bool is_finite = true;

    for (size_t i = 0; i < num; i++)
        is_finite = is_finite && fabsf(block[i]) <= max;
    return is_finite;
}

/* Elements of one parameter, in blocks that stay in the cache: source, float32 on the host and on the
 * device, dtype. */
static cr_status fill(cr_full_weights *full, const cr_model *model, const cr_param *param,
                      cr_dtype dtype, cr_mem *dst, const cr_weights *source, uint64_t seed,
                      float *block, cr_mem *wide, cr_err *err)
{
    for (int64_t begin = 0; begin < param->num_elems; begin += BLOCK_ELEMS) {
        int64_t end =
            begin + BLOCK_ELEMS < param->num_elems ? begin + BLOCK_ELEMS : param->num_elems;
        size_t num = (size_t)(end - begin);
        CR_TRY(cr_weights_fill(source, model, param, seed, begin, end, block, err));
        if (!is_finite_in(dtype, block, num))
            return cr_fail(err, CR_EFORMAT, "%s has a number that is not finite in %s", param->name,
                           cr_dtype_name(dtype));
        CR_TRY(cr_upload(full->dev, wide, block, num * sizeof *block, err));
        CR_TRY(cr_cast(full->dev,
                       &(cr_cast_args){dtype, cr_at(dtype, dst, begin), CR_F32, wide, num}, err));
    }
    return CR_OK;
}

cr_status cr_full_weights_init(cr_full_weights *full, cr_model *model, cr_device *dev,
                               cr_dtype dtype, const cr_weights *source, uint64_t seed, cr_err *err)
{
    float *block = CR_NEW_ARRAY(float, BLOCK_ELEMS);
    cr_mem *wide = NULL;
    size_t at = 0;

    *full = (cr_full_weights){.dev = dev};
    for (size_t i = 0; i < model->num_params; i++)
        full->data_bytes =
            after(full->data_bytes, model->params[i], dtype_of(model->params[i], dtype));
    CR_TRY_GOTO(out, cr_device_alloc(dev, BLOCK_ELEMS * sizeof *block, &wide, err));
    CR_TRY_GOTO(out, cr_device_alloc(dev, full->data_bytes, &full->data, err));
    for (size_t i = 0; i < model->num_params; i++) {
        cr_param *param = model->params[i];
        cr_dtype own = dtype_of(param, dtype);
        cr_mem *dst = cr_mem_add(full->data, at);
        CR_TRY_GOTO(out, fill(full, model, param, own, dst, source, seed, block, wide, err));
        param->weight.data = dst;
        param->weight.dtype = own;
        param->weight.packed = NULL;
        at = after(at, param, own);
    }
out:
    cr_device_free(dev, wide, BLOCK_ELEMS * sizeof *block);
    cr_free(block);
    if (err->status != CR_OK) cr_full_weights_fini(full);
    return err->status;
}

cr_status cr_full_weights_load(cr_full_weights *full, cr_model *model, cr_device *dev,
                               cr_dtype dtype, const char *folder, cr_err *err)
{
    cr_weights *source;
    cr_status status;

    *full = (cr_full_weights){.dev = dev};
    CR_TRY(cr_weights_open(folder, model, &source, err));
    status = cr_full_weights_init(full, model, dev, dtype, source, 0, err);
    cr_weights_close(source);
    return status;
}

cr_status cr_full_weights_add_grads(cr_full_weights *full, cr_model *model, cr_err *err)
{
    size_t at = 0;

    for (size_t i = 0; i < model->num_params; i++)
        if (model->params[i]->is_trainable)
            full->grad_bytes = after(full->grad_bytes, model->params[i], CR_F32);
    CR_TRY(cr_device_alloc(full->dev, full->grad_bytes, &full->grad, err));
    CR_TRY(cr_zero(full->dev, full->grad, full->grad_bytes, err));
    for (size_t i = 0; i < model->num_params; i++) {
        cr_param *param = model->params[i];
        if (!param->is_trainable) continue;
        param->grad = cr_mem_add(full->grad, at);
        at = after(at, param, CR_F32);
    }
    return CR_OK;
}

void cr_full_weights_fini(cr_full_weights *full)
{
    if (full->data) cr_device_free(full->dev, full->data, full->data_bytes);
    if (full->grad) cr_device_free(full->dev, full->grad, full->grad_bytes);
    *full = (cr_full_weights){0};
}
