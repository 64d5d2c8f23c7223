/* train.c -- tokens per second and memory of training steps under fsdp2_train: `scripts/mpi RANKS
 * bench_train MODEL [fp32|bf16] [rows] [tokens a row] [steps] [recompute] [stored|random] [all|norm|RANK]`, defaults fp32 8 256 5 0 stored all, on
 * the device of CROLL_DEVICE; random: MODEL has a config.json only, or its weights are not read. What is trained: all; LoRA of all Linears of this
 * RANK; or the first norm alone, whose gradient needs the same passes over a frozen base as LoRA's without adapters. One JSON line
 * as peers' train_fsdp2.py: forward, backward, clip and AdamW on random ids, the first step not counted;
 * tokens_per_s is of all ranks and the median step, cpu_s the least CPU seconds of a step on rank 0, gflop_per_s what the devices counted in it (99 % are products);
 * memory in MB a rank; gather_wait, reduce_wait and other_wait are shares of the counted steps that ranks spent waiting
 * for others, of the rank that waited most.
 */
#include "base/limits.h"
#include "mesh/collectives.h"
#include "mesh/flight.h"
#include "strategies/strategies.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct setup {
    const char *folder, *trained;
    bool is_bf16, should_recompute, is_random;
    int64_t rows, length;
    int steps;
} setup;

/* Mean cross entropy over the labels of all ranks. */
static cr_status mean_loss(void *ctx, const cr_outputs *out, size_t num, const cr_outputs *grad,
                           cr_err *err)
{
    const float *log_prob = out->of[CR_LOG_PROB];
    float *grad_log_prob = grad->of[CR_LOG_PROB];
    double *loss = ctx, all = loss[1];

    (void)err;
    for (size_t i = 0; i < num; i++) {
        loss[0] -= (double)log_prob[i] / all;
        grad_log_prob[i] = (float)(-1 / all);
    }
    return CR_OK;
}

/* Seconds that this rank has waited so far: in gathers, reduce-scatters, and the small collectives. */
static void get_waits(const cr_world *world, double *out)
{
    out[0] = cr_flight_get_count(world, CR_COLL_ALL_GATHER).waited_s;
    out[1] = cr_flight_get_count(world, CR_COLL_REDUCE_SCATTER).waited_s;
    out[2] = cr_flight_get_count(world, CR_COLL_ALL_REDUCE).waited_s;
}

static cr_status open_model(const setup *s, cr_model **out, cr_err *err)
{
    bool is_norm = strcmp(s->trained, "norm") == 0,
         has_adapters = !is_norm && strcmp(s->trained, "all") != 0;
    cr_model_options options = {0};
    cr_model *model;

    if (has_adapters) {
        options.adapters.target = "all-linear";
        options.adapters.rank = atoll(s->trained);
        options.adapters.alpha = 2 * (double)options.adapters.rank;
    }
    CR_TRY(cr_model_open_with(s->folder, &options, out, err));
    model = *out;
    for (size_t i = 0; is_norm && i < model->num_params; i++)
        model->params[i]->is_trainable =
            strcmp(model->params[i]->name, "model.layers.0.input_layernorm.weight") == 0;
    return CR_OK;
}

