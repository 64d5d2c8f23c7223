/* sync.c -- weight sync: from the train shards straight to where the receivers keep them.
 *
 * Sender and receiver compute the same layout from the same model and policy, so a shard travels
 * once, in the receiver's dtype, and lands in its final place. Pieces go in order of units; eight
 * bytes of checksum follow each sender's last one.
 */
#include "strategies/fsdp_impl.h"

#include <string.h>

struct cr_replica {
    cr_model *model;
    cr_device *dev;
    cr_units units;
    int num_shards;
    cr_dtype dtype;
    char *data; /* all flats of all units, gathered */
    size_t num_bytes;
    size_t *base; /* [2 * units.num] where each flat begins in data */
};

/* Four lanes of multiply and mix over 8-byte words: order matters, every bit counts, 10 GB/s. */
static uint64_t checksum(const void *data, size_t num_bytes, uint64_t start)
{
    const unsigned char *p = data;
    uint64_t lane[4] = {start ^ 0x9E3779B97F4A7C15u, start + 1, start ^ 2, start + 3}, word;
    size_t i = 0;

    for (; i + 32 <= num_bytes; i += 32)
        for (int k = 0; k < 4; k++) {
            memcpy(&word, p + i + 8 * (size_t)k, 8);
            lane[k] = (lane[k] ^ word) * 0xFF51AFD7ED558CCDu;
            lane[k] ^= lane[k] >> 29;
        }
    for (; i < num_bytes; i++)
        lane[0] = (lane[0] ^ p[i]) * 0x100000001B3u;
    return ((lane[0] * 31 + lane[1]) * 31 + lane[2]) * 31 + lane[3];
}

static const cr_flat *flat_of(const cr_units *units, size_t k)
{
    return k % 2 ? &units->unit[k / 2].frozen : &units->unit[k / 2].trained;
}

cr_status cr_replica_create(cr_model *model, cr_device *dev, const cr_wrap_policy *policy,
                            int sender_shards, cr_dtype dtype, cr_replica **out, cr_err *err)
{
    cr_replica *r = CR_NEW(cr_replica);
    void *data;

    *out = NULL;
    r->model = model;
    r->dev = dev;
    r->num_shards = sender_shards;
    r->dtype = dtype;
    if (cr_units_build(model, policy, sender_shards, &r->units, err) != CR_OK) {
        cr_free(r);
        return err->status;
    }
    r->base = CR_NEW_ARRAY(size_t, 2 * r->units.num);
    for (size_t k = 0; k < 2 * r->units.num; k++) {
        r->base[k] = r->num_bytes;
        r->num_bytes += (size_t)flat_of(&r->units, k)->padded_elems * cr_dtype_bytes(dtype);
    }
    if (cr_device_alloc(dev, r->num_bytes, &data, err) != CR_OK) {
        r->num_bytes = 0;
        cr_replica_destroy(r);
        return err->status;
    }
    r->data = data;
    *out = r;
    return CR_OK;
}

void cr_replica_destroy(cr_replica *r)
{
    if (!r) return;
    cr_device_free(r->dev, r->data, r->num_bytes);
    cr_units_free(&r->units);
    cr_free(r->base);
    cr_free(r);
}

