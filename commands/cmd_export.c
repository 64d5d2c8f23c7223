/* cmd_export.c -- croll export: the MODEL folder of one role out of a checkpoint, or a MODEL with an adapter merged. */
#include "base/hub.h"
#include "commands/commands.h"
#include "models/files/merge.h"
#include "models/files/peft.h"
#include "pipelines/checkpoint.h"
#include "strategies/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The rest of a file; some file systems cannot do it inside the kernel. */
static ssize_t copy_rest(int in, int out)
{
    char block[1 << 16];
    ssize_t n, done, k;

    while ((n = copy_file_range(in, NULL, out, NULL, 1 << 30, 0)) > 0) {
    }
    if (n == 0 || (errno != EXDEV && errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP))
        return n;
    while ((n = read(in, block, sizeof block)) > 0)
        for (done = 0; done < n; done += k)
            if ((k = write(out, block + done, (size_t)(n - done))) < 0) return -1;
    return n;
}

static cr_status copy_file(const char *from, const char *to, cr_err *err)
{
    int in = open(from, O_RDONLY | O_CLOEXEC), out = -1;

    if (in < 0) return cr_fail(err, CR_EIO, "cannot read %s: %s", from, strerror(errno));
    out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (out < 0 || copy_rest(in, out) < 0 || fsync(out) != 0)
        cr_fail(err, CR_EIO, "cannot write %s: %s", to, strerror(errno));
    close(in);
    if (out >= 0) close(out);
    return err->status;
}

