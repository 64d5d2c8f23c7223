/* sync.c -- weight sync: from the train shards straight to where the receivers keep them.
 *
 * Sender and receiver compute the same layout from the same model and policy, so a shard travels
 * once, in the receiver's dtype, and lands in its final place. After the flats of a sender comes its
 * trailer: the weight version, and a checksum of each flat of its shard.
 *
 * Frozen flats never change, so they come once: with a receiver's first sync, and again where the senders have read others
 * since or the receiver has given its copy up. All ranks agree on that first. Of a model with adapters every other sync has
 * the adapters alone.
 *
 * With expert parallelism (units.h), the receiver has the units of all ep ranks, a sender only some of
 * them, in the same order.
 *
 * Links between hosts carry a shard once a host: it comes to one of the host's receivers, in turn, which passes it on there
 * in a second transfer. Where a replica of the shard is on the receiver's host, it comes from there.
 */
#include "strategies/fsdp_impl.h"

struct cr_weight_copy {
    cr_model *model;
    cr_device *dev;
    cr_units units;
    cr_mesh_shape sender;
    cr_dtype dtype;
    cr_mem *data; /* all flats of all units, gathered; then the trailer of each sender */
    size_t num_bytes, all_bytes; /* without and with trailers */
    size_t *base;                /* [2 * units.num] where each flat begins in data */
    int64_t version;             /* optimizer updates the weights have had; -1: none arrived yet */
    int64_t frozen_version;      /* which frozen flats are here (cr_fsdp.frozen_version); 0: none */
    int64_t synced_bytes;        /* that the last sync brought */
};

static const cr_flat *flat_of(const cr_units *units, size_t k)
{
    return k % 2 ? &units->unit[k / 2].frozen : &units->unit[k / 2].trained;
}

static size_t shard_bytes(const cr_flat *flat, cr_dtype dtype)
{
    return (size_t)flat->shard_elems * cr_dtype_bytes(cr_flat_dtype(flat, dtype));
}

static size_t shards_of(const cr_units *units, size_t k)
{
    return (size_t)units->unit[k / 2].num_shards;
}

/* Does flat k go? */
static bool is_sent(size_t k, bool with_frozen)
{
    return with_frozen || k % 2 == 0;
}

static size_t trailer_words(const cr_units *units, bool with_frozen)
{
    return 1 + (with_frozen ? 2 : 1) * units->num;
}

/* Most senders of one receiver: a shard group, and an expert group with its shards. */
static size_t max_senders(const cr_mesh_shape *s)
{
    return (size_t)(s->num_fsdp + (s->num_ep > 1 ? s->num_efsdp * s->num_ep : 0));
}

cr_status cr_weight_copy_create(cr_model *model, cr_device *dev, const cr_wrap_policy *policy,
                                const cr_mesh_shape *sender, cr_dtype dtype, cr_weight_copy **out,
                                cr_err *err)
{
    cr_weight_copy *r = CR_NEW(cr_weight_copy);
    cr_ep_layout layout = cri_ep_layout(sender, -1);

    *out = NULL;
    r->model = model;
    r->dev = dev;
    r->sender = *sender;
    r->dtype = dtype;
    if (cr_units_build_ep(model, policy, sender->num_fsdp, &layout, &r->units, err) != CR_OK) {
        cr_free(r);
        return err->status;
    }
    r->base = CR_NEW_ARRAY(size_t, 2 * r->units.num);
    for (size_t k = 0; k < 2 * r->units.num; k++) {
        r->base[k] = r->num_bytes;
        r->num_bytes += shard_bytes(flat_of(&r->units, k), dtype) * shards_of(&r->units, k);
    }
    r->num_bytes = (r->num_bytes + 63) / 64 * 64;
    r->all_bytes =
        r->num_bytes + max_senders(sender) * trailer_words(&r->units, true) * sizeof(uint64_t);
    r->version = -1;
    if (cr_device_alloc(dev, r->all_bytes, &r->data, err) != CR_OK) {
        cr_weight_copy_destroy(r);
        return err->status;
    }
    *out = r;
    return CR_OK;
}

void cr_weight_copy_destroy(cr_weight_copy *r)
{
    if (!r) return;
    cr_device_free(r->dev, r->data, r->all_bytes);
    cr_units_free(&r->units);
    cr_free(r->base);
    cr_free(r);
}

