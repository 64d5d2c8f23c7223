/* run.c -- see run.h. */
#include "launch/run.h"
#include "launch/last_words.h"
#include "launch/placement.h"
#include "launch/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t caught, num_caught;

static void on_signal(int number)
{
    caught = number;
    num_caught++;
}

/* ---- starting ---- */

static cr_status start_server(cr_run *run, cr_err *err)
{
    char *folder = cr_path_join(run->output_dir, "exchange");
    cr_status status = CR_OK;

    if (run->server_plan.url == NULL)
        status = cr_server_plan_make(folder, run->hosts->list ? run->hosts->address : NULL,
                                     &run->server_plan, err);
    if (status == CR_OK)
        status =
            cr_child_start(&run->server, "redis-server", run->server_plan.argv, NULL, NULL, err);
    cr_free(folder);
    return status;
}

/* What redis.log says last. */
static cr_status server_failed(cr_run *run, cr_err *err)
{
    char *path = cr_path_join(run->output_dir, "exchange/redis.log"), fate[CR_FATE];
    cr_buf log = {0};
    cr_err ignored = {0};
    const char *last = "";
    size_t at = 0, n, num = 0;

    if (cr_file_read(path, &log, &ignored) == CR_OK)
        for (const char *line; (line = cr_line_next(&log, &at, &n));) {
            const char *text = memchr(line, '#', n); /* "PID:ROLE DATE # a warning" */
            if (!text) continue;
            last = text + 2 < line + n ? text + 2 : text;
            num = (size_t)(line + n - last);
        }
    cr_fail(err, CR_EIO, "redis-server %s at its start: %.*s%s(%s)",
            cr_child_fate(&run->server, fate), (int)num, last, num ? " " : "", path);
    cr_buf_free(&log);
    cr_free(path);
    return err->status;
}

/* A dead server is started again: its file has everything. */
static cr_status revive_server(void *ctx, cr_err *err)
{
    cr_run *run = ctx;
    char fate[CR_FATE];

    if (cr_child_pump(&run->server)) return CR_OK;
    if (!run->has_server_answered) return server_failed(run, err);
    cr_log(CR_LOG_WARN, "run", "redis-server %s; starting it again from its append-only file",
           cr_child_fate(&run->server, fate));
    return start_server(run, err);
}

/* Without the file of the run before: nothing of it is needed, and a host that went down may have damaged it. */
static cr_status open_server(cr_run *run, cr_err *err)
{
    cr_exchange_args *args = &run->endpoint.args;
    char *file = cr_path_join(run->output_dir, "exchange/appendonlydir");

    cr_note(cr_remove_tree(file, err));
    cr_free(file);
    CR_TRY(err->status);
    CR_TRY(start_server(run, err));
    args->url = run->server_plan.url;
    args->may_be_starting = true;
    CR_TRY(cr_exchange_open_revived(args, revive_server, run, &run->endpoint.x, err));
    run->has_server_answered = true;
    return CR_OK;
}

/* One mpirun for all actor ranks. */
static cr_status start_actors(cr_run *run, cr_err *err)
{
    const cr_exchange_args *x = &run->endpoint.args;
    char digest[CR_DIGEST_TEXT], timeout[32];
    cr_mpirun mpirun;

    cr_run_mark_make(run->mark);
    CR_TRY(cr_run_mark_write(run->output_dir, run->mark, err));
    CR_TRY(cr_run_mark_write(run->config->checkpoint_dir, run->mark, err));
    CR_TRY(cr_endpoint_put_config(&run->endpoint, run->config_path, digest, err));
    CR_TRY(cr_mpi_folder_open(&run->mpi_folder, err));
    cr_mpirun_init(&mpirun, run->layout.num_ranks, /*has_last_words=*/false, &run->mpi_folder,
                   run->hosts);
    snprintf(timeout, sizeof timeout, "%g", x->deadline_s);
    cr_mpirun_add(&mpirun, NULL, run->self_path);
    cr_mpirun_add(&mpirun, "actor", run->config_path);
    cr_mpirun_add(&mpirun, "--prefix", run->endpoint.prefix);
    cr_mpirun_add(&mpirun, "--mark", run->mark);
    cr_mpirun_add(&mpirun, "--digest", digest);
    cr_mpirun_add(&mpirun, "--timeout", timeout);
    cr_mpirun_add(&mpirun, "--ca-file", x->ca_file);
    cr_mpirun_add(&mpirun, "--cert-file", x->cert_file);
    cr_mpirun_add(&mpirun, "--key-file", x->key_file);
    return cr_watched_start(&run->actors, "the actors", mpirun.word, err);
}

