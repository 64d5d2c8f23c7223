/* line_images.c -- see line_images.h. */
#include "serve/lines/line_images.h"
#include "images/reader.h"
#include "models/vision/seq_images.h"
#include "text/lines.h"

enum {
    MAX_IMAGE_TOKENS = 32768 /* of a line: the values of Qwen2.5-VL's patches are 616 MB then */
};

cr_status cr_line_images_expect(cr_session *s, const cr_line_image_words *words, cr_err *err)
{
    s->encoder.reads_images = s->encoder.keeps_values = s->model->config.vision != NULL;
    s->encoder.image_folder = words->folder;
    s->encoder.max_image_tokens = MAX_IMAGE_TOKENS;
    return words->alpha ? cr_image_alpha_find(words->alpha, &s->encoder.image_alpha, err) : CR_OK;
}

void cr_line_images_take(cr_session *s, cr_line *line, cr_prompt_images *out)
{
    cr_image_items *items = &s->encoder.items;
    cr_err why = {0};

    *out = (cr_prompt_images){0};
    if (items->num && !line->error) {
        cr_prompt_images_make(items->item, items->num, out);
        if (cr_seq_images_check(&s->model->config, line->ids, line->num_ids, &out->seq, &why) !=
            CR_OK)
            cr_line_fail(line, why.msg);
    }
    cr_image_items_free(items);
}