int64_t cr_weight_copy_version(const cr_weight_copy *r)
{
    return r->version;
}

int64_t cr_weight_copy_synced_bytes(const cr_weight_copy *r)
{
    return r->synced_bytes;
}

cr_sync_bytes cr_weight_copy_sync_bytes(const cr_weight_copy *r, bool is_first)
{
    cr_sync_bytes out = {.checksums =
                             (int64_t)(max_senders(&r->sender) *
                                       trailer_words(&r->units, is_first) * sizeof(uint64_t))};

    for (size_t k = 0; k < 2 * r->units.num; k++) {
        const cr_flat *flat = flat_of(&r->units, k);
        int64_t elem_bytes = (int64_t)cr_dtype_bytes(cr_flat_dtype(flat, r->dtype));
        if (!is_sent(k, is_first)) continue;
        out.params += flat->num_elems * elem_bytes;
        out.padding += (flat->padded_elems - flat->num_elems) * elem_bytes;
    }
    return out;
}

/* Are frozen flats sent, too? mine: cr_fsdp.frozen_version of the frozen flats here. *senders: the senders' one. Collective. */
static cr_status agree_frozen(cr_group *g, int64_t mine, int64_t *senders, bool *are_sent,
                              cr_err *err)
{
    int num = cr_group_num_ranks(g);
    size_t *offsets = CR_NEW_ARRAY(size_t, num + 1);
    cr_buf all = {0};

    if (cr_all_gather_bytes(g, "weight sync", &mine, sizeof mine, &all, offsets, err) == CR_OK) {
        const int64_t *version = (const int64_t *)(const void *)all.data;
        *senders = version[0];
        *are_sent = false;
        for (int r = 1; r < num; r++)
            *are_sent = *are_sent || version[r] != version[0];
    }
    cr_buf_free(&all);
    cr_free(offsets);
    return err->status;
}

/* A flat's shard in dtype (in float32 that of modules that are) to `to` on the device, and its checksum. */
static cr_status fill_flat(cr_fsdp *f, size_t k, cr_dtype dtype, cr_mem *to, uint64_t start,
                           uint64_t *sum, cr_err *err)
{
    const cr_flat *flat = flat_of(&f->units, k);
    bool is_trained = k % 2 == 0;
    cr_dtype as = cr_flat_dtype(flat, dtype), from = cri_shard_dtype(f, flat, is_trained);
    const cr_mem *shard = cri_shard(f, flat, is_trained, f->master);

    if (f->args.is_offloaded) {
        CR_TRY(cri_fill_from_host(f, as, to, from, shard, flat->shard_elems, err));
        CR_TRY(cr_stream_join(f->dev, cri_stream(f, CR_STREAM_GATHER), err));
    } else if (flat->shard_elems) {
        CR_TRY(
            cr_cast(f->dev, &(cr_cast_args){as, to, from, shard, (size_t)flat->shard_elems}, err));
    }
    return cr_checksum(f->dev, &(cr_checksum_args){to, shard_bytes(flat, dtype), start, sum}, err);
}

/* This rank's shards that go, one flat after another, and the trailer. */
static cr_status fill(cr_fsdp *f, cr_dtype dtype, bool with_frozen, cr_mem *send, cr_err *err)
{
    size_t at = 0, num = 1;
    uint64_t *trailer = CR_NEW_ARRAY(uint64_t, trailer_words(&f->units, with_frozen));
    bool is_staged = f->args.is_offloaded && !f->staging;

    trailer[0] = (uint64_t)f->num_updates;
    if (is_staged) CR_TRY_GOTO(out, cri_staging_create(f, err));
    for (size_t k = 0; k < 2 * f->units.num; k++) {
        if (!is_sent(k, with_frozen)) continue;
        CR_TRY_GOTO(out, fill_flat(f, k, dtype, cr_mem_add(send, at),
                                   trailer[0] ^ (uint64_t)num << 56, &trailer[num], err));
        num++;
        at += shard_bytes(flat_of(&f->units, k), dtype);
    }
    cr_note(cr_upload(f->dev, cr_mem_add(send, at), trailer, num * sizeof *trailer, err));
out:
    if (is_staged) cri_staging_destroy(f);
    cr_free(trailer);
    return err->status;
}

/* ---- who sends to whom; ranks of the group: the senders' role, then receivers ---- */

