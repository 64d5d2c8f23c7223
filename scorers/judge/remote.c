/* remote.c -- see remote.h. */
#include "scorers/judge/remote.h"
#include "scorers/scorer.h"

#include <stdio.h>
#include <string.h>

enum { SHOWN = 100, TASK_BYTES = 200 };

void cr_remote_write(const cr_config *c, const cr_reward_config *r, const json_t *row,
                     const char *prompt, cr_buf *out)
{
    static const char *const own[] = {"id",     "row_id",          "step",    "validation",
                                      "finish", "response_tokens", "response"};
    json_t *info = json_copy((json_t *)(uintptr_t)row);
    const struct {
        const char *name, *column;
    } members[] = {{"global_step", "step"}, {"validation", "validation"}, {"data_id", "row_id"},
                   {"rollout_id", "id"},    {"response", "response"},     {"finish", "finish"}};
    cr_err ignored = {0};

    cr_buf_adds(out, "{\"project\":");
    cr_json_add_string(out, c->exp_name, strlen(c->exp_name));
    cr_buf_adds(out, ",\"experiment\":");
    cr_json_add_string(out, r->domain, strlen(r->domain));
    for (size_t i = 0; i < CR_COUNT(members); i++) {
        const json_t *value = json_object_get(row, members[i].column);
        if (!value) continue;
        cr_buf_addf(out, ",\"%s\":", members[i].name);
        cr_note(cr_json_add_value(out, value, &ignored)); /* of JSON: finite */
    }
    cr_buf_adds(out, ",\"prompt\":");
    cr_json_add_string(out, prompt, strlen(prompt));
    for (size_t i = 0; i < CR_COUNT(own); i++)
        json_object_del(info, own[i]);
    cr_buf_adds(out, ",\"reward_info\":");
    cr_note(cr_json_add_value(out, info, &ignored));
    cr_buf_addf(out, ",\"reward_manager\":%s}", r->reward_manager);
    json_decref(info);
}

/* A task's name becomes part of a path. */
static char *path_of(const json_t *task)
{
    static const char fine[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.:";
    char number[24];
    const char *text = json_string_value(task);

    if (json_is_integer(task)) {
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(task));
        text = number;
    }
    if (!text || !*text || strlen(text) > TASK_BYTES ||
        (json_is_string(task) && strlen(text) != json_string_length(task)) ||
        strspn(text, fine) != strlen(text) || strcmp(text, ".") == 0 || strcmp(text, "..") == 0)
        return NULL;
    return cr_asprintf("/result/%s", text);
}

bool cr_remote_read(const char *body, size_t num_bytes, bool was_submitted, char **path,
                    cr_rule_result *out)
{
    json_t *root = NULL;
    const json_t *task;
    const char *status;
    bool is_later = false;
    cr_verdict v;
    cr_err ignored = {0};

    *path = NULL;
    *out = (cr_rule_result){.outcome = CR_OUTCOME_OK};
    cr_note(cr_json_parse(body, num_bytes, NULL, &root, &ignored));
    status = json_string_value(json_object_get(root, "status"));
    task = was_submitted ? NULL : json_object_get(root, "task_id");
    if (task) {
        is_later = (*path = path_of(task)) != NULL;
        if (!is_later) cr_rule_error(out, "the service's task_id is no name for a path");
    } else if (was_submitted && status &&
               (strcmp(status, "pending") == 0 || strcmp(status, "running") == 0)) {
        is_later = true;
    } else if (!json_is_object(root)) {
        cr_rule_error(out, "the service's answer is no JSON object: %.*s",
                      (int)(num_bytes < SHOWN ? num_bytes : SHOWN), body);
    } else {
        cr_verdict_read(root, 0, &v);
        out->score = v.score;
        out->reward = v.reward;
        out->outcome = v.outcome;
        snprintf(out->detail, sizeof out->detail, "%.199s", v.detail);
        cr_verdict_free(&v);
    }
    json_decref(root);
    return !is_later;
}
