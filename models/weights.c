/* weights.c -- a checkpoint matched against a model (see weights.h). */
#include "models/weights.h"

#include "base/hub.h"
#include "models/files/peft.h"
#include "models/files/safetensors.h"
#include "models/models_impl.h"
#include "models/pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cr_weights {
    cr_tensors *tensors;
    cr_tensors **adapters; /* [model->num_adapters] of PEFT's folders; NULL: without one */
    cr_tensors *head;      /* of value_head.safetensors, as TRL writes it; NULL: none */
    const cr_model *model;
};

/* ---- which tensor is which parameter ---- */

/* The files that have the parameter. */
static const cr_tensors *tensors_of(const cr_weights *w, const cr_param *p)
{
    if (p->is_adapter && w->adapters[p->adapter]) return w->adapters[p->adapter];
    return p->is_added && !p->is_adapter && w->head ? w->head : w->tensors;
}

/* By the parameter's name or its other spelling. */
static const cr_tensor *find_named(const cr_weights *w, const cr_tensors *in, const cr_param *p)
{
    const char *const names[] = {p->name, p->alias};
    const cr_tensor *found = NULL;

    for (int i = 0; i < 2 && names[i] && !found; i++) {
        bool is_peft = in != w->tensors && in != w->head;
        char *name = is_peft ? cr_peft_tensor_name(names[i]) : cr_strdup(names[i]);
        found = cr_tensors_find(in, name);
        cr_free(name);
    }
    return found;
}

/* A tensor of its own. */
static const cr_tensor *find_own(const cr_weights *w, const cr_param *p)
{
    return find_named(w, tensors_of(w, p), p->copy_of ? p->copy_of : p);
}

/* Where a parameter's elements lie: a tensor of its shape, or a part of one that holds all experts of a
 * layer, as Transformers 5 keeps them: gate_up_proj [E, 2 m, h], gate first, and down_proj [E, h, m]. */
typedef struct source {
    const cr_tensor *tensor; /* NULL: none */
    int64_t first;           /* element of the tensor */
    int num_dims;            /* the shape it must have */
    int64_t shape[CR_PARAM_MAX_DIMS];
    bool is_stacked;         /* as param->stacked says, which knows the places of elements */
    const cr_tensor *second; /* of up_proj, see find_apart */
    bool is_apart, is_up;
} source;

static source find_fused(const cr_weights *w, const cr_param *p)
{
    static const char experts[] = ".mlp.experts.";
    const char *at = strstr(p->name, experts), *rest;
    bool is_gate, is_up, is_down;
    char *end, *name;
    int64_t expert, parts;
    source s = {0};

    if (!at) return s;
    at += sizeof experts - 1;
    expert = strtoll(at, &end, 10);
    rest = end;
    is_gate = strcmp(rest, ".gate_proj.weight") == 0;
    is_up = strcmp(rest, ".up_proj.weight") == 0;
    is_down = strcmp(rest, ".down_proj.weight") == 0;
    if (end == at || !(is_gate || is_up || is_down)) return s;
    name =
        cr_asprintf("%.*s%s", (int)(at - p->name), p->name, is_down ? "down_proj" : "gate_up_proj");
    parts = is_down ? 1 : 2;
    s = (source){.tensor = cr_tensors_find(w->tensors, name),
                 .first = (expert * parts + is_up) * p->num_elems,
                 .num_dims = 3,
                 .shape = {w->model->config.num_experts, parts * p->shape[0], p->shape[1]}};
    cr_free(name);
    return s;
}

static bool has_shape(const cr_tensor *t, const int64_t shape[3])
{
    return t && t->num_dims == 3 && memcmp(t->shape, shape, 3 * sizeof *shape) == 0;
}

/* Does the tensor have the experts as param->stacked says, or, `other`, as they are here? Where both shapes
 * are the same, those of the layer's other tensor are not. A tensor of neither shape is said to have
 * the wrong one of the hub's. */