static bool is_near(const cr_group *g, int a, int b)
{
    return cr_world_host_of(cr_group_world(g), cr_group_world_rank(g, a)) ==
           cr_world_host_of(cr_group_world(g), cr_group_world_rank(g, b));
}

/* One of rank[num]: of those on the host of `near` by `turn`; where that host has none of them, of all by turn_of_host. */
static int in_turn(const cr_group *g, const int *rank, int num, int near, int turn,
                   int turn_of_host)
{
    int num_near = 0, pick;

    for (int i = 0; i < num; i++)
        num_near += is_near(g, rank[i], near);
    if (num_near == 0) return rank[turn_of_host % num];
    pick = turn % num_near;
    for (int i = 0;; i++)
        if (is_near(g, rank[i], near) && pick-- == 0) return rank[i];
}

/* The receivers on the host of one of them; returns how many. */
static int receivers_near(const cr_group *g, const cr_mesh_shape *shape, int receiver, int *rank)
{
    int num = 0;

    for (int r = shape->num_ranks; r < cr_group_num_ranks(g); r++)
        if (is_near(g, r, receiver)) rank[num++] = r;
    return num;
}

typedef struct route { /* from one sender to one receiver */
    bool sends[2];     /* its flats that all ranks have; those of its experts */
    int by;            /* the receiver to which it sends them */
} route;

static route route_of(const cr_group *g, const cr_mesh_shape *shape, int sender, int receiver)
{
    static const cr_axis axes[] = {CR_AXIS_DDP, CR_AXIS_EDDP};
    int *rank = CR_NEW_ARRAY(int, cr_group_num_ranks(g)),
        num = receivers_near(g, shape, receiver, rank), first = rank[0];
    route r = {.by = is_near(g, sender, receiver) ? receiver : rank[sender % num]};

    for (int k = 0; k < 2; k++) {
        num = cr_mesh_members(shape, axes[k], sender, rank);
        r.sends[k] = in_turn(g, rank, num, receiver, receiver - shape->num_ranks,
                             first - shape->num_ranks) == sender;
    }
    cr_free(rank);
    return r;
}

/* Is there a second transfer, inside of hosts? */
static bool has_second(const cr_group *g, const cr_mesh_shape *shape)
{
    int *rank = CR_NEW_ARRAY(int, cr_group_num_ranks(g));
    bool is_shared = false;

    for (int r = shape->num_ranks; r < cr_group_num_ranks(g) && !is_shared; r++) {
        bool is_pair = receivers_near(g, shape, r, rank) > 1;
        for (int s = 0; s < shape->num_ranks && is_pair; s++)
            is_shared = is_shared || !is_near(g, s, r);
    }
    cr_free(rank);
    return is_shared;
}

static void add_piece(cr_buf *pieces, int peer, size_t offset_bytes, size_t num_bytes)
{
    cr_piece p = {peer, offset_bytes, num_bytes};

    cr_buf_add(pieces, &p, sizeof p);
}

/* First the shards, then what receivers of one host pass on. Collective over the group. */
static cr_status move(cr_group *g, const cr_mem *send, const cr_buf *sends, cr_mem *recv,
                      const cr_buf *recvs, cr_err *err)
{
    return cr_transfer(g, "weight sync", send, (const cr_piece *)(const void *)sends->data,
                       sends->num_bytes / sizeof(cr_piece), recv,
                       (const cr_piece *)(const void *)recvs->data,
                       recvs->num_bytes / sizeof(cr_piece), err);
}

