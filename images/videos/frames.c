/* frames.c -- see frames.h. */
#include "images/videos/frames.h"

#include <math.h>
#include <string.h>

/* Sizes of files follow, and the files. No image's file begins so. */
typedef struct header {
    char magic[16];
    double fps;
    uint64_t num;
} header;
static const char magic[16] = "croll frames 1\n";

void cr_frames_put(double fps, const cr_buf *files, size_t num, cr_buf *out)
{
    header h = {.fps = fps, .num = num};

    memcpy(h.magic, magic, sizeof magic);
    cr_buf_add(out, &h, sizeof h);
    for (size_t i = 0; i < num; i++)
        cr_buf_add(out, &(uint64_t){files[i].num_bytes}, sizeof(uint64_t));
    for (size_t i = 0; i < num; i++)
        cr_buf_add(out, files[i].data, files[i].num_bytes);
}

/* at: sizes and files; false: they are not as many bytes as are left. */
static bool read_files(const uint8_t *at, size_t left, cr_frames *f)
{
    const uint8_t *file = at + f->num * sizeof(uint64_t);

    left -= f->num * sizeof(uint64_t);
    for (size_t i = 0; i < f->num; i++) {
        uint64_t size;
        memcpy(&size, at + i * sizeof size, sizeof size);
        if (size > left) return false;
        f->data[i] = file;
        f->num_bytes[i] = size;
        file += size;
        left -= size;
    }
    return left == 0;
}

cr_status cr_frames_get(const void *data, size_t num_bytes, cr_frames *out, cr_err *err)
{
    bool is_video = num_bytes >= sizeof magic && memcmp(data, magic, sizeof magic) == 0;
    header h = {.num = 1};

    *out = (cr_frames){0};
    if (is_video && num_bytes >= sizeof h) memcpy(&h, data, sizeof h);
    if (is_video && (num_bytes < sizeof h || !(h.fps > 0) || !isfinite(h.fps) || h.num == 0 ||
                     h.num > (num_bytes - sizeof h) / sizeof(uint64_t)))
        return cr_fail(err, CR_EFORMAT, "its frames have no sound list");
    out->fps = h.fps;
    out->num = h.num;
    out->data = CR_NEW_ARRAY(const void *, h.num);
    out->num_bytes = CR_NEW_ARRAY(size_t, h.num);
    out->data[0] = data;
    out->num_bytes[0] = num_bytes;
    if (!is_video || read_files((const uint8_t *)data + sizeof h, num_bytes - sizeof h, out))
        return CR_OK;
    cr_frames_free(out);
    return cr_fail(err, CR_EFORMAT, "its frames are not as many bytes as their list says");
}

void cr_frames_free(cr_frames *f)
{
    cr_free(f->data);
    cr_free(f->num_bytes);
    *f = (cr_frames){0};
}

void cr_frames_digest(const cr_frames *f, char hex[CR_DIGEST_TEXT])
{
    char(*digests)[CR_DIGEST_TEXT] = cr_alloc(f->num * sizeof *digests);

    for (size_t i = 0; i < f->num; i++)
        cr_digest_bytes(f->data[i], f->num_bytes[i], digests[i]);
    if (f->fps > 0)
        cr_video_digest(f->fps, (const char(*)[CR_DIGEST_TEXT])digests, f->num, hex);
    else
        memcpy(hex, digests[0], CR_DIGEST_TEXT);
    cr_free(digests);
}

void cr_video_digest(double fps, const char (*digests)[CR_DIGEST_TEXT], size_t num,
                     char hex[CR_DIGEST_TEXT])
{
    cr_buf text = {0};

    cr_buf_addf(&text, "video %.17g\n", fps);
    for (size_t i = 0; i < num; i++)
        cr_buf_addf(&text, "%s\n", digests[i]);
    cr_digest_bytes(text.data, text.num_bytes, hex);
    cr_buf_free(&text);
}
