/* positions.c -- where the tokens of images and videos stand along the axes t, h and w of rotary
 * positions, and the angles that follow. */
#include "models/pass_impl.h"
#include "models/vision/vision.h"

/* A walk over a batch: the next item, and the frames of it that are done. */
typedef struct walk {
    const cr_vision_config *c;
    const cr_batch *b;
    const cr_vision_input *v; /* NULL: no items */
    int64_t item, frames;
    int32_t *mrope; /* NULL: only checked */
} walk;

static void put(walk *w, int64_t token, int64_t t, int64_t h, int64_t width)
{
    if (!w->mrope) return;
    w->mrope[token] = (int32_t)t;
    w->mrope[w->b->num_tokens + token] = (int32_t)h;
    w->mrope[2 * w->b->num_tokens + token] = (int32_t)width;
}

static bool is_video(const walk *w)
{
    return w->v->second_per_grid && w->v->second_per_grid[w->item] > 0;
}

/* Tokens from `first` on that are as the first one. */
static int64_t count_same(const walk *w, int64_t first, int64_t end)
{
    int64_t t = first;

    while (t < end && w->b->ids[t] == w->b->ids[first])
        t++;
    return t - first;
}

static cr_status check_item(const walk *w, int64_t first, int64_t seq, cr_err *err)
{
    bool wants_video = w->b->ids[first] == w->c->video_id;

    if (w->item == w->v->num_items)
        return cr_fail(err, CR_EARG,
                       "sequence %lld: token %lld is a placeholder, but the batch has only %lld "
                       "images and videos, which have theirs already",
                       (long long)seq, (long long)first, (long long)w->v->num_items);
    if (wants_video != is_video(w))
        return cr_fail(err, CR_EARG,
                       "sequence %lld: token %lld is a placeholder of %s, but item %lld is %s",
                       (long long)seq, (long long)first, wants_video ? "a video" : "an image",
                       (long long)w->item, is_video(w) ? "a video" : "an image");
    return CR_OK;
}

/* Of Prismatic: an image of the one size there is, after the first token of its sequence. */
static cr_status check_alone(const walk *w, int64_t first, int64_t seq, cr_err *err)
{
    const int32_t *g = w->v->grid[w->item];
    int64_t side = w->c->vit[0].side, start = w->b->cu_seqlens[seq];

    if (g[0] != 1 || g[1] != side || g[2] != side)
        return cr_fail(err, CR_EARG,
                       "item %lld has %d x %d x %d patches; an image of this model has 1 x %lld x "
                       "%lld",
                       (long long)w->item, g[0], g[1], g[2], (long long)side, (long long)side);
    if (first != start + 1)
        return cr_fail(
            err, CR_EARG,
            "sequence %lld: placeholders from token %lld on; the one image of a sequence "
            "stands after its first token",
            (long long)seq, (long long)(first - start));
    return CR_OK;
}

/* One run of placeholders, from token `first` on: an item, or a frame of one. *next: the position of the
 * first and of what comes after. */
static cr_status place_run(walk *w, int64_t seq, int64_t first, int64_t end, int64_t *next,
                           int64_t *num, cr_err *err)
{
    const int32_t *grid;
    int64_t frames, h, width, max, there;
    float second = 0, rate = (float)w->c->tokens_per_second;
    bool is_framed;

    CR_TRY(check_item(w, first, seq, err));
    grid = w->v->grid[w->item];
    if (w->c->num_vits) CR_TRY(check_alone(w, first, seq, err));
    is_framed = is_video(w) && rate == 0;
    frames = is_framed ? 1 : grid[0];
    h = grid[1] / w->c->merge;
    width = grid[2] / w->c->merge;
    *num = frames * h * width;
    there = count_same(w, first, end);
    if (there < *num)
        return cr_fail(
            err, CR_EARG,
            "sequence %lld: item %lld (%d x %d x %d patches) needs %lld placeholders from "
            "token %lld on, %lld are there",
            (long long)seq, (long long)w->item, grid[0], grid[1], grid[2], (long long)*num,
            (long long)first, (long long)there);
    if (is_video(w)) second = w->v->second_per_grid[w->item];
    max = (h > width ? h : width) - 1;
    for (int64_t k = 0; k < *num; k++) {
        int64_t t = (int64_t)((float)(k / (h * width)) * second * rate);
        put(w, first + k, *next + t, *next + k / width % h, *next + k % width);
        if (t > max) max = t;
    }
    *next += max + 1;
    w->frames += frames;
    if (w->frames < grid[0]) return CR_OK;
    w->frames = 0;
    w->item++;
    return CR_OK;
}

