/* progress.c -- see progress.h. */
#include "pipelines/progress.h"

#include <math.h>
#include <stdio.h>

cr_status cr_progress_write(const char *path, int64_t step, const cr_learning *learning,
                            const cr_cursor *cursors, cr_err *err)
{
    const cr_config *c = learning->config;
    json_t *positions = json_object(), *moments = json_array(), *root;
    cr_buf text = {0};

    for (size_t d = 0; d < c->num_rewards; d++) {
        const cr_moments *m = &learning->moments[d];
        json_object_set_new(positions, c->rewards[d].domain,
                            json_pack("{s:I,s:I,s:f}", "epoch", (json_int_t)cursors[d].epoch,
                                      "next", (json_int_t)cursors[d].next, "owed",
                                      cursors[d].deficit));
        json_array_append_new(moments, json_pack("[f,f,f]", m->mean, m->var, m->count));
    }
    root = json_pack("{s:I,s:o,s:{s:I,s:I,s:f,s:o}}", "step", (json_int_t)step, "cursors",
                     positions, "learning", "updates", (json_int_t)learning->actor.updates,
                     "critic_updates", (json_int_t)learning->critic.updates, "kl_coef",
                     learning->kl_coef, "moments", moments);
    CR_CHECK(root, "state of a pipeline that is no JSON");
    cr_best_put(&learning->best, root);
    if (cr_json_add_value(&text, root, err) == CR_OK)
        cr_note(cr_file_write_atomic(path, text.data, text.num_bytes, err));
    json_decref(root);
    cr_buf_free(&text);
    return err->status;
}

/* A count that one more step does not overflow. */
static cr_status get_count(const json_t *object, const char *key, int64_t *out, cr_err *err)
{
    const json_t *v = json_object_get(object, key);

    *out = json_integer_value(v);
    if (json_is_integer(v) && *out >= 0 && *out < (int64_t)1 << 53) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "\"%s\" is not a count", key);
}

static cr_status get_real(const json_t *v, const char *what, double *out, cr_err *err)
{
    *out = json_number_value(v);
    if (json_is_number(v) && isfinite(*out)) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "\"%s\" is not a number", what);
}

static cr_status read_cursors(const json_t *root, const cr_config *c, cr_cursor *cursors,
                              cr_err *err)
{
    const json_t *all = json_object_get(root, "cursors"), *owed;

    if (!json_is_object(all)) return cr_fail(err, CR_EFORMAT, "it has no \"cursors\"");
    for (size_t d = 0; d < c->num_rewards; d++) {
        const json_t *cursor = json_object_get(all, c->rewards[d].domain);
        cursors[d] = (cr_cursor){0};
        if (!cursor) continue;
        CR_TRY(get_count(cursor, "epoch", &cursors[d].epoch, err));
        CR_TRY(get_count(cursor, "next", &cursors[d].next, err));
        owed = json_object_get(cursor, "owed"); /* absent in older checkpoints */
        if (owed) CR_TRY(get_real(owed, "owed", &cursors[d].deficit, err));
        if (fabs(cursors[d].deficit) > 1)
            return cr_fail(err, CR_EFORMAT, "\"owed\" is not a share");
    }
    return CR_OK;
}

static cr_status read_learning(const json_t *root, cr_learning *l, cr_err *err)
{
    const json_t *learning = json_object_get(root, "learning"),
                 *moments = json_object_get(learning, "moments");

    CR_TRY(get_count(learning, "updates", &l->actor.updates, err));
    if (l->critic.worker) CR_TRY(get_count(learning, "critic_updates", &l->critic.updates, err));
    CR_TRY(get_real(json_object_get(learning, "kl_coef"), "kl_coef", &l->kl_coef, err));
    if (!json_is_array(moments)) return cr_fail(err, CR_EFORMAT, "it has no \"moments\"");
    for (size_t d = 0; d < l->config->num_rewards && d < json_array_size(moments); d++) {
        const json_t *m = json_array_get(moments, d);
        CR_TRY(get_real(json_array_get(m, 0), "moments", &l->moments[d].mean, err));
        CR_TRY(get_real(json_array_get(m, 1), "moments", &l->moments[d].var, err));
        CR_TRY(get_real(json_array_get(m, 2), "moments", &l->moments[d].count, err));
    }
    return CR_OK;
}

cr_status cr_progress_read(const char *path, cr_learning *learning, cr_cursor *cursors, cr_err *err)
{
    json_t *root;

    CR_TRY(cr_json_read_file(path, &root, err));
    if (read_cursors(root, learning->config, cursors, err) == CR_OK)
        cr_note(read_learning(root, learning, err));
    if (err->status == CR_OK) cr_note(cr_best_get(&learning->best, root, err));
    json_decref(root);
    return cr_fail_add(err, "%s (damaged?)", path);
}
