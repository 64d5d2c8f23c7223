/* rewards.c -- blocks of rewards among each other: rules that are terms of a sum, and blocks that share a tag; how
 * programs of a code domain are run. */
#include "base/pattern.h"
#include "configs/bind.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 60 }; /* of a block: it is a part of names of streams and metrics */

/* ---- terms ---- */

static bool has_rule(const cr_reward_config *r, const char *rule)
{
    return r->rule && strcmp(r->rule, rule) == 0;
}

/* The class that stands for a rule. */
static const char *class_of(const char *rule)
{
    size_t i = 0;

    while (i < cri_num_reward_classes && strcmp(cri_reward_classes[i].rule, rule) != 0)
        i++;
    CR_CHECK(i < cri_num_reward_classes, "no class stands for %s", rule);
    return cri_reward_classes[i].cls;
}

/* Keys that one rule or two read, in a block of another. */
static void note_other_rules(const cr_node *block, const cr_reward_config *r, cr_diagnostics *d)
{
    static const struct {
        const char *key, *rule, *other;
    } keys[] = {{"format_pattern", "format", NULL},
                {"format_tags", "format", NULL},
                {"overlong_buffer", "length", NULL},
                {"repetition_n_grams", "repetition", NULL},
                {"repetition_max_penalty", "repetition", NULL},
                {"reward_type", "crossthinkqa", NULL},
                {"det_iou_threshold", "detection", NULL},
                {"response_length_penalty_coef", "crossthinkqa", "length"}};

    for (size_t i = 0; i < CR_COUNT(keys); i++) {
        const char *rule = keys[i].rule, *other = keys[i].other;
        if (has_rule(r, rule) || (other && has_rule(r, other)) ||
            !cri_is_in_file(block, keys[i].key))
            continue;
        cr_diagnose(d, CR_NOTE, cr_node_get(block, keys[i].key)->place,
                    "rewards.%s.%s has no effect: only %s%s%s reads it, in a block of its own with "
                    "the same tag_included",
                    r->domain, keys[i].key, class_of(rule), other ? " or " : "",
                    other ? class_of(other) : "");
    }
}

/* The pattern compiles, by itself and within CR_FORMAT_WHOLE. */
static void check_pattern(const char *pattern, cr_place place, const char *domain,
                          cr_diagnostics *d)
{
    char *whole = cr_asprintf(CR_FORMAT_WHOLE, pattern);
    cr_pattern *one = NULL, *other = NULL;
    cr_err err = {0};

    if (!*pattern) cr_fail(&err, CR_EFORMAT, "it is empty, and would match any text");
    if (err.status == CR_OK && cr_pattern_open(pattern, &one, &err) == CR_OK)
        cr_note(cr_pattern_open(whole, &other, &err));
    if (err.status != CR_OK)
        cr_diagnose(d, CR_ERROR, place, "rewards.%s.format_pattern: %s", domain, err.msg);
    cr_pattern_close(one);
    cr_pattern_close(other);
    cr_free(whole);
}

static void bind_format(const cr_node *block, cr_reward_config *r, cr_diagnostics *d)
{
    cr_reward_terms *t = &r->terms;

    t->format_pattern = cri_text_of(block, "format_pattern");
    t->format_tags = cri_texts_of(block, "format_tags", &t->num_format_tags);
    if (t->format_pattern)
        check_pattern(t->format_pattern, cr_node_get(block, "format_pattern")->place, r->domain, d);
    if (t->format_pattern && t->num_format_tags)
        cr_diagnose(d, CR_ERROR, cr_node_get(block, "format_tags")->place,
                    "rewards.%s: format_pattern and format_tags exclude each other", r->domain);
    for (size_t i = 0; i < t->num_format_tags; i++)
        if (!*t->format_tags[i] || strpbrk(t->format_tags[i], "<>"))
            cr_diagnose(d, CR_ERROR, cr_node_get(block, "format_tags")->place,
                        "rewards.%s.format_tags: names are expected, without < and >, as in "
                        "[think, answer]",
                        r->domain);
}

