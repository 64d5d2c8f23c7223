/* pool.c -- workers and their messages (see pool.h): a task and a file there, a header and pixels back. */
#include "images/pool.h"
#include "sandbox/confine.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Pixels three times (turning and coefficients of progressive JPEG) and a file of some size. */
enum { WORKER_BYTES_PER_PIXEL = 16, WORKER_BYTES = 256 << 20 };

typedef struct task {
    size_t num_bytes; /* of the file that follows */
    bool size_only;
} task;

typedef struct header {
    cr_image image; /* its pixels follow, if err says nothing */
    cr_err err;
} header;

typedef struct worker {
    pid_t pid; /* 0: none */
    int fd;
    cr_image_job *job; /* NULL: it waits for one */
    double started_s;
} worker;

struct cr_image_pool {
    worker *workers; /* [num] */
    size_t num;
    int64_t max_pixels;
    cr_image_alpha alpha;
    double max_seconds;
};

static bool read_all(int fd, void *to, size_t num)
{
    for (ssize_t n; num; to = (char *)to + n, num -= (size_t)n)
        if ((n = recv(fd, to, num, 0)) <= 0) {
            if (n == 0 || errno != EINTR) return false;
            n = 0;
        }
    return true;
}

static bool write_all(int fd, const void *from, size_t num)
{
    for (ssize_t n; num; from = (const char *)from + n, num -= (size_t)n)
        if ((n = send(fd, from, num, MSG_NOSIGNAL)) < 0) {
            if (errno != EINTR) return false;
            n = 0;
        }
    return true;
}

/* ---- a worker ---- */

static void answer(int fd, const cr_image_pool *pool, const task *t, const void *file)
{
    header h = {0};
    size_t num;

    cr_note(
        cr_image_decode_alpha(file, t->num_bytes, pool->max_pixels, pool->alpha, &h.image, &h.err));
    num = t->size_only ? 0 : (size_t)h.image.width * (size_t)h.image.height * 3;
    if (!write_all(fd, &h, sizeof h) || !write_all(fd, h.image.pixels, num)) _exit(0);
    cr_image_free(&h.image);
}

static void work(int fd, const cr_image_pool *pool)
{
    header refused = {0};
    task t;

    if (cr_confine(fd, WORKER_BYTES + pool->max_pixels * WORKER_BYTES_PER_PIXEL, &refused.err) !=
        CR_OK) {
        (void)write_all(fd, &refused, sizeof refused);
        _exit(1);
    }
    while (read_all(fd, &t, sizeof t)) {
        void *file = cr_alloc(t.num_bytes);
        if (!read_all(fd, file, t.num_bytes)) break;
        answer(fd, pool, &t, file);
        cr_free(file);
    }
    _exit(0);
}

static cr_status start(cr_image_pool *pool, worker *w, cr_err *err)
{
    pid_t parent = getpid();
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        return cr_fail(err, CR_EIO, "a decoder of images: %s", strerror(errno));
    w->pid = fork();
    if (w->pid == 0) {
        cr_set_abort_hook(NULL);
        signal(SIGINT, SIG_IGN); /* the parent ends it */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(0);
        work(fds[1], pool);
    }
    close(fds[1]);
    w->fd = fds[0];
    if (w->pid > 0) return CR_OK;
    w->pid = 0;
    close(fds[0]);
    return cr_fail(err, CR_EIO, "a decoder of images: %s", strerror(errno));
}

/* ---- the caller ---- */

static void stop(worker *w, int *status)
{
    if (!w->pid) return;
    close(w->fd);
    kill(w->pid, SIGKILL);
    while (waitpid(w->pid, status, 0) < 0 && errno == EINTR)
        continue;
    *w = (worker){0};
}

/* Its worker is no more. */
static void lose(const cr_image_pool *pool, worker *w)
{
    bool is_late = cr_now_s() - w->started_s >= pool->max_seconds;
    cr_image_job *job = w->job;
    int status = 0;
    pid_t ended;

    do { /* its own end, if it ends by itself */
        ended = is_late ? 0 : waitpid(w->pid, &status, 0);
    } while (ended < 0 && errno == EINTR);
    if (ended == w->pid) w->pid = 0, close(w->fd);
    stop(w, &(int){0});
    if (is_late)
        cr_fail(&job->err, CR_EFORMAT, "it is not decoded after %.3g s", pool->max_seconds);
    else if (WIFSIGNALED(status))
        cr_fail(&job->err, CR_EFORMAT, "its decoder was killed by signal %d", WTERMSIG(status));
    else
        cr_fail(&job->err, CR_EFORMAT, "its decoder ended with exit code %d (out of memory?)",
                WEXITSTATUS(status));
    *w = (worker){0};
}

static bool is_sound(const cr_image_pool *pool, const header *h)
{
    const cr_image *i = &h->image;

    if (h->err.status != CR_OK)
        return memchr(h->err.msg, 0, sizeof h->err.msg) && !i->width && !i->height;
    return i->width > 0 && i->height > 0 && (int64_t)i->width * i->height <= pool->max_pixels &&
           i->type >= CR_IMAGE_JPEG && i->type <= CR_IMAGE_WEBP && i->orientation >= 1 &&
           i->orientation <= 8;
}

