/* reader.c -- see reader.h. */
#include "images/reader.h"
#include "images/ahead.h"
#include "images/pool.h"
#include "images/source.h"
#include "images/videos/clip.h"
#include "images/videos/frames.h"

#include <math.h>
#include <string.h>

#define IMAGE_TAG  CR_IMAGE_TAG
#define VIDEO_TAG  CR_VIDEO_TAG
#define IMAGE_TEXT "<|vision_start|>" CR_IMAGE_PLACEHOLDER "<|vision_end|>"
#define VIDEO_TEXT "<|vision_start|>" CR_VIDEO_PLACEHOLDER "<|vision_end|>"

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

typedef struct place {
    const json_t *value; /* an image, or a list of frames; borrowed */
    size_t message;      /* from 1 */
    size_t number;       /* among the chat's images, or videos; from 1 */
    double fps;          /* 0: an image */
    size_t first_file, num_files;
} place;

/* A column, a list or (image) one value; values are taken in turn. */
typedef struct column {
    const json_t *values; /* NULL: none */
    size_t num_used;
} column;

/* Where a chat has images and videos: a place has one file, or, of a video, one for each frame. */
typedef struct places {
    column images, videos;
    const cr_image_processor *processor;
    place *places;
    size_t num, capacity, num_videos;
    const json_t **files; /* [num_files] of all places, in their order; borrowed */
    size_t num_files, capacity_files;
    size_t message;
} places;

enum { NO_FILE = INT32_MAX }; /* of a place itself */

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

static void free_places(places *p)
{
    cr_free(p->places);
    cr_free(p->files);
}

/* "message 2, image 3", "message 2, video 1: frame 4" before an error of that file of place i. */
static cr_status name_place(const places *p, size_t i, size_t file, cr_err *err)
{
    const place *at = &p->places[i];

    if (at->fps > 0 && file != NO_FILE) cr_fail_add(err, "frame %zu", file - at->first_file + 1);
    return cr_fail_add(err, "message %zu, %s %zu", at->message, at->fps > 0 ? "video" : "image",
                       at->number);
}

/* Processors of one size of image have places that are not in the text. */
static bool is_inserted(const places *p)
{
    return p->processor->num_views > 0;
}

/* The next value of a column; NULL: no further one. */
static const json_t *next_of(column *c)
{
    size_t i = c->num_used++;

    return json_is_array(c->values) ? json_array_get(c->values, i) : i ? NULL : c->values;
}

static void add_file(places *p, const json_t *value)
{
    p->files = cr_grow(p->files, p->num_files, &p->capacity_files, sizeof *p->files);
    p->files[p->num_files++] = value;
}

static cr_status add_place(places *p, const json_t *value, double fps, cr_err *err)
{
    size_t num = fps > 0 ? json_array_size(value) : 1,
           number = fps > 0 ? ++p->num_videos : p->num + 1 - p->num_videos;

    if (p->num == CR_IMAGES_A_CHAT)
        return cr_fail(err, CR_EFORMAT, "more than %d images", CR_IMAGES_A_CHAT);
    if (fps > 0 && num > CR_FRAMES_A_CHAT - p->num_files)
        return cr_fail(err, CR_EFORMAT,
                       "message %zu, video %zu: with its %zu frames the chat has more than %d",
                       p->message, number, num, CR_FRAMES_A_CHAT);
    p->places = cr_grow(p->places, p->num, &p->capacity, sizeof *p->places);
    p->places[p->num++] = (place){value, p->message, number, fps, p->num_files, num};
    for (size_t i = 0; i < num; i++)
        add_file(p, fps > 0 ? json_array_get(value, i) : value);
    return CR_OK;
}

static cr_status add_image(places *p, const json_t *value, cr_err *err)
{
    if (!value && p->images.values) value = next_of(&p->images);
    if (!value)
        return cr_fail(err, CR_EFORMAT, "message %zu: a place without an image%s", p->message,
                       p->images.values ? ": the column has no further one" : "");
    if (is_inserted(p) && p->num)
        return cr_fail(err, CR_EFORMAT,
                       "message %zu has a second image, and this model takes one in a sequence",
                       p->message);
    return add_place(p, value, 0, err);
}

/* ---- videos ---- */

