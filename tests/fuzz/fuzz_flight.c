/* fuzz_flight.c -- a flight recorder's file may be cut short or damaged by the death it records. */
#include "mesh/flight.h"

#include <stdio.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char path[64];
    cr_flight_log log;
    cr_err err = {0};
    FILE *f;

    snprintf(path, sizeof path, "/tmp/croll-fuzz-flight-%d", (int)getpid());
    f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size) __builtin_trap();
    fclose(f);
    if (cr_flight_read(path, &log, &err) == CR_OK) cr_flight_log_free(&log);
    remove(path);
    return 0;
}
