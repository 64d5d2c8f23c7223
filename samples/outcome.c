/* outcome.c -- see outcome.h. */
#include "samples/outcome.h"

#include <string.h>

static const char *const names[CR_NUM_OUTCOMES] = {"", "ok", "abstain", "timeout", "error"};

const char *cr_outcome_name(cr_outcome outcome)
{
    return names[outcome];
}

cr_outcome cr_outcome_find(const char *text)
{
    for (int i = CR_OUTCOME_OK; text && i < CR_NUM_OUTCOMES; i++)
        if (strcmp(names[i], text) == 0) return (cr_outcome)i;
    return CR_OUTCOME_NONE;
}