static bool is_stacked(const cr_weights *w, const cr_param *p, const source *other)
{
    const char *name = strrchr(p->name, '.'), *tensor;
    bool is_down;
    int64_t h, m;
    char *beside;
    const cr_tensor *t;

    if (!p->stacked || !other->tensor) return false;
    tensor = p->stacked->tensor;
    if (!has_shape(other->tensor, other->shape)) return true;
    if (!has_shape(other->tensor, p->stacked->shape)) return false;
    is_down = name - p->name > 9 && strncmp(name - 9, "down_proj", 9) == 0;
    h = p->shape[is_down ? 0 : 1];
    m = p->shape[is_down ? 1 : 0];
    beside = cr_asprintf("%.*s%s", (int)(strrchr(tensor, '.') + 1 - tensor), tensor,
                         is_down ? "gate_up_proj" : "down_proj");
    t = cr_tensors_find(w->tensors, beside);
    cr_free(beside);
    return !t || t->num_dims != 3 || t->shape[1] == (is_down ? h : m);
}

static const cr_tensor *find_in_adapter(const cr_tensors *adapter, const char *name)
{
    char *full = cr_peft_tensor_name(name);
    const cr_tensor *found = cr_tensors_find(adapter, full);

    cr_free(full);
    return found;
}

/* gate_proj and up_proj of an expert, as older PEFT has them, an adapter each. Beside each other they are one of twice the
 * rank: A of gate_proj above that of up_proj, B of gate_proj [.., 0] and that of up_proj [0, ..]. */
static source find_apart(const cr_tensors *adapter, const cr_param *p)
{
    static const char of_a[] = "gate_up_proj.lora_A.weight";
    const char *name = p->file_name;
    size_t num = strlen(name);
    bool is_a = num > sizeof of_a && strcmp(name + num - (sizeof of_a - 1), of_a) == 0;
    int prefix = (int)(num - (sizeof of_a - 1));
    source s = {.is_apart = true, .num_dims = 2, .shape = {p->shape[0], p->shape[1]}};
    char *gate, *up;

    if (!is_a) {
        s.shape[1] /= 2;
        s.is_up = strstr(name, ".up_proj.lora_B") != NULL;
        s.tensor = find_in_adapter(adapter, name);
        return s;
    }
    s.shape[0] /= 2;
    gate = cr_asprintf("%.*sgate_proj.lora_A.weight", prefix, name);
    up = cr_asprintf("%.*sup_proj.lora_A.weight", prefix, name);
    s.tensor = find_in_adapter(adapter, gate);
    s.second = find_in_adapter(adapter, up);
    if (!s.second) s.tensor = NULL;
    cr_free(gate);
    cr_free(up);
    return s;
}

/* A or B of an expert, in one tensor with the others', or alone as in files of older PEFT. */
static source find_of_expert(const cr_tensors *adapter, const cr_param *p)
{
    source s = {.tensor = find_in_adapter(adapter, p->stacked->tensor),
                .is_stacked = true,
                .num_dims = p->stacked->num_dims};

    memcpy(s.shape, p->stacked->shape, sizeof p->stacked->shape);
    if (s.tensor) return s;
    if (!strstr(p->name, ".down_proj.")) return find_apart(adapter, p);
    return (source){.tensor = find_in_adapter(adapter, p->file_name),
                    .num_dims = 2,
                    .shape = {p->shape[0], p->shape[1]}};
}

static source find_source(const cr_weights *w, const cr_param *p)
{
    const cr_tensors *in = tensors_of(w, p);
    source s = {.num_dims = p->num_dims};

    if (p->stacked && in != w->tensors) return find_of_expert(in, p);
    s.tensor = find_own(w, p);

    if (s.tensor) {
        memcpy(s.shape, p->shape, sizeof s.shape);
        return s;
    }
    s = find_fused(w, p);
    if (!is_stacked(w, p, &s)) return s;
    s.is_stacked = true;
    memcpy(s.shape, p->stacked->shape, sizeof p->stacked->shape);
    return s;
}

/* Names that a checkpoint may have beside the parameters. */
static bool is_left_alone(const cr_model *model, const char *name)
{
    static const char suffix[] = ".rotary_emb.inv_freq";
    size_t num = strlen(name);

    if (cr_is_named(name, model->towers.unused)) return true;
    if (strcmp(name, "lm_head.weight") == 0) return true; /* tied, or the model has another head */
    return num > sizeof suffix && strcmp(name + num - (sizeof suffix - 1), suffix) == 0;
}

