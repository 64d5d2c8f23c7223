/* rollout.c -- see rollout.h. */
#include "pipelines/rollout.h"
#include "actors/distribution.h"
#include "data/row_images.h"
#include "exchange/record.h"
#include "launch/role_call.h"
#include "reports/view.h"
#include "rl/rl.h"
#include "samples/protocol.h"
#include "samples/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENOUGH = 8, ACKNOWLEDGED_AT_ONCE = 128 };

/* One group in flight. */
typedef struct flight {
    cr_sample *samples; /* [group_size] (owned) */
    size_t num_come;
    int domain;
    bool is_kept, is_failed; /* failed: no sample has a verdict, and nothing was drawn for it yet */
} flight;

/* Of all samples that a block of rewards has scored in this rollout: how many got an answer, how many none. */
typedef struct tally {
    size_t num_answers, num_failures;
} tally;

struct cr_rollouts {
    cr_run *run;
    cr_rollout_args args;
    cr_role_call generate;
    cr_record command; /* of generate */
    double began_s, done_s;
    flight *flights;
    size_t num, capacity, num_done, num_kept, num_wanted;
    size_t num_filtered, num_redrawn, num_verdicts, num_retries;
    size_t num_timeouts, num_errors, num_abstained, num_left_out;
    tally *tallies; /* [num_rewards of the configuration] (owned) */
    char *failure;  /* of the first sample without a verdict (owned) */
    char *left_out; /* the first failed reward of a sample that has a verdict without it (owned) */
    cr_entry *waiting; /* that have come and were not read yet: responses, then verdicts (owned) */
    size_t num_waiting, waiting_capacity;
    struct read_entries {
        cr_entry *items; /* that are acknowledged together (owned) */
        size_t num, capacity;
    } read[2]; /* responses, verdicts */
};

static uint64_t id_of(const cr_rollout_args *args, size_t draw, size_t index)
{
    return cr_sample_id_make(
        (cr_sample_id){args->step, (uint32_t)draw, (uint32_t)index, args->is_validation});
}

/* A message on a stream; with entry it is the next life of that entry. Sent with the next command. */
static cr_status put(cr_rollouts *c, cr_message_kind kind, const void *message, const char *stream,
                     const char *name, const cr_entry *entry, cr_err *err)
{
    cr_buf packed = {0};

    if (cr_message_pack(kind, message, &packed, err) == CR_OK)
        cr_stream_move_later(c->run->x, entry, CR_GROUP_PIPELINE,
                             &(cr_stream_message){stream, name, packed.data, packed.num_bytes}, 1);
    cr_buf_free(&packed);
    return err->status;
}

/* Put one prompt on the stream, and its row into the table. */
static cr_status ask(cr_rollouts *c, int domain, uint32_t row_index, cr_err *err)
{
    const cr_rollout_args *args = &c->args;
    const cr_row *row = &args->data->rows[row_index];
    const cr_field_array prompt_ids = {row->ids, row->num_ids};
    const cr_prompt_row text = {{row->text, strlen(row->text)}, prompt_ids};
    uint64_t *ids = CR_NEW_ARRAY(uint64_t, args->group_size);
    const cr_prompt prompt = {
        .is_validation = args->is_validation,
        .ids = prompt_ids,
        .samples = {ids, args->group_size},
        .blocks = {row->rewards, row->num_rewards},
        .item_digests = {row->image_digests, CR_ITEM_DIGEST * row->num_images},
        .item_grids = {row->image_grids, CR_ITEM_GRID * row->num_images}};
    char name[CR_SAMPLE_NAME];
    flight f = {.domain = domain};

    if (c->num >= CR_SAMPLE_ID_DRAWS) {
        cr_free(ids);
        return cr_fail(err, CR_ECONFIG, "a step has drawn %zu groups: no id is left for more",
                       c->num);
    }
    f.samples = CR_NEW_ARRAY(cr_sample, args->group_size);
    for (size_t i = 0; i < args->group_size; i++) {
        ids[i] = id_of(args, c->num, i);
        f.samples[i] = (cr_sample){.id = ids[i], .domain = domain, .row = row_index};
        f.samples[i].rewards = CR_NEW_ARRAY(cr_sample_reward, row->num_rewards);
        f.samples[i].num_rewards = row->num_rewards;
        for (size_t k = 0; k < row->num_rewards; k++)
            f.samples[i].rewards[k].block = row->rewards[k];
    }
    c->flights = cr_grow(c->flights, c->num, &c->capacity, sizeof *c->flights);
    cr_sample_name(ids[0], 0, /*is_second=*/false, name);
    c->flights[c->num++] = f;
    if (cr_row_images_put(row, args->data->image_folder, c->run->items, c->run->x, err) == CR_OK &&
        cr_rows_put(c->run->x, ids[0], &text, err) == CR_OK)
        cr_note(put(c, CR_MESSAGE_PROMPT, &prompt, CR_STREAM_PROMPTS, name, NULL, err));
    cr_free(ids);
    return err->status;
}

