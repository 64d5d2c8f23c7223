/* gpus.c -- the GPUs of this machine (doctor.h): the driver, each GPU, products, pinned memory. */
#include "base/limits.h"
#include "base/rng.h"
#include "kernels/gpu.h"
#include "kernels/kernels.h"
#include "launch/doctor/doctor_impl.h"

#include <stdio.h>
#include <unistd.h>

/* bf16 numbers of 2^-15 to 2, either sign. Zeros, or numbers of one size, whose sums are exact, have the same bits in every order. */
static cr_status upload_numbers(cr_device *dev, cr_mem *mem, size_t num, cr_err *err)
{
    uint16_t *bits = CR_NEW_ARRAY(uint16_t, num);

    for (size_t i = 0; i < num; i++) {
        uint32_t word[4];
        cr_rng_philox(0, CR_RNG_INIT, 0, i, word);
        bits[i] = (uint16_t)((112 + word[1] % 16) << 7 | (word[0] & 0x807f));
    }
    cr_note(cr_upload(dev, mem, bits, num * sizeof *bits, err));
    cr_free(bits);
    return err->status;
}

/* Products on the first GPU, so that its library is looked at: with float32 results, too, whose last bits show another order of a sum. */
static cr_status try_products(cr_device *dev, cr_err *err)
{
    enum { SIDE = 512, NUM = SIDE * SIDE, BYTES = NUM * 2 };
    static const cr_dtype types[] = {CR_BF16, CR_F32};
    cr_mem *w = NULL, *x = NULL, *y = NULL;
    cr_weight weight = {.dtype = CR_BF16, .num_rows = SIDE, .num_cols = SIDE};

    if (cr_device_alloc(dev, BYTES, &w, err) == CR_OK &&
        upload_numbers(dev, w, NUM, err) == CR_OK &&
        cr_device_alloc(dev, BYTES, &x, err) == CR_OK && cr_zero(dev, x, BYTES, err) == CR_OK &&
        cr_device_alloc(dev, NUM * 4, &y, err) == CR_OK) {
        weight.data = w;
        for (size_t i = 0; i < CR_COUNT(types) && err->status == CR_OK; i++)
            cr_note(
                cr_linear(dev, &(cr_linear_args){x, &weight, NULL, NULL, y, types[i], SIDE}, err));
        if (err->status == CR_OK) cr_note(cr_device_sync(dev, err));
    }
    cr_device_free(dev, w, BYTES);
    cr_device_free(dev, x, BYTES);
    cr_device_free(dev, y, NUM * 4);
    return err->status;
}

/* What uploads and offloaded states use. */
static void check_pinned(cr_doctor *r)
{
    enum { MIB = 256 };
    const size_t bytes = (size_t)MIB << 20;
    double began_s = cr_now_s();
    char found[600];
    cr_device *dev = NULL;
    cr_mem *mem = NULL;
    cr_err err = {0};

    if (cr_device_open("cuda", 1, &dev, &err) == CR_OK) {
        began_s = cr_now_s();
        cr_note(cr_host_alloc(dev, bytes, &mem, &err));
    }
    if (err.status)
        snprintf(found, sizeof found, "%s", err.msg);
    else
        snprintf(found, sizeof found, "%d MiB pinned in %.0f ms, %.1f GB of the host are free", MIB,
                 (cr_now_s() - began_s) * 1e3, (double)cr_memory_left() / 1e9);
    if (mem) cr_host_free(dev, mem, bytes);
    if (dev) cr_device_close(dev);
    cr_doctor_say(
        r, "pinned memory", err.status ? CR_FINDING_NOTE : CR_FINDING_FINE, found,
        "roles that take turns on a GPU offload 12 bytes a trained parameter into it (croll run "
        "compares)");
}

static void check_products(cr_doctor *r)
{
    cr_device *dev;
    cr_gpu_products p = {0};
    char found[600] = "croll's own kernels (CROLL_CUDA_PRODUCTS)";
    cr_err err = {0};

    if (cr_device_open("cuda", 1, &dev, &err) == CR_OK) {
        if (try_products(dev, &err) == CR_OK) p = cr_gpu_get_products(dev);
        cr_device_close(dev);
    }
    if (err.status)
        snprintf(found, sizeof found, "%s", err.msg);
    else if (p.refusal[0])
        snprintf(found, sizeof found, "%d of %d sizes of weights (%s)", p.num_taken, p.num_sizes,
                 p.refusal);
    else if (p.num_sizes)
        snprintf(found, sizeof found,
                 "cuBLASLt's give a row the same bits in any company; few rows of %d of %d sizes "
                 "have a kernel of their own, and %d algorithms of cuBLASLt are for few rows",
                 p.num_few, p.num_sizes, p.num_fitted);
    cr_doctor_say(r, "products", err.status || p.refusal[0] ? CR_FINDING_NOTE : CR_FINDING_FINE,
                  found,
                  "cuBLASLt multiplies where that is so for the sizes at hand, croll's own kernels "
                  "elsewhere");
}

void cri_doctor_gpus(cr_doctor *r)
{
    cr_gpu_report *g = CR_NEW(cr_gpu_report);
    cr_err err = {0};
    char found[256], meaning[256];

    if (cr_gpu_probe(g, &err) != CR_OK)
        cr_doctor_say(r, "gpu", CR_FINDING_NOTE,
                      access("/dev/nvidiactl", F_OK) == 0 ? "there is an NVIDIA driver" : "none",
                      err.msg);
    if (g->runtime[0]) {
        snprintf(found, sizeof found, "CUDA %s, cuBLAS %s, NCCL %s, driver for CUDA %s", g->runtime,
                 g->cublas, g->nccl, g->driver[0] ? g->driver : "absent");
        cr_doctor_say(
            r, "cuda", g->num_gpus ? CR_FINDING_FINE : CR_FINDING_NOTE, found,
            "what this build was linked with; the driver has to be as new as the runtime");
    }
    for (int i = 0; i < g->num_listed; i++) {
        const cr_gpu *gpu = &g->gpu[i];
        snprintf(found, sizeof found, "%d: %s, compute capability %d.%d, %.1f GB, %.1f GB free", i,
                 gpu->name, gpu->capability_major, gpu->capability_minor,
                 (double)gpu->memory_bytes / 1e9, (double)gpu->free_bytes / 1e9);
        if (gpu->fault[0])
            snprintf(meaning, sizeof meaning, "a kernel of this build does not run on it: %s",
                     gpu->fault);
        else
            snprintf(meaning, sizeof meaning,
                     "code of this build runs on it: device: cuda of a run's file uses it "
                     "(docs/cuda.md)");
        cr_doctor_say(r, "gpu", gpu->fault[0] ? CR_FINDING_NOTE : CR_FINDING_FINE, found, meaning);
    }
    if (g->num_listed > 0 && !g->gpu[0].fault[0]) {
        check_products(r);
        check_pinned(r);
    }
    cr_free(g);
}
