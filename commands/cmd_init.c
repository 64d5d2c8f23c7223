/* cmd_init.c -- croll init: random weights for a config.json, as Transformers would start training. */
#include "commands/commands.h"
#include "kernels/memory.h"
#include "models/files/safetensors.h"
#include "models/weights.h"

#include <stdio.h>
#include <string.h>

typedef struct ask {
    int64_t seed;
    bool should_overwrite;
    cr_model *model;
} ask;

enum { CHUNK = 1 << 16 };

/* Elements [begin, end) in `dtype`, which lie column by column in the file. */
static cr_status put_columns(cr_tensor_writer *writer, const cr_param *param, size_t index,
                             cr_dtype dtype, int64_t begin, int64_t end, const char *stored,
                             cr_err *err)
{
    size_t bytes = cr_dtype_bytes(dtype);
    char *column = cr_alloc((size_t)param->shape[0] * bytes);

    for (int64_t col = 0; col < param->shape[1] && err->status == CR_OK; col++) {
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

static cr_status put_param(cr_tensor_writer *writer, const ask *a, const cr_param *param,
                           size_t index, cr_dtype dtype, cr_err *err)
{
    float *values = CR_NEW_ARRAY(float, CHUNK), *stored = CR_NEW_ARRAY(float, CHUNK);

    for (int64_t e = 0; e < param->num_elems && err->status == CR_OK; e += CHUNK) {
        int64_t end = e + CHUNK < param->num_elems ? e + CHUNK : param->num_elems;
        cr_param_init(a->model, param, (uint64_t)a->seed, e, end, values);
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
    specs[*num] =
        (cr_tensor_spec){.name = name, .dtype = dtype, .num_dims = p->stacked ? 3 : p->num_dims};
    memcpy(specs[*num].shape, p->stacked ? p->stacked->shape : p->shape,
           (size_t)specs[*num].num_dims * sizeof *p->shape);
    return (*num)++;
}

static cr_status write_weights(const ask *a, const char *path, cr_err *err)
{
    const cr_model *m = a->model;
    cr_tensor_spec *specs = CR_NEW_ARRAY(cr_tensor_spec, m->num_params);
    size_t *index = CR_NEW_ARRAY(size_t, m->num_params), num = 0;
    cr_dtype dtype = m->config.storage_dtype;
    cr_tensor_writer *writer = NULL;
    long long num_elems = 0;

    for (size_t i = 0; i < m->num_params; i++) {
        index[i] = add_spec(specs, &num, m->params[i], dtype);
        num_elems += m->params[i]->num_elems;
    }
    CR_TRY_GOTO(out, cr_tensor_writer_open(path, specs, num, &writer, err));
    for (size_t i = 0; i < m->num_params && err->status == CR_OK; i++)
        cr_note(put_param(writer, a, m->params[i], index[i], dtype, err));
    if (err->status == CR_OK)
        cr_note(cr_tensor_writer_close(writer, err));
    else
        cr_tensor_writer_abort(writer);
    if (err->status == CR_OK) printf("%s: %zu tensors, %lld elements\n", path, num, num_elems);
out:
    cr_free(specs);
    cr_free(index);
    return err->status;
}

static cr_status init(ask *a, const cr_words *words, cr_err *err)
{
    char *path, *index;
    bool is_there;

    if (words->num != 1)
        return cr_fail(err, CR_EUSAGE, "give one MODEL, a folder with config.json");
    CR_TRY(cr_model_open(words->word[0], &a->model, err));
    if (a->model->config.storage_dtype == CR_F64)
        return cr_fail(err, CR_EFORMAT,
                       "%s/config.json: torch_dtype must be float32, bfloat16 or float16",
                       words->word[0]);
    path = cr_path_join(words->word[0], "model.safetensors");
    index = cr_path_join(words->word[0], "model.safetensors.index.json");
    is_there = cr_file_exists(path) || cr_file_exists(index);
    if (cr_file_exists(index))
        cr_fail(err, CR_EUSAGE, "%s is there: this folder has weights in shards", index);
    else if (is_there && !a->should_overwrite)
        cr_fail(err, CR_EUSAGE, "%s is there already (--overwrite replaces it)", path);
    else
        cr_note(write_weights(a, path, err));
    cr_free(path);
    cr_free(index);
    return err->status;
}

static int run(int argc, char **argv)
{
    ask a = {.seed = 42};
    const cr_option options[] = {
        {"seed", CR_OPT_INT, &a.seed, "N", "of the random numbers (default 42)"},
        {"overwrite", CR_OPT_FLAG, &a.should_overwrite, NULL, "replace weights that are there"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help;

    if (cr_args_parse(&cr_command_init, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help)
        cr_note(init(&a, &words, &err));
    cr_model_free(a.model);
    cr_words_free(&words);
    return err.status ? cr_command_fail(&cr_command_init, &err) : 0;
}

const cr_command cr_command_init = {
    "init",
    "init MODEL [--seed N] [--overwrite]",
    "Random weights for the config.json of a folder: model.safetensors in its torch_dtype, normal "
    "with "
    "initializer_range, norms one, biases zero. The values depend on the seed only.",
    "croll init output/quickstart/model --seed 42 --overwrite",
    run,
};
