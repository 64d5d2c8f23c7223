/* actor.c -- an actor rank from its words to its end (processes.h); run.c gives it the words, actors/ has its life. */
#include "actors/actor.h"
#include "actors/run_mark.h"
#include "base/children.h"
#include "configs/configs.h"
#include "exchange/heartbeat.h"
#include "exchange/record.h"
#include "kernels/memory.h"
#include "launch/cores/cores.h"
#include "launch/device.h"
#include "launch/endpoint.h"
#include "launch/last_words.h"
#include "launch/mpirun/mpi_folder.h"
#include "launch/processes.h"
#include "mesh/flight.h"
#include "models/models.h"
#include "samples/protocol.h"
#include "samples/roles.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* "actor_train rank 1 on h2: WHY". Before the configuration says which role a rank has: its place in the world. */
static void say_why(const cr_actor *a, const char *why)
{
    char *line = cr_asprintf("%s rank %d on %s: %s", a->ranks ? a->ranks->name : "actor",
                             a->ranks ? a->rank : cr_world_rank_here(), cr_host_name(), why);

    cr_put_line(STDERR_FILENO, line);
    cr_free(line);
}

/* The lease is over: nothing of this run stays on this host. */
static void end_host(void *context, const char *why)
{
    struct pollfd room = {STDERR_FILENO, POLLOUT, 0};

    if (poll(&room, 1, 0) == 1) say_why(context, why); /* whoever reads it may hang */
    cr_mpi_folder_abandon();
    _exit(cr_exit_code(CR_ETIMEOUT));
}

/* The device, once this rank has its cores: those of this host are shared by its ranks of the role. */
static cr_status open_device(cr_actor *a, cr_err *err)
{
    int num_threads = 1, index = 0, num = 0;

    for (int r = 0; r < a->ranks->num; r++) {
        bool is_here = cr_world_is_here(a->world, a->ranks->first + r);
        num += is_here;
        index += is_here && r < a->rank;
    }
    if (!cr_run_has_gpus(a->config)) /* system_envs are in the environment */
        CR_TRY(cr_cores_take(NULL, index, num, &num_threads, err));
    return cr_device_open_to_compute(cr_device_of_run(a->config),
                                     a->ranks->worker->devices[a->rank], num_threads, &a->dev, err);
}

/* flight/rank-NN.bin of the run: there after any kind of death. A host without the run's folder may have no room for it. */
static cr_status record_flight(cr_actor *a, int world_rank, cr_err *err)
{
    char *folder = cr_path_join(a->config->output_dir, "flight"),
         *path = cr_asprintf("%s/rank-%02d.bin", folder, world_rank);

    if (cr_mkdirs(folder, err) == CR_OK) cr_note(cr_flight_open(a->world, path, err));
    cr_free(folder);
    cr_free(path);
    if (err->status == CR_OK || a->has_folder) return err->status;
    cr_log(CR_LOG_WARN, "actor", "nothing is recorded of a rank on %s: %s", cr_host_name(),
           err->msg);
    *err = (cr_err){0};
    return CR_OK;
}

static cr_status open_actor(cr_actor *a, cr_err *err)
{
    const cr_world_args world = {.kind = cr_world_kind_here(),
                                 .deadline_s = a->config->collective_timeout};
    const cr_lease lease = {cr_max64(CR_LEASE_SECONDS, a->config->exchange.url
                                                           ? (int64_t)a->config->exchange.timeout
                                                           : 0),
                            end_host, a};
    const cr_worker_config *keys = cr_model_keys_of(a->config, a->ranks->worker);
    const bool is_trained =
        !cr_task_scores(a->ranks->worker->task); /* the model that trains, or an engine's */
    const cr_model_options options =
        cr_model_options_of(keys, a->ranks->worker->task == CR_TASK_TRAIN);
    int world_rank;
    char name[96];

    cr_mpi_folder_join();
    CR_TRY(cr_world_open(&world, &a->world, err));
    world_rank = cr_world_rank(a->world);
    CR_TRY(record_flight(a, world_rank, err));
    if (cr_world_num_ranks(a->world) != a->layout.num_ranks)
        return cr_fail(err, CR_ECONFIG, "the configuration has %d actor ranks, %d were started",
                       a->layout.num_ranks, cr_world_num_ranks(a->world));
    cr_world_set_phase(a->world, a->ranks->name, "starting");
    snprintf(name, sizeof name, "%s:%d", a->ranks->name, a->rank);
    CR_TRY(cr_exchange_open(&a->exchange, &a->x, err));
    CR_TRY(cr_heartbeat_start(&a->exchange, name, &lease, &a->heart, err));
    cr_actor_note_clock(a);
    CR_TRY(open_device(a, err));
    CR_TRY(cr_model_open_with(a->ranks->worker->model_path, is_trained ? &options : NULL, &a->model,
                              err));
    return cr_model_prepare(a->model, keys, is_trained, err);
}

