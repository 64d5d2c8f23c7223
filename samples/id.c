/* id.c -- see id.h. */
#include "samples/id.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_BITS = 16, DRAW_BITS = 24, STEP_BITS = 23, STEP_AT = INDEX_BITS + DRAW_BITS };

uint64_t cr_sample_id_make(cr_sample_id id)
{
    return (uint64_t)id.is_validation << 63 | (uint64_t)id.step << STEP_AT |
           (uint64_t)id.draw << INDEX_BITS | id.index;
}

cr_sample_id cr_sample_id_parse(uint64_t id)
{
    return (cr_sample_id){.step = (int64_t)(id >> STEP_AT & ((1u << STEP_BITS) - 1)),
                          .draw = id >> INDEX_BITS & ((1u << DRAW_BITS) - 1),
                          .index = id & ((1u << INDEX_BITS) - 1),
                          .is_validation = id >> 63 != 0};
}

cr_sample_id cr_sample_id_read(const char *name)
{
    char *end;
    cr_sample_id id = cr_sample_id_parse(strtoull(name, &end, 16));

    return end - name == 16 ? id : (cr_sample_id){0};
}

double cr_sample_id_in_step(uint64_t id)
{
    return (double)(id & (((uint64_t)1 << STEP_AT) - 1));
}

bool cr_sample_id_of_step(int64_t step, double number, uint64_t *id)
{
    if (!(number >= 0 && number < (double)((uint64_t)1 << STEP_AT)) || step < 0 ||
        step >> STEP_BITS)
        return false;
    *id = (uint64_t)step << STEP_AT | (uint64_t)number;
    return true;
}

void cr_sample_name(uint64_t id, size_t k, bool is_second, char out[CR_SAMPLE_NAME])
{
    char place[24] = "";

    if (k > 0) snprintf(place, sizeof place, "-%zu", k);
    snprintf(out, CR_SAMPLE_NAME, "%016llx%s%s", (unsigned long long)id, place,
             is_second ? ".1" : "");
}

bool cr_sample_name_read(const char *name, uint64_t *id, size_t *k, bool *is_second)
{
    char *end, again[CR_SAMPLE_NAME];

    *id = strtoull(name, &end, 16);
    *k = *end == '-' ? (size_t)strtoull(end + 1, &end, 10) : 0;
    *is_second = strcmp(end, ".1") == 0;
    cr_sample_name(*id, *k, *is_second, again);
    return strcmp(name, again) == 0;
}
