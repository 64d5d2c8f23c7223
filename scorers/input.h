/* input.h -- lines from a descriptor that come while other work is under way. One thread. */
#ifndef CR_INPUT_H
#define CR_INPUT_H

#include "base/base.h"

typedef struct cr_input { /* {.fd = ..} is one that has read nothing */
    int fd;
    cr_buf text;
    size_t at;
    bool has_ended;
} cr_input;

/* The next whole line, or at the end what is left, owned by the caller; NULL: none yet. Of a line of more than 64 MiB only
 * that comes, and it is the last: an input without an end is not read for ever. */
char *cr_input_next(cr_input *input, size_t *num_bytes);
void cr_input_read(cr_input *input); /* what there is; does not wait */
bool cr_input_is_over(const cr_input *input);
void cr_input_free(cr_input *input);

#endif
