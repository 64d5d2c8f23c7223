/* rollout.c -- see rollout.h. */
#include "pipelines/rollout.h"
#include "actors/distribution.h"
#include "actors/messages.h"
#include "actors/phases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENOUGH = 8 };

/* One group in flight. */
typedef struct flight {
    cr_sample *samples; /* [group_size] (owned) */
    size_t num_come;
    int domain;
    bool is_kept, is_failed; /* failed: no sample has a verdict, and nothing was drawn for it yet */
} flight;

typedef struct collector {
    cr_run *run;
    const cr_rollout_args *args;
    cr_distribution distribution;
    flight *flights;
    size_t num, capacity, num_done, num_kept, num_wanted;
    size_t num_filtered, num_redrawn, num_verdicts, num_retries, num_timeouts, num_errors;
    char *failure; /* of the first sample without a verdict (owned) */
} collector;

static uint64_t id_of(const cr_rollout_args *args, size_t draw, size_t index)
{
    return (uint64_t)args->is_validation << 63 | (uint64_t)args->step << 40 | (uint64_t)draw << 16 |
           (uint64_t)index;
}

/* Put one prompt on the stream. */
static cr_status ask(collector *c, int domain, uint32_t row_index, cr_err *err)
{
    const cr_rollout_args *args = c->args;
    const cr_row *row = &args->data->rows[row_index];
    uint64_t *ids = CR_NEW_ARRAY(uint64_t, args->group_size);
    cr_record record = {0};
    cr_buf packed = {0};
    char name[32];
    flight f = {.domain = domain};

    if (c->num >> 24) {
        cr_free(ids);
        return cr_fail(err, CR_ECONFIG, "a step has drawn %zu groups: no id is left for more",
                       c->num);
    }
    f.samples = CR_NEW_ARRAY(cr_sample, args->group_size);
    for (size_t i = 0; i < args->group_size; i++) {
        ids[i] = id_of(args, c->num, i);
        f.samples[i] = (cr_sample){.id = ids[i], .domain = domain, .row = row_index};
    }
    c->flights = cr_grow(c->flights, c->num, &c->capacity, sizeof *c->flights);
    snprintf(name, sizeof name, "%016llx", (unsigned long long)ids[0]);
    c->flights[c->num++] = f;
    cr_record_set_text(&record, "row", row->text, strlen(row->text));
    cr_record_set_text(&record, "domain", c->run->config->rewards[domain].domain,
                       strlen(c->run->config->rewards[domain].domain));
    cr_record_set_int(&record, "validation", args->is_validation);
    cr_record_add(&record, "prompt_ids", CR_RECORD_INT32, row->ids, row->num_ids);
    cr_record_add(&record, "sample_ids", CR_RECORD_UINT64, ids, args->group_size);
    if (cr_record_pack(&record, &packed, err) == CR_OK)
        cr_stream_put_later(c->run->x, CR_STREAM_PROMPTS, name, packed.data, packed.num_bytes);
    cr_record_free(&record);
    cr_buf_free(&packed);
    cr_free(ids);
    return err->status;
}

/* A group is complete: does the query filter of its domain keep it? */
static bool is_kept(const collector *c, const flight *f)
{
    double *rewards;
    size_t num = 0;
    bool kept;

    if (c->args->is_validation || c->args->group_size < 2) return true;
    rewards = CR_NEW_ARRAY(double, c->args->group_size);
    for (size_t i = 0; i < c->args->group_size; i++)
        if (cr_sample_has_verdict(&f->samples[i])) rewards[num++] = f->samples[i].reward;
    kept = cr_query_filter_keeps(&c->run->config->rewards[f->domain].filter, rewards, num);
    cr_free(rewards);
    return kept;
}

