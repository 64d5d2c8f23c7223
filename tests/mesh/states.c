/* states.c -- a unit's state and dtypes while it runs: what is gathered before and after each module of
 * each phase, under every way to reshard (C7), the next unit gathered ahead (C9), the dtype on both
 * sides of every boundary (C11), what is kept of frozen parameters, one norm on all ranks (C21),
 * float16 on numbers of ranks that do not divide (C13).
 * Not covered: numbers and traffic of these modes (modes.c).
 * // ranks: 4
 * // also on cuda, long
 */
#include "tests/mesh/train.h"

/* ---- C7, C11 ---- */

typedef struct probe {
    const plan *p;
    cr_fsdp *f;
    bool is_with_backward;
    int num_calls[3]; /* of units; forward, recompute, backward */
    int step, num_ahead;
} probe;

static probe watch;

static bool is_never(const plan *p)
{
    return p->reshard == CR_RESHARD_NEVER || p->reshard_ranks == 1;
}

/* Every parameter of the unit is there, in param_dtype; in backward with a float32 gradient. */
static void check_there(const cri_unit *u, cr_phase phase)
{
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < u->flat[k].flat->num_params; i++) {
            const cr_param *p = u->flat[k].flat->params[i];
            CR_CHECK(p->weight.data && p->weight.dtype == watch.p->dtype, "%s: %s is not there",
                     watch.p->name, p->name);
            CR_CHECK((p->grad != NULL) == (phase == CR_BACKWARD && k == 0), "%s: gradient of %s",
                     watch.p->name, p->name);
        }
}

static void check_state(const cri_unit *u, cri_unit_state state, bool is_sliced, const char *when)
{
    CR_CHECK(u->state == state && u->is_sliced == is_sliced, "%s: %s: %s has state %d, sliced %d",
             watch.p->name, when, u->unit->name, (int)u->state, u->is_sliced);
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < u->flat[k].flat->num_params && state == CRI_SHARDED; i++)
            CR_CHECK(!u->flat[k].flat->params[i]->weight.data, "%s: %s: a view of %s is left",
                     watch.p->name, when, u->unit->name);
}

/* C9: before a unit computes, the one that comes next in this pass is on its way. Known from the first
 * step on. */
static void check_next(cr_phase phase)
{
    const cri_order *o = watch.f->order;

    if (watch.step == 0 || o->at >= o->num) return;
    CR_CHECK(o->units[o->at]->state != CRI_SHARDED, "%s: phase %d: %s is not gathered ahead",
             watch.p->name, (int)phase, o->units[o->at]->unit->name);
    watch.num_ahead++;
}

static cr_status before(void *ctx, const cr_module *m, cr_phase phase, cr_err *e)
{
    const cri_unit *u = m->unit;

    CR_TRY(cri_before(ctx, m, phase, e));
    if (!u || u->index == 0) return CR_OK;
    watch.num_calls[phase]++;
    if (phase == CR_BACKWARD && strcmp(m->cls, "Embedding") == 0) return CR_OK;
    check_state(u, CRI_UNSHARDED, u->is_sliced, "before");
    check_there(u, phase);
    check_next(phase);
    return CR_OK;
}

static cr_status after(void *ctx, const cr_module *m, cr_phase phase, cr_err *e)
{
    const cri_unit *u = m->unit;
    bool is_kept = is_never(watch.p) || phase == CR_RECOMPUTE,
         is_sliced = watch.p->reshard_ranks == 2 && watch.is_with_backward && phase != CR_BACKWARD;

    CR_TRY(cri_after(ctx, m, phase, e));
    if (!u || u->index == 0) return CR_OK;
    check_state(u, is_kept ? CRI_UNSHARDED : CRI_SHARDED, is_sliced, "after");
    return CR_OK;
}

/* What is frozen and had no backward keeps its slice until the weights change. */
static void check_all(cri_unit_state root, cri_unit_state others, const char *when)
{
    for (size_t i = 0; i < watch.f->units.num; i++) {
        const cri_unit *u = &watch.f->state[i];
        bool is_frozen = u->unit->trained.num_params == 0 && watch.is_with_backward;
        check_state(u, i ? others : root, is_frozen && u->is_sliced, when);
    }
}

