/* pool.h -- images decoded by processes of their own, off the caller's, several at a time.
 *
 * Decoders are large libraries that read files of strangers: a worker holds nothing but the file at hand and can do nothing but compute
 * (sandbox/confine.h). One that crashes, takes too long or too much memory is an error of its image alone, and the next image has
 * a new worker. What a worker answers is checked, too.
 *
 * Workers are forked when they are first needed, from a process that may have threads (they make none), and end with their
 * parent. Ownership: files are borrowed, images are the caller's. One thread.
 */
#ifndef CR_IMAGE_POOL_H
#define CR_IMAGE_POOL_H

#include "images/image.h"

typedef struct cr_image_pool cr_image_pool;

typedef struct cr_image_job {
    const void *data; /* a file; borrowed */
    size_t num_bytes;
    bool size_only; /* its pixels are checked, and not wanted: image.pixels is NULL */
    cr_image image; /* if err says nothing */
    cr_err err;
} cr_image_job;

/* Jobs of any number, of which no more are held than there are workers. */
typedef struct cr_image_jobs {
    cr_image_job *(*next)(void *ctx);          /* the next one; NULL: that was all */
    void (*end)(void *ctx, cr_image_job *job); /* it is done; in any order */
    void *ctx;
} cr_image_jobs;

enum {
    CR_IMAGE_SECONDS = 60, /* for one image; the largest take a few */
    CR_IMAGE_MAX_WORKERS = 8
};

cr_image_pool *cr_image_pool_create(size_t num_workers, int64_t max_pixels, double max_seconds);
/* Of all images, before the first one is decoded; without it CR_ALPHA_DROP. */
void cr_image_pool_set_alpha(cr_image_pool *pool, cr_image_alpha alpha);
/* A worker for each core of this process, at most CR_IMAGE_MAX_WORKERS, with the limits CR_IMAGE_MAX_PIXELS and CR_IMAGE_SECONDS. */
cr_image_pool *cr_image_pool_open(cr_image_alpha alpha, size_t *num_workers);
void cr_image_pool_destroy(cr_image_pool *pool); /* accepts NULL */
/* All that next gives, the next file is got while workers decode. Fails only if there can be no worker: the job at hand has no end then. */
CR_MUST cr_status cr_image_pool_run(cr_image_pool *pool, const cr_image_jobs *jobs, cr_err *err);
/* All of an array, likewise. */
CR_MUST cr_status cr_image_pool_decode(cr_image_pool *pool, cr_image_job *jobs, size_t num,
                                       cr_err *err);

#endif
