/* weights.c -- a checkpoint matched against a model (see weights.h). */
#include "models/weights.h"

#include "models/safetensors.h"

#include <stdio.h>
#include <string.h>

struct cr_weights {
    cr_tensors *tensors;
    const cr_model *model;
    const cr_tensor **of_param; /* [model->num_params] */
};

/* ---- which tensor is which parameter ---- */

/* Names that a checkpoint may have beside the parameters. */
static bool is_left_alone(const cr_model *model, const char *name)
{
    static const char suffix[] = ".rotary_emb.inv_freq";
    size_t num = strlen(name);

    if (model->config.is_tied && strcmp(name, "lm_head.weight") == 0) return true;
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

static cr_status match_names(cr_weights *w, const char *folder, cr_err *err)
{
    name_list missing = {0}, unexpected = {0};

    for (size_t i = 0; i < w->model->num_params; i++) {
        w->of_param[i] = cr_tensors_find(w->tensors, w->model->params[i]->name);
        if (!w->of_param[i]) list_name(&missing, w->model->params[i]->name);
    }
    for (size_t i = 0; i < w->tensors->num_tensors; i++) {
        const char *name = w->tensors->tensor[i].name;
        if (!is_left_alone(w->model, name) && !cr_model_find_param(w->model, name))
            list_name(&unexpected, name);
    }
    if (missing.num)
        return cr_fail(err, CR_EFORMAT,
                       "%s: the checkpoint lacks %zu parameters of the model: %s%s", folder,
                       missing.num, missing.text, missing.num > 3 ? ", .." : "");
    if (unexpected.num)
        return cr_fail(err, CR_EFORMAT,
                       "%s: the checkpoint has %zu tensors that the model does not know: %s%s",
                       folder, unexpected.num, unexpected.text, unexpected.num > 3 ? ", .." : "");
    return CR_OK;
}

static cr_status match_shapes(const cr_weights *w, const char *folder, cr_err *err)
{
    for (size_t i = 0; i < w->model->num_params; i++) {
        const cr_param *p = w->model->params[i];
        const cr_tensor *t = w->of_param[i];
        bool is_same = t->num_dims == p->num_dims && t->num_elems == p->num_elems;
        for (int d = 0; is_same && d < p->num_dims; d++)
            is_same = t->shape[d] == p->shape[d];
        if (!is_same)
            return cr_fail(err, CR_EFORMAT,
                           "%s: tensor '%s' of %s has shape [%lld, %lld], the model's config.json "
                           "wants [%lld, %lld]",
                           folder, t->name, t->file, (long long)(t->num_dims ? t->shape[0] : 1),
                           (long long)(t->num_dims > 1 ? t->shape[1] : 1), (long long)p->shape[0],
                           (long long)(p->num_dims > 1 ? p->shape[1] : 1));
        if (strcmp(t->dtype, "F32") != 0 && strcmp(t->dtype, "BF16") != 0 &&
            strcmp(t->dtype, "F16") != 0)
            return cr_fail(err, CR_EFORMAT, "%s: tensor '%s' is %s, expected F32, BF16 or F16",
                           folder, t->name, t->dtype);
    }
    return CR_OK;
}

cr_status cr_weights_open(const char *folder, const cr_model *model, cr_weights **out, cr_err *err)
{
    cr_weights *w = CR_NEW(cr_weights);

    *out = NULL;
    w->model = model;
    w->of_param = CR_NEW_ARRAY(const cr_tensor *, model->num_params);
    if (cr_tensors_open(folder, &w->tensors, err) != CR_OK ||
        match_names(w, folder, err) != CR_OK || match_shapes(w, folder, err) != CR_OK) {
        cr_weights_close(w);
        return err->status;
    }
    *out = w;
    return CR_OK;
}

void cr_weights_close(cr_weights *w)
{
    if (!w) return;
    cr_tensors_close(w->tensors);
    cr_free(w->of_param);
    cr_free(w);
}

cr_status cr_weights_read(const cr_weights *w, const cr_param *param, int64_t begin, int64_t end,
                          float *out, cr_err *err)
{
    const cr_param *own = param->tied_to ? param->tied_to : param;
    const cr_tensor *t = cr_tensors_find(w->tensors, own->name);

    return cr_tensor_read_f32(t, begin, end, out, err);
}
