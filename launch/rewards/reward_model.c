/* reward_model.c -- see reward_model.h. */
#include "launch/rewards/reward_model.h"
#include "launch/session.h"
#include "rewards/rule.h"
#include "scorers/input.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct line {
    json_t *row;       /* owned */
    char *error;       /* owned, or NULL */
    size_t first, num; /* of its ids */
} line;

typedef struct scoring {
    cr_session session;
    cr_input input;
    cr_score_form form;
    line *lines; /* [batch_size] of a forward */
    size_t num;
    int32_t *ids; /* of these lines */
    size_t num_ids, capacity_ids;
    cr_packed packed;
    float *scores; /* [batch_size] */
    long number;   /* of the last line */
    bool has_bad, is_closed;
} scoring;

/* ---- a line ---- */

static cr_status add_ids(scoring *s, const json_t *row, const char *key, cr_err *err)
{
    const json_t *list = json_object_get(row, key);
    const int64_t vocab = s->session.model->config.vocab_size;
    size_t num = json_array_size(list);

    if (!json_is_array(list))
        return cr_fail(err, CR_EFORMAT,
                       "the line has no list %s: a reward model reads prompt_ids and response_ids",
                       key);
    for (size_t i = 0; i < num; i++) {
        const json_t *id = json_array_get(list, i);
        int64_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value >= vocab)
            return cr_fail(err, CR_EFORMAT, "%s[%zu] is no id of a vocabulary of %lld", key, i,
                           (long long)vocab);
        s->ids = cr_grow(s->ids, s->num_ids, &s->capacity_ids, sizeof *s->ids);
        s->ids[s->num_ids++] = (int32_t)value;
    }
    return CR_OK;
}

static cr_status read_ids(scoring *s, line *l, cr_err *err)
{
    const int64_t limit = s->session.model->config.position_limit;

    l->first = s->num_ids;
    CR_TRY(add_ids(s, l->row, "prompt_ids", err));
    CR_TRY(add_ids(s, l->row, "response_ids", err));
    if (s->num_ids == l->first && json_is_true(json_object_get(l->row, "probe"))) {
        s->ids = cr_grow(s->ids, s->num_ids, &s->capacity_ids, sizeof *s->ids);
        s->ids[s->num_ids++] = 0; /* a probe has no tokens: does the model compute? */
    }
    l->num = s->num_ids - l->first;
    if (l->num == 0) return cr_fail(err, CR_EFORMAT, "a sample without a token has no score");
    if (limit && (int64_t)l->num > limit)
        return cr_fail(err, CR_EFORMAT, "%zu tokens, and the model has %lld positions", l->num,
                       (long long)limit);
    return CR_OK;
}

static void take_line(scoring *s, char *text, size_t n)
{
    line *l = &s->lines[s->num++];
    cr_err err = {0};

    *l = (line){NULL};
    if (cr_score_row_any(text, n, ++s->number, &l->row, &err) == CR_OK)
        cr_note(read_ids(s, l, &err));
    if (err.status == CR_OK) return;
    l->error = cr_strdup(err.msg);
    s->has_bad = true;
}

/* At least one line, unless there are no more; then those that are there already, at most a batch. */
static void take_lines(scoring *s)
{
    struct pollfd ready = {.fd = s->input.fd, .events = POLLIN};
    char *text;
    size_t n;

    s->num = s->num_ids = 0;
    for (;;) {
        while (s->num < (size_t)s->session.batch_size && (text = cr_input_next(&s->input, &n))) {
            if (strspn(text, " \t\r\n") < n) take_line(s, text, n);
            cr_free(text);
        }
        if (s->num == (size_t)s->session.batch_size || cr_input_is_over(&s->input)) return;
        if (s->input.has_ended) continue;
        if (poll(&ready, 1, s->num ? 0 : -1) <= 0 && s->num) return;
        cr_input_read(&s->input);
    }
}

/* ---- scores ---- */

/* As Transformers: the last token that is no padding; the first one where all are. */
static size_t last_token(const int32_t *ids, size_t num, int32_t pad)
{
    size_t at = num - 1;

    while (at > 0 && ids[at] == pad)
        at--;
    return at;
}

static cr_status score(scoring *s, cr_err *err)
{
    cr_outputs out = {.of = {[CR_VALUE] = s->scores}};
    size_t num = 0;

    cr_packed_clear(&s->packed);
    for (size_t i = 0; i < s->num; i++) {
        const line *l = &s->lines[i];
        const int32_t *ids = s->ids + l->first;
        size_t at;
        if (l->error) continue;
        at = last_token(ids, l->num, s->session.model->config.pad_id);
        cr_packed_add(&s->packed, ids, l->num)[at] = ids[at];
        num++;
    }
    return num ? cr_fsdp_forward(s->session.fsdp, &s->packed.batch, &out, err) : CR_OK;
}

static void answer(scoring *s)
{
    cr_buf out = {0};
    size_t at = 0;

    for (size_t i = 0; i < s->num; i++) {
        line *l = &s->lines[i];
        cr_rule_result result = {.outcome = CR_OUTCOME_OK};
        if (!l->error) result.score = result.reward = (double)s->scores[at++];
        if (!isfinite(result.score)) cr_rule_error(&result, "the model's score is not finite");
        cr_score_answer(l->row, &result, NULL, s->form, l->error, &out);
        s->is_closed |= fwrite(out.data, 1, out.num_bytes, stdout) != out.num_bytes;
        json_decref(l->row);
        cr_free(l->error);
    }
    s->is_closed |= fflush(stdout) != 0;
    cr_buf_free(&out);
}

static cr_status work(scoring *s, cr_err *err)
{
    CR_TRY(cr_session_open(&s->session, NULL, err));
    s->lines = CR_NEW_ARRAY(line, s->session.batch_size);
    s->scores = CR_NEW_ARRAY(float, s->session.batch_size);
    while (!s->is_closed) {
        take_lines(s);
        if (s->num == 0) break;
        if (score(s, err) != CR_OK) return err->status;
        answer(s);
    }
    return s->has_bad ? cr_fail(err, CR_EFORMAT, "some lines were wrong (see their \"error\")")
                      : CR_OK;
}

cr_status cr_reward_model_lines(const cr_reward_model_args *args, cr_err *err)
{
    scoring s = {.input = {.fd = STDIN_FILENO}, .form = args->form};
    char *role = cr_asprintf(CR_ROLE_REWARDS "%s", args->domain);
    const char *word = args->path;

    if (cr_session_read_role(&s.session, CR_SESSION_INFER, role,
                             &(cr_words){.word = &word, .num = 1}, true, err) == CR_OK) {
        s.session.first_device = args->number % s.session.keys->num_devices;
        cr_note(work(&s, err));
    }
    cr_free(role);
    cr_input_free(&s.input);
    cr_packed_free(&s.packed);
    cr_free(s.lines);
    cr_free(s.ids);
    cr_free(s.scores);
    cr_session_close(&s.session);
    return err->status;
}
