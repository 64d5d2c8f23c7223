/* estimate.c -- see estimate.h. */
#include "serve/server/estimate.h"

#include <stdbool.h>
#include <string.h>

enum { TOKEN_BYTES = 4, LOOKED_AT = 4096, MAX_SAMPLES = 4096, MAX_NEW = 1 << 20 };

/* The largest whole number after "name": in a part of the body, or *most if that is larger. */
static void look_for(const char *text, size_t num_bytes, const char *name, int64_t limit,
                     int64_t *max)
{
    const char *end = text + num_bytes, *at = text;
    size_t num = strlen(name);

    while ((at = memmem(at, (size_t)(end - at), name, num))) {
        int64_t value = 0;
        at += num;
        while (at < end && (*at == ' ' || *at == ':'))
            at++;
        for (; at < end && *at >= '0' && *at <= '9' && value < limit; at++)
            value = 10 * value + (*at - '0');
        if (value > limit) value = limit;
        if (value > *max) *max = value;
    }
}

int64_t cr_serve_estimate_tokens(const char *body, size_t num_bytes)
{
    static const char *const names[] = {"\"max_tokens\"", "\"max_new_tokens\"",
                                        "\"max_completion_tokens\""};
    bool is_long = num_bytes > 2 * LOOKED_AT;
    size_t first = is_long ? LOOKED_AT : num_bytes;
    int64_t max = 0, n = 1;

    if (num_bytes == 0) return 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        look_for(body, first, names[i], MAX_NEW, &max);
        if (is_long) look_for(body + num_bytes - LOOKED_AT, LOOKED_AT, names[i], MAX_NEW, &max);
    }
    look_for(body, first, "\"n\"", MAX_SAMPLES, &n);
    if (is_long) look_for(body + num_bytes - LOOKED_AT, LOOKED_AT, "\"n\"", MAX_SAMPLES, &n);
    return (int64_t)(num_bytes / TOKEN_BYTES) + 1 + n * max;
}