/* Up to three names and how many more. */
typedef struct name_list {
    char text[300];
    size_t num;
} name_list;

static void list_name(name_list *list, const char *name)
{
    size_t used = strlen(list->text);

    if (list->num++ < 3)
        snprintf(list->text + used, sizeof list->text - used, "%s%.80s", used ? ", " : "", name);
}

/* The checkpoint's own tensors of what comes from the adapter: a module that is trained in full; in the adapter's files what PEFT saves of the
 * base, the table that an adapter is of. */
static const cr_tensor *find_beside(const cr_weights *w, const cr_tensors *in, const cr_param *p)
{
    const cr_module *table = ((const cri_root *)w->model->root->impl)->embed;
    const cr_tensor *found;
    char *name;
    int at = 0;

    if (in == w->tensors) return p->is_adapter && !p->is_added ? find_named(w, in, p) : NULL;
    if (in == w->head || p != table->weight || !table->adapters) return NULL;
    while (w->adapters[at] != in)
        at++;
    if (!table->adapters[at].a) return NULL;
    name = cr_asprintf("%s.base_layer.weight", table->name);
    found = find_in_adapter(in, name);
    cr_free(name);
    return found;
}

/* in: the checkpoint's, or the adapter's, which must have all of its parameters. */
static cr_status match_names(const cr_weights *w, const cr_tensors *in, const char *folder,
                             cr_err *err)
{
    const bool is_adapter = in != w->tensors;
    const char *what = is_adapter ? "adapter" : "checkpoint";
    bool *is_used = CR_NEW_ARRAY(bool, in->num_tensors + 1);
    name_list missing = {0}, unexpected = {0};

    for (size_t i = 0; i < w->model->num_params; i++) {
        const cr_param *p = w->model->params[i];
        const cr_tensor *beside = find_beside(w, in, p);
        source s;
        if (beside) is_used[beside - in->tensor] = true;
        if (tensors_of(w, p) != in) continue;
        s = find_source(w, p);
        if (s.second) is_used[s.second - in->tensor] = true;
        if (s.tensor)
            is_used[s.tensor - in->tensor] = true;
        else if (is_adapter || !p->is_added)
            list_name(&missing, p->file_name);
    }
    for (size_t i = 0; i < in->num_tensors; i++) {
        const char *name = in->tensor[i].name;
        if (!is_used[i] && (is_adapter || !is_left_alone(w->model, name)))
            list_name(&unexpected, name);
    }
    cr_free(is_used);
    if (missing.num)
        return cr_fail(err, CR_EFORMAT, "%s: the %s lacks %zu parameters of the model: %s%s",
                       folder, what, missing.num, missing.text, missing.num > 3 ? ", .." : "");
    if (unexpected.num)
        return cr_fail(err, CR_EFORMAT,
                       "%s: the %s has %zu tensors that the model does not know: %s%s", folder,
                       what, unexpected.num, unexpected.text, unexpected.num > 3 ? ", .." : "");
    return CR_OK;
}

static void write_shape(char text[80], const int64_t *shape, int num_dims)
{
    size_t used = (size_t)snprintf(text, 80, "[");

    for (int d = 0; d < num_dims && d < CR_PARAM_MAX_DIMS; d++)
        used +=
            (size_t)snprintf(text + used, 80 - used, "%s%lld", d ? ", " : "", (long long)shape[d]);
    snprintf(text + used, 80 - used, "]");
}

static bool is_dtype_fine(const cr_tensor *t, bool is_adapter)
{
    cr_dtype dtype;

    return cr_tensor_dtype(t, &dtype) && (is_adapter || dtype != CR_F64);
}

