/* reader.c -- see reader.h. */
#include "images/reader.h"
#include "images/ahead.h"
#include "images/pool.h"
#include "images/source.h"

#include <string.h>

#define TAG      CR_IMAGE_TAG
#define TAG_TEXT "<|vision_start|>" CR_IMAGE_PLACEHOLDER "<|vision_end|>"

struct cr_image_reader {
    cr_image_processor processor;
    const char *folder;
    cr_image_pool *pool;
    size_t at_once;
    cr_image_ahead *ahead;
    int64_t num_added; /* chats, since the last look */
    bool keeps_values;
    int64_t max_tokens; /* of a chat; 0: any number */
};

/* A place for an image. */
typedef struct place {
    const json_t *value; /* borrowed */
    size_t message;      /* from 1 */
} place;

/* A chat on its way. */
typedef struct chat {
    const json_t *images; /* the column; NULL: none */
    size_t num_used;      /* of it */
    place *places;
    size_t num, capacity, message;
    bool is_inserted; /* places are not in the text */
} chat;

cr_image_reader *cr_image_reader_create(const cr_image_processor *processor, const char *folder)
{
    cr_image_reader *r = CR_NEW(cr_image_reader);

    r->processor = *processor;
    r->folder = folder;
    r->pool = cr_image_pool_open(processor->alpha, &r->at_once);
    r->ahead = cr_image_ahead_create(r->pool, folder);
    return r;
}

void cr_image_reader_keep_values(cr_image_reader *r, int64_t max_tokens)
{
    r->keeps_values = true;
    r->max_tokens = max_tokens;
}

void cr_image_reader_destroy(cr_image_reader *r)
{
    if (!r) return;
    cr_image_ahead_destroy(r->ahead);
    cr_image_pool_destroy(r->pool);
    cr_free(r);
}

/* ---- places ---- */

static cr_status add_place(chat *c, const json_t *value, cr_err *err)
{
    if (!value && c->images) {
        value = json_is_array(c->images) ? json_array_get(c->images, c->num_used)
                : c->num_used            ? NULL
                                         : c->images;
        c->num_used++;
    }
    if (!value)
        return cr_fail(err, CR_EFORMAT, "message %zu: a place without an image%s", c->message,
                       c->images ? ": the column has no further one" : "");
    if (c->is_inserted && c->num)
        return cr_fail(err, CR_EFORMAT,
                       "message %zu has a second image, and this model takes one in a sequence",
                       c->message);
    if (c->num == CR_IMAGES_A_CHAT)
        return cr_fail(err, CR_EFORMAT, "more than %d images", CR_IMAGES_A_CHAT);
    c->places = cr_grow(c->places, c->num, &c->capacity, sizeof *c->places);
    c->places[c->num++] = (place){value, c->message};
    return CR_OK;
}

static void trim(const char **first, const char **last)
{
    while (*first < *last && strchr(" \t\r\n", **first) && **first)
        ++*first;
    while (*last > *first && strchr(" \t\r\n", (*last)[-1]) && (*last)[-1])
        --*last;
}

/* A text for the template, with tags as the template would have written a place, or, of a model whose places are not in the text, without
 * them and the blanks around it; a new reference. */
static cr_status take_text(chat *c, const json_t *text, json_t **out, cr_err *err)
{
    const char *at = json_string_value(text), *end = at + json_string_length(text), *tag;
    const char *first, *last;
    cr_buf with = {0};
    size_t num_tags = 0;

    *out = NULL;
    if (!c->images) {
        *out = json_incref((json_t *)(uintptr_t)text);
        return CR_OK;
    }
    while ((tag = memmem(at, (size_t)(end - at), TAG, sizeof TAG - 1)) != NULL) {
        CR_TRY_GOTO(out, add_place(c, NULL, err));
        cr_buf_add(&with, at, (size_t)(tag - at));
        if (!c->is_inserted) cr_buf_adds(&with, TAG_TEXT);
        num_tags++;
        at = tag + sizeof TAG - 1;
    }
    cr_buf_add(&with, at, (size_t)(end - at));
    first = with.data ? with.data : "";
    last = first + with.num_bytes;
    if (c->is_inserted && num_tags) trim(&first, &last);
    *out = json_stringn(first, (size_t)(last - first));
out:
    cr_buf_free(&with);
    return err->status;
}

