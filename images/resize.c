/* resize.c -- two passes of integers (see resize.h). */
#include "images/resize.h"

#include <math.h>
#include <string.h>

enum { PIL_BITS = 22, MAX_WEIGHT = 1 << 15 };

/* Output i is made of num[i] inputs from first[i] on, with weight[i * stride ..], rounded to 1 / 2^bits. */
typedef struct weights {
    int *first, *num;
    int32_t *weight;
    size_t stride;
    int bits;
} weights;

static double cubic(double x)
{
    x = fabs(x);
    if (x < 1.0) return (1.5 * x - 2.5) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * -0.5;
    return 0.0;
}

/* Weights of output i, 1 together. */
static void real_weights(weights *w, int num_in, double scale, int i, double *to)
{
    double stretch = scale < 1.0 ? 1.0 : scale, support = 2.0 * stretch, shrink = 1.0 / stretch;
    double center = (i + 0.5) * scale, sum = 0.0;
    int first = (int)(center - support + 0.5), end = (int)(center + support + 0.5);

    if (first < 0) first = 0;
    if (end > num_in) end = num_in;
    w->first[i] = first;
    w->num[i] = end - first;
    for (int j = first; j < end; j++)
        sum += to[j - first] = cubic((j - center + 0.5) * shrink);
    for (int j = 0; j < end - first && sum != 0.0; j++)
        to[j] /= sum;
}

/* torchvision's: as many bits as the largest weight leaves. */
static int bits_below(double max)
{
    int bits = 0;

    while (bits < PIL_BITS && (int)(0.5 + max * (1 << (bits + 1))) < MAX_WEIGHT)
        bits++;
    return bits;
}

static void weights_init(weights *w, int num_in, int num_out, cr_resize_form form)
{
    double scale = (double)num_in / num_out, support = 2.0 * (scale < 1.0 ? 1.0 : scale), max = 0;
    size_t num;
    double *real;

    w->stride = (size_t)ceil(support) * 2 + 1;
    num = w->stride * (size_t)num_out;
    w->first = CR_NEW_ARRAY(int, num_out);
    w->num = CR_NEW_ARRAY(int, num_out);
    w->weight = CR_NEW_ARRAY(int32_t, num);
    real = CR_NEW_ARRAY(double, num);
    for (int i = 0; i < num_out; i++)
        real_weights(w, num_in, scale, i, real + (size_t)i * w->stride);
    for (size_t i = 0; i < num; i++)
        max = fmax(max, real[i]);
    w->bits = form == CR_RESIZE_PIL ? PIL_BITS : bits_below(max);
    for (size_t i = 0; i < num; i++)
        w->weight[i] = (int32_t)((real[i] < 0 ? -0.5 : 0.5) + real[i] * (1 << w->bits));
    cr_free(real);
}

static void weights_fini(weights *w)
{
    cr_free(w->first);
    cr_free(w->num);
    cr_free(w->weight);
}

static uint8_t level(int32_t sum, int bits)
{
    int32_t x = sum >> bits;

    return (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x);
}

static void along_row(const weights *w, const uint8_t *in, int width, uint8_t *out)
{
    for (int x = 0; x < width; x++, out += 3) {
        const uint8_t *from = in + (size_t)w->first[x] * 3;
        const int32_t *weight = w->weight + (size_t)x * w->stride;
        int32_t sum[3] = {1 << (w->bits - 1), 1 << (w->bits - 1), 1 << (w->bits - 1)};
        for (int j = 0; j < w->num[x]; j++, from += 3)
            for (int c = 0; c < 3; c++)
                sum[c] += from[c] * weight[j];
        for (int c = 0; c < 3; c++)
            out[c] = level(sum[c], w->bits);
    }
}

/* Row y of rows of row_bytes; sums: [row_bytes]. */
static void across_rows(const weights *w, const uint8_t *in, size_t row_bytes, int y, int32_t *sums,
                        uint8_t *out)
{
    for (size_t i = 0; i < row_bytes; i++)
        sums[i] = 1 << (w->bits - 1);
    for (int j = 0; j < w->num[y]; j++) {
        const uint8_t *from = in + (size_t)(w->first[y] + j) * row_bytes;
        int32_t weight = w->weight[(size_t)y * w->stride + (size_t)j];
        for (size_t i = 0; i < row_bytes; i++)
            sums[i] += from[i] * weight;
    }
    for (size_t i = 0; i < row_bytes; i++)
        out[i] = level(sums[i], w->bits);
}

static void replace(cr_image *image, uint8_t *pixels, int width, int height)
{
    cr_free(image->pixels);
    image->pixels = pixels;
    image->width = width;
    image->height = height;
}

static void resize_width(cr_image *image, int width, cr_resize_form form)
{
    uint8_t *pixels = cr_alloc((size_t)width * (size_t)image->height * 3);
    weights w;

    weights_init(&w, image->width, width, form);
    for (int y = 0; y < image->height; y++)
        along_row(&w, image->pixels + (size_t)y * (size_t)image->width * 3, width,
                  pixels + (size_t)y * (size_t)width * 3);
    weights_fini(&w);
    replace(image, pixels, width, image->height);
}

static void resize_height(cr_image *image, int height, cr_resize_form form)
{
    size_t row_bytes = (size_t)image->width * 3;
    uint8_t *pixels = cr_alloc(row_bytes * (size_t)height);
    int32_t *sums = CR_NEW_ARRAY(int32_t, row_bytes);
    weights w;

    weights_init(&w, image->height, height, form);
    for (int y = 0; y < height; y++)
        across_rows(&w, image->pixels, row_bytes, y, sums, pixels + (size_t)y * row_bytes);
    weights_fini(&w);
    cr_free(sums);
    replace(image, pixels, image->width, height);
}

void cr_image_resize(cr_image *image, int width, int height, cr_resize_form form)
{
    if (width != image->width) resize_width(image, width, form);
    if (height != image->height) resize_height(image, height, form);
}
