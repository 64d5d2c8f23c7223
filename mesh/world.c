/* world.c -- opening and closing the world, the control board, and the guard around blocking MPI calls (see
 * mesh.h). */
#include "base/children.h"
#include "mesh/comm.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- the guard: some MPI calls cannot be given a deadline, so a thread watches the clock ---- */

struct cri_watchdog {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    cr_world *world;
    char what[160];
    double until_s; /* 0: nothing is guarded */
    bool should_end;
};

static void *watch(void *arg)
{
    cri_watchdog *dog = arg;

    pthread_mutex_lock(&dog->lock);
    while (!dog->should_end) {
        double left_s = dog->until_s - cr_now_s();

        if (dog->until_s == 0) {
            pthread_cond_wait(&dog->changed, &dog->lock);
        } else if (left_s > 0) {
            struct timespec t;
            clock_gettime(CLOCK_REALTIME, &t);
            left_s += (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
            t.tv_sec = (time_t)left_s;
            t.tv_nsec = (long)((left_s - (double)t.tv_sec) * 1e9);
            pthread_cond_timedwait(&dog->changed, &dog->lock, &t);
        } else {
            cr_log(CR_LOG_ERROR, "mesh", "rank %d: %s did not return within %.3g s",
                   dog->world->rank, dog->what, dog->world->deadline_s);
            _exit(cr_exit_code(CR_ETIMEOUT));
        }
    }
    pthread_mutex_unlock(&dog->lock);
    return NULL;
}

static cr_status watchdog_start(cr_world *world, cr_err *err)
{
    cri_watchdog *dog = CR_NEW(cri_watchdog);
    int code;

    pthread_mutex_init(&dog->lock, NULL);
    pthread_cond_init(&dog->changed, NULL);
    dog->world = world;
    code = pthread_create(&dog->thread, NULL, watch, dog);
    if (code != 0) {
        cr_free(dog);
        return cr_fail(err, CR_EIO, "cannot start the watchdog thread: %s", strerror(code));
    }
    world->watchdog = dog;
    return CR_OK;
}

static void watchdog_stop(cr_world *world)
{
    cri_watchdog *dog = world->watchdog;

    if (!dog) return;
    pthread_mutex_lock(&dog->lock);
    dog->should_end = true;
    pthread_cond_signal(&dog->changed);
    pthread_mutex_unlock(&dog->lock);
    pthread_join(dog->thread, NULL);
    cr_free(dog);
    world->watchdog = NULL;
}

static void guard(cr_world *world, const char *what, double until_s)
{
    cri_watchdog *dog = world->watchdog;

    if (!dog) return;
    pthread_mutex_lock(&dog->lock);
    if (what) snprintf(dog->what, sizeof dog->what, "%s", what);
    dog->until_s = until_s;
    pthread_cond_signal(&dog->changed);
    pthread_mutex_unlock(&dog->lock);
}

void cri_guard_begin(cr_world *world, const char *what)
{
    guard(world, what, cr_now_s() + world->deadline_s);
}

void cri_guard_end(cr_world *world)
{
    guard(world, NULL, 0);
}

cr_status cri_mpi(cr_world *world, int code, const char *what, cr_err *err)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;

    if (code == MPI_SUCCESS) return CR_OK;
    if (world) world->is_broken = true;
    MPI_Error_string(code, text, &length);
    return cr_fail(err, CR_EPEER, "%s: MPI says: %s", what, text);
}

static void abort_all(void)
{
    int is_running = 0, is_over = 1;

    MPI_Initialized(&is_running);
    MPI_Finalized(&is_over);
    if (is_running && !is_over) MPI_Abort(MPI_COMM_WORLD, 1);
}

/* ---- the world ---- */

cr_world_kind cr_world_kind_here(void)
{
    static const char *const marks[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE"};

    for (size_t i = 0; i < CR_COUNT(marks); i++)
        if (getenv(marks[i])) return CR_WORLD_MPI;
    return CR_WORLD_LOCAL;
}

int cr_world_rank_here(void)
{
    static const char *const marks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};

    for (size_t i = 0; i < CR_COUNT(marks); i++)
        if (getenv(marks[i])) return atoi(getenv(marks[i]));
    return 0;
}

/* The number of the host that CROLL_TEST_HOSTS pretends for this rank: a list of digits, used again and again. */
static cr_status pretended_host(const cr_world *w, const char *hosts, int *host, cr_err *err)
{
    size_t num = (strlen(hosts) + 1) / 2, at = num ? 2 * ((size_t)w->rank % num) : 0;

    for (size_t i = 0; hosts[i]; i++)
        if (i % 2 ? hosts[i] != ',' : hosts[i] < '0' || hosts[i] > '9') num = 0;
    if (num == 0)
        return cr_fail(err, CR_EUSAGE, "CROLL_TEST_HOSTS is \"%s\" (use digits: 0,0,1,1)", hosts);
    *host = hosts[at] - '0';
    return CR_OK;
}

