/* lanes.c -- a forward pass cut between sequences, each part whole on one thread (see fsdp_impl.h). */
#include "kernels/lanes.h"
#include "strategies/lanes.h"

/* Whole sequences of PART_ROWS rows or more are a part, and what is left at the end: its activations stay in a core's own cache,
 * and products are still wide. */
enum { PART_ROWS = 512, MAX_WEIGHT_BYTES = 8 << 20 };
/* Tokens times parameters that one thread computes in a millisecond: waking a second one for each kernel costs more
 * than it saves. */
enum { SHORT_PASS = 50000000 };

typedef struct part {
    int64_t seq, num_seqs, token, row; /* row: of the outputs */
} part;

typedef struct lane {
    cr_pass_state *pass_state;
    cr_stack *scratch;
    int32_t *cu_seqlens;
    size_t capacity;
} lane;

struct cri_lanes {
    cr_lanes *threads;
    lane *of; /* [num] */
    int num;
    int64_t num_elems; /* of the model */
    bool is_small;     /* the weights stay in each core's caches */
    part *parts;
    size_t num_parts, capacity;
    /* of the pass under way */
    const cr_model *model;
    const cr_pass *pass;
    const cr_outputs *out;
};

cri_lanes *cri_lanes_create(const cr_fsdp *f)
{
    cri_lanes *l = CR_NEW(cri_lanes);

    for (size_t i = 0; i < f->model->num_params; i++)
        l->num_elems += f->model->params[i]->num_elems;
    l->is_small = (size_t)l->num_elems * cr_dtype_bytes(f->args.param_dtype) <= MAX_WEIGHT_BYTES;
    l->threads = cr_lanes_create(f->dev);
    l->num = cr_lanes_num(l->threads);
    l->of = CR_NEW_ARRAY(lane, l->num);
    for (int i = 0; i < l->num; i++) {
        l->of[i].pass_state = cr_pass_state_create();
        l->of[i].scratch = cr_stack_create(cr_lanes_device(l->threads, i));
    }
    return l;
}

void cri_lanes_destroy(cri_lanes *l)
{
    if (!l) return;
    for (int i = 0; i < l->num; i++) {
        cr_pass_state_destroy(l->of[i].pass_state);
        cr_stack_destroy(l->of[i].scratch);
        cr_free(l->of[i].cu_seqlens);
    }
    cr_lanes_destroy(l->threads);
    cr_free(l->of);
    cr_free(l->parts);
    cr_free(l);
}

int64_t cri_lanes_bytes(const cri_lanes *l)
{
    int64_t bytes = 0;

    for (int i = 0; l && i < l->num; i++)
        bytes += (int64_t)cr_stack_peak_bytes(l->of[i].scratch);
    return bytes;
}

bool cri_lanes_cut(cri_lanes *l, const cr_batch *b)
{
    bool has_lists = b->processors && (b->processors->kept_first || b->processors->seen_list);
    int64_t row = 0;
    part now = {0};

    if (l->num < 2 || !l->is_small || b->vision || b->mrope || has_lists) return false;
    l->num_parts = 0;
    for (int64_t s = 0; s < b->num_seqs; s++) {
        if (b->cu_seqlens[s + 1] < b->cu_seqlens[s]) return false; /* an ordinary pass says so */
        now.num_seqs++;
        for (int64_t t = b->cu_seqlens[s]; t < b->cu_seqlens[s + 1]; t++)
            row += b->labels && b->labels[t] >= 0;
        if (s + 1 < b->num_seqs && b->cu_seqlens[s + 1] - now.token < PART_ROWS) continue;
        l->parts = cr_grow(l->parts, l->num_parts, &l->capacity, sizeof *l->parts);
        l->parts[l->num_parts++] = now;
        now = (part){s + 1, 0, b->cu_seqlens[s + 1], row};
    }
    return l->num_parts >= (size_t)l->num || b->num_tokens * l->num_elems < SHORT_PASS;
}

static cr_status run_part(void *ctx, size_t at, int lane_at, cr_device *dev, cr_err *err)
{
    const cri_lanes *l = ctx;
    const part *x = &l->parts[at];
    lane *own = &l->of[lane_at];
    const cr_batch *all = l->pass->batch;
    cr_outputs out = cri_outputs_from(l->out, x->row);
    cr_batch batch = {.ids = all->ids + x->token,
                      .positions = all->positions + x->token,
                      .labels = all->labels ? all->labels + x->token : NULL,
                      .num_tokens = all->cu_seqlens[x->seq + x->num_seqs] - x->token,
                      .num_seqs = x->num_seqs};
    cr_row_processors processors;
    cr_pass pass = *l->pass;

    own->cu_seqlens = cr_reserve(own->cu_seqlens, &own->capacity, (size_t)x->num_seqs + 1,
                                 sizeof *own->cu_seqlens);
    for (int64_t s = 0; s <= x->num_seqs; s++)
        own->cu_seqlens[s] = all->cu_seqlens[x->seq + s] - (int32_t)x->token;
    batch.cu_seqlens = own->cu_seqlens;
    if (all->processors) {
        processors = *all->processors;
        if (processors.temperatures) processors.temperatures += x->row;
        batch.processors = &processors;
    }
    pass.state = own->pass_state;
    pass.dev = dev;
    pass.scratch = own->scratch;
    pass.batch = &batch;
    pass.hooks = NULL;
    if (cr_model_forward(l->model, &pass, &out, err) != CR_OK)
        return cr_fail_add(err, "the tokens from %lld on", (long long)x->token);
    return CR_OK;
}

cr_status cri_lanes_forward(cri_lanes *l, const cr_model *model, const cr_pass *pass,
                            const cr_outputs *out, cr_err *err)
{
    l->model = model;
    l->pass = pass;
    l->out = out;
    return cr_lanes_each(l->threads, l->num_parts, run_part, l, err);
}
