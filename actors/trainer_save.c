/* trainer_save.c -- checkpoints of a trained role, on hosts that share the run's folder or not (checkpoint_config.hosts).
 *
 * Each save has a mark of its own, which the launcher has put into its folder: a rank that does not find it there, before it
 * writes and after, has another folder, whatever was there when the run began.
 */
#include "actors/run_mark.h"
#include "actors/trainer_impl.h"
#include "base/children.h"
#include "base/digest.h"
#include "mesh/mesh.h"
#include "strategies/checkpoint.h"

#include <string.h>
#include <unistd.h>

static const cr_save_kind kinds[] = {[CR_FILES_SHARED] = CR_SAVE_SHARED,
                                     [CR_FILES_GATHER] = CR_SAVE_GATHERED,
                                     [CR_FILES_EACH] = CR_SAVE_EACH};

_Static_assert((int)CR_WRITTEN_FILES == (int)CR_SAVED_FILES, "numbers of all files");

char *cr_written_name(const char *role, int file, bool has_adapters)
{
    char *path = cr_saved_path(".", role, file, has_adapters), *name = cr_strdup(path + 2);

    cr_free(path);
    return name;
}

/* The first rank of its host that does not have the launcher's folder looks after the parts there. */
static bool is_keeper(const cr_trainer *t)
{
    return cr_group_first_here(t->a->mesh->group[CR_AXIS_ALL]) == t->a->rank;
}

static cr_status texts_of(const cr_record *command, const char **folder, const char **mark,
                          int64_t *step, cr_err *err)
{
    size_t n;

    CR_TRY(cr_record_get_text(command, CR_FIELD_FOLDER, folder, &n, err));
    CR_TRY(cr_record_get_text(command, CR_FIELD_MARK, mark, &n, err));
    return cr_record_get_int(command, CR_FIELD_STEP, step, err);
}

cr_status cri_trainer_save(cr_trainer *t, const cr_record *command, cr_record *reply, cr_err *err)
{
    const cr_worker_config *w = t->a->ranks->worker;
    const cr_config *c = t->a->config;
    const char *folder, *mark;
    char *own;
    const void *kept;
    size_t num_kept;
    int64_t step;
    cr_save_args args = {.role = t->a->ranks->name,
                         .model_source = w->model_path,
                         .save_only_model = w->save_only_model,
                         .kind = kinds[c->checkpoint_hosts]};

    (void)reply;
    CR_TRY(texts_of(command, &folder, &mark, &step, err));
    CR_TRY(cr_record_get(command, CR_FIELD_STEPS, CR_RECORD_UINT64, &kept, &num_kept, err));
    args.was_here = t->a->has_folder;
    args.is_here = cr_run_mark_is_in(folder, mark, args.was_here);
    args.tag = strchr(mark, ':') ? strchr(mark, ':') + 1 : mark;
    own = cr_asprintf("%s/checkpoint-%lld", c->checkpoint_dir, (long long)step);
    args.folder = args.kind == CR_SAVE_EACH && !args.is_here ? own : folder;
    cr_free(t->save_folder);
    cr_free(t->save_mark);
    t->save_folder = args.is_here ? cr_strdup(folder) : NULL;
    t->save_mark = args.is_here ? cr_strdup(mark) : NULL;
    if (args.kind == CR_SAVE_EACH && !args.is_here && is_keeper(t))
        cr_saved_forget(c->checkpoint_dir, args.role, kept, num_kept);
    cr_note(cr_fsdp_save_start(t->f, &args, err));
    cr_free(own);
    return err->status;
}

cr_status cri_trainer_save_poll(cr_trainer *t, const cr_record *command, cr_record *reply,
                                cr_err *err)
{
    (void)command;
    (void)err;
    cr_record_set_int(reply, CR_FIELD_BUSY, cr_fsdp_is_saving(t->f));
    return CR_OK;
}

static void add_saved_files(const cr_saved *saved, bool is_here, cr_record *reply)
{
    uint64_t *written = CR_NEW_ARRAY(uint64_t, 2 * CR_SAVED_FILES);

    for (int i = 0; i < CR_SAVED_FILES; i++) {
        written[i] = (uint64_t)saved->num_bytes[i];
        written[CR_SAVED_FILES + i] = saved->sums[i];
    }
    reply->owned = written; /* freed with the reply */
    cr_record_add(reply, CR_FIELD_WRITTEN, CR_RECORD_UINT64, written, 2 * CR_SAVED_FILES);
    cr_record_set_int(reply, CR_FIELD_IS_HERE, is_here);
    cr_record_set_text(reply, CR_FIELD_HOST, cr_host_name(), strlen(cr_host_name()));
    cr_record_set_text(reply, CR_FIELD_SHARD, saved->shard, strlen(saved->shard));
    cr_record_set_text(reply, CR_FIELD_SHARD_HASH, saved->shard_hex, strlen(saved->shard_hex));
    cr_record_set_int(reply, CR_FIELD_SHARD_BYTES, saved->shard_bytes);
}

cr_status cri_trainer_save_wait(cr_trainer *t, const cr_record *command, cr_record *reply,
                                cr_err *err)
{
    cr_saved saved;

    (void)command;
    CR_TRY(cr_fsdp_save_wait(t->f, &saved, err));
    if (t->save_folder && !cr_run_mark_is_in(t->save_folder, t->save_mark, true))
        return cr_fail(
            err, CR_EIO,
            "%s on %s is no longer the folder that the launcher has made: was output_dir replaced "
            "or unmounted there?",
            t->save_folder, cr_host_name());
    add_saved_files(&saved, t->save_folder != NULL, reply);
    return CR_OK;
}

cr_status cri_trainer_resume(cr_trainer *t, const cr_record *command, cr_record *reply, cr_err *err)
{
    const char *folder, *want;
    char *manifest, hex[CR_DIGEST_TEXT];
    cr_err absent = {0};
    size_t n;
    bool is_here;

    (void)reply;
    CR_TRY(cr_record_get_text(command, CR_FIELD_FOLDER, &folder, &n, err));
    CR_TRY(cr_record_get_text(command, CR_FIELD_MANIFEST, &want, &n, err));
    manifest = cr_path_join(folder, "manifest.json");
    is_here = cr_digest_file(manifest, hex, NULL, &absent) == CR_OK && strcmp(hex, want) == 0;
    cr_free(manifest);
    return cr_fsdp_resume(t->f, folder, t->a->ranks->name, is_here, err);
}