/* Masters and moments in master_dtype, gradients in float32, what is frozen in param_dtype. */
static void check_kept(const cr_fsdp *f)
{
    size_t trained = (size_t)f->units.trained_shard.elems,
           master = cr_dtype_bytes(f->args.master_dtype);

    CR_CHECK(f->arena[CRI_MASTER].num_bytes == trained * master &&
                 f->arena[CRI_M].num_bytes == trained * master &&
                 f->arena[CRI_V].num_bytes == trained * master &&
                 f->arena[CRI_GRAD].num_bytes == trained * sizeof(float) &&
                 f->arena[CRI_FROZEN].num_bytes ==
                     (size_t)cr_extent_bytes(f->units.frozen_shard, f->args.param_dtype),
             "%s: bytes kept", watch.p->name);
}

/* Log-probs leave in float32: the low bits of some of them are not those of a rounded number. */
static void check_output(const float *x, int num)
{
    uint32_t low = 0, bits;

    for (int i = 0; i < num; i++) {
        memcpy(&bits, &x[i], sizeof bits);
        low |= bits & 0xfff;
    }
    CR_CHECK(low != 0, "%s: outputs are rounded", watch.p->name);
}

static void test_c7_c9_c11_states_and_dtypes(void)
{
    static const char frozen[] = "model.embed_tokens,model.layers.0.self_attn,model.layers.2";
    const plan plans[] = {
        {.name = "null"},
        {.name = "true", .reshard = CR_RESHARD_ALWAYS},
        {.name = "false", .reshard = CR_RESHARD_NEVER},
        {.name = "1", .reshard_ranks = 1},
        {.name = "2", .reshard_ranks = 2},
        {.name = "4", .reshard_ranks = 4},
        {.name = "null, no recompute", .is_recomputed_off = true},
        {.name = "bf16", .dtype = CR_BF16},
        {.name = "bf16, bf16 masters", .dtype = CR_BF16, .master = CR_BF16},
        {.name = "fp16, frozen", .dtype = CR_F16, .frozen = frozen, .reshard_ranks = 2},
        {.name = "bf16, frozen", .dtype = CR_BF16, .frozen = frozen},
        {.name = "fp32, frozen", .frozen = frozen, .reshard = CR_RESHARD_NEVER},
    };
    int ranks[RANKS] = {0, 1, 2, 3};

    for (size_t i = 0; i < CR_COUNT(plans); i++) {
        const plan *p = &plans[i];
        cr_fsdp_args args = {.is_train = true,
                             .param_dtype = p->dtype,
                             .master_dtype = p->master,
                             .reshard = p->reshard,
                             .reshard_ranks = p->reshard_ranks,
                             .should_recompute = !p->is_recomputed_off,
                             .seed = 11};
        static float log_prob[MAX_SEQS * MAX_LEN], entropy[MAX_SEQS * MAX_LEN];
        cr_model *model = make_model(p);
        batch *x = CR_NEW(batch);
        loss_ctx l = {.total = 20};
        int labels = append(x, 0, 1) + append(x, 0, 2);
        cri_unit_state root = p->reshard == CR_RESHARD_ALWAYS ? CRI_SHARDED : CRI_UNSHARDED,
                       others = is_never(p) ? CRI_UNSHARDED : CRI_SHARDED;
        cr_mesh_shape shape;
        cr_device *dev;
        cr_mesh *mesh;
        cr_update update;
        cr_fsdp *f;
        OK(cr_device_open(cr_device_default(), 1, &dev, &err));
        OK(cr_mesh_shape_init(&shape, RANKS, RANKS, 1, 1, 0, &err));
        OK(cr_mesh_create(world, dev, "actor_train", ranks, &shape, &mesh, &err));
        OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
        watch = (probe){.p = p, .f = f};
        f->hooks = (cr_hooks){before, after, f};
        check_kept(f);
        check_all(CRI_SHARDED, CRI_SHARDED, "at the start");
        for (int step = 0; step < 2; step++) { /* gathered ahead from the second on */
            watch.is_with_backward = false;
            watch.step = step;
            OK(cr_fsdp_forward(f, &x->b, &(cr_outputs){{log_prob, entropy}}, &err));
            check_output(log_prob, labels);
            check_output(entropy, labels);
            check_all(root, others, "after a forward");
            watch.is_with_backward = true;
            OK(cr_fsdp_backward(f, &x->b, loss, &l, &err));
            check_all(root, others, "after a backward");
            OK(cr_fsdp_update(f, 1e-3, &update, &err));
            watch.is_with_backward = false;
            check_all(CRI_SHARDED, CRI_SHARDED, "after an update");
        }
        CR_CHECK(watch.num_ahead >= (is_never(p) ? 3 : 6), "%s: %d units were gathered ahead",
                 p->name, watch.num_ahead);
        CR_CHECK(watch.num_calls[CR_FORWARD] > 0 && watch.num_calls[CR_BACKWARD] > 0 &&
                     (watch.num_calls[CR_RECOMPUTE] > 0) == !p->is_recomputed_off,
                 "%s: hooks were not called", p->name);
        cr_fsdp_destroy(f);
        cr_mesh_destroy(mesh);
        cr_model_free(model);
        cr_device_close(dev);
        cr_free(x);
        OK(cr_barrier(everyone, p->name, &err));
    }
}