/* Frames a second that an object with a video says; `otherwise` if it says nothing. */
static cr_status read_fps(const places *p, const json_t *object, double otherwise, double *fps,
                          cr_err *err)
{
    static const char *const names[] = {"sample_fps", "fps"};

    *fps = otherwise;
    for (size_t i = 0; i < CR_COUNT(names); i++) {
        const json_t *value = json_object_get(object, names[i]);
        double x = json_number_value(value);
        if (!value || json_is_null(value)) continue;
        if (!json_is_number(value) || !isfinite(x) || x < CR_MIN_FPS || x > CR_MAX_FPS)
            return cr_fail(err, CR_EFORMAT, "message %zu: %s of a video: a number from %g to %g",
                           p->message, names[i], CR_MIN_FPS, CR_MAX_FPS);
        *fps = x;
        return CR_OK;
    }
    return CR_OK;
}

/* What a part has, or the column: a list of frames, or an object with one. */
static const json_t *frames_of(const json_t *value)
{
    const json_t *inner = json_object_get(value, "video");

    return inner ? inner : value;
}

static cr_status add_video(places *p, const json_t *part, const json_t *value, cr_err *err)
{
    double fps;

    if (!p->processor->video.is_taken)
        return cr_fail(err, CR_EFORMAT, "message %zu has a video, and this model takes images",
                       p->message);
    if (!value && p->videos.values) value = next_of(&p->videos);
    if (!value)
        return cr_fail(err, CR_EFORMAT, "message %zu: a place without a video%s", p->message,
                       p->videos.values ? ": the column has no further one" : "");
    CR_TRY(read_fps(p, part, p->processor->video.fps, &fps, err));
    CR_TRY(read_fps(p, value, fps, &fps, err));
    value = frames_of(value);
    if (!json_is_array(value))
        return cr_fail(
            err, CR_EFORMAT,
            "message %zu: a video is a list of frames, each an image, and files of videos "
            "are not decoded (ffmpeg -i clip.mp4 -vf fps=2 frame-%%03d.png makes frames)",
            p->message);
    if (!json_array_size(value))
        return cr_fail(err, CR_EFORMAT, "message %zu: a video without frames", p->message);
    return add_place(p, value, fps, err);
}

/* ---- messages ---- */

static void trim(const char **first, const char **last)
{
    while (*first < *last && strchr(" \t\r\n", **first) && **first)
        ++*first;
    while (*last > *first && strchr(" \t\r\n", (*last)[-1]) && (*last)[-1])
        --*last;
}

/* The first tag of a column that there is; NULL: none. */
static const char *find_tag(const places *p, const char *at, const char *end, bool *is_video)
{
    const char *image = NULL, *video = NULL;

    if (p->images.values) image = memmem(at, (size_t)(end - at), IMAGE_TAG, sizeof IMAGE_TAG - 1);
    if (p->videos.values) video = memmem(at, (size_t)(end - at), VIDEO_TAG, sizeof VIDEO_TAG - 1);
    *is_video = video && (!image || video < image);
    return *is_video ? video : image;
}

/* A text for the template, with tags as the template would have written a place, or, of a model whose places are not in the text, without
 * them and the blanks around it; a new reference. */
static cr_status take_text(places *p, const json_t *text, json_t **out, cr_err *err)
{
    const char *at = json_string_value(text), *end = at + json_string_length(text), *tag;
    const char *first, *last;
    cr_buf with = {0};
    size_t num_tags = 0;
    bool is_video;

    *out = NULL;
    for (; (tag = find_tag(p, at, end, &is_video)) != NULL; num_tags++) {
        CR_TRY_GOTO(out, is_video ? add_video(p, NULL, NULL, err) : add_image(p, NULL, err));
        cr_buf_add(&with, at, (size_t)(tag - at));
        if (!is_inserted(p)) cr_buf_adds(&with, is_video ? VIDEO_TEXT : IMAGE_TEXT);
        at = tag + (is_video ? sizeof VIDEO_TAG : sizeof IMAGE_TAG) - 1;
    }
    if (!num_tags) {
        *out = json_incref((json_t *)(uintptr_t)text);
        goto out;
    }
    cr_buf_add(&with, at, (size_t)(end - at));
    first = with.data ? with.data : "";
    last = first + with.num_bytes;
    if (is_inserted(p)) trim(&first, &last);
    *out = json_stringn(first, (size_t)(last - first));
out:
    cr_buf_free(&with);
    return err->status;
}

/* The value of a part by the first of these names that it has; NULL: none, or null. */
static const json_t *value_of(const json_t *part, const char *const *names, size_t num)
{
    const json_t *value = NULL;

    for (size_t i = 0; i < num && !value; i++) {
        value = json_object_get(part, names[i]);
        if (json_is_null(value)) value = NULL;
    }
    return value;
}

