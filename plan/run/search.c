/* search.c -- what else would fit: the largest micro-batch, and other sizes of a shard group (make.h). */
#include "actors/strategy_args.h"
#include "plan/devices.h"
#include "plan/run/make_impl.h"
#include "plan/run/roles.h"

/* ---- the largest micro-batch ---- */

/* Does a micro-batch of num samples fit, or, if it is not 0, one of that number of tokens? */
static cr_status try_micro(const cr_plan *p, int64_t num, int64_t tokens, bool *fits, cr_err *err)
{
    cr_plan_batch batch = p->batch;
    cr_plan_role role;

    batch.num_samples = num;
    batch.train_tokens = tokens;
    batch.micros = 1;
    CR_TRY(cr_plan_train(p, &batch, &role, err));
    *fits = cr_plan_fullest(p, &role, NULL).bytes <= p->memory;
    cr_plan_role_free(&role);
    return CR_OK;
}

/* The largest number of tokens that fits, to 1/64 of a sample: from `largest` samples to one more. */
static cr_status search_tokens(cr_plan *p, cr_err *err)
{
    int64_t length = p->batch.sample_tokens, step = length < 64 ? 1 : length / 64,
            least = p->largest * length, most = least + length;

    while (!p->is_limit && most - least > step) {
        int64_t mid = least + (most - least) / 2;
        bool fits;
        CR_TRY(try_micro(p, 0, mid, &fits, err));
        *(fits ? &least : &most) = mid;
    }
    p->largest_tokens = least;
    return CR_OK;
}

/* The largest micro-batch that fits: doubling, then halving the gap. At most a million tokens. */
cr_status cri_plan_search(cr_plan *p, cr_err *err)
{
    int64_t least = 0, most, limit = (1 << 20) / p->batch.sample_tokens;
    bool fits = true;

    if (limit < 1) limit = 1;
    if (!p->is_sft && limit > p->rank_samples) limit = p->rank_samples;
    for (most = 1; fits && least < limit;) {
        if (most > limit) most = limit;
        CR_TRY(try_micro(p, most, 0, &fits, err));
        if (fits) least = most, most *= 2;
    }
    while (!fits && most - least > 1) {
        int64_t mid = least + (most - least) / 2;
        bool good;
        CR_TRY(try_micro(p, mid, 0, &good, err));
        *(good ? &least : &most) = mid;
    }
    p->largest = least;
    p->is_limit = least == limit;
    return least ? search_tokens(p, err) : CR_OK;
}

/* ---- other sizes of a shard group ---- */

static void add_choice(cr_plan *p, const cr_plan_role *role)
{
    const cr_plan_place place = {p->hosts.host_of[0], p->hosts.num, p->is_gpu};

    p->hosts.choice[p->hosts.num_choices++] = (cr_plan_choice){
        .fsdp_size = role->mesh.num_fsdp,
        .peak_bytes = cr_plan_fullest(p, role, NULL).bytes,
        .micro_s = cr_plan_time(role, &place, &p->hosts.rates, CR_PLAN_FIRST).all_s,
        .update_s = cr_plan_time(role, &place, &p->hosts.rates, CR_PLAN_UPDATE).all_s,
        .step_s = cr_plan_step_s(role, &place, &p->hosts.rates),
        .into_bytes = cr_plan_into_bytes(role, &place),
        .is_file = role == &p->role[0]};
}

static cr_status choose_size(cr_plan *p, int size, cr_err *err)
{
    const cr_plan_batch batch = p->batch; /* a copy: its moments are not asked for */
    int64_t file = p->config.train.fsdp_size;
    cr_plan_role role;

    p->config.train.fsdp_size = size;
    cr_note(cr_plan_train(p, &batch, &role, err));
    p->config.train.fsdp_size = file;
    CR_TRY(err->status);
    add_choice(p, &role);
    cr_plan_role_free(&role);
    return CR_OK;
}

/* A shard group of a host's ranks, twice as many .., all; and the file's. */
cr_status cri_plan_choose(cr_plan *p, cr_err *err)
{
    cr_plan_hosts *h = &p->hosts;
    const int ranks = p->role[0].mesh.num_ranks, file = p->role[0].mesh.num_fsdp;
    cr_plan_choice *best = NULL;
    bool has_file = false;
    int here = 0;

    for (int i = 0; i < ranks; i++)
        here += h->host_of[0][i] == h->host_of[0][0];
    if (here == ranks) return CR_OK;
    h->choice = CR_NEW_ARRAY(cr_plan_choice, 20);
    for (int size = here, next; size <= ranks; size = next) {
        cr_mesh_shape shape;
        cr_err no = {0};
        cr_worker_config w = p->config.train;
        next = size < ranks && 2 * size > ranks ? ranks : 2 * size;
        if (size >= file && !has_file) {
            has_file = true;
            add_choice(p, &p->role[0]);
        }
        w.fsdp_size = size;
        if (size > 1 && size != file && cr_mesh_shape_of(&w, ranks, &shape, &no) == CR_OK)
            CR_TRY(choose_size(p, size, err));
    }
    for (size_t i = 0; i < h->num_choices; i++) {
        cr_plan_choice *x = &h->choice[i];
        if (x->step_s > 0 && (!p->memory || x->peak_bytes <= p->memory) &&
            (!best || x->step_s < best->step_s))
            best = x;
    }
    if (best) best->is_best = !best->is_file;
    return CR_OK;
}
