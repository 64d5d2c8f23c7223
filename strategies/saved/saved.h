/* saved.h -- a role's files in a checkpoint (strategies/ only): what save.c writes and resume.c reads.
 *
 *     ROLE/model.safetensors          MODEL in param_dtype, beside config.json and the tokenizer's files
 *         or adapter_model.safetensors, beside adapter_config.json: adapters alone are trained, and the base is not written
 *     state/ROLE.master, .m, .v       raw float32, every trained parameter at the place that
 *     state/ROLE.json                 names: the files know nothing of ranks
 *
 * Where each host keeps its own part (CR_SAVE_EACH) there are, instead of these four, the files state/ROLE.rank-NN.TAG.shard
 * (records.h) of the ranks; ROLE.json names all of them with their hosts.
 */
#ifndef CR_SAVED_H
#define CR_SAVED_H

#include "base/json.h"
#include "strategies/fsdp_impl.h"
#include "strategies/saved/records.h"

enum cri_file { CRI_FILE_MASTER, CRI_FILE_M, CRI_FILE_V, CRI_FILE_MODEL, CRI_NUM_STATES = 3 };
_Static_assert(CRI_FILE_MODEL + 1 == CR_SAVED_FILES, "records.h and cr_saved count them");

static inline cr_mem *cri_state_of(const cr_fsdp *f, size_t file)
{
    return file == CRI_FILE_MASTER ? f->master : file == CRI_FILE_M ? f->m : f->v;
}

/* ---- resume.c ---- */

/* FOLDER/state/ROLE.json; owned by the caller. */
char *cri_index_path(const char *folder, const char *role);
/* ROLE.json, less its shards. Owned by the caller. */
json_t *cri_state_index(const cr_fsdp *f);
/* Where the elements of each trained parameter are in the file of a state. params: of ROLE.json, named path. CR_EFORMAT if it does not
 * know a parameter. */
CR_MUST cr_status cri_map_states(const cr_model *model, const json_t *params, const char *path,
                                 cr_weight_map *out, cr_err *err);

/* ---- saved_model.c ---- */

/* Where each parameter is in model.safetensors, or its tensor begins (cr_stacked); the header is the same on every rank. */
typedef struct cri_model_plan {
    cr_weight_map map;
    cr_buf header; /* length and JSON */
    int64_t num_bytes;
} cri_model_plan;
void cri_model_plan_make(const cr_fsdp *f, cri_model_plan *p);
void cri_model_plan_free(cri_model_plan *p);
/* dtype of a parameter in MODEL. */
cr_dtype cri_model_dtype(const cr_fsdp *f, const cr_param *param);
/* Of a model with adapters, f->base: dtype and sum of the base, which a checkpoint does not have, however it is cut.
 * Collective. */
CR_MUST cr_status cri_base_text(cr_fsdp *f, cr_err *err);
/* config.json, tokenizer files, templates: everything but weights. Of a model with adapters instead of its config theirs, whose
 * base is `from`; of one with a value head that of Transformers' ForTokenClassification. */
CR_MUST cr_status cri_model_copy_files(const char *from, const char *to, cr_dtype dtype,
                                       const cr_model *model, cr_err *err);

/* ---- save.c ---- */

CR_MUST cr_status cri_transfer_bytes(int fd, bool is_write, void *data, size_t num_bytes,
                                     int64_t at, const char *what, cr_err *err);

/* ---- streams of records from one rank to another, or to all: parts.c ----
 *
 * In blocks of CRI_RECORD_BYTES, one after the other, so that a rank holds one at a time, however large a checkpoint is.
 * Everything is collective over the ranks of the mesh, and goes through a group of its own, which moves host memory. */

enum { CRI_TO_ALL = -1 };

typedef struct cri_saved_parts {
    const char *name;
    int from, to; /* ranks of the mesh; to: or CRI_TO_ALL */
    /* Called on `from`: put everything into r. */
    cr_status (*produce)(void *ctx, cri_records *r, cr_err *err);
    void *ctx;
    cri_record_reader
        *reader; /* of a rank that takes it, `from` too with CRI_TO_ALL; NULL elsewhere */
} cri_saved_parts;

/* A failure of any rank is CR_EPEER on the others. */
CR_MUST cr_status cri_parts_move(cr_fsdp *f, const cri_saved_parts *s, cr_err *err);

/* What each rank of the mesh has in `mine`, in rank order: out[num_ranks * num_bytes]. */
CR_MUST cr_status cri_tell_all(cr_fsdp *f, const char *name, const void *mine, size_t num_bytes,
                               void *out, cr_err *err);

#endif
