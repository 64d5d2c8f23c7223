/* run.c -- see run.h. */
#include "actors/run.h"
#include "actors/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char prefix[] = "croll:";
static volatile sig_atomic_t caught, num_caught;

static void on_signal(int number)
{
    caught = number;
    num_caught++;
}

static char *word(const char *text)
{
    return (char *)(uintptr_t)text; /* argv is not written to */
}

/* ---- starting ---- */

static const char *self_path(void)
{
    static char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

    CR_CHECK(n > 0, "cannot read /proc/self/exe: %s", strerror(errno));
    path[n] = 0;
    return path;
}

static cr_status start_server(cr_run *run, cr_err *err)
{
    char *folder = cr_path_join(run->output_dir, "exchange");
    cr_status status = CR_OK;

    if (run->server_plan.url == NULL) status = cr_server_plan_make(folder, &run->server_plan, err);
    if (status == CR_OK)
        status = cr_child_start(&run->server, "redis-server", run->server_plan.argv, false, err);
    cr_free(folder);
    return status;
}

/* A dead server is started again: its file has everything. */
static cr_status revive_server(void *ctx, cr_err *err)
{
    cr_run *run = ctx;

    if (cr_child_pump(&run->server)) return CR_OK;
    cr_log(CR_LOG_WARN, "run", "redis-server %s; starting it again from its append-only file",
           cr_child_fate(&run->server));
    return start_server(run, err);
}

static const char *exchange_url(const cr_run *run)
{
    return run->config->exchange.url ? run->config->exchange.url : run->server_plan.url;
}

/* One mpirun for all actor ranks. */
static cr_status start_actors(cr_run *run, cr_err *err)
{
    char *argv[CR_MPIRUN_WORDS + 8];
    const char *const words[] = {self_path(),  "actor",           run->config_path,
                                 "--exchange", exchange_url(run), "--prefix",
                                 prefix};
    size_t num;

    CR_TRY(cr_mpi_folder_open(&run->mpi_folder, err));
    num = cr_mpirun_words(argv, run->layout.num_ranks, &run->mpi_folder);
    for (size_t i = 0; i < CR_COUNT(words); i++)
        argv[num + i] = word(words[i]);
    argv[num + CR_COUNT(words)] = NULL;
    return cr_child_start(&run->actors, "the actors", argv, true, err);
}

static cr_status make_streams(cr_run *run, cr_err *err)
{
    char name[96];

    CR_TRY(cr_exchange_wipe(run->x, err)); /* a resumed run samples its unfinished step again */
    CR_TRY(cr_stream_make(run->x, "prompts", "infer", err));
    CR_TRY(cr_stream_make(run->x, "scored", "pipeline", err));
    for (size_t i = 0; i < run->config->num_rewards; i++) {
        snprintf(name, sizeof name, "generated:%s", run->config->rewards[i].domain);
        CR_TRY(cr_stream_make(run->x, name, "reward", err));
    }
    for (int role = 0; role < CR_NUM_ROLES; role++)
        for (int r = 0; r < run->layout.role[role].num; r++) {
            snprintf(name, sizeof name, "cmd:%s:%d", run->layout.role[role].name, r);
            CR_TRY(cr_stream_make(run->x, name, "infer", err));
        }
    return CR_OK;
}

static void open_log(cr_run *run)
{
    char *path = cr_path_join(run->output_dir, "run.log");

    run->log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    cr_log_tee(run->log_fd);
    cr_free(path);
}

cr_status cr_run_open(cr_run *run, const cr_config *config, const char *config_path,
                      int64_t first_step, cr_err *err)
{
    struct sigaction action = {.sa_handler = on_signal};

    *run = (cr_run){.config = config, .first_step = first_step, .step = first_step, .log_fd = -1};
    run->output_dir = cr_strdup(config->output_dir);
    run->config_path = cr_strdup(config_path);
    cr_layout_init(&run->layout, config);
    run->lives = CR_NEW_ARRAY(struct cr_life, run->layout.num_ranks);
    for (int i = 0; i < run->layout.num_ranks; i++)
        run->lives[i].moved_s = cr_now_s();
    open_log(run);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (!config->exchange.url) CR_TRY(start_server(run, err));
    CR_TRY(cr_exchange_open(exchange_url(run), prefix, 30, &run->x, err));
    if (!config->exchange.url) cr_exchange_set_revive(run->x, revive_server, run);
    CR_TRY(make_streams(run, err));
    CR_TRY(start_actors(run, err));
    return cr_reward_workers_start(&run->rewards, config, config_path, self_path(),
                                   exchange_url(run), prefix, err);
}

void cr_run_close(cr_run *run)
{
    cr_child_stop(&run->actors, 2);
    cr_mpi_folder_close(&run->mpi_folder);
    cr_reward_workers_stop(&run->rewards);
    cr_exchange_close(run->x);
    cr_child_stop(&run->server, 5);
    cr_server_plan_free(&run->server_plan);
    cr_tracker_close(run->tracker);
    cr_view_free(run->view);
    cr_log_tee(-1);
    if (run->log_fd >= 0) close(run->log_fd);
    cr_free(run->lives);
    cr_free(run->output_dir);
    cr_free(run->config_path);
    *run = (cr_run){.log_fd = -1};
}

/* ---- watching ---- */

