/* peft_folders.h -- base models and folders of PEFT that a test writes, with weights of golden_models.h; included by one source. */
#ifndef TESTS_PEFT_FOLDERS_H
#define TESTS_PEFT_FOLDERS_H

#include "models/files/peft.h"
#include "models/files/safetensors.h"
#include "tests/golden_texts.h"
#include "tests/temp_folder.h"

static const char of_peft[] = "tests/parity/peft";
static const char *golden_of = of_peft;  /* of the model */
static const char *folder = temp_folder; /* of what tests write, or of the command line */

static char *path_of(const char *name)
{
    return cr_path_join(folder, name);
}

static json_t *read_json(const char *in, const char *name)
{
    char *path = cr_path_join(in, name);
    json_t *json = NULL;
    cr_err err = {0};

    must(cr_json_read_file(path, &json, &err), &err);
    cr_free(path);
    return json;
}

static void write_json(const char *in, const char *name, const json_t *json)
{
    char *path = cr_path_join(in, name);

    assert_int_equal(json_dump_file(json, path, JSON_INDENT(2)), 0);
    cr_free(path);
}

/* A value as a file of dtype has it; returns what it is then. */
static float store(cr_dtype dtype, float value, double *stored)
{
    *stored = (double)value;
    if (dtype == CR_F64) return value;
    cr_cast_host(dtype, stored, CR_F32, &value, 1);
    cr_cast_host(CR_F32, &value, dtype, stored, 1);
    return value;
}

/* What is trained in full has moved. */
static float trained_value(const cr_param *p, int64_t e)
{
    return value_of(p, e) * (p->is_adapter && !p->is_added ? 1.25f : 1);
}

static void put_elements(cr_tensor_writer *writer, const cr_param *p, size_t tensor, cr_dtype dtype)
{
    cr_err err = {0};

    for (int64_t e = 0; e < p->num_elems; e++) {
        const cr_stacked *s = p->stacked;
        int64_t at = s ? s->first + e / p->shape[1] * s->row_step + e % p->shape[1] * s->col_step
                       : e; /* a vector has no shape[1] */
        double stored;
        store(dtype, trained_value(p, e), &stored);
        must(cr_tensor_writer_put(writer, tensor, at, at + 1, &stored, &err), &err);
    }
}

/* The adapter's parameters, or all others, in a file. */
static void write_tensors(const char *path, const cr_model *model, bool is_adapter, cr_dtype dtype)
{
    cr_tensor_spec *specs = CR_NEW_ARRAY(cr_tensor_spec, model->num_params);
    const cr_param **of = CR_NEW_ARRAY(const cr_param *, model->num_params);
    char **names = CR_NEW_ARRAY(char *, model->num_params);
    cr_tensor_writer *writer;
    size_t *tensor = CR_NEW_ARRAY(size_t, model->num_params), num = 0, num_tensors = 0;
    cr_err err = {0};

    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *p = model->params[i];
        const cr_stacked *s = p->stacked;
        char *name;
        size_t at = 0;
        if (p->is_adapter != is_adapter) continue;
        name = is_adapter ? cr_peft_tensor_name(s ? s->tensor : p->file_name) : cr_strdup(p->name);
        while (at < num_tensors && strcmp(names[at], name) != 0)
            at++;
        tensor[num] = at;
        of[num++] = p;
        if (at < num_tensors) {
            cr_free(name);
            continue;
        }
        names[num_tensors] = name;
        specs[num_tensors++] =
            (cr_tensor_spec){name,
                             dtype,
                             p->num_dims,
                             {s ? s->shape[0] : p->shape[0], s ? s->shape[1] : p->shape[1]}};
    }
    must(cr_tensor_writer_open(path, specs, num_tensors, &writer, &err), &err);
    for (size_t i = 0; i < num; i++)
        put_elements(writer, of[i], tensor[i], dtype);
    for (size_t i = 0; i < num_tensors; i++)
        cr_free(names[i]);
    must(cr_tensor_writer_close(writer, &err), &err);
    cr_free(specs);
    cr_free(of);
    cr_free(names);
    cr_free(tensor);
}

static const struct {
    const char *prefix, *golden, *base; /* of the names of adapters that tests write */
} bases[] = {{"moe", "tests/parity/peft_moe", "base_moe"},
             {"words", "tests/parity/peft_words", "base_words"},
             {"", of_peft, "base"}};

static const char *base_of(const char *golden)
{
    size_t i = 0;

    while (bases[i].prefix[0] && strcmp(bases[i].golden, golden) != 0)
        i++;
    return bases[i].base;
}

static void choose_base(const char *adapter)
{
    size_t i = 0;

    while (strncmp(adapter, bases[i].prefix, strlen(bases[i].prefix)) != 0)
        i++;
    golden_of = bases[i].golden;
}

static cr_model *build(const cr_adapter_options *adapters)
{
    const cr_model_options options = {.adapters = adapters ? *adapters : (cr_adapter_options){0}};
    json_t *golden = read_json(golden_of, "model.json");
    cr_err err = {0};
    cr_model *model;

    must(cr_model_build_with(json_object_get(golden, "config"), NULL, &options, &model, &err),
         &err);
    json_decref(golden);
    return model;
}

static char *make_folder(const char *name)
{
    char *path = path_of(name);
    cr_err err = {0};

    must(cr_mkdirs(path, &err), &err);
    return path;
}

static void write_base(const char *name, cr_dtype dtype)
{
    char *base = make_folder(name), *path = cr_path_join(base, "model.safetensors");
    json_t *golden = read_json(golden_of, "model.json");
    cr_model *model = build(NULL);

    write_json(base, "config.json", json_object_get(golden, "config"));
    write_tensors(path, model, false, dtype);
    cr_model_free(model);
    json_decref(golden);
    cr_free(base);
    cr_free(path);
}

static void write_adapter(const char *name, const cr_adapter_options *o, cr_dtype dtype)
{
    char *to = make_folder(name), *path = cr_path_join(to, CR_PEFT_TENSORS);
    cr_model *model = build(o);
    cr_err err = {0};

    must(cr_peft_config_write(to, model->adapters, "org/base", &err), &err);
    write_tensors(path, model, true, dtype);
    cr_model_free(model);
    cr_free(to);
    cr_free(path);
}

#endif