static cr_status take_part(places *p, json_t *part, json_t **out, cr_err *err)
{
    static const char *const of_image[] = {"image", "image_url", "path", "url", "base64"},
                             *const of_video[] = {"video", "video_url", "path", "url", "base64"};
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *text = json_object_get(part, "text");
    json_t *changed;

    *out = NULL;
    if (type && (strcmp(type, "image") == 0 || strcmp(type, "image_url") == 0)) {
        CR_TRY(add_image(p, value_of(part, of_image, CR_COUNT(of_image)), err));
        *out = json_pack("{s:s}", "type", "image");
        return CR_OK;
    }
    if (type && (strcmp(type, "video") == 0 || strcmp(type, "video_url") == 0)) {
        CR_TRY(add_video(p, part, value_of(part, of_video, CR_COUNT(of_video)), err));
        *out = json_pack("{s:s}", "type", "video");
        return CR_OK;
    }
    if (type && strcmp(type, "text") != 0)
        return cr_fail(err, CR_EFORMAT,
                       "message %zu has a part of type '%.20s', not text, image or video",
                       p->message, type);
    if (!json_is_string(text)) {
        *out = json_incref(part);
        return CR_OK;
    }
    CR_TRY(take_text(p, text, &changed, err));
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

/* A message whose content has no data of images and videos; a new reference. */
static cr_status take_message(places *p, json_t *message, json_t **out, cr_err *err)
{
    json_t *content = json_object_get(message, "content"), *changed = NULL, *part, *taken;
    size_t i;

    *out = NULL;
    if (json_is_array(content)) {
        changed = json_array();
        json_array_foreach(content, i, part)
        {
            CR_TRY_GOTO(out, take_part(p, part, &taken, err));
            json_array_append_new(changed, taken);
        }
        if (is_inserted(p)) {
            taken = join(changed);
            json_decref(changed);
            changed = taken;
        }
    } else if (json_is_string(content)) {
        CR_TRY_GOTO(out, take_text(p, content, &changed, err));
    }
    *out = changed ? json_copy(message) : json_incref(message);
    if (changed) json_object_set(*out, "content", changed);
out:
    json_decref(changed);
    return err->status;
}

/* All of a column was taken. what: "images", "videos". */
static cr_status check_column(const column *c, const char *what, cr_err *err)
{
    size_t num = json_is_array(c->values) ? json_array_size(c->values) : c->values != NULL;

    if (c->num_used == num) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "the column has %zu %s, the messages have places for %zu", num,
                   what, c->num_used);
}

/* to: the messages for the template are appended. */
static cr_status find_places(places *p, const json_t *messages, json_t *to, cr_err *err)
{
    json_t *message, *taken;
    size_t i;

    json_array_foreach(messages, i, message)
    {
        p->message = i + 1;
        CR_TRY(take_message(p, message, &taken, err));
        json_array_append_new(to, taken);
    }
    CR_TRY(check_column(&p->images, "images", err));
    return check_column(&p->videos, "videos", err);
}

/* ---- files ---- */

/* Of a chat so far. */
typedef struct sums {
    size_t num_bytes;
    int64_t num_tokens, num_pixels;
} sums;

/* A chat on its way: its places with one item each. */
typedef struct chat {
    places at;
    cr_image_item *items;            /* [at.num] */
    char (*digests)[CR_DIGEST_TEXT]; /* [at.num_files] of files */
    sums so_far;
} chat;

/* Grid and tokens of place i, the size of whose frames is known. */
static cr_status count_tokens(const cr_image_reader *r, chat *c, size_t i, cr_err *err)
{
    const cr_image_processor *p = &r->processor;
    const place *at = &c->at.places[i];
    cr_image_item *item = &c->items[i];
    size_t per_patch = (size_t)p->temporal_patch_size;
    int width, height;

    if ((at->fps > 0
             ? cr_video_target(p, at->num_files, item->width, item->height, &width, &height, err)
             : cr_image_target(p, item->width, item->height, &width, &height, err)) != CR_OK)
        return name_place(&c->at, i, NO_FILE, err);
    item->grid[0] = at->fps > 0 ? (int32_t)((at->num_files + per_patch - 1) / per_patch) : 1;
    item->grid[1] = height / p->patch_size;
    item->grid[2] = width / p->patch_size;
    item->num_tokens =
        (int64_t)item->grid[0] * item->grid[1] * item->grid[2] / (p->merge_size * p->merge_size);
    c->so_far.num_tokens += item->num_tokens;
    if (!r->max_tokens || c->so_far.num_tokens <= r->max_tokens) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "the images have more than %lld tokens",
                   (long long)r->max_tokens);
}