/* A group is complete: does the query filter of its domain keep it? */
static bool is_kept(const cr_rollouts *c, const flight *f)
{
    double *rewards;
    size_t num = 0;
    bool kept;

    if (c->args.is_validation || c->args.group_size < 2) return true;
    rewards = CR_NEW_ARRAY(double, c->args.group_size);
    for (size_t i = 0; i < c->args.group_size; i++)
        if (cr_sample_has_verdict(&f->samples[i])) rewards[num++] = f->samples[i].reward;
    kept = cr_query_filter_keeps(&c->run->config->rewards[f->domain].filter, rewards, num);
    cr_free(rewards);
    return kept;
}

/* The same sample once more on the stream of its reward number k, as "ID.1". */
static cr_status score_again(cr_rollouts *c, const cr_entry *entry, cr_sample *s, size_t k,
                             cr_err *err)
{
    cr_sample_reward *x = &s->rewards[k];
    const cr_question question = {.response = {s->response, s->response_bytes},
                                  .finish = {s->finish, strlen(s->finish)},
                                  .ids = {s->ids, s->num_ids}};
    char stream[96], id[CR_SAMPLE_NAME];

    snprintf(stream, sizeof stream, CR_STREAM_GENERATED "%s",
             c->run->config->rewards[x->block].domain);
    cr_sample_name(s->id, k, /*is_second=*/true, id);
    cr_sample_reward_free(x);
    *x = (cr_sample_reward){.block = x->block, .is_second = true};
    c->num_retries++;
    return put(c, CR_MESSAGE_QUESTION, &question, stream, id, entry, err);
}

/* All of its rewards have come. */
static void settle_sample(cr_rollouts *c, cr_sample *s)
{
    cr_sample_merge(c->run->config, s);
    c->num_verdicts += cr_sample_has_verdict(s);
    c->num_timeouts += s->outcome == CR_OUTCOME_TIMEOUT;
    c->num_errors += s->outcome == CR_OUTCOME_ERROR;
    c->num_abstained += s->outcome == CR_OUTCOME_ABSTAIN;
    if (!c->failure && !cr_sample_has_verdict(s)) c->failure = cr_sample_reason(c->run->config, s);
    for (size_t k = 0; cr_sample_has_verdict(s) && k < s->num_rewards; k++) {
        if (cr_reward_is_answer(&s->rewards[k])) continue;
        if (c->num_left_out++ == 0) c->left_out = cr_sample_reason(c->run->config, s);
    }
}

static bool has_verdict(const cr_rollouts *c, const flight *f)
{
    for (size_t i = 0; i < c->args.group_size; i++)
        if (cr_sample_has_verdict(&f->samples[i])) return true;
    return false;
}

static cr_status draw(cr_rollouts *c, int domain, cr_err *err)
{
    cr_order *order = &c->args.orders[domain];
    cr_cursor *cursor = &c->args.cursors[domain];

    return ask(c, domain,
               c->args.curriculum ? cr_curriculum_draw(c->args.curriculum, order, cursor)
                                  : cr_order_draw(order, cursor),
               err);
}

