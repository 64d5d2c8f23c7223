/* row_images.c -- see row_images.h. */
#include "data/row_images.h"
#include "images/source.h"
#include "images/videos/frames.h"
#include "samples/items/loader.h"

#include <string.h>

static bool is_given(const json_t *value)
{
    return json_array_size(value) || json_string_length(value) || json_is_object(value);
}

/* The first of two columns that is not empty; NULL: none. */
static json_t *column_of(const json_t *row, const char *const names[2], const char **name)
{
    for (size_t i = 0; i < 2; i++) {
        json_t *value = json_object_get(row, names[i]);
        if (is_given(value)) {
            *name = names[i];
            return value;
        }
    }
    return NULL;
}

/* name: of one of them; NULL: there are none. */
static cr_image_columns columns_of(const json_t *row, const char **name)
{
    static const char *const images[] = {"images", "image"}, *const videos[] = {"videos", "video"};

    *name = NULL;
    return (cr_image_columns){column_of(row, images, name), column_of(row, videos, name)};
}

size_t cri_row_images_column(const json_t *row)
{
    const char *name;
    const json_t *column = columns_of(row, &name).images;

    return json_is_array(column) ? json_array_size(column) : column != NULL;
}

cr_status cri_messages_text_only(const json_t *messages, const char *whose, cr_err *err)
{
    size_t i, k;
    json_t *message, *part;

    json_array_foreach(messages, i, message)
        json_array_foreach(json_object_get(message, "content"), k, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (type && strcmp(type, "text") != 0)
            return cr_fail(err, CR_EFORMAT,
                           "message %zu has a part of type '%.20s', and %s text only", i + 1, type,
                           whose);
    }
    return CR_OK;
}

/* Of a model without images. */
static cr_status check_text_only(const json_t *row, const json_t *messages, cr_err *err)
{
    static const char whose[] = "its model is given";
    const char *name;

    columns_of(row, &name);
    if (name)
        return cr_fail(err, CR_EFORMAT, "the column %s is not empty, and %s text only", name,
                       whose);
    return cri_messages_text_only(messages, whose, err);
}

void cr_row_images_close(cr_row_images *r)
{
    cr_image_items_free(&r->items);
    cr_image_reader_destroy(r->reader);
    cr_free(r->model_type);
    *r = (cr_row_images){0};
}

static cr_status read_model_type(cr_row_images *r, const char *model_folder, cr_err *err)
{
    char *path = cr_asprintf("%s/config.json", model_folder);
    json_t *config = NULL;
    const char *type;

    if (cr_json_read_file(path, &config, err) == CR_OK) {
        type = json_string_value(json_object_get(config, "model_type"));
        if (type) r->model_type = cr_strdup(type);
    }
    json_decref(config);
    cr_free(path);
    return err->status;
}

static cr_status open_reader(cr_row_images *r, const char *model_folder, const cr_data_args *from,
                             cr_err *err)
{
    cr_image_processor processor;

    if (r->is_open) return CR_OK;
    if (model_folder && cr_image_processor_exists(model_folder)) {
        CR_TRY(cr_item_processor_read(model_folder, from, &processor, err));
        CR_TRY(read_model_type(r, model_folder, err));
        r->patch_size = processor.patch_size;
        r->reader = cr_image_reader_create(&processor, from->image_folder);
    }
    r->is_open = true;
    return CR_OK;
}

cr_status cri_row_images_read(cr_row_images *r, const char *model_folder, const cr_data_args *from,
                              const cr_row *row, const json_t *messages, bool *is_dropped,
                              cr_err *err)
{
    cr_image_columns columns;
    const char *name;

    *is_dropped = false;
    r->next = 0;
    cr_image_items_free(&r->items);
    CR_TRY(open_reader(r, model_folder, from, err));
    if (!r->reader) {
        r->items.messages = json_incref((json_t *)(uintptr_t)messages);
        return check_text_only(row->json, messages, err);
    }
    columns = columns_of(row->json, &name);
    if (r->is_looking) {
        cr_image_reader_add(r->reader, messages, &columns);
        *is_dropped = true;
        return CR_OK;
    }
    if (cr_image_reader_read(r->reader, messages, &columns, &r->items, err) == CR_OK ||
        !from->drops_broken_images ||
        (err->status != CR_EFORMAT && err->status != CR_EIO && err->status != CR_EARG))
        return err->status;
    if (r->num_broken++ == 0)
        snprintf(r->first_broken, sizeof r->first_broken, "row %d: %.250s", row->line, err->msg);
    *err = (cr_err){0};
    *is_dropped = true;
    return CR_OK;
}

