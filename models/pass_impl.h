/* pass_impl.h -- shared inside models/: what modules use while a pass runs. */
#ifndef CR_PASS_IMPL_H
#define CR_PASS_IMPL_H

#include "kernels/attention.h"
#include "kernels/experts.h"
#include "models/dispatch.h"
#include "models/models_impl.h"
#include "models/pass.h"

/* What modules' forwards left for their backwards. Frames are a stack like the tape: pushed at the end of a forward, popped at
 * the start of the backward, each a struct of the module's own; on the host. */
typedef struct cri_frames {
    char *data;
    size_t num_bytes, capacity;
} cri_frames;
void cri_frame_push(const cr_module *m, const cr_pass *p, const void *frame, size_t num_bytes);
void cri_frame_pop(const cr_module *m, const cr_pass *p, void *frame, size_t num_bytes);
void cri_frame_drop(const cr_module *m, const cr_pass *p); /* its backward is not wanted */

/* A decoder layer or a block of a tower: its input, and the tape before it. */
typedef struct cri_stage {
    cr_mem *in;
    size_t mark;
} cri_stage;

/* Rows of the last norm and the head. */
typedef struct cri_head {
    int64_t num_rows;
    const int32_t *rows;        /* [num_rows] of the batch: those with labels, or the chosen ones */
    int32_t *own_rows, *labels; /* [num_rows] rows, if they are those with labels */
    size_t capacity_rows, capacity_labels;
    cr_mem *in; /* [num_rows, h] input of the last norm, gathered */
    cr_mem *rstd, *lse, *mean_z;
} cri_head;

/* Tokens that take the tower's features, and those (on scratch). */
typedef struct cri_images {
    int32_t *placed; /* [num_placed] */
    size_t capacity_placed;
    cr_mem *index;                    /* the same, on the device */
    int64_t num_placed, first_placed; /* the feature that the first of them takes */
    cr_mem *features, *deepstack[CR_MAX_DEEPSTACK];
} cri_images;

/* Of blocks of experts: rows of each, and what the auxiliary loss is made of, all layers together. */
typedef struct cri_routers {
    int64_t *counts; /* [num_layers, 3, E] see cri_routing */
    int32_t *places; /* host copy of the last cri_routing.place */
    size_t capacity_counts, capacity_places, capacity_picks, capacity_grad;
    int64_t rows;
    double *picks, *probs; /* [E] */
    float *grad;           /* [E] */
} cri_routers;

/* Arrays that go to the device in one piece, and where its pointers go. */
typedef struct cri_staging {
    char *data;
    cr_mem *all; /* on the device */
    size_t num_bytes, capacity;
    int num;
    struct {
        const cr_mem **to;
        size_t at;
    } item[24];
} cri_staging;

struct cr_pass_state {
    cri_staging staging;
    bool is_kept;   /* a forward with a tape waits for its backward */
    int64_t lowest; /* first stage with a trainable parameter, see decoder.c */
    size_t start;   /* the tape before the pass */
    cri_frames frames;
    cri_stage *layers, *blocks; /* of the decoder; of the vision tower, and its last output */
    size_t num_layers, num_blocks;
    cri_head head;
    cri_images images;
    struct cr_patches *patches; /* the tower's rows; NULL: it has not run */
    cri_routers routers;
};

/* cr_pass_begin, but for the arrays of the batch. */
void cri_reset_pass(const cr_model *model, cr_pass *p);
/* index.c: the arrays of the batch and of the head's rows go to the device. */
CR_MUST cr_status cri_upload_index(const cr_model *model, cr_pass *p, cr_err *err);
cr_seq_sizes cri_seq_sizes(const int32_t *cu_seqlens, int64_t num_seqs, bool is_bidirectional);

static inline cr_status cri_enter(const cr_module *m, cr_pass *p, cr_err *err)
{
    return p->hooks ? p->hooks->before(p->hooks->ctx, m, p->phase, err) : CR_OK;
}
static inline cr_status cri_leave(const cr_module *m, cr_pass *p, cr_err *err)
{
    return p->hooks ? p->hooks->after(p->hooks->ctx, m, p->phase, err) : CR_OK;
}
/* Where gradients of a parameter go: NULL if it is frozen. */
static inline cr_mem *cri_grad(const cr_param *param)
{
    return cri_own(param)->is_trainable ? cri_own(param)->grad : NULL;
}
/* What a module keeps goes on the tape; without one it lives until the caller releases scratch. */
static inline cr_stack *cri_keep(const cr_pass *p)
{
    return p->tape ? p->tape : p->scratch;
}
/* [num_rows, num_cols] in the dtype of the pass. */
static inline cr_status cri_push(cr_stack *stack, const cr_pass *p, int64_t num_rows,
                                 int64_t num_cols, cr_mem **out, cr_err *err)
{
    return cr_stack_push(stack, (size_t)(num_rows * num_cols) * cr_dtype_bytes(p->dtype), out, err);
}
/* Linear: y = add + x W^T + b on T rows, between its hooks. */
CR_MUST cr_status cri_linear(const cr_module *m, cr_pass *p, const cr_mem *x, const cr_mem *add,
                             cr_mem *y, cr_err *err);
/* y[i] = x W_i^T + b_i of num of them, at most CR_LINEARS, of the same rows. */
CR_MUST cr_status cri_linears(const cr_module *const *m, int num, cr_pass *p, const cr_mem *x,
                              cr_mem *const *y, cr_err *err);
