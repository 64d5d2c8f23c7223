/* schedule.c -- Hugging Face's learning-rate schedules: a factor on the rate, k updates in. */
#include "rl/rl.h"

#include <math.h>

const char *const cr_schedule_names[CR_NUM_SCHEDULES] = {
    "linear",      "cosine",   "cosine_with_restarts",
    "polynomial",  "constant", "constant_with_warmup",
    "inverse_sqrt"};

double cr_learning_rate(const cr_lr_schedule *s, int64_t k)
{
    double lr = s->learning_rate, w = (double)s->warmup_steps, T = (double)s->max_steps,
           t = (double)k, q = (t - w) / fmax(1, T - w), last = 1e-7;

    if (s->kind == CR_LR_CONSTANT) return lr;
    if (t < w) return lr * t / fmax(1, w);
    switch (s->kind) {
    case CR_LR_LINEAR:
        return lr * fmax(0, (T - t) / fmax(1, T - w));
    case CR_LR_COSINE:
        return lr * fmax(0, 0.5 * (1 + cos(M_PI * q)));
    case CR_LR_COSINE_WITH_RESTARTS:
        return q >= 1 ? 0 : lr * fmax(0, 0.5 * (1 + cos(M_PI * fmod(q, 1))));
    case CR_LR_POLYNOMIAL:
        return t > T ? last : (lr - last) * (1 - q) + last;
    case CR_LR_INVERSE_SQRT: {
        double scale = w > 0 ? w : 10000;
        return lr / sqrt((t + scale - w) / scale);
    }
    case CR_LR_CONSTANT:
    case CR_LR_CONSTANT_WITH_WARMUP:
    case CR_NUM_SCHEDULES:
        break;
    }
    return lr;
}
