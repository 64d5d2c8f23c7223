/* merge.c -- see merge.h. Tensors are those of the base's files, by their names there. */
#include "models/files/merge.h"

#include "base/hub.h"
#include "models/files/peft.h"
#include "models/files/safetensors.h"
#include "models/weights.h"

#include <math.h>
#include <string.h>

typedef struct merge {
    char *folder; /* of the base */
    cr_model *model;
    cr_weights *weights;
    cr_tensors *tensors; /* of the base */
    cr_tensor_writer *writer;
} merge;

/* The module with an adapter whose weight the tensor is. */
static const cr_module *find_adapted(const cr_module *m, const char *tensor)
{
    const cr_param *w = m->weight;
    const cr_module *found = NULL;

    if (m->adapters &&
        (strcmp(w->name, tensor) == 0 || (w->alias && strcmp(w->alias, tensor) == 0)))
        return m;
    for (size_t i = 0; i < m->num_children && !found; i++)
        found = find_adapted(m->children[i], tensor);
    return found;
}

/* All of a parameter; owned by the caller. */
static cr_status read_all(const merge *g, const cr_param *p, float **out, cr_err *err)
{
    *out = CR_NEW_ARRAY(float, (size_t)p->num_elems);
    return cr_weights_read(g->weights, p, 0, p->num_elems, *out, err);
}

/* w += scale b A, a row of it. */
static void add_row(float *w, float *delta, const float *b, const float *a, int64_t rank,
                    int64_t cols, float scale)
{
    memset(delta, 0, (size_t)cols * sizeof *delta);
    for (int64_t k = 0; k < rank; k++)
        for (int64_t i = 0; i < cols; i++)
            delta[i] += b[k] * a[k * cols + i];
    for (int64_t i = 0; i < cols; i++)
        w[i] += scale * delta[i];
}

/* w as it is stored; stored is room for it. */
static cr_status put_row(const merge *g, const cr_tensor *t, size_t index, cr_dtype dtype,
                         int64_t begin, float *w, float *stored, int64_t cols, cr_err *err)
{
    cr_cast_host(dtype, stored, CR_F32, w, (size_t)cols);
    cr_cast_host(CR_F32, w, dtype, stored, (size_t)cols);
    for (int64_t i = 0; i < cols; i++)
        if (!isfinite(w[i]))
            return cr_fail(err, CR_EFORMAT, "%s: with the adapter a number is not finite in %s",
                           t->name, cr_dtype_name(dtype));
    return cr_tensor_writer_put(g->writer, index, begin, begin + cols, stored, err);
}

/* The transpose of [rows, cols]. */
static float *turned(const float *x, int64_t rows, int64_t cols)
{
    float *y = CR_NEW_ARRAY(float, (size_t)(rows * cols));

    for (int64_t i = 0; i < rows * cols; i++)
        y[i % cols * rows + i / cols] = x[i];
    return y;
}

/* Factors of the sum's second part: left [rows, rank] and right [rank, cols]; owned by the caller. Of a Linear B and A, of a table A and
 * B, both transposed. */
static cr_status read_factors(const merge *g, const cr_module *m, float **left, float **right,
                              cr_err *err)
{
    const cr_param *a = m->adapters->a->weight, *b = m->adapters->b->weight;
    float *turn = NULL;

    if (!m->is_lookup) {
        CR_TRY(read_all(g, b, left, err));
        return read_all(g, a, right, err);
    }
    CR_TRY(read_all(g, a, left, err));
    if (read_all(g, b, &turn, err) == CR_OK) *right = turned(turn, b->shape[0], b->shape[1]);
    cr_free(turn);
    return err->status;
}

static cr_status put_merged(const merge *g, const cr_module *m, const cr_tensor *t, size_t index,
                            cr_err *err)
{
    const cr_adapter *own = m->adapters;
    int64_t rows = m->weight->shape[0], cols = m->weight->shape[1], rank = own->b->weight->shape[1];
    float *left = NULL, *right = NULL, *w = CR_NEW_ARRAY(float, (size_t)cols),
          *other = CR_NEW_ARRAY(float, (size_t)cols);
    cr_dtype dtype;

    CR_CHECK(cr_tensor_dtype(t, &dtype), "dtype of %s", t->name); /* open_writer */
    cr_note(read_factors(g, m, &left, &right, err));
    for (int64_t r = 0; r < rows && err->status == CR_OK; r++) {
        cr_note(cr_tensor_read_f32(t, r * cols, (r + 1) * cols, w, err));
        add_row(w, other, left + r * rank, right, rank, cols, own->scale);
        cr_note(put_row(g, t, index, dtype, r * cols, w, other, cols, err));
    }
    cr_free(left);
    cr_free(right);
    cr_free(w);
    cr_free(other);
    return err->status;
}