static cr_status add_bytes(chat *c, size_t i, size_t num_bytes, cr_err *err)
{
    c->items[i].num_bytes += num_bytes;
    c->so_far.num_bytes += num_bytes;
    if (c->so_far.num_bytes <= CR_IMAGE_BYTES_A_CHAT) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "the images have more than %d bytes", CR_IMAGE_BYTES_A_CHAT);
}

static cr_status add_pixels(chat *c, int width, int height, cr_err *err)
{
    c->so_far.num_pixels += (int64_t)width * height;
    if (c->so_far.num_pixels <= CR_IMAGE_PIXELS_A_CHAT) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "the images have more than %d pixels", CR_IMAGE_PIXELS_A_CHAT);
}

static cr_status failed(const chat *c, size_t i, size_t file, const cr_err *why, cr_err *err)
{
    cr_fail(err, why->status, "%s", why->msg);
    return name_place(&c->at, i, file, err);
}

/* The size of a file of place i: of an image its own, of a video that of all frames. */
static cr_status take_size(const cr_image_reader *r, chat *c, size_t i, size_t file, int width,
                           int height, cr_err *err)
{
    cr_image_item *item = &c->items[i];

    if (file == c->at.places[i].first_file) {
        item->width = width;
        item->height = height;
        return count_tokens(r, c, i, err);
    }
    if (cr_clip_same_size(width, height, item->width, item->height, err) == CR_OK) return CR_OK;
    return name_place(&c->at, i, file, err);
}

/* Digests of items from those of their files. */
static void name_items(chat *c)
{
    for (size_t i = 0; i < c->at.num; i++) {
        const place *p = &c->at.places[i];
        const char(*digests)[CR_DIGEST_TEXT] =
            (const char(*)[CR_DIGEST_TEXT])c->digests + p->first_file;
        if (p->fps > 0)
            cr_video_digest(p->fps, digests, p->num_files, c->items[i].digest);
        else
            memcpy(c->items[i].digest, digests[0], CR_DIGEST_TEXT);
    }
}

/* ---- sizes alone ---- */

/* What the last look has of the files of a chat: [num_files] with NULL where it has nothing; how many it has. */
static size_t find_looks(const cr_image_reader *r, const chat *c, const cr_image_look **looks)
{
    size_t num = 0;

    for (size_t f = 0; f < c->at.num_files; f++) {
        looks[f] = cr_image_ahead_find(r->ahead, c->at.files[f]);
        num += looks[f] != NULL;
    }
    return num;
}

static cr_status take_look(const cr_image_reader *r, chat *c, size_t i, size_t file,
                           const cr_image_look *look, cr_err *err)
{
    if (look->err.status) return failed(c, i, file, &look->err, err);
    memcpy(c->digests[file], look->digest, sizeof *c->digests);
    CR_TRY(add_bytes(c, i, look->num_bytes, err));
    if (look->is_decoded) CR_TRY(add_pixels(c, look->width, look->height, err));
    return take_size(r, c, i, file, look->width, look->height, err);
}

static cr_status read_sizes(cr_image_reader *r, chat *c, cr_err *err)
{
    const cr_image_look **looks = CR_NEW_ARRAY(const cr_image_look *, c->at.num_files + 1);

    if (find_looks(r, c, looks) < c->at.num_files) {
        for (size_t f = 0; f < c->at.num_files; f++)
            cr_image_ahead_add(r->ahead, c->at.files[f]);
        CR_TRY_GOTO(out, cr_image_ahead_look(r->ahead, CR_IMAGE_PIXELS_A_CHAT, err));
        find_looks(r, c, looks);
    }
    for (size_t f = 0, i = 0; f < c->at.num_files && !err->status; f++) {
        CR_CHECK(looks[f], "the look ended before image %zu, and no sum is too large", f + 1);
        i += f == c->at.places[i].first_file + c->at.places[i].num_files;
        cr_note(take_look(r, c, i, f, looks[f], err));
    }
out:
    cr_free(looks);
    return err->status;
}

/* ---- values ---- */

