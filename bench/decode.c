/* decode.c -- tokens per second of the generation engine: `bench_decode MODEL [streams,..] [new tokens]
 * [fp32|bf16] [temperature] [threads] [repeats] [none|raw|sampled|roll] [stored|random] [RANK]`, defaults 1 256 fp32 0 1 5 none stored 0,
 * on the device of CROLL_DEVICE; RANK: of adapters (LoRA) of all Linears, with their first values, 0: none; random: MODEL has a config.json only, or its weights are not read. The filters: top_k 50,
 * top_p 0.9 and repetition penalty 1.1, with log-probs of the model or of what was sampled; roll: top_k 100 and top_p 0.99, as in ROLL's files. One JSON line a number of streams, as those of the peers: 16 prompt tokens a
 * stream, ends held back, the first run not counted. cpu_s is that of the best run.
 */
#include "engine/engine.h"
#include "models/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double cpu_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct times {
    double wall, cpu, prefill; /* seconds; prefill: wall of the steps with prompt rows */
} times;

static cr_status run_once(cr_engine *e, const cr_generating *how, int64_t streams, int64_t vocab,
                          times *out, cr_err *err)
{
    double wall = cr_now_s(), cpu = cpu_s();
    cr_generated g;

    for (int64_t s = 0; s < streams; s++) {
        int32_t prompt[16];
        uint64_t id = (uint64_t)s;
        for (int t = 0; t < 16; t++)
            prompt[t] = (int32_t)(t == 0 ? 1 : (s * 131 + t * 17) % vocab);
        CR_TRY(cr_engine_submit(e, prompt, 16, &id, 1, how, NULL, err));
    }
    CR_TRY(cr_engine_step(e, err));
    out->prefill = cr_now_s() - wall;
    while (!cr_engine_is_idle(e))
        CR_TRY(cr_engine_step(e, err));
    while (cr_engine_poll(e, &g))
        cr_generated_free(&g);
    out->wall = cr_now_s() - wall;
    out->cpu = cpu_s() - cpu;
    return CR_OK;
}

typedef struct setup {
    const char *folder, *filters;
    int64_t num_new, rank;
    cr_dtype dtype;
    float temperature;
    int threads, repeats;
    bool is_random;
} setup;

static cr_status measure(const setup *s, cr_model *model, cr_device *dev, int64_t streams,
                         cr_err *err)
{
    cr_engine *e;
    times best = {.wall = 1e30};
    double *walls = CR_NEW_ARRAY(double, s->repeats);
    bool has_filters = strcmp(s->filters, "none") != 0, is_roll = strcmp(s->filters, "roll") == 0;
    cr_generating how = {.log_probs = strcmp(s->filters, "sampled") == 0 ? CR_LOG_PROBS_SAMPLED
                                                                         : CR_LOG_PROBS_RAW,
                         .temperature = s->temperature,
                         .top_k = is_roll       ? 100
                                  : has_filters ? 50
                                                : 0,
                         .top_p = is_roll       ? 0.99f
                                  : has_filters ? 0.9f
                                                : 1,
                         .repetition_penalty = has_filters && !is_roll ? 1.1f : 1,
                         .max_new_tokens = s->num_new,
                         .seed = 1};
    cr_engine_limits limits = {
        .max_running = streams, .max_model_len = s->num_new + 16, .max_rows = 16 * streams};

    CR_TRY(cr_engine_create(model, dev, &limits, &e, err));
    CR_TRY(cr_engine_set_weights(e, err));
    for (int r = 0; r <= s->repeats; r++) {
        times now;
        CR_TRY(run_once(e, &how, streams, model->config.vocab_size, &now, err));
        if (r && now.wall < best.wall) best = now;
        if (r) walls[r - 1] = now.wall;
    }
    qsort(walls, (size_t)s->repeats, sizeof *walls, cr_by_double);
    printf(
        "{\"case\": \"%s %s b%lld\", \"rank\": %lld, \"streams\": %lld, \"temperature\": %g, "
        "\"filters\": \"%s\", "
        "\"new\": %lld, \"threads\": %d, \"tokens_per_s\": %.6g, \"tokens_per_s_median\": %.6g, "
        "\"decode_tokens_per_s\": %.6g, \"tokens_per_cpu_s\": %.6g, \"wall_s\": %.4f, \"cpu_s\": "
        "%.4f}\n",
        s->folder, cr_dtype_name(s->dtype), (long long)streams, (long long)s->rank,
        (long long)streams, (double)s->temperature, s->filters, (long long)s->num_new, s->threads,
        (double)(streams * s->num_new) / best.wall,
        (double)(streams * s->num_new) / walls[s->repeats / 2],
        (double)(streams * (s->num_new - 1)) / (best.wall - best.prefill),
        (double)(streams * s->num_new) / best.cpu, best.wall, best.cpu);
    fflush(stdout);
    cr_engine_destroy(e);
    cr_free(walls);
    return CR_OK;
}

static cr_status measure_all(const setup *s, const char *streams, cr_err *err)
{
    cr_device *dev;
    cr_model *model;
    cr_full_weights full;
    cr_model_options options = {0};
    char *end = (char *)(uintptr_t)streams;

    CR_TRY(cr_device_open(cr_device_default(), s->threads, &dev, err));
    if (s->rank)
        options.adapters = (cr_adapter_options){
            .target = "all-linear", .rank = s->rank, .alpha = 2 * (double)s->rank};
    CR_TRY(cr_model_open_with(s->folder, &options, &model, err));
    model->config.num_eos = 0;
    if (s->is_random)
        CR_TRY(cr_full_weights_init(&full, model, dev, s->dtype, NULL, 1, err));
    else
        CR_TRY(cr_full_weights_load(&full, model, dev, s->dtype, s->folder, err));
    do {
        int64_t num = strtoll(end, &end, 10);
        if (num < 1) return cr_fail(err, CR_EUSAGE, "\"%s\" are no numbers of streams", streams);
        CR_TRY(measure(s, model, dev, num, err));
    } while (*end++ == ',');
    cr_full_weights_fini(&full);
    cr_model_free(model);
    cr_device_close(dev);
    return CR_OK;
}

int main(int argc, char **argv)
{
    cr_err err = {0};
    setup s = {.folder = argc > 1 ? argv[1] : "",
               .num_new = argc > 3 ? atoll(argv[3]) : 256,
               .dtype = argc > 4 && strcmp(argv[4], "bf16") == 0 ? CR_BF16 : CR_F32,
               .temperature = argc > 5 ? (float)atof(argv[5]) : 0,
               .threads = argc > 6 ? atoi(argv[6]) : 1,
               .repeats = argc > 7 ? atoi(argv[7]) : 5,
               .filters = argc > 8 ? argv[8] : "none",
               .is_random = argc > 9 && strcmp(argv[9], "random") == 0,
               .rank = argc > 10 ? atoll(argv[10]) : 0};

    if (argc < 2 || s.repeats < 1) {
        fprintf(stderr,
                "usage: bench_decode MODEL [streams,..] [new] [dtype] [temperature] [threads] "
                "[repeats] [none|raw|sampled|roll] [stored|random] [RANK]\n");
        return 2;
    }
    if (measure_all(&s, argc > 2 ? argv[2] : "1", &err) == CR_OK) return 0;
    fprintf(stderr, "bench_decode: %s\n", err.msg);
    return 1;
}
