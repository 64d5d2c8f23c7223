/* sync.c -- weight sync: from the train shards straight to where the receivers keep them.
 *
 * Sender and receiver compute the same layout from the same model and policy, so a shard travels
 * once, in the receiver's dtype, and lands in its final place. Behind the flats of a sender comes its
 * trailer: the weight version, and a checksum of each flat of its shard.
 */
#include "strategies/fsdp_impl.h"

#include <string.h>

struct cr_replica {
    cr_model *model;
    cr_device *dev;
    cr_units units;
    int num_shards;
    cr_dtype dtype;
    char *data; /* all flats of all units, gathered; then the trailer of each shard */
    size_t num_bytes, all_bytes; /* without and with trailers */
    size_t *base;                /* [2 * units.num] where each flat begins in data */
    int64_t version;             /* optimizer updates the weights have had; -1: none arrived yet */
};

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
    r->num_bytes = (r->num_bytes + 63) / 64 * 64;
    r->all_bytes = r->num_bytes + (size_t)sender_shards * (1 + 2 * r->units.num) * sizeof(uint64_t);
    r->version = -1;
    if (cr_device_alloc(dev, r->all_bytes, &data, err) != CR_OK) {
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
    if (r->data) cr_device_free(r->dev, r->data, r->all_bytes);
    cr_units_free(&r->units);
    cr_free(r->base);
    cr_free(r);
}

int64_t cr_replica_version(const cr_replica *r)
{
    return r->version;
}

static size_t trailer_words(const cr_units *units)
{
    return 1 + 2 * units->num;
}

/* This rank's shards in dtype, one flat after another, and the trailer. */
static cr_status fill(cr_fsdp *f, cr_dtype dtype, char *send, cr_err *err)
{
    size_t bytes = cr_dtype_bytes(dtype), at = 0;
    uint64_t *trailer = CR_NEW_ARRAY(uint64_t, trailer_words(&f->units));

    trailer[0] = (uint64_t)f->num_updates;
    for (size_t k = 0; k < 2 * f->units.num && err->status == CR_OK; k++) {
        const cr_flat *flat = flat_of(&f->units, k);
        size_t n = (size_t)flat->shard_elems;
        bool is_master = k % 2 == 0 && f->master;
        cr_dtype stored = is_master ? f->args.master_dtype : f->args.param_dtype;
        const char *from = is_master ? f->master : k % 2 ? f->frozen : f->values;
        if (n)
            cr_note(cr_cast(f->dev, dtype, send + at, stored,
                            from + (size_t)flat->first * cr_dtype_bytes(stored), n, err));
        trailer[1 + k] = cri_checksum(send + at, n * bytes, trailer[0] ^ (uint64_t)k << 56);
        at += n * bytes;
    }
    memcpy(send + at, trailer, trailer_words(&f->units) * sizeof *trailer);
    cr_free(trailer);
    return err->status;
}

cr_status cr_weight_sync_send(cr_fsdp *f, cr_world *world, const int *receivers, int num_receivers,
                              cr_dtype dtype, cr_err *err)
{
    size_t bytes = cr_dtype_bytes(dtype), num_flats = 2 * f->units.num, num = 0,
           tail = trailer_words(&f->units) * sizeof(uint64_t),
           total = (size_t)(f->units.trained_shard_elems + f->units.frozen_shard_elems) * bytes;
    int num_ddp = f->mesh->shape.num_ddp,
        my_ddp = cr_mesh_axis_rank(&f->mesh->shape, CR_AXIS_DDP, f->mesh->rank);
    cr_transfer *transfer = NULL;
    cr_piece *pieces;
    char *send;

    CR_TRY(cri_need_states(f, CR_STATE_PARAMS, "weight sync", err));
    pieces = CR_NEW_ARRAY(cr_piece, (num_flats + 1) * (size_t)num_receivers);
    send = cr_alloc(total + tail);
    for (int i = my_ddp; i < num_receivers; i += num_ddp) {
        size_t at = 0;
        for (size_t k = 0; k < num_flats; k++) {
            size_t n = (size_t)flat_of(&f->units, k)->shard_elems * bytes;
            if (n) pieces[num++] = (cr_piece){receivers[i], at, n};
            at += n;
        }
        pieces[num++] = (cr_piece){receivers[i], at, tail};
    }
    if (fill(f, dtype, send, err) == CR_OK &&
        cr_transfer_start(world, "weight sync", send, pieces, num, NULL, NULL, 0, &transfer, err) ==
            CR_OK)
        cr_note(cr_transfer_wait(transfer, err));
    cr_free(send);
    cr_free(pieces);
    return err->status;
}

