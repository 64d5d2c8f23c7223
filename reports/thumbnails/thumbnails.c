/* thumbnails.c -- see thumbnails.h. */
#include "reports/thumbnails/thumbnails.h"
#include "base/digest.h"
#include "images/pool.h"
#include "images/resize.h"
#include "reports/html.h"

#include <stdio.h>
#include <string.h>

enum { MAX_SIDE = 128, MAX_PICTURES = 48, MAX_A_SAMPLE = 6, MAX_BYTES = 512 << 10 };

struct cr_thumbnails {
    const char *folder;
    cr_image_files files;
    cr_image_pool *pool; /* decodes where a file can do no harm */
    json_t *made;        /* SHA-256 -> base64 of its picture, or null */
    size_t num_bytes;
};

cr_thumbnails *cr_thumbnails_open(const char *folder, const cr_image_files *files)
{
    cr_thumbnails *t = CR_NEW(cr_thumbnails);

    *t = (cr_thumbnails){.folder = folder,
                         .files = *files,
                         .pool = cr_image_pool_create(1, CR_IMAGE_MAX_PIXELS, CR_IMAGE_SECONDS),
                         .made = json_object()};
    cr_image_pool_set_alpha(t->pool, files->alpha);
    return t;
}

void cr_thumbnails_close(cr_thumbnails *t)
{
    if (!t) return;
    cr_image_pool_destroy(t->pool);
    json_decref(t->made);
    cr_free(t);
}

/* ---- a picture ---- */

static cr_status decode(const cr_thumbnails *t, const cr_buf *file, cr_image *out, cr_err *err)
{
    cr_image_job job = {.data = file->data, .num_bytes = file->num_bytes};

    if (cr_image_pool_decode(t->pool, &job, 1, err) == CR_OK) *err = job.err;
    *out = job.image;
    return err->status;
}

static void shrink(cr_image *image)
{
    const int side = image->width > image->height ? image->width : image->height;
    const double by = (double)MAX_SIDE / side;
    const int width = (int)(image->width * by), height = (int)(image->height * by);

    if (side > MAX_SIDE)
        cr_image_resize(image, width ? width : 1, height ? height : 1, CR_RESIZE_PIL);
}

static cr_status make(const cr_thumbnails *t, const char *sha256, const char *path, cr_buf *out,
                      cr_err *err)
{
    char *folder = cr_path_join(t->folder, "thumbnails");
    cr_image image = {0};
    cr_buf file = {0};

    CR_TRY_GOTO(out, t->files.read(t->files.context, sha256, &file, err));
    CR_TRY_GOTO(out, decode(t, &file, &image, err));
    shrink(&image);
    CR_TRY_GOTO(out, cr_image_write_webp(&image, out, err));
    CR_TRY_GOTO(out, cr_mkdirs(folder, err));
    cr_note(cr_file_write_atomic(path, out->data, out->num_bytes, err));
out:
    cr_image_free(&image);
    cr_buf_free(&file);
    cr_free(folder);
    return err->status;
}

/* As base64, or null. */
static json_t *picture_of(const cr_thumbnails *t, const char *sha256)
{
    char *path = cr_asprintf("%s/thumbnails/%s.webp", t->folder, sha256);
    cr_buf webp = {0}, base64 = {0};
    cr_err err = {0};
    json_t *out = NULL;

    if (cr_file_exists(path))
        cr_note(cr_file_read(path, &webp, &err));
    else if (t->files.read)
        cr_note(make(t, sha256, path, &webp, &err));
    if (err.status == CR_OK && webp.num_bytes && webp.num_bytes <= MAX_BYTES - t->num_bytes) {
        cr_json_add_base64(&base64, webp.data, webp.num_bytes);
        out = json_stringn(base64.data + 1, base64.num_bytes - 2); /* without quotes */
    }
    cr_buf_free(&base64);
    cr_buf_free(&webp);
    cr_free(path);
    return out ? out : json_null();
}

static const json_t *find_picture(cr_thumbnails *t, const char *sha256)
{
    json_t *picture = json_object_get(t->made, sha256);

    if (picture || json_object_size(t->made) == MAX_PICTURES) return picture;
    picture = picture_of(t, sha256);
    json_object_set_new(t->made, sha256, picture);
    return picture;
}

/* ---- the references of a row ---- */

typedef struct references {
    const json_t **items;
    size_t num, capacity;
} references;

/* It becomes the name of a file: hexadecimal digits alone. */
static bool is_reference(const json_t *value)
{
    const json_t *text = json_object_get(value, "sha256");
    const char *sha256 = json_string_value(text);

    return sha256 && json_is_integer(json_object_get(value, "num_bytes")) &&
           json_string_length(text) == CR_DIGEST_TEXT - 1 &&
           strspn(sha256, "0123456789abcdef") == CR_DIGEST_TEXT - 1;
}

static void find_references(const json_t *value, references *out)
{
    json_t *member;
    const char *key;
    size_t i;

    if (is_reference(value)) {
        out->items = cr_grow(out->items, out->num, &out->capacity, sizeof *out->items);
        out->items[out->num++] = value;
        return;
    }
    json_array_foreach(value, i, member) find_references(member, out);
    json_object_foreach((json_t *)(uintptr_t)value, key, member) find_references(member, out);
}

json_t *cr_thumbnails_references(const json_t *row)
{
    json_t *out = json_array();
    references r = {0};

    find_references(row, &r);
    for (size_t i = 0; i < r.num; i++)
        json_array_append(out, (json_t *)(uintptr_t)r.items[i]);
    cr_free(r.items);
    return out;
}

char *cr_thumbnails_digests(const json_t *row)
{
    references r = {0};
    cr_buf out = {0};

    find_references(row, &r);
    cr_buf_adds(&out, "");
    for (size_t i = 0; i < r.num; i++)
        cr_buf_adds(&out, json_string_value(json_object_get(r.items[i], "sha256")));
    cr_free(r.items);
    return out.data;
}

static void add_picture(cr_thumbnails *t, const json_t *reference, cr_buf *out)
{
    const char *sha256 = json_string_value(json_object_get(reference, "sha256")),
               *path = json_string_value(json_object_get(reference, "path"));
    const json_t *picture = find_picture(t, sha256);
    const size_t num_bytes = json_string_length(picture);
    char name[16];

    snprintf(name, sizeof name, "%.12s", sha256);
    if (!path) path = name;
    if (num_bytes && num_bytes <= MAX_BYTES - t->num_bytes) {
        t->num_bytes += num_bytes;
        cr_buf_addf(out, "<img src=\"data:image/webp;base64,%s\" alt=\"",
                    json_string_value(picture));
        cr_html_adds(out, path);
        cr_buf_adds(out, "\" title=\"");
        cr_html_adds(out, path);
        cr_buf_adds(out, "\"/>");
    } else {
        cr_buf_adds(out, "<small>");
        cr_html_adds(out, path);
        cr_buf_adds(out, "</small> ");
    }
}

bool cr_thumbnails_add(cr_thumbnails *t, const json_t *row, cr_buf *out)
{
    references r = {0};

    find_references(row, &r);
    if (r.num) cr_buf_adds(out, "<div class=\"images\">");
    for (size_t i = 0; i < r.num && i < MAX_A_SAMPLE; i++)
        add_picture(t, r.items[i], out);
    if (r.num > MAX_A_SAMPLE) cr_buf_addf(out, "<small>and %zu more</small>", r.num - MAX_A_SAMPLE);
    if (r.num) cr_buf_adds(out, "</div>");
    cr_free(r.items);
    return r.num > 0;
}
