/* images.c -- see images.h. */
#include "plan/images.h"
#include "samples/items/loader.h"

#include <math.h>

cr_status cr_plan_images_find(const cr_worker_config *w, int64_t num, int64_t room,
                              cr_plan_images *out, cr_err *err)
{
    cr_image_processor p;
    int64_t side, tokens, rows;

    *out = (cr_plan_images){0};
    if (num < 0 || num > CR_PLAN_MAX_IMAGES)
        return cr_fail(err, CR_EUSAGE, "--images-per-row %lld: from 1 to %d", (long long)num,
                       CR_PLAN_MAX_IMAGES);
    if (!num) return CR_OK;
    CR_TRY(cr_item_processor_read(w->model_path, &w->data, &p, err));
    side = p.patch_size * p.merge_size;
    rows = p.num_views ? p.views[0].side / side : 0;
    tokens = p.num_views ? rows * rows : p.max_pixels / (side * side);
    if (!p.num_views && tokens > room / num) tokens = room / num;
    if (tokens < 1 || tokens > room / num || (p.num_views && num > 1))
        return cr_fail(err, CR_EUSAGE,
                       "--images-per-row %lld: a sample has room for %lld tokens of images, and "
                       "one has %lld%s",
                       (long long)num, (long long)room, (long long)tokens,
                       p.num_views ? "; a model of one size of image takes one" : "");
    if (!rows) rows = (int64_t)sqrt((double)tokens);
    *out = (cr_plan_images){
        num,
        {1, (int32_t)(rows * p.merge_size), (int32_t)(tokens / rows * p.merge_size)},
        tokens / rows * rows};
    return CR_OK;
}
