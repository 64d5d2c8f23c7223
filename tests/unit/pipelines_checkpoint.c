/* pipelines_checkpoint.c -- C48, one call after another: a process that saves is killed, or finds the disk
 * full, at the k-th call that changes the file system, for every k; `latest` always leads to a complete
 * checkpoint and no partial one is taken. Three histories: saves in a row; saves over the checkpoints of
 * an earlier life; the same where the file system cannot exchange two names.
 *
 * The calls of libc are replaced below. Not covered: kills of whole runs (e2e/run_saves.sh), power cuts.
 */
#include "base/digest.h"
#include "base/json.h"
#include "pipelines/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h> /* cmocka needs these before it */
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- calls that end badly ---- */

static enum { KILL, FULL } action;
static int countdown = -1; /* -1: off */
static bool has_exchange = true;

static bool is_hit(void)
{
    return countdown >= 0 && countdown-- == 0;
}

/* The disk is full from the first failure on, and only for calls that need room. */
static bool fails(bool needs_room)
{
    if (action == FULL && (!needs_room || !is_hit())) return false;
    if (action == KILL && !is_hit()) return false;
    if (action == KILL) raise(SIGKILL);
    countdown = 0;
    errno = ENOSPC;
    return true;
}

ssize_t write(int fd, const void *data, size_t n)
{
    if (countdown == 0 && n > 1) { /* a torn one */
        syscall(SYS_write, fd, data, n / 2);
        if (fails(true)) return -1;
    } else if (fails(true)) {
        return -1;
    }
    return syscall(SYS_write, fd, data, n);
}

int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    if (fails(false)) return -1;
    if (flags && !has_exchange) return errno = EINVAL, -1;
    return (int)syscall(SYS_renameat2, a, from, b, to, flags);
}

int rename(const char *from, const char *to)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int symlink(const char *what, const char *path)
{
    return fails(true) ? -1 : (int)syscall(SYS_symlinkat, what, AT_FDCWD, path);
}

