/* work.c -- see work.h. */
#include "actors/work.h"
#include "actors/strategy_args.h"

cr_status cr_work_image_cost(const cr_worker_config *w, cr_image_cost *out, cr_err *err)
{
    const cr_model_options options = cr_model_options_of(w, /*is_trainer=*/true);
    cr_model *model;

    *out = (cr_image_cost){0};
    CR_TRY(cr_model_open_with(w->model_path, &options, &model, err));
    if (cr_model_prepare(model, w, /*should_freeze=*/true, err) == CR_OK)
        cr_image_cost_of(model, out);
    cr_model_free(model);
    return err->status;
}

double cr_work_of(size_t num_tokens, double image_tokens)
{
    const double length = (double)num_tokens;

    return 24576 * (length + image_tokens) + length * length;
}

double cr_work_image_tokens(const cr_image_cost *cost, cr_item_refs items)
{
    double sum = 0;

    for (size_t i = 0; i < items.num; i++)
        sum += cr_image_cost_tokens(cost, items.grids + CR_ITEM_GRID * i);
    return sum;
}
