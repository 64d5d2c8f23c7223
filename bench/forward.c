/* forward.c -- milliseconds of a bare forward with log-probs of one prompt: `bench_forward MODEL [tokens] [fp32|bf16]
 * [threads] [repeats]`, defaults 128 fp32 2 2000, on the device of CROLL_DEVICE. What `croll serve` adds to it for one client is the difference to the case
 * "one" of bench/serve.py.
 */
#include "models/pass.h"
#include "models/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print(const char *folder, cr_dtype dtype, int64_t tokens, int threads, double *ms,
                  size_t num)
{
    qsort(ms, num, sizeof *ms, cr_by_double);
    printf("{\"case\": \"forward %s %s\", \"tokens\": %lld, \"threads\": %d, \"p50_ms\": %.4f, "
           "\"p99_ms\": %.4f}\n",
           folder, cr_dtype_name(dtype), (long long)tokens, threads, ms[num / 2],
           ms[num * 99 / 100]);
}

static cr_status measure(const char *folder, int64_t tokens, cr_dtype dtype, int threads,
                         size_t repeats, cr_err *err)
{
    int32_t *ids = CR_NEW_ARRAY(int32_t, tokens), *positions = CR_NEW_ARRAY(int32_t, tokens);
    int32_t *labels = CR_NEW_ARRAY(int32_t, tokens), cu_seqlens[2] = {0, (int32_t)tokens};
    float *log_probs = CR_NEW_ARRAY(float, tokens);
    double *ms = CR_NEW_ARRAY(double, repeats);
    cr_pass_state *state = cr_pass_state_create();
    cr_full_weights full;
    cr_model *model;
    cr_device *dev;
    cr_batch batch = {ids, positions, labels, cu_seqlens, tokens, 1};
    cr_pass pass = {.state = state, .dtype = dtype, .batch = &batch};

    CR_TRY(cr_device_open(cr_device_default(), threads, &dev, err));
    CR_TRY(cr_model_open(folder, &model, err));
    CR_TRY(cr_full_weights_load(&full, model, dev, dtype, folder, err));
    for (int64_t t = 0; t < tokens; t++) {
        ids[t] = labels[t] = (int32_t)((3 + t * 131) % model->config.vocab_size);
        positions[t] = (int32_t)t;
    }
    labels[tokens - 1] = -1;
    pass.dev = dev;
    pass.scratch = cr_stack_create(dev);
    for (size_t i = 0; i < repeats + 10; i++) {
        double begin_s = cr_now_s();
        CR_TRY(cr_model_forward(model, &pass, &(cr_outputs){{log_probs}}, err));
        if (i >= 10) ms[i - 10] = 1e3 * (cr_now_s() - begin_s);
    }
    print(folder, dtype, tokens, threads, ms, repeats);
    cr_stack_destroy(pass.scratch);
    cr_full_weights_fini(&full);
    cr_model_free(model);
    cr_device_close(dev);
    cr_pass_state_destroy(state);
    cr_free(ids), cr_free(positions), cr_free(labels), cr_free(log_probs), cr_free(ms);
    return CR_OK;
}

int main(int argc, char **argv)
{
    cr_err err = {0};
    int64_t tokens = argc > 2 ? atoll(argv[2]) : 128;
    cr_dtype dtype = argc > 3 && strcmp(argv[3], "bf16") == 0 ? CR_BF16 : CR_F32;
    int threads = argc > 4 ? atoi(argv[4]) : 2, repeats = argc > 5 ? atoi(argv[5]) : 2000;

    if (argc < 2 || tokens < 1 || repeats < 1) {
        fprintf(stderr, "usage: bench_forward MODEL [tokens] [fp32|bf16] [threads] [repeats]\n");
        return 2;
    }
    if (measure(argv[1], tokens, dtype, threads, (size_t)repeats, &err) == CR_OK) return 0;
    fprintf(stderr, "bench_forward: %s\n", err.msg);
    return 1;
}