/* The communicator of this host's ranks; MPI_COMM_NULL: each rank is to count as a host. */
static cr_status find_host(cr_world *w, cr_err *err)
{
    const char *transport = getenv("CROLL_TRANSPORT"), *hosts = getenv("CROLL_TEST_HOSTS");
    bool is_forced = transport && strcmp(transport, "mpi") == 0;
    int host = 0;

    if (transport && !is_forced && strcmp(transport, "shared") != 0)
        return cr_fail(err, CR_EUSAGE, "CROLL_TRANSPORT is \"%s\" (use shared or mpi)", transport);
    if (hosts) {
        CR_TRY(pretended_host(w, hosts, &host, err));
        return cri_mpi(w, MPI_Comm_split(w->comm, host, w->rank, &w->host_comm), "pretending hosts",
                       err);
    }
    return cri_mpi(w,
                   MPI_Comm_split_type(w->comm, is_forced ? MPI_UNDEFINED : MPI_COMM_TYPE_SHARED,
                                       w->rank, MPI_INFO_NULL, &w->host_comm),
                   "finding the ranks of this host", err);
}

/* Which ranks share this host's memory; their board. */
static cr_status open_host(cr_world *w, cr_err *err)
{
    int mine[2] = {w->rank, 0}, num_local = 1, *all;
    MPI_Aint bytes = 0;
    int unit = 1;

    CR_TRY(find_host(w, err));
    if (w->host_comm != MPI_COMM_NULL) {
        MPI_Comm_rank(w->host_comm, &mine[1]);
        MPI_Comm_size(w->host_comm, &num_local);
        CR_TRY(cri_mpi(w, MPI_Bcast(mine, 1, MPI_INT, 0, w->host_comm), "naming this host", err));
    }
    all = CR_NEW_ARRAY(int, 2 * w->num_ranks);
    cr_status status = cri_mpi(w, MPI_Allgather(mine, 2, MPI_INT, all, 2, MPI_INT, w->comm),
                               "exchanging the hosts of the ranks", err);
    for (int r = 0; r < w->num_ranks; r++) {
        w->host_of[r] = all[2 * r];
        w->board_of[r] = all[2 * r + 1];
    }
    cr_free(all);
    CR_TRY(status);
    snprintf(w->host_name[w->rank], CRI_HOST_BYTES, "%s", cr_host_name());
    CR_TRY(cri_mpi(w,
                   MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, w->host_name, CRI_HOST_BYTES,
                                 MPI_BYTE, w->comm),
                   "exchanging the names of the hosts", err));
    w->should_spin = cr_num_cores() >= num_local;
    if (num_local == 1) return CR_OK;
    CR_TRY(cri_mpi(w,
                   MPI_Win_allocate_shared(
                       (MPI_Aint)(sizeof(cri_board) * (size_t)(mine[1] == 0) * (size_t)num_local),
                       1, MPI_INFO_NULL, w->host_comm, &w->board, &w->board_win),
                   "making the control board of this host in shared memory (/dev/shm)", err));
    CR_TRY(cri_mpi(w, MPI_Win_shared_query(w->board_win, 0, &bytes, &unit, &w->board),
                   "finding the control board", err));
    w->own_board = &w->board[mine[1]];
    memcpy(w->own_board, &w->private_board, sizeof *w->own_board);
    return cri_mpi(w, MPI_Barrier(w->host_comm), "starting the control board", err);
}

static cr_status open_mpi(cr_world *w, cr_err *err)
{
    int provided, is_running = 0;

    CR_TRY(watchdog_start(w, err));
    cri_guard_begin(w, "starting MPI");
    MPI_Initialized(&is_running);
    if (is_running) {
        cri_guard_end(w);
        return cr_fail(err, CR_EUSAGE, "the MPI world is open already (open it once a process)");
    }
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS ||
        provided < MPI_THREAD_FUNNELED) {
        cri_guard_end(w);
        return cr_fail(err, CR_EPEER, "MPI did not start with thread support FUNNELED");
    }
    cr_set_abort_hook(abort_all);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &w->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &w->num_ranks);
    w->host_of = CR_NEW_ARRAY(int, w->num_ranks);
    w->board_of = CR_NEW_ARRAY(int, w->num_ranks);
    w->host_name = cr_alloc((size_t)w->num_ranks * sizeof *w->host_name);
    CR_TRY(cri_mpi(w, MPI_Comm_dup(MPI_COMM_WORLD, &w->comm), "opening the world", err));
    CR_TRY(open_host(w, err));
    cri_guard_end(w);
    return CR_OK;
}

static void name_process(cri_board *b)
{
    struct stat space;

    if (stat("/proc/self/ns/pid", &space) != 0) return;
    b->process = (int32_t)getpid();
    b->process_space = space.st_ino;
}

