/* line_images.c -- see line_images.h. */
#include "serve/lines/line_images.h"
#include "images/reader.h"
#include "text/lines.h"

#include <string.h>

enum {
    MAX_IMAGE_TOKENS = 32768 /* of a line: the values of Qwen2.5-VL's patches are 616 MB then */
};

void cr_line_images_expect(cr_session *s, const char *image_folder)
{
    s->encoder.reads_images = s->encoder.keeps_values = s->model->config.vision != NULL;
    s->encoder.image_folder = image_folder;
    s->encoder.max_image_tokens = MAX_IMAGE_TOKENS;
}

/* The images of a chat one after another. */
static void join(const cr_image_items *items, cr_line_images *out)
{
    size_t num = 0;

    for (size_t i = 0; i < items->num; i++)
        num += (size_t)(items->item[i].patches.num_patches * items->item[i].patches.patch_dim);
    out->grid = CR_NEW_ARRAY(int32_t, 3 * items->num);
    out->pixels = CR_NEW_ARRAY(float, num);
    out->seq = (cr_seq_images){out->grid, items->num, out->pixels, num};
    num = 0;
    for (size_t i = 0; i < items->num; i++) {
        const cr_image_patches *p = &items->item[i].patches;
        size_t n = (size_t)(p->num_patches * p->patch_dim);
        memcpy(out->grid + 3 * i, p->grid, sizeof p->grid);
        memcpy(out->pixels + num, p->values, n * sizeof(float));
        num += n;
    }
}

void cr_line_images_take(cr_session *s, cr_line *line, cr_line_images *out)
{
    cr_image_items *items = &s->encoder.items;
    cr_err why = {0};

    *out = (cr_line_images){0};
    if (items->num && !line->error) {
        join(items, out);
        if (cr_seq_images_check(&s->model->config, line->ids, line->num_ids, &out->seq, &why) !=
            CR_OK)
            cr_line_fail(line, why.msg);
    }
    cr_image_items_free(items);
}

void cr_line_images_free(cr_line_images *images)
{
    cr_free(images->grid);
    cr_free(images->pixels);
    *images = (cr_line_images){0};
}