cr_status cr_weight_sync_send(cr_fsdp *f, cr_group *group, cr_dtype dtype, cr_err *err)
{
    size_t num_flats = 2 * f->units.num, tail,
           total = (size_t)cr_extent_bytes(f->units.trained_shard, dtype);
    const cr_mesh_shape *shape = &f->mesh->shape;
    cr_buf pieces = {0}, none = {0};
    bool with_frozen;
    int64_t senders;
    cr_mem *send;

    CR_TRY(cri_need_states(f, CR_STATE_PARAMS, "weight sync", err));
    CR_TRY(agree_frozen(group, f->frozen_version, &senders, &with_frozen, err));
    tail = trailer_words(&f->units, with_frozen) * sizeof(uint64_t);
    if (with_frozen) total += (size_t)cr_extent_bytes(f->units.frozen_shard, dtype);
    CR_TRY(cr_device_alloc(f->dev, total + tail, &send, err)); /* where a transport reads it */
    for (int i = shape->num_ranks; i < cr_group_num_ranks(group); i++) {
        route to = route_of(group, shape, f->mesh->rank, i);
        size_t at = 0, before = pieces.num_bytes;
        for (size_t k = 0; k < num_flats && to.by == i; k++) {
            const cr_flat *flat = flat_of(&f->units, k);
            size_t n = is_sent(k, with_frozen) ? shard_bytes(flat, dtype) : 0;
            if (n && to.sends[flat->is_ep]) add_piece(&pieces, i, at, n);
            at += n;
        }
        if (pieces.num_bytes > before) add_piece(&pieces, i, total, tail);
    }
    if (fill(f, dtype, with_frozen, send, err) == CR_OK &&
        move(group, send, &pieces, NULL, &none, err) == CR_OK && has_second(group, shape))
        cr_note(move(group, NULL, &none, NULL, &none, err));
    cr_device_free(f->dev, send, total + tail);
    cr_buf_free(&pieces);
    return err->status;
}

/* ---- what comes from one sender ---- */

/* A flat of the copy whose shard a sender has. */
typedef struct part {
    size_t flat; /* its number here */
    size_t at, num_bytes;
    bool is_coming; /* not from another replica of the sender */
} part;

/* Those of its flats that go, in its order; returns how many. *is_sender: something comes. */
static size_t list_parts(const cr_weight_copy *r, const cr_mesh_shape *shape, int rank,
                         const route *from, bool with_frozen, part *parts, bool *is_sender)
{
    int ep = cr_mesh_axis_rank(shape, CR_AXIS_EP, rank);
    size_t num = 0;

    *is_sender = false;
    for (size_t k = 0; k < 2 * r->units.num; k++) {
        const cr_flat *flat = flat_of(&r->units, k);
        const cr_unit *u = &r->units.unit[k / 2];
        int shard = cr_mesh_axis_rank(shape, flat->is_ep ? CR_AXIS_EFSDP : CR_AXIS_FSDP, rank);
        part p = {.flat = k};
        if ((u->owner >= 0 && u->owner != ep) || !is_sent(k, with_frozen)) continue;
        p.num_bytes = shard_bytes(flat, r->dtype);
        p.at = r->base[k] + (size_t)shard * p.num_bytes;
        p.is_coming = p.num_bytes && from->sends[flat->is_ep];
        *is_sender = *is_sender || p.is_coming;
        parts[num++] = p;
    }
    return num;
}

/* Every flat of a sender's shard against its checksum; its version is that of the others. */
static cr_status check_parts(cr_weight_copy *r, int sender, const part *parts, size_t num,
                             const uint64_t *trailer, cr_err *err)
{
    for (size_t i = 0; i < num; i++) {
        const part *p = &parts[i];
        uint64_t start = trailer[0] ^ (uint64_t)(1 + i) << 56; /* covers the version, too */
        bool is_seen = p->is_coming || p->num_bytes == 0;
        uint64_t sum = 0;
        if (!is_seen) continue;
        CR_TRY(cr_checksum(
            r->dev,
            &(cr_checksum_args){cr_mem_add_const(r->data, p->at), p->num_bytes, start, &sum}, err));
        if (sum != trailer[1 + i])
            return cr_fail(err, CR_EPEER,
                           "weight sync: unit %s of rank %d arrived with another checksum than it "
                           "was sent with",
                           r->units.unit[p->flat / 2].name, sender);
    }
    if (r->version >= 0 && trailer[0] != (uint64_t)r->version)
        return cr_fail(err, CR_EPEER, "weight sync: rank %d sent version %llu, others version %lld",
                       sender, (unsigned long long)trailer[0], (long long)r->version);
    r->version = (int64_t)trailer[0];
    return CR_OK;
}

static void point_params(cr_weight_copy *r)
{
    for (size_t k = 0; k < 2 * r->units.num; k++) {
        const cr_flat *flat = flat_of(&r->units, k);
        cr_dtype dtype = cr_flat_dtype(flat, r->dtype);
        for (size_t i = 0; i < flat->num_params; i++) {
            cr_param *p = flat->params[i];
            p->weight =
                (cr_weight){cr_at(dtype, cr_mem_add(r->data, r->base[k]), flat->offset[i]), dtype,
                            p->shape[0], p->num_elems / p->shape[0], p->weight.packed};
        }
    }
}

