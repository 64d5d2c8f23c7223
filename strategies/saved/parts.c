/* parts.c -- streams of records between ranks: see saved.h. */
#include "strategies/saved/saved.h"

#include <string.h>

enum { ENDED = 0, FAILED = -1 }; /* instead of a number of bytes */

typedef struct mover {
    cr_group *group;
    const cri_saved_parts *s;
    cr_mem *block;  /* of the host, [CRI_RECORD_BYTES] */
    bool is_broken; /* the group is: nothing can be said any more */
} mover;

static cr_status open_group(cr_fsdp *f, cr_err *err)
{
    cr_group *all = f->mesh->group[CR_AXIS_ALL];
    int num = cr_group_num_ranks(all), *ranks;

    if (f->parts_group) return CR_OK;
    ranks = CR_NEW_ARRAY(int, num);
    for (int r = 0; r < num; r++)
        ranks[r] = cr_group_world_rank(all, r);
    cr_note(
        cr_group_create(cr_group_world(all), NULL, "checkpoint", ranks, num, &f->parts_group, err));
    cr_free(ranks);
    return err->status;
}

static cr_status move_block(const mover *m, size_t num_bytes, cr_err *err)
{
    const cri_saved_parts *s = m->s;
    int rank = cr_group_rank(m->group);
    const cr_piece out = {s->to, 0, num_bytes}, in = {s->from, 0, num_bytes};
    bool is_from = rank == s->from, is_to = rank == s->to;

    if (s->to == CRI_TO_ALL)
        return cr_broadcast(m->group, s->name, s->from, cr_host_view(m->block), num_bytes, err);
    return cr_transfer(m->group, s->name, is_from ? m->block : NULL, &out, is_from,
                       is_to ? m->block : NULL, &in, is_to, err);
}

static cr_status send_block(void *ctx, const void *data, size_t num_bytes, cr_err *err)
{
    mover *m = ctx;
    int64_t num = (int64_t)num_bytes;

    m->is_broken = true;
    memcpy(cr_host_view(m->block), data, num_bytes);
    CR_TRY(cr_broadcast(m->group, m->s->name, m->s->from, &num, sizeof num, err));
    CR_TRY(move_block(m, num_bytes, err));
    m->is_broken = false;
    return m->s->reader ? cri_record_reader_feed(m->s->reader, data, num_bytes, err) : CR_OK;
}

/* own: a failure of this rank, which the agreement reports to the others. */
static cr_status send_all(mover *m, cr_err *own, cr_err *err)
{
    cri_records r = {.flush = send_block, .ctx = m};
    int64_t how = ENDED;

    cri_records_begin(&r);
    if (m->s->produce(m->s->ctx, &r, own) == CR_OK) cr_note(cri_records_end(&r, own));
    cri_records_free(&r);
    if (m->is_broken) {
        *err = *own;
        return err->status;
    }
    if (own->status != CR_OK) how = FAILED;
    return cr_broadcast(m->group, m->s->name, m->s->from, &how, sizeof how, err);
}

static cr_status take_all(mover *m, cr_err *own, cr_err *err)
{
    cri_record_reader *reader = m->s->reader;
    int64_t num;

    for (;;) {
        CR_TRY(cr_broadcast(m->group, m->s->name, m->s->from, &num, sizeof num, err));
        if (num <= 0) break;
        CR_CHECK(num <= CRI_RECORD_BYTES, "%s: a block of %lld bytes", m->s->name, (long long)num);
        CR_TRY(move_block(m, (size_t)num, err));
        if (reader && own->status == CR_OK)
            cr_note(cri_record_reader_feed(reader, cr_host_view(m->block), (size_t)num, own));
    }
    if (reader && own->status == CR_OK && num == ENDED) cr_note(cri_record_reader_end(reader, own));
    return CR_OK;
}

cr_status cri_parts_move(cr_fsdp *f, const cri_saved_parts *s, cr_err *err)
{
    mover m = {.s = s};
    cr_err own = {0};

    CR_TRY(open_group(f, err));
    m.group = f->parts_group;
    CR_TRY(cr_host_alloc(f->dev, CRI_RECORD_BYTES, &m.block, err));
    cr_note(cr_group_rank(m.group) == s->from ? send_all(&m, &own, err) : take_all(&m, &own, err));
    cr_host_free(f->dev, m.block, CRI_RECORD_BYTES);
    CR_TRY(err->status);
    *err = own;
    return cr_agree(m.group, s->name, err);
}

cr_status cri_tell_all(cr_fsdp *f, const char *name, const void *mine, size_t num_bytes, void *out,
                       cr_err *err)
{
    cr_group *all = f->mesh->group[CR_AXIS_ALL];
    size_t num = (size_t)cr_group_num_ranks(all), *offsets = CR_NEW_ARRAY(size_t, num + 1);
    cr_buf got = {0};

    if (cr_all_gather_bytes(all, name, mine, num_bytes, &got, offsets, err) == CR_OK) {
        if (got.num_bytes == num * num_bytes)
            memcpy(out, got.data, got.num_bytes);
        else
            cr_fail(err, CR_EPEER, "%s: ranks say %zu bytes in all instead of %zu", name,
                    got.num_bytes, num * num_bytes);
    }
    cr_buf_free(&got);
    cr_free(offsets);
    return err->status;
}
