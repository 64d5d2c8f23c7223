/* schedule.c -- Hugging Face's learning-rate schedules: a factor on the rate, k updates in. */
#include "rl/rl.h"

#include <math.h>
#include <string.h>

#define OF(kind) (1u << CR_LR_##kind)

const char *const cr_schedule_names[CR_NUM_SCHEDULES] = {
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
};

enum { RAMP_LINEAR, RAMP_COSINE, RAMP_1_SQRT, NUM_RAMPS };
static const char *const ramps[NUM_RAMPS] = {"linear", "cosine", "1-sqrt"};

static const struct {
    const char *name;
    unsigned kinds; /* that have it */
    double min, max;
    enum { REAL, WHOLE, RAMP } type;
} known[CR_NUM_SCHEDULE_ARGS] = {
    [CR_LR_NUM_CYCLES] = {"num_cycles",
                          OF(COSINE) | OF(COSINE_WITH_RESTARTS) | OF(COSINE_WITH_MIN_LR) |
                              OF(COSINE_WARMUP_WITH_MIN_LR) | OF(WARMUP_STABLE_DECAY),
                          0, 1e6, REAL},
    [CR_LR_END] = {"lr_end", OF(POLYNOMIAL), 0, 1e30, REAL},
    [CR_LR_POWER] = {"power", OF(POLYNOMIAL), 0, 1e3, REAL},
    [CR_LR_TIMESCALE] = {"timescale", OF(INVERSE_SQRT), 1, 1e15, WHOLE},
    [CR_LR_MIN] = {"min_lr", OF(COSINE_WITH_MIN_LR) | OF(COSINE_WARMUP_WITH_MIN_LR), 0, 1e30, REAL},
    [CR_LR_MIN_RATE] = {"min_lr_rate", OF(COSINE_WITH_MIN_LR) | OF(COSINE_WARMUP_WITH_MIN_LR), 0, 1,
                        REAL},
    [CR_LR_WARMUP_RATE] = {"warmup_lr_rate", OF(COSINE_WARMUP_WITH_MIN_LR), 0, 1, REAL},
    [CR_LR_NUM_DECAY_STEPS] = {"num_decay_steps", OF(WARMUP_STABLE_DECAY), 0, 1e15, WHOLE},
    [CR_LR_NUM_STABLE_STEPS] = {"num_stable_steps", OF(WARMUP_STABLE_DECAY), 0, 1e15, WHOLE},
    [CR_LR_MIN_RATIO] = {"min_lr_ratio", OF(WARMUP_STABLE_DECAY), 0, 1, REAL},
    [CR_LR_WARMUP_TYPE] = {"warmup_type", OF(WARMUP_STABLE_DECAY), 0, 0, RAMP},
    [CR_LR_DECAY_TYPE] = {"decay_type", OF(WARMUP_STABLE_DECAY), 0, 0, RAMP},
};

/* ---- arguments ---- */

static cr_status unknown_arg(cr_schedule kind, const char *name, cr_err *err)
{
    cr_buf names = {0};

    for (int a = 0; a < CR_NUM_SCHEDULE_ARGS; a++)
        if (known[a].kinds & 1u << kind)
            cr_buf_addf(&names, "%s%s", names.num_bytes ? ", " : "", known[a].name);
    cr_fail(err, CR_EARG, "%s has no argument %.60s (it has %s)", cr_schedule_names[kind], name,
            names.num_bytes ? names.data : "none");
    cr_buf_free(&names);
    return CR_EARG;
}

cr_status cr_schedule_set(cr_schedule kind, const char *name, double number, const char *word,
                          cr_schedule_args *args, cr_err *err)
{
    int a = 0, ramp = 0;

    while (a < CR_NUM_SCHEDULE_ARGS &&
           !(known[a].kinds & 1u << kind && strcmp(known[a].name, name) == 0))
        a++;
    if (a == CR_NUM_SCHEDULE_ARGS) return unknown_arg(kind, name, err);
    while (word && ramp < NUM_RAMPS && strcmp(word, ramps[ramp]) != 0)
        ramp++;
    if (known[a].type == RAMP && (!word || ramp == NUM_RAMPS))
        return cr_fail(err, CR_EARG, "%s: linear, cosine or 1-sqrt is expected", name);
    if (known[a].type != RAMP && (word || !(number >= known[a].min && number <= known[a].max) ||
                                  (known[a].type == WHOLE && number != floor(number))))
        return cr_fail(err, CR_EARG, "%s: a %snumber from %g to %g is expected", name,
                       known[a].type == WHOLE ? "whole " : "", known[a].min, known[a].max);
    args->value[a] = word ? ramp : number;
    args->is_given[a] = true;
    return CR_OK;
}

static double arg(const cr_lr_schedule *s, cr_schedule_arg a, double standard)
{
    return s->args.is_given[a] ? s->args.value[a] : standard;
}

