/* reward_worker.c -- see reward_worker.h. */
#include "scorers/reward_worker.h"
#include "samples/protocol.h"
#include "samples/rows.h"
#include "scorers/reward_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CLAIM_SECONDS = 30, /* what another worker has left for this long is taken over */
    MIN_AHEAD = 7,      /* samples beside those that the program works on, if it is fast */
    MAX_AHEAD = 255,
    BEATS_A_TRIP = 10 /* signs of life from one measured trip to Redis to the next */
};
#define ANSWER_S     0.05 /* a fast program answers within this time */
#define MAX_GATHER_S 0.5
#define RATE_S       2.0 /* over which the rate of verdicts is measured */

typedef struct worker {
    cr_exchange *x;
    cr_scorer *scorer;
    cr_reward_program program;
    char stream[96], name[128];
    cr_rows rows;   /* of the prompts whose samples came last */
    cr_entry *held; /* owned: their verdicts are awaited */
    size_t num_held, capacity;
    double trip_s;  /* the way to Redis and back */
    double since_s; /* the last verdict, or when the program got samples after it had none */
    /* verdicts of the last seconds, and the time that the program worked for them */
    double num_verdicts, worked_s;
    double beat_s;
    long num_beats;
    bool has_asked, has_answered;
    const volatile sig_atomic_t *should_stop;
} worker;

/* What the launcher reads; sent with the next command. */
static void say_later(worker *w, const char *state, const char *why)
{
    char *key = cr_asprintf("hb:%s", w->name),
         *text = cr_asprintf("%d %ld %s%s%s", (int)getpid(), ++w->num_beats, state, why ? " " : "",
                             why ? why : "");

    w->beat_s = cr_now_s();
    cr_value_set_later(w->x, key, text);
    cr_free(key);
    cr_free(text);
}

static cr_status say(worker *w, const char *state, const char *why, cr_err *err)
{
    say_later(w, state, why);
    CR_TRY(cr_exchange_flush(w->x, err));
    w->trip_s = cr_now_s() - w->beat_s;
    return CR_OK;
}

static cr_status beat(worker *w, cr_err *err)
{
    const char *state = w->has_answered ? "answered" : w->has_asked ? "asked" : "idle";

    if (cr_now_s() - w->beat_s < 1) return CR_OK;
    if (w->num_beats % BEATS_A_TRIP == 0) return say(w, state, NULL, err);
    say_later(w, state, NULL);
    return CR_OK;
}

/* The sample's line to the scorer; the entry is held until its verdict comes. */
static cr_status ask(worker *w, cr_entry *entry, cr_err *err)
{
    const cr_prompt_row *row = cr_rows_find(&w->rows, entry->id);
    cr_sample_id id = cr_sample_id_read(entry->id);
    cr_record sample;
    cr_question q;
    cr_buf text = {0};

    if (!row) { /* its step is over: another worker was faster */
        cr_log(CR_LOG_WARN, "reward", "sample %s is left out: its step is over", entry->id);
        cr_stream_done(w->x, entry, 1, CR_GROUP_REWARD);
        return CR_OK;
    }
    CR_TRY(cr_record_unpack(entry->data, entry->num_bytes, &sample, err));
    if (cr_message_read(&cr_messages[CR_MESSAGE_QUESTION], &sample, &q, err) == CR_OK) {
        cr_reward_line line = {.id = entry->id,
                               .step = id.step,
                               .is_validation = id.is_validation,
                               .row = row->text.data,
                               .row_bytes = row->text.num_bytes,
                               .response = q.response.data,
                               .response_bytes = q.response.num_bytes,
                               .finish = q.finish.data,
                               .num_ids = q.ids.num,
                               .num_prompt_ids = row->ids.num};
        line.ids = w->program.takes_ids ? q.ids.data : NULL;
        line.prompt_ids = w->program.takes_ids ? row->ids.data : NULL;
        if (cr_reward_line_write(&line, &text, err) == CR_OK)
            cr_scorer_put(w->scorer, entry->id, &text, line.num_ids);
    }
    if (err->status == CR_OK) {
        w->held = cr_grow(w->held, w->num_held, &w->capacity, sizeof *w->held);
        w->held[w->num_held++] = *entry;
        entry->id = entry->data = NULL; /* the batch keeps nothing of it */
    }
    cr_buf_free(&text);
    cr_record_free(&sample);
    return cr_fail_add(err, "sample %s", entry->id ? entry->id : "");
}