static void bind_length(cr_config *c, const cr_node *block, cr_reward_config *r, cr_diagnostics *d)
{
    cr_reward_terms *t = &r->terms;
    bool is_given = cri_is_given(block, "overlong_buffer");
    const cr_node *n = is_given ? cr_node_get(block, "overlong_buffer") : NULL;

    t->max_response_tokens = c->sequence_length - c->prompt_length;
    if (!is_given) {
        if (r->response_length_penalty_coef == 0)
            cr_diagnose(d, CR_ERROR, block->place,
                        "rewards.%s: the rule length needs overlong_buffer: {len: TOKENS} (long "
                        "responses lose reward), or response_length_penalty_coef (short ones do)",
                        r->domain);
        return;
    }
    t->overlong_tokens = cri_int_of(n, "len");
    t->overlong_factor = cri_real_of(n, "penalty_factor");
    if (t->overlong_tokens < 1)
        cr_diagnose(d, CR_ERROR, n->place, "rewards.%s.overlong_buffer.len is missing", r->domain);
    if (t->overlong_tokens > t->max_response_tokens)
        cr_diagnose(
            d, CR_ERROR, n->place,
            "rewards.%s.overlong_buffer.len is %lld, and a response has at most %lld tokens",
            r->domain, (long long)t->overlong_tokens, (long long)t->max_response_tokens);
}

static void bind_detection(const cr_config *c, const cr_node *block, cr_reward_config *r,
                           cr_diagnostics *d)
{
    static const double thresholds[] = {0.5, 0.55, 0.6, 0.65, 0.7, 0.75,
                                        0.8, 0.85, 0.9, 0.95, 0.99};
    const cr_node *n = cr_node_get(block, "det_iou_threshold");
    size_t i = 0;

    r->terms.num_steps = c->max_steps;
    if (n->kind == CR_NODE_TEXT && strcmp(n->text, "average") == 0) return;
    r->terms.iou_threshold = CR_IOU_DYNAMIC;
    if (n->kind == CR_NODE_TEXT && strcmp(n->text, "dynamic") == 0) return;
    while (i < CR_COUNT(thresholds) && !(n->kind == CR_NODE_REAL && n->real == thresholds[i]))
        i++;
    r->terms.iou_threshold = CR_IOU_FIRST + (int)i;
    if (i == CR_COUNT(thresholds))
        cr_diagnose(d, CR_ERROR, n->place,
                    "rewards.%s.det_iou_threshold: average, dynamic, 0.99 or one of 0.5, 0.55, .. "
                    "0.95 is expected",
                    r->domain);
}

void cri_bind_terms(cr_config *c, cr_node *block, cr_reward_config *r, cr_diagnostics *d)
{
    note_other_rules(block, r, d);
    r->terms.repetition_n_grams = cri_int_of(block, "repetition_n_grams");
    r->terms.repetition_max_penalty = cri_real_of(block, "repetition_max_penalty");
    if (has_rule(r, "format")) bind_format(block, r, d);
    if (has_rule(r, "length")) bind_length(c, block, r, d);
    if (has_rule(r, "detection")) bind_detection(c, block, r, d);
}

/* ---- blocks that share a tag ---- */

static bool includes(const cr_reward_config *r, const char *tag)
{
    for (size_t k = 0; k < r->num_tags; k++)
        if (strcmp(r->tags[k], tag) == 0) return true;
    return false;
}

size_t cr_config_rewards_of(const cr_config *c, const char *tag, int32_t *out)
{
    size_t num = 0, first = 0;
    int32_t domain;

    for (size_t i = 0; i < c->num_rewards; i++)
        if (includes(&c->rewards[i], tag)) out[num++] = (int32_t)i;
    while (first < num && !(c->rewards[out[first]].probability > 0))
        first++;
    if (first == num) return num;
    domain = out[first];
    memmove(out + 1, out, first * sizeof *out);
    out[0] = domain;
    return num;
}