static cr_status check_grids(const cr_vision_input *v, int32_t merge, cr_err *err)
{
    int64_t num = 0;

    if (v->num_items < 1) return cr_fail(err, CR_EARG, "a batch with images has none");
    for (int64_t i = 0; i < v->num_items; i++) {
        const int32_t *g = v->grid[i];
        if (g[0] < 1 || g[1] < merge || g[2] < merge || g[1] % merge || g[2] % merge)
            return cr_fail(err, CR_EARG,
                           "item %lld has a grid of %d x %d x %d patches; rows and columns must be "
                           "even",
                           (long long)i, g[0], g[1], g[2]);
        num += (int64_t)g[0] * g[1] * g[2];
    }
    if (num != v->num_patches)
        return cr_fail(err, CR_EARG, "%lld items have %lld patches by their grids, %lld are given",
                       (long long)v->num_items, (long long)num, (long long)v->num_patches);
    return CR_OK;
}

/* Items that placeholders of a sequence may be of end before this one. */
static int64_t end_of_items(const walk *w, int64_t seq)
{
    if (!w->v) return 0;
    return w->v->seq_items ? w->v->seq_items[seq + 1] : INT64_MAX;
}

static cr_status walk_batch(walk *w, cr_err *err)
{
    const cr_batch *b = w->b;

    if (w->v) CR_TRY(check_grids(w->v, (int32_t)w->c->merge, err));
    for (int64_t s = 0; s < b->num_seqs; s++) {
        int64_t end = b->cu_seqlens[s + 1], next = 0, num, items = end_of_items(w, s);
        for (int64_t t = b->cu_seqlens[s]; t < end; t += num) {
            bool is_run =
                w->item < items && (b->ids[t] == w->c->image_id || b->ids[t] == w->c->video_id);
            num = 1;
            if (is_run)
                CR_TRY(place_run(w, s, t, end, &next, &num, err));
            else
                put(w, t, next, next, next), next++;
        }
        if (w->v && w->v->seq_items && w->item < items)
            return cr_fail(err, CR_EARG, "sequence %lld: item %lld has no placeholders",
                           (long long)s, (long long)w->item);
        if (w->frames)
            return cr_fail(
                err, CR_EARG, "sequence %lld ends after %lld of the %d frames of item %lld",
                (long long)s, (long long)w->frames, w->v->grid[w->item][0], (long long)w->item);
    }
    if (w->v && w->item < w->v->num_items)
        return cr_fail(err, CR_EARG, "item %lld of %lld has no placeholders in the batch",
                       (long long)w->item, (long long)w->v->num_items);
    return CR_OK;
}

cr_status cr_vision_positions(const cr_model_config *config, const cr_batch *batch,
                              const cr_vision_input *vision, int32_t *mrope, cr_err *err)
{
    walk w = {.c = config->vision, .b = batch, .v = vision, .mrope = mrope};

    if (!config->vision) return cr_fail(err, CR_EARG, "a %s has no images", config->model_type);
    return walk_batch(&w, err);
}

int64_t cr_vision_item_tokens(const cr_model_config *config, const int32_t grid[3])
{
    int64_t merge = config->vision->merge;

    return (int64_t)grid[0] * (grid[1] / merge) * (grid[2] / merge);
}

void cri_rope_angles(const cr_model_config *c, const cr_batch *b, float *angles)
{
    int64_t half = c->head_dim / 2;

    for (int64_t t = 0; t < b->num_tokens; t++)
        for (int64_t i = 0; i < half; i++)
            angles[t * half + i] =
                (float)b->mrope[c->rope_axis[i] * b->num_tokens + t] * c->ropes[0].inv_freq[i];
}
