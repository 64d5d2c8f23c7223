/* id.h -- the id of a sample: it keys the random numbers of its generation, names it in every file and on every
 * stream, and makes retries harmless. Pure functions.
 *
 * 64 bits: bit 63 is set in validation, then step (23 bits), draw (24 bits: the number of its group in the step) and
 * index (16 bits: its place in the group). In files an id is 16 hexadecimal digits.
 */
#ifndef CR_SAMPLE_ID_H
#define CR_SAMPLE_ID_H

#include "base/base.h"

typedef struct cr_sample_id {
    int64_t step;         /* below 2^23 */
    uint32_t draw, index; /* below 2^24 and 2^16 */
    bool is_validation;
} cr_sample_id;

enum { CR_SAMPLE_ID_DRAWS = 1 << 24 };

uint64_t cr_sample_id_make(cr_sample_id id);
cr_sample_id cr_sample_id_parse(uint64_t id);
/* The id that a name begins with; {0} for any other text. */
cr_sample_id cr_sample_id_read(const char *name);
/* draw and index as one number, which a metric (a double) holds exactly; and the id of it in a step. */
double cr_sample_id_in_step(uint64_t id);
/* False: no sample has this number in this step. */
bool cr_sample_id_of_step(int64_t step, double number, uint64_t *id);

/* The name of the entry of a sample's reward number k: "ID", from the second reward on "ID-K"; asked again, it ends
 * with ".1". */
enum { CR_SAMPLE_NAME = 48 };
void cr_sample_name(uint64_t id, size_t k, bool is_second, char out[CR_SAMPLE_NAME]);
/* Any text; false: it is no such name. */
bool cr_sample_name_read(const char *name, uint64_t *id, size_t *k, bool *is_second);

#endif
