/* lanes.c -- see lanes.h. */
#include "kernels/lanes.h"
#include "kernels/kernels_impl.h"

#include <stdatomic.h>

typedef struct lane {
    cr_device *dev;
    cr_err err;
} lane;

struct cr_lanes {
    cr_device *dev;
    int num;
    lane *of; /* [num] */
};

cr_lanes *cr_lanes_create(const cr_device *dev)
{
    cr_lanes *lanes = CR_NEW(cr_lanes);

    lanes->dev = dev->streams[CR_STREAM_COMPUTE];
    lanes->num = dev->num_threads;
    lanes->of = CR_NEW_ARRAY(lane, lanes->num);
    for (int i = 0; i < lanes->num; i++) {
        cr_device *one = CR_NEW(cr_device);
        one->kernels = dev->kernels;
        one->variant = dev->variant;
        one->num_threads = 1;
        one->streams[0] = one;
        dev->kernels->open_lane(dev, one);
        lanes->of[i].dev = one;
    }
    return lanes;
}

void cr_lanes_destroy(cr_lanes *lanes)
{
    if (!lanes) return;
    for (int i = 0; i < lanes->num; i++)
        cr_device_close(lanes->of[i].dev);
    cr_free(lanes->of);
    cr_free(lanes);
}

int cr_lanes_num(const cr_lanes *lanes)
{
    return lanes->num;
}

cr_device *cr_lanes_device(cr_lanes *lanes, int i)
{
    return lanes->of[i].dev;
}

cr_status cr_lanes_run(cr_lanes *lanes, int num, cr_lane_fn fn, void *ctx, cr_err *err)
{
    CR_CHECK(num <= lanes->num, "%d lanes of %d", num, lanes->num);
    CR_TRY(cr_device_sync(lanes->dev, err));
#pragma omp parallel for schedule(static, 1) num_threads(num)
    for (int i = 0; i < num; i++) {
        lanes->of[i].err.status = CR_OK;
        (void)fn(ctx, i, lanes->of[i].dev, &lanes->of[i].err);
    }
    for (int i = 0; i < num; i++)
        if (lanes->of[i].err.status != CR_OK) {
            *err = lanes->of[i].err;
            return err->status;
        }
    return CR_OK;
}

typedef struct items {
    cr_lane_item_fn fn;
    void *ctx;
    size_t num;
    atomic_size_t next;
} items;

static cr_status take_items(void *ctx, int at, cr_device *dev, cr_err *err)
{
    items *all = ctx;
    size_t i;

    while ((i = atomic_fetch_add(&all->next, 1)) < all->num)
        CR_TRY(all->fn(all->ctx, i, at, dev, err));
    return CR_OK;
}

cr_status cr_lanes_each(cr_lanes *lanes, size_t num, cr_lane_item_fn fn, void *ctx, cr_err *err)
{
    items all = {.fn = fn, .ctx = ctx, .num = num};

    return cr_lanes_run(lanes, num < (size_t)lanes->num ? (int)num : lanes->num, take_items, &all,
                        err);
}