cr_status cr_world_open(const cr_world_args *args, cr_world **out, cr_err *err)
{
    cr_world *w = CR_NEW(cr_world);

    *out = NULL;
    w->kind = args->kind;
    w->num_ranks = 1;
    w->deadline_s = args->deadline_s > 0 ? args->deadline_s : 300;
    w->comm = w->host_comm = MPI_COMM_NULL;
    w->board_win = MPI_WIN_NULL;
    w->own_board = &w->private_board;
    name_process(w->own_board);
    if (w->kind == CR_WORLD_META) {
        w->rank = args->meta_rank;
        w->num_ranks = args->meta_num_ranks;
        if (w->num_ranks < 1 || w->rank < 0 || w->rank >= w->num_ranks)
            cr_fail(err, CR_EARG, "rank %d of a meta world of %d ranks: no such rank", w->rank,
                    w->num_ranks);
    } else if (w->kind == CR_WORLD_MPI) {
        open_mpi(w, err);
    }
    if (err->status != CR_OK) {
        w->is_broken = true;
        cr_world_close(w);
        return err->status;
    }
    w->flight = cri_flight_create(w->rank);
    *out = w;
    return CR_OK;
}

void cr_world_close(cr_world *world)
{
    int is_running = 0;

    if (!world) return;
    if (world->kind == CR_WORLD_MPI && !world->is_broken) {
        cri_guard_begin(world, "closing the world (a rank has not come to its end)");
        if (world->board_win != MPI_WIN_NULL) MPI_Win_free(&world->board_win);
        if (world->host_comm != MPI_COMM_NULL) MPI_Comm_free(&world->host_comm);
        MPI_Comm_free(&world->comm);
        MPI_Initialized(&is_running);
        cr_set_abort_hook(NULL);
        if (is_running) MPI_Finalize();
        cri_guard_end(world);
    }
    watchdog_stop(world);
    cri_flight_destroy(world->flight);
    cr_free(world->host_of);
    cr_free(world->board_of);
    cr_free(world->host_name);
    cr_free(world);
}

bool cr_world_is_here(const cr_world *w, int world_rank)
{
    return !w->host_of || w->host_of[world_rank] == w->host_of[w->rank];
}

int cr_world_host_of(const cr_world *w, int world_rank)
{
    return w->host_of ? w->host_of[world_rank] : 0;
}

bool cr_world_spans_hosts(const cr_world *w)
{
    for (int r = 0; r < w->num_ranks; r++)
        if (!cr_world_is_here(w, r)) return true;
    return false;
}

const char *cri_rank_text(const cr_world *w, int world_rank, char *text)
{
    bool is_here = cr_world_is_here(w, world_rank);

    snprintf(text, CRI_RANK_BYTES, "rank %d%s%s", world_rank, is_here ? "" : " on ",
             is_here ? "" : w->host_name[world_rank]);
    return text;
}

cri_board *cri_board_of(const cr_world *w, int world_rank)
{
    if (world_rank == w->rank) return w->own_board;
    if (!w->board || w->host_of[world_rank] != w->host_of[w->rank]) return NULL;
    return &w->board[w->board_of[world_rank]];
}

bool cri_board_is_gone(const cr_world *world, const cri_board *b)
{
    return b->process && b->process_space == world->own_board->process_space &&
           kill(b->process, 0) != 0 && errno == ESRCH;
}

void cr_world_fail(cr_world *world, const cr_err *err)
{
    bool is_first = atomic_load(&world->own_board->has_failed) == 0;

    world->is_broken = true;
    snprintf(world->own_board->failure, sizeof world->own_board->failure, "%.*s",
             (int)sizeof world->own_board->failure - 1, err->msg);
    atomic_store(&world->own_board->has_failed, (uint32_t)err->status);
    for (cr_group *g = is_first ? world->groups : NULL; g; g = g->next) {
        g->base->abort(g, err);
        if (g->comm && g->nccl) g->comm->abort(g, err); /* no comm: its transport is being chosen */
    }
}

cr_world_kind cr_world_get_kind(const cr_world *world)
{
    return world->kind;
}

int cr_world_rank(const cr_world *world)
{
    return world->rank;
}

int cr_world_num_ranks(const cr_world *world)
{
    return world->num_ranks;
}

double cr_world_deadline_s(const cr_world *world)
{
    return world->deadline_s;
}

void cr_world_set_deadline(cr_world *world, double deadline_s)
{
    world->deadline_s = deadline_s;
}

void cr_world_set_phase(cr_world *world, const char *role, const char *phase)
{
    cri_board *b = world->own_board;

    if (role) {
        snprintf(b->role, sizeof b->role, "%s", role);
        cri_flight_set_role(world, role);
    }
    if (!phase) return;
    snprintf(b->phase, sizeof b->phase, "%s", phase);
    cri_flight_set_phase(world, phase);
}