/* What was trained in full. */
static bool is_saved(const cr_param *p)
{
    return p->is_adapter && !p->is_added;
}

static const cr_param *find_saved(const cr_model *model, const char *tensor)
{
    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *p = model->params[i];
        if (is_saved(p) &&
            (strcmp(p->name, tensor) == 0 || (p->alias && strcmp(p->alias, tensor) == 0)))
            return p;
    }
    return NULL;
}

/* It takes the tensor's place, in its dtype. */
static cr_status put_saved(const merge *g, const cr_param *p, const cr_tensor *t, size_t index,
                           cr_err *err)
{
    int64_t cols = p->num_dims > 1 ? p->shape[1] : p->num_elems;
    float *w = CR_NEW_ARRAY(float, (size_t)cols), *other = CR_NEW_ARRAY(float, (size_t)cols);
    cr_dtype dtype;

    CR_CHECK(cr_tensor_dtype(t, &dtype), "dtype of %s", t->name); /* open_writer */
    for (int64_t e = 0; e < p->num_elems && err->status == CR_OK; e += cols) {
        cr_note(cr_weights_read(g->weights, p, e, e + cols, w, err));
        if (err->status == CR_OK) cr_note(put_row(g, t, index, dtype, e, w, other, cols, err));
    }
    cr_free(w);
    cr_free(other);
    return err->status;
}

static cr_status open_all(merge *g, const char *model, const char *adapter, cr_err *err)
{
    const cr_model_options options = {.adapters = {.folder = adapter, .dropout = -1}};

    g->folder = cr_hub_find(model);
    if (!g->folder) return cr_hub_absent(model, err);
    if (cr_model_open_with(g->folder, &options, &g->model, err) == CR_OK &&
        cr_weights_open(g->folder, g->model, &g->weights, err) == CR_OK)
        cr_note(cr_tensors_open(g->folder, &g->tensors, err));
    return err->status;
}

static cr_status open_writer(merge *g, const char *out, cr_err *err)
{
    size_t num = g->tensors->num_tensors;
    cr_tensor_spec *specs = CR_NEW_ARRAY(cr_tensor_spec, num);
    char *path = cr_path_join(out, "model.safetensors");

    for (size_t i = 0; i < num && err->status == CR_OK; i++) {
        const cr_tensor *t = &g->tensors->tensor[i];
        specs[i] = (cr_tensor_spec){.name = t->name, .num_dims = t->num_dims};
        memcpy(specs[i].shape, t->shape, sizeof t->shape);
        if (!cr_tensor_dtype(t, &specs[i].dtype))
            cr_fail(err, CR_EFORMAT, "tensor '%s' of %s is %s, expected F32, BF16 or F16", t->name,
                    t->file, t->dtype);
    }
    if (err->status == CR_OK) cr_note(cr_tensor_writer_open(path, specs, num, &g->writer, err));
    cr_free(specs);
    cr_free(path);
    return err->status;
}

static size_t num_adapted(const cr_module *m)
{
    size_t num = m->adapters != NULL;

    for (size_t i = 0; i < m->num_children; i++)
        num += num_adapted(m->children[i]);
    return num;
}

static cr_status put_all(const merge *g, cr_err *err)
{
    size_t left = num_adapted(g->model->root);

    for (size_t i = 0; i < g->model->num_params; i++)
        left += is_saved(g->model->params[i]);
    for (size_t i = 0; i < g->tensors->num_tensors; i++) {
        const cr_tensor *t = &g->tensors->tensor[i];
        const cr_module *m = find_adapted(g->model->root, t->name);
        const cr_param *saved = find_saved(g->model, t->name);
        left -= m || saved;
        CR_TRY(m       ? put_merged(g, m, t, i, err)
               : saved ? put_saved(g, saved, t, i, err)
                       : cr_tensor_writer_put(g->writer, i, 0, t->num_elems, t->data, err));
    }
    if (left)
        return cr_fail(err, CR_EABSENT,
                       "%s: %zu weights with adapters are in tensors of several experts, which are "
                       "not merged",
                       g->folder, left);
    return CR_OK;
}

cr_status cr_adapter_merge(const char *model, const char *adapter, const char *out, cr_err *err)
{
    merge g = {0};

    cr_peft_compare_base(adapter, model);
    if (open_all(&g, model, adapter, err) == CR_OK && open_writer(&g, out, err) == CR_OK)
        cr_note(put_all(&g, err));
    if (err->status == CR_OK)
        cr_note(cr_tensor_writer_close(g.writer, err));
    else
        cr_tensor_writer_abort(g.writer);
    cr_tensors_close(g.tensors);
    cr_weights_close(g.weights);
    cr_model_free(g.model);
    cr_free(g.folder);
    return err->status;
}
