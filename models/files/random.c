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

/* How PrismaticImageProcessor (docs/vision.md) makes images for towers of these kinds; NULL: the model is no Prismatic. A new string. */
static char *prismatic_processor(const cr_vision_config *c)
{
    static const char *const means[] = {"[0.5,0.5,0.5]", "[0.485,0.456,0.406]"},
                             *const stds[] = {"[0.5,0.5,0.5]", "[0.229,0.224,0.225]"};
    cr_buf sizes = {0}, kinds = {0}, mean = {0}, std = {0};
    char *out;

    if (!c || !c->num_vits) return NULL;
    for (int i = 0; i < c->num_vits; i++) {
        const char *comma = i ? "," : "";
        bool is_dino = c->vit[i].num_class > 0;
        long long side = c->vit[i].image_size;
        cr_buf_addf(&sizes, "%s[3,%lld,%lld]", comma, side, side);
        cr_buf_addf(&kinds, "%s\"bicubic\"", comma);
        cr_buf_addf(&mean, "%s%s", comma, means[is_dino]);
        cr_buf_addf(&std, "%s%s", comma, stds[is_dino]);
    }
    out = cr_asprintf(
        "{\"image_processor_type\":\"PrismaticImageProcessor\","
        "\"image_resize_strategy\":\"letterbox\",\"use_fused_vision_backbone\":%s,"
        "\"input_sizes\":[%s],\"interpolations\":[%s],\"means\":[%s],\"stds\":[%s]}\n",
        c->num_vits > 1 ? "true" : "false", sizes.data, kinds.data, mean.data, std.data);
    cr_buf_free(&sizes);
    cr_buf_free(&kinds);
    cr_buf_free(&mean);
    cr_buf_free(&std);
    return out;
}

/* preprocessor_config.json of a Prismatic folder that has no processor. */
static cr_status write_processor(const char *folder, const cr_model *model, cr_err *err)
{
    char *path = cr_path_join(folder, "preprocessor_config.json"),
         *newer = cr_path_join(folder, "processor_config.json"),
         *text = prismatic_processor(model->config.vision);

    if (text && !cr_file_exists(path) && !cr_file_exists(newer))
        cr_note(cr_file_write_atomic(path, text, strlen(text), err));
    cr_free(text);
    cr_free(newer);
    cr_free(path);
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
    else if (write_weights(model, seed, out->path, out, err) == CR_OK)
        cr_note(write_processor(folder, model, err));
out:
    cr_model_free(model);
    cr_free(index);
    return err->status;
}
