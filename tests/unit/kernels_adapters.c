/* kernels_adapters.c -- Linears with adapters (kernels/adapters.h) on the device under test (CROLL_DEVICE): numbers of the same
 * products one by one (cr_linear, cr_scale, cr_linear_grad), groups of one to three of which one may have no adapter, or an x of its own for A, ranks of 1 to 40; by
 * bytes: rows alone and in company, alone and in a group, packed weights, one thread and three; B of zeros is the base. Not covered: speed.
 */
// also on far
// also on cuda
#include "kernels/adapters.h"
#include "tests/both_devices.h"

static const cr_dtype act[] = {CR_F32, CR_BF16, CR_F16};

/* Each dtype with some groups. */
static bool is_tried(size_t group, int dtype)
{
    return (group + (size_t)dtype) % 2 == 0;
}

/* Sizes of a group: ranks 0 where a Linear has no adapter. */
typedef struct group {
    int num;
    int64_t m, k, n[CR_LINEARS], r[CR_LINEARS];
    float scale[CR_LINEARS];
    bool has_own[CR_LINEARS]; /* A is given another x */
} group;
static const group groups[] = {
    {1, 1, 72, {40}, {16}, {2}},
    {1, 37, 40, {24}, {3}, {0.5f}},
    {2, 13, 64, {136, 136}, {8, 8}, {2, 2}},
    {3, 70, 40, {136, 40, 40}, {16, 16, 16}, {2, 2, 2}},
    {3, 130, 40, {48, 16, 31}, {40, 0, 1}, {1.5f, 0, 3}},
    {3, 21, 72, {40, 24, 16}, {8, 8, 8}, {2, 2, 2}, {false, true, false}},
    {2, 67, 40, {24, 16}, {5, 16}, {2, 2}, {true, true}},
    {3, 5, 2080, {33, 264, 8}, {0, 24, 8}, {0, 1, 0.25f}},
};

/* Arrays of a case, on both devices. */
typedef struct arrays {
    int x, w[CR_LINEARS], a[CR_LINEARS], b[CR_LINEARS], bias[CR_LINEARS], y[CR_LINEARS], add, h, dh;
    int own[CR_LINEARS];
} arrays;

static int64_t ranks_of(const group *g)
{
    return g->r[0] + g->r[1] + g->r[2];
}

static arrays make(const group *g, cr_dtype dt)
{
    arrays s = {.x = floats(dt, g->m * g->k, 1, 0), .add = floats(dt, g->m * g->n[0], 1, 0)};

    for (int i = 0; i < g->num; i++) {
        s.w[i] = floats(dt, g->n[i] * g->k, 0.2, 0);
        s.a[i] = floats(dt, g->r[i] * g->k + 1, 0.2, 0);
        s.b[i] = floats(dt, g->r[i] * g->n[i] + 1, 0.3, 0);
        s.bias[i] = floats(dt, g->n[i], 1, 0);
        s.y[i] = floats(dt, g->m * g->n[i], 1, 0);
        if (g->has_own[i]) s.own[i] = floats(dt, g->m * g->k, 1, 0);
    }
    s.h = floats(dt, g->m * ranks_of(g), 1, 0);
    s.dh = floats(dt, g->m * ranks_of(g), 1, 0);
    return s;
}

static cr_low_rank low_of(const group *g, const arrays *s, cr_dtype dt, int i, int64_t first)
{
    const int d = 1;

    if (!g->r[i]) return (cr_low_rank){0};
    return (cr_low_rank){{M(s->a[i]), dt, g->r[i], g->k, NULL},
                         {M(s->b[i]), dt, g->n[i], g->r[i], NULL},
                         g->scale[i],
                         g->has_own[i] ? cr_at(dt, M(s->own[i]), first * g->k) : NULL};
}

/* The call of rows [first, first + num), on the device under test. */
static cr_adapted_linears_args call_of(const group *g, const arrays *s, cr_dtype dt, int64_t first,
                                       int64_t num)
{
    const int d = 1;
    cr_adapted_linears_args a = {.h = M(s->h)};

    a.base.x = cr_at(dt, M(s->x), first * g->k);
    a.base.num = g->num;
    a.base.num_rows = num;
    if (g->num == 1) a.add = cr_at(dt, M(s->add), first * g->n[0]);
    for (int i = 0; i < g->num; i++) {
        a.base.w[i] = (cr_weight){M(s->w[i]), dt, g->n[i], g->k, NULL};
        a.base.bias[i] = i == 1 ? NULL : M(s->bias[i]);
        a.base.y[i] = cr_at(dt, M(s->y[i]), first * g->n[i]);
        a.low[i] = low_of(g, s, dt, i, first);
    }
    return a;
}

