/* cmd_reward.c -- `croll reward`: one elastic reward worker.
 *
 * Flow 3 of 9. Takes samples of one domain, asks a scoring program (scorer.h), moves each to `scored`.
 * It may be killed at any moment: its successor (same --worker) gets what it held, and a sample that
 * two workers scored is appended once. Any number may run, on any host that reaches Redis.
 */
#include "actors/commands.h"
#include "actors/scorer.h"
#include "exchange/exchange.h"
#include "exchange/record.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static volatile sig_atomic_t should_stop;

static void on_signal(int number)
{
    (void)number;
    should_stop = 1;
}

typedef struct worker {
    cr_exchange *x;
    cr_scorer scorer;
    const char *stream;
    char name[80];
} worker;

static cr_status score_entry(worker *w, const cr_entry *entry, cr_err *err)
{
    cr_record sample;
    cr_verdict verdict;
    cr_buf packed = {0};
    const char *row, *response;
    const void *ids;
    size_t row_bytes, response_bytes, num_ids;

    CR_TRY(cr_record_unpack(entry->data, entry->num_bytes, &sample, err));
    if (cr_record_get_text(&sample, "row", &row, &row_bytes, err) == CR_OK &&
        cr_record_get_text(&sample, "response", &response, &response_bytes, err) == CR_OK &&
        cr_record_get(&sample, "ids", CR_RECORD_INT32, &ids, &num_ids, err) == CR_OK &&
        cr_scorer_ask(&w->scorer, row, row_bytes, entry->id, response, response_bytes, num_ids,
                      &verdict, err) == CR_OK) {
        cr_record_set_real(&sample, "score", verdict.score);
        cr_record_set_real(&sample, "reward", verdict.reward);
        cr_record_set_text(&sample, "status", verdict.status, strlen(verdict.status));
        cr_record_set_text(&sample, "detail", verdict.detail, strlen(verdict.detail));
        CR_TRY_GOTO(out, cr_record_pack(&sample, &packed, err));
        CR_TRY_GOTO(out, cr_stream_move(w->x, entry, "reward", "scored", entry->id, packed.data,
                                        packed.num_bytes, NULL, err));
    }
out:
    cr_record_free(&sample);
    cr_buf_free(&packed);
    return cr_fail_add(err, "sample %s", entry->id);
}

static cr_status work(worker *w, cr_err *err)
{
    while (!should_stop) {
        cr_entries entries;
        CR_TRY(cr_stream_take(w->x, &w->stream, 1, "reward", w->name, 8, 1.0, 30.0, &entries, err));
        for (size_t i = 0; i < entries.num && err->status == CR_OK; i++)
            score_entry(w, &entries.items[i], err);
        cr_entries_free(&entries);
        CR_TRY(err->status);
    }
    return CR_OK;
}

static int run(int argc, char **argv);

const cr_command cr_command_reward = {
    "reward", "reward FILE --domain D --exchange URL [--exec PROGRAM]",
    "Score samples of one domain from the exchange until stopped; any number of workers may run.",
    "croll reward output/quickstart/rlvr/config.yaml --domain math_rule --exchange "
    "redis://host:6379/0 "
    "--prefix run1:",
    run};

static int run(int argc, char **argv)
{
    const char *domain = NULL, *url = NULL, *prefix = "croll:", *program = NULL, *name = NULL;
    double limit_s = 10;
    const cr_option options[] = {
        {"domain", CR_OPT_STRING, &domain, "D", "a domain of the file's rewards"},
        {"exchange", CR_OPT_STRING, &url, "URL",
         "where the run's Redis is (unix:/path or redis://host:port/db)"},
        {"prefix", CR_OPT_STRING, &prefix, "TEXT",
         "what the run's keys begin with (default croll:)"},
        {"worker", CR_OPT_STRING, &name, "NAME",
         "a successor with the same name takes over what this one holds (default: host and "
         "process)"},
        {"exec", CR_OPT_STRING, &program, "PROGRAM",
         "score with this program: JSON lines in, JSON lines out (default: croll score)"},
        {"timeout", CR_OPT_DOUBLE, &limit_s, "SECONDS", "for one sample (default 10)"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help;
    worker w = {0};
    char self[4096], host[40] = "", stream[64];
    char *score_argv[8];
    struct sigaction action = {.sa_handler = on_signal};
    ssize_t n;

    if (cr_args_parse(&cr_command_reward, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        is_help) {
        cr_words_free(&words);
        return 0;
    }
    if (err.status == CR_OK && (words.num != 1 || !domain || !url))
        cr_fail(&err, CR_EUSAGE,
                "a FILE, --domain and --exchange are needed (see croll reward --help)");
    n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    if (err.status == CR_OK) {
        if (program) {
            score_argv[0] = (char *)(uintptr_t)program;
            score_argv[1] = NULL;
        } else {
            score_argv[0] = self;
            score_argv[1] = (char *)(uintptr_t) "score";
            score_argv[2] = (char *)(uintptr_t)domain;
            score_argv[3] = (char *)(uintptr_t) "--config";
            score_argv[4] = (char *)(uintptr_t)words.word[0];
            score_argv[5] = NULL;
        }
        gethostname(host, sizeof host - 1);
        if (name)
            snprintf(w.name, sizeof w.name, "%s", name);
        else
            snprintf(w.name, sizeof w.name, "%s-%d", host, (int)getpid());
        snprintf(stream, sizeof stream, "generated:%s", domain);
        w.stream = stream;
        cr_log_setup(CR_LOG_INFO, w.name);
        sigaction(SIGTERM, &action, NULL);
        sigaction(SIGINT, &action, NULL);
        cr_scorer_init(&w.scorer, score_argv, limit_s);
        if (cr_exchange_open(url, prefix, 60, &w.x, &err) == CR_OK &&
            cr_stream_make(w.x, stream, "reward", &err) == CR_OK)
            work(&w, &err);
        cr_scorer_close(&w.scorer);
        cr_exchange_close(w.x);
    }
    cr_words_free(&words);
    return err.status == CR_OK ? 0 : cr_command_fail(&cr_command_reward, &err);
}
