/* optimizer.c -- updates that are not the same for all parameters: groups with rates and decays of their own, on 1, 2 and 4
 * ranks, however they are cut, with bf16 weights beside masters, with bf16 masters, and through a checkpoint; and Muon against
 * float64.
 * Not covered: parity with torch (tests/parity/optimizers.py).
 * // ranks: 4
 * // also on hosts: 0,1
 * // also on far
 */
#include "tests/mesh/train_resume.h"

static const cr_optimizer_options norms_thrice = {.rules = {{".*norm.*", 3, -1}}, .num_rules = 1},
                                  as_all = {.rules = {{"q_proj.weight,k_proj.weight", 1, 0.1},
                                                      {".*", 1, -1}},
                                            .num_rules = 2};

/* Masters of trained parameters whose names have `part`, or those of all others, are the same bits in both. */
static void same_masters(const char *a, const char *b, const char *part, bool has_part)
{
    cr_buf x = read_state(a, "state/actor_train.master"),
           y = read_state(b, "state/actor_train.master");
    char *path = cr_asprintf("%s/%s/state/actor_train.json", folder, a);
    json_t *index, *entry;
    const char *name;
    int num = 0;

    OK(cr_json_read_file(path, &index, &err));
    json_object_foreach(json_object_get(index, "params"), name, entry)
    {
        size_t first = 4 * (size_t)json_integer_value(json_object_get(entry, "first")),
               bytes = 4 * (size_t)json_integer_value(json_object_get(entry, "num"));
        if ((strstr(name, part) != NULL) != has_part) continue;
        num++;
        CR_CHECK(memcmp(x.data + first, y.data + first, bytes) == 0, "%s of %s and %s differ", name,
                 a, b);
    }
    CR_CHECK(num > 5, "%d parameters", num);
    json_decref(index);
    cr_free(path);
    cr_buf_free(&x);
    cr_buf_free(&y);
}

/* An update with a rule is for each parameter that of a run which has the rule's numbers for all. */
static void test_groups(void)
{
    plan p = usual;

    p.last = 1;
    p.lr = 2e-3;
    p.name = p.save = "once";
    cr_free(train(p).grad);
    p.name = p.save = "same";
    p.optimizer = as_all;
    cr_free(train(p).grad);
    same_bytes("once", "same");
    p.optimizer = (cr_optimizer_options){0};
    p.lr = 6e-3;
    p.name = p.save = "thrice";
    cr_free(train(p).grad);
    p.lr = 2e-3;
    p.optimizer = norms_thrice;
    p.name = p.save = "norms";
    cr_free(train(p).grad);
    if (me == 0) same_masters("norms", "thrice", "norm", true);
    if (me == 0) same_masters("norms", "once", "norm", false);
    if (me == 0) CR_CHECK(!is_same("norms", "once", "state/actor_train.master"), "no rule counts");
}

/* A weight decay of its own: p (1 - lr wd) less the same step. */
static void test_decay(void)
{
    plan p = usual;

    p.last = 1;
    p.lr = 2e-3;
    p.optimizer = (cr_optimizer_options){.rules = {{".*", 1, 0}}, .num_rules = 1};
    p.name = p.save = "no decay";
    cr_free(train(p).grad);
    p.last = 0;
    p.name = p.save = "start";
    train(p);
    if (me != 0) return;
    cr_buf with = read_state("once", "state/actor_train.master"),
           without = read_state("no decay", "state/actor_train.master"),
           start = read_state("start", "state/actor_train.master");
    const float *a = (const float *)(const void *)with.data,
                *b = (const float *)(const void *)without.data,
                *s = (const float *)(const void *)start.data;
    for (size_t i = 0; i < with.num_bytes / 4; i++)
        CR_CHECK(fabs((double)b[i] - (double)a[i] - 2e-3 * 0.1 * (double)s[i]) <=
                     2.5e-7 * (fabs((double)s[i]) + fabs((double)b[i])),
                 "element %zu: %.9g and %.9g from %.9g", i, (double)a[i], (double)b[i],
                 (double)s[i]);
    cr_buf_free(&with);
    cr_buf_free(&without);
    cr_buf_free(&start);
}

static void test_cuts(const char *name, cr_optimizer_options options, double tol)
{
    const plan plans[] = {{.name = "2 ranks", .ranks = 2},
                          {.name = "4 ranks", .ranks = 4},
                          {.name = "hsdp", .ranks = 4, .fsdp = 2},
                          {.name = "no reshard", .ranks = 4, .reshard = CR_RESHARD_NEVER},
                          {.name = "parts", .ranks = 4, .wrap = parts}};
    plan one = usual;

    one.name = name;
    one.optimizer = options;
    one.save = "one";
    cr_free(train(one).grad);
    one.save = "start";
    one.last = 0;
    train(one);
    for (size_t i = 0; i < CR_COUNT(plans); i++) {
        plan p = plans[i];
        p.save = "cut";
        p.optimizer = options;
        p.micro = usual.micro, p.num_seqs = usual.num_seqs, p.last = usual.last, p.inf_step = -1;
        cr_free(train(p).grad);
        if (me != 0 || p.wrap.is_nested) continue; /* another order of parameters in the files */
        double far = update_distance("cut", "one", "start");
        CR_CHECK(far <= tol, "%s, %s: update off by %.3g", name, p.name, far);
    }
}

