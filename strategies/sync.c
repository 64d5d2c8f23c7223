/* sync.c -- weight sync: from the train shards straight to where the receivers keep them.
 *
 * A sender says once what it has of each parameter (weight_map.h); what the receivers have is the same for all of them and follows from the
 * model. Both sides derive from these two maps the same list of runs: bytes that lie together at the sender and at the receiver. A run travels
 * in the receiver's dtype and lands in its final place; its checksum, with the weight version, comes before it.
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
} peers;

typedef struct sync_state {
    int64_t is_sender, version, frozen_version;
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
        out->with_frozen = out->with_frozen || x->frozen_version != out->frozen_version;
        if (x->is_sender && x->version != out->version)
            cr_fail(err, CR_EPEER, "weight sync: rank %d has version %lld, rank %d %lld",
                    cr_group_world_rank(g, r), (long long)x->version, cr_group_world_rank(g, 0),
                    (long long)out->version);
    }
    gathered_free(&t);
    return err->status;
}

/* What each sender has. mine: empty on a receiver. Collective. */
static cr_status gather_maps(const peers *p, const cr_model *model, const cr_weight_map *mine,
                             cr_weight_map *senders, cr_err *err)
{
    gathered t = {0};

    cr_weight_map_free(senders);
    cr_note(gather_all(p->g, "weight map", mine->range, mine->num * sizeof *mine->range, &t, err));
    for (int r = 0; r < p->first && err->status == CR_OK; r++) {
        size_t num;
        const cr_weight_range *range = gathered_from(&t, r, sizeof *range, &num);
        cr_note(cr_weight_map_take(senders, model, r, range, num, err));
    }
    gathered_free(&t);
    return err->status;
}

/* ---- runs ---- */

typedef struct run {
    int sender;
    int32_t param; /* where it begins */
    size_t from, to, num_bytes;
    size_t index; /* among those of its sender */
} run;

typedef struct runs {
    run *run; /* owned; by place at the receiver, then by sender: replicas are neighbours */
    size_t num;
} runs;

enum { MAX_RUN_BYTES = 64 << 20 /* longer ones are cut, where a parameter ends */ };

static int by_place(const void *a, const void *b)
{
    const run *x = a, *y = b;

    if (x->to != y->to) return x->to < y->to ? -1 : 1;
    return (x->sender > y->sender) - (x->sender < y->sender);
}

/* How many replicas there are of run i. */
static size_t num_replicas(const runs *r, size_t i)
{
    size_t num = 1;

    while (i + num < r->num && r->run[i + num].to == r->run[i].to)
        num++;
    return num;
}

