/* distribution.c -- see distribution.h. */
#include "actors/distribution.h"

#include <stdlib.h>

cr_generating cr_generating_of(const cr_config *c, const cr_generating_args *args)
{
    return (cr_generating){.log_probs = c->logprobs_mode == CR_LOGPROBS_RAW ? CR_LOG_PROBS_RAW
                                                                            : CR_LOG_PROBS_SAMPLED,
                           .temperature = (float)args->temperature,
                           .top_p = (float)args->top_p,
                           .min_p = (float)args->min_p,
                           .top_k = args->top_k,
                           .repetition_penalty = (float)args->repetition_penalty,
                           .max_new_tokens = args->max_new_tokens,
                           .stop = (const char *const *)args->stop_strings,
                           .num_stop = args->num_stop_strings,
                           .should_cut_stop = !args->include_stop_str_in_output,
                           .stop_ids = args->stop_token_ids,
                           .num_stop_ids = args->num_stop_token_ids,
                           .seed = (uint64_t)c->seed};
}

static cr_distribution distribution_of(const cr_config *c, const cr_generating_args *args)
{
    const cr_generating how = cr_generating_of(c, args);

    if (c->kind != CR_PIPELINE_RLVR || how.log_probs == CR_LOG_PROBS_RAW || how.temperature == 0)
        return (cr_distribution){.temperature = 1, .repetition_penalty = 1};
    return (cr_distribution){.temperature = how.temperature,
                             .repetition_penalty = how.repetition_penalty,
                             .has_filter = cr_generating_has_filter(&how)};
}

cr_distribution cr_distribution_of(const cr_config *c, int domain)
{
    return distribution_of(c, cr_worker_generating(&c->infer, domain));
}

cr_distribution cr_distribution_of_all(const cr_config *c)
{
    cr_distribution all = distribution_of(c, &c->infer.generating);

    for (size_t i = 0; i < c->infer.num_domains; i++) {
        cr_distribution one = distribution_of(c, &c->infer.domains[i].args);
        all.is_mixed |= one.has_filter != all.has_filter;
        all.repetition_penalty = one.repetition_penalty; /* the same (cri_check_domains) */
    }
    return all;
}

cr_status cr_distribution_check(const cr_distribution *d, bool has_kept, cr_err *err)
{
    if (d->has_filter == has_kept || d->is_mixed) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "it has %skept_ids, and actor_infer's generating_args %s",
                   has_kept ? "" : "no ", has_kept ? "ask for none" : "filter token ids");
}

/* Token ids, then places, as one number. */
static int by_token(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void add_int(cr_buf *to, int64_t x)
{
    int32_t key = (int32_t)x;

    cr_buf_add(to, &key, sizeof key);
}

static void add_size(cr_buf *to, size_t x)
{
    cr_buf_add(to, &x, sizeof x);
}

/* The list of a sample's token ids, each where it came first. */
static void add_seen(cr_processor_arrays *e, const int32_t *ids, size_t num)
{
    uint64_t *order;

    cr_buf_clear(&e->order);
    for (size_t i = 0; i < num; i++) {
        uint64_t key = (uint64_t)ids[i] << 32 | i;
        cr_buf_add(&e->order, &key, sizeof key);
    }
    order = (uint64_t *)(void *)e->order.data;
    qsort(order, num, sizeof *order, by_token);
    for (size_t i = 0; i < num; i++) {
        if (i && order[i] >> 32 == order[i - 1] >> 32) continue;
        add_int(&e->seen_ids, (int64_t)(order[i] >> 32));
        add_int(&e->seen_place, (int64_t)(order[i] & UINT32_MAX));
    }
    add_size(&e->seen_first, e->seen_ids.num_bytes / sizeof(int32_t));
}

const cr_row_processors *cr_distribution_processors(const cr_distribution *d, const cr_samples *s,
                                                    const size_t *order, size_t num,
                                                    cr_processor_arrays *e)
{
    cr_buf *all[] = {&e->temperatures, &e->kept_first, &e->kept_num, &e->seen_list,
                     &e->seen_until,   &e->seen_first, &e->seen_ids, &e->seen_place};
    const bool has_penalty = d->repetition_penalty != 1,
               has_kept = s->num_kept && (d->has_filter || d->is_mixed);

    if (d->temperature == 1 && !has_penalty && !has_kept && !s->temperatures) return NULL;
    for (size_t i = 0; i < CR_COUNT(all); i++)
        cr_buf_clear(all[i]);
    add_size(&e->seen_first, 0);
    for (size_t k = 0; k < num; k++) {
        size_t i = order[k];
        if (has_penalty) add_seen(e, s->ids + s->first_id[i], cr_samples_num_ids(s, i));
        for (size_t t = s->first_token[i]; t < s->first_token[i + 1]; t++) {
            if (has_penalty) add_int(&e->seen_list, (int64_t)k);
            if (has_penalty) add_int(&e->seen_until, s->place[t] - 1);
            if (has_kept) add_size(&e->kept_first, s->first_kept[t]);
            if (has_kept) add_int(&e->kept_num, s->num_kept[t]);
            if (s->temperatures)
                cr_buf_add(&e->temperatures, &s->temperatures[i], sizeof *s->temperatures);
        }
    }
    e->rows = (cr_row_processors){.temperature = d->temperature,
                                  .penalty = d->repetition_penalty,
                                  .kept_first = (const size_t *)(void *)e->kept_first.data,
                                  .kept_num = (const int32_t *)(void *)e->kept_num.data,
                                  .kept_ids = s->kept_ids,
                                  .seen_list = (const int32_t *)(void *)e->seen_list.data,
                                  .seen_until = (const int32_t *)(void *)e->seen_until.data,
                                  .seen_first = (const size_t *)(void *)e->seen_first.data,
                                  .seen_ids = (const int32_t *)(void *)e->seen_ids.data,
                                  .seen_place = (const int32_t *)(void *)e->seen_place.data};
    if (!has_kept) e->rows.kept_first = NULL;
    if (s->temperatures) e->rows.temperatures = (const float *)(void *)e->temperatures.data;
    return &e->rows;
}

size_t cr_processor_arrays_bytes(const cr_processor_arrays *e)
{
    const cr_buf *all[] = {&e->temperatures, &e->kept_first, &e->kept_num,
                           &e->seen_list,    &e->seen_until, &e->seen_first,
                           &e->seen_ids,     &e->seen_place, &e->order};
    size_t num_bytes = 0;

    for (size_t i = 0; i < CR_COUNT(all); i++)
        num_bytes += all[i]->capacity_bytes;
    return num_bytes;
}

void cr_processor_arrays_free(cr_processor_arrays *e)
{
    cr_buf *all[] = {&e->temperatures, &e->kept_first, &e->kept_num,
                     &e->seen_list,    &e->seen_until, &e->seen_first,
                     &e->seen_ids,     &e->seen_place, &e->order};

    for (size_t i = 0; i < CR_COUNT(all); i++)
        cr_buf_free(all[i]);
}
