/* inject.c -- features of images in the stream of the decoder: those of the merger
 * replace the embeddings of placeholders, those of deepstack are added there to the outputs of the first
 * layers. On the way back their gradients go to the tower; the table of embeddings gets none from the
 * rows that were replaced.
 *
 * Under sequence parallel the tower runs on every rank over all images of the batch, and each rank places
 * the features whose tokens are its rows: gradients of the others are zero here, and are added there.
 */
#include "models/split.h"
#include "models/vision/vision_impl.h"

#include <string.h>

static int64_t num_features(const cr_vision_input *v)
{
    return v->num_patches / (CR_MERGE * CR_MERGE);
}

const cr_vision_input *cr_vision_idle(const cr_model *model)
{
    return model->own->idle;
}

bool cri_is_tower_back(const cr_model *model, const cr_pass *p)
{
    const cri_root *root = model->root->impl;

    return p->tape && p->batch->vision && root->visual->has_trainable;
}

bool cri_is_placed(const cr_model *model, const cr_batch *b, int64_t token)
{
    const cr_vision_config *c = model->config.vision;

    return b->vision && !b->vision->is_idle &&
           (b->ids[token] == c->image_id || b->ids[token] == c->video_id);
}

cr_status cri_check_images(const cr_model *model, const cr_pass *p, cr_err *err)
{
    const cr_batch *b = p->batch;

    if (!b->vision) return CR_OK;
    if (!model->config.vision)
        return cr_fail(err, CR_EARG, "a batch with images, but a %s has no vision tower",
                       model->config.model_type);
    if (p->kv) return cr_fail(err, CR_EABSENT, "generation from images is not available");
    if (p->split) b = p->split->whole;
    if (b->vision->is_idle) return CR_OK;
    if (!b->mrope)
        return cr_fail(err, CR_EARG, "a batch with images needs positions along t, h and w");
    return cr_vision_positions(&model->config, b, b->vision, NULL, err);
}

/* ---- forward ---- */

static void list_placed(cr_model *model, const cr_pass *p)
{
    const cr_batch *b = p->batch;
    cri_model *own = model->own;
    size_t num = (size_t)num_features(b->vision);

    if (num > own->capacity_placed) {
        own->placed = cr_realloc(own->placed, own->capacity_placed * sizeof *own->placed,
                                 2 * num * sizeof *own->placed);
        own->capacity_placed = 2 * num;
    }
    for (int64_t t = 0; t < b->num_tokens; t++)
        if (cri_is_placed(model, b, t)) own->placed[own->num_placed++] = (int32_t)t;
    for (int64_t t = 0; p->split && t < p->split->first; t++)
        own->first_placed += cri_is_placed(model, p->split->whole, t);
}

/* Of rows of all features, those of the placed tokens. */
static cr_mem *placed_rows(const cr_model *model, const cr_pass *p, cr_mem *rows)
{
    return cr_at(p->dtype, rows, model->own->first_placed * model->config.hidden_size);
}

/* own->placed on scratch. */
static cr_status push_placed(const cri_model *own, cr_pass *p, cr_mem **out, cr_err *err)
{
    return cr_stack_push_copy(p->scratch, own->placed,
                              (size_t)own->num_placed * sizeof *own->placed, out, err);
}

/* Memory of all features, on scratch: values, or gradients. */
static cr_status push_features(cr_model *model, cr_pass *p, cr_err *err)
{
    cri_model *own = model->own;
    int64_t rows = num_features(p->batch->vision), cols = model->config.hidden_size;

    CR_TRY(cri_push(p->scratch, p, rows, cols, &own->features, err));
    for (int64_t i = 0; i < model->config.vision->num_deepstack; i++)
        CR_TRY(cri_push(p->scratch, p, rows, cols, &own->deepstack[i], err));
    return CR_OK;
}

cr_status cri_run_tower(cr_model *model, cr_pass *p, cr_err *err)
{
    const cri_root *root = model->root->impl;
    cri_model *own = model->own;

    own->num_placed = own->first_placed = 0;
    if (!p->batch->vision) return CR_OK;
    list_placed(model, p);
    CR_TRY(push_features(model, p, err));
    return cri_vision_forward(root->visual, p, p->batch->vision, own->features, own->deepstack,
                              err);
}

cr_status cri_place_features(cr_model *model, cr_pass *p, cr_mem *x, cr_err *err)
{
    cri_model *own = model->own;
    size_t mark = cr_stack_mark(p->scratch);
    cr_mem *index;

    if (own->num_placed == 0) return CR_OK;
    CR_TRY(push_placed(own, p, &index, err));
    CR_TRY(
        cr_rows_scatter(p->dev,
                        &(cr_rows_move_args){p->dtype, placed_rows(model, p, own->features), index,
                                             own->num_placed, model->config.hidden_size, x},
                        err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

cr_status cri_add_features(cr_model *model, cr_pass *p, int64_t at, cr_mem *x, cr_err *err)
{
    cri_model *own = model->own;
    size_t mark = cr_stack_mark(p->scratch);
    cr_mem *index;

    if (own->num_placed == 0 || at >= model->config.vision->num_deepstack) return CR_OK;
    CR_TRY(push_placed(own, p, &index, err));
    CR_TRY(cr_rows_add(p->dev,
                       &(cr_rows_move_args){p->dtype, placed_rows(model, p, own->deepstack[at]),
                                            index, own->num_placed, model->config.hidden_size, x},
                       err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

/* ---- backward ---- */

cr_status cri_reserve_features(cr_model *model, cr_pass *p, cr_err *err)
{
    cri_model *own = model->own;
    size_t bytes;

    if (!cri_is_tower_back(model, p)) return CR_OK;
    CR_TRY(push_features(model, p, err));
    if (own->num_placed == num_features(p->batch->vision)) return CR_OK;
    bytes = (size_t)(num_features(p->batch->vision) * model->config.hidden_size) *
            cr_dtype_bytes(p->dtype);
    CR_TRY(cr_zero(p->dev, own->features, bytes, err));
    for (int64_t i = 0; i < model->config.vision->num_deepstack; i++)
        CR_TRY(cr_zero(p->dev, own->deepstack[i], bytes, err));
    return CR_OK;
}

cr_status cri_back_features(cr_model *model, cr_pass *p, int64_t at, const cr_mem *grad,
                            cr_err *err)
{
    cri_model *own = model->own;
    size_t mark = cr_stack_mark(p->scratch);
    cr_mem *index;

    if (!cri_is_tower_back(model, p) || own->num_placed == 0) return CR_OK;
    if (at >= model->config.vision->num_deepstack) return CR_OK;
    CR_TRY(push_placed(own, p, &index, err));
    CR_TRY(cr_rows_gather(
        p->dev,
        &(cr_rows_move_args){p->dtype, grad, index, own->num_placed, model->config.hidden_size,
                             placed_rows(model, p, at < 0 ? own->features : own->deepstack[at])},
        err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

cr_status cri_back_tower(cr_model *model, cr_pass *p, cr_err *err)
{
    const cri_root *root = model->root->impl;
    cri_model *own = model->own;

    if (!cri_is_tower_back(model, p)) return CR_OK;
    return cri_vision_backward(root->visual, p, p->batch->vision, own->features, own->deepstack,
                               err);
}
