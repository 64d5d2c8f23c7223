/* causes.c -- see causes.h. */
#include "pipelines/causes.h"
#include "rewards/rule.h"

#include <string.h>

typedef enum cause {
    RIGHT,
    IN_PART,
    WRONG,
    NO_ANSWER,
    CUT_OFF,
    ABSTAIN,
    TIMED_OUT,
    FAILED,
    NUM_CAUSES
} cause;

static const char *const names[NUM_CAUSES] = {"right",   "in_part", "wrong",   "no_answer",
                                              "cut_off", "abstain", "timeout", "error"};

static cause cause_of(const cr_sample *s)
{
    if (strcmp(s->status, "timeout") == 0) return TIMED_OUT;
    if (strcmp(s->status, "abstain") == 0) return ABSTAIN;
    if (!cr_sample_has_verdict(s)) return FAILED;
    if (s->score > 0) return s->score == 1 ? RIGHT : IN_PART;
    if (strcmp(s->finish, "length") == 0) return CUT_OFF;
    return strncmp(s->detail, CR_NO_ANSWER, strlen(CR_NO_ANSWER)) == 0 ? NO_ANSWER : WRONG;
}

/* Of the reward that took longest. */
static double seconds_of(const cr_sample *s)
{
    double most = 0;

    for (size_t k = 0; k < s->num_rewards; k++)
        if (s->rewards[k].seconds > most) most = s->rewards[k].seconds;
    return most;
}

static void domain_metrics(const cr_config *config, const cr_rollout *r, int domain, cr_metrics *m)
{
    const char *name = config->rewards[domain].domain;
    size_t counts[NUM_CAUSES] = {0}, num = 0;
    double sum = 0, most = 0;
    uint64_t slowest = 0;

    for (size_t i = 0; i < r->num_samples; i++) {
        const cr_sample *s = &r->samples[i];
        double seconds = seconds_of(s);
        if (s->domain != domain) continue;
        num++;
        counts[cause_of(s)]++;
        sum += seconds;
        if (seconds > most) most = seconds, slowest = s->id;
    }
    for (int c = 0; num && c < NUM_CAUSES; c++)
        cr_metrics_set(m, (double)counts[c], "%s/verdict/%s", name, names[c]);
    if (most <= 0) return;
    cr_metrics_set(m, sum / (double)num, "time/verdict/%s/mean", name);
    cr_metrics_set(m, most, "time/verdict/%s/max", name);
    cr_metrics_set(m, (double)(slowest & 0xFFFFFFFFFF), "time/verdict/%s/slowest", name);
}

void cr_cause_metrics(const cr_config *config, const cr_rollout *r, cr_metrics *m)
{
    for (size_t d = 0; d < config->num_rewards; d++)
        domain_metrics(config, r, (int)d, m);
}
