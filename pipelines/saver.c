/* saver.c -- see saver.h. */
#include "pipelines/saver.h"
#include "actors/run_mark.h"
#include "base/digest.h"
#include "exchange/record.h"
#include "launch/role_call.h"
#include "pipelines/checkpoint.h"
#include "samples/protocol.h"

#include <stdio.h>
#include <string.h>

static const double MAX_LAG_S = 30;
static const char data_file[] = "state/data.json";

static cr_status not_saved(const cr_saver *s, cr_err *err)
{
    return cr_fail_add(err, "checkpoint-%lld is not saved (earlier ones are whole)",
                       (long long)s->step);
}

/* state/data.json: what the data files held. */
static char *text_of_data(const cr_saver *s)
{
    return cr_asprintf("{\"rows\":%zu,\"sum\":\"%016llx\"}\n", s->data->num_rows,
                       (unsigned long long)s->data->sum);
}

static cr_status write_data(const cr_saver *s, cr_err *err)
{
    char *path = cr_path_join(s->folder, data_file), *text = text_of_data(s);

    cr_note(cr_file_write_atomic(path, text, strlen(text), err));
    cr_free(path);
    cr_free(text);
    return err->status;
}

/* Checkpoints of before have no such file. */
static void compare_data(const cr_saver *s, const char *checkpoint)
{
    char *path = cr_path_join(checkpoint, data_file), *now = text_of_data(s);
    cr_err ignored = {0};
    cr_buf then = {0};

    if (cr_file_exists(path) && cr_file_read(path, &then, &ignored) == CR_OK &&
        strcmp(then.data, now) != 0)
        cr_log(CR_LOG_WARN, "checkpoint",
               "the data files hold something else than at %s (then %.*s, now %.*s): the order of "
               "rows goes on where it stood, which are others",
               checkpoint, (int)strcspn(then.data, "\n"), then.data, (int)strcspn(now, "\n"), now);
    cr_buf_free(&then);
    cr_free(path);
    cr_free(now);
}

cr_status cr_saver_begin(cr_saver *s, int64_t step, const char **folder, cr_err *err)
{
    CR_TRY(cr_saver_wait(s, err));
    s->step = step;
    cr_run_mark_make(s->mark);
    if (cr_checkpoint_begin(s->run->config->checkpoint_dir, step, s->mark, &s->folder, err) !=
            CR_OK ||
        write_data(s, err) != CR_OK)
        return not_saved(s, err);
    *folder = s->folder;
    return CR_OK;
}

cr_status cr_saver_start(cr_saver *s, cr_err *err)
{
    cr_record command = {0};
    cr_role_call call = {.role = CR_NUM_ROLES, .ask = CR_ASK_SAVE, .command = &command};
    size_t num;
    uint64_t *steps = cr_checkpoint_steps(s->run->config->checkpoint_dir, &num);

    cr_record_set_text(&command, CR_FIELD_FOLDER, s->folder, strlen(s->folder));
    cr_record_set_text(&command, CR_FIELD_MARK, s->mark, strlen(s->mark));
    cr_record_set_int(&command, CR_FIELD_STEP, s->step);
    cr_record_add(&command, CR_FIELD_STEPS, CR_RECORD_UINT64, steps, num);
    cr_note(cr_role_call_run(s->run, &call, err));
    cr_role_call_free(&call);
    cr_record_free(&command);
    cr_free(steps);
    return err->status == CR_OK ? CR_OK : not_saved(s, err);
}

cr_status cr_saver_end_step(cr_saver *s, bool is_last, cr_err *err)
{
    return is_last || !s->run->config->train.async_save_ckpt ? cr_saver_wait(s, err) : CR_OK;
}

cr_status cr_saver_poll(cr_saver *s, cr_err *err)
{
    cr_role_call call = {.role = CR_NUM_ROLES, .ask = CR_ASK_SAVE_POLL};
    int64_t num_busy = 0, is_busy;

    if (!s->folder) return CR_OK;
    if (cr_role_call_run(s->run, &call, err) == CR_OK)
        for (int i = 0; i < call.num; i++)
            if (cr_record_get_int(&call.replies[i], CR_FIELD_BUSY, &is_busy, err) == CR_OK)
                num_busy += is_busy;
    cr_role_call_free(&call);
    if (err->status == CR_OK && num_busy == 0) return cr_saver_wait(s, err);
    return err->status;
}