/* The same sample once more on its domain's stream, as "ID.1". */
static cr_status score_again(collector *c, const flight *f, const cr_entry *entry, cr_sample *s,
                             cr_err *err)
{
    char stream[96], id[24];

    snprintf(stream, sizeof stream, CR_STREAM_GENERATED "%s",
             c->run->config->rewards[f->domain].domain);
    snprintf(id, sizeof id, "%016llx.1", (unsigned long long)s->id);
    cr_sample_free(s);
    *s = (cr_sample){.id = s->id, .domain = s->domain, .row = s->row, .is_second = true};
    c->num_retries++;
    return cr_stream_move(c->run->x, entry, CR_GROUP_PIPELINE, stream, id, entry->data,
                          entry->num_bytes, NULL, err);
}

static void count_failure(collector *c, const flight *f, const cr_sample *s)
{
    c->num_timeouts += strcmp(s->status, "timeout") == 0;
    c->num_errors += strcmp(s->status, "error") == 0;
    if (!c->failure)
        c->failure = cr_asprintf("%s of %s, sample %016llx: %s", s->status,
                                 c->run->config->rewards[f->domain].domain,
                                 (unsigned long long)s->id, s->detail);
}

static bool has_verdict(const collector *c, const flight *f)
{
    for (size_t i = 0; i < c->args->group_size; i++)
        if (cr_sample_has_verdict(&f->samples[i])) return true;
    return false;
}

static cr_status draw(collector *c, int domain, cr_err *err)
{
    return ask(c, domain, cr_order_draw(&c->args->orders[domain], &c->args->cursors[domain]), err);
}

/* The group is complete: it is kept, or the next prompt of its domain takes its place. */
static cr_status settle(collector *c, flight *f, cr_err *err)
{
    c->num_done++;
    f->is_failed = !c->args->is_validation && !has_verdict(c, f);
    if (f->is_failed) return CR_OK;
    f->is_kept = is_kept(c, f);
    if (f->is_kept) {
        c->num_kept++;
        return CR_OK;
    }
    c->num_filtered++;
    if (c->num_filtered > 50 * c->args->group_size + 20 * c->num_kept + 1000)
        return cr_fail(err, CR_ECONFIG,
                       "the query filter of %s rejected %zu groups and kept %zu: no batch can be "
                       "filled (widen query_filter_config, or raise temperature)",
                       c->run->config->rewards[f->domain].domain, c->num_filtered, c->num_kept);
    return draw(c, f->domain, err);
}

/* All that was asked has come. Groups without a verdict are drawn again, as often as the step has groups
 * and unless nothing at all got a verdict, or none is needed; else they stay. In order of draws, so that the same verdicts
 * give the same rollout whatever came first. */
static cr_status settle_failed(collector *c, cr_err *err)
{
    const bool are_rewards_used = c->run->config->algorithm.advantage.opd != CR_OPD_PURE;

    for (size_t i = 0, num = c->num; i < num; i++) {
        if (!c->flights[i].is_failed) continue;
        c->flights[i].is_failed = false;
        if (c->num_verdicts > 0 && c->num_redrawn < c->num_wanted && are_rewards_used) {
            c->num_redrawn++;
            CR_TRY(draw(c, c->flights[i].domain, err));
        } else {
            c->flights[i].is_kept = true;
            c->num_kept++;
        }
    }
    return CR_OK;
}

/* What is longer was not sampled here: a train rank has no room for it. */
static size_t max_ids_of(const collector *c, const cr_sample *s)
{
    if (c->args->is_validation) return SIZE_MAX;
    return (size_t)c->run->config->sequence_length - c->args->data->rows[s->row].num_ids;
}