static cr_status publish(worker *w, const cr_entry *entry, const cr_verdict *v, cr_err *err)
{
    const char *status = cr_outcome_name(v->outcome);
    cr_scored scored = {.score = v->score,
                        .reward = v->reward,
                        .seconds = v->seconds,
                        .status = {status, strlen(status)},
                        .detail = {v->detail, strlen(v->detail)},
                        .metrics.value = v->metrics};
    cr_buf packed = {0};
    cr_stream_message message;

    if (v->token_rewards) scored.token_rewards = (cr_field_array){v->token_rewards, v->num_tokens};
    CR_TRY_GOTO(out, cr_message_pack(CR_MESSAGE_VERDICT, &scored, &packed, err));
    message = (cr_stream_message){CR_STREAM_SCORED, entry->id, packed.data, packed.num_bytes};
    cr_stream_move_later(w->x, entry, CR_GROUP_REWARD, &message, 1);
out:
    cr_buf_free(&packed);
    return cr_fail_add(err, "sample %s", entry->id);
}

/* How long verdicts are gathered before they are sent: a far server takes many at once. */
static double gather_s(const worker *w)
{
    return 2 * w->trip_s < MAX_GATHER_S ? 2 * w->trip_s : MAX_GATHER_S;
}

/* A verdict on its way; sent with the next command. */
static cr_status hand_on(worker *w, const char *id, const cr_verdict *verdict, cr_err *err)
{
    size_t i = 0;
    cr_status status;
    cr_entry entry;

    while (strcmp(w->held[i].id, id) != 0)
        i++;
    entry = w->held[i];
    w->held[i] = w->held[--w->num_held];
    status = publish(w, &entry, verdict, err);
    cr_entry_free(&entry);
    if (status != CR_OK || w->has_answered || verdict->is_fault) return status;
    w->has_answered = true;
    return say(w, "answered", NULL, err);
}

/* Send on the verdicts that come until the time of gathering is over, the first within ANSWER_S at least. */
static cr_status gather(worker *w, cr_err *err)
{
    double last = w->since_s, until = cr_now_s() + gather_s(w),
           wait_s = gather_s(w) > ANSWER_S ? gather_s(w) : ANSWER_S;
    size_t num = 0;
    cr_verdict verdict;
    char *id;

    for (; cr_scorer_next(w->scorer, wait_s, &id, &verdict); num++) {
        cr_status status = hand_on(w, id, &verdict, err);
        cr_free(id);
        cr_verdict_free(&verdict);
        CR_TRY(status);
        last = cr_now_s();
        wait_s = last < until ? until - last : 0;
    }
    if (num == 0) return CR_OK;
    w->num_verdicts += (double)num;
    w->worked_s += last - w->since_s;
    w->since_s = last;
    if (w->worked_s > RATE_S) w->num_verdicts /= 2, w->worked_s /= 2;
    return CR_OK;
}

static bool is_held(const worker *w, const char *id)
{
    for (size_t i = 0; i < w->num_held; i++)
        if (strcmp(w->held[i].id, id) == 0) return true;
    return false;
}

/* How many samples to hold: those that the program works on, and those that it answers until the next ones come. */
static size_t max_held(const worker *w)
{
    size_t at_once = w->program.args.max_in_flight;
    double rate = w->num_verdicts / (w->worked_s + 1e-6), /* verdicts a second */
        ahead = rate * (gather_s(w) + w->trip_s);

    if (ahead > MAX_AHEAD) ahead = MAX_AHEAD;
    if (ahead < MIN_AHEAD && rate * ANSWER_S > (double)at_once) ahead = MIN_AHEAD;
    return at_once + (size_t)ahead;
}

