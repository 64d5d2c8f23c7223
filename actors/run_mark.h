/* run_mark.h -- do all hosts of a run see the same folders?
 *
 * Ranks write their shards of a checkpoint into one folder. If a host has a folder of its own in its place, the parts
 * of its ranks are missing in what the others wrote. So the launcher writes a mark, new each time, into output_dir and
 * the folder of checkpoints before it starts a rank, and every rank reads it back there before it does anything else.
 *
 * The file is FOLDER/.croll-run, "HOST:16 digits"; it goes with the run. One thread.
 */
#ifndef CR_RUN_MARK_H
#define CR_RUN_MARK_H

#include "base/base.h"

enum { CR_RUN_MARK = 96 };

/* A mark of this host that no other run has. */
void cr_run_mark_make(char mark[CR_RUN_MARK]);
CR_MUST cr_status cr_run_mark_write(const char *folder, const char *mark, cr_err *err);
/* Is it in the folder? Looked for a little while, where is_expected: a network's file system may show it late. */
bool cr_run_mark_is_in(const char *folder, const char *mark, bool is_expected);
/* CR_ECONFIG: the folder here is another one. key: which folder it is, for the message. */
CR_MUST cr_status cr_run_mark_check(const char *folder, const char *key, const char *mark,
                                    cr_err *err);
void cr_run_mark_remove(const char *folder);

/* File 0 to CR_WRITTEN_FILES - 1 of CR_FIELD_WRITTEN, below the checkpoint; owned by the caller. */
char *cr_written_name(const char *role, int file, bool has_adapters);

#endif
