/* sync.c -- weight sync: from the train shards straight to where the receivers keep them.
 *
 * A sender says once what it has of each parameter (weight_map.h). What a full copy has follows from the model; a receiver that has shards,
 * a reference that follows the policy, says it, too. Receivers with the same elements at the same places are of one kind. All sides derive
 * from these maps the same list of runs: bytes that lie together at the sender and at receivers of a kind. A run travels in the receiver's
 * dtype and lands in its final place; its checksum, with the weight version, comes before it.
 *
 * Frozen parameters never change, so they come once: with a receiver's first sync, and again where the senders have read others
 * since or the receiver has given its copy up. All ranks agree on that first. Of a model with adapters every other sync has
 * the adapters alone.
 *
 * Links between hosts carry a run once a host: it comes to one of the host's receivers, in turn, which passes it on there
 * in a second transfer. Where a replica of the run is on the receiver's host, it comes from there.
 */
#include "strategies/fsdp_impl.h"

#include <stdlib.h>
#include <string.h>

struct cr_weight_copy {
    cr_model *model;
    cr_device *dev;
    cr_dtype dtype;
    cr_mem *data;
    size_t num_bytes;
    cr_weight_map layout;   /* of data */
    cr_weight_map senders;  /* what each has */
    int64_t version;        /* optimizer updates the weights have had; -1: none arrived yet */
    int64_t frozen_version; /* which frozen parameters are here (cr_fsdp.frozen_version); 0: none */
    int64_t synced_bytes;   /* that the last sync brought */
};

static cr_dtype dtype_of(const cr_param *p, cr_dtype dtype)
{
    return p->is_fp32 ? CR_F32 : dtype;
}

/* Where a receiver has each parameter: the trained ones first, aligned as in a flat, so that a shard is few runs. Returns all bytes. Its adapters
 * are never off: it has no originals. */
static size_t lay_out(const cr_model *model, cr_dtype dtype, cr_weight_map *out)
{
    int64_t at = 0;

    for (int is_frozen = 0; is_frozen < 2; is_frozen++)
        for (size_t i = 0; i < model->num_params; i++) {
            const cr_param *p = model->params[i];
            int64_t elem_bytes = (int64_t)cr_dtype_bytes(dtype_of(p, dtype));
            if (p->is_trainable == is_frozen || p->copy_of) continue;
            cr_weight_map_add(out, &(cr_weight_range){.param = (int32_t)i,
                                                      .end = p->num_elems,
                                                      .at = at,
                                                      .elem_bytes = elem_bytes});
            at += (p->num_elems + CR_FLAT_ALIGN - 1) / CR_FLAT_ALIGN * CR_FLAT_ALIGN * elem_bytes;
        }
    return (size_t)at;
}

cr_status cr_weight_copy_create(cr_model *model, cr_device *dev, cr_dtype dtype,
                                cr_weight_copy **out, cr_err *err)
{
    cr_weight_copy *r = CR_NEW(cr_weight_copy);

    *out = NULL;
    *r = (cr_weight_copy){.model = model, .dev = dev, .dtype = dtype, .version = -1};
    r->num_bytes = lay_out(model, dtype, &r->layout);
    if (cr_device_alloc(dev, r->num_bytes, &r->data, err) == CR_OK)
        *out = r;
    else
        cr_weight_copy_destroy(r);
    return err->status;
}