typedef enum cri_dx { CRI_DX_SET, CRI_DX_ADD } cri_dx;
/* dx may be NULL; frozen parameters get nothing. */
CR_MUST cr_status cri_linear_back(const cr_module *m, cr_pass *p, const cr_mem *x, const cr_mem *dy,
                                  cr_mem *dx, cri_dx how, cr_err *err);
/* RMSNorm, or LayerNorm if it has a bias, over num_rows rows of the weight's length, without hooks. Its
 * impl is its eps (a float), or NULL: rms_norm_eps. rstd [num_rows] is for the backward, and has the means
 * of a LayerNorm after it: cri_norm_floats in all. */
CR_MUST cr_status cri_norm(const cr_module *m, cr_pass *p, const cr_mem *x, int64_t num_rows,
                           const cr_mem *add, cr_mem *y, cr_mem *rstd, cr_err *err);
CR_MUST cr_status cri_norm_back(const cr_module *m, cr_pass *p, const cr_mem *x, const cr_mem *rstd,
                                const cr_mem *dy, int64_t num_rows, cr_mem *dx, cri_dx how,
                                cr_err *err);
static inline int64_t cri_norm_floats(const cr_module *m, int64_t num_rows)
{
    return (m->bias ? 2 : 1) * num_rows;
}

/* inject.c: features of images in the stream of the decoder. All do nothing in a batch without images. */
CR_MUST cr_status cri_check_images(const cr_model *model, const cr_pass *p, cr_err *err);
/* Does the tower have a backward in this pass? */
bool cri_is_tower_back(const cr_model *model, const cr_pass *p);
/* Was this token's embedding replaced in the forward? */
bool cri_is_placed(const cr_pass *p, int64_t token);
/* Before the embedding; after it; after layer `at`. x: the stream. */
CR_MUST cr_status cri_run_tower(const cr_model *model, cr_pass *p, cr_err *err);
CR_MUST cr_status cri_place_features(const cr_model *model, cr_pass *p, cr_mem *x, cr_err *err);
CR_MUST cr_status cri_add_features(const cr_model *model, cr_pass *p, int64_t at, cr_mem *x,
                                   cr_err *err);
/* Backward of the last two, from the gradient of the stream there; then of the tower. */
CR_MUST cr_status cri_reserve_features(const cr_model *model, cr_pass *p, cr_err *err);
CR_MUST cr_status cri_back_features(const cr_model *model, cr_pass *p, int64_t at,
                                    const cr_mem *grad, cr_err *err);
CR_MUST cr_status cri_back_tower(const cr_model *model, cr_pass *p, cr_err *err);

/* positions.c: [T, head_dim / 2] from batch->mrope, host to host. */
void cri_rope_angles(const cr_model_config *c, const cr_batch *b, float *angles);

/* Rows of one call of a block of experts, in the memory that keeps them (cri_keep): by token and by slot
 * (kernels/experts.h), and those here by expert, which are the slots unless the pass has a dispatch. */
typedef struct cri_routing {
    cr_mem *prob, *weight;         /* float32 */
    cr_mem *expert, *slot, *token; /* int32 */
    cr_mem *place; /* int32 [num_here] of a row that was received, by expert; NULL: no dispatch */
    int64_t num_tokens, top_k, num_slots, num_experts, cols, num_here;
    /* host [E]: rows of this rank's tokens for each expert, rows received from each rank (dispatch.h),
     * rows that each expert runs here */
    int64_t *count, *recv_counts, *here;
} cri_routing;

/* Of an expert's rows in backward: the factor of each one's output, and where its gradient goes. */
typedef struct cr_expert_rows {
    const cr_mem *weight; /* float32 */
    cr_mem *grad;         /* NULL: not wanted */
} cr_expert_rows;

/* Experts that run as one module, the first of them, over all their rows: num_rows of the pass. Their products are one operation
 * (cr_expert_linear). An expert that runs alone is a group of one, so that its products are the same. */
typedef struct cr_pass_group {
    cr_module *const *experts; /* [num] */
    const int64_t *rows;       /* [num] of each, in this order; of a group of one it is not read */
    int64_t num;
} cr_pass_group;
/* Expert e of the pass's group: idle ones may be left out. */
static inline bool cri_is_run(const cr_model *model, const cr_pass *p, int64_t e)
{
    return p->group->num == 1 || p->group->rows[e] > 0 || !model->skips_idle_experts;
}

/* Float32 or int32. */
CR_MUST cr_status cri_push_numbers(cr_stack *stack, int64_t num, cr_mem **out, cr_err *err);
/* dispatch.c, for a pass with a dispatch. Rows have num_cols elements.
 * Counts are exchanged: r->here and r->num_here; place is written if it is wanted. */
void cri_count_here(const cr_pass *p, cri_routing *r);
CR_MUST cr_status cri_exchange_counts(const cr_module *m, cr_pass *p, cri_routing *r, cr_err *err);
/* From rows by slot to rows here by expert, and back. */
CR_MUST cr_status cri_dispatch_rows(const cr_module *m, cr_pass *p, const cri_routing *r,
                                    cr_dtype dtype, int64_t num_cols, const cr_mem *slots,
                                    cr_mem *here, cr_err *err);
CR_MUST cr_status cri_combine_rows(const cr_module *m, cr_pass *p, const cri_routing *r,
                                   cr_dtype dtype, int64_t num_cols, const cr_mem *here,
                                   cr_mem *slots, cr_err *err);

#endif
