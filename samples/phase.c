/* phase.c -- see phase.h. */
#include "samples/phase.h"

const char *const cr_phase_seconds[CR_PHASE_PARTS] = {"total", "onload", "execute", "offload"};
const char *const cr_phase_bytes[CR_PHASE_PARTS] = {"start/offload", "start/onload", "end/onload",
                                                    "end/offload"};

void cr_phase_write(const cr_phase_cycle *p, cr_record *reply)
{
    double end = cr_now_s(), spent[CR_PHASE_PARTS] = {end - p->began_s, p->loaded_s - p->began_s,
                                                      p->done_s - p->loaded_s, end - p->done_s};

    for (int i = 0; i < CR_PHASE_PARTS; i++) {
        cr_record_set_real(reply, cr_phase_seconds[i], spent[i]);
        cr_record_set_int(reply, cr_phase_bytes[i], p->bytes[i]);
    }
}

bool cr_phase_read(const cr_record *reply, double seconds[CR_PHASE_PARTS],
                   int64_t bytes[CR_PHASE_PARTS])
{
    cr_err absent = {0};

    for (int i = 0; i < CR_PHASE_PARTS; i++)
        if (!cr_record_has_value(reply, cr_phase_seconds[i]) ||
            cr_record_get_real(reply, cr_phase_seconds[i], &seconds[i], &absent) != CR_OK ||
            cr_record_get_int(reply, cr_phase_bytes[i], &bytes[i], &absent) != CR_OK)
            return false;
    return true;
}