static cr_status make_streams(cr_run *run, cr_err *err)
{
    char name[96];

    CR_TRY(cr_prefix_wipe(run->x, err)); /* a resumed run samples its unfinished step again */
    CR_TRY(cr_stream_make(run->x, CR_STREAM_PROMPTS, run->layout.role[CR_ROLE_INFER].name, err));
    CR_TRY(cr_stream_make(run->x, CR_STREAM_SAMPLED, CR_GROUP_PIPELINE, err));
    CR_TRY(cr_stream_make(run->x, CR_STREAM_SCORED, CR_GROUP_PIPELINE, err));
    for (size_t i = 0; i < run->config->num_rewards; i++) {
        snprintf(name, sizeof name, CR_STREAM_GENERATED "%s", run->config->rewards[i].domain);
        CR_TRY(cr_stream_make(run->x, name, CR_GROUP_REWARD, err));
    }
    for (int role = 0; role < CR_NUM_ROLES; role++)
        for (int r = 0; r < run->layout.role[role].num; r++) {
            snprintf(name, sizeof name, "cmd:%s:%d", run->layout.role[role].name, r);
            CR_TRY(cr_stream_make(run->x, name, run->layout.role[role].name, err));
        }
    return CR_OK;
}

/* run.log in output_dir, or a link there to the one in logging_dir/exp_name. */
static cr_status open_log(cr_run *run, cr_err *err)
{
    const cr_config *c = run->config;
    char *link = cr_path_join(run->output_dir, "run.log"),
         *folder = c->logging_dir ? cr_path_join(c->logging_dir, c->exp_name) : NULL,
         *path = folder ? cr_path_join(folder, "run.log") : cr_strdup(link), *target = NULL;

    if (folder && cr_mkdirs(folder, err) == CR_OK) {
        target = realpath(folder, NULL);
        cr_free(path);
        path = cr_asprintf("%s/run.log", target ? target : folder);
        unlink(link);
        if (symlink(path, link) != 0)
            cr_fail(err, CR_EIO, "%s: no link to %s (%s)", link, path, strerror(errno));
    }
    if (err->status == CR_OK) {
        run->log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (run->log_fd < 0) cr_fail(err, CR_EIO, "cannot write %s: %s", path, strerror(errno));
        cr_log_tee(run->log_fd);
    }
    free(target);
    cr_free(folder);
    cr_free(link);
    cr_free(path);
    return err->status;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal}, before;

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, NULL, &before); /* the terminal is closed; nohup has it ignored */
    if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);
}

static void say_places(const cr_run *run)
{
    for (int r = 0; run->hosts->list && r < CR_NUM_ROLES; r++) {
        char *text;
        if (run->layout.role[r].num == 0) continue;
        text = cr_placement_text(run->hosts, &run->layout, (cr_role)r);
        cr_log(CR_LOG_INFO, "run", "%s: ranks by host: %s", run->layout.role[r].name, text);
        cr_free(text);
    }
}

cr_status cr_run_open(cr_run *run, const cr_config *config, const char *config_path,
                      const cr_hosts *hosts, cr_endpoint *endpoint, int64_t first_step, cr_err *err)
{
    struct stat folder;

    *run = (cr_run){.config = config, .first_step = first_step, .step = first_step, .log_fd = -1};
    run->hosts = hosts;
    run->endpoint = *endpoint;
    *endpoint = (cr_endpoint){0};
    run->output_dir = cr_strdup(config->output_dir);
    run->config_path = cr_strdup(config_path);
    run->self_path = cr_self_path();
    run->items = cr_item_store_create();
    cr_layout_init(&run->layout, config);
    run->lives = CR_NEW_ARRAY(struct cr_life, run->layout.num_ranks);
    for (int i = 0; i < run->layout.num_ranks; i++)
        run->lives[i].moved_s = cr_now_s();
    CR_TRY(open_log(run, err));
    if (config->resume && first_step == 0 && !config->val_only)
        cr_log(CR_LOG_WARN, "run",
               "resume_from_checkpoint: there is no checkpoint in %s: starting at step 0",
               config->checkpoint_dir);
    cr_log_line(first_step > 0 ? "resuming" : "starting");
    say_places(run);
    if (stat(run->output_dir, &folder) != 0)
        return cr_fail(err, CR_EIO, "%s: %s", run->output_dir, strerror(errno));
    run->output_device = folder.st_dev;
    run->output_inode = folder.st_ino;
    catch_signals();
    if (!run->endpoint.x) CR_TRY(open_server(run, err));
    run->x = run->endpoint.x;
    CR_TRY(cr_endpoint_write(&run->endpoint, run->output_dir, err));
    if (config->exchange.url)
        cr_log(CR_LOG_INFO, "run", "Redis at %s, keys %s*", cr_exchange_address(run->x),
               run->endpoint.prefix);
    CR_CHECK(setenv(CR_EXCHANGE_VARIABLE, run->endpoint.args.url, 1) == 0, "no memory");
    CR_TRY(make_streams(run, err));
    if (hosts->list)
        CR_TRY(cr_heartbeat_start(&run->endpoint.args, CR_LAUNCHER, NULL, &run->heartbeat, err));
    CR_TRY(start_actors(run, err));
    if (config->rollouts_from) return CR_OK; /* nothing is asked of rewards */
    CR_TRY(cr_judges_start(&run->judges, config, run->config_path, run->self_path, err));
    return cr_reward_workers_start(&run->rewards, config, run->config_path, run->self_path,
                                   run->endpoint.prefix, err);
}