int mkdir(const char *path, mode_t mode)
{
    return fails(true) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int unlink(const char *path)
{
    return fails(false) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
    return fails(false) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

int fsync(int fd)
{
    (void)fd;
    return fails(true) ? -1 : 0; /* no power is cut here */
}

/* ---- saves ---- */

enum { BYTES = 5000 };
static char dir[64];
static const char *const files[] = {"state/actor_train.master", "state/actor_train.json",
                                    "actor_train/model.safetensors"};
static struct { /* shared with the process that is killed */
    int begun, committed, life;
} * shared;

static void fill(char *data, int step, int life, size_t file)
{
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (char)((size_t)step * 31 + (size_t)life * 7 + file * 3 + i % 251);
}

static cr_status save(int step, int keep, cr_err *err)
{
    char *folder, data[BYTES];

    shared->begun = step;
    CR_TRY(cr_checkpoint_begin(dir, step, NULL, &folder, err));
    {
        char *inner = cr_path_join(folder, "actor_train");
        cr_note(cr_mkdirs(inner, err));
        cr_free(inner);
    }
    for (size_t i = 0; i < CR_COUNT(files) && err->status == CR_OK; i++) {
        char *path = cr_path_join(folder, files[i]);
        fill(data, step, shared->life, i);
        cr_note(cr_file_write_atomic(path, data, BYTES, err));
        cr_free(path);
    }
    if (err->status == CR_OK)
        cr_note(cr_checkpoint_finish(dir, folder, step, keep, NULL, 0, 0, err));
    if (err->status == CR_OK) shared->committed = step;
    if (err->status != CR_OK) { /* as cr_saver_fini does */
        cr_err ignored = {0};
        cr_note(cr_remove_tree(folder, &ignored));
    }
    cr_free(folder);
    return err->status;
}

/* ---- what is there afterwards, without the code under test ---- */

/* The life that wrote all of it, or -1. */
static int life_of(const char *path, int step)
{
    bool is_whole[2] = {true, true};

    for (size_t i = 0; i < CR_COUNT(files); i++) {
        char *file = cr_path_join(path, files[i]), have[BYTES + 1], want[BYTES];
        FILE *f = fopen(file, "rb");
        size_t n = f ? fread(have, 1, sizeof have, f) : 0;
        for (int life = 0; life < 2; life++) {
            fill(want, step, life, i);
            is_whole[life] = is_whole[life] && n == BYTES && memcmp(have, want, BYTES) == 0;
        }
        if (f) fclose(f);
        cr_free(file);
    }
    return is_whole[1] ? 1 : is_whole[0] ? 0 : -1;
}

/* Complete checkpoints; every folder with a final name has to be one. */
static int count(int *num_partial)
{
    DIR *d = opendir(dir);
    struct dirent *entry;
    int num = 0;

    *num_partial = 0;
    while ((entry = readdir(d))) {
        if (strncmp(entry->d_name, "checkpoint-", 11) != 0) continue;
        if (strstr(entry->d_name, ".tmp")) {
            ++*num_partial;
            continue;
        }
        char *path = cr_path_join(dir, entry->d_name);
        if (life_of(path, atoi(entry->d_name + 11)) < 0) fail_msg("%s is partial", path);
        num++;
        cr_free(path);
    }
    closedir(d);
    return num;
}

/* The step of the checkpoint that a resume takes, and the life that wrote it. */
static int find(int min, int *life)
{
    cr_config config = {.resume = (char[]){""},
                        .output_dir = dir,
                        .checkpoint_dir = dir,
                        .infer = {.task = CR_TASK_GENERATE}};
    char *path;
    int64_t first_step;
    cr_err err = {0};

    if (cr_checkpoint_find(&config, &path, &first_step, &err) != CR_OK) fail_msg("%s", err.msg);
    if (min >= 0 && !path) fail_msg("checkpoint-%d is lost", min);
    *life = path ? life_of(path, (int)first_step - 1) : 0;
    if (*life < 0) fail_msg("%s is not complete", path);
    cr_free(path);
    return (int)first_step - 1;
}

/* ---- histories ---- */

typedef struct history {
    const char *name;
    int num_earlier, first, last, keep; /* checkpoints of an earlier life; what this one saves */
    bool has_exchange;
} history;

static void earlier(const history *h)
{
    cr_err err = {0};

    if (cr_remove_tree(dir, &err) != CR_OK || cr_mkdirs(dir, &err) != CR_OK)
        fail_msg("%s", err.msg);
    shared->life = 0;
    for (int s = 1; s <= h->num_earlier; s++)
        if (save(s, 0, &err) != CR_OK) fail_msg("%s", err.msg);
    if (h->num_earlier) { /* gone back to the first one */
        char *link = cr_path_join(dir, "latest");
        unlink(link);
        assert_int_equal(symlink("checkpoint-1", link), 0);
        cr_free(link);
    }
    shared->committed = h->num_earlier ? 1 : 0;
    shared->life = 1;
}

/* Exit status 0: all was saved, 1: a failure with a sentence. */
static int live(const history *h, int k)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        cr_err err = {0};
        countdown = k;
        for (int s = h->first; s <= h->last && err.status == CR_OK; s++)
            cr_note(save(s, h->keep, &err));
        countdown = -1;
        _exit(err.status == CR_OK ? 0 : strstr(err.msg, strerror(ENOSPC)) ? 1 : 2);
    }
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void try_all(const history *h)
{
    for (int k = 0, code = 1; code != 0; k++) {
        int found, partial, num, life;
        cr_err err = {0};
        earlier(h);
        has_exchange = h->has_exchange;
        code = live(h, k);
        assert_true(k < 1000);
        if (code != 0 && code != (action == KILL ? -SIGKILL : 1))
            fail_msg("%s, call %d: ended with %d", h->name, k, code);
        found = find(shared->committed ? shared->committed : -1, &life);
        if (found == shared->committed && found >= h->first && life != 1)
            fail_msg("%s, call %d: checkpoint-%d is the old one", h->name, k, found);
        count(&partial);
        if (action == FULL) assert_int_equal(partial, 0);
        /* with names that cannot be exchanged one of the earlier life may be the only one */
        if (found >= 0 && h->has_exchange && found != shared->committed && found != shared->begun)
            fail_msg("%s, call %d: found %d after %d", h->name, k, found, shared->committed);
        cr_checkpoint_clean(dir);
        if (save(h->last + 1, h->keep, &err) != CR_OK) fail_msg("%s", err.msg);
        assert_int_equal(find(h->last + 1, &life), h->last + 1);
        num = count(&partial);
        assert_int_equal(partial, 0);
        if (num > h->keep) fail_msg("%s, call %d: %d are kept", h->name, k, num);
        if (code == 0)
            print_message("%s, %s: %d calls\n", h->name, action == KILL ? "kill" : "full", k);
    }
}

static const history histories[] = {{"in a row, one kept", 0, 1, 3, 1, true},
                                    {"in a row, two kept", 0, 1, 4, 2, true},
                                    {"over an earlier life", 3, 2, 3, 1, true},
                                    {"no exchange of names", 3, 2, 3, 2, false}};

static void c48_killed_at_every_call(void **state)
{
    (void)state;
    action = KILL;
    for (size_t i = 0; i < CR_COUNT(histories); i++)
        try_all(&histories[i]);
}

static void c48_disk_full_at_every_call(void **state)
{
    (void)state;
    action = FULL;
    for (size_t i = 0; i < CR_COUNT(histories); i++)
        try_all(&histories[i]);
}

/* What is not a checkpoint is refused with a sentence that names it. */
static void c51_refused(void **state)
{
    const history h = {"", 2, 0, 0, 0, true};
    char path[96], manifest[160];
    cr_config config = {.resume = path,
                        .output_dir = dir,
                        .checkpoint_dir = dir,
                        .infer = {.task = CR_TASK_GENERATE}};
    static const char *const texts[] = {"{}",
                                        "{\"step\":2,\"files\":{}}",
                                        "{\"step\":2",
                                        "",
                                        "{\"step\":7,\"files\":{\"x\":{}}}",
                                        "{\"step\":9223372036854775807,\"files\":{\"x\":{}}}",
                                        "{\"step\":2,\"files\":{\"state/../../x\":{}}}",
                                        "{\"step\":2,\"files\":{\"/dev/zero\":{}}}"};
    enum { TEXTS = CR_COUNT(texts) };
    char *found;
    int64_t first_step;
    cr_err err = {0};

    (void)state;
    earlier(&h);
    snprintf(path, sizeof path, "%s/checkpoint-2", dir);
    snprintf(manifest, sizeof manifest, "%s/state/actor_train.v", path); /* that nothing names */
    assert_int_equal(cr_file_write_atomic(manifest, "v", 1, &err), CR_OK);
    assert_int_equal(cr_checkpoint_find(&config, &found, &first_step, &err), CR_ECONFIG);
    assert_non_null(strstr(err.msg, "does not name state/actor_train.v, which is there"));
    unlink(manifest);
    snprintf(manifest, sizeof manifest, "%s/manifest.json", path);
    for (size_t i = 0; i < TEXTS + 3; i++) {
        cr_err ignored = {0};
        err = (cr_err){0};
        if (i < TEXTS)
            assert_int_equal(cr_file_write_atomic(manifest, texts[i], strlen(texts[i]), &ignored),
                             CR_OK);
        if (i == TEXTS) unlink(manifest);
        if (i == TEXTS + 1) assert_int_equal(cr_remove_tree(path, &ignored), CR_OK);
        if (i == TEXTS + 2) { /* one byte of a file */
            snprintf(path, sizeof path, "%s/checkpoint-1", dir);
            snprintf(manifest, sizeof manifest, "%s/%s", path, files[0]);
            int fd = open(manifest, O_WRONLY);
            assert_int_equal(pwrite(fd, "?", 1, 1234), 1);
            close(fd);
        }
        assert_int_equal(cr_checkpoint_find(&config, &found, &first_step, &err), CR_ECONFIG);
        assert_null(found);
        print_message("%s\n", err.msg);
        assert_non_null(strstr(err.msg, path));
        assert_non_null(strstr(err.msg, "resume_from_checkpoint"));
        if (i == 4) assert_non_null(strstr(err.msg, "is of step 7, its folder is checkpoint-2"));
        if (i == 6 || i == 7) assert_non_null(strstr(err.msg, "which is not inside of it"));
        if (i < TEXTS)
            assert_non_null(strstr(err.msg, "checkpoint-1)")); /* the one to take instead */
    }
}

/* An older checkpoint under the name of a newer one, and one file of it with a manifest that fits: refused. */
static void older_in_place(void **state)
{
    static const char place[] = "{\"step\":1}";
    const history h = {"", 2, 0, 0, 0, true};
    char first[96], second[96], file[160], hex[CR_DIGEST_TEXT];
    cr_buf text = {0};
    json_t *root;
    cr_config config = {.resume = second,
                        .output_dir = dir,
                        .checkpoint_dir = dir,
                        .infer = {.task = CR_TASK_GENERATE}};
    char *found;
    int64_t first_step, size;
    cr_err err = {0};

    (void)state;
    earlier(&h);
    snprintf(first, sizeof first, "%s/checkpoint-1", dir);
    snprintf(second, sizeof second, "%s/checkpoint-2", dir);
    snprintf(file, sizeof file, "%s/state/pipeline.json", second);
    assert_int_equal(cr_file_write_atomic(file, place, strlen(place), &err), CR_OK);
    assert_int_equal(cr_digest_file(file, hex, &size, &err), CR_OK);
    snprintf(file, sizeof file, "%s/manifest.json", second);
    assert_int_equal(cr_json_read_file(file, &root, &err), CR_OK);
    json_object_set_new(json_object_get(root, "files"), "state/pipeline.json",
                        json_pack("{s:I,s:s}", "size", (json_int_t)size, "sha256", hex));
    assert_int_equal(cr_json_add_value(&text, root, &err), CR_OK);
    assert_int_equal(cr_file_write_atomic(file, text.data, text.num_bytes, &err), CR_OK);
    json_decref(root);
    cr_buf_free(&text);
    assert_int_equal(cr_checkpoint_find(&config, &found, &first_step, &err), CR_ECONFIG);
    assert_non_null(strstr(err.msg, "state/pipeline.json is of step 1, "));
    assert_non_null(strstr(err.msg, "of step 2: files of two checkpoints are mixed"));
    assert_non_null(strstr(err.msg, "checkpoint-1)")); /* the one to take instead */
    err = (cr_err){0};
    assert_int_equal(cr_remove_tree(second, &err), CR_OK);
    assert_int_equal(rename(first, second), 0);
    assert_int_equal(cr_checkpoint_find(&config, &found, &first_step, &err), CR_ECONFIG);
    assert_non_null(strstr(err.msg, "is of step 1, its folder is checkpoint-2"));
}

/* Fewer are kept from the start of a run that goes on from `latest`. */
static void kept_at_the_start(void **state)
{
    const history h = {"", 2, 0, 0, 0, true};
    char *first = NULL, *second = NULL, *latest = NULL;

    (void)state;
    earlier(&h);
    first = cr_path_join(dir, "checkpoint-1");
    second = cr_path_join(dir, "checkpoint-2");
    latest = cr_path_join(dir, "latest");
    cr_checkpoint_prune(dir, latest, 0);
    cr_checkpoint_prune(dir, second, 1); /* `latest` is the first one */
    assert_true(cr_dir_exists(first) && cr_dir_exists(second));
    cr_checkpoint_prune(dir, latest, 1);
    assert_true(cr_dir_exists(first) && !cr_dir_exists(second));
    cr_free(first);
    cr_free(second);
    cr_free(latest);
}

/* checkpoint-STEP.tmp with one file, and what its writer says of it. */
static char *written_folder(int step, cr_written *w)
{
    char *folder, *path, data[BYTES];
    cr_err err = {0};

    assert_int_equal(cr_checkpoint_begin(dir, step, "host:0123456789abcdef", &folder, &err), CR_OK);
    fill(data, step, 0, 0);
    path = cr_path_join(folder, files[0]);
    assert_int_equal(cr_file_write_atomic(path, data, BYTES, &err), CR_OK);
    cr_free(path);
    *w = (cr_written){.name = (char *)(uintptr_t)files[0],
                      .num_bytes = BYTES,
                      .sum = cr_sum_bytes(0, data, BYTES)};
    return folder;
}

/* A checkpoint gets its name only if it holds what its writers say: else it is an error, and the one before it stays the newest. */
static void what_is_lacking(void **state)
{
    static const char *const why[] = {NULL, "bytes, the ranks have written", "does not hold",
                                      "is not there", "does not hold"};
    cr_written w;

    (void)state;
    for (int i = 0; i < (int)CR_COUNT(why); i++) {
        char *folder = written_folder(10 + i, &w);
        cr_err err = {0};
        if (i == 1) w.num_bytes += 2;
        if (i == 2) w.sum++;
        if (i == 3) w.name = (char *)(uintptr_t) "state/actor_train.m";
        if (i == 4) memset(w.hex, '0', 64);
        if (cr_checkpoint_finish(dir, folder, 10 + i, 0, &w, 1, 0, &err) != (i ? CR_EIO : CR_OK))
            fail_msg("case %d: %s", i, err.msg);
        if (i && (!strstr(err.msg, why[i]) || !strstr(err.msg, w.name)))
            fail_msg("case %d: %s", i, err.msg);
        assert_true(cr_dir_exists(folder) == (i > 0));
        cr_free(folder);
    }
    {
        char *latest = cr_path_join(dir, "latest"), *real = cr_checkpoint_real(latest);
        cr_err err = {0};
        assert_non_null(strstr(real, "/checkpoint-10"));
        assert_int_equal(cr_checkpoint_verify(real, &err), CR_OK); /* the mark is not in it */
        cr_free(latest);
        cr_free(real);
    }
}

/* What another host has written is seen late. */
static void what_comes_late(void **state)
{
    cr_written w;
    char *folder = written_folder(20, &w), *path = cr_path_join(folder, files[0]),
         *away = cr_path_join(dir, "away");
    cr_err err = {0};
    pid_t child;

    (void)state;
    assert_int_equal(rename(path, away), 0);
    child = fork();
    if (child == 0) {
        cr_sleep_s(0.3);
        _exit(rename(away, path) != 0);
    }
    if (cr_checkpoint_finish(dir, folder, 20, 0, &w, 1, 20, &err) != CR_OK) fail_msg("%s", err.msg);
    assert_int_equal(waitpid(child, NULL, 0), child);
    cr_free(folder);
    cr_free(path);
    cr_free(away);
}

static int begin(void **state)
{
    (void)state;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    strcpy(dir, "/dev/shm/croll-checkpoint-XXXXXX"); /* memory, if there is such a folder */
    if (shared != MAP_FAILED && mkdtemp(dir)) return 0;
    strcpy(dir, "/tmp/croll-checkpoint-XXXXXX");
    return shared == MAP_FAILED || !mkdtemp(dir) ? -1 : 0;
}

static int end(void **state)
{
    cr_err err = {0};

    (void)state;
    return cr_remove_tree(dir, &err) == CR_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(c48_killed_at_every_call),
                                       cmocka_unit_test(c48_disk_full_at_every_call),
                                       cmocka_unit_test(c51_refused),
                                       cmocka_unit_test(older_in_place),
                                       cmocka_unit_test(kept_at_the_start),
                                       cmocka_unit_test(what_is_lacking),
                                       cmocka_unit_test(what_comes_late)};

    cr_log_setup(CR_LOG_ERROR, NULL);
    return cmocka_run_group_tests(tests, begin, end);
}
