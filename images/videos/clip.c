/* clip.c -- see clip.h. */
#include "images/videos/clip.h"
#include "images/processor_impl.h"

void cr_clip_begin(cr_clip *c, const cr_image_processor *processor, size_t num_frames, double fps)
{
    *c = (cr_clip){.processor = processor, .num_frames = num_frames, .fps = fps};
    c->frames = CR_NEW_ARRAY(cr_image, num_frames);
}

void cr_clip_free(cr_clip *c)
{
    for (size_t i = 0; i < c->num; i++)
        cr_image_free(&c->frames[i]);
    cr_free(c->frames);
    *c = (cr_clip){0};
}

cr_status cr_clip_same_size(int width, int height, int first_width, int first_height, cr_err *err)
{
    if (width == first_width && height == first_height) return CR_OK;
    return cr_fail(err, CR_EARG, "it has %d x %d pixels, and the first frame %d x %d", width,
                   height, first_width, first_height);
}

cr_status cr_clip_add(cr_clip *c, cr_image *frame, cr_err *err)
{
    int width, height;

    CR_CHECK(c->num < c->num_frames, "frame %zu of %zu", c->num + 1, c->num_frames);
    if (!c->num) {
        c->width = frame->width;
        c->height = frame->height;
    }
    CR_TRY(cr_clip_same_size(frame->width, frame->height, c->width, c->height, err));
    if (c->fps > 0) {
        CR_TRY(cr_video_target(c->processor, c->num_frames, c->width, c->height, &width, &height,
                               err));
        cr_image_resize(frame, width, height, CR_RESIZE_TORCHVISION);
    }
    c->frames[c->num++] = *frame;
    *frame = (cr_image){0};
    return CR_OK;
}

cr_status cr_clip_cut(cr_clip *c, cr_image_patches *out, cr_err *err)
{
    *out = (cr_image_patches){0};
    CR_CHECK(c->num == c->num_frames, "%zu frames of %zu", c->num, c->num_frames);
    if (c->fps > 0)
        cri_image_cut(c->processor, c->frames, c->num, c->fps, out);
    else
        cr_note(cr_image_cut(c->processor, c->frames, out, err));
    cr_clip_free(c);
    return err->status;
}