/* Every flat of every sender's shard against its checksum; one version from all. */
static cr_status check(cr_replica *r, const int *senders, cr_err *err)
{
    size_t bytes = cr_dtype_bytes(r->dtype), words = trailer_words(&r->units);

    for (int s = 0; s < r->num_shards; s++) {
        const uint64_t *trailer =
                           (const uint64_t *)(void *)(r->data + r->num_bytes) + (size_t)s * words,
                       *first = (const uint64_t *)(void *)(r->data + r->num_bytes);
        for (size_t k = 0; k < 2 * r->units.num; k++) {
            size_t n = (size_t)flat_of(&r->units, k)->shard_elems * bytes;
            uint64_t start = trailer[0] ^ (uint64_t)k << 56; /* covers the version, too */
            if (cri_checksum(r->data + r->base[k] + (size_t)s * n, n, start) != trailer[1 + k])
                return cr_fail(err, CR_EPEER,
                               "weight sync: unit %s of rank %d arrived with another checksum than "
                               "it was sent with",
                               r->units.unit[k / 2].name, senders[s]);
        }
        if (trailer[0] != first[0])
            return cr_fail(err, CR_EPEER,
                           "weight sync: rank %d sent version %llu, rank %d version %llu",
                           senders[0], (unsigned long long)first[0], senders[s],
                           (unsigned long long)trailer[0]);
        r->version = (int64_t)first[0];
    }
    return CR_OK;
}

static void point_params(cr_replica *r)
{
    size_t bytes = cr_dtype_bytes(r->dtype);

    for (size_t k = 0; k < 2 * r->units.num; k++) {
        const cr_flat *flat = flat_of(&r->units, k);
        for (size_t i = 0; i < flat->num_params; i++) {
            cr_param *p = flat->params[i];
            p->weight =
                (cr_weight){r->data + r->base[k] + (size_t)flat->offset[i] * bytes, r->dtype,
                            p->shape[0], p->num_elems / p->shape[0], p->weight.packed};
        }
    }
}

cr_status cr_weight_sync_receive(cr_replica *r, cr_world *world, const int *senders,
                                 const cr_mesh_shape *shape, int my_place, cr_err *err)
{
    size_t bytes = cr_dtype_bytes(r->dtype), num_flats = 2 * r->units.num, num = 0,
           tail = trailer_words(&r->units) * sizeof(uint64_t);
    const int *mine = senders + my_place % shape->num_ddp * shape->num_fsdp;
    cr_piece *pieces;
    cr_transfer *transfer = NULL;

    if (shape->num_fsdp != r->num_shards)
        return cr_fail(err, CR_EARG, "weight sync: %d senders for a replica of %d shards",
                       shape->num_fsdp, r->num_shards);
    pieces = CR_NEW_ARRAY(cr_piece, (num_flats + 1) * (size_t)shape->num_fsdp);
    for (int s = 0; s < shape->num_fsdp; s++) {
        for (size_t k = 0; k < num_flats; k++) {
            size_t n = (size_t)flat_of(&r->units, k)->shard_elems * bytes;
            if (n) pieces[num++] = (cr_piece){mine[s], r->base[k] + (size_t)s * n, n};
        }
        pieces[num++] = (cr_piece){mine[s], r->num_bytes + (size_t)s * tail, tail};
    }
    if (cr_transfer_start(world, "weight sync", NULL, NULL, 0, r->data, pieces, num, &transfer,
                          err) == CR_OK &&
        cr_transfer_wait(transfer, err) == CR_OK && check(r, mine, err) == CR_OK)
        point_params(r);
    cr_free(pieces);
    return err->status;
}