/* "math_rule (weight 1), format (0.2)" */
static void write_blocks(const cr_config *c, const int32_t *blocks, size_t num, cr_buf *out)
{
    cr_buf_clear(out);
    for (size_t k = 0; k < num; k++)
        cr_buf_addf(out, "%s%s (%s%g)", k ? ", " : "", c->rewards[blocks[k]].domain,
                    k ? "" : "weight ", c->rewards[blocks[k]].weight);
}

/* What a tag of several blocks means. Said once for all tags of the same blocks. */
static void say_shared(const cr_config *c, cr_place place, const char *tag, const int32_t *blocks,
                       size_t num, cr_buf *said, cr_diagnostics *d)
{
    cr_buf text = {0};
    double sum = 0;

    for (size_t k = 0; k < num; k++)
        sum += c->rewards[blocks[k]].weight * c->rewards[blocks[k]].weight;
    write_blocks(c, blocks, num, &text);
    cr_buf_addc(&text, '\n');
    if (!said->data || !strstr(said->data, text.data)) {
        cr_buf_adds(said, text.data);
        text.data[--text.num_bytes] = 0;
        cr_diagnose(d, CR_NOTE, place,
                    "tag %s: each sample has %zu rewards, %s; its domain, and its score, are %s's "
                    "(ROLL takes the last block alone)",
                    tag, num, text.data, c->rewards[blocks[0]].domain);
        if (!(sum > 0))
            cr_diagnose(
                d, CR_WARNING, place,
                "tag %s: all its rewards have reward_weight 0: nothing is learned from them", tag);
    }
    cr_buf_free(&text);
}

/* Is a block the domain of one of its tags? A row may name it, too, but then it has a reason to be there. */
static bool is_domain(const cr_config *c, size_t block, int32_t *blocks)
{
    const cr_reward_config *r = &c->rewards[block];

    for (size_t k = 0; k < r->num_tags; k++)
        if (cr_config_rewards_of(c, r->tags[k], blocks) && blocks[0] == (int32_t)block) return true;
    return r->num_tags == 0;
}

/* What a block says of domains, and is none. */
static void check_no_domain(const cr_config *c, const cr_node *node, const cr_reward_config *r,
                            cr_diagnostics *d)
{
    const cr_node *filter = cr_node_get(node, "query_filter_config");

    if (r->probability > 0)
        cr_diagnose(
            d, CR_WARNING, cri_place_of(c, "actor_train.data_args.domain_interleave_probs"),
            "domain_interleave_probs gives %s a share, but another block with a share is the "
            "domain of all its tags: it has prompts only if rows name it in their column domain",
            r->domain);
    if (r->filter.type != CR_FILTER_NONE)
        cr_diagnose(
            d, CR_NOTE, filter->place,
            "rewards.%s.query_filter_config has no effect: the filter of a row's domain looks at "
            "the sum of its rewards, and another block is the domain of all its tags",
            r->domain);
}

static void check_aggregation(cr_config *c, bool has_shared, cr_diagnostics *d)
{
    const cr_advantage_config *a = &c->algorithm.advantage;
    const cr_norm mean = a->adv_estimator == CR_ADV_GRPO ? CR_NORM_GROUP : a->norm_mean_type,
                  std = a->adv_estimator == CR_ADV_GRPO ? CR_NORM_GROUP : a->norm_std_type;
    cr_place place = cri_place_of(c, "multi_objective_aggregation");

    if (a->aggregation != CR_NORMALIZE_THEN_SUM) return;
    if (a->opd == CR_OPD_PURE) {
        cr_diagnose(d, CR_NOTE, place,
                    "multi_objective_aggregation has no effect (is_pure_opd takes no rewards)");
        c->algorithm.advantage.aggregation = CR_SUM_THEN_NORMALIZE;
        return;
    }
    if (mean == CR_NORM_NONE || mean == CR_NORM_RUNNING || std == CR_NORM_NONE ||
        std == CR_NORM_RUNNING)
        cr_diagnose(
            d, CR_ERROR, place,
            "multi_objective_aggregation: normalize_then_sum needs adv_estimator: grpo, or "
            "norm_mean_type and norm_std_type group or batch: by these each reward is normalised");
    if (!has_shared)
        cr_diagnose(d, CR_NOTE, place,
                    "multi_objective_aggregation: no tag has several rewards: normalize_then_sum "
                    "only divides normalised rewards by their deviation in the batch");
}