void cr_run_close(cr_run *run)
{
    cr_child_stop(&run->actors.child, 2);
    cr_heartbeat_stop(run->heartbeat);
    cr_mpi_folder_close(&run->mpi_folder);
    if (run->mark[0]) {
        cr_run_mark_remove(run->output_dir);
        cr_run_mark_remove(run->config->checkpoint_dir);
    }
    cr_reward_workers_stop(&run->rewards);
    cr_judges_stop(&run->judges);
    cr_endpoint_close(&run->endpoint);
    cr_child_stop(&run->server, 5);
    cr_server_plan_free(&run->server_plan);
    cr_tracker_close(run->tracker);
    cr_view_free(run->view);
    cr_log_tee(-1);
    if (run->log_fd >= 0) close(run->log_fd);
    cr_free(run->lives);
    cr_item_store_destroy(run->items);
    cr_free(run->output_dir);
    cr_free(run->config_path);
    cr_free(run->self_path);
    *run = (cr_run){.log_fd = -1};
}

/* ---- watching ---- */

enum { WHO_BYTES = 160, LOOK_SECONDS = 1, STOPPED_SECONDS = 5 };

/* "actor_train rank 1 on h2" of a world rank, without the host until its first report. */
static const char *name_of(const cr_run *run, int world_rank, char text[WHO_BYTES])
{
    char who[64];
    const char *host = world_rank < run->layout.num_ranks ? run->lives[world_rank].host : "";

    snprintf(text, WHO_BYTES, "%s%s%s", cr_layout_name(&run->layout, world_rank, who),
             host[0] ? " on " : "", host);
    return text;
}

/* Names of one host may differ in their domain. */
static bool is_host(const char *a, const char *b)
{
    size_t n = strcspn(a, ".");

    return n > 0 && n == strcspn(b, ".") && strncmp(a, b, n) == 0;
}

/* A host but this one of which no rank has given a sign of life for that long, or NULL. */
static const char *silent_host(const cr_run *run, double min_s, double *silent_s)
{
    for (int i = 0; run->heartbeat && i < run->layout.num_ranks; i++) {
        const char *host = run->lives[i].host;
        double moved_s = 0;
        for (int k = 0; k < run->layout.num_ranks; k++)
            if (is_host(run->lives[k].host, host) && run->lives[k].moved_s > moved_s)
                moved_s = run->lives[k].moved_s;
        *silent_s = cr_now_s() - moved_s;
        if (host[0] && !is_host(host, cr_host_name()) && *silent_s > min_s) return host;
    }
    return NULL;
}

/* Who waited in vain names whom it waited for, which may have waited itself: a silent host is why. */
static cr_status add_silent(const cr_run *run, cr_err *err)
{
    double silent_s;
    const char *host =
        err->status == CR_ETIMEOUT ? silent_host(run, 4 * LOOK_SECONDS, &silent_s) : NULL;

    if (host) cr_fail_add(err, "host %s gives no sign of life (for %.0f s)", host, silent_s);
    return err->status;
}