/* The group is complete: it is kept, or the next prompt of its domain takes its place. */
static cr_status settle(cr_rollouts *c, flight *f, cr_err *err)
{
    c->num_done++;
    f->is_failed = !c->args.is_validation && !has_verdict(c, f);
    if (f->is_failed) return CR_OK;
    f->is_kept = is_kept(c, f);
    if (f->is_kept) {
        c->num_kept++;
        return c->args.on_group ? c->args.on_group(c->args.context, f->samples, err) : CR_OK;
    }
    c->num_filtered++;
    if (c->num_filtered > 50 * c->args.group_size + 20 * c->num_kept + 1000)
        return cr_fail(err, CR_ECONFIG,
                       "the query filter of %s rejected %zu groups and kept %zu: no batch can be "
                       "filled (widen query_filter_config, or raise temperature)",
                       c->run->config->rewards[f->domain].domain, c->num_filtered, c->num_kept);
    return draw(c, f->domain, err);
}

/* All that was asked has come. Groups without a verdict are drawn again, as often as the step has groups
 * and unless nothing at all got a verdict, or none is needed; else they stay. In order of draws, so that the same verdicts
 * give the same rollout whatever came first. */
static cr_status settle_failed(cr_rollouts *c, cr_err *err)
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
static size_t max_ids_of(const cr_rollouts *c, const cr_sample *s)
{
    if (c->args.is_validation) return SIZE_MAX;
    return (size_t)c->run->config->sequence_length - c->args.data->rows[s->row].num_ids;
}

/* The sample that an entry is of, and which of its rewards. NULL: no flight waits for it, it is a left-over of
 * another step. */
static cr_sample *find_sample(const cr_rollouts *c, const char *name, flight **f, size_t *k)
{
    uint64_t bits;
    bool is_second;
    cr_sample_id id;
    cr_sample *s;

    if (!cr_sample_name_read(name, &bits, k, &is_second)) return NULL;
    id = cr_sample_id_parse(bits);
    if (id.step != c->args.step || id.is_validation != c->args.is_validation || id.draw >= c->num ||
        id.index >= c->args.group_size)
        return NULL;
    *f = &c->flights[id.draw];
    if (!(*f)->samples) return NULL;
    s = &(*f)->samples[id.index];
    return *k < s->num_rewards && s->rewards[*k].is_second == is_second ? s : NULL;
}

static cr_status read_response(cr_rollouts *c, const cr_record *record, cr_sample *s, cr_err *err)
{
    const cr_distribution of = cr_distribution_of(c->run->config, s->domain);

    if (s->num_segments) return CR_OK; /* a second copy */
    CR_TRY(cr_sample_read(record, max_ids_of(c, s), s, err));
    if (c->args.is_validation) return CR_OK;
    return cr_distribution_check(&of, s->kept.num != NULL, err);
}

/* Has a block no verdict on a sample? Then it is asked once more, unless it is in vain: enough have tried. */
static bool should_ask_again(const cr_rollouts *c, const cr_sample_reward *x)
{
    const tally *t = &c->tallies[x->block];

    return !x->is_second && (t->num_answers > 0 || t->num_failures < ENOUGH);
}

/* What reward number k of a sample says. */
static cr_status accept_verdict(cr_rollouts *c, const cr_entry *entry, const cr_record *record,
                                flight *f, cr_sample *s, size_t k, cr_err *err)
{
    cr_sample_reward *x = &s->rewards[k];

    if (x->has_come) return CR_OK; /* a second copy */
    CR_TRY(cr_sample_reward_read(record, s->num_ids, x, err));
    if (cr_reward_is_answer(x))
        c->tallies[x->block].num_answers++;
    else if (should_ask_again(c, x))
        return score_again(c, entry, s, k, err);
    else
        c->tallies[x->block].num_failures++;
    if (++s->num_come < s->num_rewards) return CR_OK;
    settle_sample(c, s);
    if (++f->num_come < c->args.group_size) return CR_OK;
    return settle(c, f, err);
}

static bool is_verdict(const cr_entry *entry)
{
    return strcmp(entry->stream, CR_STREAM_SCORED) == 0;
}