typedef struct moves { /* of a receiver: pieces of the two transfers */
    cr_buf come, passed_on, given;
} moves;

/* What comes from a sender: to this rank, or to another one of its host that gives it. */
static void add_moves(const cr_group *group, const cr_mesh_shape *shape, int sender, int by,
                      const part *parts, size_t num, size_t tail_at, moves *m)
{
    int me = cr_group_rank(group);

    for (int r = shape->num_ranks; r < cr_group_num_ranks(group); r++) {
        bool is_passed_on = by == me && r != me && !is_near(group, sender, me);
        cr_buf *to = by != me ? &m->given : r == me ? &m->come : &m->passed_on;
        int peer = by != me ? by : r == me ? sender : r;
        if (r != me && (!is_passed_on || !is_near(group, r, me))) continue;
        for (size_t i = 0; i < num; i++)
            if (parts[i].is_coming) add_piece(to, peer, parts[i].at, parts[i].num_bytes);
        add_piece(to, peer, tail_at, (1 + num) * sizeof(uint64_t));
    }
}

/* Pieces of all senders, or checks of what they sent. m NULL: checks. */
static cr_status each_sender(cr_weight_copy *r, const cr_group *group, const cr_mesh_shape *shape,
                             bool with_frozen, moves *m, cr_err *err)
{
    size_t tail_at = r->num_bytes;
    part *parts = CR_NEW_ARRAY(part, 2 * r->units.num);
    uint64_t *trailer = CR_NEW_ARRAY(uint64_t, trailer_words(&r->units, true));

    for (int s = 0; s < shape->num_ranks && err->status == CR_OK; s++) {
        route from = route_of(group, shape, s, cr_group_rank(group));
        bool is_sender;
        size_t num = list_parts(r, shape, s, &from, with_frozen, parts, &is_sender),
               tail = (1 + num) * sizeof(uint64_t);
        if (!is_sender) continue;
        if (m)
            add_moves(group, shape, s, from.by, parts, num, tail_at, m);
        else if (cr_download(r->dev, trailer, cr_mem_add_const(r->data, tail_at), tail, err) ==
                 CR_OK)
            cr_note(check_parts(r, cr_group_world_rank(group, s), parts, num, trailer, err));
        tail_at += tail;
    }
    cr_free(trailer);
    cr_free(parts);
    return err->status;
}

static int64_t bytes_of(const cr_buf *pieces)
{
    const cr_piece *p = (const cr_piece *)(const void *)pieces->data;
    int64_t num_bytes = 0;

    for (size_t i = 0; i < pieces->num_bytes / sizeof *p; i++)
        num_bytes += (int64_t)p[i].num_bytes;
    return num_bytes;
}

cr_status cr_weight_sync_receive(cr_weight_copy *r, cr_group *group, const cr_mesh_shape *shape,
                                 cr_err *err)
{
    const cr_mesh_shape *s = &r->sender;
    moves m = {0};
    cr_buf none = {0};
    bool with_frozen;
    int64_t senders;

    if (shape->num_fsdp != s->num_fsdp || shape->num_ep != s->num_ep ||
        (s->num_ep > 1 && shape->num_efsdp != s->num_efsdp))
        return cr_fail(err, CR_EARG,
                       "weight sync: senders of shards %d, experts %d x %d for a copy of %d, %d "
                       "x %d",
                       shape->num_fsdp, shape->num_ep, shape->num_efsdp, s->num_fsdp, s->num_ep,
                       s->num_efsdp);
    CR_TRY(agree_frozen(group, r->frozen_version, &senders, &with_frozen, err));
    if (with_frozen) r->frozen_version = 0;
    cr_note(each_sender(r, group, shape, with_frozen, &m, err));
    r->synced_bytes = bytes_of(&m.come) + bytes_of(&m.given);
    if (move(group, NULL, &none, r->data, &m.come, err) == CR_OK && has_second(group, shape))
        cr_note(move(group, r->data, &m.passed_on, r->data, &m.given, err));
    if (err->status == CR_OK) {
        r->version = -1;
        if (each_sender(r, group, shape, with_frozen, NULL, err) == CR_OK) point_params(r);
    }
    if (err->status == CR_OK) r->frozen_version = senders;
    cr_buf_free(&m.come);
    cr_buf_free(&m.passed_on);
    cr_buf_free(&m.given);
    return err->status;
}