/* "step 4: host h2 is lost (actor_train rank 1 and 3 more ran there): WHY" */
static cr_status fail_host(const cr_run *run, cr_status status, const char *host, const char *why,
                           cr_err *err)
{
    char who[64], ranks[120] = "";
    int num = 0;

    for (int r = 0; r < run->layout.num_ranks; r++)
        if (is_host(run->lives[r].host, host) && num++ == 0) cr_layout_name(&run->layout, r, who);
    if (num > 1)
        snprintf(ranks, sizeof ranks, " (%s and %d more ran there)", who, num - 1);
    else if (num)
        snprintf(ranks, sizeof ranks, " (%s ran there)", who);
    return cr_fail(err, status,
                   "step %lld: host %s is lost%s: %s; it is down, it hangs, or its "
                   "network is cut (the run can go on from its last checkpoint: "
                   "resume_from_checkpoint=true)",
                   (long long)run->step, host, ranks, why);
}

/* What this run ends with where a process of it has ended with that exit code. */
static cr_status status_of(int exit_code)
{
    return exit_code == 3 ? CR_ETIMEOUT : exit_code == 2 ? CR_ECONFIG : CR_EPEER;
}

/* "step 4: actor_train rank 1 on h2: WHY", with the exit code of that rank. */
static cr_status fail_by_words(cr_run *run, const cr_last_words *words, cr_err *err)
{
    char who[WHO_BYTES];

    snprintf(run->lives[words->world_rank].host, sizeof run->lives->host, "%s", words->host);
    cr_fail(err, status_of(cr_exit_code(words->why.status)), "step %lld: %s: %s",
            (long long)run->step, name_of(run, words->world_rank, who), words->why.msg);
    return add_silent(run, err);
}

/* What the ranks have written before mpirun ended, wherever they could. */
static cr_last_words find_words(const cr_run *run)
{
    cr_last_words words;
    cr_err err = {0};

    if (cr_last_words_find(run->x, &run->layout, run->output_dir, &words, &err) == CR_OK &&
        words.why.status != CR_OK)
        return words;
    err = (cr_err){0};
    cr_note(cr_last_words_find(NULL, &run->layout, run->output_dir, &words, &err));
    return words;
}

static cr_status check_actors(cr_run *run, cr_err *err)
{
    int status;
    char who[WHO_BYTES], fate[CR_FATE];
    const char *reason;
    cr_last_words words;

    if (cr_watched_pump(&run->actors)) return CR_OK;
    status = run->actors.child.wait_status;
    if (run->actors.dead_rank >= 0 && run->actors.dead_rank < run->layout.num_ranks)
        snprintf(run->lives[run->actors.dead_rank].host, sizeof run->lives->host, "%s",
                 run->actors.dead_host);
    if (run->actors.dead_rank >= 0)
        return cr_fail(err, CR_EPEER,
                       "step %lld: %s was killed (the run can go on from its last checkpoint: "
                       "resume_from_checkpoint=true)",
                       (long long)run->step, name_of(run, run->actors.dead_rank, who));
    if (run->actors.lost_host[0])
        return fail_host(run, CR_EPEER, run->actors.lost_host, "Open MPI's connection to it ended",
                         err);
    words = find_words(run);
    if (words.why.status != CR_OK) return fail_by_words(run, &words, err);
    reason = cr_watched_reason(&run->actors);
    cr_fail(err, status_of(WIFEXITED(status) ? WEXITSTATUS(status) : 0), "step %lld: %s%s",
            (long long)run->step, reason[0] ? "" : "mpirun, which holds the actors, ",
            reason[0] ? reason : cr_child_fate(&run->actors.child, fate));
    return add_silent(run, err);
}

/* A rank failed because another one did: that one says why, or mpirun that it was killed. */
static cr_status wait_for_cause(cr_run *run, cr_err *err)
{
    const double until_s = cr_now_s() + CR_LAST_WORDS_S;
    cr_last_words words;

    while (cr_now_s() < until_s) {
        CR_TRY(check_actors(run, err));
        CR_TRY(cr_last_words_find(run->x, &run->layout, run->output_dir, &words, err));
        if (words.why.status != CR_OK && words.why.status != CR_EPEER)
            return fail_by_words(run, &words, err);
        cr_sleep_s(0.02);
    }
    return CR_OK;
}

/* Has a rank failed that nothing was asked of, or whose reply is not waited for yet? */
static cr_status check_words(cr_run *run, cr_err *err)
{
    cr_last_words words;

    CR_TRY(cr_last_words_find(run->x, &run->layout, run->output_dir, &words, err));
    if (words.why.status == CR_OK) return CR_OK;
    if (words.why.status == CR_EPEER) CR_TRY(wait_for_cause(run, err));
    return fail_by_words(run, &words, err);
}