static cr_status accept(cr_rollouts *c, const cr_entry *entry, cr_err *err)
{
    size_t k;
    flight *f;
    cr_sample *s = find_sample(c, entry->id, &f, &k);
    cr_record record = {0};

    if (!s) return CR_OK;
    if (cr_record_unpack(entry->data, entry->num_bytes, &record, err) == CR_OK)
        cr_note(is_verdict(entry) ? accept_verdict(c, entry, &record, f, s, k, err)
                                  : read_response(c, &record, s, err));
    cr_record_free(&record);
    return cr_fail_add(err, "sample %s", entry->id);
}

/* A verdict on a response that has not come yet: engines put the response on its stream before they ask for rewards,
 * but both streams are read in pieces. */
static bool must_wait(const cr_rollouts *c, const cr_entry *entry)
{
    size_t k;
    flight *f;
    const cr_sample *s = find_sample(c, entry->id, &f, &k);

    return s && !s->num_segments && is_verdict(entry);
}

static void forget(struct read_entries *read)
{
    for (size_t i = 0; i < read->num; i++)
        cr_entry_free(&read->items[i]);
    read->num = 0;
}

/* Entries that were read are acknowledged many at once; one that Redis gives again after a lost connection is a second
 * copy. */
static void acknowledge(cr_rollouts *c, size_t at_least)
{
    for (int k = 0; k < 2; k++) {
        if (c->read[k].num < at_least) continue;
        cr_stream_done(c->run->x, c->read[k].items, c->read[k].num, CR_GROUP_PIPELINE);
        forget(&c->read[k]);
    }
}

/* The entries that wait and can be read now. */
static cr_status accept_waiting(cr_rollouts *c, cr_err *err)
{
    size_t num = c->num_waiting;

    c->num_waiting = 0;
    for (size_t i = 0; i < num; i++) {
        cr_entry *entry = &c->waiting[i];
        if (err->status != CR_OK || must_wait(c, entry)) {
            c->waiting[c->num_waiting++] = *entry;
            continue;
        }
        struct read_entries *read = &c->read[is_verdict(entry)];
        cr_note(accept(c, entry, err));
        read->items = cr_grow(read->items, read->num, &read->capacity, sizeof *read->items);
        read->items[read->num++] = *entry;
    }
    acknowledge(c, ACKNOWLEDGED_AT_ONCE);
    return err->status;
}

/* Responses and verdicts that have come meanwhile. */
static cr_status take(cr_rollouts *c, double wait_s, size_t *num, cr_err *err)
{
    static const char *const streams[] = {CR_STREAM_SAMPLED, CR_STREAM_SCORED};
    cr_entries entries;

    CR_TRY(cr_stream_take(c->run->x, streams, 2, CR_GROUP_PIPELINE, "pipeline", 64, wait_s, 60,
                          &entries, err));
    *num = entries.num;
    for (int kind = 0; kind < 2; kind++) /* responses first */
        for (size_t i = 0; i < entries.num; i++) {
            cr_entry *entry = &entries.items[i];
            if (is_verdict(entry) != kind) continue;
            c->waiting =
                cr_grow(c->waiting, c->num_waiting, &c->waiting_capacity, sizeof *c->waiting);
            c->waiting[c->num_waiting++] = *entry;
            entry->id = entry->data = NULL;
        }
    cr_entries_free(&entries);
    return accept_waiting(c, err);
}

/* A draw whose group is there already. */
static void leave_out(cr_rollouts *c)
{
    c->flights = cr_grow(c->flights, c->num, &c->capacity, sizeof *c->flights);
    c->flights[c->num++] = (flight){.num_come = c->args.group_size};
    c->num_done++;
}

/* Every row once, in the order of the file. */
static cr_status ask_rows(cr_rollouts *c, cr_err *err)
{
    for (size_t i = 0; i < c->args.data->num_rows; i++) {
        int domain = c->args.data->rows[i].domain;
        if (domain < 0) continue;
        if (c->args.is_done && c->args.is_done[i])
            leave_out(c);
        else
            CR_TRY(ask(c, domain, (uint32_t)i, err));
    }
    return CR_OK;
}

static cr_status ask_all(cr_rollouts *c, cr_err *err)
{
    const cr_rollout_args *args = &c->args;

    if (args->is_validation) return ask_rows(c, err);
    for (size_t d = 0; d < c->run->config->num_rewards; d++) {
        c->num_wanted += (size_t)args->num_prompts[d];
        for (int i = 0; i < args->num_prompts[d]; i++)
            CR_TRY(draw(c, (int)d, err));
    }
    return CR_OK;
}

