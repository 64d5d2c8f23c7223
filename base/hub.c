/* hub.c -- see hub.h. */
#include "base/hub.h"

#include <stdlib.h>
#include <string.h>

bool cr_hub_is_name(const char *model)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t org = strspn(model, allowed), name, revision;

    if (org == 0 || model[0] == '.' || model[org] != '/') return false;
    model += org + 1;
    name = strspn(model, allowed);
    if (name == 0 || model[0] == '.') return false;
    if (!model[name]) return true;
    model += name + 1;
    revision = strspn(model, allowed);
    return model[-1] == '@' && revision > 0 && model[0] != '.' && !model[revision];
}

static char *cache_folder(void)
{
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};

    for (size_t i = 0; i < CR_COUNT(places); i++) {
        const char *value = getenv(places[i].variable);
        if (value && *value) return cr_asprintf("%s%s", value, places[i].below);
    }
    return NULL;
}

/* snapshots/REVISION, or the snapshot that refs/REVISION names. */
static char *find_snapshot(const char *repo, const char *revision)
{
    char *folder = cr_asprintf("%s/snapshots/%s", repo, revision),
         *ref = cr_asprintf("%s/refs/%s", repo, revision);
    cr_buf hash = {0};
    cr_err ignored = {0};

    if (!cr_dir_exists(folder) && cr_file_exists(ref) &&
        cr_file_read(ref, &hash, &ignored) == CR_OK && hash.num_bytes > 0) {
        hash.data[strspn(hash.data, "0123456789abcdef")] = 0;
        cr_free(folder);
        folder = cr_asprintf("%s/snapshots/%s", repo, *hash.data ? hash.data : "none");
    }
    if (!cr_dir_exists(folder)) {
        cr_free(folder);
        folder = NULL;
    }
    cr_buf_free(&hash);
    cr_free(ref);
    return folder;
}

char *cr_hub_find(const char *model)
{
    const char *slash = strchr(model, '/'), *at = strchr(model, '@');
    char *cache, *repo, *folder;

    if (cr_dir_exists(model)) return cr_strdup(model);
    if (!cr_hub_is_name(model) || !(cache = cache_folder())) return NULL;
    repo = cr_asprintf("%s/models--%.*s--%.*s", cache, (int)(slash - model), model,
                       (int)(at ? (size_t)(at - slash - 1) : strlen(slash + 1)), slash + 1);
    folder = find_snapshot(repo, at ? at + 1 : "main");
    cr_free(cache);
    cr_free(repo);
    return folder;
}

/* A path of two names: its first is a folder here, or one of the names that no account of Hugging Face has, as its pages have them. */
static bool is_local(const char *model)
{
    static const char *const pages[] = {"models", "datasets", "spaces"};
    char *first = cr_asprintf("%.*s", (int)strcspn(model, "/"), model);
    bool is = cr_dir_exists(first);

    for (size_t i = 0; i < CR_COUNT(pages); i++)
        is = is || strcmp(first, pages[i]) == 0;
    cr_free(first);
    return is;
}

cr_status cr_hub_absent(const char *model, cr_err *err)
{
    const char *at = strchr(model, '@');
    int n = at ? (int)(at - model) : (int)strlen(model);

    if (!cr_hub_is_name(model))
        return cr_fail(err, CR_EFORMAT, "%s is not a folder; a MODEL is a folder with config.json",
                       model);
    if (is_local(model))
        return cr_fail(err, CR_EFORMAT,
                       "there is no folder %s (croll downloads nothing: hf download ORG/NAME "
                       "--local-dir %.*s makes it)",
                       model, n, model);
    return cr_fail(
        err, CR_EFORMAT,
        "there is no folder %s, and as a name of Hugging Face its cache does not hold it (croll "
        "downloads nothing: hf download ORG/NAME --local-dir %.*s makes the folder, hf download "
        "%.*s%s%s fills the cache)",
        model, n, model, n, model, at ? " --revision " : "", at ? at + 1 : "");
}