static cr_status match_shapes(const cr_weights *w, const cr_tensors *in, const char *folder,
                              cr_err *err)
{
    const bool is_adapter = in != w->tensors;

    for (size_t i = 0; i < w->model->num_params; i++) {
        source s;
        const cr_tensor *t;
        bool is_same;
        char got[80], want[80];
        if (tensors_of(w, w->model->params[i]) != in) continue;
        s = find_source(w, w->model->params[i]);
        t = s.tensor;
        if (!t) continue; /* added */
        is_same = t->num_dims == s.num_dims;
        for (int d = 0; is_same && d < s.num_dims; d++)
            is_same = t->shape[d] == s.shape[d] && (!s.second || s.second->shape[d] == s.shape[d]);
        write_shape(got, t->shape, t->num_dims);
        write_shape(want, s.shape, s.num_dims);
        if (!is_same)
            return cr_fail(err, CR_EFORMAT,
                           "%s: tensor '%s' of %s has shape %s, the model's config.json wants %s%s",
                           folder, t->name, t->file, got, want,
                           is_adapter ? " with r of " CR_PEFT_CONFIG : "");
        if (!is_dtype_fine(t, is_adapter))
            return cr_fail(err, CR_EFORMAT, "%s: tensor '%s' is %s, expected F32, BF16 or F16",
                           folder, t->name, t->dtype);
    }
    return CR_OK;
}

/* A table that PEFT has saved beside an adapter, one of the model's, is the checkpoint's, as the dtype there has it. */
static cr_status match_table(const cr_weights *w, int at, cr_err *err)
{
    enum { BLOCK = 1 << 14 };
    static _Thread_local float here[BLOCK], there[BLOCK], stored[2 * BLOCK]; /* of 8 bytes */
    const cri_root *root = w->model->root->impl;
    const cr_param *p = root->embed->weight;
    const cr_tensor *t = find_beside(w, w->adapters[at], p);
    bool is_same = t && t->num_elems == p->num_elems;
    cr_dtype dtype;

    if (!t) return CR_OK;
    is_same = is_same && cr_tensor_dtype(t, &dtype);
    for (int64_t e = 0, n; is_same && e < p->num_elems; e += n) {
        n = p->num_elems - e < BLOCK ? p->num_elems - e : BLOCK;
        CR_TRY(cr_weights_read(w, p, e, e + n, here, err));
        CR_TRY(cr_tensor_read_f32(t, e, e + n, there, err));
        cr_cast_host(dtype, stored, CR_F32, here, (size_t)n);
        cr_cast_host(CR_F32, here, dtype, stored, (size_t)n);
        is_same = memcmp(here, there, (size_t)n * sizeof *here) == 0;
    }
    if (is_same) return CR_OK;
    return cr_fail(err, CR_EFORMAT,
                   "%s: tensor '%s' is not %s of the model: the adapter is of another one",
                   w->model->adapters[at].folder, t->name, p->name);
}

static cr_status match(const cr_weights *w, const cr_tensors *in, const char *folder, cr_err *err)
{
    CR_TRY(match_names(w, in, folder, err));
    return match_shapes(w, in, folder, err);
}

/* at: of the model's adapters. */
static cr_status open_adapter(cr_weights *w, int at, cr_err *err)
{
    const char *folder = w->model->adapters[at].folder;
    char *path;

    if (!folder) return CR_OK;
    path = cr_path_join(folder, CR_PEFT_TENSORS);
    if (!cr_file_exists(path))
        cr_fail(err, CR_EFORMAT,
                "%s has no " CR_PEFT_TENSORS
                " (adapter_model.bin of older PEFT is not read: load and save it with PEFT)",
                folder);
    else
        cr_note(cr_tensors_open(path, &w->adapters[at], err));
    cr_free(path);
    return err->status;
}

/* A head beside the model. */
static cr_status open_head(cr_weights *w, const char *folder, cr_err *err)
{
    char *path = cr_path_join(folder, "value_head.safetensors"),
         *pickle = cr_path_join(folder, "value_head.bin");

    if (cr_model_gives(w->model, CR_VALUE)) {
        if (cr_file_exists(path))
            cr_note(cr_tensors_open(path, &w->head, err));
        else if (cr_file_exists(pickle))
            cr_fail(err, CR_EFORMAT,
                    "%s is not read (save it as value_head.safetensors, or remove it for a new "
                    "head)",
                    pickle);
    }
    cr_free(path);
    cr_free(pickle);
    return err->status;
}

