/* images.c -- see images.h. */
#include "engine/images.h"
#include "base/rng.h"

#include <string.h>

/* ---- of a request ---- */

/* Which features positions take, and what blocks depend on. */
static void list_features(cri_request_images *im, const cr_model_config *c, const int32_t *prompt,
                          int64_t num_prompt)
{
    int64_t item = -1, left = 0, num = (int64_t)im->own.seq.num;
    int32_t next = 0;
    uint64_t key = 0;

    for (int64_t t = 0; t < num_prompt; t++) {
        uint64_t *of_block = &im->key[t / CR_KV_BLOCK];
        im->feature[t] = -1;
        if ((prompt[t] != c->vision->image_id && prompt[t] != c->vision->video_id) ||
            (left == 0 && item + 1 == num))
            continue;
        if (left == 0) {
            const int32_t *grid = im->own.grid + 3 * ++item;
            left = cr_vision_item_tokens(c, grid);
            key = cri_prefix_with(cr_hash64(im->own.digest[item], CR_DIGEST_TEXT),
                                  cr_hash64(grid, 3 * sizeof *grid));
        }
        if (next == 0 || t % CR_KV_BLOCK == 0 ||
            left == cr_vision_item_tokens(c, im->own.grid + 3 * item))
            *of_block = cri_prefix_with(*of_block, key);
        left--;
        im->feature[t] = next++;
        im->end = t + 1;
    }
    im->features.num_tokens = next;
}

static void find_positions(cri_request_images *im, const cr_model_config *c, const int32_t *prompt,
                           int64_t num_prompt)
{
    const int32_t cu_seqlens[] = {0, (int32_t)num_prompt};
    const cr_batch batch = {
        .ids = prompt, .cu_seqlens = cu_seqlens, .num_tokens = num_prompt, .num_seqs = 1};
    const int32_t items[] = {0, (int32_t)im->own.seq.num};
    cr_vision_input in = cr_seq_images_input(c, &im->own.seq);
    int32_t max = -1;
    cr_err err = {0};

    in.seq_items = items;
    im->mrope = CR_NEW_ARRAY(int32_t, 3 * num_prompt);
    CR_CHECK(cr_vision_positions(c, &batch, &in, im->mrope, &err) == CR_OK, "%s", err.msg);
    for (int64_t i = 0; i < 3 * num_prompt; i++)
        if (im->mrope[i] > max) max = im->mrope[i];
    im->delta = max + 1 - (int32_t)num_prompt;
}

cri_request_images *cri_images_new(const cr_engine *e, const int32_t *prompt, int64_t num_prompt,
                                   cr_prompt_images *images)
{
    const cr_model_config *c = &e->model->config;
    cri_request_images *im = CR_NEW(cri_request_images);

    im->own = *images;
    *images = (cr_prompt_images){0};
    im->feature = CR_NEW_ARRAY(int32_t, num_prompt);
    im->key = CR_NEW_ARRAY(uint64_t, cri_blocks_of(num_prompt));
    list_features(im, c, prompt, num_prompt);
    if (c->rope_axis) find_positions(im, c, prompt, num_prompt);
    return im;
}

void cri_images_free(cri_request_images *im)
{
    if (!im) return;
    CR_CHECK(!im->features.rows[0], "features of images are left");
    cr_prompt_images_free(&im->own);
    cr_free(im->feature);
    cr_free(im->mrope);
    cr_free(im->key);
    cr_free(im);
}

uint64_t cri_images_chain(const cri_seq *s, int64_t block)
{
    const cri_request_images *im = s->group->images;

    if (!im || block >= cri_blocks_of(s->group->num_prompt) || !im->key[block]) return s->chain;
    return cri_prefix_with(s->chain, im->key[block]);
}

/* ---- of a forward ---- */

void cri_images_row(cr_engine *e, const cri_seq *s, int64_t pos, int64_t row)
{
    cri_request_images *im = s->group->images;
    int64_t n = s->group->num_prompt;
    cr_vision_run *last = e->num_runs ? &e->runs[e->num_runs - 1] : NULL;

    for (int64_t a = 0; e->row_axes && a < 3; a++)
        e->row_axes[row][a] = !im       ? (int32_t)pos
                              : pos < n ? im->mrope[a * n + pos]
                                        : (int32_t)pos + im->delta;
    if (!im || pos >= n || im->feature[pos] < 0) return;
    im->is_needed = true;
    if (last && last->of == &im->features && last->first_token + last->num_tokens == row &&
        last->from + last->num_tokens == im->feature[pos]) {
        last->num_tokens++;
        return;
    }
    e->runs[e->num_runs++] = (cr_vision_run){&im->features, im->feature[pos], row, 1};
}

static cr_status compute(cr_engine *e, const cri_group *g, cr_err *err)
{
    cri_request_images *im = g->images;
    const cr_vision_input in = cr_seq_images_input(&e->model->config, &im->own.seq);
    cr_pass pass = {.state = e->parts[0].pass_state,
                    .dev = e->dev,
                    .dtype = e->dtype,
                    .scratch = e->parts[0].scratch,
                    .adapter = g->how.adapter};

    for (int64_t i = 0; i < cr_vision_num_features(e->model); i++)
        CR_TRY(cr_device_alloc(e->dev,
                               cr_vision_feature_bytes(e->model, e->dtype, im->features.num_tokens),
                               &im->features.rows[i], err));
    e->stats.num_towers++;
    return cr_vision_compute(e->model, &pass, &in, &im->features, err);
}

cr_status cri_images_compute(cr_engine *e, cr_err *err)
{
    for (cri_seq *s = e->num_runs ? e->running.first : NULL; s; s = s->next) {
        cri_request_images *im = s->group->images;
        if (!im || !im->is_needed) continue;
        im->is_needed = false;
        if (!im->features.rows[0]) CR_TRY(compute(e, s->group, err));
    }
    return CR_OK;
}

void cri_images_release(cr_engine *e, const cri_seq *s)
{
    cri_request_images *im = s->group->images;

    if (!im || !im->features.rows[0]) return;
    for (int64_t i = 0; i < cr_vision_num_features(e->model); i++) {
        cr_device_free(e->dev, im->features.rows[i],
                       cr_vision_feature_bytes(e->model, e->dtype, im->features.num_tokens));
        im->features.rows[i] = NULL;
    }
}
