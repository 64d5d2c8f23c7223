/* schedule.c -- Hugging Face's learning-rate schedules: a factor on the rate, k updates in. */
#include "rl/rl.h"

#include <math.h>

const char *const cr_schedule_names[CR_NUM_SCHEDULES] = {
    "linear",      "cosine",   "cosine_with_restarts",
    "polynomial",  "constant", "constant_with_warmup",
    "inverse_sqrt"};

double cr_learning_rate(cr_schedule kind, double lr, int64_t warmup, int64_t steps, int64_t k)
{
    double w = (double)warmup, T = (double)steps, t = (double)k, q = (t - w) / fmax(1, T - w),
           last = 1e-7;

    if (kind == CR_LR_CONSTANT) return lr;
    if (k < warmup) return lr * t / fmax(1, w);
    switch (kind) {
    case CR_LR_LINEAR:
        return lr * fmax(0, (T - t) / fmax(1, T - w));
    case CR_LR_COSINE:
        return lr * fmax(0, 0.5 * (1 + cos(M_PI * q)));
    case CR_LR_COSINE_WITH_RESTARTS:
        return q >= 1 ? 0 : lr * fmax(0, 0.5 * (1 + cos(M_PI * fmod(q, 1))));
    case CR_LR_POLYNOMIAL:
        return k > steps ? last : (lr - last) * (1 - q) + last;
    case CR_LR_INVERSE_SQRT: {
        double s = warmup ? w : 10000;
        return lr / sqrt((t + s - w) / s);
    }
    case CR_LR_CONSTANT:
    case CR_LR_CONSTANT_WITH_WARMUP:
    case CR_NUM_SCHEDULES:
        break;
    }
    return lr;
}