static cr_status check_actors(cr_run *run, cr_err *err)
{
    char who[64];
    int status;

    if (cr_child_pump(&run->actors)) return CR_OK;
    status = run->actors.wait_status;
    if (run->actors.dead_rank >= 0)
        return cr_fail(err, CR_EPEER,
                       "step %lld: %s was killed (the run can go on from its last checkpoint: "
                       "resume_from_checkpoint=true)",
                       (long long)run->step,
                       cr_layout_name(&run->layout, run->actors.dead_rank, who));
    return cr_fail(err,
                   WIFEXITED(status) && WEXITSTATUS(status) == 3   ? CR_ETIMEOUT
                   : WIFEXITED(status) && WEXITSTATUS(status) == 2 ? CR_ECONFIG
                                                                   : CR_EPEER,
                   "step %lld: %s%s", (long long)run->step,
                   run->actors.last[0] ? "" : "mpirun, which holds the actors, ",
                   run->actors.last[0] ? run->actors.last : cr_child_fate(&run->actors));
}

/* Once a second: has every rank's count moved within the deadline? */
static cr_status check_lives(cr_run *run, cr_err *err)
{
    double now = cr_now_s(),
           deadline = run->config->collective_timeout + 5; /* a collective names more: let it */
    cr_buf value = {0};

    if (now - run->looked_s < 1) return CR_OK;
    run->looked_s = now;
    for (int role = 0; role < CR_NUM_ROLES && err->status == CR_OK; role++)
        for (int r = 0; r < run->layout.role[role].num && err->status == CR_OK; r++) {
            struct cr_life *life = &run->lives[run->layout.role[role].first + r];
            char key[96];
            snprintf(key, sizeof key, "hb:%s:%d", run->layout.role[role].name, r);
            if (cr_value_get(run->x, key, &value, err) != CR_OK) break;
            if (value.num_bytes && strncmp(value.data, life->last, sizeof life->last - 1) != 0) {
                snprintf(life->last, sizeof life->last, "%s", value.data);
                life->moved_s = now;
            }
            if (now - life->moved_s > deadline) {
                const char *what = strchr(life->last, ' ');
                cr_fail(err, CR_ETIMEOUT,
                        "step %lld: %s rank %d has given no sign of life for %.0f s; it was last "
                        "in: %s (collective_timeout sets the limit)",
                        (long long)run->step, run->layout.role[role].name, r, now - life->moved_s,
                        what ? what + 1 : "start-up");
            }
        }
    cr_buf_free(&value);
    return err->status;
}

cr_status cr_run_watch(cr_run *run, cr_err *err)
{
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
    CR_TRY(cr_reward_workers_watch(&run->rewards, run->x, err));
    if (!run->config->exchange.url) CR_TRY(revive_server(run, err));
    return check_lives(run, err);
}

bool cr_run_should_stop(const cr_run *run)
{
    (void)run;
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

cr_status cr_run_send(cr_run *run, cr_role role, int rank, const char *op, cr_record *args,
                      cr_request *out, cr_err *err)
{
    cr_buf packed = {0};
    char stream[96];

    *out = (cr_request){.role = role, .rank = rank, .op = op};
    snprintf(out->name, sizeof out->name, "%lld", (long long)++run->num_requests);
    snprintf(stream, sizeof stream, "cmd:%s:%d", run->layout.role[role].name, rank);
    cr_record_set_text(args, "op", op, strlen(op));
    cr_record_set_text(args, "request", out->name, strlen(out->name));
    if (cr_record_pack(args, &packed, err) == CR_OK)
        cr_note(cr_stream_put(run->x, stream, out->name, packed.data, packed.num_bytes, NULL, err));
    cr_buf_free(&packed);
    return err->status;
}

cr_status cr_run_wait(cr_run *run, const cr_request *request, cr_record *reply, cr_err *err)
{
    cr_buf data = {0};
    bool is_there = false;
    const char *message;
    size_t num_bytes;
    int64_t status;

    *reply = (cr_record){0};
    while (!is_there && err->status == CR_OK)
        if (cr_reply_wait(run->x, request->name, 0.1, &data, &is_there, err) == CR_OK && !is_there)
            CR_TRY_GOTO(out, cr_run_watch(run, err));
    CR_TRY_GOTO(out, err->status);
    CR_TRY_GOTO(out, cr_record_unpack(data.data, data.num_bytes, reply, err));
    CR_TRY_GOTO(out, cr_record_get_int(reply, "status", &status, err));
    if (status != CR_OK) {
        CR_TRY_GOTO(out, cr_record_get_text(reply, "message", &message, &num_bytes, err));
        cr_fail(err, (cr_status)status, "step %lld: %s rank %d, %s: %s", (long long)run->step,
                run->layout.role[request->role].name, request->rank, request->op, message);
    }
out:
    cr_buf_free(&data);
    if (err->status != CR_OK) cr_record_free(reply);
    return err->status;
}

cr_status cr_run_call(cr_run *run, cr_role role, const char *op, cr_record *args,
                      cr_record *replies, cr_err *err)
{
    int num = run->layout.role[role].num;
    cr_request *requests = CR_NEW_ARRAY(cr_request, num);

    for (int r = 0; r < num && err->status == CR_OK; r++)
        if (cr_run_send(run, role, r, op, args, &requests[r], err) != CR_OK) break;
    for (int r = 0; r < num && err->status == CR_OK; r++) {
        cr_record reply;
        if (cr_run_wait(run, &requests[r], &reply, err) != CR_OK) break;
        if (replies)
            replies[r] = reply;
        else
            cr_record_free(&reply);
    }
    cr_free(requests);
    return err->status;
}
