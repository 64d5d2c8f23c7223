/* safetensors_write.c -- one safetensors file, written beside its final name and renamed when it is
 * complete (see safetensors.h). */
#include "models/files/safetensors.h"

#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct cr_tensor_writer {
    char *path, *part; /* final name, and the one while it grows */
    int fd;
    size_t *offset; /* [num_specs] in the file */
    cr_dtype *dtype;
    size_t num_specs, bytes_left;
};

/* Widest first, in the reference writer's order. */
static int rank_of(cr_dtype dtype)
{
    static const int rank[] = {[CR_F64] = 0, [CR_F32] = 1, [CR_BF16] = 2, [CR_F16] = 3};

    return rank[dtype];
}

static int by_rank_and_name(const void *a, const void *b)
{
    const cr_tensor_spec *x = *(const cr_tensor_spec *const *)a,
                         *y = *(const cr_tensor_spec *const *)b;

    if (rank_of(x->dtype) != rank_of(y->dtype)) return rank_of(x->dtype) - rank_of(y->dtype);
    return strcmp(x->name, y->name);
}

static size_t spec_bytes(const cr_tensor_spec *spec)
{
    size_t num = cr_dtype_bytes(spec->dtype);

    for (int i = 0; i < spec->num_dims; i++)
        num *= (size_t)spec->shape[i];
    return num;
}

/* The header; offset[i] becomes the place of specs[i] in the data. */
static void make_header(const cr_tensor_spec *specs, size_t num, cr_buf *text, size_t *offset)
{
    const cr_tensor_spec **order = CR_NEW_ARRAY(const cr_tensor_spec *, num);
    size_t at = 0;

    for (size_t i = 0; i < num; i++)
        order[i] = &specs[i];
    qsort(order, num, sizeof *order, by_rank_and_name);
    cr_buf_adds(text, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < num; i++) {
        const cr_tensor_spec *s = order[i];
        cr_buf_addc(text, ',');
        cr_json_add_string(text, s->name, strlen(s->name));
        cr_buf_addf(text, ":{\"dtype\":\"%s\",\"shape\":[", cr_tensor_dtype_name(s->dtype));
        for (int d = 0; d < s->num_dims; d++)
            cr_buf_addf(text, "%s%lld", d ? "," : "", (long long)s->shape[d]);
        cr_buf_addf(text, "],\"data_offsets\":[%zu,%zu]}", at, at + spec_bytes(s));
        offset[s - specs] = at;
        at += spec_bytes(s);
    }
    cr_buf_addc(text, '}');
    while (text->num_bytes % 8)
        cr_buf_addc(text, ' ');
    cr_free(order);
}

static cr_status write_all(cr_tensor_writer *w, const void *data, size_t num_bytes, size_t at,
                           cr_err *err)
{
    const char *from = data;

    while (num_bytes) {
        ssize_t num = pwrite(w->fd, from, num_bytes, (off_t)at);
        if (num < 0 && errno == EINTR) continue;
        if (num <= 0)
            return cr_fail(err, CR_EIO, "%s cannot be written: %s", w->part, strerror(errno));
        from += num;
        at += (size_t)num;
        num_bytes -= (size_t)num;
    }
    return CR_OK;
}

static cr_status write_header(cr_tensor_writer *w, const cr_buf *header, cr_err *err)
{
    unsigned char length[8];

    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)header->num_bytes >> 8 * i);
    CR_TRY(write_all(w, length, sizeof length, 0, err));
    return write_all(w, header->data, header->num_bytes, sizeof length, err);
}

cr_status cr_tensor_writer_open(const char *path, const cr_tensor_spec *specs, size_t num_specs,
                                cr_tensor_writer **out, cr_err *err)
{
    cr_tensor_writer *w = CR_NEW(cr_tensor_writer);
    cr_buf header = {0};
    cr_status status = CR_OK;

    w->path = cr_strdup(path);
    w->part = cr_asprintf("%s.part.%ld", path, (long)getpid());
    w->offset = CR_NEW_ARRAY(size_t, num_specs);
    w->dtype = CR_NEW_ARRAY(cr_dtype, num_specs);
    w->num_specs = num_specs;
    make_header(specs, num_specs, &header, w->offset);
    for (size_t i = 0; i < num_specs; i++) {
        w->dtype[i] = specs[i].dtype;
        w->offset[i] += 8 + header.num_bytes;
        w->bytes_left += spec_bytes(&specs[i]);
    }
    w->fd = open(w->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0)
        status = cr_fail(err, CR_EIO, "%s cannot be made: %s", w->part, strerror(errno));
    else
        status = write_header(w, &header, err);
    cr_buf_free(&header);
    *out = w;
    if (status == CR_OK) return CR_OK;
    cr_tensor_writer_abort(w);
    *out = NULL;
    return status;
}

cr_status cr_tensor_writer_put(cr_tensor_writer *w, size_t index, int64_t begin, int64_t end,
                               const void *data, cr_err *err)
{
    size_t elem = cr_dtype_bytes(w->dtype[index]), num = (size_t)(end - begin) * elem;

    CR_CHECK(index < w->num_specs && begin >= 0 && begin <= end && num <= w->bytes_left,
             "tensor %zu of %s", index, w->path);
    CR_TRY(write_all(w, data, num, w->offset[index] + (size_t)begin * elem, err));
    w->bytes_left -= num;
    return CR_OK;
}

static void free_writer(cr_tensor_writer *w)
{
    if (w->fd >= 0) close(w->fd);
    cr_free(w->path);
    cr_free(w->part);
    cr_free(w->offset);
    cr_free(w->dtype);
    cr_free(w);
}

cr_status cr_tensor_writer_close(cr_tensor_writer *w, cr_err *err)
{
    cr_status status = CR_OK;

    if (w->bytes_left)
        status = cr_fail(err, CR_EARG, "%s: %zu bytes of tensors were not written", w->path,
                         w->bytes_left);
    else if (fsync(w->fd) != 0 || rename(w->part, w->path) != 0)
        status = cr_fail(err, CR_EIO, "%s cannot be written: %s", w->path, strerror(errno));
    if (status == CR_OK)
        free_writer(w);
    else
        cr_tensor_writer_abort(w);
    return status;
}

void cr_tensor_writer_abort(cr_tensor_writer *w)
{
    if (!w) return;
    if (w->fd >= 0) unlink(w->part);
    free_writer(w);
}