int64_t cri_row_images_tokens(const cr_row_images *r)
{
    int64_t num = 0;

    for (size_t i = 0; i < r->items.num; i++)
        num += r->items.item[i].num_tokens;
    return num;
}

/* ---- what a row keeps ---- */

/* What stands for an image's bytes, or for a list of frames; a new reference. */
static json_t *reference_of(const cr_image_item *item)
{
    json_t *out =
        json_pack("{s:s,s:I}", "sha256", item->digest, "num_bytes", (json_int_t)item->num_bytes);
    const char *path = cr_image_source_path(item->value);

    if (path) json_object_set_new(out, "path", json_string(path));
    if (item->fps > 0) {
        json_object_set_new(out, "num_frames", json_integer((json_int_t)item->num_frames));
        json_object_set_new(out, "fps", json_real(item->fps));
    }
    return out;
}

/* A copy of value in which images and lists of frames are references; a new reference. */
static json_t *without_bytes(json_t *value, const cr_image_items *items)
{
    json_t *out, *member;
    const char *key;
    size_t i;

    for (i = 0; i < items->num; i++)
        if (items->item[i].value == value) return reference_of(&items->item[i]);
    if (json_is_array(value)) {
        out = json_array();
        json_array_foreach(value, i, member)
            json_array_append_new(out, without_bytes(member, items));
        return out;
    }
    if (!json_is_object(value)) return json_incref(value);
    out = json_object();
    json_object_foreach(value, key, member)
        json_object_set_new(out, key, without_bytes(member, items));
    return out;
}

/* What rewards of boxes need of the images that were read. */
static void add_sizes(const cr_row_images *r, json_t *row)
{
    json_t *sizes = json_array();

    for (size_t i = 0; i < r->next; i++) {
        const int32_t *grid = r->items.item[i].grid;
        if (r->items.item[i].fps > 0) continue;
        json_array_append_new(sizes,
                              json_pack("[i,i]", grid[1] * r->patch_size, grid[2] * r->patch_size));
    }
    if (!json_object_get(row, "image_sizes")) json_object_set(row, "image_sizes", sizes);
    if (r->model_type && !json_object_get(row, "model_type"))
        json_object_set_new(row, "model_type", json_string(r->model_type));
    json_decref(sizes);
}

cr_status cri_row_images_keep(const cr_row_images *r, const json_t *messages, const char *column,
                              cr_row *row, cr_err *err)
{
    const cr_image_items *items = &r->items;
    const char *name;
    json_t *json;
    cr_buf text = {0};

    if (!items->num) return CR_OK;
    row->num_images = r->next;
    row->image_digests = CR_NEW_ARRAY(uint64_t, CR_ITEM_DIGEST * r->next);
    row->image_grids = CR_NEW_ARRAY(int32_t, CR_ITEM_GRID * r->next);
    row->image_files = json_array();
    for (size_t i = 0; i < r->next; i++) {
        const cr_image_item *item = &items->item[i];
        cr_item_digest_of(item->digest, row->image_digests + CR_ITEM_DIGEST * i);
        memcpy(row->image_grids + CR_ITEM_GRID * i, item->grid, sizeof item->grid);
        json_array_append_new(row->image_files,
                              json_pack("{s:O,s:f}", "files", item->value, "fps", item->fps));
    }
    json = json_copy(row->json);
    columns_of(json, &name);
    if (column && json_is_string(json_object_get(json, column)) && !name)
        json_object_set(json, column, (json_t *)(uintptr_t)messages); /* it was JSON as text */
    json_decref(row->json);
    row->json = without_bytes(json, items);
    add_sizes(r, row->json);
    json_decref(json);
    CR_TRY(cr_json_add_value(&text, row->json, err));
    cr_free(row->text);
    row->text = text.data;
    return CR_OK;
}