/* Who has the samples that do not come? */
static cr_status no_sample_came(const cr_rollouts *c, cr_err *err)
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
                           (long long)c->args.step, config->rpc_timeout, (long long)num,
                           config->rewards[d].domain);
    }
    return cr_fail(err, CR_ETIMEOUT,
                   "step %lld: actor_infer generated no sample for %g s (rpc_timeout), %zu of %zu "
                   "groups are there",
                   (long long)c->args.step, config->rpc_timeout, c->num_done, c->num);
}

/* A sample whose row is gone never comes: reward workers take it for one of a step that is over. */
static cr_status look_for_row(const cr_rollouts *c, cr_err *err)
{
    bool is_there = true;

    for (size_t i = 0; i < c->num; i++) {
        if (c->flights[i].num_come == c->args.group_size) continue;
        CR_TRY(cr_rows_has(c->run->x, c->flights[i].samples[0].id, &is_there, err));
        break;
    }
    if (is_there) return CR_OK;
    return cr_fail(err, CR_EIO,
                   "step %lld: the run's keys are no longer in Redis (rows of prompts are gone): "
                   "FLUSHALL, FLUSHDB, DEL or an eviction has removed them; "
                   "resume_from_checkpoint=true goes on",
                   (long long)c->args.step);
}

/* Read what has come within wait_s. */
static cr_status advance(cr_rollouts *c, double wait_s, size_t *num, cr_err *err)
{
    CR_TRY(take(c, wait_s, num, err));
    if (c->num_done == c->num) CR_TRY(settle_failed(c, err));
    if (c->num_done == c->num && c->done_s == 0) c->done_s = cr_now_s();
    return CR_OK;
}

static cr_status collect(cr_rollouts *c, cr_err *err)
{
    const double look_s = 5;
    double came_s = cr_now_s(), looked_s = came_s;

    while (c->num_done < c->num) {
        size_t num;
        CR_TRY(advance(c, 0.2, &num, err));
        if (num) came_s = looked_s = cr_now_s();
        if (cr_now_s() - looked_s > look_s) {
            CR_TRY(look_for_row(c, err));
            looked_s = cr_now_s();
        }
        CR_TRY(cr_run_watch(c->run, err));
        if (cr_now_s() - came_s > c->run->config->rpc_timeout) return no_sample_came(c, err);
        if (c->run->view)
            cr_view_progress(c->run->view, "step %lld: %zu of %zu groups %s",
                             (long long)c->args.step, c->num_done, c->num,
                             c->args.is_validation ? "validated" : "scored");
    }
    acknowledge(c, 0);
    return CR_OK;
}

/* Groups that were rejected, too; in the order of draws. */
static void show_curriculum(const cr_rollouts *c)
{
    for (size_t i = 0; i < c->num; i++) {
        const flight *f = &c->flights[i];
        double sum = 0;
        size_t num = 0;
        for (size_t k = 0; k < c->args.group_size; k++) {
            if (!cr_sample_has_verdict(&f->samples[k])) continue;
            sum += f->samples[k].score;
            num++;
        }
        if (num) cr_curriculum_see(c->args.curriculum, f->samples[0].row, sum / (double)num);
    }
}

/* Groups in order of domain, then of draw. */
static void order_groups(cr_rollouts *c, cr_rollout *out)
{
    out->group_size = c->args.group_size;
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
                out->num_prompt_tokens += c->args.data->rows[s->row].num_ids;
            }
            out->num_groups++;
        }
    out->num_drawn = c->num;
    out->num_filtered = c->num_filtered;
    out->num_redrawn = c->num_redrawn;
    out->num_retries = c->num_retries;
    out->num_timeouts = c->num_timeouts;
    out->num_errors = c->num_errors;
    out->num_abstained = c->num_abstained;
    out->num_left_out = c->num_left_out;
    out->left_out = c->left_out;
    c->left_out = NULL;
    out->failure = c->failure;
    c->failure = NULL;
}

