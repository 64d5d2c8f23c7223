/* checkpoint.h -- a role's part of a checkpoint, written and read by its ranks (pipelines/checkpoint.h has the whole).
 *
 * "Collective" is over the ranks of the mesh. One thread.
 */
#ifndef CR_ROLE_CHECKPOINT_H
#define CR_ROLE_CHECKPOINT_H

#include "base/digest.h"
#include "strategies/strategies.h"

/* Whose folder a save goes to, where ranks are on several hosts. */
typedef enum cr_save_kind {
    CR_SAVE_SHARED,   /* all of them have the run's */
    CR_SAVE_GATHERED, /* ranks that do not have it send their parts to one that has */
    CR_SAVE_EACH      /* every rank writes a part of its own (saved.h), on its host */
} cr_save_kind;

typedef struct cr_save_args {
    const char *folder, *role,
        *model_source; /* source: where config.json and the tokenizer's files are copied from */
    bool save_only_model;
    cr_save_kind kind;
    bool is_here, was_here; /* folder is the run's, on this host; it was when the run began */
    const char *tag;        /* CR_SAVE_EACH: a name of this save in the names of the parts */
} cr_save_args;

/* master, m, v, MODEL's model.safetensors or adapter_model.safetensors */
enum { CR_SAVED_FILES = 4 };
/* FOLDER/state/ROLE.master, .. ; has_adapters: adapters alone are trained. Owned by the caller. */
char *cr_saved_path(const char *folder, const char *role, int file, bool has_adapters);

/* What a rank has written: what the commit of a checkpoint looks for. */
typedef struct cr_saved {
    int64_t num_bytes
        [CR_SAVED_FILES]; /* of the whole files, from the first rank that has the folder; 0: not written */
    uint64_t sums[CR_SAVED_FILES]; /* cr_sum_bytes of this rank's part: they add up to the files' */
    /* CR_SAVE_EACH: name in state/ and SHA-256 of its file; "": none */
    char shard[160], shard_hex[CR_DIGEST_TEXT];
    int64_t shard_bytes;
} cr_saved;

/* Write this rank's part: FOLDER/<role>/ (MODEL in param_dtype; of a model with adapters PEFT's folder of them, in float32) and FOLDER/state/<role>.* (masters
 * and moments by parameter name, readable by any world). Returns once this rank's masters and moments are copied or sent, and with
 * CR_SAVE_GATHERED the parts of other hosts have come; a thread writes
 * the rest while training goes on. One save at a time: the next one first waits for the last. Collective. */
CR_MUST cr_status cr_fsdp_save_start(cr_fsdp *f, const cr_save_args *args, cr_err *err);
bool cr_fsdp_is_saving(const cr_fsdp *f); /* this rank's thread still writes */
/* All bytes of all ranks are on disk, or why not. out: may be NULL. Collective. */
CR_MUST cr_status cr_fsdp_save_wait(cr_fsdp *f, cr_saved *out, cr_err *err);
/* On a host that does not have the run's folder: parts in checkpoint-N of output_dir whose N is none of kept[num] are
 * removed, and folders that are empty then; nothing else. Local. */
void cr_saved_forget(const char *output_dir, const char *role, const uint64_t *kept, size_t num);
/* Read masters, moments and the update count back; any mesh. is_here: folder is the checkpoint, on this host; what
 * other ranks need is sent to them. Parts of CR_SAVE_EACH are looked for in it on every host. Collective. */
CR_MUST cr_status cr_fsdp_resume(cr_fsdp *f, const char *folder, const char *role, bool is_here,
                                 cr_err *err);
/* A checkpoint whose MODEL is in parts (CR_SAVE_EACH): put together in the file `to`. *is_parted: false, it is not.
 * CR_EFORMAT: a part is missing, with its host. Local. */
CR_MUST cr_status cr_saved_join_model(const char *folder, const char *role, const char *to,
                                      bool *is_parted, cr_err *err);

#endif