static cr_status measure(const setup *s, cr_world *world, cr_err *err)
{
    int num = cr_world_num_ranks(world), *ranks = CR_NEW_ARRAY(int, num);
    int64_t tokens = s->rows * s->length;
    int32_t *ids = CR_NEW_ARRAY(int32_t, 3 * tokens), *cu = CR_NEW_ARRAY(int32_t, s->rows + 1);
    double *times = CR_NEW_ARRAY(double, s->steps + 1);
    cr_fsdp_args args = {.is_train = true,
                         .param_dtype = s->is_bf16 ? CR_BF16 : CR_F32,
                         .reduce_dtype = CR_REDUCE_F32,
                         .should_recompute = s->should_recompute,
                         .source = s->is_random ? NULL : s->folder,
                         .seed = 1,
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .max_grad_norm = 1};
    cr_batch batch = {.ids = ids,
                      .positions = ids + tokens,
                      .labels = ids + 2 * tokens,
                      .cu_seqlens = cu,
                      .num_tokens = tokens,
                      .num_seqs = s->rows};
    double loss[2] = {0, (double)(num * s->rows * (s->length - 1))}, before[3], wait[3], sum = 0,
           work = 0, cpu_s = 1e30;
    cr_mesh_shape shape;
    cr_update update = {0};
    cr_device *dev;
    cr_model *model;
    cr_mesh *mesh;
    cr_fsdp *f;

    for (int r = 0; r < num; r++)
        ranks[r] = r;
    CR_TRY(cr_device_open(cr_device_default(), 1, &dev, err));
    CR_TRY(open_model(s, &model, err));
    CR_TRY(cr_mesh_shape_init(&shape, num, 0, 1, 1, 0, err));
    CR_TRY(cr_mesh_create(world, dev, "bench", ranks, &shape, &mesh, err));
    CR_TRY(cr_fsdp_create(model, dev, mesh, &args, &f, err));
    for (int64_t t = 0; t < tokens; t++) {
        int64_t at = t % s->length;
        ids[t] = (int32_t)((t * 7919 + cr_world_rank(world) * 104729) % model->config.vocab_size);
        if (ids[t] ==
            model->config.pad_id) /* its row is 0 at first: 1 / sqrt(eps) a layer, inf after 30 */
            ids[t] = (int32_t)((ids[t] + 1) % model->config.vocab_size);
        ids[tokens + t] = (int32_t)at;
        ids[2 * tokens + t - (at > 0)] = at > 0 ? ids[t] : -1;
        if (at == s->length - 1) ids[2 * tokens + t] = -1;
    }
    for (int64_t r = 0; r <= s->rows; r++)
        cu[r] = (int32_t)(r * s->length);
    for (int i = 0; i <= s->steps; i++) {
        double start = cr_now_s(), flops = cr_device_get_stats(dev).flops,
               cpu = (double)clock() / CLOCKS_PER_SEC;
        if (i == 1) get_waits(world, before);
        loss[0] = 0;
        CR_TRY(cr_fsdp_backward(f, &batch, mean_loss, loss, err));
        CR_TRY(cr_fsdp_update(f, 1e-3, &update, err));
        for (int stream = 0; stream < CR_NUM_STREAMS; stream++)
            CR_TRY(cr_device_sync(cr_device_stream(dev, (cr_stream)stream), err));
        times[i] = cr_now_s() - start;
        cpu = (double)clock() / CLOCKS_PER_SEC - cpu;
        if (i > 0 && cpu < cpu_s) cpu_s = cpu;
        work = cr_device_get_stats(dev).flops - flops;
    }
    get_waits(world, wait);
    for (int i = 1; i <= s->steps; i++)
        sum += times[i];
    for (int k = 0; k < 3; k++)
        wait[k] = (wait[k] - before[k]) / sum;
    CR_TRY(cr_all_reduce_f64(mesh->group[CR_AXIS_ALL], "waits", CR_OP_MAX, wait, 3, err));
    qsort(times + 1, (size_t)s->steps, sizeof *times, cr_by_double);
    if (cr_world_rank(world) == 0)
        printf("{\"peer\":\"croll\",\"device\":\"%s\",\"model\":\"%s\",\"trained\":\"%s\","
               "\"world\":%d,\"dtype\":\"%s\","
               "\"recompute\":%d,"
               "\"tokens_per_s\":%.6g,\"tokens_per_s_best\":%.6g,\"gflop_per_s\":%.6g,\"step_s\":%."
               "6g,\"cpu_s\":%.6g,"
               "\"last_share_of_"
               "loss\":%.4f,"
               "\"grad_norm\":%.5f,\"peak_rss_mb\":%.0f,\"pss_mb\":%.0f,\"gather_wait\":%.4f,"
               "\"reduce_wait\":%.4f,\"other_wait\":%.4f}\n",
               cr_device_name(dev), s->folder, s->trained, num, s->is_bf16 ? "bf16" : "fp32",
               s->should_recompute, (double)(num * tokens) / times[1 + s->steps / 2],
               (double)(num * tokens) / times[1], num * work * 1e-9 / times[1 + s->steps / 2],
               times[1 + s->steps / 2], cpu_s, loss[0], update.grad_norm,
               (double)cr_find_number("/proc/self/status", "VmHWM:") / 1024,
               (double)cr_find_number("/proc/self/smaps_rollup", "Pss:") / 1024, wait[0], wait[1],
               wait[2]);
    cr_fsdp_destroy(f);
    cr_mesh_destroy(mesh);
    cr_model_free(model);
    cr_device_close(dev);
    cr_free(ranks);
    cr_free(ids);
    cr_free(cu);
    cr_free(times);
    return CR_OK;
}

int main(int argc, char **argv)
{
    cr_world_args args = {.kind = cr_world_kind_here()};
    setup s = {.folder = argc > 1 ? argv[1] : "",
               .is_bf16 = argc > 2 && strcmp(argv[2], "bf16") == 0,
               .rows = argc > 3 ? atoll(argv[3]) : 8,
               .length = argc > 4 ? atoll(argv[4]) : 256,
               .steps = argc > 5 ? atoi(argv[5]) : 5,
               .should_recompute = argc > 6 && atoi(argv[6]) > 0,
               .is_random = argc > 7 && strcmp(argv[7], "random") == 0,
               .trained = argc > 8 ? argv[8] : "all"};
    cr_world *world;
    cr_err err = {0};

    if (cr_world_open(&args, &world, &err) != CR_OK || measure(&s, world, &err) != CR_OK) {
        fprintf(stderr, "bench_train: %s\n", err.msg);
        return 1;
    }
    cr_world_close(world);
    return 0;
}
