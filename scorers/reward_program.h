/* reward_program.h -- the scoring program of a reward block: its words, its environment, its lines.
 *
 * A block with `exec` has a program of its own, which gets up to max_in_flight lines at once; the others
 * have `croll score`, one line at a time. Both read the lines that docs/rewards.md describes.
 */
#ifndef CR_REWARD_PROGRAM_H
#define CR_REWARD_PROGRAM_H

#include "configs/configs.h"
#include "scorers/scorer.h"

typedef struct cr_reward_program {
    cr_scorer_args args; /* what it points to is owned */
    char **words, **env, *text;
    char *self_path, *number; /* owned; NULL with exec */
    bool takes_ids;           /* of prompts and responses: exec, and a reward model */
} cr_reward_program;

/* config_path: the file that `croll score` reads again; limit_s <= 0: reward_timeout; number: of the worker, which
 * chooses among the judges that the run has started. */
CR_MUST cr_status cr_reward_program_open(const cr_config *config, const char *config_path,
                                         const cr_reward_config *reward, const char *exec,
                                         double limit_s, int number, cr_reward_program *out,
                                         cr_err *err);
void cr_reward_program_close(cr_reward_program *program);

/* One line of it: the columns of a row and of a sample. */
typedef struct cr_reward_line {
    const char *row, *id, *response, *finish;
    size_t row_bytes, response_bytes, num_ids, num_prompt_ids;
    const int32_t *ids, *prompt_ids; /* ids: of the response; NULL: not sent */
    int64_t step;
    bool is_validation, is_probe;
} cr_reward_line;
CR_MUST cr_status cr_reward_line_write(const cr_reward_line *line, cr_buf *out, cr_err *err);

/* Start the program and ask it one line: this row with an empty response. CR_ECONFIG: it cannot be
 * started, ends, is late or answers wrongly. */
CR_MUST cr_status cr_reward_program_check(const cr_config *config, const char *config_path,
                                          const cr_reward_config *reward, const char *row,
                                          cr_err *err);

#endif