static cr_status take(worker *w, cr_err *err)
{
    const char *stream = w->stream;
    size_t max = max_held(w);
    cr_status status = CR_OK;
    cr_entries entries;

    if (w->num_held >= max) return cr_exchange_flush(w->x, err); /* verdicts */
    CR_TRY(cr_stream_take(w->x, &stream, 1, CR_GROUP_REWARD, w->name, max - w->num_held,
                          w->num_held ? 0 : 1.0, CLAIM_SECONDS, &entries, err));
    if (w->num_held == 0) w->since_s = cr_now_s();
    if (entries.num && !w->has_asked) {
        w->has_asked = true;
        status = say(w, "asked", NULL, err);
    }
    if (status == CR_OK) status = cr_rows_fetch(&w->rows, w->x, &entries, err);
    /* after a lost connection what is held comes again */
    for (size_t i = 0; i < entries.num && status == CR_OK; i++)
        if (!is_held(w, entries.items[i].id)) status = ask(w, &entries.items[i], err);
    cr_entries_free(&entries);
    return status;
}

static cr_status work(worker *w, cr_err *err)
{
    while (!*w->should_stop) {
        CR_TRY(beat(w, err));
        CR_TRY(take(w, err));
        CR_TRY(gather(w, err));
        if (cr_scorer_broken(w->scorer))
            return cr_fail(err, CR_ECONFIG, "%s", cr_scorer_broken(w->scorer));
    }
    return CR_OK;
}

/* No run has the prefix. */
static bool is_without_run(worker *w)
{
    static const char *const key[] = {"owner"};
    cr_buf owner = {0};
    cr_err ignored = {0};
    bool is_so = cr_values_get(w->x, key, 1, &owner, &ignored) == CR_OK && owner.num_bytes == 0;

    cr_buf_free(&owner);
    return is_so;
}

/* Why work() ended: a run that ends removes its keys, then its hold on the prefix. */
static void report_end(worker *w, bool had_run, cr_err *err)
{
    cr_err ignored = {0};

    if (!cr_exchange_is_connected(w->x)) return;
    had_run = had_run && !cr_scorer_broken(w->scorer);
    for (int i = 0; i < 20 && had_run && !is_without_run(w); i++)
        cr_sleep_s(0.05);
    if (had_run && is_without_run(w)) {
        *err = (cr_err){0};
        cr_log(CR_LOG_INFO, "reward", "the run has ended");
    } else {
        cr_note(say(w, "failed", err->msg, &ignored));
    }
}

/* What a worker's name ends with: workers of a domain are counted from 0. */
static int number_of(const char *name)
{
    const char *dash = strrchr(name, '-');

    return dash ? (int)(strtoul(dash + 1, NULL, 10) & INT32_MAX) : 0;
}

static cr_status open_worker(worker *w, const cr_reward_worker_args *a, cr_err *err)
{
    const cr_reward_config *reward = cr_config_find_reward(a->config, a->domain);

    if (!reward) return cr_fail(err, CR_EUSAGE, "%s has no reward domain '%s'", a->path, a->domain);
    snprintf(w->name, sizeof w->name, "%s", a->name);
    snprintf(w->stream, sizeof w->stream, CR_STREAM_GENERATED "%s", a->domain);
    w->should_stop = a->should_stop;
    CR_TRY(cr_reward_program_open(a->config, a->path, reward, a->exec, a->limit_s,
                                  number_of(w->name), &w->program, err));
    w->scorer = cr_scorer_create(&w->program.args);
    CR_TRY(cr_exchange_open(a->exchange, &w->x, err));
    return cr_stream_make(w->x, w->stream, CR_GROUP_REWARD, err);
}

static void close_worker(worker *w)
{
    cr_scorer_destroy(w->scorer);
    cr_reward_program_close(&w->program);
    cr_exchange_close(w->x);
    cr_rows_free(&w->rows);
    for (size_t i = 0; i < w->num_held; i++)
        cr_entry_free(&w->held[i]);
    cr_free(w->held);
}

cr_status cr_reward_worker_run(const cr_reward_worker_args *a, cr_err *err)
{
    worker w = {.x = NULL};

    if (open_worker(&w, a, err) == CR_OK) {
        bool had_run = !is_without_run(&w); /* a private server knows no owner */
        if (!had_run && a->config->exchange.url)
            cr_log(CR_LOG_INFO, "reward", "no run has the keys %s* yet: waiting for it",
                   a->exchange->prefix);
        if (work(&w, err) != CR_OK) report_end(&w, had_run, err);
    }
    close_worker(&w);
    return err->status;
}
