/* muon.c -- Muon for the matrices of a unit, as torch.optim.Muon (optimizer.h says which they are):
 *
 *     m = momentum m + (1 - momentum) g;  u = (1 - momentum) g + momentum m, or m without nesterov
 *     X = u / max(|u|, eps), ns_steps times X = a X + (b G + c G G) X with G = X X^T
 *     p = p (1 - lr decay) - lr s X,      s by adjust_lr_fn
 *
 * Moments are cut as the masters are. The steps need whole matrices: a rank gets the rest of those that it has a part of, so of
 * the matrices in a unit each is computed on one rank, or on those that its elements are cut over. Products are cr_linear's, in
 * float32 and a fixed order: every rank that has a part of a matrix computes the same bits, on any number of ranks.
 */
#include "strategies/fsdp_impl.h"

#include <math.h>

static const float step_x = 3.4445F, step_gram = -4.7750F, step_square = 2.0315F; /* Jordan's */

/* The matrices of a flat that this rank has a part of, one after another. */
typedef struct span {
    size_t first, end; /* parameters; some between may be AdamW's */
    int64_t begin;     /* element of the flat where the buffer begins */
    int64_t num, max_elems, max_side;
} span;

static bool is_own(const cr_fsdp *f, const cr_flat *flat, size_t k, int64_t *begin, int64_t *end,
                   int64_t *at)
{
    return f->choices[flat->params[k]->index].is_muon &&
           cri_shard_range(flat, k, cri_shard_of(f, flat), begin, end, at);
}

/* has_any: the flat has one, here or elsewhere. */
static span find_span(const cr_fsdp *f, const cr_flat *flat, bool *has_any)
{
    span s = {.first = flat->num_params};
    int64_t begin, end, at;

    *has_any = false;
    for (size_t k = 0; k < flat->num_params; k++) {
        const cr_param *p = flat->params[k];
        *has_any |= f->choices[p->index].is_muon;
        if (!is_own(f, flat, k, &begin, &end, &at)) continue;
        if (s.first > k) s.first = k, s.begin = flat->offset[k];
        s.end = k + 1;
        s.num = flat->offset[k] + p->num_elems - s.begin;
        s.max_elems = cr_max64(s.max_elems, p->num_elems);
        s.max_side = cr_max64(s.max_side, p->shape[0] < p->shape[1] ? p->shape[0] : p->shape[1]);
    }
    return s;
}

/* The own part of u, and the moments. */
static cr_status find_updates(cr_fsdp *f, const cr_flat *flat, const span *s, float scale,
                              cr_mem *u, cr_err *err)
{
    const cr_muon_options *o = &f->args.optimizer.muon;
    const float kept = (float)o->momentum, added = (float)(1 - o->momentum) * scale;
    int64_t begin, end, at;

    for (size_t k = s->first; k < s->end; k++) {
        cr_mem *m, *to;
        const cr_mem *g;
        size_t num;
        if (!is_own(f, flat, k, &begin, &end, &at)) continue;
        num = (size_t)(end - begin);
        m = cr_at(CR_F32, f->m, flat->first.elems + at);
        g = cr_at_const(CR_F32, f->grad, flat->first.elems + at);
        to = cr_at(CR_F32, u, flat->offset[k] + begin - s->begin);
        CR_TRY(cr_blend(f->dev, &(cr_blend_args){m, g, added, kept, num}, err));
        CR_TRY(cr_cast(f->dev, &(cr_cast_args){CR_F32, to, CR_F32, m, num}, err));
        if (o->is_nesterov)
            CR_TRY(cr_blend(f->dev, &(cr_blend_args){to, g, added, kept, num}, err));
    }
    return CR_OK;
}

static void add_piece(cr_piece *pieces, size_t *num, int peer, int64_t first, int64_t elems)
{
    pieces[(*num)++] =
        (cr_piece){peer, (size_t)first * sizeof(float), (size_t)elems * sizeof(float)};
}

