/* graphs.c -- steps of one row a sample, which are captured on a device that can (cr_graph_run).
 *
 * Such a step is hundreds of short operations, always the same ones, from the copy of its arrays to the copy of what was drawn: queued one
 * by one they take the host longer than the GPU. A graph is for a number of rows and a width of the block table, both rounded up, so that few serve many steps (rows
 * to 1, 2, 4 or a multiple of 8, blocks to a power of 2), for an adapter, and for what its draws need (processors, filters, ranks ..). Rows that are added belong to no sample: they are a prompt of its own in a
 * block that is free. A row's result does not depend on the others, so neither do samples.
 *
 * Not captured: a step with more rows of a prompt than its last, or with the features of an image; a model with experts, whose routing the host reads;
 * added rows without a free block for them; limits.is_eager. The first step of a shape is not, either, nor those after memory
 * was freed: that is cr_graph_run's. It compares all addresses, so weights that moved are no concern here.
 */
#include "engine/engine_impl.h"

static int64_t round_rows(int64_t num)
{
    if (num > 4) return (num + CRI_ROW_STEP - 1) / CRI_ROW_STEP * CRI_ROW_STEP;
    return num == 3 ? 4 : num;
}

static int64_t round_blocks(const cr_engine *e, int64_t num)
{
    int64_t blocks = 1;

    while (blocks < num)
        blocks *= 2;
    return cri_min(blocks, e->max_blocks);
}

/* A block that no sample has and that keeps no prefix; -1: all are taken. */
static int32_t spare_block(cr_engine *e)
{
    if (e->num_free == 0) return -1;
    if (e->num_unkept == 0) e->free_block[e->num_unkept++] = cri_prefix_take(e->prefixes);
    return e->free_block[e->num_unkept - 1];
}

/* The step's rows become num_all. */
static bool add_rows(cr_engine *e, int64_t num_rows, int64_t num_all)
{
    int64_t slot = e->limits.max_running; /* the table's last row */
    int32_t block = num_all > num_rows ? spare_block(e) : 0;

    if (block < 0 || num_all - num_rows > e->limits.max_model_len) return false;
    e->table[slot * e->max_blocks] = block;
    for (int64_t r = num_rows; r < num_all; r++) {
        e->ids[r] = 0;
        e->row_slot[r] = (int32_t)slot;
        e->row_pos[r] = (int32_t)(r - num_rows);
        for (int a = 0; e->row_axes && a < 3; a++)
            e->row_axes[r][a] = e->row_pos[r];
        e->pick[r] = (int32_t)r;
    }
    return true;
}

/* Rows of the step, and those that are added, whose largest logit is taken. */
static cr_status put_draws(cr_engine *e, int64_t num_rows, int64_t num_all, uint64_t *key,
                           cr_err *err)
{
    const cr_draw_args all = {.num_rows = num_all,
                              .vocab_size = e->model->config.vocab_size,
                              .rows = e->draw_rows,
                              .out = e->drawn,
                              .part = CR_DRAW_PUT,
                              .key = key};

    cri_prepare_draws(e->picked, num_rows, e->draw_rows, e->drawn);
    for (int64_t r = num_rows; r < num_all; r++) {
        e->draw_rows[r] = (cr_draw_row){.penalty = 1, .top_p = 1};
        e->drawn[r] = (cr_drawn){0};
    }
    return cr_draw(e->dev, &all, err);
}

/* The one of this shape, or the one that was not used for longest, which becomes it. */
static cri_step_graph *find(cr_engine *e, int64_t num_rows, int64_t max_blocks, uint64_t draw)
{
    cri_step_graph *found = &e->graphs[0];

    for (int i = 0; i < CRI_MAX_CAPTURED; i++) {
        cri_step_graph *r = &e->graphs[i];
        if (r->num_rows == num_rows && r->max_blocks == max_blocks && r->draw == draw &&
            r->adapter == e->adapter)
            return r;
        if (r->last_used < found->last_used) found = r;
    }
    cr_graph_destroy(e->dev, found->graph);
    *found = (cri_step_graph){
        .num_rows = num_rows, .max_blocks = max_blocks, .adapter = e->adapter, .draw = draw};
    return found;
}

int64_t cr_engine_max_captured(const cr_model *model, bool is_eager)
{
    return is_eager || model->config.num_experts > 0 ? 0 : CRI_MAX_CAPTURED;
}

cr_status cri_graph_of_step(cr_engine *e, int64_t num_rows, int64_t num_picks, cri_step_graph **out,
                            cr_err *err)
{
    int64_t num_all = round_rows(num_rows), all_blocks = 1;
    uint64_t draw = 0;

    *out = NULL;
    if (!cr_device_has_graphs(e->dev) ||
        cr_engine_max_captured(e->model, e->limits.is_eager) == 0 || num_picks < num_rows ||
        e->num_runs > 0 || !add_rows(e, num_rows, num_all))
        return CR_OK;
    CR_TRY(put_draws(e, num_rows, num_all, &draw, err));
    for (int64_t i = 0; i < num_rows; i++)
        all_blocks = cr_max64(all_blocks, cri_blocks_of(e->row_pos[i] + 1));
    *out = find(e, num_all, round_blocks(e, all_blocks), draw);
    (*out)->last_used = ++e->num_graph_steps;
    return CR_OK;
}

void cri_graphs_drop(cr_engine *e)
{
    for (int i = 0; i < CRI_MAX_CAPTURED; i++) {
        cr_graph_destroy(e->dev, e->graphs[i].graph);
        e->graphs[i] = (cri_step_graph){0};
    }
    if (e->graph_pass.host) cr_host_free(e->dev, e->graph_pass.host, e->graph_pass.host_bytes);
    e->graph_pass = (cr_graph_pass){0};
}
