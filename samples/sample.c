/* sample.c -- see sample.h. */
#include "samples/sample.h"

#include <stdio.h>
#include <string.h>

cr_status cr_kept_check(size_t t, int32_t token, int32_t num, const int32_t *ids, size_t num_ids,
                        int64_t vocab_size, size_t *at, cr_err *err)
{
    bool has_token = num == 0;

    if (num < 0 || (size_t)num > num_ids - *at)
        return cr_fail(err, CR_EFORMAT, "token %zu has %d kept_ids of %zu", t, num, num_ids - *at);
    for (const int32_t *id = ids + *at, *end = id + num; id < end; id++) {
        if (*id < 0 || *id >= vocab_size || (id > ids + *at && *id <= id[-1]))
            return cr_fail(err, CR_EFORMAT, "kept_ids of token %zu: %d is out of place", t, *id);
        has_token |= *id == token;
    }
    if (!has_token)
        return cr_fail(err, CR_EFORMAT, "kept_ids of token %zu are without itself, %d", t, token);
    *at += (size_t)num;
    return CR_OK;
}

cr_status cr_sample_set_response(cr_sample *s, const cr_spans *from, cr_err *err)
{
    const size_t n = from->num_response;
    cr_spans own = *from;

    s->num_ids = n;
    own.response = s->ids = CR_NEW_ARRAY(int32_t, n + from->num_observed);
    own.log_probs = s->log_prob_infer = CR_NEW_ARRAY(float, n);
    own.observed = s->ids + n;
    if (n) memcpy(s->ids, from->response, n * sizeof *s->ids);
    if (n) memcpy(s->log_prob_infer, from->log_probs, n * sizeof *s->log_prob_infer);
    if (from->num_observed) memcpy(s->ids + n, from->observed, from->num_observed * sizeof *s->ids);
    CR_TRY(cr_segments_make(&own, &s->segments, &s->num_segments, err));
    s->version = from->version;
    for (size_t k = 0; k < s->num_segments; k++)
        if (s->segments[k].kind == CR_SEGMENT_GENERATED && s->segments[k].version < s->version)
            s->version = s->segments[k].version;
    return CR_OK;
}

static bool is_left_out(const cr_config *config, const cr_sample_reward *x)
{
    return x->outcome == CR_OUTCOME_ABSTAIN ||
           (!cr_reward_is_answer(x) && config->rewards[x->block].is_failure_left_out);
}

static void add_tokens(cr_sample *s, const cr_sample_reward *x, double weight)
{
    if (!x->token_rewards) return;
    if (!s->token_rewards) s->token_rewards = CR_NEW_ARRAY(float, s->num_ids);
    for (size_t t = 0; t < s->num_ids; t++)
        s->token_rewards[t] += (float)(weight * (double)x->token_rewards[t]);
}

static void set_verdict(cr_sample *s, const cr_sample_reward *from)
{
    s->outcome = from->outcome;
    s->detail = from->detail;
    s->score = from->score;
}

void cr_sample_merge(const cr_config *config, cr_sample *s)
{
    const cr_sample_reward *first = NULL, *failed = NULL;

    s->reward = 0;
    for (size_t k = 0; k < s->num_rewards; k++) {
        const cr_sample_reward *x = &s->rewards[k];
        double weight = config->rewards[x->block].weight;
        if (is_left_out(config, x)) continue;
        if (!cr_reward_is_answer(x)) {
            failed = failed ? failed : x;
            continue;
        }
        first = first ? first : x;
        s->reward += weight * x->reward;
        add_tokens(s, x, weight);
    }
    set_verdict(s, failed ? failed : first ? first : &s->rewards[0]);
    if (!failed && first) return;
    if (!failed) s->outcome = CR_OUTCOME_ABSTAIN;
    s->score = s->reward = 0;
    cr_free(s->token_rewards);
    s->token_rewards = NULL;
}

char *cr_sample_reason(const cr_config *config, const cr_sample *s)
{
    /* first those that leave it without a verdict */
    for (size_t i = 0; i < 2 * s->num_rewards; i++) {
        const cr_sample_reward *x = &s->rewards[i % s->num_rewards];
        if (cr_reward_is_answer(x) || (i < s->num_rewards && is_left_out(config, x))) continue;
        return cr_asprintf("%s of %s, sample %016llx: %s", cr_outcome_name(x->outcome),
                           config->rewards[x->block].domain, (unsigned long long)s->id, x->detail);
    }
    return cr_asprintf("%s, sample %016llx: no reward has anything to say of it",
                       config->rewards[s->domain].domain, (unsigned long long)s->id);
}