static float *fetch(const cr_mem *mem, cr_dtype dt, int64_t num)
{
    void *narrow = cr_alloc((size_t)num * cr_dtype_bytes(dt) + 64);
    float *out = CR_NEW_ARRAY(float, num + 1);

    OK(cr_download(dev, narrow, mem, (size_t)num * cr_dtype_bytes(dt), &err));
    cr_cast_host(CR_F32, out, dt, narrow, (size_t)num);
    cr_free(narrow);
    return out;
}

/* Near in the size of their sums: a few roundings of the dtype. */
static void near_all(const char *what, cr_dtype dt, const cr_mem *want, cr_dtype got_dt,
                     const cr_mem *got, int64_t num, int64_t depth)
{
    float *w = fetch(want, got_dt, num), *g = fetch(got, got_dt, num);
    double bit = dt == CR_BF16 ? 0x1p-6 : dt == CR_F16 ? 0x1p-9 : 2e-6, size = sqrt((double)depth);

    for (int64_t i = 0; i < num; i++)
        if (!(fabs((double)w[i] - (double)g[i]) <= bit * (fabs((double)w[i]) + size)))
            fail_msg("%s in %s: element %lld is %.9g, not %.9g", what, cr_dtype_name(dt),
                     (long long)i, (double)g[i], (double)w[i]);
    cr_free(w);
    cr_free(g);
}

/* scale x A^T in the dtype, by products that the base has. */
static cr_mem *inner_one_by_one(const cr_mem *x, const cr_weight *a, float scale, int64_t m)
{
    size_t num = (size_t)(m * a->num_rows);
    cr_mem *wide, *h;

    OK(cr_device_alloc(dev, 4 * num, &wide, &err));
    OK(cr_device_alloc(dev, 4 * num, &h, &err));
    OK(cr_linear(dev, &(cr_linear_args){x, a, NULL, NULL, wide, CR_F32, m}, &err));
    OK(cr_scale(dev, &(cr_scale_args){wide, scale, num}, &err));
    OK(cr_cast(dev, &(cr_cast_args){a->dtype, h, CR_F32, wide, num}, &err));
    cr_device_free(dev, wide, 4 * num);
    return h;
}

static void forward_numbers(const group *g, cr_dtype dt)
{
    const arrays s = make(g, dt);
    const cr_adapted_linears_args a = call_of(g, &s, dt, 0, g->m);

    OK(cr_adapted_linears(dev, &a, &err));
    for (int i = 0; i < g->num; i++) {
        int d = 1, y = floats(dt, g->m * g->n[i], 1, 0);
        cr_linear_args one = cr_linear_of(&a.base, i);
        one.add = a.add;
        one.y = M(y);
        OK(cr_linear(dev, &one, &err));
        if (g->r[i]) {
            const cr_mem *x = a.low[i].x ? a.low[i].x : M(s.x);
            cr_mem *h = inner_one_by_one(x, &a.low[i].a, g->scale[i], g->m);
            OK(cr_linear(dev, &(cr_linear_args){h, &a.low[i].b, NULL, M(y), M(y), dt, g->m}, &err));
            cr_device_free(dev, h, (size_t)(4 * g->m * g->r[i]));
        }
        near_all("y", dt, M(y), dt, a.base.y[i], g->m * g->n[i], 64);
    }
    drop_all();
}

/* Added to products that are there. */
static void forward_of_base_made(const group *g, cr_dtype dt)
{
    const arrays s = make(g, dt);
    const cr_adapted_linears_args a = call_of(g, &s, dt, 0, g->m);
    cr_adapted_linears_args made = a;

    OK(cr_adapted_linears(dev, &a, &err));
    made.add = NULL;
    made.is_base_made = true;
    for (int i = 0; i < g->num; i++) {
        int d = 1, y = floats(dt, g->m * g->n[i], 1, 0);
        cr_linear_args one = cr_linear_of(&a.base, i);
        one.add = a.add;
        one.y = made.base.y[i] = M(y);
        OK(cr_linear(dev, &one, &err));
    }
    OK(cr_adapted_linears(dev, &made, &err));
    for (int i = 0; i < g->num; i++)
        near_all("y of a base made", dt, a.base.y[i], dt, made.base.y[i], g->m * g->n[i], 64);
    drop_all();
}