/* Files in turn; those of a place become its clip. */
typedef struct walk {
    size_t place;
    cr_clip clip;
} walk;

/* What a worker answered for a file. */
static cr_status take_job(const cr_image_reader *r, chat *c, walk *w, size_t file,
                          cr_image_job *job, cr_err *err)
{
    const place *p = &c->at.places[w->place];

    if (job->err.status) return failed(c, w->place, file, &job->err, err);
    CR_TRY(add_pixels(c, job->image.width, job->image.height, err));
    CR_TRY(take_size(r, c, w->place, file, job->image.width, job->image.height, err));
    if (file == p->first_file) cr_clip_begin(&w->clip, &r->processor, p->num_files, p->fps);
    CR_TRY(cr_clip_add(&w->clip, &job->image, err));
    if (w->clip.num < p->num_files) return CR_OK;
    return cr_clip_cut(&w->clip, &c->items[w->place++].patches, err);
}

static size_t place_of(const chat *c, size_t from, size_t file)
{
    while (file >= c->at.places[from].first_file + c->at.places[from].num_files)
        from++;
    return from;
}

/* Files [first, first + num), at most at_once. */
static cr_status read_some(cr_image_reader *r, chat *c, walk *w, size_t first, size_t num,
                           cr_err *err)
{
    cr_image_job jobs[CR_IMAGE_MAX_WORKERS] = {0};
    cr_buf files[CR_IMAGE_MAX_WORKERS] = {0};

    for (size_t k = 0; k < num && !err->status; k++) {
        cr_buf *file = &files[k];
        size_t i = place_of(c, w->place, first + k);
        if (cr_image_source_read(c->at.files[first + k], r->folder, file, err) != CR_OK)
            name_place(&c->at, i, first + k, err);
        else
            cr_note(add_bytes(c, i, file->num_bytes, err));
        cr_digest_bytes(file->data ? file->data : "", file->num_bytes, c->digests[first + k]);
        jobs[k] = (cr_image_job){.data = file->data, .num_bytes = file->num_bytes};
    }
    if (!err->status) cr_note(cr_image_pool_decode(r->pool, jobs, num, err));
    for (size_t k = 0; k < num; k++) {
        if (!err->status) cr_note(take_job(r, c, w, first + k, &jobs[k], err));
        cr_image_free(&jobs[k].image);
        cr_buf_free(&files[k]);
    }
    return err->status;
}

static cr_status read_values(cr_image_reader *r, chat *c, cr_err *err)
{
    size_t num = c->at.num_files;
    walk w = {0};

    for (size_t f = 0; f < num && !err->status; f += r->at_once)
        cr_note(read_some(r, c, &w, f, num - f < r->at_once ? num - f : r->at_once, err));
    cr_clip_free(&w.clip);
    return err->status;
}

static chat chat_of(const cr_image_reader *r, const cr_image_columns *columns)
{
    static const cr_image_columns none = {0};
    const cr_image_columns *of = columns ? columns : &none;

    return (chat){.at = {.images = {json_is_null(of->images) ? NULL : of->images, 0},
                         .videos = {json_is_null(of->videos) ? NULL : of->videos, 0},
                         .processor = &r->processor}};
}

void cr_image_reader_add(cr_image_reader *r, const json_t *messages,
                         const cr_image_columns *columns)
{
    chat c = chat_of(r, columns);
    json_t *ignored = json_array();
    cr_err why = {0}; /* the read says it again */

    if (find_places(&c.at, messages, ignored, &why) == CR_OK)
        for (size_t f = 0; f < c.at.num_files; f++)
            cr_image_ahead_add(r->ahead, c.at.files[f]);
    r->num_added++;
    json_decref(ignored);
    free_places(&c.at);
}

void cr_image_reader_look(cr_image_reader *r)
{
    cr_err why = {0}; /* likewise */

    cr_note(cr_image_ahead_look(r->ahead, r->num_added * CR_IMAGE_PIXELS_A_CHAT, &why));
    r->num_added = 0;
}

/* Items of the places that were found. */
static cr_status read_items(cr_image_reader *r, chat *c, cr_image_items *out, cr_err *err)
{
    out->num = c->at.num;
    out->item = c->items = CR_NEW_ARRAY(cr_image_item, out->num);
    c->digests = cr_alloc((c->at.num_files + 1) * sizeof *c->digests);
    for (size_t i = 0; i < out->num; i++) {
        const place *p = &c->at.places[i];
        c->items[i].value = p->value;
        c->items[i].fps = p->fps;
        c->items[i].num_frames = p->num_files;
    }
    cr_note(r->keeps_values ? read_values(r, c, err) : read_sizes(r, c, err));
    if (!err->status) name_items(c);
    cr_free(c->digests);
    return err->status;
}