cr_status cr_schedule_check(const cr_lr_schedule *s, cr_err *err)
{
    const bool *has = s->args.is_given;
    const unsigned kind = 1u << s->kind;

    if (kind & known[CR_LR_MIN].kinds && has[CR_LR_MIN] == has[CR_LR_MIN_RATE])
        return cr_fail(err, CR_EARG, "%s needs min_lr or min_lr_rate, one of them",
                       cr_schedule_names[s->kind]);
    if (has[CR_LR_MIN] && s->args.value[CR_LR_MIN] > s->learning_rate)
        return cr_fail(err, CR_EARG, "min_lr is %g: at most the learning rate, %g, is expected",
                       s->args.value[CR_LR_MIN], s->learning_rate);
    if (kind & OF(POLYNOMIAL) && !(arg(s, CR_LR_END, 1e-7) < s->learning_rate))
        return cr_fail(err, CR_EARG, "lr_end is %g: less than the learning rate, %g, is expected",
                       arg(s, CR_LR_END, 1e-7), s->learning_rate);
    if (kind & OF(WARMUP_STABLE_DECAY) && !has[CR_LR_NUM_DECAY_STEPS])
        return cr_fail(err, CR_EARG, "warmup_stable_decay needs num_decay_steps");
    return CR_OK;
}

/* ---- rates ---- */

static double cosine(double cycles, double progress)
{
    return 0.5 * (1 + cos(M_PI * cycles * 2 * progress));
}

static double raised(double factor, double min_rate)
{
    return fmax(0, factor * (1 - min_rate) + min_rate);
}

/* Of the two with a minimum: a share of the learning rate. */
static double min_rate(const cr_lr_schedule *s)
{
    return s->args.is_given[CR_LR_MIN] ? s->args.value[CR_LR_MIN] / s->learning_rate
                                       : s->args.value[CR_LR_MIN_RATE];
}

/* Warm-up and decay count from 1, so that no update has rate 0. */
static double warmup_with_min(const cr_lr_schedule *s, double t, double w, double T)
{
    double rate = arg(s, CR_LR_WARMUP_RATE, 0);

    if (t >= w)
        return raised(cosine(arg(s, CR_LR_NUM_CYCLES, 0.5), (t - w + 1) / fmax(1, T - w)),
                      min_rate(s));
    return s->args.is_given[CR_LR_WARMUP_RATE] ? rate + (1 - rate) * t / fmax(1, w - 1)
                                               : (t + 1) / fmax(1, w);
}

static double stable_decay(const cr_lr_schedule *s, double t, double w, double T)
{
    double min = arg(s, CR_LR_MIN_RATIO, 0), decay = arg(s, CR_LR_NUM_DECAY_STEPS, 0),
           stable = arg(s, CR_LR_NUM_STABLE_STEPS, T - w - decay), q;

    if (t < w) {
        q = t / fmax(1, w);
        switch ((int)arg(s, CR_LR_WARMUP_TYPE, RAMP_LINEAR)) {
        case RAMP_COSINE:
            return raised(0.5 * (1 - cos(M_PI * q)), min);
        case RAMP_1_SQRT:
            return raised(1 - sqrt(1 - q), min);
        default:
            return raised(q, min);
        }
    }
    if (t < w + stable) return 1;
    if (t >= w + stable + decay) return min;
    q = (t - w - stable) / fmax(1, decay);
    switch ((int)arg(s, CR_LR_DECAY_TYPE, RAMP_COSINE)) {
    case RAMP_LINEAR:
        return raised(1 - q, min);
    case RAMP_1_SQRT:
        return raised(1 - sqrt(q), min);
    default:
        return raised(cosine(arg(s, CR_LR_NUM_CYCLES, 0.5), q), min);
    }
}

static double polynomial(const cr_lr_schedule *s, double t, double w, double T)
{
    double lr = s->learning_rate, end = arg(s, CR_LR_END, 1e-7);

    if (t > T) return end / lr;
    return ((lr - end) * pow(1 - (t - w) / fmax(1, T - w), arg(s, CR_LR_POWER, 1)) + end) / lr;
}

static double factor(const cr_lr_schedule *s, double t, double w, double T)
{
    double q = (t - w) / fmax(1, T - w), scale;

    if (s->kind == CR_LR_CONSTANT) return 1;
    if (s->kind == CR_LR_WARMUP_STABLE_DECAY) return stable_decay(s, t, w, T);
    if (s->kind == CR_LR_COSINE_WARMUP_WITH_MIN_LR) return warmup_with_min(s, t, w, T);
    if (t < w) return t / fmax(1, w);
    switch (s->kind) {
    case CR_LR_LINEAR:
        return fmax(0, (T - t) / fmax(1, T - w));
    case CR_LR_COSINE:
        return raised(cosine(arg(s, CR_LR_NUM_CYCLES, 0.5), q), 0);
    case CR_LR_COSINE_WITH_MIN_LR:
        return raised(cosine(arg(s, CR_LR_NUM_CYCLES, 0.5), q), min_rate(s));
    case CR_LR_COSINE_WITH_RESTARTS:
        return q >= 1 ? 0
                      : fmax(0, 0.5 * (1 + cos(M_PI * fmod(arg(s, CR_LR_NUM_CYCLES, 1) * q, 1))));
    case CR_LR_POLYNOMIAL:
        return polynomial(s, t, w, T);
    case CR_LR_INVERSE_SQRT:
        scale = arg(s, CR_LR_TIMESCALE, w > 0 ? w : 10000);
        return 1 / sqrt((t + (scale - w)) / scale);
    default:
        return 1;
    }
}

double cr_learning_rate(const cr_lr_schedule *s, int64_t k)
{
    double lr = s->learning_rate;

    return lr > 0 ? lr * factor(s, (double)k, (double)s->warmup_steps, (double)s->max_steps) : 0;
}
