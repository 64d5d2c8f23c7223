/* vision_patches.c -- from the grids of images and videos to the order, the segments and the positions of
 * their patches. All float32 as in Transformers. */
#include "models/vision/vision_impl.h"

#include <math.h>

enum { TOKEN = CR_MERGE * CR_MERGE /* patches of a token */ };

/* What is filled in, and how far. */
typedef struct filling {
    cr_patches *r;
    const cr_vision_config *c;
    float *inv_freq; /* [D / 4] */
    int64_t num;     /* tokens so far */
} filling;

/* Where coordinate at of num falls on a side of the table: corners align. */
static int64_t corner(int64_t at, int64_t num, int64_t side, float *rest)
{
    double where = num > 1 ? (double)(at * (side - 1)) / (double)(num - 1) : 0;
    int64_t low = (int64_t)where;

    *rest = (float)(where - (double)low);
    return low;
}

static void add_corners(const filling *f, int64_t patch, const int32_t grid[3], int64_t y,
                        int64_t x)
{
    int64_t side = f->c->position_side, from[2], to[2];
    int32_t *index = f->r->corner + 4 * patch;
    float *weight = f->r->corner_weight + 4 * patch, rest[2];

    from[0] = corner(y, grid[1], side, &rest[0]);
    from[1] = corner(x, grid[2], side, &rest[1]);
    for (int i = 0; i < 2; i++)
        to[i] = from[i] + 1 < side ? from[i] + 1 : side - 1;
    for (int i = 0; i < 4; i++) {
        index[i] = (int32_t)((i / 2 ? to[0] : from[0]) * side + (i % 2 ? to[1] : from[1]));
        weight[i] = (i / 2 ? rest[0] : 1 - rest[0]) * (i % 2 ? rest[1] : 1 - rest[1]);
    }
}

/* The next token: number `source` of the caller's, at row and col of a frame's tokens. */
static void add_token(filling *f, const int32_t grid[3], int64_t source, int64_t row, int64_t col)
{
    int64_t quarter = f->c->hidden_size / f->c->num_heads / 4;

    if (f->r->order) f->r->order[f->num] = (int32_t)source;
    for (int64_t i = 0; i < TOKEN; i++) {
        int64_t patch = f->num * TOKEN + i, y = CR_MERGE * row + i / CR_MERGE,
                x = CR_MERGE * col + i % CR_MERGE;
        float *angles = f->r->angles + patch * 2 * quarter;
        for (int64_t k = 0; k < quarter; k++) {
            angles[k] = (float)y * f->inv_freq[k];
            angles[quarter + k] = (float)x * f->inv_freq[k];
        }
        if (f->r->corner) add_corners(f, patch, grid, y, x);
    }
    f->num++;
}

static void end_segment(const filling *f, int32_t *cu_seqlens, int64_t *num)
{
    cu_seqlens[++*num] = (int32_t)(f->num * TOKEN);
}

/* A frame, window by window; without windows it is one. */
static void add_frame(filling *f, const int32_t grid[3], int64_t first)
{
    int64_t rows = grid[1] / CR_MERGE, cols = grid[2] / CR_MERGE,
            side = f->c->window_size / CR_MERGE / f->c->patch_size;
    int64_t high = side ? side : rows, wide = side ? side : cols;

    for (int64_t y = 0; y < rows; y += high)
        for (int64_t x = 0; x < cols; x += wide) {
            for (int64_t row = y; row < rows && row < y + high; row++)
                for (int64_t col = x; col < cols && col < x + wide; col++)
                    add_token(f, grid, first + row * cols + col, row, col);
            if (side) end_segment(f, f->r->windows, &f->r->num_windows);
        }
    end_segment(f, f->r->frames, &f->r->num_frames);
}

/* Also counts the frames. */
static cr_status check_grids(const cr_vision_input *in, int64_t *num_frames, cr_err *err)
{
    int64_t total = 0, max = INT32_MAX / 16;

    *num_frames = 0;
    for (int64_t i = 0; i < in->num_items; i++) {
        const int32_t *g = in->grid[i];
        if (g[0] < 1 || g[1] < 1 || g[2] < 1 || g[1] % CR_MERGE || g[2] % CR_MERGE)
            return cr_fail(err, CR_EARG,
                           "item %lld has a grid of %d x %d x %d patches; rows and columns must be "
                           "even, and none 0",
                           (long long)i, g[0], g[1], g[2]);
        if ((int64_t)g[1] * g[2] > max || g[0] * ((int64_t)g[1] * g[2]) > max - total)
            return cr_fail(err, CR_EARG, "images of more than %lld patches in one batch",
                           (long long)max);
        total += g[0] * ((int64_t)g[1] * g[2]);
        *num_frames += g[0];
    }
    if (total != in->num_patches)
        return cr_fail(err, CR_EARG, "the grids of %lld items say %lld patches, but there are %lld",
                       (long long)in->num_items, (long long)total, (long long)in->num_patches);
    return CR_OK;
}

cr_status cri_patches_init(cr_patches *r, const cr_vision_config *c, const cr_vision_input *in,
                           cr_err *err)
{
    int64_t quarter = c->hidden_size / c->num_heads / 4, first = 0, num_frames;
    filling f = {.r = r, .c = c};

    cri_patches_fini(r);
    CR_TRY(check_grids(in, &num_frames, err));
    r->num = in->num_patches;
    r->num_merged = in->num_patches / TOKEN;
    r->frames = CR_NEW_ARRAY(int32_t, num_frames + 1);
    r->angles = CR_NEW_ARRAY(float, in->num_patches * 2 * quarter);
    if (c->window_size) {
        r->order = CR_NEW_ARRAY(int32_t, r->num_merged);
        r->windows = CR_NEW_ARRAY(int32_t, r->num_merged + 1); /* each has a token */
    }
    if (c->position_side) {
        r->corner = CR_NEW_ARRAY(int32_t, 4 * in->num_patches);
        r->corner_weight = CR_NEW_ARRAY(float, 4 * in->num_patches);
    }
    f.inv_freq = CR_NEW_ARRAY(float, quarter);
    for (int64_t i = 0; i < quarter; i++)
        f.inv_freq[i] = 1.0f / powf(c->rope_theta, (float)i / (float)quarter);
    for (int64_t i = 0; i < in->num_items; i++)
        for (int32_t t = 0; t < in->grid[i][0]; t++) {
            add_frame(&f, in->grid[i], first);
            first = f.num;
        }
    cr_free(f.inv_freq);
    return CR_OK;
}

void cri_patches_fini(cr_patches *r)
{
    cr_free(r->order);
    cr_free(r->frames);
    cr_free(r->windows);
    cr_free(r->angles);
    cr_free(r->corner);
    cr_free(r->corner_weight);
    *r = (cr_patches){0};
}
