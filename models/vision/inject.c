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

#include <stdlib.h>

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

static int compare(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

bool cri_is_placed(const cr_pass *p, int64_t token)
{
    const cri_images *im = &p->state->images;
    int32_t key = (int32_t)token;

    return im->num_placed && bsearch(&key, im->placed, (size_t)im->num_placed, sizeof key, compare);
}

cr_status cri_check_images(const cr_model *model, const cr_pass *p, cr_err *err)
{
    const cr_batch *b = p->batch;

    if (!b->vision) return CR_OK;
    if (!model->config.vision)
        return cr_fail(err, CR_EARG, "a batch with images, but a %s has no vision tower",
                       model->config.model_type);
    if (p->kv) return cr_fail(err, CR_EARG, "a pass over the cache takes features, and got images");
    if (p->split) b = p->split->whole;
    if (b->vision->is_idle) return CR_OK;
    if (model->config.rope_axis && !b->mrope)
        return cr_fail(err, CR_EARG, "a batch with images needs positions along t, h and w");
    return cr_vision_positions(&model->config, b, b->vision, NULL, err);
}

/* ---- forward ---- */

/* Tokens of a sequence that take features. */
static int64_t num_to_place(const cr_model *model, const cr_vision_input *v, int64_t seq)
{
    int64_t num = 0;

    if (v->is_idle) return 0;
    if (!v->seq_items) return INT64_MAX;
    for (int64_t i = v->seq_items[seq]; i < v->seq_items[seq + 1]; i++)
        num += cr_vision_item_tokens(&model->config, v->grid[i]);
    return num;
}

static cr_status list_placed(const cr_model *model, cr_pass *p, cr_err *err)
{
    const cr_batch *b = p->split ? p->split->whole : p->batch;
    const cr_vision_config *c = model->config.vision;
    int64_t first = p->split ? p->split->first : 0, end = first + p->batch->num_tokens;
    cri_images *im = &p->state->images;

    im->placed = cr_reserve(im->placed, &im->capacity_placed,
                            (size_t)num_features(model, b->vision), sizeof *im->placed);
    for (int64_t s = 0; s < b->num_seqs; s++) {
        int64_t left = num_to_place(model, b->vision, s);
        for (int64_t t = b->cu_seqlens[s]; t < b->cu_seqlens[s + 1] && left > 0; t++) {
            if (b->ids[t] != c->image_id && b->ids[t] != c->video_id) continue;
            left--;
            im->first_placed += t < first;
            if (t >= first && t < end) im->placed[im->num_placed++] = (int32_t)(t - first);
        }
    }
    if (im->num_placed == 0) return CR_OK;
    return cr_stack_push_copy(cri_keep(p), im->placed, (size_t)im->num_placed * sizeof *im->placed,
                              &im->index, err);
}

/* Of rows of all features, those of the placed tokens. */
static cr_mem *placed_rows(const cr_model *model, const cr_pass *p, cr_mem *rows)
{
    return cr_at(p->dtype, rows, p->state->images.first_placed * model->config.hidden_size);
}

/* Memory of `rows` features, on scratch: values, or gradients. */
static cr_status push_features(const cr_model *model, cr_pass *p, int64_t rows, cr_err *err)
{
    cri_images *im = &p->state->images;
    int64_t cols = model->config.hidden_size;

    CR_TRY(cri_push(p->scratch, p, rows, cols, &im->features, err));
    for (int64_t i = 0; i < model->config.vision->num_deepstack; i++)
        CR_TRY(cri_push(p->scratch, p, rows, cols, &im->deepstack[i], err));
    return CR_OK;
}

/* Of the batch's runs: their tokens and the features that those take. */
static cr_status take_runs(const cr_model *model, cr_pass *p, cr_err *err)
{
    const cr_batch *b = p->batch;
    cri_images *im = &p->state->images;
    int64_t cols = model->config.hidden_size, row = 0;
    size_t row_bytes = cr_vision_feature_bytes(model, p->dtype, 1);

    im->placed =
        cr_reserve(im->placed, &im->capacity_placed, (size_t)b->num_tokens, sizeof *im->placed);
    for (int64_t i = 0; i < b->num_runs; i++)
        for (int64_t t = 0; t < b->runs[i].num_tokens; t++)
            im->placed[im->num_placed++] = (int32_t)(b->runs[i].first_token + t);
    CR_TRY(cr_stack_push_copy(p->scratch, im->placed, (size_t)im->num_placed * sizeof *im->placed,
                              &im->index, err));
    CR_TRY(push_features(model, p, im->num_placed, err));
    for (int64_t i = 0; i < b->num_runs; row += b->runs[i++].num_tokens)
        for (int64_t k = 0; k < cr_vision_num_features(model); k++) {
            const cr_vision_run *r = &b->runs[i];
            CR_TRY(cr_copy(p->dev,
                           cr_at(p->dtype, k ? im->deepstack[k - 1] : im->features, row * cols),
                           cr_at_const(p->dtype, r->of->rows[k], r->from * cols),
                           (size_t)r->num_tokens * row_bytes, err));
        }
    return CR_OK;
}

cr_status cri_run_tower(const cr_model *model, cr_pass *p, cr_err *err)
{
    const cri_root *root = model->root->impl;
    cri_images *im = &p->state->images;

    im->num_placed = im->first_placed = 0;
    if (p->batch->num_runs) return take_runs(model, p, err);
    if (!p->batch->vision) return CR_OK;
    CR_TRY(list_placed(model, p, err));
    CR_TRY(push_features(model, p, num_features(model, p->batch->vision), err));
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

int64_t cr_vision_num_features(const cr_model *model)
{
    return 1 + model->config.vision->num_deepstack;
}

size_t cr_vision_feature_bytes(const cr_model *model, cr_dtype dtype, int64_t num_tokens)
{
    return (size_t)(num_tokens * model->config.hidden_size) * cr_dtype_bytes(dtype);
}

cr_status cr_vision_compute(const cr_model *model, cr_pass *p, const cr_vision_input *in,
                            const cr_vision_features *out, cr_err *err)
{
    const cri_root *root = model->root->impl;
    size_t mark = cr_stack_mark(p->scratch);
    cr_status status;

    CR_CHECK(!p->batch && !p->tape && out->num_tokens == num_features(model, in),
             "%lld rows of features of %lld", (long long)out->num_tokens,
             (long long)num_features(model, in));
    CR_TRY(cr_pass_begin(model, p, err));
    status = root->tower_ops->forward(root->visual, p, in, out->rows[0], out->rows + 1, err);
    cr_stack_release(p->scratch, mark);
    return status;
}

/* ---- backward ---- */

cr_status cri_reserve_features(const cr_model *model, cr_pass *p, cr_err *err)
{
    cri_images *im = &p->state->images;
    size_t bytes;

    if (!cri_is_tower_back(model, p)) return CR_OK;
    CR_TRY(push_features(model, p, num_features(model, p->batch->vision), err));
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