void cr_weight_copy_destroy(cr_weight_copy *r)
{
    if (!r) return;
    cr_device_free(r->dev, r->data, r->num_bytes);
    cr_weight_map_free(&r->layout);
    cr_weight_map_free(&r->senders);
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

int64_t cr_weight_copy_sync_bytes(const cr_weight_copy *r, bool is_first)
{
    int64_t num_bytes = 0;

    for (size_t i = 0; i < r->layout.num; i++) {
        const cr_weight_range *x = &r->layout.range[i];
        if (is_first || r->model->params[x->param]->is_trainable)
            num_bytes += x->end * x->elem_bytes;
    }
    return num_bytes;
}

int64_t *cr_fsdp_sync_bytes(const cr_fsdp *f, cr_dtype dtype, bool is_first)
{
    int64_t *out = CR_NEW_ARRAY(int64_t, f->mesh->shape.num_fsdp + f->mesh->shape.num_efsdp);
    cr_weight_map senders = {0}, copy = {0};
    cr_weight_move *moves;
    size_t num;

    cri_map_all_sent(f, dtype, &senders);
    lay_out(f->model, dtype, &copy);
    moves = cr_redistribute(&senders, &copy, &num);
    for (size_t i = 0; i < num; i++) {
        const cr_param *p = f->model->params[moves[i].param];
        if (is_first || p->is_trainable)
            out[moves[i].from] += moves[i].num * (int64_t)cr_dtype_bytes(dtype_of(p, dtype));
    }
    cr_free(moves);
    cr_weight_map_free(&copy);
    cr_weight_map_free(&senders);
    return out;
}

static void point_params(cr_weight_copy *r)
{
    for (size_t i = 0; i < r->layout.num; i++) {
        const cr_weight_range *x = &r->layout.range[i];
        cr_param *p = r->model->params[x->param];
        p->weight = (cr_weight){cr_mem_add(r->data, (size_t)x->at), dtype_of(p, r->dtype),
                                p->shape[0], p->num_elems / p->shape[0], p->weight.packed};
    }
}

/* ---- what is gathered from all ranks before weights move ---- */

typedef struct gathered { /* bytes of each rank, in rank order */
    cr_buf all;
    size_t *offsets;
} gathered;

static cr_status gather_all(cr_group *g, const char *name, const void *data, size_t num_bytes,
                            gathered *out, cr_err *err)
{
    out->offsets = CR_NEW_ARRAY(size_t, cr_group_num_ranks(g) + 1);
    return cr_all_gather_bytes(g, name, data, num_bytes, &out->all, out->offsets, err);
}

/* Rank r's elements of elem_bytes each; *num: how many. */
static const void *gathered_from(const gathered *t, int r, size_t elem_bytes, size_t *num)
{
    *num = (t->offsets[r + 1] - t->offsets[r]) / elem_bytes;
    return t->all.data + t->offsets[r];
}

static void gathered_free(gathered *t)
{
    cr_buf_free(&t->all);
    cr_free(t->offsets);
}

typedef struct peers {
    cr_group *g;
    int first, num;                  /* receivers are ranks first .. num - 1, the others send */
    int64_t version, frozen_version; /* the senders' */
    bool with_frozen;                /* a receiver has others */
    bool are_cut; /* receivers have shards, and no sync knows what the one before knew */
    int *kind;    /* [num - first] of each receiver, from 0 on; full copies are of one (owned) */
} peers;

typedef struct sync_state {
    int64_t is_sender, version, frozen_version, is_cut;
} sync_state;

/* Who sends, weights of which version, and whether frozen parameters go. Collective. */
static cr_status agree(cr_group *g, const sync_state *mine, peers *out, cr_err *err)
{
    gathered t = {0};

    *out = (peers){.g = g, .num = cr_group_num_ranks(g)};
    cr_note(gather_all(g, "weight sync", mine, sizeof *mine, &t, err));
    for (int r = 0; r < out->num && err->status == CR_OK; r++) {
        size_t num;
        const sync_state *x = gathered_from(&t, r, sizeof *x, &num);
        if (r == 0) out->version = x->version, out->frozen_version = x->frozen_version;
        out->first += x->is_sender != 0;
        out->are_cut = out->are_cut || x->is_cut;
        out->with_frozen = out->with_frozen || x->frozen_version != out->frozen_version;
        if (x->is_sender && x->version != out->version)
            cr_fail(err, CR_EPEER, "weight sync: rank %d has version %lld, rank %d %lld",
                    cr_group_world_rank(g, r), (long long)x->version, cr_group_world_rank(g, 0),
                    (long long)out->version);
    }
    out->kind = CR_NEW_ARRAY(int, out->num - out->first + 1);
    gathered_free(&t);
    return err->status;
}

/* The kind of a receiver that has shards: that of an earlier one with the same map, or a new one, whose elements are added to `layouts`
 * as those of holder `kind`. */
static cr_status take_kind(peers *p, const cr_model *model, const gathered *t, int receiver,
                           int *num_kinds, cr_weight_map *layouts, cr_err *err)
{
    size_t num, num_other;
    const cr_weight_range *mine = gathered_from(t, receiver, sizeof *mine, &num), *other;
    int *kind = &p->kind[receiver - p->first];

    *kind = *num_kinds;
    for (int r = p->first; r < receiver && *kind == *num_kinds; r++) {
        other = gathered_from(t, r, sizeof *other, &num_other);
        if (num == num_other && memcmp(mine, other, num * sizeof *mine) == 0)
            *kind = p->kind[r - p->first];
    }
    if (*kind < *num_kinds) return CR_OK;
    return cr_weight_map_take(layouts, model, (*num_kinds)++, mine, num, err);
}

/* What each sender has, and each kind of receivers that are cut. mine: empty on a receiver that has all. Collective. */
static cr_status gather_maps(peers *p, const cr_model *model, const cr_weight_map *mine,
                             cr_weight_map *senders, cr_weight_map *layouts, cr_err *err)
{
    gathered t = {0};
    int num_kinds = 0;

    cr_weight_map_free(senders);
    cr_note(gather_all(p->g, "weight map", mine->range, mine->num * sizeof *mine->range, &t, err));
    for (int r = 0; r < p->first && err->status == CR_OK; r++) {
        size_t num;
        const cr_weight_range *range = gathered_from(&t, r, sizeof *range, &num);
        cr_note(cr_weight_map_take(senders, model, r, range, num, err));
    }
    for (int r = p->first; r < p->num && p->are_cut && err->status == CR_OK; r++)
        cr_note(take_kind(p, model, &t, r, &num_kinds, layouts, err));
    gathered_free(&t);
    return err->status;
}

/* ---- runs ---- */

typedef struct run {
    int sender, kind; /* kind: of receivers */
    int32_t param;    /* where it begins */
    size_t from, to, num_bytes;
    size_t index; /* among those of its sender */
} run;

typedef struct runs {
    run *
        run; /* owned; by place at each kind of receivers, then by sender: replicas are neighbours */
    size_t num;
} runs;

enum { MAX_RUN_BYTES = 64 << 20 /* longer ones are cut, where a parameter ends */ };

static int by_place(const void *a, const void *b)
{
    const run *x = a, *y = b;

    if (x->kind != y->kind) return x->kind - y->kind;
    if (x->to != y->to) return x->to < y->to ? -1 : 1;
    return (x->sender > y->sender) - (x->sender < y->sender);
}

/* How many replicas there are of run i. */
static size_t num_replicas(const runs *r, size_t i)
{
    size_t num = 1;

    while (i + num < r->num && r->run[i + num].kind == r->run[i].kind &&
           r->run[i + num].to == r->run[i].to)
        num++;
    return num;
}

/* The same senders have both, and b follows a there and at the receiver. */
static bool can_join(const run *a, const run *b, size_t num)
{
    bool can = true;

    for (size_t i = 0; i < num; i++)
        can = can && a[i].kind == b[i].kind && a[i].sender == b[i].sender &&
              a[i].from + a[i].num_bytes == b[i].from && a[i].to + a[i].num_bytes == b[i].to &&
              a[i].num_bytes + b[i].num_bytes <= MAX_RUN_BYTES;
    return can;
}

static void join_runs(runs *r)
{
    run *last = r->run;
    size_t num = 0, num_last = 0, n;

    for (size_t i = 0; i < r->num; i += n) {
        const run *next = &r->run[i];
        n = num_replicas(r, i);
        if (n == num_last && can_join(last, next, n)) {
            for (size_t k = 0; k < n; k++)
                last[k].num_bytes += next[k].num_bytes;
            continue;
        }
        last = memmove(&r->run[num], next, n * sizeof *next);
        num += num_last = n;
    }
    r->num = num;
}

/* layouts: of full copies, or of all kinds. */
static runs list_runs(const peers *h, const cr_model *model, cr_dtype dtype,
                      const cr_weight_map *senders, const cr_weight_map *layouts)
{
    runs r = {0};
    size_t num, *num_of = CR_NEW_ARRAY(size_t, h->first);
    cr_weight_move *moves = cr_redistribute(senders, layouts, &num);

    r.run = CR_NEW_ARRAY(run, num);
    for (size_t i = 0; i < num; i++) {
        const cr_weight_move *m = &moves[i];
        const cr_param *p = model->params[m->param];
        if (!h->with_frozen && !p->is_trainable) continue;
        r.run[r.num++] = (run){.sender = m->from,
                               .kind = m->to,
                               .param = m->param,
                               .from = (size_t)m->from_at,
                               .to = (size_t)m->to_at,
                               .num_bytes = (size_t)m->num * cr_dtype_bytes(dtype_of(p, dtype))};
    }
    if (r.num) qsort(r.run, r.num, sizeof *r.run, by_place);
    join_runs(&r);
    for (size_t i = 0; i < r.num; i++)
        r.run[i].index = num_of[r.run[i].sender]++;
    cr_free(num_of);
    cr_free(moves);
    return r;
}

/* Of a run that is at `data`; covers the version, too. */
static cr_status sum_run(cr_device *dev, const run *x, const cr_mem *data, int64_t version,
                         uint64_t *sum, cr_err *err)
{
    uint64_t start = (uint64_t)version ^ (uint64_t)(x->index + 1) << 56;

    return cr_checksum(dev, &(cr_checksum_args){data, x->num_bytes, start, sum}, err);
}

/* ---- who sends to whom ---- */

static bool is_near(const cr_group *g, int a, int b)
{
    return cr_world_host_of(cr_group_world(g), cr_group_world_rank(g, a)) ==
           cr_world_host_of(cr_group_world(g), cr_group_world_rank(g, b));
}

static int kind_of(const peers *h, int receiver)
{
    return h->kind[receiver - h->first];
}

/* Receivers that get the same runs, on one host. */
static bool are_alike(const peers *h, int a, int b)
{
    return kind_of(h, a) == kind_of(h, b) && is_near(h->g, a, b);
}

/* The k-th receiver like another one, k counted around; *num: how many there are. */
static int receiver_near(const peers *h, int receiver, int k, int *num)
{
    int pick;

    *num = 0;
    for (int r = h->first; r < h->num; r++)
        *num += are_alike(h, r, receiver);
    pick = k % *num;
    for (int r = h->first;; r++)
        if (are_alike(h, r, receiver) && pick-- == 0) return r;
}

/* One of the replicas of a run for a receiver: in turn one on its host; of a host without any, the same one for all receivers there. */
static const run *choose_replica(const peers *h, const run *replica, size_t num, int receiver)
{
    size_t num_near = 0, pick;
    int num_here;

    for (size_t i = 0; i < num; i++)
        num_near += is_near(h->g, replica[i].sender, receiver);
    if (num_near == 0)
        return &replica[(size_t)(receiver_near(h, receiver, 0, &num_here) - h->first) % num];
    pick = (size_t)(receiver - h->first) % num_near;
    for (size_t i = 0;; i++)
        if (is_near(h->g, replica[i].sender, receiver) && pick-- == 0) return &replica[i];
}

/* The receiver to which a sender sends what `receiver` gets. */
static int by_of(const peers *h, int sender, int receiver)
{
    int num;

    return is_near(h->g, sender, receiver) ? receiver : receiver_near(h, receiver, sender, &num);
}

/* Is there a second transfer, inside of hosts? */
static bool has_second(const peers *h)
{
    for (int r = h->first; r < h->num; r++) {
        int num;
        receiver_near(h, r, 0, &num);
        for (int s = 0; s < h->first && num > 1; s++)
            if (!is_near(h->g, s, r)) return true;
    }
    return false;
}

static void add_piece(cr_buf *pieces, int peer, size_t offset_bytes, size_t num_bytes)
{
    cr_piece p = {peer, offset_bytes, num_bytes};

    cr_buf_add(pieces, &p, sizeof p);
}

/* First the runs, then what receivers of one host pass on. Collective over the group. */
static cr_status move(cr_group *g, const cr_mem *send, const cr_buf *sends, cr_mem *recv,
                      const cr_buf *recvs, cr_err *err)
{
    return cr_transfer(g, "weight sync", send, (const cr_piece *)(const void *)sends->data,
                       sends->num_bytes / sizeof(cr_piece), recv,
                       (const cr_piece *)(const void *)recvs->data,
                       recvs->num_bytes / sizeof(cr_piece), err);
}

/* ---- a sender ---- */

/* A flat's shard in dtype (in float32 that of modules that are) to `to` on the device. */
static cr_status fill_flat(cr_fsdp *f, const cr_flat *flat, bool is_trained, cr_dtype dtype,
                           cr_mem *to, cr_err *err)
{
    cr_dtype as = cr_flat_dtype(flat, dtype), from = cri_shard_dtype(f, flat, is_trained);
    const cr_mem *shard = cri_shard(f, flat, is_trained);

    if (f->args.is_offloaded) {
        CR_TRY(cri_fill_from_host(f, as, to, from, shard, flat->shard_elems, err));
        return cr_stream_join(f->dev, cri_stream(f, CR_STREAM_GATHER), err);
    }
    return flat->shard_elems
               ? cr_cast(f->dev, &(cr_cast_args){as, to, from, shard, (size_t)flat->shard_elems},
                         err)
               : CR_OK;
}

/* Shards, as cri_map_sent has them. */
static cr_status fill(cr_fsdp *f, cr_dtype dtype, bool with_frozen, cr_mem *send, cr_err *err)
{
    bool is_staged = f->args.is_offloaded && !f->staging;

    if (is_staged) CR_TRY_GOTO(out, cri_staging_create(f, err));
    for (int is_frozen = 0; is_frozen <= with_frozen; is_frozen++)
        for (size_t i = 0; i < f->units.num; i++) {
            const cr_unit *u = &f->units.unit[i];
            const cr_flat *flat = is_frozen ? &u->frozen : &u->trained;
            int64_t at = cr_extent_bytes(flat->first, dtype) +
                         (is_frozen ? cr_extent_bytes(f->units.trained_shard, dtype) : 0);
            CR_TRY_GOTO(out,
                        fill_flat(f, flat, !is_frozen, dtype, cr_mem_add(send, (size_t)at), err));
        }
out:
    if (is_staged) cri_staging_destroy(f);
    return err->status;
}

/* The checksums of this rank's runs, to all. Collective. */
static cr_status gather_sums(cr_fsdp *f, const peers *h, const runs *r, const cr_mem *send,
                             cr_err *err)
{
    uint64_t *sums = CR_NEW_ARRAY(uint64_t, r->num);
    size_t num = 0;
    gathered t = {0};

    for (size_t i = 0; i < r->num && err->status == CR_OK; i++) {
        const run *x = &r->run[i];
        if (x->sender != f->mesh->rank) continue;
        cr_note(
            sum_run(f->dev, x, cr_mem_add_const(send, x->from), h->version, &sums[x->index], err));
        num++;
    }
    if (err->status == CR_OK)
        cr_note(gather_all(h->g, "weight sums", sums, num * sizeof *sums, &t, err));
    gathered_free(&t);
    cr_free(sums);
    return err->status;
}

static void list_sends(const runs *r, const peers *h, int rank, cr_buf *pieces)
{
    for (size_t i = 0, num; i < r->num; i += num) {
        num = num_replicas(r, i);
        for (int to = h->first; to < h->num; to++) {
            if (kind_of(h, to) != r->run[i].kind) continue;
            const run *x = choose_replica(h, &r->run[i], num, to);
            if (x->sender == rank && by_of(h, rank, to) == to)
                add_piece(pieces, to, x->from, x->num_bytes);
        }
    }
}

cr_status cr_weight_sync_send(cr_fsdp *f, cr_group *group, cr_dtype dtype, cr_err *err)
{
    size_t total = (size_t)cr_extent_bytes(f->units.trained_shard, dtype);
    cr_weight_map layouts = {0}, mine = {0}, once = {0}, *senders;
    cr_buf pieces = {0}, none = {0};
    cr_mem *send = NULL;
    runs r = {0};
    peers h = {0};

    CR_TRY(cri_need_states(f, CR_STATE_PARAMS, "weight sync", err));
    CR_TRY_GOTO(out, agree(group, &(sync_state){1, f->num_updates, f->frozen_version, 0}, &h, err));
    senders = h.are_cut ? &once : &f->senders; /* those of engines are in their dtype */
    if (h.with_frozen) {
        total += (size_t)cr_extent_bytes(f->units.frozen_shard, dtype);
        cri_map_sent(f, /*is_trained=*/true, dtype, &mine);
        cri_map_sent(f, /*is_trained=*/false, dtype, &mine);
        CR_TRY_GOTO(out, gather_maps(&h, f->model, &mine, senders, &layouts, err));
    }
    if (!h.are_cut) lay_out(f->model, dtype, &layouts);
    r = list_runs(&h, f->model, dtype, senders, &layouts);
    list_sends(&r, &h, f->mesh->rank, &pieces);
    CR_TRY_GOTO(out, cr_device_alloc(f->dev, total, &send, err)); /* where a transport reads it */
    CR_TRY_GOTO(out, fill(f, dtype, h.with_frozen, send, err));
    CR_TRY_GOTO(out, gather_sums(f, &h, &r, send, err));
    CR_TRY_GOTO(out, move(group, send, &pieces, NULL, &none, err));
    if (has_second(&h)) CR_TRY_GOTO(out, move(group, NULL, &none, NULL, &none, err));
out:
    cr_device_free(f->dev, send, total);
    cr_weight_map_free(&layouts);
    cr_weight_map_free(&mine);
    cr_weight_map_free(&once);
    cr_free(r.run);
    cr_free(h.kind);
    cr_buf_free(&pieces);
    return err->status;
}

/* ---- a receiver ---- */

typedef struct moves { /* pieces of the two transfers */
    cr_buf come, passed_on, given;
    size_t num_bytes; /* that come or are given */
} moves;

static void list_receives(const runs *r, const peers *h, int rank, moves *m)
{
    for (size_t i = 0, num; i < r->num; i += num) {
        num = num_replicas(r, i);
        if (r->run[i].kind != kind_of(h, rank)) continue;
        const run *x = choose_replica(h, &r->run[i], num, rank);
        int by = by_of(h, x->sender, rank);
        m->num_bytes += x->num_bytes;
        add_piece(by == rank ? &m->come : &m->given, by == rank ? x->sender : by, x->to,
                  x->num_bytes);
        if (by != rank || is_near(h->g, x->sender, rank)) continue;
        for (int to = h->first; to < h->num; to++)
            if (to != rank && are_alike(h, to, rank))
                add_piece(&m->passed_on, to, x->to, x->num_bytes);
    }
}

/* Where runs come to. */
typedef struct target {
    cr_device *dev;
    cr_mem *data;
    const cr_model *model;
} target;

/* Every run against its checksum. */
static cr_status check_runs(const target *to, const runs *all, const peers *h, const gathered *sums,
                            cr_err *err)
{
    int rank = cr_group_rank(h->g);

    for (size_t i = 0, num; i < all->num; i += num) {
        num = num_replicas(all, i);
        if (all->run[i].kind != kind_of(h, rank)) continue;
        const run *x = choose_replica(h, &all->run[i], num, rank);
        size_t num_sent;
        const uint64_t *sent = gathered_from(sums, x->sender, sizeof *sent, &num_sent);
        uint64_t sum = 0;
        CR_TRY(sum_run(to->dev, x, cr_mem_add_const(to->data, x->to), h->version, &sum, err));
        if (x->index >= num_sent || sum != sent[x->index])
            return cr_fail(err, CR_EPEER,
                           "weight sync: %s of rank %d arrived with another checksum than it was "
                           "sent with",
                           to->model->params[x->param]->name, cr_group_world_rank(h->g, x->sender));
    }
    return CR_OK;
}

/* All runs of this receiver; *num_bytes: of them. Collective over the group. */
static cr_status take_runs(const target *to, const runs *all, const peers *h, int64_t *num_bytes,
                           cr_err *err)
{
    cr_buf none = {0};
    gathered sums = {0};
    moves m = {0};

    list_receives(all, h, cr_group_rank(h->g), &m);
    *num_bytes = (int64_t)m.num_bytes;
    CR_TRY_GOTO(out, gather_all(h->g, "weight sums", NULL, 0, &sums, err));
    CR_TRY_GOTO(out, move(h->g, NULL, &none, to->data, &m.come, err));
    if (has_second(h))
        CR_TRY_GOTO(out, move(h->g, to->data, &m.passed_on, to->data, &m.given, err));
    CR_TRY_GOTO(out, check_runs(to, all, h, &sums, err));
out:
    cr_buf_free(&m.come);
    cr_buf_free(&m.passed_on);
    cr_buf_free(&m.given);
    gathered_free(&sums);
    return err->status;
}

cr_status cr_weight_sync_receive(cr_weight_copy *r, cr_group *group, cr_err *err)
{
    const target to = {r->dev, r->data, r->model};
    cr_weight_map none = {0};
    runs all = {0};
    peers h = {0};

    CR_TRY_GOTO(out, agree(group, &(sync_state){.frozen_version = r->frozen_version}, &h, err));
    if (h.with_frozen) {
        r->frozen_version = 0;
        CR_TRY_GOTO(out, gather_maps(&h, r->model, &none, &r->senders, &none, err));
    }
    all = list_runs(&h, r->model, r->dtype, &r->senders, &r->layout);
    CR_TRY_GOTO(out, take_runs(&to, &all, &h, &r->synced_bytes, err));
    r->version = h.version;
    r->frozen_version = h.frozen_version;
    point_params(r);
out:
    cr_free(all.run);
    cr_free(h.kind);
    return err->status;
}

/* ---- a receiver of shards ---- */

enum { BLEND_BLOCK = CR_BLEND_BYTES / (2 * sizeof(float)) /* elements at once */ };

typedef struct blend {
    cr_fsdp *f;
    double alpha;
    const cr_mem *come; /* on the device, each element where its value is in f->values */
    cr_mem *work;       /* [2, BLEND_BLOCK] float32, where the values are */
    cr_mem *staged;     /* of values on the host: as many that have come; else NULL */
} blend;

/* num values of one dtype at byte `at`: in float32, and back. */
static cr_status blend_some(const blend *b, cr_dtype dtype, size_t at, size_t num, cr_err *err)
{
    cr_device *home = cri_home(b->f);
    cr_mem *value = cr_mem_add(b->f->values, at), *y = b->work,
           *x = cr_at(CR_F32, b->work, BLEND_BLOCK);
    const cr_mem *come = cr_mem_add_const(b->come, at);

    if (b->staged) {
        CR_TRY(cr_move(home, b->staged, b->f->dev, come, num * cr_dtype_bytes(dtype), err));
        come = b->staged;
    }
    if (b->alpha >= 1) return cr_cast(home, &(cr_cast_args){dtype, value, dtype, come, num}, err);
    CR_TRY(cr_cast(home, &(cr_cast_args){CR_F32, x, dtype, come, num}, err));
    CR_TRY(cr_cast(home, &(cr_cast_args){CR_F32, y, dtype, value, num}, err));
    CR_TRY(
        cr_blend(home, &(cr_blend_args){y, x, (float)b->alpha, (float)(1 - b->alpha), num}, err));
    return cr_cast(home, &(cr_cast_args){dtype, value, CR_F32, y, num}, err);
}

static cr_status blend_all(const blend *b, cr_err *err)
{
    const cr_fsdp *f = b->f;

    for (size_t i = 0; i < f->units.num; i++) {
        const cr_flat *flat = &f->units.unit[i].trained;
        const cr_dtype dtype = cri_dtype(f, flat);
        size_t at = (size_t)cr_extent_bytes(flat->first, f->args.param_dtype), n;
        for (size_t e = 0, all = (size_t)flat->shard_elems; e < all; e += n) {
            n = all - e < BLEND_BLOCK ? all - e : BLEND_BLOCK;
            CR_TRY(blend_some(b, dtype, at + e * cr_dtype_bytes(dtype), n, err));
        }
    }
    return CR_OK;
}

/* Every element has come, of a model that is the sender's. */
static cr_status check_all_come(const cr_weight_map *mine, int64_t num_bytes, cr_err *err)
{
    int64_t want = 0;

    for (size_t i = 0; i < mine->num; i++)
        want += (mine->range[i].end - mine->range[i].begin) * mine->range[i].elem_bytes;
    return num_bytes == want
               ? CR_OK
               : cr_fail(err, CR_EPEER,
                         "weight sync: %lld of %lld bytes have come (is this another model than "
                         "the one that is trained?)",
                         (long long)num_bytes, (long long)want);
}

static cr_status blend_with(cr_fsdp *f, const cr_mem *come, double alpha, cr_err *err)
{
    cr_device *home = cri_home(f);
    const size_t num_bytes = CR_BLEND_BYTES, num_staged = num_bytes / 2;
    blend b = {.f = f, .alpha = alpha, .come = come};

    CR_TRY_GOTO(out, cr_device_alloc(home, num_bytes, &b.work, err));
    if (f->args.is_offloaded) CR_TRY_GOTO(out, cr_host_alloc(f->dev, num_staged, &b.staged, err));
    CR_TRY_GOTO(out, blend_all(&b, err));
out:
    cr_host_free(f->dev, b.staged, num_staged);
    cr_device_free(home, b.work, num_bytes);
    return err->status;
}

/* Its values, as runs land in a buffer like theirs. */
static cr_status receive_shards(cr_fsdp *f, cr_group *group, cr_mem *come, peers *h,
                                int64_t *num_bytes, cr_err *err)
{
    const target to = {f->dev, come, f->model};
    cr_weight_map mine = {0}, senders = {0}, layouts = {0};
    runs all = {0};

    CR_TRY_GOTO(out, agree(group, &(sync_state){.is_cut = 1}, h, err));
    cri_map_kept(f, /*is_trained=*/true, /*is_written=*/false, &mine);
    for (size_t i = 0; i < mine.num; i++)
        mine.range[i].holder = 0; /* those of replicas are equal */
    CR_TRY_GOTO(out, gather_maps(h, f->model, &mine, &senders, &layouts, err));
    all = list_runs(h, f->model, f->args.param_dtype, &senders, &layouts);
    CR_TRY_GOTO(out, take_runs(&to, &all, h, num_bytes, err));
    CR_TRY_GOTO(out, check_all_come(&mine, *num_bytes, err));
out:
    cr_weight_map_free(&mine);
    cr_weight_map_free(&senders);
    cr_weight_map_free(&layouts);
    cr_free(all.run);
    return err->status;
}

cr_status cr_weight_sync_blend(cr_fsdp *f, cr_group *group, double alpha, int64_t *num_bytes,
                               cr_err *err)
{
    const size_t total = (size_t)cr_extent_bytes(f->units.trained_shard, f->args.param_dtype);
    cr_mem *come = NULL;
    peers h = {0};

    CR_CHECK(!f->args.is_train && f->units.num_frozen == 0, "values that are followed are trained");
    CR_TRY(cri_need_states(f, CR_STATE_PARAMS, "weight sync", err));
    if (f->save) CR_TRY(cr_fsdp_save_wait(f, NULL, err)); /* its writer reads values */
    CR_TRY_GOTO(out, cr_device_alloc(f->dev, total, &come, err));
    CR_TRY_GOTO(out, cr_zero(f->dev, come, total, err));
    CR_TRY_GOTO(out, receive_shards(f, group, come, &h, num_bytes, err));
    CR_TRY_GOTO(out, blend_with(f, come, alpha, err));
    f->num_updates = h.version;
    cri_states_changed(f);
    CR_TRY_GOTO(out, cri_reshard_all(f, err));
out:
    cr_device_free(f->dev, come, total);
    cr_free(h.kind);
    return err->status;
}
