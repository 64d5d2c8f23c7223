/* base_files.c -- files that are too large or have no end, and memory that there is not: a sentence, no abort that names a
 * source. Not covered: what the machine itself has left (cgroups). */
#include "base/base.h"
#include "base/limits.h"
#include "tests/check_near.h"
#include "tests/temp_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void check_refused(const char *path, const char *part)
{
    cr_buf text = {0};
    cr_err err = {0};

    assert_int_equal(cr_file_read(path, &text, &err), CR_EIO);
    if (!strstr(err.msg, part)) fail_msg("%s", err.msg);
    cr_buf_free(&text);
}

static void large_files(void **state)
{
    char *path = cr_path_join(temp_folder, "holes");
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    (void)state;
    assert_true(fd >= 0 && ftruncate(fd, (off_t)1 << 40) == 0);
    close(fd);
    check_refused(path, "holes is too large, or has no end: it is read whole, which takes "
                        "1099511627776 bytes more");
    check_refused("/dev/zero", "/dev/zero is a device without an end, not a file");
    cr_free(path);
}

/* Small files, and pipes of any length that memory holds. */
static void whole_files(void **state)
{
    enum { LENGTH = 40 << 20 };
    char *path = cr_path_join(temp_folder, "pipe");
    cr_buf text = {0};
    cr_err err = {0};
    pid_t child;

    (void)state;
    assert_int_equal(mkfifo(path, 0600), 0);
    child = fork();
    if (child == 0) {
        static const char block[1 << 16] = {1};
        int fd = open(path, O_WRONLY);
        for (size_t i = 0; i < LENGTH / sizeof block; i++)
            if (write(fd, block, sizeof block) != sizeof block) _exit(1);
        _exit(0);
    }
    if (cr_file_read(path, &text, &err) != CR_OK) fail_msg("%s", err.msg);
    assert_int_equal(text.num_bytes, LENGTH);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(cr_file_read("/proc/self/status", &text, &err), CR_OK);
    assert_non_null(strstr(text.data, "VmSize:"));
    cr_buf_free(&text);
    cr_free(path);
}

/* Runs it with 100 MB left, and without words of its own on stderr; they are in `said`, its exit code is the result. */
static int in_child(void (*run)(void), char said[512])
{
    int ends[2], status;
    size_t num = 0;
    ssize_t n;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        struct rlimit data = {RLIM_INFINITY, RLIM_INFINITY};
        data.rlim_cur = (rlim_t)(1024 * cr_find_number("/proc/self/status", "VmData:") + 100000000);
        dup2(ends[1], STDERR_FILENO);
        if (setrlimit(RLIMIT_DATA, &data) == 0) run();
        _exit(0);
    }
    close(ends[1]);
    while (num < 511 && (n = read(ends[0], said + num, 511 - num)) > 0)
        num += (size_t)n;
    said[num] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void ask_for_much(void)
{
    cr_free(cr_alloc(1000000000));
}

static void read_for_ever(void)
{
    cr_buf text = {0};
    cr_err err = {0};

    if (cr_file_read("-", &text, &err) != CR_OK) dprintf(STDERR_FILENO, "%s", err.msg);
}

/* Does the kernel keep a limit of memory? qemu-user ignores what an emulated program asks for. */
static bool has_limits(void)
{
    struct rlimit before, now, some;

    assert_int_equal(getrlimit(RLIMIT_DATA, &before), 0);
    some = before;
    some.rlim_cur = (rlim_t)1 << 40;
    if (before.rlim_max < some.rlim_cur) return true;
    assert_int_equal(setrlimit(RLIMIT_DATA, &some), 0);
    assert_int_equal(getrlimit(RLIMIT_DATA, &now), 0);
    assert_int_equal(setrlimit(RLIMIT_DATA, &before), 0);
    return now.rlim_cur == some.rlim_cur;
}

static void little_memory(void **state)
{
    char said[512];
    int zeros, before;

    (void)state;
    if (!has_limits()) {
        print_message("skipped: limits of memory have no effect here (an emulated CPU)\n");
        skip();
    }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: the sanitizer needs more memory than the limit\n");
    skip();
#endif
    assert_int_equal(in_child(ask_for_much, said), 1);
    assert_non_null(strstr(said, "out of memory: there is no room for 1000000000 bytes more"));
    assert_null(strstr(said, ".c:"));
    before = dup(STDIN_FILENO);
    zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    assert_true(before >= 0 && zeros >= 0 && dup2(zeros, STDIN_FILENO) == STDIN_FILENO);
    assert_int_equal(in_child(read_for_ever, said), 0);
    assert_non_null(strstr(said, "- is too large, or has no end"));
    assert_int_equal(dup2(before, STDIN_FILENO), STDIN_FILENO);
    close(before);
    close(zeros);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(large_files), cmocka_unit_test(whole_files),
                                       cmocka_unit_test(little_memory)};

    return cmocka_run_group_tests(tests, make_temp_folder, remove_temp_folder);
}