/* Time in which this process did not look (it was stopped, or wrote for long) does not count as silence of others. */
static void skip_gap(cr_run *run)
{
    double gap_s = run->looked_s > 0 ? cr_now_s() - run->looked_s : 0;

    if (gap_s <= STOPPED_SECONDS) return;
    for (int i = 0; i < run->layout.num_ranks; i++)
        run->lives[i].moved_s += gap_s;
    run->looked_s += gap_s;
}

/* A host lost: its ranks have ended, too, or will. */
static cr_status check_hosts(const cr_run *run, cr_err *err)
{
    double silent_s;
    const char *host = silent_host(run, CR_LEASE_SECONDS, &silent_s);
    char why[80];

    if (!host) return CR_OK;
    snprintf(why, sizeof why, "none of its ranks has given a sign of life for %.0f s", silent_s);
    return fail_host(run, CR_ETIMEOUT, host, why, err);
}

/* Has every rank's count moved within the deadline? */
static cr_status check_lives(cr_run *run, cr_err *err)
{
    double now = cr_now_s(),
           deadline = run->config->collective_timeout + 5; /* a collective names more: let it */
    int num = run->layout.num_ranks;
    char who[WHO_BYTES], **keys = CR_NEW_ARRAY(char *, num);
    cr_buf *values = CR_NEW_ARRAY(cr_buf, num);

    for (int role = 0; role < CR_NUM_ROLES; role++)
        for (int r = 0; r < run->layout.role[role].num; r++)
            keys[run->layout.role[role].first + r] =
                cr_asprintf("hb:%s:%d", run->layout.role[role].name, r);
    cr_note(cr_values_get(run->x, (const char *const *)keys, (size_t)num, values, err));
    for (int i = 0; i < num && err->status == CR_OK; i++) {
        struct cr_life *life = &run->lives[i];
        const char *what;
        if (values[i].num_bytes &&
            strncmp(values[i].data, life->last, sizeof life->last - 1) != 0) {
            snprintf(life->last, sizeof life->last, "%s", values[i].data);
            life->moved_s = now;
            sscanf(life->last, "%*d %63s", life->host);
        }
        what = strchr(life->last, ' ');
        if (what) what = strchr(what + 1, ' ');
        if (now - life->moved_s > deadline)
            cr_fail(err, CR_ETIMEOUT,
                    "step %lld: %s has given no sign of life for %.0f s; it was last in: %s "
                    "(collective_timeout sets the limit)",
                    (long long)run->step, name_of(run, i, who), now - life->moved_s,
                    what ? what + 1 : "start-up");
    }
    if (err->status == CR_OK) cr_note(check_hosts(run, err));
    for (int i = 0; i < num; i++) {
        cr_free(keys[i]);
        cr_buf_free(&values[i]);
    }
    cr_free(keys);
    cr_free(values);
    return err->status;
}

/* A run whose folder is gone would write on into nothing. */
static cr_status check_output(const cr_run *run, cr_err *err)
{
    struct stat now;

    if (stat(run->output_dir, &now) == 0 && now.st_dev == run->output_device &&
        now.st_ino == run->output_inode && cr_file_exists(run->config_path))
        return CR_OK;
    return cr_fail(err, CR_EIO,
                   "step %lld: output_dir %s was removed, moved or emptied while the run goes on: "
                   "nothing can be saved there any more",
                   (long long)run->step, run->output_dir);
}

cr_status cr_run_watch(cr_run *run, cr_err *err)
{
    skip_gap(run);
    if (num_caught > 1)
        return cr_fail(err, CR_ESIGNAL, "stopped at once by signal %d in step %lld", (int)caught,
                       (long long)run->step);
    if (num_caught && !run->has_said_stop) {
        cr_log(CR_LOG_WARN, "run",
               "signal %d: step %lld is finished and saved first (once more: stop at once)",
               (int)caught, (long long)run->step);
        run->has_said_stop = true;
    }
    CR_TRY(check_actors(run, err));
    CR_TRY(cr_judges_watch(&run->judges, err));
    CR_TRY(cr_reward_workers_watch(&run->rewards, run->x, err));
    if (!run->config->exchange.url) CR_TRY(revive_server(run, err));
    if (cr_now_s() - run->looked_s < LOOK_SECONDS) return CR_OK;
    run->looked_s = cr_now_s();
    CR_TRY(cr_heartbeat_check(run->endpoint.holder, err));
    CR_TRY(check_output(run, err));
    CR_TRY(check_words(run, err));
    return check_lives(run, err);
}