/* Rules that change nothing leave every bit where masters are rounded for passes, and where they are bf16. */
static void test_rounded(cr_dtype master)
{
    plan p = usual;

    p.dtype = CR_BF16;
    p.master = master;
    p.reshard = CR_RESHARD_NEVER;
    p.name = p.save = "rounded";
    cr_free(train(p).grad);
    p.optimizer = as_all;
    p.name = p.save = "rounded by rules";
    cr_free(train(p).grad);
    same_bytes("rounded", "rounded by rules");
}

static void test_resume(cr_optimizer_options options)
{
    plan p = usual;

    p.name = "resume";
    p.optimizer = options;
    resume_half(p);
    p.resume = "half";
    for (int ranks = 1; ranks <= 3; ranks++) { /* read and written on another mesh */
        p.ranks = ranks;
        p.first = p.last = 2;
        p.save = "again";
        train(p);
        same_bytes("half", "again");
    }
}

/* ---- Muon ---- */

/* An update of 4 steps differs by the sums of gradients, which the steps of Newton and Schulz make larger. */
static const double muon_tol = 1e-4;

static const cr_optimizer_options muon = {.muon = {.is_on = true,
                                                   .is_nesterov = true,
                                                   .lr_scale = 1.5,
                                                   .weight_decay = 0.2,
                                                   .momentum = 0.9,
                                                   .eps = 1e-7,
                                                   .ns_steps = 5}};

/* The formula of torch.optim.Muon in float64: u [rows, cols] becomes orthogonal, nearly. */
static void orthogonalise(double *u, int64_t rows, int64_t cols, int64_t steps)
{
    const int64_t side = rows < cols ? rows : cols;
    const bool is_tall = rows > cols;
    double *x = CR_NEW_ARRAY(double, rows *cols), *gram = CR_NEW_ARRAY(double, side *side),
           *poly = CR_NEW_ARRAY(double, side *side), squares = 0;

    for (int64_t i = 0; i < rows * cols; i++)
        squares += u[i] * u[i];
    for (int64_t i = 0; i < rows * cols; i++)
        u[i] /= fmax(sqrt(squares), 1e-7);
    for (int64_t s = 0; s < steps; s++) {
        for (int64_t i = 0; i < side; i++)
            for (int64_t j = 0; j < side; j++) {
                double sum = 0;
                for (int64_t k = 0; k < (is_tall ? rows : cols); k++)
                    sum += is_tall ? u[k * cols + i] * u[k * cols + j]
                                   : u[i * cols + k] * u[j * cols + k];
                gram[i * side + j] = sum;
            }
        for (int64_t i = 0; i < side; i++)
            for (int64_t j = 0; j < side; j++) {
                double sum = 0;
                for (int64_t k = 0; k < side; k++)
                    sum += gram[i * side + k] * gram[k * side + j];
                poly[i * side + j] = -4.7750 * gram[i * side + j] + 2.0315 * sum;
            }
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j++) {
                double sum = 3.4445 * u[i * cols + j];
                for (int64_t k = 0; k < side; k++)
                    sum += is_tall ? u[i * cols + k] * poly[k * side + j]
                                   : poly[i * side + k] * u[k * cols + j];
                x[i * cols + j] = sum;
            }
        memcpy(u, x, (size_t)(rows * cols) * sizeof *u);
    }
    cr_free(x);
    cr_free(gram);
    cr_free(poly);
}

typedef struct states {
    cr_buf master, m, v;
} states;

static states read_states(const char *name)
{
    return (states){read_state(name, "state/actor_train.master"),
                    read_state(name, "state/actor_train.m"),
                    read_state(name, "state/actor_train.v")};
}

static void states_free(states *s)
{
    cr_buf_free(&s->master);
    cr_buf_free(&s->m);
    cr_buf_free(&s->v);
}

static double at(const cr_buf *state, int64_t elem)
{
    return (double)((const float *)(const void *)state->data)[elem];
}

static bool is_matrix(const cr_param *p)
{
    return strstr(p->name, "_proj.weight") != NULL;
}

