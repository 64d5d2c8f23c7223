/* random.c -- see random.h. */
#include "models/files/random.h"
#include "kernels/memory.h"
#include "models/files/safetensors.h"
#include "models/weights.h"

#include <string.h>

enum { CHUNK = 1 << 16 };

/* Elements [begin, end) in `dtype`, which lie column by column in the file. */
static cr_status put_columns(cr_tensor_writer *writer, const cr_param *param, size_t index,
                             cr_dtype dtype, int64_t begin, int64_t end, const char *stored,
                             cr_err *err)
{
    size_t bytes = cr_dtype_bytes(dtype);
    char *column = cr_alloc((size_t)param->shape[0] * bytes);

    for (int64_t col = 0; col < cr_stacked_num_columns(param) && err->status == CR_OK; col++) {
        cr_column run = cr_stacked_column(param, begin, end, col);
        for (int64_t i = 0; i < run.num; i++)
            memcpy(column + (size_t)i * bytes,
                   stored + (size_t)(run.elem + i * run.step - begin) * bytes, bytes);
        if (run.num)
            cr_note(cr_tensor_writer_put(writer, index, run.at, run.at + run.num, column, err));
    }
    cr_free(column);
    return err->status;
}

static cr_status put_param(cr_tensor_writer *writer, const cr_model *m, int64_t seed,
                           const cr_param *param, size_t index, cr_dtype dtype, cr_err *err)
{
    float *values = CR_NEW_ARRAY(float, CHUNK), *stored = CR_NEW_ARRAY(float, CHUNK);

    for (int64_t e = 0; e < param->num_elems && err->status == CR_OK; e += CHUNK) {
        int64_t end = e + CHUNK < param->num_elems ? e + CHUNK : param->num_elems;
        cr_param_init(m, param, (uint64_t)seed, e, end, values);
        cr_cast_host(dtype, stored, CR_F32, values, (size_t)(end - e));
        if (param->stacked)
            cr_note(put_columns(writer, param, index, dtype, e, end, (char *)stored, err));
        else
            cr_note(cr_tensor_writer_put(writer, index, e, end, stored, err));
    }
    cr_free(values);
    cr_free(stored);
    return err->status;
}

/* The tensor that has this parameter, added if it is not there yet. */
static size_t add_spec(cr_tensor_spec *specs, size_t *num, const cr_param *p, cr_dtype dtype)
{
    const char *name = p->stacked ? p->stacked->tensor : p->file_name;

    for (size_t i = *num; p->stacked && i-- > 0;)
        if (strcmp(specs[i].name, name) == 0) return i;
    specs[*num] = (cr_tensor_spec){
        .name = name, .dtype = dtype, .num_dims = p->stacked ? p->stacked->num_dims : p->num_dims};
    memcpy(specs[*num].shape, p->stacked ? p->stacked->shape : p->shape,
           (size_t)specs[*num].num_dims * sizeof *p->shape);
    return (*num)++;
}

static cr_status write_weights(const cr_model *m, int64_t seed, const char *path,
                               cr_random_weights *result, cr_err *err)
{
    cr_tensor_spec *specs = CR_NEW_ARRAY(cr_tensor_spec, m->num_params);
    size_t *index = CR_NEW_ARRAY(size_t, m->num_params), num = 0;
    cr_dtype dtype = m->config.storage_dtype;
    cr_tensor_writer *writer = NULL;

    for (size_t i = 0; i < m->num_params; i++) {
        index[i] = add_spec(specs, &num, m->params[i], dtype);
        result->num_elems += m->params[i]->num_elems;
    }
    CR_TRY_GOTO(out, cr_tensor_writer_open(path, specs, num, &writer, err));
    for (size_t i = 0; i < m->num_params && err->status == CR_OK; i++)
        cr_note(put_param(writer, m, seed, m->params[i], index[i], dtype, err));
    if (err->status == CR_OK)
        cr_note(cr_tensor_writer_close(writer, err));
    else
        cr_tensor_writer_abort(writer);
    result->num_tensors = num;
out:
    cr_free(specs);
    cr_free(index);
    return err->status;
}

cr_status cr_random_weights_write(const char *folder, int64_t seed, bool should_overwrite,
                                  cr_random_weights *out, cr_err *err)
{
    char *index = cr_path_join(folder, "model.safetensors.index.json");
    cr_model *model = NULL;
    bool is_there;

    *out = (cr_random_weights){.path = cr_path_join(folder, "model.safetensors")};
    CR_TRY_GOTO(out, cr_model_open(folder, &model, err));
    is_there = cr_file_exists(out->path) || cr_file_exists(index);
    if (model->config.storage_dtype == CR_F64)
        cr_fail(err, CR_EFORMAT, "%s/config.json: torch_dtype must be float32, bfloat16 or float16",
                folder);
    else if (cr_file_exists(index))
        cr_fail(err, CR_EUSAGE, "%s is there: this folder has weights in shards", index);
    else if (is_there && !should_overwrite)
        cr_fail(err, CR_EUSAGE, "%s is there already (--overwrite replaces it)", out->path);
    else
        cr_note(write_weights(model, seed, out->path, out, err));
out:
    cr_model_free(model);
    cr_free(index);
    return err->status;
}
