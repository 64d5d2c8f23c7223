/* adapters.c -- products of Linears that have adapters (see kernels/adapters.h).
 *
 * h B^T goes on where the sums of x W^T end (gemm_out.more): y is written once, and read only where it has an addend. The A's of
 * a group are one product of all their rows, where the scales are equal, x is the base's and none is packed; the gradients of A share
 * the panels of x.
 * Memory: [rows, r] of h in the dtype and as units, B as panels. r is small: a tile of 12 x 32 sums does r more steps.
 */
#include "kernels/cpu/slots.h"
#include "kernels/cpu/variant/entries.h"
#include "kernels/cpu/variant/gemm.h"

static bool is_there(const cr_low_rank *low)
{
    return low->a.data != NULL;
}

static const void *element(cr_dtype dtype, const cr_mem *x, int64_t i)
{
    return (const char *)x + i * (int64_t)cr_dtype_bytes(dtype);
}

/* Those from `first` on whose A's can be one product. */
static int num_together(const cr_low_rank *low, int first, int num)
{
    const bool is_alone = low[first].x || low[first].a.packed;
    int i = first + 1;

    while (!is_alone && i < num && is_there(&low[i]) && low[i].scale == low[first].scale &&
           !low[i].x && !low[i].a.packed)
        i++;
    return i - first;
}

/* Rows of the A's one after the other. */
static cr_weight stack(cr_device *dev, const cr_low_rank *low, int num)
{
    cr_weight all = low[0].a;
    char *to;

    if (num == 1) return all;
    all.num_rows = cr_low_ranks(low, num);
    to = cri_scratch(dev, CRI_SLOT_LOW_A,
                     (size_t)(all.num_rows * all.num_cols) * cr_dtype_bytes(all.dtype));
    all.data = cr_mem_of_host(to);
    for (int i = 0; i < num; i++) {
        size_t bytes = (size_t)(low[i].a.num_rows * all.num_cols) * cr_dtype_bytes(all.dtype);
        memcpy(to, low[i].a.data, bytes);
        to += bytes;
    }
    return all;
}

/* h of all of them. */
static void multiply_inner(cr_device *dev, const cr_low_rank *low, int num, const cr_mem *x,
                           int64_t num_rows, cr_mem *h)
{
    const int64_t ld = cr_low_ranks(low, num);
    int64_t col = 0;

    for (int i = 0, some; i < num; i += some) {
        some = 1;
        if (!is_there(&low[i])) continue;
        some = num_together(low, i, num);
        const cr_weight a = stack(dev, &low[i], some);
        const gemm_out out = {.c = cr_at(a.dtype, h, col),
                              .c_dtype = a.dtype,
                              .ldc = ld,
                              .aux_dtype = a.dtype,
                              .factor = &low[i].scale};
        CR_V(multiply)(dev, &a, /*is_transposed=*/true, low[i].x ? low[i].x : x, num_rows, &out);
        col += a.num_rows;
    }
}

/* h, or its gradient, as A of a product with B^T (is_transposed), or with A. */
static gemm_more more_of(cr_device *dev, const cr_weight *w, bool is_transposed, const void *h,
                         int64_t ld, int64_t num_rows)
{
    int64_t n = is_transposed ? w->num_rows : w->num_cols,
            k = is_transposed ? w->num_cols : w->num_rows, units = gemm_units(w->dtype, k);
    gemm_more more = {.a = h, .row_stride = ld, .num_units = units};

    if (w->dtype != CR_F32) {
        gemm_unit *rows =
            cri_scratch(dev, CRI_SLOT_LOW_ROWS, (size_t)(num_rows * units) * sizeof *rows);
        CR_V(pack_a)(w->dtype, h, ld, num_rows, k, rows);
        more.a = rows;
        more.row_stride = units;
    }
    if (is_transposed && w->packed) {
        more.panels = cr_mem_to_host(w->packed);
    } else {
        void *panels = cri_scratch(dev, CRI_SLOT_LOW_PANELS, gemm_panels_bytes(w->dtype, n, units));
        if (is_transposed)
            CR_V(pack_rows)(w->dtype, cr_mem_to_host(w->data), k, n, k, panels);
        else
            CR_V(pack_cols)(w->dtype, cr_mem_to_host(w->data), n, k, n, panels);
        more.panels = panels;
    }
    return more;
}

/* C[m, n], from what more_of made and out says. */
static void multiply_more(cr_device *dev, cr_dtype dtype, int64_t m, int64_t n,
                          const gemm_more *more, const gemm_out *out)
{
    CR_V(gemm)(dev, dtype, m, n, more->num_units, more->a, more->row_stride, more->panels, out);
}

/* y += h B^T */
static void add_outer(cr_device *dev, const cr_linears_args *base, int i, const gemm_more *more)
{
    const cr_weight *w = &base->w[i];
    const gemm_out out = {.c = base->y[i],
                          .c_dtype = w->dtype,
                          .ldc = w->num_rows,
                          .add = base->y[i],
                          .ldadd = w->num_rows,
                          .aux_dtype = w->dtype};

    multiply_more(dev, w->dtype, base->num_rows, w->num_rows, more, &out);
}