/* What the replies of all ranks of a role say, into written[CR_WRITTEN_FILES + ranks]. */
static cr_status add_up(const cr_record *replies, const struct cr_role_ranks *ranks,
                        cr_written *written, size_t *num_written, cr_err *err)
{
    const char *role = ranks->name;
    cr_written *shard = written + CR_WRITTEN_FILES;

    for (int i = 0; i < CR_WRITTEN_FILES; i++)
        written[i].name = cr_written_name(role, i, cr_is_lora(&ranks->worker->lora));
    *num_written = CR_WRITTEN_FILES;
    for (int r = 0; r < ranks->num; r++) {
        const char *name, *host, *hex;
        const void *data;
        const uint64_t *of;
        size_t num;
        int64_t is_here;
        CR_TRY(cr_record_get(&replies[r], CR_FIELD_WRITTEN, CR_RECORD_UINT64, &data, &num, err));
        if (num != 2 * CR_WRITTEN_FILES)
            return cr_fail(err, CR_EFORMAT, "%s rank %d: a reply of %zu numbers", role, r, num);
        of = data;
        for (int i = 0; i < CR_WRITTEN_FILES; i++) {
            written[i].num_bytes += (int64_t)of[i];
            written[i].sum += of[CR_WRITTEN_FILES + i];
        }
        CR_TRY(cr_record_get_text(&replies[r], CR_FIELD_SHARD, &name, &num, err));
        if (!*name) continue;
        CR_TRY(cr_record_get_text(&replies[r], CR_FIELD_HOST, &host, &num, err));
        CR_TRY(cr_record_get_text(&replies[r], CR_FIELD_SHARD_HASH, &hex, &num, err));
        CR_TRY(cr_record_get_int(&replies[r], CR_FIELD_SHARD_BYTES, &shard->num_bytes, err));
        CR_TRY(cr_record_get_int(&replies[r], CR_FIELD_IS_HERE, &is_here, err));
        shard->name = cr_asprintf("state/%s", name);
        snprintf(shard->hex, sizeof shard->hex, "%s", hex);
        snprintf(shard->host, sizeof shard->host, "%s", is_here ? "" : host);
        shard++;
        (*num_written)++;
    }
    if (!written[CR_WRITTEN_FILES - 1].num_bytes && *num_written == CR_WRITTEN_FILES)
        return cr_fail(err, CR_EFORMAT, "no rank of %s says what it has written", role);
    return CR_OK;
}

/* The parts of all ranks are on disk: the checkpoint gets its name, if they are what it holds. */
static cr_status commit(const cr_saver *s, const cr_role_call *call, cr_err *err)
{
    const cr_config *c = s->run->config;
    size_t num = 0, max = CR_NUM_ROLES * CR_WRITTEN_FILES + (size_t)call->num;
    cr_written *written = CR_NEW_ARRAY(cr_written, max);
    double lag_s = c->collective_timeout < MAX_LAG_S ? c->collective_timeout : MAX_LAG_S;
    const cr_record *replies = call->replies;

    for (int role = 0; role < CR_NUM_ROLES && err->status == CR_OK; role++) {
        const struct cr_role_ranks *ranks = &s->run->layout.role[role];
        size_t num_of_role;
        if (!ranks->num || !cr_ask_is_for(call->ask, ranks->worker)) continue;
        cr_note(add_up(replies, ranks, written + num, &num_of_role, err));
        num += num_of_role;
        replies += ranks->num;
    }
    if (err->status == CR_OK)
        cr_note(cr_checkpoint_finish(c->checkpoint_dir, s->folder, s->step, c->max_ckpt_to_keep,
                                     written, num, lag_s, err));
    for (size_t i = 0; i < max; i++)
        cr_free(written[i].name);
    cr_free(written);
    return err->status;
}

cr_status cr_saver_wait(cr_saver *s, cr_err *err)
{
    cr_role_call call = {.role = CR_NUM_ROLES, .ask = CR_ASK_SAVE_WAIT};

    if (!s->folder) return CR_OK;
    if (cr_role_call_run(s->run, &call, err) == CR_OK) cr_note(commit(s, &call, err));
    cr_role_call_free(&call);
    if (err->status != CR_OK) return not_saved(s, err);
    cr_free(s->folder); /* renamed */
    s->folder = NULL;
    return CR_OK;
}

cr_status cr_saver_resume(const cr_saver *s, const char *checkpoint, cr_err *err)
{
    char *folder = cr_checkpoint_real(checkpoint),
         *manifest = cr_path_join(folder, "manifest.json"), hex[CR_DIGEST_TEXT];
    cr_record command = {0};
    cr_role_call call = {.role = CR_NUM_ROLES, .ask = CR_ASK_RESUME, .command = &command};

    compare_data(s, checkpoint);
    if (cr_digest_file(manifest, hex, NULL, err) == CR_OK) {
        cr_record_set_text(&command, CR_FIELD_FOLDER, folder, strlen(folder));
        cr_record_set_text(&command, CR_FIELD_MANIFEST, hex, strlen(hex));
        cr_note(cr_role_call_run(s->run, &call, err));
    }
    cr_role_call_free(&call);
    cr_record_free(&command);
    cr_free(folder);
    cr_free(manifest);
    return err->status;
}

void cr_saver_fini(cr_saver *s)
{
    cr_err ignored = {0};

    if (s->folder && cr_remove_tree(s->folder, &ignored) != CR_OK)
        cr_log(CR_LOG_WARN, "checkpoint", "%s", ignored.msg);
    cr_free(s->folder);
    s->folder = NULL;
}