/* ---- C13, C21 ---- */

/* Sums are never in 16 bits: each contribution is float32 before the reduction, so there are no factors
 * before and after it that would have to divide the number of ranks. */
static void test_c13_any_number_of_ranks(void)
{
    plan p = usual;
    result one, r;

    p.name = "fp16";
    p.dtype = CR_F16;
    p.loss_scale = 1024;
    p.micro = 1;
    p.last = 1;
    one = train(p);
    for (int n = 2; n <= RANKS; n++) {
        p.ranks = n;
        r = train(p);
        if (me == 0) {
            double far = distance(r.grad, one.grad, one.num_grad);
            CR_CHECK(far <= grad_tol, "fp16 on %d ranks: gradient off by %.3g", n, far);
        }
        cr_free(r.grad);
    }
    cr_free(one.grad);
}

/* The norm has the same bits on every rank of every mesh, so all clip alike. */
static void test_c21_one_norm(void)
{
    const plan plans[] = {
        {.name = "norm, 3 ranks", .ranks = 3},
        {.name = "norm, hsdp", .ranks = 4, .fsdp = 2},
        {.name = "norm, offloaded", .ranks = 4, .is_offloaded = true},
        {.name = "norm, replicas", .ranks = 4, .fsdp = 2, .is_reduced_once = true}};
    plan one = usual;
    result want, r;

    one.name = "norm";
    one.last = 2;
    want = train(one);
    for (size_t i = 0; i < CR_COUNT(plans); i++) {
        plan p = plans[i];
        double ends[2];
        p.micro = usual.micro, p.num_seqs = usual.num_seqs, p.last = 2, p.inf_step = -1;
        r = train(p);
        ends[0] = me < p.ranks ? r.norm[0] : 0;
        ends[1] = me < p.ranks ? -r.norm[0] : -1e9;
        OK(cr_all_reduce_f64(everyone, "norms", CR_OP_MAX, ends, 2, &err));
        CR_CHECK(ends[0] == -ends[1], "%s: %.17g and %.17g", p.name, ends[0], -ends[1]);
        if (me == 0)
            CR_CHECK(fabs(r.norm[0] - want.norm[0]) <= 1e-6 * want.norm[0], "%s: %.9g, want %.9g",
                     p.name, r.norm[0], want.norm[0]);
        cr_free(r.grad);
    }
    cr_free(want.grad);
}

int main(void)
{
    open_world();
    test_c7_c9_c11_states_and_dtypes();
    test_c13_any_number_of_ranks();
    test_c21_one_norm();
    close_world();
    return 0;
}
