/* tensorboard.c -- see tensorboard.h. Field numbers are those of tensorflow/core/util/event.proto and
 * framework/summary.proto: Event.wall_time 1, step 2, file_version 3, summary 5; Summary.value 1;
 * Value.tag 1, simple_value 2. */
#include "reports/tensorboard.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct cr_tensorboard {
    FILE *file;
    uint32_t table[256];
};

static uint32_t masked_crc(const cr_tensorboard *tb, const void *data, size_t num_bytes)
{
    const unsigned char *p = data;
    uint32_t c = 0xFFFFFFFFu;

    for (size_t i = 0; i < num_bytes; i++)
        c = tb->table[(c ^ p[i]) & 0xFF] ^ c >> 8;
    c = ~c;
    return (c >> 15 | c << 17) + 0xA282EAD8u;
}

static void add_varint(cr_buf *buf, uint64_t x)
{
    for (; x >= 0x80; x >>= 7)
        cr_buf_addc(buf, (char)(x | 0x80));
    cr_buf_addc(buf, (char)x);
}

static void add_bytes(cr_buf *buf, int field, const void *data, size_t num_bytes)
{
    add_varint(buf, (uint64_t)field << 3 | 2);
    add_varint(buf, num_bytes);
    cr_buf_add(buf, data, num_bytes);
}

static void add_double(cr_buf *buf, int field, double x)
{
    add_varint(buf, (uint64_t)field << 3 | 1);
    cr_buf_add(buf, &x, 8); /* little-endian, as protobuf wants */
}

static cr_status add_record(cr_tensorboard *tb, const cr_buf *event, cr_err *err)
{
    uint64_t length = event->num_bytes;
    uint32_t crc = masked_crc(tb, &length, 8);

    fwrite(&length, 8, 1, tb->file);
    fwrite(&crc, 4, 1, tb->file);
    crc = masked_crc(tb, event->data, event->num_bytes);
    fwrite(event->data, 1, event->num_bytes, tb->file);
    fwrite(&crc, 4, 1, tb->file);
    if (fflush(tb->file) != 0)
        return cr_fail(err, CR_EIO, "cannot write the TensorBoard file: %s", strerror(errno));
    return CR_OK;
}

cr_status cr_tensorboard_open(const char *folder, cr_tensorboard **out, cr_err *err)
{
    cr_tensorboard *tb;
    cr_buf event = {0};
    cr_status status;
    char *path;

    *out = NULL;
    CR_TRY(cr_mkdirs(folder, err));
    tb = CR_NEW(cr_tensorboard);
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = c & 1 ? c >> 1 ^ 0x82F63B78u : c >> 1;
        tb->table[i] = c;
    }
    path = cr_asprintf("%s/events.out.tfevents.%010.0f.croll.%d", folder, floor(cr_wall_s()),
                       (int)getpid());
    tb->file = fopen(path, "wb");
    if (!tb->file) {
        status = cr_fail(err, CR_EIO, "cannot write %s: %s", path, strerror(errno));
    } else {
        add_double(&event, 1, cr_wall_s());
        add_bytes(&event, 3, "brain.Event:2", 13);
        status = add_record(tb, &event, err);
    }
    cr_buf_free(&event);
    cr_free(path);
    if (status == CR_OK)
        *out = tb;
    else
        cr_tensorboard_close(tb);
    return status;
}

cr_status cr_tensorboard_add(cr_tensorboard *tb, int64_t step, const cr_metrics *m, cr_err *err)
{
    cr_buf event = {0}, summary = {0}, value = {0};
    cr_status status;

    for (size_t i = 0; i < m->num; i++) {
        float x = (float)m->items[i].value;
        if (!isfinite(x)) continue;
        cr_buf_clear(&value);
        add_bytes(&value, 1, m->items[i].name, strlen(m->items[i].name));
        add_varint(&value, 2u << 3 | 5);
        cr_buf_add(&value, &x, 4);
        add_bytes(&summary, 1, value.data, value.num_bytes);
    }
    add_double(&event, 1, cr_wall_s());
    add_varint(&event, 2u << 3 | 0);
    add_varint(&event, (uint64_t)step);
    add_bytes(&event, 5, summary.data ? summary.data : "", summary.num_bytes);
    status = add_record(tb, &event, err);
    cr_buf_free(&event);
    cr_buf_free(&summary);
    cr_buf_free(&value);
    return status;
}

void cr_tensorboard_close(cr_tensorboard *tb)
{
    if (!tb) return;
    if (tb->file) fclose(tb->file);
    cr_free(tb);
}
