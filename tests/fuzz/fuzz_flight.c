/* fuzz_flight.c -- a flight recorder's file may be cut short or damaged by the death it records: reading,
 * merging with another one, drawing. */
#include "reports/timeline_html.h"

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
    if (cr_flight_read(path, &log, &err) == CR_OK) {
        cr_flight_log *logs = CR_NEW_ARRAY(cr_flight_log, 2);
        cr_timeline t;
        cr_buf page = {0};
        logs[0] = log;
        if (cr_flight_read(path, &logs[1], &err) != CR_OK) __builtin_trap();
        logs[1].rank++;
        logs[1].clock += size % 2; /* of another host */
        if (logs[1].num_events) logs[1].num_events--;
        cr_timeline_merge(logs, 2, &t);
        cr_timeline_html_findings(&t, &page);
        cr_timeline_html_pictures(&t, &page);
        cr_timeline_html_tables(&t, &page);
        cr_buf_free(&page);
        cr_timeline_free(&t);
    }
    remove(path);
    return 0;
}