cr_status cr_weight_sync_send(cr_fsdp *f, cr_world *world, const int *receivers, int num_receivers,
                              cr_dtype dtype, cr_err *err)
{
    size_t bytes = cr_dtype_bytes(dtype), num_flats = 2 * f->units.num, total = 0, num = 0;
    int num_ddp = f->mesh->shape.num_ddp,
        my_ddp = cr_mesh_axis_rank(&f->mesh->shape, CR_AXIS_DDP, f->mesh->rank);
    cr_piece *pieces = CR_NEW_ARRAY(cr_piece, (num_flats + 1) * (size_t)num_receivers);
    cr_transfer *transfer = NULL;
    uint64_t sum;
    char *send;

    for (size_t k = 0; k < num_flats; k++)
        total += (size_t)flat_of(&f->units, k)->shard_elems * bytes;
    send = cr_alloc(total + 8);
    total = 0;
    for (size_t k = 0; k < num_flats && err->status == CR_OK; k++) {
        const cr_flat *flat = flat_of(&f->units, k);
        size_t n = (size_t)flat->shard_elems;
        if (k % 2)
            cr_fail(err,
                    cr_cast(f->dev, dtype, send + total, f->args.param_dtype,
                            (char *)f->frozen +
                                (size_t)flat->first * cr_dtype_bytes(f->args.param_dtype),
                            n, err),
                    "cast");
        else
            cr_fail(err,
                    cr_cast(f->dev, dtype, send + total, CR_F32, f->master + flat->first, n, err),
                    "cast");
        total += n * bytes;
    }
    sum = checksum(send, total, 0);
    memcpy(send + total, &sum, 8);
    for (int i = my_ddp; i < num_receivers; i += num_ddp) {
        size_t at = 0;
        for (size_t k = 0; k < num_flats; k++) {
            size_t n = (size_t)flat_of(&f->units, k)->shard_elems * bytes;
            if (n) pieces[num++] = (cr_piece){receivers[i], at, n};
            at += n;
        }
        pieces[num++] = (cr_piece){receivers[i], at, 8};
    }
    if (err->status == CR_OK)
        cr_note(cr_transfer_start(world, "weight sync", send, pieces, num, NULL, NULL, 0, &transfer,
                                  err));
    if (err->status == CR_OK) cr_note(cr_transfer_wait(transfer, err));
    cr_free(send);
    cr_free(pieces);
    return err->status;
}

cr_status cr_weight_sync_receive(cr_replica *r, cr_world *world, const int *senders,
                                 const cr_mesh_shape *shape, int my_place, cr_err *err)
{
    size_t bytes = cr_dtype_bytes(r->dtype), num_flats = 2 * r->units.num, num = 0, shard_bytes = 0;
    cr_piece *pieces = CR_NEW_ARRAY(cr_piece, (num_flats + 1) * (size_t)shape->num_fsdp);
    uint64_t *sums = CR_NEW_ARRAY(uint64_t, shape->num_fsdp);
    int replica = my_place % shape->num_ddp;
    cr_transfer *transfer = NULL;
    char *check;

    for (int s = 0; s < shape->num_fsdp; s++) {
        int peer = senders[replica * shape->num_fsdp + s];
        for (size_t k = 0; k < num_flats; k++) {
            size_t n = (size_t)flat_of(&r->units, k)->shard_elems * bytes;
            if (n) pieces[num++] = (cr_piece){peer, r->base[k] + (size_t)s * n, n};
        }
        /* checksums land behind the data: offsets are relative to it */
        pieces[num++] = (cr_piece){peer, (size_t)((char *)&sums[s] - r->data), 8};
    }
    if (cr_transfer_start(world, "weight sync", NULL, NULL, 0, r->data, pieces, num, &transfer,
                          err) == CR_OK)
        cr_note(cr_transfer_wait(transfer, err));
    for (size_t k = 0; k < num_flats; k++)
        shard_bytes += (size_t)flat_of(&r->units, k)->shard_elems * bytes;
    check = cr_alloc(shard_bytes);
    for (int s = 0; s < shape->num_fsdp && err->status == CR_OK; s++) {
        size_t at = 0;
        for (size_t k = 0; k < num_flats; k++) {
            size_t n = (size_t)flat_of(&r->units, k)->shard_elems * bytes;
            memcpy(check + at, r->data + r->base[k] + (size_t)s * n, n);
            at += n;
        }
        if (checksum(check, at, 0) != sums[s])
            cr_fail(err, CR_EPEER,
                    "weight sync: the shard of rank %d arrived with another checksum than it was "
                    "sent with",
                    senders[replica * shape->num_fsdp + s]);
    }
    for (size_t k = 0; k < num_flats && err->status == CR_OK; k++) {
        const cr_flat *flat = flat_of(&r->units, k);
        for (size_t i = 0; i < flat->num_params; i++) {
            cr_param *p = flat->params[i];
            p->weight =
                (cr_weight){r->data + r->base[k] + (size_t)flat->offset[i] * bytes, r->dtype,
                            p->shape[0], p->num_elems / p->shape[0], p->weight.packed};
        }
    }
    cr_free(check);
    cr_free(sums);
    cr_free(pieces);
    return err->status;
}
