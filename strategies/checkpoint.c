/* checkpoint.c -- a role's part of a checkpoint: a MODEL folder and resumable state.
 *
 * state/ROLE.json names every parameter with its first element in three raw float32 files, ROLE.master,
 * ROLE.m and ROLE.v. Each rank writes its own elements with pwrite and reads, on any other mesh, the
 * elements that its shards want: the files know nothing of ranks. Frozen parameters are in MODEL only.
 */
#include "strategies/fsdp_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cr_status transfer_all(int fd, bool is_write, void *data, size_t num_bytes, int64_t at,
                              const char *what, cr_err *err)
{
    for (size_t done = 0; done < num_bytes;) {
        ssize_t n = is_write ? pwrite(fd, (char *)data + done, num_bytes - done, at + (int64_t)done)
                             : pread(fd, (char *)data + done, num_bytes - done, at + (int64_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return cr_fail(err, CR_EIO, "cannot %s %s: %s", is_write ? "write" : "read", what,
                           n < 0 ? strerror(errno) : "it ends early");
        done += (size_t)n;
    }
    return CR_OK;
}

/* ---- state ---- */

static const char *const kinds[] = {"master", "m", "v"};

static float *buffer_of(const cr_fsdp *f, size_t kind)
{
    return kind == 0 ? f->master : kind == 1 ? f->m : f->v;
}

/* First element of each trained parameter in the files: the order of units, without padding. */
static json_t *state_index(const cr_fsdp *f)
{
    json_t *root = json_object(), *params = json_object();
    int64_t at = 0;

    for (size_t i = 0; i < f->units.num; i++)
        for (size_t k = 0; k < f->units.unit[i].trained.num_params; k++) {
            const cr_param *p = f->units.unit[i].trained.params[k];
            json_object_set_new(
                params, p->name,
                json_pack("{s:I,s:I}", "first", (json_int_t)at, "num", (json_int_t)p->num_elems));
            at += p->num_elems;
        }
    json_object_set_new(root, "updates", json_integer(f->num_updates));
    json_object_set_new(root, "elements", json_integer(at));
    json_object_set_new(root, "params", params);
    return root;
}

/* Move this rank's elements between its shards and the three files. */
static cr_status move_state(cr_fsdp *f, const json_t *params, const char *folder, const char *role,
                            bool is_write, cr_err *err)
{
    for (size_t kind = 0; kind < CR_COUNT(kinds) && err->status == CR_OK; kind++) {
        char *path = cr_asprintf("%s/state/%s.%s", folder, role, kinds[kind]);
        int fd = open(path, (is_write ? O_WRONLY | O_CREAT : O_RDONLY) | O_CLOEXEC, 0666);
        if (fd < 0) cr_fail(err, CR_EIO, "cannot open %s: %s", path, strerror(errno));
        for (size_t i = 0; i < f->units.num && err->status == CR_OK; i++) {
            const cr_flat *flat = &f->units.unit[i].trained;
            for (size_t k = 0; k < flat->num_params && err->status == CR_OK; k++) {
                json_t *entry = json_object_get(params, flat->params[k]->name);
                int64_t begin, end, at, first = json_integer_value(json_object_get(entry, "first"));
                if (!entry || json_integer_value(json_object_get(entry, "num")) !=
                                  flat->params[k]->num_elems) {
                    cr_fail(err, CR_EFORMAT,
                            "%s has no parameter %s of %lld elements: it belongs to another model",
                            path, flat->params[k]->name, (long long)flat->params[k]->num_elems);
                    break;
                }
                if (!cri_shard_range(flat, k, cri_rank(f), &begin, &end, &at)) continue;
                transfer_all(fd, is_write, buffer_of(f, kind) + flat->first + at,
                             (size_t)(end - begin) * 4, (first + begin) * 4, path, err);
            }
        }
        if (fd >= 0 && is_write && fsync(fd) != 0)
            cr_fail(err, CR_EIO, "cannot write %s: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        cr_free(path);
    }
    return err->status;
}

static cr_status save_state(cr_fsdp *f, const char *folder, const char *role, cr_err *err)
{
    json_t *index = state_index(f);
    cr_buf text = {0};
    char *path = cr_asprintf("%s/state/%s.json", folder, role);

    if (f->mesh->rank == 0) {
        cr_note(cr_json_add_value(&text, index, err));
        if (err->status == CR_OK)
            cr_note(cr_file_write_atomic(path, text.data, text.num_bytes, err));
    }
    if (err->status == CR_OK)
        move_state(f, json_object_get(index, "params"), folder, role, true, err);
    json_decref(index);
    cr_buf_free(&text);
    cr_free(path);
    return err->status;
}

cr_status cr_fsdp_resume(cr_fsdp *f, const char *folder, const char *role, cr_err *err)
{
    char *path = cr_asprintf("%s/state/%s.json", folder, role);
    json_t *index = NULL;

    if (cr_json_read_file(path, &index, err) == CR_OK) {
        f->num_updates = json_integer_value(json_object_get(index, "updates"));
        move_state(f, json_object_get(index, "params"), folder, role, false, err);
    }
    json_decref(index);
    cr_free(path);
    return cr_agree(f->mesh->group[CR_AXIS_ALL], "resume", err);
}

/* ---- MODEL folder ---- */

/* Where each parameter lies in model.safetensors; the header is the same on every rank. */
typedef struct plan {
    cr_param **params;
    int64_t *first_byte; /* of the data, relative to the file */
    size_t num;
    cr_buf header; /* length and JSON */
    int64_t num_bytes;
} plan;

static int by_name(const void *a, const void *b)
{
    return strcmp((*(cr_param *const *)a)->name, (*(cr_param *const *)b)->name);
}

static void plan_make(const cr_fsdp *f, plan *p)
{
    size_t bytes = cr_dtype_bytes(f->args.param_dtype);
    cr_buf json = {0};
    uint64_t n;
    int64_t at = 0;

    *p = (plan){.num = f->model->num_params};
    p->params = CR_NEW_ARRAY(cr_param *, p->num);
    p->first_byte = CR_NEW_ARRAY(int64_t, p->num);
    memcpy(p->params, f->model->params, p->num * sizeof *p->params);
    qsort(p->params, p->num, sizeof *p->params, by_name);
    cr_buf_adds(&json, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < p->num; i++) {
        const cr_param *q = p->params[i];
        cr_buf_adds(&json, ",");
        cr_json_add_string(&json, q->name, strlen(q->name));
        cr_buf_addf(&json, ":{\"dtype\":\"%s\",\"shape\":[",
                    f->args.param_dtype == CR_BF16 ? "BF16" : "F32");
        for (int d = 0; d < q->num_dims; d++)
            cr_buf_addf(&json, "%s%lld", d ? "," : "", (long long)q->shape[d]);
        p->first_byte[i] = at;
        at += q->num_elems * (int64_t)bytes;
        cr_buf_addf(&json, "],\"data_offsets\":[%lld,%lld]}", (long long)p->first_byte[i],
                    (long long)at);
    }
    cr_buf_adds(&json, "}");
    while (json.num_bytes % 8)
        cr_buf_addc(&json, ' ');
    n = json.num_bytes;
    cr_buf_add(&p->header, &n, 8);
    cr_buf_add(&p->header, json.data, json.num_bytes);
    for (size_t i = 0; i < p->num; i++)
        p->first_byte[i] += (int64_t)p->header.num_bytes;
    p->num_bytes = at + (int64_t)p->header.num_bytes;
    cr_buf_free(&json);
}

static void plan_free(plan *p)
{
    cr_free(p->params);
    cr_free(p->first_byte);
    cr_buf_free(&p->header);
}

static int64_t plan_find(const plan *p, const cr_param *param)
{
    cr_param *key = (cr_param *)(uintptr_t)param;
    cr_param **at = bsearch(&key, p->params, p->num, sizeof *p->params, by_name);

    return p->first_byte[at - p->params];
}

static cr_status write_flat(cr_fsdp *f, const plan *p, const cr_flat *flat, bool is_trained, int fd,
                            const char *path, cr_err *err)
{
    size_t bytes = cr_dtype_bytes(f->args.param_dtype);

    for (size_t k = 0; k < flat->num_params; k++) {
        int64_t begin, end, at;
        char *cast;
        if (!cri_shard_range(flat, k, cri_rank(f), &begin, &end, &at)) continue;
        cast = cr_alloc((size_t)(end - begin) * bytes);
        if (is_trained && f->master)
            cr_note(cr_cast(f->dev, f->args.param_dtype, cast, CR_F32, f->master + flat->first + at,
                            (size_t)(end - begin), err));
        else
            memcpy(cast,
                   (char *)(is_trained ? f->values : f->frozen) +
                       (size_t)(flat->first + at) * bytes,
                   (size_t)(end - begin) * bytes);
        if (err->status == CR_OK)
            err->status =
                transfer_all(fd, true, cast, (size_t)(end - begin) * bytes,
                             plan_find(p, flat->params[k]) + begin * (int64_t)bytes, path, err);
        cr_free(cast);
        CR_TRY(err->status);
    }
    return CR_OK;
}

/* config.json, tokenizer files, templates: everything but weights. */
static cr_status copy_files(const char *from, const char *to, cr_err *err)
{
    static const char *const endings[] = {".json", ".txt", ".jinja", ".model"};
    DIR *dir = opendir(from);
    struct dirent *entry;

    if (!dir) return cr_fail(err, CR_EIO, "cannot read %s: %s", from, strerror(errno));
    while (err->status == CR_OK && (entry = readdir(dir))) {
        const char *dot = strrchr(entry->d_name, '.');
        bool is_wanted = false;
        for (size_t i = 0; dot && i < CR_COUNT(endings); i++)
            is_wanted = is_wanted || strcmp(dot, endings[i]) == 0;
        if (!is_wanted || strstr(entry->d_name, ".safetensors.index.json")) continue;
        char *source = cr_path_join(from, entry->d_name), *target = cr_path_join(to, entry->d_name);
        cr_buf data = {0};
        if (cr_file_exists(source) && cr_file_read(source, &data, err) == CR_OK)
            cr_note(cr_file_write_atomic(target, data.data, data.num_bytes, err));
        cr_buf_free(&data);
        cr_free(source);
        cr_free(target);
    }
    closedir(dir);
    return err->status;
}

static cr_status save_model(cr_fsdp *f, const char *folder, const char *role,
                            const char *model_source, cr_err *err)
{
    char *model_folder = cr_path_join(folder, role),
         *path = cr_path_join(model_folder, "model.safetensors");
    plan p;
    int fd;

    plan_make(f, &p);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) cr_fail(err, CR_EIO, "cannot write %s: %s", path, strerror(errno));
    if (f->mesh->rank == 0 && err->status == CR_OK) {
        if (ftruncate(fd, p.num_bytes) != 0)
            cr_fail(err, CR_EIO, "cannot write %s: %s", path, strerror(errno));
        if (err->status == CR_OK &&
            transfer_all(fd, true, p.header.data, p.header.num_bytes, 0, path, err) == CR_OK)
            copy_files(model_source, model_folder, err);
    }
    for (size_t i = 0; i < f->units.num && err->status == CR_OK; i++)
        if (write_flat(f, &p, &f->units.unit[i].trained, true, fd, path, err) == CR_OK)
            write_flat(f, &p, &f->units.unit[i].frozen, false, fd, path, err);
    if (fd >= 0 && fsync(fd) != 0)
        cr_fail(err, CR_EIO, "cannot write %s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    plan_free(&p);
    cr_free(path);
    cr_free(model_folder);
    return err->status;
}

cr_status cr_fsdp_save(cr_fsdp *f, const char *folder, const char *role, const char *model_source,
                       bool save_only_model, cr_err *err)
{
    cr_group *all = f->mesh->group[CR_AXIS_ALL];
    char *model_folder = cr_path_join(folder, role), *state = cr_path_join(folder, "state");
    bool is_writer = cr_mesh_axis_rank(&f->mesh->shape, CR_AXIS_DDP, f->mesh->rank) == 0;

    if (f->mesh->rank == 0 && cr_mkdirs(model_folder, err) == CR_OK && !save_only_model)
        cr_note(cr_mkdirs(state, err));
    cr_note(cr_agree(all, "make the checkpoint's folders", err));
    if (err->status == CR_OK && is_writer &&
        save_model(f, folder, role, model_source, err) == CR_OK && !save_only_model)
        save_state(f, folder, role, err);
    cr_note(cr_agree(all, "write the checkpoint", err));
    cr_free(model_folder);
    cr_free(state);
    return err->status;
}