cr_status cr_image_reader_read(cr_image_reader *r, const json_t *messages,
                               const cr_image_columns *columns, cr_image_items *out, cr_err *err)
{
    chat c = chat_of(r, columns);

    *out = (cr_image_items){.messages = json_array(),
                            .is_inserted = r->processor.num_views > 0,
                            .has_times = r->processor.video.has_times,
                            .temporal_patch_size = r->processor.temporal_patch_size,
                            .placeholder = r->processor.placeholder};
    if (find_places(&c.at, messages, out->messages, err) == CR_OK)
        cr_note(read_items(r, &c, out, err));
    free_places(&c.at);
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
                   "the rendered chat has %zu placeholders " CR_IMAGE_PLACEHOLDER
                   " or " CR_VIDEO_PLACEHOLDER " for %zu images and videos",
                   next, items->num);
}

static void repeat(const char *pad, int64_t num, cr_buf *out)
{
    while (num-- > 0)
        cr_buf_adds(out, pad);
}

/* The middle of the times of a patch's first and last frame, in seconds; the last frame is repeated to fill it. */
static double time_of(const cr_image_items *items, const cr_image_item *item, int64_t patch)
{
    int64_t first = patch * items->temporal_patch_size,
            last = first + items->temporal_patch_size - 1, end = (int64_t)item->num_frames - 1;

    return ((double)first / item->fps + (double)(last < end ? last : end) / item->fps) / 2;
}

static bool ends_with(const cr_buf *text, const char *what)
{
    size_t num = strlen(what);

    return text->num_bytes >= num && memcmp(text->data + text->num_bytes - num, what, num) == 0;
}

/* Of Qwen3-VL: before each patch of frames its time; those that the template has put around all of them go. */
static void add_timed(const cr_image_items *items, const cr_image_item *item, const char **after,
                      const char *end, cr_buf *out)
{
    static const char start[] = "<|vision_start|>", stop[] = "<|vision_end|>";

    if (ends_with(out, start) && (size_t)(end - *after) >= sizeof stop - 1 &&
        memcmp(*after, stop, sizeof stop - 1) == 0) {
        out->num_bytes -= sizeof start - 1;
        *after += sizeof stop - 1;
    }
    for (int64_t t = 0; t < item->grid[0]; t++) {
        cr_buf_addf(out, "<%.1f seconds>%s", time_of(items, item, t), start);
        repeat(CR_VIDEO_PLACEHOLDER, item->num_tokens / item->grid[0], out);
        cr_buf_adds(out, stop);
    }
}

/* The next placeholder of either kind; NULL: none. Both are as long. */
static const char *find_pad(const char *text, const char *end, bool *is_video)
{
    static const char image[] = CR_IMAGE_PLACEHOLDER, video[] = CR_VIDEO_PLACEHOLDER;
    const char *a = memmem(text, (size_t)(end - text), image, sizeof image - 1),
               *b = memmem(text, (size_t)(end - text), video, sizeof video - 1);

    *is_video = b && (!a || b < a);
    return *is_video ? b : a;
}

cr_status cr_image_items_expand_part(const cr_image_items *items, const char *text,
                                     size_t num_bytes, size_t *next, cr_buf *out, cr_err *err)
{
    const char *end = text + num_bytes, *at;
    bool is_video;

    for (; !items->is_inserted && (at = find_pad(text, end, &is_video)); ++*next) {
        const cr_image_item *item = *next < items->num ? &items->item[*next] : NULL;
        cr_buf_add(out, text, (size_t)(at - text));
        text = at + sizeof CR_IMAGE_PLACEHOLDER - 1;
        if (item && is_video != (item->fps > 0))
            return cr_fail(err, CR_EFORMAT,
                           "placeholder %zu of the rendered chat is of %s, and there the messages "
                           "have %s",
                           *next + 1, is_video ? "a video" : "an image",
                           is_video ? "an image" : "a video");
        if (item && is_video && items->has_times)
            add_timed(items, item, &text, end, out);
        else if (item)
            repeat(is_video ? CR_VIDEO_PLACEHOLDER : CR_IMAGE_PLACEHOLDER, item->num_tokens, out);
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
