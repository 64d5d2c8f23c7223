/* input.c -- see input.h. */
#include "scorers/input.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { LONGEST_LINE = 64 << 20, PIECE = 64 << 10 };

char *cr_input_next(cr_input *l, size_t *num_bytes)
{
    size_t left = l->text.num_bytes - l->at;
    const char *text = l->text.data + l->at, *end;

    if (left == 0) return NULL;
    end = memchr(text, '\n', left);
    if (!end && !l->has_ended && left < LONGEST_LINE) return NULL;
    *num_bytes = end ? (size_t)(end - text) + 1 : left;
    l->at += *num_bytes;
    if (!end) l->has_ended = true;
    return cr_strndup(text, *num_bytes);
}

void cr_input_read(cr_input *l)
{
    struct pollfd ready = {.fd = l->fd, .events = POLLIN};
    ssize_t n;

    if (l->has_ended || poll(&ready, 1, 0) <= 0) return;
    if (l->at) memmove(l->text.data, l->text.data + l->at, l->text.num_bytes - l->at);
    l->text.num_bytes -= l->at;
    l->at = 0;
    cr_buf_reserve(&l->text, l->text.num_bytes + PIECE + 1);
    n = read(l->fd, l->text.data + l->text.num_bytes, PIECE);
    if (n > 0) l->text.num_bytes += (size_t)n;
    l->has_ended = n == 0 || (n < 0 && errno != EINTR);
}

bool cr_input_is_over(const cr_input *l)
{
    return l->has_ended && l->at == l->text.num_bytes;
}

void cr_input_free(cr_input *l)
{
    cr_buf_free(&l->text);
}
