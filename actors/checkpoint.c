/* checkpoint.c -- see checkpoint.h. */
#include "actors/checkpoint.h"
#include "base/json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static cr_status hash_file(const char *path, char hex[65], int64_t *size, cr_err *err)
{
    FILE *file = fopen(path, "rb");
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    unsigned char digest[EVP_MAX_MD_SIZE];
    static char block[1 << 20];
    unsigned n = 0;
    size_t k;

    *size = 0;
    if (!file) cr_fail(err, CR_EIO, "cannot read %s: %s", path, strerror(errno));
    CR_CHECK(md && EVP_DigestInit_ex(md, EVP_sha256(), NULL), "no SHA-256 in OpenSSL");
    while (file && (k = fread(block, 1, sizeof block, file)) > 0) {
        EVP_DigestUpdate(md, block, k);
        *size += (int64_t)k;
    }
    if (file && ferror(file)) cr_fail(err, CR_EIO, "cannot read %s: %s", path, strerror(errno));
    EVP_DigestFinal_ex(md, digest, &n);
    EVP_MD_CTX_free(md);
    for (unsigned i = 0; i < n; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    if (file) fclose(file);
    return err->status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Every file below folder/inner, hashed, into files. Names in order, so the manifest is repeatable. */
static cr_status list_files(const char *folder, const char *inner, json_t *files, cr_err *err)
{
    char *path = *inner ? cr_path_join(folder, inner) : cr_strdup(folder), *names[1024];
    DIR *dir = opendir(path);
    struct dirent *entry;
    size_t num = 0;

    while (dir && num < CR_COUNT(names) && (entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            names[num++] = cr_strdup(entry->d_name);
    if (!dir)
        cr_fail(err, CR_EIO, "cannot read %s: %s", path, strerror(errno));
    else
        closedir(dir);
    qsort(names, num, sizeof *names, by_name);
    for (size_t i = 0; i < num; i++) {
        char *name = *inner ? cr_path_join(inner, names[i]) : cr_strdup(names[i]),
             *whole = cr_path_join(folder, name), hex[65];
        int64_t size;
        if (err->status != CR_OK || strcmp(name, "manifest.json") == 0) {
        } else if (cr_dir_exists(whole)) {
            cr_note(list_files(folder, name, files, err));
        } else if (hash_file(whole, hex, &size, err) == CR_OK) {
            json_object_set_new(files, name,
                                json_pack("{s:I,s:s}", "size", (json_int_t)size, "sha256", hex));
        }
        cr_free(name);
        cr_free(whole);
        cr_free(names[i]);
    }
    cr_free(path);
    return err->status;
}

static void sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

cr_status cr_checkpoint_begin(const char *output_dir, int64_t step, char **folder, cr_err *err)
{
    char *state;

    *folder = cr_asprintf("%s/checkpoint-%lld.tmp", output_dir, (long long)step);
    state = cr_path_join(*folder, "state");
    if (cr_remove_tree(*folder, err) == CR_OK) cr_note(cr_mkdirs(state, err));
    cr_free(state);
    if (err->status == CR_OK) return CR_OK;
    cr_free(*folder);
    *folder = NULL;
    return err->status;
}

/* Remove the oldest ones beyond `keep`; the new one and what it links to are kept last. */
static void prune(const char *output_dir, int64_t keep)
{
    DIR *dir = opendir(output_dir);
    struct dirent *entry;
    long long steps[4096];
    size_t num = 0;
    cr_err ignored = {0};

    while (dir && num < CR_COUNT(steps) && (entry = readdir(dir))) {
        char *end;
        if (strncmp(entry->d_name, "checkpoint-", 11) != 0) continue;
        steps[num] = strtoll(entry->d_name + 11, &end, 10);
        if (end != entry->d_name + 11 && *end == 0) num++;
    }
    if (dir) closedir(dir);
    while (keep > 0 && num > (size_t)keep) {
        size_t oldest = 0;
        for (size_t i = 1; i < num; i++)
            if (steps[i] < steps[oldest]) oldest = i;
        char *path = cr_asprintf("%s/checkpoint-%lld", output_dir, steps[oldest]);
        if (cr_remove_tree(path, &ignored) != CR_OK)
            cr_log(CR_LOG_WARN, "checkpoint", "%s", ignored.msg);
        cr_free(path);
        steps[oldest] = steps[--num];
    }
}

cr_status cr_checkpoint_finish(const char *output_dir, const char *folder, int64_t step,
                               int64_t keep, cr_err *err)
{
    json_t *root = json_object(), *files = json_object();
    char *manifest = cr_path_join(folder, "manifest.json"),
         *target = cr_asprintf("%s/checkpoint-%lld", output_dir, (long long)step);
    char *link = cr_path_join(output_dir, "latest"),
         *fresh = cr_asprintf("%s/latest.tmp", output_dir), name[64];
    cr_buf text = {0};

    json_object_set_new(root, "step", json_integer(step));
    json_object_set_new(root, "files", files);
    if (list_files(folder, "", files, err) == CR_OK &&
        cr_json_add_value(&text, root, err) == CR_OK &&
        cr_file_write_atomic(manifest, text.data, text.num_bytes, err) == CR_OK) {
        sync_folder(folder);
        if (cr_dir_exists(target))
            cr_note(cr_remove_tree(target, err)); /* of an earlier life of this run */
        if (err->status == CR_OK && rename(folder, target) != 0)
            cr_fail(err, CR_EIO, "cannot rename %s: %s", folder, strerror(errno));
        sync_folder(output_dir);
    }
    snprintf(name, sizeof name, "checkpoint-%lld", (long long)step);
    unlink(fresh);
    if (err->status == CR_OK && (symlink(name, fresh) != 0 || rename(fresh, link) != 0))
        cr_fail(err, CR_EIO, "cannot set the link %s: %s", link, strerror(errno));
    if (err->status == CR_OK) prune(output_dir, keep);
    json_decref(root);
    cr_buf_free(&text);
    cr_free(manifest);
    cr_free(target);
    cr_free(link);
    cr_free(fresh);
    return err->status;
}

cr_status cr_checkpoint_verify(const char *path, cr_err *err)
{
    char *manifest = cr_path_join(path, "manifest.json"), hex[65];
    json_t *root = NULL, *entry;
    const char *name;
    int64_t size;

    if (cr_json_read_file(manifest, &root, err) == CR_OK)
        json_object_foreach(json_object_get(root, "files"), name, entry)
        {
            char *file = cr_path_join(path, name);
            const char *want = json_string_value(json_object_get(entry, "sha256"));
            if (err->status == CR_OK && hash_file(file, hex, &size, err) == CR_OK &&
                (!want || strcmp(want, hex) != 0))
                cr_fail(err, CR_EFORMAT, "%s is not what %s says (damaged?)", file, manifest);
            cr_free(file);
        }
    json_decref(root);
    cr_free(manifest);
    return err->status;
}

cr_status cr_checkpoint_find(const cr_config *config, char **path, int64_t *first_step, cr_err *err)
{
    char *manifest;
    json_t *root = NULL;

    *path = NULL;
    *first_step = 0;
    if (!config->resume) return CR_OK;
    *path =
        *config->resume ? cr_strdup(config->resume) : cr_path_join(config->output_dir, "latest");
    if (!cr_dir_exists(*path)) {
        if (*config->resume)
            cr_fail(err, CR_ECONFIG, "resume_from_checkpoint: there is no checkpoint at %s", *path);
        cr_free(*path);
        *path = NULL;
        if (err->status == CR_OK)
            cr_log(CR_LOG_WARN, "run", "no checkpoint in %s yet: starting from the beginning",
                   config->output_dir);
        return err->status;
    }
    manifest = cr_path_join(*path, "manifest.json");
    if (cr_checkpoint_verify(*path, err) == CR_OK &&
        cr_json_read_file(manifest, &root, err) == CR_OK)
        *first_step = json_integer_value(json_object_get(root, "step")) + 1;
    json_decref(root);
    cr_free(manifest);
    if (err->status == CR_OK) return CR_OK;
    err->status = CR_ECONFIG;
    cr_free(*path);
    *path = NULL;
    return cr_fail_add(err, "resume_from_checkpoint");
}

size_t cr_checkpoint_roles(const char *path, char *roles[CR_CHECKPOINT_MOST_ROLES])
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    size_t num = 0;

    while (dir && num < CR_CHECKPOINT_MOST_ROLES && (entry = readdir(dir))) {
        char *config = cr_asprintf("%s/%s/config.json", path, entry->d_name);
        if (entry->d_name[0] != '.' && cr_file_exists(config))
            roles[num++] = cr_strdup(entry->d_name);
        cr_free(config);
    }
    if (dir) closedir(dir);
    qsort(roles, num, sizeof *roles, by_name);
    return num;
}
