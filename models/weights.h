/* weights.h -- where the values of parameters come from: a checkpoint, or random numbers.
 *
 * Both are functions of (parameter, range of elements), so whoever owns a shard fills exactly its
 * own elements: no rank ever holds a full tensor, and every way of sharding gives the same values.
 *
 *     cr_weights_read   elements [begin, end) of a parameter of a checkpoint, as float32
 *     cr_param_init     the same of random weights keyed by (seed, parameter name, element)
 *     cr_full_weights   the simple owner: all parameters unsharded in one buffer of one device
 *
 * A checkpoint is matched against the model when it is opened: a name that is missing, unexpected or
 * has another shape is an error that lists the names. A stored lm_head that the model has
 * not as a parameter of its own and `rotary_emb.inv_freq` are left alone; experts may come one by one or stacked as Transformers 5 keeps
 * them, and transposed for qwen3_vl_moe; F32, F16 and BF16 are converted.
 *
 * Ownership: cr_weights keeps the files mapped until it is closed; the model is borrowed until then.
 * Threads: reads of one cr_weights may run in parallel.
 */
#ifndef CR_WEIGHTS_H
#define CR_WEIGHTS_H

#include "models/models.h"

/* ---- a checkpoint ---- */

typedef struct cr_weights cr_weights;

/* name: a MODEL in Hugging Face layout, one file or shards with an index (base/hub.h). A and B of adapters come from
 * the adapter's folder, if the model was built with one. */
CR_MUST cr_status cr_weights_open(const char *name, const cr_model *model, cr_weights **out,
                                  cr_err *err);
void cr_weights_close(cr_weights *weights); /* accepts NULL */
/* Elements [begin, end) of param (row-major, a tied one reads the tensor it is tied to). */
CR_MUST cr_status cr_weights_read(const cr_weights *weights, const cr_param *param, int64_t begin,
                                  int64_t end, float *out, cr_err *err);

/* ---- tensors of several parameters ---- */

/* Files of qwen3_vl_moe have the experts of a layer in two tensors, transposed: gate_up_proj [E, h, 2 m],
 * gate beside up, and down_proj [E, m, h]. PEFT's have A of all experts below each other, and of B the columns of a rank of all
 * experts beside each other. Element (row, col) of the parameter is element first + row * row_step + col * col_step there. */
typedef struct cr_stacked {
    const char *tensor;
    int num_dims;
    int64_t shape[3], first, row_step, col_step;
} cr_stacked;

/* Elements of such a parameter, `step` apart, that lie together in the tensor: of a column, of a row, or one alone. */
typedef struct cr_column {
    int64_t elem, step; /* the first one, of the parameter */
    int64_t at, num;    /* in the tensor */
} cr_column;
int64_t cr_stacked_num_columns(const cr_param *param);
/* Those among elements [begin, end) that are of one of them; num may be 0. */
cr_column cr_stacked_column(const cr_param *param, int64_t begin, int64_t end, int64_t index);

/* ---- random weights ---- */

/* As Transformers: normal(0, initializer_range) for matrices, the embedding's pad row zero, biases
 * zero, norms one, A of an adapter uniform within 1 / sqrt(in), B zero. Element e depends on (seed, param->name, e) only. */
void cr_param_init(const cr_model *model, const cr_param *param, uint64_t seed, int64_t begin,
                   int64_t end, float *out);

/* From the checkpoint; what it lacks (cr_param.is_added), or everything if it is NULL, as cr_param_init. */
CR_MUST cr_status cr_weights_fill(const cr_weights *weights, const cr_model *model,
                                  const cr_param *param, uint64_t seed, int64_t begin, int64_t end,
                                  float *out, cr_err *err);

/* ---- all parameters in one buffer of a device ---- */

typedef struct cr_full_weights {
    cr_device *dev; /* borrowed */
    cr_mem *data;   /* owned: weights in `dtype`, each aligned to 64 bytes */
    cr_mem *grad;   /* owned: float32 gradients, each aligned to 64 bytes; NULL until asked for */
    size_t data_bytes, grad_bytes;
} cr_full_weights;

/* Allocate and fill from `source`, or with random weights of `seed` if source is NULL, and point
 * param->weight of every parameter there. Does not pack. On failure nothing is held.
 * CR_EFORMAT: a number that is not finite in dtype; the tensor is named. */
CR_MUST cr_status cr_full_weights_init(cr_full_weights *full, cr_model *model, cr_device *dev,
                                       cr_dtype dtype, const cr_weights *source, uint64_t seed,
                                       cr_err *err);
/* Open folder, fill, close. */
CR_MUST cr_status cr_full_weights_load(cr_full_weights *full, cr_model *model, cr_device *dev,
                                       cr_dtype dtype, const char *folder, cr_err *err);
/* Allocate zeroed gradients and point param->grad of every trainable parameter there. */
CR_MUST cr_status cr_full_weights_add_grads(cr_full_weights *full, cr_model *model, cr_err *err);
void cr_full_weights_fini(cr_full_weights *full); /* {0} is fine */

#endif
