/* state.c -- what a pass keeps between its forward and its backward: memory that grows and is used again, and
 * frames. */
#include "models/vision/vision_impl.h"

#include <string.h>

cr_pass_state *cr_pass_state_create(void)
{
    return CR_NEW(cr_pass_state);
}

void cr_pass_state_destroy(cr_pass_state *s)
{
    if (!s) return;
    cr_free(s->staging.data);
    cr_free(s->frames.data);
    cr_free(s->layers);
    cr_free(s->blocks);
    cr_free(s->head.own_rows);
    cr_free(s->head.labels);
    cr_free(s->images.placed);
    cr_free(s->routers.counts);
    cr_free(s->routers.places);
    cr_free(s->routers.picks);
    cr_free(s->routers.grad);
    if (s->patches) cri_patches_fini(s->patches);
    cr_free(s->patches);
    cr_free(s);
}

static void begin_routers(cri_routers *r, const cr_model_config *c)
{
    size_t num = (size_t)c->num_experts;

    r->rows = 0;
    if (num == 0) return;
    r->counts = cr_reserve(r->counts, &r->capacity_counts, 3 * num * (size_t)c->num_layers,
                           sizeof *r->counts);
    r->grad = cr_reserve(r->grad, &r->capacity_grad, num, sizeof *r->grad);
    r->picks = cr_reserve(r->picks, &r->capacity_picks, 2 * num, sizeof *r->picks);
    r->probs = r->picks + num;
    memset(r->picks, 0, 2 * num * sizeof *r->picks);
}

void cri_reset_pass(const cr_model *model, cr_pass *p)
{
    const cr_adapter_options *adapters = model->adapters;
    const cr_model_config *c = &model->config;
    cr_pass_state *s = p->state;

    CR_CHECK(s, "a pass needs a state");
    CR_CHECK(p->adapter <= CR_NO_ADAPTER + cr_max64(model->num_adapters, 1), "adapter %d of %d",
             p->adapter, model->num_adapters);
    CR_CHECK(p->adapter >= 0 || !adapters || !adapters->saved || adapters->keeps_originals,
             "adapters are off in a model that has not the originals of %s", adapters->saved);
    p->phase = CR_FORWARD;
    p->angles = NULL;
    p->patches = NULL;
    p->expert_rows = NULL;
    if (p->batch) p->num_rows = p->batch->num_tokens;
    s->is_kept = false;
    s->frames.num_bytes = 0;
    s->layers = cr_reserve(s->layers, &s->num_layers, (size_t)c->num_layers, sizeof *s->layers);
    if (c->vision)
        s->blocks =
            cr_reserve(s->blocks, &s->num_blocks, (size_t)c->vision->depth + 1, sizeof *s->blocks);
    begin_routers(&s->routers, c);
}

cr_status cr_pass_begin(const cr_model *model, cr_pass *p, cr_err *err)
{
    cri_reset_pass(model, p);
    p->state->head.num_rows = 0;
    return p->batch ? cri_upload_index(model, p, err) : CR_OK;
}

/* ---- frames ---- */

/* What lies after each frame. */
typedef struct trailer {
    const cr_module *module;
    size_t num_bytes;
} trailer;

void cri_frame_push(const cr_module *m, const cr_pass *p, const void *frame, size_t num_bytes)
{
    cri_frames *f = &p->state->frames;
    trailer end = {m, num_bytes};

    f->data =
        cr_reserve(f->data, &f->capacity, f->num_bytes + num_bytes + sizeof end, sizeof *f->data);
    memcpy(f->data + f->num_bytes, frame, num_bytes);
    memcpy(f->data + f->num_bytes + num_bytes, &end, sizeof end);
    f->num_bytes += num_bytes + sizeof end;
}

/* Of the frame that was pushed last, which is m's. */
static size_t take(const cr_module *m, cri_frames *f)
{
    trailer end;

    CR_CHECK(f->num_bytes > 0, "backward of %s without its forward", m->name);
    f->num_bytes -= sizeof end;
    memcpy(&end, f->data + f->num_bytes, sizeof end);
    CR_CHECK(end.module == m, "backward of %s, but %s ran forward last", m->name, end.module->name);
    f->num_bytes -= end.num_bytes;
    return end.num_bytes;
}

void cri_frame_pop(const cr_module *m, const cr_pass *p, void *frame, size_t num_bytes)
{
    cri_frames *f = &p->state->frames;
    size_t num = take(m, f);

    CR_CHECK(num == num_bytes, "a frame of %zu bytes of %s, not %zu", num, m->name, num_bytes);
    memcpy(frame, f->data + f->num_bytes, num_bytes);
}

void cri_frame_drop(const cr_module *m, const cr_pass *p)
{
    take(m, &p->state->frames);
}