cr_status CR_V(adapted_linears)(cr_device *dev, const cr_adapted_linears_args *a, cr_err *err)
{
    const cr_linears_args *base = &a->base;
    const int64_t ld = cr_low_ranks(a->low, base->num);
    int64_t col = 0;

    (void)err;
    multiply_inner(dev, a->low, base->num, base->x, base->num_rows, a->h);
    for (int i = 0; i < base->num; i++) {
        const cr_weight *w = &base->w[i], *b = &a->low[i].b;
        gemm_more more;
        gemm_out out = {.c = base->y[i],
                        .c_dtype = w->dtype,
                        .ldc = w->num_rows,
                        .bias = base->bias[i],
                        .add = a->add,
                        .ldadd = w->num_rows,
                        .aux_dtype = w->dtype};
        if (is_there(&a->low[i])) {
            more = more_of(dev, b, /*is_transposed=*/true, element(w->dtype, a->h, col), ld,
                           base->num_rows);
            out.more = &more;
            col += b->num_cols;
        }
        if (!a->is_base_made)
            CR_V(multiply)(dev, w, /*is_transposed=*/true, base->x, base->num_rows, &out);
        else if (out.more)
            add_outer(dev, base, i, out.more);
    }
    return CR_OK;
}

/* dh of one of them, at a column of dh. */
static void grad_of_inner(cr_device *dev, const cr_low_rank *low, const cr_mem *dy,
                          int64_t num_rows, void *dh, int64_t ld)
{
    const gemm_out out = {.c = dh,
                          .c_dtype = low->b.dtype,
                          .ldc = ld,
                          .aux_dtype = low->b.dtype,
                          .factor = &low->scale};

    CR_V(multiply)(dev, &low->b, /*is_transposed=*/false, dy, num_rows, &out);
}

/* dx (=, +=) dy_i W_i + dh_i A_i, which goes to an x of its own where A has one. */
static void grad_of_rows(cr_device *dev, const cr_adapted_linears_grad_args *a, int i,
                         const void *dh, int64_t ld)
{
    const cr_weight *w = &a->w[i];
    const cr_low_rank *low = &a->low[i];
    const bool is_added = i > 0 || a->is_dx_added || a->is_base_made;
    gemm_more more;
    gemm_out out = {.c = a->dx,
                    .c_dtype = w->dtype,
                    .ldc = w->num_cols,
                    .add = is_added ? a->dx : NULL,
                    .ldadd = w->num_cols,
                    .aux_dtype = w->dtype};
    const gemm_out own = {
        .c = low->x, .c_dtype = w->dtype, .ldc = w->num_cols, .aux_dtype = w->dtype};

    if (!a->dx) return;
    if (is_there(low)) {
        more = more_of(dev, &low->a, /*is_transposed=*/false, dh, ld, a->num_rows);
        if (low->x || a->is_base_made)
            multiply_more(dev, w->dtype, a->num_rows, w->num_cols, &more, low->x ? &own : &out);
        else
            out.more = &more;
    }
    if (!a->is_base_made)
        CR_V(multiply)(dev, w, /*is_transposed=*/false, a->dy[i], a->num_rows, &out);
}

cr_status CR_V(adapted_linears_grad)(cr_device *dev, const cr_adapted_linears_grad_args *a,
                                     cr_err *err)
{
    const cr_dtype dtype = a->w[0].dtype;
    const int64_t ld = cr_low_ranks(a->low, a->num);
    gemm_tn da[CR_LINEARS];
    int num_da = 0;

    (void)err;
    multiply_inner(dev, a->low, a->num, a->x, a->num_rows, a->h);
    for (int64_t i = 0, col = 0; i < a->num; i++) {
        const cr_low_rank *low = &a->low[i];
        char *dh = (char *)cr_mem_to_host(a->dh) + col * (int64_t)cr_dtype_bytes(dtype);
        if (is_there(low)) {
            const gemm_tn db = {a->dy[i], low->b.num_rows, low->b.num_rows,
                                cr_mem_to_host(a->db[i])};
            grad_of_inner(dev, low, a->dy[i], a->num_rows, dh, ld);
            if (a->db[i]) CR_V(product_tn)
            (dev, dtype, &db, 1, element(dtype, a->h, col), ld, a->num_rows, low->b.num_cols);
            if (a->da[i])
                da[num_da++] = (gemm_tn){dh, ld, low->a.num_rows, cr_mem_to_host(a->da[i])};
            if (a->da[i] && low->x) CR_V(product_tn)
            (dev, dtype, &da[--num_da], 1, low->x, low->a.num_cols, a->num_rows, low->a.num_cols);
            col += low->a.num_rows;
        }
        grad_of_rows(dev, a, (int)i, dh, ld);
    }
    if (num_da) CR_V(product_tn)
    (dev, dtype, da, num_da, a->x, a->w[0].num_cols, a->num_rows, a->w[0].num_cols);
    return CR_OK;
}
