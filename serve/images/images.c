/* images.c -- see images.h. */
#include "serve/images/images.h"
#include "base/limits.h"
#include "images/reader.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

struct cr_serve_images {
    cr_image_processor processor;
    const cr_model_config *config;
    pthread_mutex_t lock;
    cr_image_reader **idle; /* [num] under the lock: a reader is of one thread at a time */
    size_t num, capacity;
};

static atomic_llong held_bytes; /* values of all requests of this process */

cr_serve_images *cr_serve_images_create(const cr_image_processor *processor,
                                        const cr_model_config *config)
{
    cr_serve_images *s = CR_NEW(cr_serve_images);

    s->processor = *processor;
    s->config = config;
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

void cr_serve_images_destroy(cr_serve_images *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->num; i++)
        cr_image_reader_destroy(s->idle[i]);
    pthread_mutex_destroy(&s->lock);
    cr_free(s->idle);
    cr_free(s);
}

bool cr_serve_image_part(const json_t *part, const json_t **url)
{
    static const char begin[] = "data:image/";
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *value = json_object_get(part, "image_url");

    if (json_is_object(value)) value = json_object_get(value, "url");
    *url = json_is_string(value) && strncmp(json_string_value(value), begin, sizeof begin - 1) == 0
               ? value
               : NULL;
    return type && strcmp(type, "image_url") == 0;
}

static cr_image_reader *take_reader(cr_serve_images *s)
{
    cr_image_reader *reader = NULL;

    pthread_mutex_lock(&s->lock);
    if (s->num) reader = s->idle[--s->num];
    pthread_mutex_unlock(&s->lock);
    return reader ? reader : cr_image_reader_create(&s->processor, NULL);
}

static void put_back(cr_serve_images *s, cr_image_reader *reader)
{
    pthread_mutex_lock(&s->lock);
    s->idle = cr_grow(s->idle, s->num, &s->capacity, sizeof(cr_image_reader *));
    s->idle[s->num++] = reader;
    pthread_mutex_unlock(&s->lock);
}

cr_status cr_serve_images_read(cr_serve_images *s, const json_t *messages, int64_t max_tokens,
                               cr_image_items *out, cr_err *err)
{
    cr_image_reader *reader = take_reader(s);

    cr_image_reader_keep_values(reader, max_tokens < CR_SERVE_IMAGE_TOKENS ? max_tokens
                                                                           : CR_SERVE_IMAGE_TOKENS);
    cr_note(cr_image_reader_read(reader, messages, NULL, out, err));
    put_back(s, reader);
    return err->status;
}

cr_status cr_serve_images_take(const cr_serve_images *s, const cr_image_items *items,
                               const int32_t *ids, size_t num_ids, cr_prompt_images *out,
                               int64_t *num_bytes, cr_err *err)
{
    long long max_bytes = (long long)cr_memory_limit() / 8, before;

    cr_prompt_images_make(items->item, items->num, out);
    *num_bytes = (int64_t)(out->seq.num_pixels * sizeof(float));
    before = atomic_fetch_add(&held_bytes, *num_bytes);
    if (before + *num_bytes > max_bytes)
        return cr_fail(err, CR_EABSENT,
                       "the values of these images take %lld bytes; those of other requests have "
                       "%lld of %lld",
                       (long long)*num_bytes, before, max_bytes);
    return cr_seq_images_check(s->config, ids, num_ids, &out->seq, err);
}

void cr_serve_images_drop(cr_prompt_images *images, int64_t num_bytes)
{
    cr_prompt_images_free(images);
    atomic_fetch_sub(&held_bytes, num_bytes);
}
