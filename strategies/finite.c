/* finite.c -- are all parameters finite? Shards are read in blocks, as bits. */
#include "strategies/fsdp_impl.h"

#include <math.h>
#include <string.h>

enum { BLOCK_BYTES = 1 << 20 };

static bool floats_are_finite(const char *block, size_t num)
{
    bool is_finite = true;

    for (size_t i = 0; i < num; i++) {
        float x;
        memcpy(&x, block + i * sizeof x, sizeof x);
        is_finite = is_finite && isfinite(x);
    }
    return is_finite;
}

/* Infinities and NaNs have all bits of the exponent. */
static bool halves_are_finite(cr_dtype dtype, const char *block, size_t num)
{
    const uint16_t mask = dtype == CR_BF16 ? 0x7F80 : 0x7C00;
    bool is_finite = true;

    for (size_t i = 0; i < num; i++) {
        uint16_t x;
        memcpy(&x, block + i * sizeof x, sizeof x);
        is_finite = is_finite && (x & mask) != mask;
    }
    return is_finite;
}

static cr_status range_is_finite(cr_fsdp *f, cr_dtype dtype, const cr_mem *data, int64_t num,
                                 char *block, bool *is_finite, cr_err *err)
{
    const int64_t max = BLOCK_BYTES / (int64_t)cr_dtype_bytes(dtype);

    *is_finite = true;
    for (int64_t done = 0; done < num && *is_finite; done += max) {
        size_t n = (size_t)(num - done < max ? num - done : max);
        CR_TRY(cr_download(cri_home(f), block, cr_at_const(dtype, data, done),
                           n * cr_dtype_bytes(dtype), err));
        *is_finite =
            dtype == CR_F32 ? floats_are_finite(block, n) : halves_are_finite(dtype, block, n);
    }
    return CR_OK;
}

/* *name: of a parameter in this rank's part that is not finite; NULL: none. */
static cr_status check_kept(cr_fsdp *f, bool is_trained, char *block, const char **name,
                            cr_err *err)
{
    cr_mem *kept = cri_kept(f, is_trained, f->master);
    cr_weight_map map = {0};

    cri_map_kept(f, is_trained, /*is_written=*/false, &map);
    for (size_t i = 0; i < map.num && !*name && err->status == CR_OK; i++) {
        const cr_weight_range *r = &map.range[i];
        const cr_param *p = f->model->params[r->param];
        bool is_finite = true;
        cr_note(range_is_finite(f, cri_kept_dtype(f, p), cr_mem_add_const(kept, (size_t)r->at),
                                r->end - r->begin, block, &is_finite, err));
        if (!is_finite) *name = p->name;
    }
    cr_weight_map_free(&map);
    return err->status;
}

cr_status cr_fsdp_check_finite(cr_fsdp *f, cr_err *err)
{
    cr_group *all = f->mesh->group[CR_AXIS_ALL];
    size_t *offsets = CR_NEW_ARRAY(size_t, cr_group_num_ranks(all) + 1);
    char *block = cr_alloc(BLOCK_BYTES);
    const char *name = NULL;
    cr_buf names = {0};

    CR_TRY_GOTO(out, cri_need_states(f, CR_STATE_PARAMS, "parameters", err));
    for (int is_trained = 1; is_trained >= 0 && !name; is_trained--)
        CR_TRY_GOTO(out, check_kept(f, is_trained, block, &name, err));
    CR_TRY_GOTO(out, cr_all_gather_bytes(all, "parameters that are not finite", name,
                                         name ? strlen(name) + 1 : 0, &names, offsets, err));
    if (names.num_bytes)
        cr_fail(err, CR_EFORMAT, "%s has a number that is not finite in %s", names.data,
                cr_dtype_name(f->args.param_dtype));
out:
    cr_buf_free(&names);
    cr_free(block);
    cr_free(offsets);
    return err->status;
}