static void clear_streams(cr_run *run)
{
    char name[96];

    cr_stream_clear(run->x, CR_STREAM_PROMPTS);
    cr_stream_clear(run->x, CR_STREAM_SAMPLED);
    cr_stream_clear(run->x, CR_STREAM_SCORED);
    cr_rows_clear(run->x);
    for (size_t i = 0; i < run->config->num_rewards; i++) {
        snprintf(name, sizeof name, CR_STREAM_GENERATED "%s", run->config->rewards[i].domain);
        cr_stream_clear(run->x, name);
    }
}

cr_status cr_rollouts_begin(cr_run *run, const cr_rollout_args *args, cr_rollouts **out,
                            cr_err *err)
{
    cr_rollouts *c = CR_NEW(cr_rollouts);

    *c = (cr_rollouts){.run = run,
                       .args = *args,
                       .generate = {.role = CR_ROLE_INFER, .ask = CR_ASK_GENERATE},
                       .began_s = cr_now_s()};
    *out = c;
    c->tallies = CR_NEW_ARRAY(tally, run->config->num_rewards);
    cr_record_set_int(&c->command, CR_FIELD_STEP, args->step);
    cr_record_set_int(&c->command, CR_FIELD_OFFLOAD, !args->is_followed);
    c->generate.command = &c->command;
    CR_TRY(cr_role_call_begin(run, &c->generate, err));
    CR_TRY(ask_all(c, err));
    c->args.num_prompts = NULL;
    return cr_exchange_flush(run->x, err);
}

cr_status cr_rollouts_poll(cr_rollouts *c, cr_err *err)
{
    size_t num;

    return c->num_done < c->num ? advance(c, 0, &num, err) : CR_OK;
}

cr_status cr_rollouts_take(cr_rollouts *c, cr_rollout *out, cr_metrics *m, cr_err *err)
{
    cr_role_call pause = {.role = CR_ROLE_INFER, .ask = CR_ASK_PAUSE};

    *out = (cr_rollout){0};
    c->generate.metrics = m;
    CR_TRY_GOTO(out, collect(c, err));
    CR_TRY_GOTO(out, cr_role_call_run(c->run, &pause, err));
    CR_TRY_GOTO(out, cr_role_call_finish(c->run, &c->generate, err));
    clear_streams(c->run);
    if (c->args.curriculum) show_curriculum(c);
    order_groups(c, out);
    out->generate_s = c->done_s > 0 ? c->done_s - c->began_s : 0;
out:
    cr_role_call_free(&pause);
    return err->status;
}

void cr_rollouts_free(cr_rollouts *c)
{
    if (!c) return;
    for (size_t i = 0; i < c->num; i++) {
        for (size_t k = 0; k < c->args.group_size && c->flights[i].samples; k++)
            cr_sample_free(&c->flights[i].samples[k]);
        cr_free(c->flights[i].samples);
    }
    cr_free(c->flights);
    for (size_t i = 0; i < c->num_waiting; i++)
        cr_entry_free(&c->waiting[i]);
    for (int k = 0; k < 2; k++) {
        forget(&c->read[k]);
        cr_free(c->read[k].items);
    }
    cr_free(c->waiting);
    cr_free(c->tallies);
    cr_free(c->failure);
    cr_free(c->left_out);
    cr_role_call_free(&c->generate);
    cr_record_free(&c->command);
    cr_free(c);
}

cr_status cr_rollout_collect(cr_run *run, const cr_rollout_args *args, cr_rollout *out,
                             cr_metrics *m, cr_err *err)
{
    cr_rollouts *c = NULL;

    *out = (cr_rollout){0};
    if (cr_rollouts_begin(run, args, &c, err) == CR_OK) cr_note(cr_rollouts_take(c, out, m, err));
    cr_rollouts_free(c);
    return err->status;
}

void cr_rollout_free(cr_rollout *rollout)
{
    for (size_t i = 0; i < rollout->num_samples; i++)
        cr_sample_free(&rollout->samples[i]);
    cr_free(rollout->samples);
    cr_free(rollout->failure);
    cr_free(rollout->left_out);
    *rollout = (cr_rollout){0};
}
