/* track_program.h -- a program that gets every line of metrics.jsonl on its stdin (docs/metrics.md).
 *
 * It never holds up a run: what it does not read is kept, up to 4 MB, then lines are dropped and counted. If
 * it ends early that is said once, and the run goes on without it. At the end its stdin is closed, and it has
 * ten seconds to finish what it does.
 *
 * One thread. Owns the process.
 */
#ifndef CR_TRACK_PROGRAM_H
#define CR_TRACK_PROGRAM_H

#include "configs/configs.h"

typedef struct cr_track_program cr_track_program;

/* Starts config->track_program. Its environment has CROLL_EXP_NAME, CROLL_OUTPUT_DIR, CROLL_FIRST_STEP and
 * CROLL_TRACKER_KWARGS (a JSON object, secrets masked). CR_ECONFIG: it cannot be started. */
CR_MUST cr_status cr_track_program_open(const cr_config *config, const char *output_dir,
                                        int64_t first_step, cr_track_program **out, cr_err *err);
/* A line with its newline. */
void cr_track_program_add(cr_track_program *p, const char *line, size_t num_bytes);
void cr_track_program_close(cr_track_program *p); /* accepts NULL */

#endif