/* ---- what a step sends ---- */

cr_item_refs cr_row_items(const cr_row *row)
{
    return (cr_item_refs){row->image_digests, row->image_grids, row->num_images};
}

static const uint64_t *digest_of(const cr_row *row, size_t i)
{
    return row->image_digests + CR_ITEM_DIGEST * i;
}

/* Files of a list of frames as one run of bytes, the first frame's alone if is_first. */
static cr_status read_frames(const json_t *list, double fps, const char *folder, bool is_first,
                             cr_buf *out, cr_err *err)
{
    size_t num = is_first ? 1 : json_array_size(list);
    cr_buf *files = CR_NEW_ARRAY(cr_buf, num);

    for (size_t i = 0; i < num && !err->status; i++)
        if (cr_image_source_read(json_array_get(list, i), folder, &files[i], err) != CR_OK)
            cr_fail_add(err, "frame %zu", i + 1);
    if (!err->status && is_first)
        cr_buf_add(out, files[0].data, files[0].num_bytes);
    else if (!err->status)
        cr_frames_put(fps, files, num, out);
    for (size_t i = 0; i < num; i++)
        cr_buf_free(&files[i]);
    cr_free(files);
    return err->status;
}

/* The bytes of its image i, as they were when the row was read. */
static cr_status read_image(const cr_row *row, size_t i, const char *folder, cr_buf *out,
                            cr_err *err)
{
    const json_t *image = json_array_get(row->image_files, i),
                 *value = json_object_get(image, "files");
    double fps = json_number_value(json_object_get(image, "fps"));
    char name[CR_DIGEST_TEXT], is[CR_DIGEST_TEXT];
    cr_frames frames;

    CR_TRY(fps > 0 ? read_frames(value, fps, folder, /*is_first=*/false, out, err)
                   : cr_image_source_read(value, folder, out, err));
    cr_item_digest_text(digest_of(row, i), name);
    CR_TRY(cr_frames_get(out->data ? out->data : "", out->num_bytes, &frames, err));
    cr_frames_digest(&frames, is);
    cr_frames_free(&frames);
    return strcmp(name, is) == 0
               ? CR_OK
               : cr_fail(err, CR_EIO, "its file has changed since the rows were read");
}

/* A file of it, to look at: of a video the first frame. */
static cr_status read_picture(const cr_row *row, size_t i, const char *folder, cr_buf *out,
                              cr_err *err)
{
    const json_t *image = json_array_get(row->image_files, i);
    double fps = json_number_value(json_object_get(image, "fps"));

    if (fps == 0) return read_image(row, i, folder, out, err);
    return read_frames(json_object_get(image, "files"), fps, folder, /*is_first=*/true, out, err);
}

static cr_status put_image(const cr_row *row, size_t i, const char *folder, cr_item_store *store,
                           cr_exchange *x, cr_err *err)
{
    cr_buf file = {0};

    if (cr_item_store_need(store, digest_of(row, i))) return CR_OK;
    if (read_image(row, i, folder, &file, err) == CR_OK)
        cr_item_store_put(store, x, digest_of(row, i), file.data, file.num_bytes);
    cr_buf_free(&file);
    return err->status ? cr_fail_add(err, "row %d, image %zu", row->line, i + 1) : CR_OK;
}

cr_status cr_row_images_put(const cr_row *row, const char *folder, cr_item_store *store,
                            cr_exchange *x, cr_err *err)
{
    for (size_t i = 0; i < row->num_images; i++)
        CR_TRY(put_image(row, i, folder, store, x, err));
    return CR_OK;
}

cr_status cr_row_images_find(const cr_dataset *data, const char *sha256, cr_buf *out, cr_err *err)
{
    uint64_t digest[CR_ITEM_DIGEST];

    cr_item_digest_of(sha256, digest);
    for (size_t r = 0; r < data->num_rows; r++)
        for (size_t i = 0; i < data->rows[r].num_images; i++)
            if (memcmp(digest_of(&data->rows[r], i), digest, sizeof digest) == 0)
                return read_picture(&data->rows[r], i, data->image_folder, out, err);
    return cr_fail(err, CR_EABSENT, "no row has image %.12s", sha256);
}