/* dx, to which the base's products are added first. */
static void back_of_base_made(const cr_adapted_linears_grad_args *a, cr_dtype dt, cr_mem *dx,
                              const cr_mem *want)
{
    cr_adapted_linears_grad_args made = *a;

    made.dx = dx;
    made.is_dx_added = made.is_base_made = true;
    for (int i = 0; i < a->num; i++) {
        const cr_linear_grad_args base = {.dy = a->dy[i],
                                          .w = &a->w[i],
                                          .dx = dx,
                                          .is_dx_added = i > 0 || a->is_dx_added,
                                          .num_rows = a->num_rows};
        made.da[i] = made.db[i] = NULL;
        OK(cr_linear_grad(dev, &base, &err));
    }
    OK(cr_adapted_linears_grad(dev, &made, &err));
    near_all("dx of a base made", dt, want, dt, dx, a->num_rows * a->w[0].num_cols, 64);
}

/* Gradients of one of them: dx, own (of an x of A's own), and onto dA, dB. */
static void back_one_by_one(const cr_adapted_linears_grad_args *a, int i, cr_dtype dt, cr_mem *dx,
                            cr_mem *own, cr_mem *da, cr_mem *db, bool is_dx_added)
{
    const cr_low_rank *low = &a->low[i];
    const cr_mem *x = low->x ? low->x : a->x;
    const int64_t m = a->num_rows, r = low->a.num_rows;
    cr_linear_grad_args inner = {.x = x,
                                 .w = &low->a,
                                 .dx = low->x ? own : dx,
                                 .is_dx_added = !low->x,
                                 .dw = da,
                                 .num_rows = m};
    cr_mem *h, *dh, *wide;

    OK(cr_linear_grad(
        dev, &(cr_linear_grad_args){NULL, a->dy[i], &a->w[i], dx, is_dx_added, NULL, NULL, m},
        &err));
    if (!low->a.data) return;
    h = inner_one_by_one(x, &low->a, low->scale, m);
    OK(cr_device_alloc(dev, (size_t)(4 * m * r), &dh, &err));
    OK(cr_device_alloc(dev, (size_t)(4 * m * r), &wide, &err));
    OK(cr_linear_grad(dev, &(cr_linear_grad_args){h, a->dy[i], &low->b, dh, false, db, NULL, m},
                      &err));
    OK(cr_cast(dev, &(cr_cast_args){CR_F32, wide, dt, dh, (size_t)(m * r)}, &err));
    OK(cr_scale(dev, &(cr_scale_args){wide, low->scale, (size_t)(m * r)}, &err));
    OK(cr_cast(dev, &(cr_cast_args){dt, dh, CR_F32, wide, (size_t)(m * r)}, &err));
    inner.dy = dh;
    OK(cr_linear_grad(dev, &inner, &err));
    cr_device_free(dev, h, (size_t)(4 * m * r));
    cr_device_free(dev, dh, (size_t)(4 * m * r));
    cr_device_free(dev, wide, (size_t)(4 * m * r));
}