static bool is_weights(const char *file)
{
    static const char *const ends[] = {".safetensors", ".safetensors.index.json", ".bin",
                                       ".bin.index.json"};
    size_t num = strlen(file);

    for (size_t i = 0; i < CR_COUNT(ends); i++)
        if (num > strlen(ends[i]) && strcmp(file + num - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

static cr_status copy_folder(const char *from, const char *to, bool has_weights, cr_err *err)
{
    DIR *dir = opendir(from);
    struct dirent *entry;

    if (!dir) return cr_fail(err, CR_EIO, "cannot read %s: %s", from, strerror(errno));
    while (err->status == CR_OK && (entry = readdir(dir))) {
        char *file = cr_path_join(from, entry->d_name), *target = cr_path_join(to, entry->d_name);
        if (cr_file_exists(file) && (has_weights || !is_weights(entry->d_name)))
            cr_note(copy_file(file, target, err));
        cr_free(file);
        cr_free(target);
    }
    closedir(dir);
    return err->status;
}

/* The role to take: the one that is asked for, or the only one. */
static cr_status choose(const char *checkpoint, const char *role, char **source, cr_err *err)
{
    char *roles[CR_CHECKPOINT_MAX_ROLES];
    size_t num = cr_checkpoint_roles(checkpoint, roles);
    cr_buf names = {0};
    char *latest = cr_path_join(checkpoint, "latest");
    bool is_run = cr_dir_exists(latest);

    *source = NULL;
    for (size_t i = 0; i < num; i++) {
        if (role ? strcmp(role, roles[i]) == 0 : num == 1)
            *source = cr_path_join(checkpoint, roles[i]);
        cr_buf_addf(&names, "%s%s", i ? ", " : "", roles[i]);
    }
    if (num == 0)
        cr_fail(err, CR_EUSAGE, "%s is not a checkpoint: no folder in it holds a model%s%s%s",
                checkpoint, is_run ? " (it is a run's folder: " : "", is_run ? latest : "",
                is_run ? " is its newest checkpoint)" : "");
    else if (!*source)
        cr_fail(err, CR_EUSAGE,
                role ? "there is no role %s, there are: %s" : "%schoose with --role: %s",
                role ? role : "", names.data);
    for (size_t i = 0; i < num; i++)
        cr_free(roles[i]);
    cr_buf_free(&names);
    cr_free(latest);
    return err->status;
}

/* The model in parts of the ranks (checkpoint_config.hosts: each), put together. */
static cr_status join(const char *checkpoint, const char *source, const char *to, cr_err *err)
{
    char *config = cr_path_join(to, CR_PEFT_CONFIG),
         *path = cr_path_join(to, cr_file_exists(config) ? CR_PEFT_TENSORS : "model.safetensors");
    bool is_parted;

    cr_note(cr_saved_join_model(checkpoint, strrchr(source, '/') + 1, path, &is_parted, err));
    cr_free(config);
    cr_free(path);
    return err->status;
}

/* What OUT is made of. */
typedef struct origin {
    const char *from, *role, *adapter; /* from: a checkpoint; with an adapter a MODEL */
    char *folder;                      /* that is copied, owned */
} origin;

static cr_status find(origin *o, cr_err *err)
{
    if (!o->adapter) return choose(o->from, o->role, &o->folder, err);
    if (o->role) return cr_fail(err, CR_EUSAGE, "--role is for a checkpoint, --merge for a MODEL");
    o->folder = cr_hub_find(o->from);
    return o->folder ? CR_OK : cr_hub_absent(o->from, err);
}

static cr_status fill(const origin *o, const char *to, cr_err *err)
{
    if (!o->adapter) CR_TRY(cr_checkpoint_verify(o->from, err));
    CR_TRY(cr_remove_tree(to, err));
    CR_TRY(cr_mkdirs(to, err));
    CR_TRY(copy_folder(o->folder, to, !o->adapter, err));
    return o->adapter ? cr_adapter_merge(o->folder, o->adapter, to, err)
                      : join(o->from, o->folder, to, err);
}

static cr_status export(const cr_words *words, origin *o, cr_err *err)
{
    char *partial;
    const char *out;

    if (words->num != 2)
        return cr_fail(err, CR_EUSAGE, "give %s and OUT, two folders",
                       o->adapter ? "MODEL" : "CHECKPOINT");
    o->from = words->word[0];
    out = words->word[1];
    if (cr_dir_exists(out) || cr_file_exists(out))
        return cr_fail(err, CR_EUSAGE, "%s is there already: name a new folder", out);
    CR_TRY(find(o, err));
    partial = cr_asprintf("%s.tmp", out);
    if (fill(o, partial, err) == CR_OK && rename(partial, out) != 0)
        cr_fail(err, CR_EIO, "cannot rename %s: %s", partial, strerror(errno));
    if (err->status == CR_OK) {
        printf("%s holds the model of %s%s%s\n", out, o->folder, o->adapter ? " with " : "",
               o->adapter ? o->adapter : "");
    } else {
        cr_err ignored = {0};
        cr_note(cr_remove_tree(partial, &ignored));
    }
    cr_free(partial);
    return err->status;
}

static int run(int argc, char **argv)
{
    origin o = {0};
    const cr_option options[] = {
        {"role", CR_OPT_STRING, &o.role, "ROLE",
         "actor_train, critic, ... (default: the only one)"},
        {"merge", CR_OPT_STRING, &o.adapter, "DIR",
         "a LoRA adapter in PEFT's layout, added to the weights of a MODEL, its base"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help;

    if (cr_args_parse(&cr_command_export, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help)
        cr_note(export(&words, &o, &err));
    cr_words_free(&words);
    cr_free(o.folder);
    return err.status ? cr_command_fail(&cr_command_export, &err) : 0;
}

const cr_command cr_command_export = {
    "export",
    "export CHECKPOINT OUT [--role ROLE] | export MODEL OUT --merge DIR",
    "The model of a training checkpoint as a folder of its own, which Transformers loads, every "
    "file checked against the checkpoint's manifest first; or a MODEL with an adapter in its "
    "weights: W + scale B A in float32, rounded once. OUT appears complete or not at all.",
    "croll export output/quickstart/sft/latest output/quickstart/sft_model",
    run,
};