/* The same senders have both, and b follows a there and at the receiver. */
static bool can_join(const run *a, const run *b, size_t num)
{
    bool can = true;

    for (size_t i = 0; i < num; i++)
        can = can && a[i].sender == b[i].sender && a[i].from + a[i].num_bytes == b[i].from &&
              a[i].to + a[i].num_bytes == b[i].to &&
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

static runs list_runs(const peers *h, const cr_model *model, cr_dtype dtype,
                      const cr_weight_map *senders, const cr_weight_map *layout)
{
    runs r = {0};
    size_t num, *num_of = CR_NEW_ARRAY(size_t, h->first);
    cr_weight_move *moves = cr_redistribute(senders, layout, &num);

    r.run = CR_NEW_ARRAY(run, num);
    for (size_t i = 0; i < num; i++) {
        const cr_weight_move *m = &moves[i];
        const cr_param *p = model->params[m->param];
        if (!h->with_frozen && !p->is_trainable) continue;
        r.run[r.num++] = (run){.sender = m->from,
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

/* The k-th receiver on the host of another one, k counted around; *num: how many there are. */
static int receiver_near(const peers *h, int receiver, int k, int *num)
{
    int pick;

    *num = 0;
    for (int r = h->first; r < h->num; r++)
        *num += is_near(h->g, r, receiver);
    pick = k % *num;
    for (int r = h->first;; r++)
        if (is_near(h->g, r, receiver) && pick-- == 0) return r;
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
            const run *x = choose_replica(h, &r->run[i], num, to);
            if (x->sender == rank && by_of(h, rank, to) == to)
                add_piece(pieces, to, x->from, x->num_bytes);
        }
    }
}

cr_status cr_weight_sync_send(cr_fsdp *f, cr_group *group, cr_dtype dtype, cr_err *err)
{
    size_t total = (size_t)cr_extent_bytes(f->units.trained_shard, dtype);
    cr_weight_map layout = {0}, mine = {0};
    cr_buf pieces = {0}, none = {0};
    cr_mem *send = NULL;
    runs r = {0};
    peers h;

    CR_TRY(cri_need_states(f, CR_STATE_PARAMS, "weight sync", err));
    CR_TRY(agree(group, &(sync_state){1, f->num_updates, f->frozen_version}, &h, err));
    if (h.with_frozen) {
        total += (size_t)cr_extent_bytes(f->units.frozen_shard, dtype);
        cri_map_sent(f, /*is_trained=*/true, dtype, &mine);
        cri_map_sent(f, /*is_trained=*/false, dtype, &mine);
        CR_TRY_GOTO(out, gather_maps(&h, f->model, &mine, &f->senders, err));
    }
    lay_out(f->model, dtype, &layout);
    r = list_runs(&h, f->model, dtype, &f->senders, &layout);
    list_sends(&r, &h, f->mesh->rank, &pieces);
    CR_TRY_GOTO(out, cr_device_alloc(f->dev, total, &send, err)); /* where a transport reads it */
    CR_TRY_GOTO(out, fill(f, dtype, h.with_frozen, send, err));
    CR_TRY_GOTO(out, gather_sums(f, &h, &r, send, err));
    CR_TRY_GOTO(out, move(group, send, &pieces, NULL, &none, err));
    if (has_second(&h)) CR_TRY_GOTO(out, move(group, NULL, &none, NULL, &none, err));
out:
    cr_device_free(f->dev, send, total);
    cr_weight_map_free(&layout);
    cr_weight_map_free(&mine);
    cr_free(r.run);
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
        const run *x = choose_replica(h, &r->run[i], num = num_replicas(r, i), rank);
        int by = by_of(h, x->sender, rank);
        m->num_bytes += x->num_bytes;
        add_piece(by == rank ? &m->come : &m->given, by == rank ? x->sender : by, x->to,
                  x->num_bytes);
        if (by != rank || is_near(h->g, x->sender, rank)) continue;
        for (int to = h->first; to < h->num; to++)
            if (to != rank && is_near(h->g, to, rank))
                add_piece(&m->passed_on, to, x->to, x->num_bytes);
    }
}

/* Every run against its checksum. */
static cr_status check_runs(cr_weight_copy *r, const runs *all, const peers *h,
                            const gathered *sums, cr_err *err)
{
    int rank = cr_group_rank(h->g);

    for (size_t i = 0, num; i < all->num; i += num) {
        const run *x = choose_replica(h, &all->run[i], num = num_replicas(all, i), rank);
        size_t num_sent;
        const uint64_t *sent = gathered_from(sums, x->sender, sizeof *sent, &num_sent);
        uint64_t sum = 0;
        CR_TRY(sum_run(r->dev, x, cr_mem_add_const(r->data, x->to), h->version, &sum, err));
        if (x->index >= num_sent || sum != sent[x->index])
            return cr_fail(err, CR_EPEER,
                           "weight sync: %s of rank %d arrived with another checksum than it was "
                           "sent with",
                           r->model->params[x->param]->name, cr_group_world_rank(h->g, x->sender));
    }
    return CR_OK;
}

cr_status cr_weight_sync_receive(cr_weight_copy *r, cr_group *group, cr_err *err)
{
    cr_buf none = {0};
    gathered sums = {0};
    moves m = {0};
    runs all;
    peers h;

    CR_TRY(agree(group, &(sync_state){.frozen_version = r->frozen_version}, &h, err));
    if (h.with_frozen) {
        r->frozen_version = 0;
        CR_TRY(gather_maps(&h, r->model, &(cr_weight_map){0}, &r->senders, err));
    }
    all = list_runs(&h, r->model, r->dtype, &r->senders, &r->layout);
    list_receives(&all, &h, cr_group_rank(group), &m);
    CR_TRY_GOTO(out, gather_all(group, "weight sums", NULL, 0, &sums, err));
    CR_TRY_GOTO(out, move(group, NULL, &none, r->data, &m.come, err));
    if (has_second(&h))
        CR_TRY_GOTO(out, move(group, r->data, &m.passed_on, r->data, &m.given, err));
    CR_TRY_GOTO(out, check_runs(r, &all, &h, &sums, err));
    r->version = h.version;
    r->frozen_version = h.frozen_version;
    r->synced_bytes = (int64_t)m.num_bytes;
    point_params(r);
out:
    cr_buf_free(&m.come);
    cr_buf_free(&m.passed_on);
    cr_buf_free(&m.given);
    gathered_free(&sums);
    cr_free(all.run);
    return err->status;
}
