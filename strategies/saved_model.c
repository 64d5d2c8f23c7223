/* saved_model.c -- the MODEL folder of a checkpoint: see saved.h. */
#include "base/digest.h"
#include "base/rng.h"
#include "models/files/peft.h"
#include "models/files/safetensors.h"
#include "strategies/saved.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As config.json has them. */
static const char *const dtype_names[] = {
    [CR_F32] = "float32", [CR_BF16] = "bfloat16", [CR_F16] = "float16"};

static const char *tensor_of(const cr_param *p)
{
    return p->stacked ? p->stacked->tensor : p->file_name;
}

/* Float32 before 16-bit, so that all begin at a multiple of their size; then by tensor and name. */
static int by_tensor(const void *a, const void *b)
{
    const cr_param *x = *(cr_param *const *)a, *y = *(cr_param *const *)b;
    int order = strcmp(tensor_of(x), tensor_of(y));

    if (x->is_fp32 != y->is_fp32) return x->is_fp32 ? -1 : 1;
    return order ? order : strcmp(x->name, y->name);
}

cr_dtype cri_model_dtype(const cr_fsdp *f, const cr_param *param)
{
    return param->is_fp32 || param->is_adapter ? CR_F32 : f->args.param_dtype;
}

static void add_name(const cr_param *p, cr_buf *json)
{
    char *name = p->is_adapter ? cr_peft_tensor_name(tensor_of(p)) : cr_strdup(tensor_of(p));

    cr_json_add_string(json, name, strlen(name));
    cr_free(name);
}

void cri_model_plan_make(const cr_fsdp *f, cri_model_plan *p)
{
    cr_buf json = {0};
    uint64_t n;
    int64_t at = 0;

    *p = (cri_model_plan){.params = CR_NEW_ARRAY(cr_param *, f->model->num_params)};
    for (size_t i = 0; i < f->model->num_params; i++)
        if (!f->model->adapters || f->model->params[i]->is_adapter)
            p->params[p->num++] = f->model->params[i];
    p->first_byte = CR_NEW_ARRAY(int64_t, p->num);
    qsort(p->params, p->num, sizeof *p->params, by_tensor);
    cr_buf_adds(&json, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < p->num; i++) {
        const cr_param *q = p->params[i];
        const int64_t *shape = q->stacked ? q->stacked->shape : q->shape;
        const char *tensor = tensor_of(q);
        int64_t num = 1;
        if (i > 0 && strcmp(tensor, tensor_of(p->params[i - 1])) == 0) {
            p->first_byte[i] = p->first_byte[i - 1]; /* the tensor is there */
            continue;
        }
        cr_buf_adds(&json, ",");
        add_name(q, &json);
        cr_buf_addf(&json, ":{\"dtype\":\"%s\",\"shape\":[",
                    cr_tensor_dtype_name(cri_model_dtype(f, q)));
        for (int d = 0; d < (q->stacked ? 3 : q->num_dims); d++) {
            cr_buf_addf(&json, "%s%lld", d ? "," : "", (long long)shape[d]);
            num *= shape[d];
        }
        p->first_byte[i] = at;
        at += num * (int64_t)cr_dtype_bytes(cri_model_dtype(f, q));
        cr_buf_addf(&json, "],\"data_offsets\":[%lld,%lld]}", (long long)p->first_byte[i],
                    (long long)at);
    }
    cr_buf_adds(&json, "}");
    while (json.num_bytes % 8)
        cr_buf_addc(&json, ' ');
    n = json.num_bytes;
    cr_buf_add(&p->header, &n, 8);
    cr_buf_add(&p->header, json.data, json.num_bytes);
    for (size_t i = 0; i < p->num; i++)
        p->first_byte[i] += (int64_t)p->header.num_bytes;
    p->num_bytes = at + (int64_t)p->header.num_bytes;
    cr_buf_free(&json);
}

void cri_model_plan_free(cri_model_plan *p)
{
    cr_free(p->params);
    cr_free(p->first_byte);
    cr_buf_free(&p->header);
}

int64_t cri_model_plan_find(const cri_model_plan *p, const cr_param *param)
{
    cr_param *key = (cr_param *)(uintptr_t)param;
    cr_param **at = bsearch(&key, p->params, p->num, sizeof *p->params, by_tensor);

    return p->first_byte[at - p->params];
}