static void backward_numbers(const group *g, cr_dtype dt)
{
    const arrays s = make(g, dt);
    const int d = 1, dx = floats(dt, g->m * g->k, 1, 0), dx_want = floats(dt, g->m * g->k, 1, 0);
    const int made = floats(dt, g->m * g->k, 1, 0);
    const bool is_added = g->m % 2;
    cr_adapted_linears_grad_args a = {.x = M(s.x),
                                      .dx = M(dx),
                                      .is_dx_added = is_added,
                                      .h = M(s.h),
                                      .dh = M(s.dh),
                                      .num = g->num,
                                      .num_rows = g->m};
    cr_mem *da[CR_LINEARS], *db[CR_LINEARS]; /* wanted, then got */
    int own[CR_LINEARS];                     /* wanted */

    OK(cr_copy(dev, M(dx), M(dx_want), bytes_of(&all[dx]), &err));
    OK(cr_copy(dev, M(made), M(dx), bytes_of(&all[dx]), &err));
    for (int i = 0; i < g->num; i++) {
        a.dy[i] = M(s.y[i]);
        a.w[i] = (cr_weight){M(s.w[i]), dt, g->n[i], g->k, NULL};
        a.low[i] = low_of(g, &s, dt, i, 0);
        OK(cr_device_alloc(dev, (size_t)(8 * g->r[i] * g->k + 8), &da[i], &err));
        OK(cr_device_alloc(dev, (size_t)(8 * g->r[i] * g->n[i] + 8), &db[i], &err));
        OK(cr_zero(dev, da[i], (size_t)(8 * g->r[i] * g->k), &err));
        OK(cr_zero(dev, db[i], (size_t)(8 * g->r[i] * g->n[i]), &err));
        own[i] = g->has_own[i] ? floats(dt, g->m * g->k, 1, 0) : dx_want;
        back_one_by_one(&a, i, dt, M(dx_want), M(own[i]), da[i], db[i], i > 0 || is_added);
        a.da[i] = cr_at(CR_F32, da[i], g->r[i] * g->k);
        a.db[i] = cr_at(CR_F32, db[i], g->r[i] * g->n[i]);
    }
    OK(cr_adapted_linears_grad(dev, &a, &err));
    near_all("dx", dt, M(dx_want), dt, M(dx), g->m * g->k, 64);
    for (int i = 0; i < g->num; i++)
        if (a.low[i].x) near_all("own dx", dt, M(own[i]), dt, a.low[i].x, g->m * g->k, 8);
    back_of_base_made(&a, dt, M(made), M(dx_want));
    a.dx = NULL; /* the gradients of A and B twice */
    OK(cr_adapted_linears_grad(dev, &a, &err));
    for (int i = 0; i < g->num; i++) {
        const cr_low_rank *low = &a.low[i];
        if (low->a.data) back_one_by_one(&a, i, dt, M(dx_want), M(own[i]), da[i], db[i], false);
        near_all("dA", dt, da[i], CR_F32, a.da[i], g->r[i] * g->k, 40 * g->m);
        near_all("dB", dt, db[i], CR_F32, a.db[i], g->r[i] * g->n[i], 40 * g->m);
        cr_device_free(dev, da[i], (size_t)(8 * g->r[i] * g->k + 8));
        cr_device_free(dev, db[i], (size_t)(8 * g->r[i] * g->n[i] + 8));
    }
    drop_all();
}

static void numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < CR_COUNT(groups); i++)
        for (int t = 0; t < 3; t++) {
            if (!is_tried(i, t)) continue;
            forward_numbers(&groups[i], act[t]);
            forward_of_base_made(&groups[i], act[t]);
            backward_numbers(&groups[i], act[t]);
        }
}

/* ---- by bytes ---- */

static void same_bytes(const char *what, cr_dtype dt, const cr_mem *a, const cr_mem *b, int64_t num)
{
    float *x = fetch(a, dt, num), *y = fetch(b, dt, num);

    if (memcmp(x, y, (size_t)num * sizeof *x) != 0) fail_msg("%s in %s", what, cr_dtype_name(dt));
    cr_free(x);
    cr_free(y);
}

/* Another place for the results. */
static void to_new(cr_adapted_linears_args *a, const group *g, cr_dtype dt, int64_t first, int *y)
{
    const int d = 1;

    for (int i = 0; i < g->num; i++)
        a->base.y[i] = cr_at(dt, M(y[i]), first * g->n[i]);
}

static cr_mem *pack(cr_weight *w)
{
    size_t bytes = cr_weight_packed_bytes(dev, w);
    cr_mem *packed = NULL;

    OK(cr_device_alloc(dev, bytes, &packed, &err));
    OK(cr_weight_pack(dev, &(cr_weight_pack_args){w, packed}, &err));
    if (bytes) w->packed = packed;
    return packed;
}

static void unpack(cr_weight *w, cr_mem *packed)
{
    cr_device_free(dev, packed, cr_weight_packed_bytes(dev, w));
}