/* One parameter's update from the states before it and its moments after it; returns the error as a share of the update. */
static double check_matrix(const cr_param *p, int64_t first, const states *before,
                           const states *after, double lr)
{
    const cr_muon_options *o = &muon.muon;
    const double rate = lr * o->lr_scale,
                 adjust = 0.2 * sqrt((double)cr_max64(p->shape[0], p->shape[1]));
    double *u = CR_NEW_ARRAY(double, p->num_elems), far = 0, size = 0;

    for (int64_t i = 0; i < p->num_elems; i++) {
        const double m = at(&after->m, first + i),
                     grad = m - o->momentum * at(&before->m, first + i);
        u[i] = grad + o->momentum * m;
    }
    orthogonalise(u, p->shape[0], p->shape[1], o->ns_steps);
    for (int64_t i = 0; i < p->num_elems; i++) {
        const double old = at(&before->master, first + i),
                     want = old * (1 - rate * o->weight_decay) - rate * adjust * u[i],
                     got = at(&after->master, first + i);
        far += (got - want) * (got - want);
        size += (want - old) * (want - old);
    }
    cr_free(u);
    return sqrt(far / size);
}

static bool has_seconds(const states *s, int64_t first, int64_t num)
{
    for (int64_t i = first; i < first + num; i++)
        if (at(&s->v, i) > 0) return true;
    return false;
}

/* The moments of the first step are 0.1 of the clipped gradient, whose norm is max_grad_norm. */
static void check_clip(const cr_buf *m)
{
    double sum = 0;

    for (size_t i = 0; i < m->num_bytes / sizeof(float); i++)
        sum += at(m, (int64_t)i) * at(m, (int64_t)i);
    CR_CHECK(fabs(sqrt(sum) - 0.1 * 0.5) <= 1e-6, "moments of norm %.9g", sqrt(sum));
}

static void test_reference(void)
{
    static const char *const names[] = {"muon 0", "muon 1", "muon 2", "muon 3"};
    cr_model *model = make_model(&usual);
    plan p = usual;
    double worst = 0;

    p.lr = 2e-3;
    p.optimizer = muon;
    for (int s = 0; s < 4; s++) {
        p.name = p.save = names[s];
        p.last = s;
        cr_free(train(p).grad);
    }
    for (int s = 1; s < 4 && me == 0; s++) {
        states before = read_states(names[s - 1]), after = read_states(names[s]);
        int64_t first = 0;
        for (size_t i = 0; i < model->num_params; i++) {
            const cr_param *param = model->params[i];
            if (is_matrix(param))
                worst = fmax(worst, check_matrix(param, first, &before, &after, p.lr));
            CR_CHECK(has_seconds(&after, first, param->num_elems) == !is_matrix(param),
                     "%s: second moments", param->name);
            first += param->num_elems;
        }
        if (s == 1) check_clip(&after.m);
        states_free(&before);
        states_free(&after);
    }
    CR_CHECK(worst < 3e-5, "Muon differs from float64 by %.3g of an update", worst);
    cr_model_free(model);
}

/* Where a rank's weights are kept rounded beside its masters they are the same. */
static void test_muon_rounded(void)
{
    plan p = usual;

    p.dtype = CR_BF16;
    p.optimizer = muon;
    p.name = p.save = "resharded";
    cr_free(train(p).grad);
    p.reshard = CR_RESHARD_NEVER;
    p.name = p.save = "kept";
    cr_free(train(p).grad);
    same_bytes("resharded", "kept");
}

/* A checkpoint of another optimizer is refused. */
static void test_other_optimizer(void)
{
    plan p = usual;
    cr_device *dev;
    cr_mesh_shape shape;
    cr_mesh *mesh;
    cr_fsdp *f;
    int ranks[RANKS] = {0, 1, 2, 3};
    cr_fsdp_args args = {.is_train = true, .seed = 11};
    char *path = path_of("half");
    cr_model *model = make_model(&p);

    OK(cr_device_open(cr_device_default(), 1, &dev, &err));
    OK(cr_mesh_shape_init(&shape, RANKS, 2, 1, 1, 0, &err));
    OK(cr_mesh_create(world, dev, "actor_train", ranks, &shape, &mesh, &err));
    OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
    CR_CHECK(cr_fsdp_resume(f, path, "actor_train", true, &err) == CR_ECONFIG &&
                 strstr(err.msg, "has moments of muon for model.layers.0.self_attn.q_proj.weight"),
             "resumed: %s", err.msg);
    err = (cr_err){0};
    cr_fsdp_destroy(f);
    cr_mesh_destroy(mesh);
    cr_model_free(model);
    cr_device_close(dev);
    cr_free(path);
}

int main(void)
{
    open_world();
    test_groups();
    test_decay();
    test_cuts("norms", norms_thrice, update_tol);
    test_rounded(CR_F32);
    test_rounded(CR_BF16);
    test_resume(norms_thrice);
    test_reference();
    test_cuts("muon", muon, muon_tol);
    test_muon_rounded();
    test_resume(muon);
    test_other_optimizer();
    close_world();
    return 0;
}