/* Parts of matrices that this rank has a part of, too: its own go to the others, theirs come. */
static cr_status exchange(cr_fsdp *f, const cri_flat *of, const span *s, cr_mem *u, cr_err *err)
{
    const cr_flat *flat = of->flat;
    cr_group *group = cri_group_of(f, flat);
    const int num_ranks = cr_group_num_ranks(group), me = cr_group_rank(group);
    const size_t room = (s->end - (s->end > s->first ? s->first : s->end)) * (size_t)num_ranks + 1;
    cr_piece *sends = CR_NEW_ARRAY(cr_piece, room), *recvs = CR_NEW_ARRAY(cr_piece, room);
    size_t num_sends = 0, num_recvs = 0;
    int64_t begin, end, at, other, stop;

    for (size_t k = s->first; k < s->end; k++) {
        const int64_t first = flat->offset[k] - s->begin;
        if (!is_own(f, flat, k, &begin, &end, &at)) continue;
        for (int r = 0; r < num_ranks; r++) {
            if (r == me || !cri_shard_range(flat, k, r, &other, &stop, &at)) continue;
            add_piece(sends, &num_sends, r, first + begin, end - begin);
            add_piece(recvs, &num_recvs, r, first + other, stop - other);
            cri_count(f, CRI_GATHERS, (size_t)(stop - other) * sizeof(float));
        }
    }
    cr_note(
        cr_transfer(group, flat->params[0]->name, u, sends, num_sends, u, recvs, num_recvs, err));
    cr_free(sends);
    cr_free(recvs);
    return err->status;
}

/* Room of a matrix: as large as it, and two squares of its shorter side. */
typedef struct room {
    cr_mem *x, *gram, *square;
} room;

static cr_weight weight_of(const cr_mem *data, int64_t num_rows, int64_t num_cols)
{
    return (cr_weight){.data = data, .dtype = CR_F32, .num_rows = num_rows, .num_cols = num_cols};
}

static cr_status product(cr_device *dev, const cr_mem *x, int64_t num_rows, const cr_weight *w,
                         cr_mem *y, cr_err *err)
{
    return cr_linear(
        dev, &(cr_linear_args){.x = x, .w = w, .y = y, .out_dtype = CR_F32, .num_rows = num_rows},
        err);
}

/* One step: y = a x + (b G + c G G) x on the left of x where it is wide, on its right where it is tall. */
static cr_status step(cr_device *dev, const cr_mem *x, int64_t rows, int64_t cols, const room *r,
                      cr_mem *y, cr_err *err)
{
    const bool is_tall = rows > cols;
    const int64_t side = is_tall ? cols : rows;
    const cr_weight of_x = weight_of(x, rows, cols), of_gram = weight_of(r->gram, side, side),
                    of_square = weight_of(r->square, side, side);
    const size_t num = (size_t)(rows * cols), squares = (size_t)(side * side);

    CR_TRY(is_tall ? cr_linear_grad(dev,
                                    &(cr_linear_grad_args){.x = x,
                                                           .dy = x,
                                                           .w = &of_gram,
                                                           .dw = r->gram,
                                                           .num_rows = rows,
                                                           .is_dw_set = true},
                                    err)
                   : product(dev, x, rows, &of_x, r->gram, err));
    CR_TRY(product(dev, r->gram, side, &of_gram, r->square, err)); /* it is symmetric */
    CR_TRY(
        cr_blend(dev, &(cr_blend_args){r->square, r->gram, step_gram, step_square, squares}, err));
    CR_TRY(is_tall
               ? product(dev, x, rows, &of_square, y, err)
               : cr_linear_grad(dev,
                                &(cr_linear_grad_args){
                                    .x = x, .dy = r->square, .w = &of_x, .dx = y, .num_rows = rows},
                                err));
    return cr_blend(dev, &(cr_blend_args){y, x, step_x, 1, num}, err);
}

