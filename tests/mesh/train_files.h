/* train_files.h -- comparing what trainings wrote; the world of a test (see train.h). */
#ifndef TRAIN_FILES_H
#define TRAIN_FILES_H

#include "tests/mesh/train_data.h"

static char *path_of(const char *name)
{
    return cr_asprintf("%s/%s", folder, name);
}

/* ---- comparing (rank 0) ---- */

static inline cr_buf read_state(const char *name, const char *file)
{
    char *path = cr_asprintf("%s/%s/%s", folder, name, file);
    cr_buf data = {0};

    OK(cr_file_read(path, &data, &err));
    cr_free(path);
    return data;
}

static inline bool is_same(const char *a, const char *b, const char *file)
{
    cr_buf x = read_state(a, file), y = read_state(b, file);
    bool is = x.num_bytes == y.num_bytes && memcmp(x.data, y.data, x.num_bytes) == 0;

    cr_buf_free(&x);
    cr_buf_free(&y);
    return is;
}

static inline void same_bytes(const char *a, const char *b)
{
    static const char *const files[] = {"state/actor_train.master", "state/actor_train.m",
                                        "state/actor_train.v", "actor_train/model.safetensors"};

    for (size_t i = 0; i < CR_COUNT(files) && me == 0; i++)
        CR_CHECK(is_same(a, b, files[i]), "%s of %s and of %s differ", files[i], a, b);
}

/* |a - b| / |b| */
static inline double distance(const float *a, const float *b, size_t num)
{
    double far = 0, size = 0;

    for (size_t i = 0; i < num; i++) {
        far += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(far / size);
}

/* Masters of a and b against the update that b made from `start`. */
static inline double update_distance(const char *a, const char *b, const char *start)
{
    cr_buf x = read_state(a, "state/actor_train.master"),
           y = read_state(b, "state/actor_train.master"),
           z = read_state(start, "state/actor_train.master");
    size_t num = x.num_bytes / sizeof(float);
    float *px = (float *)(void *)x.data, *py = (float *)(void *)y.data,
          *pz = (float *)(void *)z.data;
    double d;

    CR_CHECK(x.num_bytes == y.num_bytes && y.num_bytes == z.num_bytes, "sizes");
    for (size_t i = 0; i < num; i++)
        px[i] -= pz[i], py[i] -= pz[i];
    d = distance(px, py, num);
    cr_buf_free(&x);
    cr_buf_free(&y);
    cr_buf_free(&z);
    return d;
}

static inline void make_folder(void)
{
    const char *shared = getenv("CROLL_TESTS_FOLDER"); /* one that all hosts have */
    char *config = NULL;

    snprintf(folder, sizeof folder, "%s/croll-strategies-XXXXXX", shared ? shared : "/tmp");
    if (me == 0) CR_CHECK(mkdtemp(folder), "mkdtemp");
    OK(cr_broadcast(everyone, "folder", 0, folder, sizeof folder, &err));
    config = path_of("config.json");
    if (me == 0) OK(cr_file_write_atomic(config, "{\"torch_dtype\": \"float32\"}", 26, &err));
    cr_free(config);
    OK(cr_barrier(everyone, "folder", &err));
}

static inline void open_world(void)
{
    cr_world_args args = {.kind = cr_world_kind_here(), .deadline_s = 60};
    int ranks[RANKS] = {0, 1, 2, 3};

    OK(cr_world_open(&args, &world, &err));
    me = cr_world_rank(world);
    CR_CHECK(cr_world_num_ranks(world) == RANKS, "needs %d ranks", RANKS);
    OK(cr_group_create(world, NULL, "everyone", ranks, RANKS, &everyone, &err));
    make_folder();
}

static inline void close_world(void)
{
    OK(cr_barrier(everyone, "end", &err));
    if (me == 0) OK(cr_remove_tree(folder, &err));
    if (me == 0) printf("ok\n");
    cr_group_destroy(everyone);
    cr_world_close(world);
}

/* Gradients are sums of about 60 rows; in another order they differ by at most sqrt(60) ulp = 5e-7 of
 * their size (measured 1.3e-7). AdamW divides small gradients by themselves, so an update of 4 steps
 * differs by more (measured 1.5e-6). */
static const double grad_tol = 5e-7, update_tol = 1e-5;

#endif