/* Its role and rank, and the role's environment before MPI starts threads. */
static cr_status take_role(cr_actor *a, cr_err *err)
{
    int rank = cr_world_rank_here();

    cr_layout_init(&a->layout, a->config);
    a->role = cr_layout_role(&a->layout, rank);
    if (a->role == CR_NUM_ROLES)
        return cr_fail(err, CR_ECONFIG, "the configuration has %d actor ranks, more were started",
                       a->layout.num_ranks);
    a->ranks = &a->layout.role[a->role];
    a->rank = rank - a->ranks->first;
    cr_envs_set(a->config->envs); /* on another host nothing of the launcher's is inherited */
    cr_envs_set(a->ranks->worker->envs);
    return CR_OK;
}

/* The launcher's folders are here, too, or else the run says what it does without (checkpoint_config.hosts). */
static cr_status check_folders(const cr_actor_args *o, const char *output_dir, cr_actor *a,
                               cr_err *err)
{
    const char *saves = a->config->checkpoint_dir;
    cr_choice_files files = a->config->checkpoint_hosts;
    bool is_waited_for = files == CR_FILES_EACH; /* gather works either way */

    a->has_folder = !o->mark || files == CR_FILES_SHARED ||
                    (cr_run_mark_is_in(output_dir, o->mark, is_waited_for) &&
                     cr_run_mark_is_in(saves, o->mark, is_waited_for));
    if (files == CR_FILES_EACH && !a->has_folder) {
        CR_TRY(cr_mkdirs(saves, err)); /* for this host's parts */
        return CR_OK;
    }
    if (!o->mark || files != CR_FILES_SHARED) return CR_OK;
    CR_TRY(cr_run_mark_check(output_dir, "output_dir", o->mark, err));
    return cr_run_mark_check(saves, "checkpoint_config.output_dir", o->mark, err);
}

/* OUTPUT_DIR/config.yaml, from the launcher through the exchange, or read here if no digest is given. */
static cr_status read_config(const cr_actor_args *o, cr_config *config, cr_actor *a, cr_err *err)
{
    const char *slash = strrchr(o->path, '/');
    char *folder = slash ? cr_strndup(o->path, (size_t)(slash - o->path)) : cr_strdup(".");
    cr_diagnostics d = {0};
    cr_buf text = {0};

    if (o->digest)
        cr_note(cr_endpoint_get_config(&o->exchange, o->digest, &text, err));
    else if (o->mark)
        cr_note(cr_run_mark_check(folder, "output_dir", o->mark, err));
    if (err->status == CR_OK &&
        (o->digest ? cr_config_load_text(o->path, &text, config, &d, err)
                   : cr_config_load(o->path, NULL, 0, config, &d, err)) != CR_OK)
        cr_diagnostics_print(&d);
    a->config = config;
    if (err->status == CR_OK) cr_note(check_folders(o, folder, a, err));
    cr_diagnostics_free(&d);
    cr_buf_free(&text);
    cr_free(folder);
    return err->status;
}

/* Everything up to the end of its life. */
static cr_status live(const cr_actor_args *o, cr_config *config, cr_actor *a, cr_err *err)
{
    if (!o->path || !o->exchange.url)
        return cr_fail(err, CR_EUSAGE,
                       "CONFIG and --exchange or " CR_EXCHANGE_VARIABLE " are needed");
    CR_TRY(read_config(o, config, a, err));
    a->exchange = cr_endpoint_args(config, o->exchange.url, o->prefix);
    CR_TRY(take_role(a, err));
    CR_TRY(open_actor(a, err));
    return cr_actor_live(a, err);
}

/* After a failure: its last words, and the end. Of ranks that failed because another one did nothing is shown, as long as that one
 * is. */
static _Noreturn void leave(cr_actor *a, const cr_err *err)
{
    bool is_reported;

    if (a->world) cr_world_fail(a->world, err);
    if (err->status != CR_EPEER) say_why(a, err->msg);
    is_reported = a->ranks && cr_last_words_put(a->x, &a->layout, a->ranks->first + a->rank,
                                                a->config->output_dir, err);
    if (is_reported || err->status == CR_EPEER) cr_last_words_stay();
    if (err->status == CR_EPEER) say_why(a, err->msg);
    fflush(NULL);
    _exit(cr_exit_code(err->status)); /* peers may hang in MPI: no clean way out is left */
}

int cr_actor_run(const cr_actor_args *args, cr_err *err)
{
    char *from_variable = cr_exchange_take_variable(), *beside = NULL;
    cr_actor_args o = *args;
    cr_config config = {0};
    cr_actor a = {0};

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* with mpirun */
    if (!o.exchange.url) o.exchange.url = from_variable;
    if (!o.prefix && o.path) o.prefix = beside = cr_endpoint_prefix_beside(o.path);
    o.exchange.prefix = o.prefix;
    if (err->status == CR_OK) cr_note(live(&o, &config, &a, err));
    if (err->status != CR_OK) leave(&a, err);
    cr_heartbeat_stop(a.heart);
    cr_exchange_close(a.x);
    cr_mesh_destroy(a.mesh);
    cr_group_destroy(a.sync_group);
    cr_world_close(a.world);
    cr_model_free(a.model);
    cr_device_close(a.dev);
    cr_config_free(&config);
    cr_free(from_variable);
    cr_free(beside);
    return 0;
}