/* Ids that no flight waits for are left-overs of another step or second copies: finished, not used. */
static cr_status accept(collector *c, const cr_entry *entry, cr_err *err)
{
    unsigned long long id = strtoull(entry->id, NULL, 16);
    size_t draw = id >> 16 & 0xFFFFFF, index = id & 0xFFFF;
    cr_record record = {0};
    flight *f;
    cr_sample *s;

    if (draw >= c->num || index >= c->args->group_size || id_of(c->args, draw, index) != id ||
        c->flights[draw].samples[index].has_come ||
        c->flights[draw].samples[index].is_second != !!strchr(entry->id, '.'))
        return CR_OK;
    f = &c->flights[draw];
    s = &f->samples[index];
    if (cr_record_unpack(entry->data, entry->num_bytes, &record, err) == CR_OK &&
        cr_sample_read(&record, max_ids_of(c, s), s, err) == CR_OK && !c->args->is_validation)
        cr_note(cr_distribution_check(&c->distribution, s->kept.num != NULL, err));
    cr_record_free(&record);
    CR_TRY(cr_fail_add(err, "sample %s", entry->id));
    if (cr_sample_has_verdict(s)) {
        c->num_verdicts++;
    } else {
        /* in vain where nothing gets a verdict: then enough have tried */
        if (!s->is_second && (c->num_verdicts > 0 || c->num_timeouts + c->num_errors < ENOUGH))
            return score_again(c, f, entry, s, err);
        count_failure(c, f, s);
    }
    if (++f->num_come < c->args->group_size) return CR_OK;
    return settle(c, f, err);
}

static cr_status ask_all(collector *c, cr_err *err)
{
    const cr_rollout_args *args = c->args;

    if (args->is_validation) {
        for (size_t i = 0; i < args->data->num_rows; i++)
            if (args->data->rows[i].domain >= 0)
                CR_TRY(ask(c, args->data->rows[i].domain, (uint32_t)i, err));
        return CR_OK;
    }
    for (size_t d = 0; d < c->run->config->num_rewards; d++) {
        c->num_wanted += (size_t)args->num_prompts[d];
        for (int i = 0; i < args->num_prompts[d]; i++)
            CR_TRY(draw(c, (int)d, err));
    }
    return CR_OK;
}

/* Who has the samples that do not come? */
static cr_status no_sample_came(const collector *c, cr_err *err)
{
    const cr_config *config = c->run->config;
    int64_t num = 0;

    for (size_t d = 0; d < config->num_rewards; d++) {
        char *stream = cr_asprintf(CR_STREAM_GENERATED "%s", config->rewards[d].domain);
        cr_status status = cr_stream_length(c->run->x, stream, &num, err);
        cr_free(stream);
        CR_TRY(status);
        if (num)
            return cr_fail(err, CR_ETIMEOUT,
                           "step %lld: no sample was scored for %g s (rpc_timeout): %lld wait for "
                           "the reward workers of %s",
                           (long long)c->args->step, config->rpc_timeout, (long long)num,
                           config->rewards[d].domain);
    }
    return cr_fail(err, CR_ETIMEOUT,
                   "step %lld: actor_infer generated no sample for %g s (rpc_timeout), %zu of %zu "
                   "groups are there",
                   (long long)c->args->step, config->rpc_timeout, c->num_done, c->num);
}

static cr_status collect(collector *c, cr_err *err)
{
    static const char *const scored[] = {CR_STREAM_SCORED};
    double came_s;

    CR_TRY(ask_all(c, err));
    CR_TRY(cr_exchange_flush(c->run->x, err));
    came_s = cr_now_s();
    while (c->num_done < c->num) {
        cr_entries entries;
        CR_TRY(cr_stream_take(c->run->x, scored, 1, CR_GROUP_PIPELINE, "pipeline", 64, 0.2, 60,
                              &entries, err));
        for (size_t i = 0; i < entries.num && err->status == CR_OK; i++) {
            cr_note(accept(c, &entries.items[i], err));
            cr_stream_done(c->run->x, &entries.items[i], CR_GROUP_PIPELINE);
        }
        if (entries.num) came_s = cr_now_s();
        cr_entries_free(&entries);
        CR_TRY(err->status);
        CR_TRY(cr_run_watch(c->run, err));
        if (cr_now_s() - came_s > c->run->config->rpc_timeout) return no_sample_came(c, err);
        if (c->run->view)
            cr_view_progress(c->run->view, "step %lld: %zu of %zu groups %s",
                             (long long)c->args->step, c->num_done, c->num,
                             c->args->is_validation ? "validated" : "scored");
        if (c->num_done == c->num) CR_TRY(settle_failed(c, err));
    }
    return CR_OK;
}