bool cr_run_should_stop(void)
{
    return num_caught > 0;
}

cr_status cr_run_stopped(cr_run *run, cr_err *err)
{
    if (!num_caught) return CR_OK;
    return cr_fail(err, CR_ESIGNAL,
                   "stopped by signal %d after step %lld, which is saved "
                   "(resume_from_checkpoint=true goes on)",
                   (int)caught, (long long)run->step);
}

/* ---- commands ---- */

cr_status cr_run_send(cr_run *run, cr_role role, int rank, cr_ask ask, cr_record *args,
                      cr_request *out, cr_err *err)
{
    const char *op = cr_ask_name(ask);
    cr_buf packed = {0};
    char stream[96];

    CR_CHECK(cr_ask_is_for(ask, run->layout.role[role].worker), "%s is asked for %s",
             run->layout.role[role].name, op);
    *out = (cr_request){.role = role, .rank = rank, .ask = ask};
    snprintf(out->name, sizeof out->name, "%lld", (long long)++run->num_requests);
    snprintf(stream, sizeof stream, "cmd:%s:%d", run->layout.role[role].name, rank);
    cr_record_set_text(args, CR_FIELD_OP, op, strlen(op));
    cr_record_set_text(args, CR_FIELD_REQUEST, out->name, strlen(out->name));
    if (cr_record_pack(args, &packed, err) == CR_OK)
        cr_stream_put_later(run->x, stream, out->name, packed.data, packed.num_bytes);
    cr_buf_free(&packed);
    return err->status;
}

/* The failure that a reply reports. */
static cr_status fail_as(cr_run *run, const cr_request *request, const cr_record *reply,
                         cr_status status, cr_err *err)
{
    int world_rank = run->layout.role[request->role].first + request->rank;
    const char *message, *host;
    char who[WHO_BYTES];
    size_t num_bytes;

    CR_TRY(cr_record_get_text(reply, CR_FIELD_MESSAGE, &message, &num_bytes, err));
    CR_TRY(cr_record_get_text(reply, CR_FIELD_HOST, &host, &num_bytes, err));
    snprintf(run->lives[world_rank].host, sizeof run->lives[world_rank].host, "%s", host);
    cr_fail(err, status, "step %lld: %s, %s: %s", (long long)run->step,
            name_of(run, world_rank, who), cr_ask_name(request->ask), message);
    return add_silent(run, err);
}

cr_status cr_run_wait(cr_run *run, const cr_request *request, cr_record *reply, cr_err *err)
{
    cr_buf data = {0};
    bool is_there = false;
    int64_t status = CR_OK;
    int world_rank = run->layout.role[request->role].first + request->rank;
    char who[WHO_BYTES];
    double until_s = cr_now_s() + run->config->rpc_timeout;

    *reply = (cr_record){0};
    while (!is_there) {
        CR_TRY_GOTO(out, cr_reply_wait(run->x, request->name, 0.1, &data, &is_there, err));
        if (is_there) break;
        CR_TRY_GOTO(out, cr_run_watch(run, err));
        if (run->on_wait) CR_TRY_GOTO(out, run->on_wait(run->on_wait_context, err));
        if (cr_now_s() > until_s)
            CR_TRY_GOTO(out, cr_fail(err, CR_ETIMEOUT,
                                     "step %lld: %s has not finished %s within %g s (rpc_timeout)",
                                     (long long)run->step, name_of(run, world_rank, who),
                                     cr_ask_name(request->ask), run->config->rpc_timeout));
    }
    if (cr_record_unpack(data.data, data.num_bytes, reply, err) == CR_OK)
        cr_note(cr_record_get_int(reply, CR_FIELD_STATUS, &status, err));
    CR_TRY_GOTO(out, cr_fail_add(err, "step %lld: the reply of %s to %s", (long long)run->step,
                                 name_of(run, world_rank, who), cr_ask_name(request->ask)));
    if (status == CR_EPEER) CR_TRY_GOTO(out, wait_for_cause(run, err));
    if (status != CR_OK) CR_TRY_GOTO(out, fail_as(run, request, reply, (cr_status)status, err));
    run->has_begun = true;
out:
    cr_buf_free(&data);
    if (err->status != CR_OK) cr_record_free(reply);
    return err->status;
}