/* The answer of a worker that has begun to give one. */
static void take(cr_image_pool *pool, worker *w)
{
    cr_image_job *job = w->job;
    header h;
    size_t num;

    if (!read_all(w->fd, &h, sizeof h)) {
        lose(pool, w);
        return;
    }
    if (!is_sound(pool, &h)) {
        cr_fail(&job->err, CR_EFORMAT, "its decoder gave no answer");
        stop(w, &(int){0});
        return;
    }
    w->job = NULL;
    if (h.err.status != CR_OK) {
        cr_fail(&job->err, h.err.status == CR_EABSENT ? CR_EABSENT : CR_EFORMAT, "%s", h.err.msg);
        return;
    }
    num = (size_t)h.image.width * (size_t)h.image.height * 3;
    job->image = h.image;
    job->image.pixels = NULL;
    if (job->size_only) return;
    job->image.pixels = cr_alloc(num);
    if (read_all(w->fd, job->image.pixels, num)) return;
    cr_image_free(&job->image);
    w->job = job;
    lose(pool, w);
}

static cr_status give(cr_image_pool *pool, worker *w, cr_image_job *job, cr_err *err)
{
    const struct timeval max = {.tv_sec = (time_t)pool->max_seconds + 1};
    const task t = {.num_bytes = job->num_bytes, .size_only = job->size_only};

    if (!w->pid) CR_TRY(start(pool, w, err));
    setsockopt(w->fd, SOL_SOCKET, SO_RCVTIMEO, &max, sizeof max);
    setsockopt(w->fd, SOL_SOCKET, SO_SNDTIMEO, &max, sizeof max);
    job->err = (cr_err){0};
    job->image = (cr_image){0};
    w->job = job;
    w->started_s = cr_now_s();
    if (write_all(w->fd, &t, sizeof t)) (void)write_all(w->fd, job->data, job->num_bytes);
    return CR_OK; /* of one that has ended, the answer or its end is read */
}

/* Until one worker has answered, or is late. */
static void wait_for_one(cr_image_pool *pool, const cr_image_jobs *jobs)
{
    struct pollfd *polls = CR_NEW_ARRAY(struct pollfd, pool->num);
    double first = pool->max_seconds, now = cr_now_s();

    for (size_t i = 0; i < pool->num; i++) {
        const worker *w = &pool->workers[i];
        double left = w->started_s + pool->max_seconds - now;
        polls[i] = (struct pollfd){.fd = w->job ? w->fd : -1, .events = POLLIN};
        if (w->job && left < first) first = left;
    }
    poll(polls, pool->num, first > 0 ? (int)(first * 1e3) + 1 : 0);
    for (size_t i = 0; i < pool->num; i++) {
        worker *w = &pool->workers[i];
        cr_image_job *job = w->job;
        if (polls[i].revents)
            take(pool, w);
        else if (job && cr_now_s() - w->started_s >= pool->max_seconds)
            lose(pool, w);
        if (job && !w->job) jobs->end(jobs->ctx, job);
    }
    cr_free(polls);
}

cr_status cr_image_pool_run(cr_image_pool *pool, const cr_image_jobs *jobs, cr_err *err)
{
    cr_image_job *job = NULL;
    bool is_end = false;
    size_t num_busy;

    do {
        num_busy = 0;
        for (size_t i = 0; i < pool->num; i++) {
            worker *w = &pool->workers[i];
            if (!w->job && !is_end) {
                job = jobs->next(jobs->ctx);
                is_end = !job || give(pool, w, job, err) != CR_OK;
            }
            num_busy += w->job != NULL;
        }
        if (num_busy) wait_for_one(pool, jobs);
    } while (num_busy || !is_end);
    return err->status;
}

typedef struct rest {
    cr_image_job *jobs;
    size_t num;
} rest;

static cr_image_job *next_of(void *ctx)
{
    rest *r = ctx;

    return r->num ? (r->num--, r->jobs++) : NULL;
}

static void end_of(void *ctx, cr_image_job *job)
{
    (void)ctx, (void)job;
}

cr_status cr_image_pool_decode(cr_image_pool *pool, cr_image_job *jobs, size_t num, cr_err *err)
{
    rest r = {jobs, num};

    return cr_image_pool_run(pool, &(cr_image_jobs){next_of, end_of, &r}, err);
}

cr_image_pool *cr_image_pool_create(size_t num_workers, int64_t max_pixels, double max_seconds)
{
    cr_image_pool *pool = CR_NEW(cr_image_pool);

    pool->num = num_workers;
    pool->workers = CR_NEW_ARRAY(worker, num_workers);
    pool->max_pixels = max_pixels;
    pool->max_seconds = max_seconds;
    return pool;
}

cr_image_pool *cr_image_pool_open(cr_image_alpha alpha, size_t *num_workers)
{
    const int num_cores = cr_num_cores();
    cr_image_pool *pool;

    *num_workers = num_cores < CR_IMAGE_MAX_WORKERS ? (size_t)num_cores : CR_IMAGE_MAX_WORKERS;
    pool = cr_image_pool_create(*num_workers, CR_IMAGE_MAX_PIXELS, CR_IMAGE_SECONDS);
    cr_image_pool_set_alpha(pool, alpha);
    return pool;
}

void cr_image_pool_set_alpha(cr_image_pool *pool, cr_image_alpha alpha)
{
    pool->alpha = alpha;
}

void cr_image_pool_destroy(cr_image_pool *pool)
{
    if (!pool) return;
    for (size_t i = 0; i < pool->num; i++)
        stop(&pool->workers[i], &(int){0});
    cr_free(pool->workers);
    cr_free(pool);
}
