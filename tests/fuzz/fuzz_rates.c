/* fuzz_rates.c -- arbitrary bytes as a file of rates, as a run's hosts.json, and as a rate: numbers above 0, or an error. */
#include "plan/rates.h"
#include "tests/fuzz/mutator.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(cr_status status, const cr_rates *r, const cr_err *err)
{
    const double *x[] = {&r->products.per_s, &r->attention.per_s, &r->memory.per_s,
                         &r->inside.per_s,   &r->link.per_s,      &r->latency_s};

    CR_CHECK((status == CR_OK) == !err->msg[0], "status %d without its text", (int)status);
    for (size_t i = 0; i < CR_COUNT(x); i++)
        CR_CHECK(isfinite(*x[i]) && *x[i] >= 0, "%g", *x[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cr_rates rates = {0}, links = {0};
    cr_err a = {0}, b = {0}, c = {0};
    char *text = cr_strndup((const char *)data, size);
    double x = 1;

    check(cr_rates_read((const char *)data, size, "F", &rates, &a), &rates, &a);
    check(cr_rates_read_links((const char *)data, size, "F", &links, &b), &links, &b);
    if (cr_rate_read(text, "--link", &x, &c) == CR_OK) CR_CHECK(x >= 1 && x <= 1e18, "%g", x);
    cr_free(text);
    return 0;
}