/* Groups in order of domain, then of draw. */
static void order_groups(collector *c, cr_rollout *out)
{
    out->group_size = c->args->group_size;
    out->samples = CR_NEW_ARRAY(cr_sample, c->num_kept * out->group_size);
    for (size_t d = 0; d < c->run->config->num_rewards; d++)
        for (size_t i = 0; i < c->num; i++) {
            flight *f = &c->flights[i];
            if (!f->is_kept || f->domain != (int)d) continue;
            for (size_t k = 0; k < out->group_size; k++) {
                cr_sample *s = &out->samples[out->num_samples++];
                *s = f->samples[k];
                f->samples[k] = (cr_sample){.id = 0};
                s->group = out->num_groups;
                out->num_response_tokens += s->num_ids;
                out->num_prompt_tokens += c->args->data->rows[s->row].num_ids;
            }
            out->num_groups++;
        }
    out->num_drawn = c->num;
    out->num_filtered = c->num_filtered;
    out->num_redrawn = c->num_redrawn;
    out->num_retries = c->num_retries;
    out->num_timeouts = c->num_timeouts;
    out->num_errors = c->num_errors;
    out->failure = c->failure;
    c->failure = NULL;
}

static void clear_streams(cr_run *run)
{
    char name[96];

    cr_stream_clear(run->x, CR_STREAM_PROMPTS);
    cr_stream_clear(run->x, CR_STREAM_SCORED);
    for (size_t i = 0; i < run->config->num_rewards; i++) {
        snprintf(name, sizeof name, CR_STREAM_GENERATED "%s", run->config->rewards[i].domain);
        cr_stream_clear(run->x, name);
    }
}

cr_status cr_rollout_collect(cr_run *run, const cr_rollout_args *args, cr_rollout *out,
                             cr_metrics *m, cr_err *err)
{
    collector c = {.run = run, .args = args, .distribution = cr_distribution_of(run->config)};
    int num_infer = run->layout.role[CR_ROLE_INFER].num;
    cr_request *requests = CR_NEW_ARRAY(cr_request, num_infer);
    cr_record command = {0};
    double start = cr_now_s();

    *out = (cr_rollout){0};
    cr_record_set_int(&command, CR_FIELD_STEP, args->step);
    cr_record_set_int(&command, CR_FIELD_OFFLOAD, !args->is_followed);
    for (int r = 0; r < num_infer && err->status == CR_OK; r++)
        cr_note(cr_run_send(run, CR_ROLE_INFER, r, CR_ASK_GENERATE, &command, &requests[r], err));
    if (err->status == CR_OK) cr_note(collect(&c, err));
    out->generate_s = cr_now_s() - start;
    if (err->status == CR_OK)
        cr_note(cr_run_call(run, CR_ROLE_INFER, CR_ASK_PAUSE, &command, NULL, err));
    for (int r = 0; r < num_infer && err->status == CR_OK; r++) {
        cr_record reply;
        cr_note(cr_run_wait(run, &requests[r], &reply, err));
        if (err->status != CR_OK) break;
        if (r == 0) cr_phase_metrics(m, run->layout.role[CR_ROLE_INFER].name, "generate", &reply);
        cr_record_free(&reply);
    }
    if (err->status == CR_OK) clear_streams(run);
    if (err->status == CR_OK) order_groups(&c, out);
    for (size_t i = 0; i < c.num; i++) {
        for (size_t k = 0; k < args->group_size; k++)
            cr_sample_free(&c.flights[i].samples[k]);
        cr_free(c.flights[i].samples);
    }
    cr_free(c.flights);
    cr_free(c.failure);
    cr_free(requests);
    cr_record_free(&command);
    return err->status;
}

void cr_rollout_free(cr_rollout *rollout)
{
    for (size_t i = 0; i < rollout->num_samples; i++)
        cr_sample_free(&rollout->samples[i]);
    cr_free(rollout->samples);
    cr_free(rollout->failure);
    *rollout = (cr_rollout){0};
}