cr_status cr_weights_open(const char *name, const cr_model *model, cr_weights **out, cr_err *err)
{
    cr_weights *w = CR_NEW(cr_weights);
    char *found = cr_hub_find(name);
    const char *folder = found ? found : name;

    *out = NULL;
    w->model = model;
    w->adapters = CR_NEW_ARRAY(cr_tensors *, model->num_adapters);
    for (int i = 0; i < model->num_adapters && err->status == CR_OK; i++)
        cr_note(open_adapter(w, i, err));
    if (err->status == CR_OK && open_head(w, folder, err) == CR_OK &&
        cr_tensors_open(folder, &w->tensors, err) == CR_OK)
        cr_note(match(w, w->tensors, folder, err));
    if (err->status == CR_OK && w->head) cr_note(match(w, w->head, folder, err));
    for (int i = 0; i < model->num_adapters && err->status == CR_OK; i++)
        if (w->adapters[i] && match(w, w->adapters[i], model->adapters[i].folder, err) == CR_OK)
            cr_note(match_table(w, i, err));
    if (err->status == CR_OK)
        *out = w;
    else
        cr_weights_close(w);
    cr_free(found);
    return *out ? CR_OK : err->status;
}

void cr_weights_close(cr_weights *w)
{
    if (!w) return;
    cr_tensors_close(w->tensors);
    for (int i = 0; i < w->model->num_adapters; i++)
        cr_tensors_close(w->adapters[i]);
    cr_free(w->adapters);
    cr_tensors_close(w->head);
    cr_free(w);
}

static cr_status read_stacked(const cr_tensor *tensor, const cr_param *p, int64_t begin,
                              int64_t end, float *out, cr_err *err)
{
    float *column = CR_NEW_ARRAY(float, (size_t)cr_max64(p->shape[0], p->shape[1]));

    for (int64_t col = 0; col < cr_stacked_num_columns(p) && err->status == CR_OK; col++) {
        cr_column run = cr_stacked_column(p, begin, end, col);
        if (run.num == 0) continue;
        cr_note(cr_tensor_read_f32(tensor, run.at, run.at + run.num, column, err));
        for (int64_t i = 0; i < run.num; i++)
            out[run.elem + i * run.step - begin] = column[i];
    }
    cr_free(column);
    return err->status;
}

/* See find_apart. */
static cr_status read_apart(const source *s, const cr_param *p, int64_t begin, int64_t end,
                            float *out, cr_err *err)
{
    int64_t cols = s->shape[1], all = p->shape[1], first = s->tensor->num_elems;

    for (int64_t e = begin; e < end; e++) {
        int64_t row = e / all, col = e % all - (s->is_up ? cols : 0);
        const cr_tensor *t = s->second && e >= first ? s->second : s->tensor;
        int64_t at = s->second ? e % first : row * cols + col;
        out[e - begin] = 0;
        if (s->second || (col >= 0 && col < cols))
            CR_TRY(cr_tensor_read_f32(t, at, at + 1, out + (e - begin), err));
    }
    return CR_OK;
}

cr_status cr_weights_read(const cr_weights *w, const cr_param *param, int64_t begin, int64_t end,
                          float *out, cr_err *err)
{
    const cr_param *own = param->tied_to ? param->tied_to : param;
    source s = find_source(w, own);

    CR_CHECK(s.tensor, "%s is not in the checkpoint", own->name);
    if (s.is_apart) return read_apart(&s, own, begin, end, out, err);
    if (s.is_stacked) return read_stacked(s.tensor, own, begin, end, out, err);
    return cr_tensor_read_f32(s.tensor, s.first + begin, s.first + end, out, err);
}

cr_status cr_weights_fill(const cr_weights *w, const cr_model *model, const cr_param *param,
                          uint64_t seed, int64_t begin, int64_t end, float *out, cr_err *err)
{
    if (w && find_source(w, cri_own(param)).tensor)
        return cr_weights_read(w, param, begin, end, out, err);
    cr_param_init(model, param, seed, begin, end, out);
    return CR_OK;
}
