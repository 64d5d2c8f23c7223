/* saver.c -- see saver.h. */
#include "pipelines/saver.h"
#include "pipelines/checkpoint.h"

#include <string.h>

static cr_status not_saved(const cr_saver *s, cr_err *err)
{
    return cr_fail_add(err, "checkpoint-%lld is not saved (earlier ones are whole)",
                       (long long)s->step);
}

cr_status cr_saver_begin(cr_saver *s, int64_t step, const char **folder, cr_err *err)
{
    CR_TRY(cr_saver_wait(s, err));
    s->step = step;
    if (cr_checkpoint_begin(s->run->config->checkpoint_dir, step, &s->folder, err) != CR_OK)
        return not_saved(s, err);
    *folder = s->folder;
    return CR_OK;
}

cr_status cr_saver_start(cr_saver *s, cr_err *err)
{
    cr_record command = {0};
    cr_status status;

    cr_record_set_text(&command, CR_FIELD_FOLDER, s->folder, strlen(s->folder));
    status = cr_run_call(s->run, CR_ROLE_TRAIN, CR_ASK_SAVE, &command, NULL, err);
    cr_record_free(&command);
    return status == CR_OK ? CR_OK : not_saved(s, err);
}

cr_status cr_saver_end_step(cr_saver *s, bool is_last, cr_err *err)
{
    return is_last || !s->run->config->train.async_save_ckpt ? cr_saver_wait(s, err) : CR_OK;
}

cr_status cr_saver_poll(cr_saver *s, cr_err *err)
{
    int num = s->run->layout.role[CR_ROLE_TRAIN].num;
    cr_record command = {0}, *replies;
    int64_t num_busy = 0, is_busy;

    if (!s->folder) return CR_OK;
    replies = CR_NEW_ARRAY(cr_record, num);
    if (cr_run_call(s->run, CR_ROLE_TRAIN, CR_ASK_SAVE_POLL, &command, replies, err) == CR_OK)
        for (int r = 0; r < num; r++)
            if (cr_record_get_int(&replies[r], CR_FIELD_BUSY, &is_busy, err) == CR_OK)
                num_busy += is_busy;
    for (int r = 0; r < num; r++)
        cr_record_free(&replies[r]);
    cr_free(replies);
    cr_record_free(&command);
    if (err->status == CR_OK && num_busy == 0) return cr_saver_wait(s, err);
    return err->status;
}

cr_status cr_saver_wait(cr_saver *s, cr_err *err)
{
    cr_record command = {0};

    if (!s->folder) return CR_OK;
    if (cr_run_call(s->run, CR_ROLE_TRAIN, CR_ASK_SAVE_WAIT, &command, NULL, err) == CR_OK)
        cr_note(cr_checkpoint_finish(s->run->config->checkpoint_dir, s->folder, s->step,
                                     s->run->config->max_ckpt_to_keep, err));
    cr_record_free(&command);
    if (err->status != CR_OK) cr_note(not_saved(s, err));
    if (err->status == CR_OK) { /* renamed */
        cr_free(s->folder);
        s->folder = NULL;
    }
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