/* In parts of `step` rows, every second one with packed weights; and each Linear by itself. */
static void in_parts(const group *g, cr_dtype dt, const arrays *s, int64_t step)
{
    int y[CR_LINEARS], d = 1;

    for (int i = 0; i < g->num; i++)
        y[i] = floats(dt, g->m * g->n[i], 1, 0);
    for (int64_t first = 0; first < g->m; first += step) {
        int64_t num = g->m - first < step ? g->m - first : step;
        cr_adapted_linears_args a = call_of(g, s, dt, first, num);
        to_new(&a, g, dt, first, y);
        if (first / step % 2 == 0) {
            OK(cr_adapted_linears(dev, &a, &err));
            continue;
        }
        for (int i = 0; i < g->num; i++) {
            cr_adapted_linears_args one = a;
            cr_mem *packed[3] = {NULL};
            one.base.num = 1;
            one.base.w[0] = a.base.w[i];
            one.base.bias[0] = a.base.bias[i];
            one.base.y[0] = a.base.y[i];
            one.low[0] = a.low[i];
            cr_weight *w[3] = {&one.base.w[0], &one.low[0].a, &one.low[0].b};
            for (int k = 0; k < (g->r[i] ? 3 : 1); k++)
                packed[k] = pack(w[k]);
            OK(cr_adapted_linears(dev, &one, &err));
            for (int k = 0; k < (g->r[i] ? 3 : 1); k++)
                unpack(w[k], packed[k]);
        }
    }
    for (int i = 0; i < g->num; i++)
        same_bytes("rows in parts", dt, M(s->y[i]), M(y[i]), g->m * g->n[i]);
    num_arrays -= g->num; /* those above */
    for (int i = 0; i < g->num; i++) {
        cr_device_free(cpu, all[num_arrays + i].on[0], bytes_of(&all[num_arrays + i]));
        cr_device_free(dev, all[num_arrays + i].on[1], bytes_of(&all[num_arrays + i]));
    }
}

static void rows_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < CR_COUNT(groups); i++)
        for (int t = 0; t < 3; t++) {
            if (!is_tried(i, t)) continue;
            const group *g = &groups[i];
            const arrays s = make(g, act[t]);
            const cr_adapted_linears_args a = call_of(g, &s, act[t], 0, g->m);
            OK(cr_adapted_linears(dev, &a, &err));
            for (int64_t step = g->m > 20 ? 9 : 1; step <= g->m; step = step * 12 + 1)
                in_parts(g, act[t], &s, step);
            drop_all();
        }
}

/* With B of zeros, the bits of the base. */
static void zeros(void **state)
{
    (void)state;
    for (size_t i = 0; i < CR_COUNT(groups); i++)
        for (int t = 0; t < 3; t++) {
            if (!is_tried(i, t)) continue;
            const group *g = &groups[i];
            const arrays s = make(g, act[t]);
            cr_adapted_linears_args a = call_of(g, &s, act[t], 0, g->m);
            int y[CR_LINEARS], d = 1;
            for (int k = 0; k < g->num; k++) {
                OK(cr_zero(dev, M(s.b[k]), bytes_of(&all[s.b[k]]), &err));
                y[k] = floats(act[t], g->m * g->n[k], 1, 0);
                cr_linear_args one = cr_linear_of(&a.base, k);
                one.add = a.add;
                one.y = M(y[k]);
                OK(cr_linear(dev, &one, &err));
            }
            OK(cr_adapted_linears(dev, &a, &err));
            for (int k = 0; k < g->num; k++)
                same_bytes("B of zeros", act[t], M(y[k]), M(s.y[k]), g->m * g->n[k]);
            drop_all();
        }
}

static void refused(void **state)
{
    const group *g = &groups[2];
    const arrays s = make(g, CR_F32);
    cr_adapted_linears_args a = call_of(g, &s, CR_F32, 0, g->m);

    (void)state;
    a.add = a.base.x;
    assert_int_equal(cr_adapted_linears(dev, &a, &err), CR_EARG);
    assert_non_null(strstr(err.msg, "2 products with an addend"));
    err = (cr_err){0};
    a.add = NULL;
    a.low[1].b.num_rows--;
    assert_int_equal(cr_adapted_linears(dev, &a, &err), CR_EARG);
    assert_non_null(strstr(err.msg, "adapters of 8 x 64 and 135 x 8 on a weight of 136 x 64"));
    err = (cr_err){0};
    drop_all();
}

static int open_devices(void **state)
{
    (void)state;
    OK(cr_device_open("cpu", 1, &cpu, &err));
    OK(cr_device_open(cr_device_default(), 3, &dev, &err));
    return 0;
}

static int close_devices(void **state)
{
    (void)state;
    cr_device_close(dev);
    cr_device_close(cpu);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers),
        cmocka_unit_test(rows_alone),
        cmocka_unit_test(zeros),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
