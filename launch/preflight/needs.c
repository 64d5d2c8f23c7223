/* needs.c -- see needs.h. Room in /dev/shm and on disk are lower bounds: with less a run cannot go on, with more it may
 * still need more than there is, which it says itself when it makes a window or saves. */
#include "launch/preflight/needs.h"
#include "actors/strategy_args.h"
#include "configs/worker.h"
#include "models/models.h"
#include "strategies/units.h"

#include <stdlib.h>
#include <string.h>

enum {
    MIN_FILES = 56, /* measured: 16 ranks run with 112, not 64 */
    FILES_OF_A_RANK = 4,
    MPI_SHM_BYTES = 4500000, /* measured: of Open MPI for each rank */
    GATHERED_UNITS = 2,      /* at a time, shared by the ranks of a host; of GPUs in their memory */
    SAVED_BYTES_OF_ELEM = 14, /* master and two moments in float32, the weight in 16 bits */
};

int cr_needs_files(int num_ranks)
{
    return MIN_FILES + FILES_OF_A_RANK * num_ranks;
}

/* Each MODEL folder once. */
static void add_model(cr_needs *needs, const char *path)
{
    for (size_t i = 0; i < needs->all.num_models; i++)
        if (strcmp(needs->model[i], path) == 0) return;
    needs->model[needs->all.num_models++] = path;
}

/* Elements of the largest unit so far, and of all that are trained; a model that cannot be read is found elsewhere. */
static void count_elems(const cr_worker_config *w, int64_t *largest, int64_t *trained)
{
    const cr_model_options options = cr_model_options_of(w, true);
    cr_wrap_policy policy = cr_wrap_policy_of(w);
    cr_model *model = NULL;
    cr_units units = {0};
    cr_err ignored = {0};

    if (cr_model_open_with(w->model_path, &options, &model, &ignored) == CR_OK &&
        cr_model_prepare(model, w, true, &ignored) == CR_OK && w->ep_size <= 1 &&
        cr_units_build(model, &policy, 1, &units, &ignored) == CR_OK) {
        for (size_t i = 0; i < units.num; i++)
            *largest = cr_max64(*largest, units.unit[i].trained.num_elems);
        *trained += units.num_trained;
    }
    cr_units_free(&units);
    cr_model_free(model);
}

static int64_t max_ranks_of_a_host(const cr_hosts *hosts)
{
    int *num = CR_NEW_ARRAY(int, hosts->num);
    int64_t max = 0;

    for (int i = 0; i < hosts->num_ranks; i++)
        max = cr_max64(max, ++num[hosts->host_of[i]]);
    cr_free(num);
    return max;
}

void cr_needs_init(cr_needs *needs, const cr_config *config, const cr_hosts *hosts,
                   const char *network, bool has_gpus)
{
    cr_layout layout;
    int64_t largest = 0, trained = 0, num_local;

    *needs = (cr_needs){.all = {.network = network, .has_gpus = has_gpus}};
    needs->all.model = needs->model;
    if (!config) return;
    cr_layout_init(&layout, config);
    for (int r = 0; r < CR_NUM_ROLES; r++) {
        const cr_worker_config *w = layout.role[r].worker;
        if (!w) continue;
        if (w->model_path) add_model(needs, w->model_path);
        if (cr_task_trains(w->task)) count_elems(w, &largest, &trained);
    }
    num_local = max_ranks_of_a_host(hosts);
    needs->all.output_dir = config->output_dir;
    needs->all.num_files = cr_needs_files(layout.num_ranks);
    needs->all.shm_bytes = num_local * MPI_SHM_BYTES;
    if (num_local > 1 && !has_gpus && !getenv("CROLL_TRANSPORT"))
        needs->all.shm_bytes += GATHERED_UNITS * 2 * largest;
    needs->all.disk_bytes = SAVED_BYTES_OF_ELEM * trained;
    needs->all.is_gathered = config->checkpoint_hosts == CR_FILES_GATHER;
}
