/* saved_model.c -- the MODEL folder of a checkpoint: see saved.h. */
#include "base/digest.h"
#include "base/rng.h"
#include "models/files/peft.h"
#include "models/files/safetensors.h"
#include "strategies/saved/saved.h"

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

/* Its tensor begins at byte `at` of the data; returns the tensor's bytes. */
static int64_t add_tensor(const cr_fsdp *f, const cr_param *q, int64_t at, cr_buf *json)
{
    const int64_t *shape = q->stacked ? q->stacked->shape : q->shape;
    int64_t num_bytes = (int64_t)cr_dtype_bytes(cri_model_dtype(f, q));

    cr_buf_adds(json, ",");
    add_name(q, json);
    cr_buf_addf(json, ":{\"dtype\":\"%s\",\"shape\":[",
                cr_tensor_dtype_name(cri_model_dtype(f, q)));
    for (int d = 0; d < (q->stacked ? q->stacked->num_dims : q->num_dims); d++) {
        cr_buf_addf(json, "%s%lld", d ? "," : "", (long long)shape[d]);
        num_bytes *= shape[d];
    }
    cr_buf_addf(json, "],\"data_offsets\":[%lld,%lld]}", (long long)at,
                (long long)(at + num_bytes));
    return num_bytes;
}

void cri_model_plan_make(const cr_fsdp *f, cri_model_plan *p)
{
    cr_param **params = CR_NEW_ARRAY(cr_param *, f->model->num_params);
    size_t num = 0;
    cr_buf json = {0};
    uint64_t n;
    int64_t at = 0, first = 0; /* of the tensor */

    *p = (cri_model_plan){0};
    for (size_t i = 0; i < f->model->num_params; i++)
        if (!f->model->adapters || f->model->params[i]->is_adapter)
            params[num++] = f->model->params[i];
    qsort(params, num, sizeof *params, by_tensor);
    cr_buf_adds(&json, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < num; i++) {
        const cr_param *q = params[i];
        int64_t elem_bytes = (int64_t)cr_dtype_bytes(cri_model_dtype(f, q));
        if (i == 0 || strcmp(tensor_of(q), tensor_of(params[i - 1])) != 0) {
            first = at;
            at += add_tensor(f, q, at, &json);
        }
        cr_weight_map_add(&p->map, &(cr_weight_range){.param = (int32_t)q->index,
                                                      .end = q->num_elems,
                                                      .at = first,
                                                      .elem_bytes = q->stacked ? 0 : elem_bytes});
    }
    cr_buf_adds(&json, "}");
    while (json.num_bytes % 8)
        cr_buf_addc(&json, ' ');
    n = json.num_bytes;
    cr_buf_add(&p->header, &n, 8);
    cr_buf_add(&p->header, json.data, json.num_bytes);
    for (size_t i = 0; i < p->map.num; i++)
        p->map.range[i].at += (int64_t)p->header.num_bytes;
    p->num_bytes = at + (int64_t)p->header.num_bytes;
    cr_buf_free(&json);
    cr_free(params);
}

void cri_model_plan_free(cri_model_plan *p)
{
    cr_weight_map_free(&p->map);
    cr_buf_free(&p->header);
}

/* Of frozen elements that are here; parts of ranks add up. */
static cr_status add_frozen(cr_fsdp *f, const cr_weight_range *r, uint64_t *sum, cr_err *err)
{
    enum { BLOCK = 1 << 16 };
    static _Thread_local float block[BLOCK];
    const char *name = f->model->params[r->param]->name;
    int64_t n, first = (int64_t)(cr_hash64(name, strlen(name)) >> 2) & ~INT64_C(1);

    for (int64_t i = r->begin; i < r->end; i += n) {
        size_t at = (size_t)(r->at + (i - r->begin) * r->elem_bytes), num_bytes;
        n = r->end - i < BLOCK ? r->end - i : BLOCK;
        num_bytes = (size_t)(n * r->elem_bytes);
        CR_TRY(cr_download(cri_home(f), block, cr_mem_add(f->frozen, at), num_bytes, err));
        *sum += cr_sum_bytes(first + i * r->elem_bytes, block, num_bytes);
    }
    return CR_OK;
}

cr_status cri_base_text(cr_fsdp *f, cr_err *err)
{
    int num = f->mesh->shape.num_ranks;
    uint64_t mine = 0, sum = 0, *all;
    cr_weight_map frozen = {0};

    if (*f->base) return CR_OK;
    all = CR_NEW_ARRAY(uint64_t, num);
    cri_map_kept(f, /*is_trained=*/false, /*is_written=*/true, &frozen);
    for (size_t i = 0; i < frozen.num && err->status == CR_OK; i++)
        if (!f->model->params[frozen.range[i].param]->copy_of) /* kept or not */
            cr_note(add_frozen(f, &frozen.range[i], &mine, err));
    cr_weight_map_free(&frozen);
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

/* One label, no dropout: as it was trained. */
static void set_value_head(json_t *root, const cr_model *model)
{
    json_object_set_new(root, "architectures", json_pack("[s]", model->config.architecture));
    json_object_set_new(root, "id2label", json_pack("{s:s}", "0", "LABEL_0"));
    json_object_set_new(root, "label2id", json_pack("{s:i}", "LABEL_0", 0));
    json_object_set_new(root, "classifier_dropout", json_real(0));
}

/* config.json with the dtype that the weights are stored in and the head that they have; as it is if that is what it says. */
static cr_status copy_config(const char *from, const char *to, cr_dtype dtype,
                             const cr_model *model, cr_err *err)
{
    const bool has_value_head = cr_model_gives(model, CR_VALUE);
    const char *name = dtype_names[dtype], *key = "torch_dtype", *old;
    json_t *root = NULL;
    cr_buf text = {0};

    if (cr_json_read_file(from, &root, err) == CR_OK) {
        if (json_object_get(root, "dtype")) key = "dtype";
        old = json_string_value(json_object_get(root, key));
        if (has_value_head) set_value_head(root, model);
        if (old && strcmp(old, name) == 0 && !has_value_head) {
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
                               const cr_model *model, cr_err *err)
{
    const cr_adapter_options *adapters = model->adapters;
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
            cr_note(copy_config(source, target, dtype, model, err));
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
