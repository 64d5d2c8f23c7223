/* checkpoint.h -- checkpoint-N of a run: complete or not there at all.
 *
 * Writers fill checkpoint-N.tmp; finishing it looks whether all is there that they say they have written, writes
 * manifest.json (every file with size and SHA-256; with checkpoint_config.hosts: each, also those on other hosts), syncs, renames it to checkpoint-N, moves the link `latest` and only then removes what is beyond
 * max_ckpt_to_keep. A reader never sees a partial one.
 */
#ifndef CR_CHECKPOINT_H
#define CR_CHECKPOINT_H

#include "base/digest.h"
#include "configs/configs.h"

/* The checkpoint that the run resumes, or NULL (owned by the caller), and the step that follows it.
 * CR_ECONFIG: it is asked for and is not there or not complete. */
CR_MUST cr_status cr_checkpoint_find(const cr_config *config, char **path, int64_t *first_step,
                                     cr_err *err);
/* An empty checkpoint-STEP.tmp with a folder `state`; owned by the caller. mark: what its writers look for in
 * it (actors/run_mark.h), or NULL. */
CR_MUST cr_status cr_checkpoint_begin(const char *output_dir, int64_t step, const char *mark,
                                      char **folder, cr_err *err);
/* Where a link such as `latest` leads, as other hosts call it, who do not have the link; else the path. Owned by the caller. */
char *cr_checkpoint_real(const char *path);
/* Steps of the checkpoints in a folder, in no order; owned by the caller. */
uint64_t *cr_checkpoint_steps(const char *output_dir, size_t *num);
/* The newest step before `before` whose checkpoint in a folder is complete; -1: none. */
int64_t cr_checkpoint_newest(const char *output_dir, int64_t before);
/* A name that a run gives in the folder of its saves: checkpoint-N, latest, best, and what they are called on their way. */
bool cr_checkpoint_is_name(const char *name);
/* Remove what a run that was killed left of saves that did not end. No other process may use the folder. */
void cr_checkpoint_clean(const char *output_dir);
/* Remove the oldest ones beyond `keep` (0: none), if the run resumes `latest`: room for the next one, where
 * a full disk has ended the run before. */
void cr_checkpoint_prune(const char *output_dir, const char *resumed, int64_t keep);
/* What ranks say that they have written: a file of the folder, and what it has to hold, or one on another host. */
typedef struct cr_written {
    char *name;                         /* below the folder; owned */
    int64_t num_bytes;                  /* 0: no such file */
    uint64_t sum;                       /* cr_sum_bytes, with hex "" */
    char hex[CR_DIGEST_TEXT], host[64]; /* SHA-256; host "": in the folder */
} cr_written;
/* keep: how many to keep, 0 all. The new one is kept, whatever its number. A checkpoint that lacks something of `written` never gets its
 * name: CR_EIO, if it has not come within lag_s (a network's file system may show what others wrote late). */
CR_MUST cr_status cr_checkpoint_finish(const char *output_dir, const char *folder, int64_t step,
                                       int64_t keep, const cr_written *written, size_t num_written,
                                       double lag_s, cr_err *err);
/* The link `name` (latest, or best, which is kept whatever `keep` says) leads to checkpoint-STEP. */
CR_MUST cr_status cr_checkpoint_link(const char *output_dir, const char *name, int64_t step,
                                     cr_err *err);
/* Check every file of a checkpoint against its manifest; parts on other hosts, if they are here, too. */
CR_MUST cr_status cr_checkpoint_verify(const char *path, cr_err *err);
/* The roles whose MODEL a checkpoint holds (folders with config.json, or of adapters), in order of their names: owned
 * by the caller. Returns their number. */
enum { CR_CHECKPOINT_MAX_ROLES = 16 };
size_t cr_checkpoint_roles(const char *path, char *roles[CR_CHECKPOINT_MAX_ROLES]);

#endif
