/* views.c -- images of one size: padded, resized, and the middle cut out, once for each tower. */
#include "images/processor_impl.h"

#include <math.h>
#include <string.h>

/* The shorter side becomes `to`, the other one follows, rounded down. */
static void sides_of(const cr_image_view *v, int width, int height, int64_t *to_width,
                     int64_t *to_height)
{
    int64_t to = v->to;

    *to_width = width <= height ? to : to * width / height;
    *to_height = width <= height ? to * height / width : to;
}

static int longer(int width, int height)
{
    return width > height ? width : height;
}

cr_status cri_views_target(const cr_image_processor *p, int width, int height, cr_err *err)
{
    int64_t side = longer(width, height), w, h;

    if (p->fit == CR_FIT_LETTERBOX && side * side > CR_IMAGE_MAX_PIXELS)
        return cr_fail(err, CR_EARG, "%d x %d pixels: padded to a square it has more than %d",
                       width, height, CR_IMAGE_MAX_PIXELS);
    for (int i = 0; i < p->num_views && p->fit == CR_FIT_CROP; i++) {
        sides_of(&p->views[i], width, height, &w, &h);
        if (w > CR_IMAGE_MAX_PIXELS / h)
            return cr_fail(err, CR_EARG,
                           "%d x %d pixels: with a shorter side of %d it has more than %d", width,
                           height, p->views[i].to, CR_IMAGE_MAX_PIXELS);
    }
    return CR_OK;
}

/* width x height of it from (left, top) on; what is outside is of the colour `fill`. */
static void take(cr_image *image, int left, int top, int width, int height, const uint8_t fill[3])
{
    uint8_t *pixels = cr_alloc((size_t)width * (size_t)height * 3), *to = pixels;

    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++, to += 3) {
            int from_x = left + x, from_y = top + y;
            bool is_inside =
                from_x >= 0 && from_x < image->width && from_y >= 0 && from_y < image->height;
            memcpy(to,
                   is_inside ? image->pixels +
                                   ((size_t)from_y * (size_t)image->width + (size_t)from_x) * 3
                             : fill,
                   3);
        }
    cr_free(image->pixels);
    image->pixels = pixels;
    image->width = width;
    image->height = height;
}

/* To a square, less one pixel where the sides differ by an odd number. */
static void pad(cr_image *image, const uint8_t fill[3])
{
    int side = longer(image->width, image->height), left = (side - image->width) / 2,
        top = (side - image->height) / 2;

    take(image, -left, -top, image->width + 2 * left, image->height + 2 * top, fill);
}

/* Half of the pixels that are left over; torchvision's center_crop, which the port calls, rounds to even, Transformers' down. */
static int margin(const cr_image_processor *p, int side, int of)
{
    return p->is_prismatic ? (int)rint((of - side) / 2.0) : (of - side) / 2;
}

void cri_view_make(const cr_image_processor *p, int i, cr_image *image)
{
    const cr_image_view *v = &p->views[i];
    int64_t width = v->to, height = v->to;

    if (p->fit == CR_FIT_LETTERBOX) pad(image, p->fill);
    if (p->fit != CR_FIT_NAIVE) sides_of(v, image->width, image->height, &width, &height);
    cr_image_resize(image, (int)width, (int)height, p->form);
    if (width != v->side || height != v->side)
        take(image, margin(p, v->side, image->width), margin(p, v->side, image->height), v->side,
             v->side, p->fill);
}
