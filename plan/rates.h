/* rates.h -- how fast devices compute and what connects them, for the times of a plan. Each rate has a source, which the
 * page names. One that is not known is 0, and no time is made of it.
 *
 * Pure functions, but for the text of errors; any thread.
 */
#ifndef CR_RATES_H
#define CR_RATES_H

#include "base/base.h"

typedef struct cr_rate {
    double per_s;
    char source[160];
} cr_rate;

typedef struct cr_rates {
    cr_rate products, attention; /* FLOPs of a device, multiply-add = 2 */
    cr_rate memory;              /* bytes that its other operations read and write */
    cr_rate inside;              /* bytes into a device from the others of its host */
    cr_rate link;                /* bytes into a host */
    double latency_s;            /* of a message between hosts; 0: not known */
} cr_rates;

/* A GPU by its data sheet (h100, h200, a100, b200): shares of its rates, and its memory. */
CR_MUST cr_status cr_rates_of_device(const char *name, cr_rates *out, int64_t *memory_bytes,
                                     cr_err *err);
/* "400GB/s", "3.2Tbit/s", "100Gb/s": bytes a second. option: for the message. */
CR_MUST cr_status cr_rate_read(const char *text, const char *option, double *out, cr_err *err);
/* Of a device ("cpu avx512bf16"), as `croll doctor --measure` writes it: a JSON object on a line. */
void cr_rates_write(const char *device, double product_flops_s, double attention_flops_s,
                    double memory_bytes_s, cr_buf *out);
/* What that wrote: the rates in it replace those of *rates. */
CR_MUST cr_status cr_rates_read(const char *text, size_t num_bytes, const char *path,
                                cr_rates *rates, cr_err *err);
/* hosts.json of a run, which its check of all hosts wrote: the slowest link, the longest latency. */
CR_MUST cr_status cr_rates_read_links(const char *text, size_t num_bytes, const char *path,
                                      cr_rates *rates, cr_err *err);

/* "41.2 GB", "400 GB/s" in powers of 1000; text holds 32 bytes. */
const char *cr_amount_text(double x, const char *unit, char text[32]);

#endif
