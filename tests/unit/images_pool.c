/* images_pool.c -- images decoded by worker processes: the same pixels as here, in the order of jobs; files that are refused; workers
 * that are killed, or late, cost one image each; what a confined process may not do ends it.
 */
#include "images/pool.h"
#include "sandbox/confine.h"

#include "tests/ok.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define FOLDER "tests/parity/images/"
enum { NUM = 12 };
static const char *const names[] = {"jpeg_420.jpeg", "png_rgb_16.png", "webp_alpha.webp",
                                    "png_exif.png"};

static void read_jobs(cr_buf files[NUM], cr_image_job jobs[NUM])
{
    for (int i = 0; i < NUM; i++) {
        char path[200];
        snprintf(path, sizeof path, FOLDER "%s", names[(size_t)i % CR_COUNT(names)]);
        files[i] = (cr_buf){0};
        OK(cr_file_read(path, &files[i], &err));
        jobs[i] = (cr_image_job){.data = files[i].data, .num_bytes = files[i].num_bytes};
    }
}

static void check_pixels(const cr_image_job *job)
{
    cr_image here;

    if (job->err.status) fail_msg("%s", job->err.msg);
    OK(cr_image_decode(job->data, job->num_bytes, CR_IMAGE_MAX_PIXELS, &here, &err));
    assert_true(here.width == job->image.width && here.height == job->image.height);
    assert_true(here.type == job->image.type && here.orientation == job->image.orientation);
    assert_memory_equal(here.pixels, job->image.pixels,
                        (size_t)here.width * (size_t)here.height * 3);
    cr_image_free(&here);
}

static void free_jobs(cr_buf files[NUM], cr_image_job jobs[NUM])
{
    for (int i = 0; i < NUM; i++) {
        cr_buf_free(&files[i]);
        cr_image_free(&jobs[i].image);
    }
}

/* Jobs 3 and 7 are bad files. */
static void same_pixels(void **state)
{
    cr_image_job jobs[NUM];
    cr_buf files[NUM];

    (void)state;
    for (size_t num_workers = 1; num_workers <= 3; num_workers++) {
        cr_image_pool *pool =
            cr_image_pool_create(num_workers, CR_IMAGE_MAX_PIXELS, CR_IMAGE_SECONDS);
        read_jobs(files, jobs);
        jobs[3].num_bytes = 0;
        jobs[7].num_bytes /= 2;
        OK(cr_image_pool_decode(pool, jobs, NUM, &err));
        for (int i = 0; i < NUM; i++)
            if (i != 3 && i != 7) check_pixels(&jobs[i]);
        assert_int_equal(jobs[3].err.status, CR_EFORMAT);
        assert_string_equal(jobs[3].err.msg, "an image of 0 bytes");
        assert_string_equal(jobs[7].err.msg, "PNG: the file is cut off");
        free_jobs(files, jobs);
        cr_image_pool_destroy(pool);
    }
    cr_image_pool_destroy(NULL);
}

/* Ends or stops this process's children. */
static void signal_children(int signal)
{
    char path[64], *word, text[4096] = "";
    FILE *f;

    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    f = fopen(path, "r");
    assert_non_null(f);
    (void)!fread(text, 1, sizeof text - 1, f);
    fclose(f);
    for (word = strtok(text, " "); word; word = strtok(NULL, " "))
        kill(atoi(word), signal);
}

static void killed_workers(void **state)
{
    cr_image_pool *pool = cr_image_pool_create(2, CR_IMAGE_MAX_PIXELS, CR_IMAGE_SECONDS);
    cr_image_job jobs[NUM];
    cr_buf files[NUM];

    (void)state;
    read_jobs(files, jobs);
    OK(cr_image_pool_decode(pool, jobs, 2, &err));
    cr_image_free(&jobs[0].image);
    cr_image_free(&jobs[1].image);
    signal_children(SIGKILL);
    OK(cr_image_pool_decode(pool, jobs, NUM, &err));
    for (int i = 0; i < NUM; i++)
        if (i < 2)
            assert_string_equal(jobs[i].err.msg, "its decoder was killed by signal 9");
        else
            check_pixels(&jobs[i]);
    free_jobs(files, jobs);
    cr_image_pool_destroy(pool);
}

/* Decode two images until none is late: on a busy machine a second may pass. */
static void decode_two(cr_image_pool *pool, cr_image_job *jobs)
{
    for (int tries = 0; tries < 100; tries++) {
        bool is_late;
        OK(cr_image_pool_decode(pool, jobs, 2, &err));
        is_late = jobs[0].err.status || jobs[1].err.status;
        for (int i = 0; i < 2; i++) {
            if (!jobs[i].err.status) check_pixels(&jobs[i]);
            cr_image_free(&jobs[i].image);
        }
        if (!is_late) return;
    }
    fail_msg("%s", jobs[0].err.msg);
}

static void late_workers(void **state)
{
    cr_image_pool *pool = cr_image_pool_create(2, CR_IMAGE_MAX_PIXELS, 1.0);
    cr_image_job jobs[NUM];
    cr_buf files[NUM];

    (void)state;
    read_jobs(files, jobs);
    decode_two(pool, jobs);
    signal_children(SIGSTOP);
    OK(cr_image_pool_decode(pool, jobs, 2, &err));
    for (int i = 0; i < 2; i++)
        assert_string_equal(jobs[i].err.msg, "it is not decoded after 1 s");
    decode_two(pool, jobs);
    free_jobs(files, jobs);
    cr_image_pool_destroy(pool);
}

static void opens_a_file(int fd)
{
    _exit(open("/dev/null", O_RDONLY) + fd);
}

static void forks(int fd)
{
    _exit(fork() + fd);
}

static void takes_memory(int fd)
{
    const void *at =
        mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    _exit(at == MAP_FAILED ? 8 : 7 + (fd < 0));
}

static void reads_other(int fd)
{
    char c;

    _exit(read(fd + 1, &c, 1) < 0 ? 9 : 0);
}

static void writes(int fd)
{
    _exit(write(fd, "x", 1) == 1 ? 10 : 0);
}

static void confined(void **state)
{
    const struct {
        void (*what)(int fd);
        int signal, code;
    } cases[] = {{opens_a_file, SIGSYS, 0},
                 {forks, SIGSYS, 0},
                 {takes_memory, 0, 8},
                 {reads_other, 0, 9},
                 {writes, 0, 10}};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        int fds[2], status;
        pid_t pid;
        assert_int_equal(pipe(fds), 0);
        pid = fork();
        if (pid == 0) {
            dup2(fds[0], fds[1] + 1);
            if (cr_confine(fds[1], 32 << 20, &err) != CR_OK) _exit(100);
            cases[i].what(fds[1]);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (cases[i].signal ? !WIFSIGNALED(status) || WTERMSIG(status) != cases[i].signal
                            : !WIFEXITED(status) || WEXITSTATUS(status) != cases[i].code)
            fail_msg("case %zu: status %x", i, (unsigned)status);
        close(fds[0]);
        close(fds[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_pixels),
                                       cmocka_unit_test(killed_workers),
                                       cmocka_unit_test(late_workers), cmocka_unit_test(confined)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