void cri_check_shared(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    const cr_node *rewards = cr_node_get(root, "rewards");
    int32_t *blocks = CR_NEW_ARRAY(int32_t, c->num_rewards);
    bool has_shared = false;
    cr_buf said = {0};

    for (size_t i = 0; i < c->num_rewards; i++) {
        const cr_reward_config *r = &c->rewards[i];
        const cr_node *node = rewards->items[i].value;
        if (strlen(r->domain) > MAX_NAME)
            cr_diagnose(d, CR_ERROR, rewards->items[i].place,
                        "rewards: the name %.20s.. of a block has more than %d bytes", r->domain,
                        MAX_NAME);
        for (size_t k = 0; k < r->num_tags; k++) {
            size_t num = cr_config_rewards_of(c, r->tags[k], blocks);
            if (num < 2) continue;
            has_shared = true;
            say_shared(c, cr_node_get(node, "tag_included")->place, r->tags[k], blocks, num, &said,
                       d);
        }
        if (!is_domain(c, i, blocks)) check_no_domain(c, node, r, d);
    }
    check_aggregation(c, has_shared, d);
    cr_buf_free(&said);
    cr_free(blocks);
}

/* ---- how programs of a code domain are run: here in a sandbox, or by a service ---- */

enum { LINES_HERE = 4, LINES_OF_SERVICE = 32 }; /* at once; ROLL has 20 */

void cri_bind_code(cr_config *c, cr_node *block, cr_reward_config *r, cr_diagnostics *d)
{
    static const char *const of_code[] = {"code_url",    "use_local",    "sandbox",
                                          "interpreter", "case_timeout", "case_memory_mb"};
    bool is_code = r->rule && strcmp(r->rule, "code") == 0;
    char where[160];

    r->code = (cr_code_keys){.service = {.url = cri_text_of(block, "code_url")},
                             .use_local = cri_flag_of(block, "use_local"),
                             .is_open = cri_choice_of("reward", block, "sandbox") == 1,
                             .interpreter = cri_text_of(block, "interpreter"),
                             .case_timeout = cri_real_of(block, "case_timeout"),
                             .case_memory_mb = cri_int_of(block, "case_memory_mb")};
    for (size_t i = 0; i < CR_COUNT(of_code) && !is_code; i++)
        if (cri_is_in_file(block, of_code[i]))
            cr_diagnose_unused(d, cr_node_get(block, of_code[i])->place, of_code[i],
                               "rewards.%s runs no programs", r->domain);
    if (!is_code) return;
    snprintf(where, sizeof where, "rewards.%.100s.code_url", r->domain);
    if (r->code.service.url)
        cri_check_service_keys(cr_node_get(block, "code_url"), &r->code.service, where, d);
    if (!cri_is_in_file(block, "max_in_flight")) {
        r->max_in_flight =
            r->code.service.url && !r->code.use_local ? LINES_OF_SERVICE : LINES_HERE;
        cri_set_int(c, block, "max_in_flight", r->max_in_flight);
    }
    r->code.service.connections = r->max_in_flight;
    if (r->code.is_open)
        cr_diagnose(
            d, CR_WARNING, cr_node_get(block, "sandbox")->place,
            "rewards.%s.sandbox: none: programs of the model run with the rights of this user",
            r->domain);
}