static cr_status take_part(chat *c, json_t *part, json_t **out, cr_err *err)
{
    static const char *const names[] = {"image", "image_url", "path", "url", "base64"};
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *value = NULL, *text = json_object_get(part, "text");
    json_t *changed;

    *out = NULL;
    if (type && (strcmp(type, "image") == 0 || strcmp(type, "image_url") == 0)) {
        for (size_t i = 0; i < CR_COUNT(names) && !value; i++) {
            value = json_object_get(part, names[i]);
            if (json_is_null(value)) value = NULL;
        }
        CR_TRY(add_place(c, value, err));
        *out = json_pack("{s:s}", "type", "image");
        return CR_OK;
    }
    if (type && strcmp(type, "text") != 0)
        return cr_fail(err, CR_EFORMAT, "message %zu has a part of type '%.20s', not text or image",
                       c->message, type);
    if (!json_is_string(text)) {
        *out = json_incref(part);
        return CR_OK;
    }
    CR_TRY(take_text(c, text, &changed, err));
    *out = json_copy(part);
    json_object_set_new(*out, "text", changed);
    return CR_OK;
}

/* Templates of models whose places are not in the text take texts: parts as one of them; a new reference. */
static json_t *join(const json_t *parts)
{
    cr_buf text = {0};
    json_t *part, *out;
    size_t i;

    json_array_foreach(parts, i, part)
    {
        const json_t *of = json_object_get(part, "text");
        cr_buf_add(&text, json_string_value(of), json_string_length(of));
    }
    out = json_stringn(text.data ? text.data : "", text.num_bytes);
    cr_buf_free(&text);
    return out;
}

/* A message whose content has no data of images; a new reference. */
static cr_status take_message(chat *c, json_t *message, json_t **out, cr_err *err)
{
    json_t *content = json_object_get(message, "content"), *changed = NULL, *part, *taken;
    size_t i;

    *out = NULL;
    if (json_is_array(content)) {
        changed = json_array();
        json_array_foreach(content, i, part)
        {
            CR_TRY_GOTO(out, take_part(c, part, &taken, err));
            json_array_append_new(changed, taken);
        }
        if (c->is_inserted) {
            taken = join(changed);
            json_decref(changed);
            changed = taken;
        }
    } else if (json_is_string(content)) {
        CR_TRY_GOTO(out, take_text(c, content, &changed, err));
    }
    *out = changed ? json_copy(message) : json_incref(message);
    if (changed) json_object_set(*out, "content", changed);
out:
    json_decref(changed);
    return err->status;
}

static cr_status find_places(chat *c, const json_t *messages, json_t *to, cr_err *err)
{
    json_t *message, *taken;
    size_t i;

    json_array_foreach(messages, i, message)
    {
        c->message = i + 1;
        CR_TRY(take_message(c, message, &taken, err));
        json_array_append_new(to, taken);
    }
    i = json_is_array(c->images) ? json_array_size(c->images) : c->images != NULL;
    if (c->num_used == i) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "the column has %zu images, the messages have places for %zu",
                   i, c->num_used);
}

/* ---- files ---- */

static cr_status name_place(const chat *c, size_t i, cr_err *err)
{
    return cr_fail_add(err, "message %zu, image %zu", c->places[i].message, i + 1);
}

/* Of a chat so far. */
typedef struct sums {
    size_t num_bytes;
    int64_t num_tokens, num_pixels;
} sums;

/* Grid and tokens of image i, whose size is known. */
static cr_status count_tokens(const cr_image_reader *r, const chat *c, size_t i,
                              cr_image_item *item, sums *so_far, cr_err *err)
{
    const cr_image_processor *p = &r->processor;
    int width, height;

    if (cr_image_target(p, item->width, item->height, &width, &height, err) != CR_OK)
        return name_place(c, i, err);
    item->grid[0] = 1;
    item->grid[1] = height / p->patch_size;
    item->grid[2] = width / p->patch_size;
    item->num_tokens = (int64_t)item->grid[1] * item->grid[2] / (p->merge_size * p->merge_size);
    so_far->num_tokens += item->num_tokens;
    if (!r->max_tokens || so_far->num_tokens <= r->max_tokens) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "the images have more than %lld tokens",
                   (long long)r->max_tokens);
}

static cr_status add_bytes(const chat *c, size_t i, cr_image_item *item, size_t num_bytes,
                           sums *so_far, cr_err *err)
{
    item->value = c->places[i].value;
    item->num_bytes = num_bytes;
    so_far->num_bytes += num_bytes;
    if (so_far->num_bytes <= CR_IMAGE_BYTES_A_CHAT) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "the images have more than %d bytes", CR_IMAGE_BYTES_A_CHAT);
}

static cr_status add_pixels(const cr_image_item *item, sums *so_far, cr_err *err)
{
    so_far->num_pixels += (int64_t)item->width * item->height;
    if (so_far->num_pixels <= CR_IMAGE_PIXELS_A_CHAT) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "the images have more than %d pixels", CR_IMAGE_PIXELS_A_CHAT);
}

static cr_status failed(const chat *c, size_t i, const cr_err *why, cr_err *err)
{
    cr_fail(err, why->status, "%s", why->msg);
    return name_place(c, i, err);
}