/* Of frozen elements of parameter k that are here; parts of ranks add up. */
static cr_status add_frozen(cr_fsdp *f, const cr_flat *flat, size_t k, uint64_t *sum, cr_err *err)
{
    enum { BLOCK = 1 << 16 };
    static _Thread_local float block[BLOCK];
    const char *name = flat->params[k]->name;
    size_t bytes = cr_dtype_bytes(cri_dtype(f, flat));
    int64_t begin, end, at, n, first = (int64_t)(cr_hash64(name, strlen(name)) >> 2) & ~INT64_C(1);

    if (!cri_shard_range(flat, k, cri_shard_of(f, flat), &begin, &end, &at)) return CR_OK;
    for (int64_t i = begin; i < end; i += n) {
        n = end - i < BLOCK ? end - i : BLOCK;
        CR_TRY(
            cr_download(cri_home(f), block,
                        cr_at(cri_dtype(f, flat), cri_shard(f, flat, false, NULL), at + i - begin),
                        (size_t)n * bytes, err));
        *sum += cr_sum_bytes(first + i * (int64_t)bytes, block, (size_t)n * bytes);
    }
    return CR_OK;
}

cr_status cri_base_text(cr_fsdp *f, cr_err *err)
{
    int num = f->mesh->shape.num_ranks;
    uint64_t mine = 0, sum = 0, *all;

    if (*f->base) return CR_OK;
    all = CR_NEW_ARRAY(uint64_t, num);
    for (size_t i = 0; i < f->units.num; i++) {
        const cr_flat *flat = &f->units.unit[i].frozen;
        for (size_t k = 0; k < flat->num_params && cri_is_writer(f, flat); k++)
            if (err->status == CR_OK) cr_note(add_frozen(f, flat, k, &mine, err));
    }
    cr_note(cr_agree(f->mesh->group[CR_AXIS_ALL], "sum of the base", err));
    if (err->status == CR_OK)
        cr_note(cri_tell_all(f, "sum of the base", &mine, sizeof mine, all, err));
    for (int r = 0; r < num; r++)
        sum += all[r];
    if (err->status == CR_OK)
        snprintf(f->base, sizeof f->base, "%s %016llx", dtype_names[f->args.param_dtype],
                 (unsigned long long)sum);
    cr_free(all);
    return err->status;
}

/* config.json with the dtype that the weights are stored in; as it is if that is what it says. */
static cr_status copy_config(const char *from, const char *to, cr_dtype dtype, cr_err *err)
{
    const char *name = dtype_names[dtype], *key = "torch_dtype", *old;
    json_t *root = NULL;
    cr_buf text = {0};

    if (cr_json_read_file(from, &root, err) == CR_OK) {
        if (json_object_get(root, "dtype")) key = "dtype";
        old = json_string_value(json_object_get(root, key));
        if (old && strcmp(old, name) == 0) {
            cr_note(cr_file_read(from, &text, err));
        } else {
            json_object_set_new(root, key, json_string(name));
            cr_note(cr_json_add_value(&text, root, err));
        }
        if (err->status == CR_OK) cr_note(cr_file_write_atomic(to, text.data, text.num_bytes, err));
    }
    json_decref(root);
    cr_buf_free(&text);
    return err->status;
}

/* PEFT's folder has no config of the base: what opens it would look for the base's weights there. */
static bool is_of_base(const char *name)
{
    return strcmp(name, "config.json") == 0 || strcmp(name, "generation_config.json") == 0;
}

cr_status cri_model_copy_files(const char *from, const char *to, cr_dtype dtype,
                               const cr_adapter_options *adapters, cr_err *err)
{
    static const char *const endings[] = {".json", ".txt", ".jinja", ".model"};
    DIR *dir = opendir(from);
    struct dirent *entry;

    if (!dir) return cr_fail(err, CR_EIO, "cannot read %s: %s", from, strerror(errno));
    while (err->status == CR_OK && (entry = readdir(dir))) {
        const char *dot = strrchr(entry->d_name, '.');
        bool is_wanted = false;
        for (size_t i = 0; dot && i < CR_COUNT(endings); i++)
            is_wanted = is_wanted || strcmp(dot, endings[i]) == 0;
        if (adapters && is_of_base(entry->d_name)) continue;
        if (!is_wanted || strstr(entry->d_name, ".safetensors.index.json")) continue;
        char *source = cr_path_join(from, entry->d_name), *target = cr_path_join(to, entry->d_name);
        cr_buf data = {0};
        if (strcmp(entry->d_name, "config.json") == 0)
            cr_note(copy_config(source, target, dtype, err));
        else if (cr_file_exists(source) && cr_file_read(source, &data, err) == CR_OK)
            cr_note(cr_file_write_atomic(target, data.data, data.num_bytes, err));
        cr_buf_free(&data);
        cr_free(source);
        cr_free(target);
    }
    closedir(dir);
    if (adapters && err->status == CR_OK) cr_note(cr_peft_config_write(to, adapters, from, err));
    return err->status;
}
