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

static int64_t num_features(const cr_model *model, const cr_vision_input *v)
{
    int64_t merge = model->config.vision->merge;

    return v->num_patches / (merge * merge);
}

const cr_vision_input *cr_vision_idle(const cr_model *model)
{
    return model->own->idle;
}

bool cri_is_tower_back(const cr_model *model, const cr_pass *p)
{
    const cri_root *root = model->root->impl;

    return p->tape && p->batch->vision &&
           (root->visual->has_trainable || (root->projector && root->projector->has_trainable));
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
    if (model->config.rope_axis && !b->mrope)
        return cr_fail(err, CR_EARG, "a batch with images needs positions along t, h and w");
    return cr_vision_positions(&model->config, b, b->vision, NULL, err);
}

/* ---- forward ---- */

static cr_status list_placed(const cr_model *model, cr_pass *p, cr_err *err)
{
    const cr_batch *b = p->batch;
    cri_images *im = &p->state->images;

    im->placed = cr_reserve(im->placed, &im->capacity_placed,
                            (size_t)num_features(model, b->vision), sizeof *im->placed);
    for (int64_t t = 0; t < b->num_tokens; t++)
        if (cri_is_placed(model, b, t)) im->placed[im->num_placed++] = (int32_t)t;
    for (int64_t t = 0; p->split && t < p->split->first; t++)
        im->first_placed += cri_is_placed(model, p->split->whole, t);
    if (im->num_placed == 0) return CR_OK;
    return cr_stack_push_copy(cri_keep(p), im->placed, (size_t)im->num_placed * sizeof *im->placed,
                              &im->index, err);
}

/* Of rows of all features, those of the placed tokens. */
static cr_mem *placed_rows(const cr_model *model, const cr_pass *p, cr_mem *rows)
{
    return cr_at(p->dtype, rows, p->state->images.first_placed * model->config.hidden_size);
}

/* Memory of all features, on scratch: values, or gradients. */
static cr_status push_features(const cr_model *model, cr_pass *p, cr_err *err)
{
    cri_images *im = &p->state->images;
    int64_t rows = num_features(model, p->batch->vision), cols = model->config.hidden_size;

    CR_TRY(cri_push(p->scratch, p, rows, cols, &im->features, err));
    for (int64_t i = 0; i < model->config.vision->num_deepstack; i++)
        CR_TRY(cri_push(p->scratch, p, rows, cols, &im->deepstack[i], err));
    return CR_OK;
}

cr_status cri_run_tower(const cr_model *model, cr_pass *p, cr_err *err)
{
    const cri_root *root = model->root->impl;
    cri_images *im = &p->state->images;

    im->num_placed = im->first_placed = 0;
    if (!p->batch->vision) return CR_OK;
    CR_TRY(list_placed(model, p, err));
    CR_TRY(push_features(model, p, err));
    return root->tower_ops->forward(root->visual, p, p->batch->vision, im->features, im->deepstack,
                                    err);
}

cr_status cri_place_features(const cr_model *model, cr_pass *p, cr_mem *x, cr_err *err)
{
    cri_images *im = &p->state->images;

    if (im->num_placed == 0) return CR_OK;
    return cr_rows_scatter(p->dev,
                           &(cr_rows_move_args){p->dtype, placed_rows(model, p, im->features),
                                                im->index, im->num_placed,
                                                model->config.hidden_size, x},
                           err);
}

cr_status cri_add_features(const cr_model *model, cr_pass *p, int64_t at, cr_mem *x, cr_err *err)
{
    cri_images *im = &p->state->images;

    if (im->num_placed == 0 || at >= model->config.vision->num_deepstack) return CR_OK;
    return cr_rows_add(p->dev,
                       &(cr_rows_move_args){p->dtype, placed_rows(model, p, im->deepstack[at]),
                                            im->index, im->num_placed, model->config.hidden_size,
                                            x},
                       err);
}

/* ---- backward ---- */

cr_status cri_reserve_features(const cr_model *model, cr_pass *p, cr_err *err)
{
    cri_images *im = &p->state->images;
    size_t bytes;

    if (!cri_is_tower_back(model, p)) return CR_OK;
    CR_TRY(push_features(model, p, err));
    if (im->num_placed == num_features(model, p->batch->vision)) return CR_OK;
    bytes = (size_t)(num_features(model, p->batch->vision) * model->config.hidden_size) *
            cr_dtype_bytes(p->dtype);
    CR_TRY(cr_zero(p->dev, im->features, bytes, err));
    for (int64_t i = 0; i < model->config.vision->num_deepstack; i++)
        CR_TRY(cr_zero(p->dev, im->deepstack[i], bytes, err));
    return CR_OK;
}

cr_status cri_back_features(const cr_model *model, cr_pass *p, int64_t at, const cr_mem *grad,
                            cr_err *err)
{
    cri_images *im = &p->state->images;

    if (!cri_is_tower_back(model, p) || im->num_placed == 0) return CR_OK;
    if (at >= model->config.vision->num_deepstack) return CR_OK;
    return cr_rows_gather(
        p->dev,
        &(cr_rows_move_args){p->dtype, grad, im->index, im->num_placed, model->config.hidden_size,
                             placed_rows(model, p, at < 0 ? im->features : im->deepstack[at])},
        err);
}

cr_status cri_back_tower(const cr_model *model, cr_pass *p, cr_err *err)
{
    const cri_root *root = model->root->impl;
    cri_images *im = &p->state->images;

    if (!cri_is_tower_back(model, p)) return CR_OK;
    return root->tower_ops->backward(root->visual, p, p->batch->vision, im->features, im->deepstack,
                                     err);
}