/* ---- sizes alone ---- */

/* What the last look has of the images of a chat: [num] with NULL where it has nothing; how many it has. */
static size_t find_looks(const cr_image_reader *r, const chat *c, const cr_image_look **looks)
{
    size_t num = 0;

    for (size_t i = 0; i < c->num; i++) {
        looks[i] = cr_image_ahead_find(r->ahead, c->places[i].value);
        num += looks[i] != NULL;
    }
    return num;
}

static cr_status take_look(const cr_image_reader *r, const chat *c, size_t i,
                           const cr_image_look *look, cr_image_item *item, sums *so_far,
                           cr_err *err)
{
    if (look->err.status) return failed(c, i, &look->err, err);
    memcpy(item->digest, look->digest, sizeof item->digest);
    item->width = look->width;
    item->height = look->height;
    CR_TRY(add_bytes(c, i, item, look->num_bytes, so_far, err));
    if (look->is_decoded) CR_TRY(add_pixels(item, so_far, err));
    return count_tokens(r, c, i, item, so_far, err);
}

static cr_status read_sizes(cr_image_reader *r, const chat *c, cr_image_item *items, cr_err *err)
{
    const cr_image_look **looks = CR_NEW_ARRAY(const cr_image_look *, c->num + 1);
    sums so_far = {0};

    if (find_looks(r, c, looks) < c->num) {
        for (size_t i = 0; i < c->num; i++)
            cr_image_ahead_add(r->ahead, c->places[i].value);
        CR_TRY_GOTO(out, cr_image_ahead_look(r->ahead, CR_IMAGE_PIXELS_A_CHAT, err));
        find_looks(r, c, looks);
    }
    for (size_t i = 0; i < c->num && !err->status; i++) {
        CR_CHECK(looks[i], "the look ended before image %zu, and no sum is too large", i + 1);
        cr_note(take_look(r, c, i, looks[i], &items[i], &so_far, err));
    }
out:
    cr_free(looks);
    return err->status;
}

/* ---- values ---- */

/* What a worker answered for image i. */
static cr_status take_job(cr_image_reader *r, const chat *c, size_t i, cr_image_job *job,
                          cr_image_item *item, sums *so_far, cr_err *err)
{
    if (job->err.status) return failed(c, i, &job->err, err);
    item->width = job->image.width;
    item->height = job->image.height;
    CR_TRY(add_pixels(item, so_far, err));
    CR_TRY(count_tokens(r, c, i, item, so_far, err));
    return cr_image_cut(&r->processor, &job->image, 1, &item->patches, err);
}

/* Images [first, first + num), at most at_once. */
static cr_status read_some(cr_image_reader *r, const chat *c, size_t first, size_t num,
                           cr_image_item *items, sums *so_far, cr_err *err)
{
    cr_image_job jobs[CR_IMAGE_MAX_WORKERS] = {0};
    cr_buf files[CR_IMAGE_MAX_WORKERS] = {0};

    for (size_t k = 0; k < num && !err->status; k++) {
        cr_buf *file = &files[k];
        if (cr_image_source_read(c->places[first + k].value, r->folder, file, err) != CR_OK)
            name_place(c, first + k, err);
        else
            cr_note(add_bytes(c, first + k, &items[first + k], file->num_bytes, so_far, err));
        cr_digest_bytes(file->data ? file->data : "", file->num_bytes, items[first + k].digest);
        jobs[k] = (cr_image_job){.data = file->data, .num_bytes = file->num_bytes};
    }
    if (!err->status) cr_note(cr_image_pool_decode(r->pool, jobs, num, err));
    for (size_t k = 0; k < num; k++) {
        if (!err->status)
            cr_note(take_job(r, c, first + k, &jobs[k], &items[first + k], so_far, err));
        cr_image_free(&jobs[k].image);
        cr_buf_free(&files[k]);
    }
    return err->status;
}

static cr_status read_values(cr_image_reader *r, const chat *c, cr_image_item *items, cr_err *err)
{
    sums so_far = {0};

    for (size_t i = 0; i < c->num; i += r->at_once)
        CR_TRY(read_some(r, c, i, c->num - i < r->at_once ? c->num - i : r->at_once, items, &so_far,
                         err));
    return CR_OK;
}

/* images: the column. */
static chat chat_of(const cr_image_reader *r, const json_t *images)
{
    return (chat){.images = json_is_null(images) ? NULL : images,
                  .is_inserted = r->processor.num_views > 0};
}

void cr_image_reader_add(cr_image_reader *r, const json_t *messages, const json_t *images)
{
    chat c = chat_of(r, images);
    json_t *ignored = json_array();
    cr_err why = {0}; /* the read says it again */

    if (find_places(&c, messages, ignored, &why) == CR_OK)
        for (size_t i = 0; i < c.num; i++)
            cr_image_ahead_add(r->ahead, c.places[i].value);
    r->num_added++;
    json_decref(ignored);
    cr_free(c.places);
}

