/* reward_program.c -- see reward_program.h. */
#include "scorers/reward_program.h"
#include "base/args.h"
#include "base/children.h"

#include <stdio.h>
#include <string.h>

cr_status cr_reward_program_open(const cr_config *config, const char *config_path,
                                 const cr_reward_config *reward, const char *exec, double limit_s,
                                 int number, cr_reward_program *out, cr_err *err)
{
    const bool is_own = exec || reward->exec;

    *out = (cr_reward_program){.takes_ids = is_own || reward->model.is_given};
    out->args.env = reward->envs;
    out->args.limit_s = limit_s > 0 ? limit_s : config->reward_timeout;
    out->args.max_in_flight =
        is_own || cr_reward_takes_many(reward) ? (size_t)reward->max_in_flight : 1;
    if (is_own) {
        CR_TRY(cr_split_words(exec ? exec : reward->exec, &out->words, err));
    } else {
        char *const score[] = {
            out->self_path = cr_self_path(),
            cr_word("score"),
            reward->domain,
            cr_word("--config"),
            cr_word(config_path),
            reward->judge_model.is_given || reward->model.is_given ? cr_word("--judge") : NULL,
            out->number = cr_asprintf("%d", number),
            NULL};
        out->words = cr_alloc(sizeof score);
        memcpy(out->words, score, sizeof score);
    }
    out->args.argv = out->words;
    return CR_OK;
}

void cr_reward_program_close(cr_reward_program *program)
{
    cr_free(program->words);
    cr_free(program->self_path);
    cr_free(program->number);
    *program = (cr_reward_program){.takes_ids = false};
}

static void add_ids(cr_buf *out, const char *key, const int32_t *ids, size_t num)
{
    if (!ids) return;
    cr_buf_addf(out, ",\"%s\":", key);
    cr_json_add_ids(out, ids, num);
}

cr_status cr_reward_line_write(const cr_reward_line *line, cr_buf *out, cr_err *err)
{
    json_t *root;
    cr_status status;

    cr_buf_clear(out);
    CR_TRY(cr_json_parse_integers(line->row, line->row_bytes, "a sample's row", CR_JSON_EXACT,
                                  &root, err));
    if (!json_is_object(root)) {
        json_decref(root);
        return cr_fail(err, CR_EFORMAT, "a sample's row is not a JSON object");
    }
    if (json_object_get(root, "id")) json_object_set(root, "row_id", json_object_get(root, "id"));
    json_object_set_new(root, "id", json_string(line->id));
    json_object_set_new(root, "step", json_integer(line->step));
    json_object_set_new(root, "validation", json_boolean(line->is_validation));
    json_object_set_new(root, "finish", json_string(line->finish));
    json_object_set_new(root, "response_tokens", json_integer((json_int_t)line->num_ids));
    json_object_del(root, "response");
    json_object_del(root, "prompt_ids");
    json_object_del(root, "response_ids");
    json_object_del(root, "probe");
    status = cr_json_add_value(out, root, err);
    json_decref(root);
    out->num_bytes--; /* the closing brace: malformed UTF-8 in a response is written as U+FFFD */
    add_ids(out, "prompt_ids", line->prompt_ids, line->num_prompt_ids);
    add_ids(out, "response_ids", line->ids, line->num_ids);
    if (line->is_probe) cr_buf_adds(out, ",\"probe\":true");
    cr_buf_adds(out, ",\"response\":");
    cr_json_add_string(out, line->response, line->response_bytes);
    cr_buf_adds(out, "}\n");
    return status;
}

static cr_status ask_probe(const cr_reward_program *program, const char *row, cr_err *err)
{
    cr_reward_line line = {.row = row,
                           .row_bytes = strlen(row),
                           .id = "probe",
                           .response = "",
                           .finish = "stop",
                           .ids = (const int32_t[1]){0},
                           .prompt_ids = (const int32_t[1]){0},
                           .is_probe = true};
    cr_scorer *scorer = cr_scorer_create(&program->args);
    cr_buf text = {0};
    cr_verdict verdict;
    char *id;

    if (cr_reward_line_write(&line, &text, err) == CR_OK) {
        cr_scorer_put(scorer, line.id, &text, 0);
        while (!cr_scorer_next(scorer, 1, &id, &verdict))
            continue; /* limit_s ends it */
        if (verdict.is_fault)
            cr_fail(err, CR_ECONFIG, "the first row with an empty response got no verdict: %s: %s",
                    cr_outcome_name(verdict.outcome), verdict.detail);
        else if (verdict.outcome == CR_OUTCOME_ERROR)
            cr_log(CR_LOG_WARN, "rewards",
                   "the scoring program cannot score the first row with an empty response: %s "
                   "(samples whose verdict is an error are not trained on)",
                   verdict.detail);
        cr_free(id);
        cr_verdict_free(&verdict);
    }
    cr_buf_free(&text);
    cr_scorer_destroy(scorer);
    return err->status;
}

cr_status cr_reward_program_check(const cr_config *config, const char *config_path,
                                  const cr_reward_config *reward, const char *row, cr_err *err)
{
    cr_reward_program program;

    if (cr_reward_program_open(config, config_path, reward, NULL, 0, 0, &program, err) == CR_OK)
        cr_note(ask_probe(&program, row, err));
    cr_reward_program_close(&program);
    return reward->exec ? cr_fail_add(err, "rewards.%s.exec: %s", reward->domain, reward->exec)
                        : cr_fail_add(err, "rewards.%s", reward->domain);
}
