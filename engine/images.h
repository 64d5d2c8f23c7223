/* images.h -- images of prompts: features, positions along the axes of the model, and what kept blocks depend on; inside
 * engine/ only.
 *
 * The tower runs once for a prompt, before the forward with the first row that takes a feature, and what it gives is on the device
 * until the last such row has been computed. A prompt that is filled again after preemption has it computed again: pixels
 * stay in memory of the host until the request ends. A prompt whose placeholders are all in kept blocks needs no tower.
 */
#ifndef CR_IMAGES_H
#define CR_IMAGES_H

#include "engine/engine_impl.h"

/* Of a group with images. */
typedef struct cri_request_images {
    cr_prompt_images own;
    int32_t *feature; /* [num_prompt] row of features that a position takes, -1: none */
    int32_t *mrope;   /* [3][num_prompt] */
    int32_t delta;    /* from the place of what follows the prompt to its position on all axes */
    int64_t end;      /* after the last placeholder */
    uint64_t *key;    /* [blocks of the prompt] of what ids do not say (prefix.h), 0: nothing */
    cr_vision_features features; /* there while a sample fills placeholders */
    bool is_needed;              /* by rows of this forward */
} cri_request_images;

/* Takes the images over; they fit the prompt. */
cri_request_images *cri_images_new(const cr_engine *e, const int32_t *prompt, int64_t num_prompt,
                                   cr_prompt_images *images);
void cri_images_free(cri_request_images *im);
/* The chain before this block of s. */
uint64_t cri_images_chain(const cri_seq *s, int64_t block);
/* A row of the forward is position pos of s: where it stands, and what it takes. */
void cri_images_row(cr_engine *e, const cri_seq *s, int64_t pos, int64_t row);
/* Features that rows of the forward take and that are not there yet. */
CR_MUST cr_status cri_images_compute(cr_engine *e, cr_err *err);
/* s needs no features any more. */
void cri_images_release(cr_engine *e, const cri_seq *s);

#endif