void cr_image_reader_look(cr_image_reader *r)
{
    cr_err why = {0}; /* likewise */

    cr_note(cr_image_ahead_look(r->ahead, r->num_added * CR_IMAGE_PIXELS_A_CHAT, &why));
    r->num_added = 0;
}

cr_status cr_image_reader_read(cr_image_reader *r, const json_t *messages, const json_t *images,
                               cr_image_items *out, cr_err *err)
{
    chat c = chat_of(r, images);

    *out = (cr_image_items){.messages = json_array(),
                            .is_inserted = c.is_inserted,
                            .placeholder = r->processor.placeholder};
    CR_TRY_GOTO(out, find_places(&c, messages, out->messages, err));
    out->num = c.num;
    out->item = CR_NEW_ARRAY(cr_image_item, c.num);
    cr_note(r->keeps_values ? read_values(r, &c, out->item, err)
                            : read_sizes(r, &c, out->item, err));
out:
    cr_free(c.places);
    if (err->status) cr_image_items_free(out);
    return err->status;
}

void cr_image_items_free(cr_image_items *items)
{
    for (size_t i = 0; i < items->num; i++)
        cr_image_patches_free(&items->item[i].patches);
    cr_free(items->item);
    json_decref(items->messages);
    *items = (cr_image_items){0};
}

cr_status cr_image_items_end(const cr_image_items *items, size_t next, cr_err *err)
{
    if (next == items->num || items->is_inserted) return CR_OK;
    return cr_fail(err, CR_EFORMAT,
                   "the rendered chat has %zu placeholders " CR_IMAGE_PLACEHOLDER " for %zu images",
                   next, items->num);
}

cr_status cr_image_items_expand_part(const cr_image_items *items, const char *text,
                                     size_t num_bytes, size_t *next, cr_buf *out, cr_err *err)
{
    static const char pad[] = CR_IMAGE_PLACEHOLDER;
    const char *end = text + num_bytes, *at;

    for (; !items->is_inserted && (at = memmem(text, (size_t)(end - text), pad, sizeof pad - 1));
         ++*next) {
        cr_buf_add(out, text, (size_t)(at - text));
        for (int64_t k = 0; *next < items->num && k < items->item[*next].num_tokens; k++)
            cr_buf_adds(out, pad);
        text = at + sizeof pad - 1;
    }
    cr_buf_add(out, text, (size_t)(end - text));
    return *next <= items->num ? CR_OK : cr_image_items_end(items, *next, err);
}

cr_status cr_image_items_expand(const cr_image_items *items, const char *text, size_t num_bytes,
                                cr_buf *out, cr_err *err)
{
    size_t num = 0;

    CR_TRY(cr_image_items_expand_part(items, text, num_bytes, &num, out, err));
    return cr_image_items_end(items, num, err);
}

void cr_image_insert(int32_t placeholder, int64_t num_tokens, const int32_t *ids,
                     const int32_t *labels, int64_t num, int32_t *out_ids, int32_t *out_labels)
{
    size_t rest = (size_t)(num - 1) * sizeof *ids;

    CR_CHECK(num > 0, "an image in a sequence of %lld tokens", (long long)num);
    out_ids[0] = ids[0];
    for (int64_t i = 1; i <= num_tokens; i++)
        out_ids[i] = placeholder;
    memcpy(out_ids + 1 + num_tokens, ids + 1, rest);
    if (!labels) return;
    for (int64_t i = 0; i < num_tokens; i++)
        out_labels[i] = -1;
    out_labels[num_tokens] = labels[0];
    memcpy(out_labels + 1 + num_tokens, labels + 1, rest);
}

cr_status cr_image_items_insert(const cr_image_items *items, int32_t **ids, uint8_t **learns,
                                size_t *num, size_t *num_inserted, cr_err *err)
{
    size_t more = items->is_inserted && items->num ? (size_t)items->item[0].num_tokens : 0;
    int32_t *with;

    *num_inserted = more;
    if (!more) return CR_OK;
    if (!*num) return cr_fail(err, CR_EFORMAT, "no first token, which an image stands after");
    with = CR_NEW_ARRAY(int32_t, *num + more);
    cr_image_insert(items->placeholder, (int64_t)more, *ids, NULL, (int64_t)*num, with, NULL);
    cr_free(*ids);
    *ids = with;
    if (learns && *learns) {
        *learns = cr_realloc(*learns, *num, *num + more);
        memmove(*learns + 1 + more, *learns + 1, *num - 1);
        memset(*learns + 1, 0, more);
    }
    *num += more;
    return CR_OK;
}