/* x [rows, cols] is overwritten; *out: x or r->x. */
static cr_status orthogonalise(cr_fsdp *f, cr_mem *x, const cr_param *p, const room *r,
                               cr_mem **out, cr_err *err)
{
    const cr_muon_options *o = &f->args.optimizer.muon;
    double squares;

    CR_TRY(cr_square_sum(f->dev, &(cr_square_sum_args){x, (size_t)p->num_elems, &squares}, err));
    CR_TRY(cr_scale(
        f->dev, &(cr_scale_args){x, (float)(1 / fmax(sqrt(squares), o->eps)), (size_t)p->num_elems},
        err));
    *out = x;
    for (int64_t i = 0; i < o->ns_steps; i++) {
        cr_mem *to = *out == x ? r->x : x;
        CR_TRY(step(f->dev, *out, p->shape[0], p->shape[1], r, to, err));
        *out = to;
    }
    return CR_OK;
}

static double adjusted(const cr_muon_options *o, const cr_param *p)
{
    const double rows = (double)p->shape[0], cols = (double)p->shape[1];

    return o->adjust_lr == CR_ADJUST_RMS        ? 0.2 * sqrt(fmax(rows, cols))
           : o->adjust_lr == CR_ADJUST_ORIGINAL ? sqrt(fmax(1, rows / cols))
                                                : sqrt(rows / cols);
}

static cr_status update_matrices(cr_fsdp *f, const cri_flat *of, const span *s, double lr,
                                 cr_mem *u, const room *r, cr_err *err)
{
    const cr_flat *flat = of->flat;
    cr_mem *rounded = cri_weights(f, of), *x;
    int64_t begin, end, at;

    for (size_t k = s->first; k < s->end; k++) {
        const cr_param *p = flat->params[k];
        const cr_param_choice *c = &f->choices[p->index];
        const double rate = lr * c->lr_scale;
        cr_mem *master;
        if (!is_own(f, flat, k, &begin, &end, &at)) continue;
        CR_TRY(orthogonalise(f, cr_at(CR_F32, u, flat->offset[k] - s->begin), p, r, &x, err));
        master = cr_at(CR_F32, f->master, flat->first.elems + at);
        CR_TRY(
            cr_blend(f->dev,
                     &(cr_blend_args){master, cr_at_const(CR_F32, x, begin),
                                      (float)(-rate * adjusted(&f->args.optimizer.muon, p)),
                                      (float)(1 - rate * c->weight_decay), (size_t)(end - begin)},
                     err));
        if (rounded)
            CR_TRY(cr_cast(f->dev,
                           &(cr_cast_args){f->args.param_dtype,
                                           cr_at(f->args.param_dtype, rounded, at), CR_F32, master,
                                           (size_t)(end - begin)},
                           err));
    }
    return CR_OK;
}

cr_status cri_muon_update(cr_fsdp *f, const cri_flat *of, double lr, double grad_scale, cr_err *err)
{
    const size_t mark = cr_stack_mark(f->scratch);
    bool has_any;
    const span s = find_span(f, of->flat, &has_any);
    const size_t side = (size_t)(s.max_side * s.max_side) * sizeof(float);
    cr_mem *u = NULL;
    room r = {NULL};

    if (!has_any) return CR_OK;
    if (s.num) {
        CR_TRY(cr_stack_push(f->scratch, (size_t)s.num * sizeof(float), &u, err));
        CR_TRY(cr_stack_push(f->scratch, (size_t)s.max_elems * sizeof(float), &r.x, err));
        CR_TRY(cr_stack_push(f->scratch, side, &r.gram, err));
        CR_TRY(cr_stack_push(f->scratch, side, &r.square, err));
        CR_TRY(find_updates(f, of->flat, &s, (float)grad_scale, u, err));
    }
    if (cri_is_cut(f, of->flat)) CR_TRY(exchange(f, of, &s, u, err));
    if (s.num) CR_TRY(update_matrices(f, of, &s, lr, u, &r, err));
    cr_stack_release(f->scratch, mark);
    return CR_OK;
}
