/* checkpoint.c -- a role's part of a checkpoint: a MODEL folder and resumable state.
 *
 * state/ROLE.json names every parameter with its first element in three raw float32 files, ROLE.master,
 * ROLE.m and ROLE.v. Each rank writes its own elements with pwrite and reads, on any other mesh, the
 * elements that its shards want: the files know nothing of ranks. Frozen parameters are in MODEL only,
 * and come from there: a run may freeze what an earlier one trained.
 *
 * A save is a list of writes. They are done at once from the shards, or, so that training can go on,
 * by a thread from a copy of masters and moments; one save at a time. The thread calls nothing that
 * communicates and touches nothing of the cr_fsdp that changes.
 */
#include "models/weights.h"
#include "strategies/fsdp_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { NUM_FILES = 4, MODEL_FILE = 3 }; /* master, m, v as `kinds`, then the model */
static const char *const kinds[] = {"master", "m", "v"};

typedef struct piece {
    int file;
    cr_dtype from, to; /* here, in the file */
    cr_device *dev;    /* whose memory data is */
    const cr_mem *data;
    size_t num;
    int64_t at;
    const cr_param
        *stacked; /* of a tensor that begins at `at`, its elements from `first` on; or NULL */
    int64_t first;
} piece;

struct cri_save {
    char *paths[NUM_FILES]; /* NULL: not written */
    piece *pieces;
    size_t num_pieces, capacity;
    cr_mem *copy; /* masters and moments as they were at the call, or NULL */
    size_t copy_bytes;
    cr_device *dev;
    /* of rank 0 */
    char *model_source, *model_folder, *state_folder, *index_path;
    cr_dtype dtype;
    cr_buf header, index;
    int64_t file_bytes[NUM_FILES]; /* whole files, of all ranks */
    /* the writer */
    pthread_t thread;
    bool has_thread;
    atomic_bool is_done;
    cr_err err;
};

/* ---- bytes ---- */

static cr_status transfer_all(int fd, bool is_write, void *data, size_t num_bytes, int64_t at,
                              const char *what, cr_err *err)
{
    for (size_t done = 0; done < num_bytes;) {
        ssize_t n = is_write ? pwrite(fd, (char *)data + done, num_bytes - done, at + (int64_t)done)
                             : pread(fd, (char *)data + done, num_bytes - done, at + (int64_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return cr_fail(err, CR_EIO, "cannot %s %zu bytes of %s: %s",
                           is_write ? "write" : "read", num_bytes - done, what,
                           n < 0 ? strerror(errno) : "it ends early");
        done += (size_t)n;
    }
    return CR_OK;
}

/* Column by column, as they lie together in the file. */
static cr_status write_columns(const piece *p, int fd, const char *path, cr_err *err)
{
    enum { BLOCK = 1 << 12 };
    static _Thread_local float block[BLOCK], stored[BLOCK];
    size_t from = cr_dtype_bytes(p->from), to = cr_dtype_bytes(p->to);
    char *all = cr_alloc(p->num * from);

    cr_note(cr_download(p->dev, all, p->data, p->num * from, err));
    for (int64_t col = 0; col < p->stacked->shape[1] && err->status == CR_OK; col++) {
        cr_column run = cr_stacked_column(p->stacked, p->first, p->first + (int64_t)p->num, col);
        for (int64_t i = 0; i < run.num && err->status == CR_OK; i += BLOCK) {
            int64_t n = run.num - i < BLOCK ? run.num - i : BLOCK;
            for (int64_t k = 0; k < n; k++)
                memcpy((char *)block + (size_t)k * from,
                       all + (size_t)(run.elem + (i + k) * run.step - p->first) * from, from);
            if (p->from != p->to) cr_cast_host(p->to, stored, p->from, block, (size_t)n);
            cr_note(transfer_all(fd, true, p->from == p->to ? block : stored, (size_t)n * to,
                                 p->at + (run.at + i) * (int64_t)to, path, err));
        }
    }
    cr_free(all);
    return err->status;
}

static cr_status write_piece(const piece *p, int fd, const char *path, cr_err *err)
{
    enum { BLOCK = 1 << 16 };
    static _Thread_local float block[BLOCK], stored[BLOCK];
    size_t from = cr_dtype_bytes(p->from), to = cr_dtype_bytes(p->to);

    if (p->stacked) return write_columns(p, fd, path, err);
    for (size_t i = 0; i < p->num; i += BLOCK) {
        size_t n = p->num - i < BLOCK ? p->num - i : BLOCK;
        CR_TRY(cr_download(p->dev, block, cr_mem_add_const(p->data, i * from), n * from, err));
        if (p->from != p->to) cr_cast_host(p->to, stored, p->from, block, n);
        CR_TRY(transfer_all(fd, true, p->from == p->to ? block : stored, to * n,
                            p->at + (int64_t)(to * i), path, err));
    }
    return CR_OK;
}

/* ---- state ---- */

static cr_mem *buffer_of(const cr_fsdp *f, size_t kind)
{
    return kind == 0 ? f->master : kind == 1 ? f->m : f->v;
}

/* First element of each trained parameter in the files: the order of the tree, without padding. */
static json_t *state_index(const cr_fsdp *f)
{
    json_t *root = json_object(), *params = json_object();
    int64_t at = 0;

    for (size_t i = 0; i < f->model->num_params; i++) {
        const cr_param *p = f->model->params[i];
        if (!p->is_trainable) continue;
        json_object_set_new(
            params, p->name,
            json_pack("{s:I,s:I}", "first", (json_int_t)at, "num", (json_int_t)p->num_elems));
        at += p->num_elems;
    }
    json_object_set_new(root, "updates", json_integer(f->num_updates));
    if (f->loss_scale > 0) {
        json_object_set_new(root, "loss_scale", json_real(f->loss_scale));
        json_object_set_new(root, "good_updates", json_integer(f->num_good_updates));
    }
    json_object_set_new(root, "elements", json_integer(at));
    json_object_set_new(root, "params", params);
    return root;
}

/* This rank's elements of parameter k, in its shard and in the file of a kind. False: none. CR_EFORMAT
 * if the index does not know the parameter. */
static cr_status find_range(const cr_fsdp *f, const json_t *params, const cr_flat *flat, size_t k,
                            const char *path, bool *is_here, int64_t *num, int64_t *in_shard,
                            int64_t *in_file, cr_err *err)
{
    const json_t *entry = json_object_get(params, flat->params[k]->name);
    int64_t begin, end, at, first = json_integer_value(json_object_get(entry, "first"));

    if (!entry && json_object_size(params))
        return cr_fail(
            err, CR_EFORMAT,
            "%s has no parameter %s: it was frozen when this was written, or this is another "
            "model's (freeze what that run froze, or begin anew with its MODEL as pretrain)",
            path, flat->params[k]->name);
    if (!entry || json_integer_value(json_object_get(entry, "num")) != flat->params[k]->num_elems)
        return cr_fail(err, CR_EFORMAT,
                       "%s has no parameter %s of %lld elements: it belongs to another model", path,
                       flat->params[k]->name, (long long)flat->params[k]->num_elems);
    *is_here = cri_shard_range(flat, k, cri_shard_of(f, flat), &begin, &end, &at);
    if (!*is_here) return CR_OK;
    *num = end - begin;
    *in_shard = flat->first.elems + at;
    *in_file = (first + begin) * 4;
    return CR_OK;
}

static cr_status read_range(cr_fsdp *f, int fd, size_t kind, int64_t in_shard, int64_t num,
                            int64_t in_file, const char *path, cr_err *err)
{
    enum { BLOCK = 1 << 16 };
    static _Thread_local float block[BLOCK], stored[BLOCK];
    cr_dtype dtype = f->args.master_dtype;
    size_t bytes = cr_dtype_bytes(dtype);
    cr_mem *to = cr_at(dtype, buffer_of(f, kind), in_shard);

    for (int64_t i = 0; i < num; i += BLOCK) {
        size_t n = (size_t)(num - i < BLOCK ? num - i : BLOCK);
        CR_TRY(transfer_all(fd, false, block, n * 4, in_file + 4 * i, path, err));
        if (dtype != CR_F32) cr_cast_host(dtype, stored, CR_F32, block, n);
        CR_TRY(cr_upload(cri_home(f), cr_at(dtype, to, i), dtype == CR_F32 ? block : stored,
                         n * bytes, err));
    }
    return CR_OK;
}

static cr_status read_kind(cr_fsdp *f, const json_t *params, size_t kind, const char *path,
                           cr_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) return cr_fail(err, CR_EIO, "cannot open %s: %s", path, strerror(errno));
    for (size_t i = 0; i < f->units.num; i++) {
        const cr_flat *flat = &f->units.unit[i].trained;
        for (size_t k = 0; k < flat->num_params; k++) {
            int64_t num, in_shard, in_file;
            bool is_here;
            CR_TRY_GOTO(out, find_range(f, params, flat, k, path, &is_here, &num, &in_shard,
                                        &in_file, err));
            if (!is_here) continue;
            CR_TRY_GOTO(out, read_range(f, fd, kind, in_shard, num, in_file, path, err));
        }
    }
out:
    close(fd);
    return err->status;
}

static cr_status read_frozen(cr_fsdp *f, const char *folder, const char *role, cr_err *err)
{
    char *model;

    if (f->units.num_frozen == 0) return CR_OK;
    model = cr_path_join(folder, role);
    cr_note(cri_shards_read_frozen(f, model, err));
    cr_free(model);
    return err->status;
}

static bool is_count(const json_t *v, int64_t most)
{
    return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= most;
}

/* Of what state_index writes. CR_EFORMAT: a number that is not a count, or elements beyond the files. */
static cr_status check_index(const json_t *index, const char *path, cr_err *err)
{
    const json_t *params = json_object_get(index, "params"),
                 *scale = json_object_get(index, "loss_scale");
    int64_t num = json_integer_value(json_object_get(index, "elements"));
    const char *name;
    json_t *entry;

    if (!is_count(json_object_get(index, "updates"), INT64_MAX / 2) ||
        !is_count(json_object_get(index, "elements"), INT64_MAX / 4) || !json_is_object(params))
        return cr_fail(err, CR_EFORMAT,
                       "%s has no \"updates\", \"elements\" or \"params\" (damaged?)", path);
    if (scale && (!(json_number_value(scale) > 0) || !isfinite(json_number_value(scale)) ||
                  !is_count(json_object_get(index, "good_updates"), INT64_MAX / 2)))
        return cr_fail(err, CR_EFORMAT,
                       "%s has a loss scale that is not a positive number (damaged?)", path);
    json_object_foreach((json_t *)(uintptr_t)params, name, entry)
    {
        const json_t *n = json_object_get(entry, "num");
        if (!is_count(n, num) ||
            !is_count(json_object_get(entry, "first"), num - json_integer_value(n)))
            return cr_fail(err, CR_EFORMAT,
                           "%s: the elements of %s are not among its %lld (damaged?)", path, name,
                           (long long)num);
    }
    return CR_OK;
}

cr_status cr_fsdp_resume(cr_fsdp *f, const char *folder, const char *role, cr_err *err)
{
    char *path;
    json_t *index = NULL;

    CR_TRY(cri_need_states(f, CR_STATE_PARAMS | CR_STATE_MOMENTS, "resume", err));
    path = cr_asprintf("%s/state/%s.json", folder, role);
    if (!cr_file_exists(path)) {
        cr_fail(err, CR_EIO,
                "%s is not there: this checkpoint cannot be resumed (was it written with "
                "save_only_model?)",
                path);
    } else if (cr_json_read_file(path, &index, err) == CR_OK &&
               check_index(index, path, err) == CR_OK) {
        f->num_updates = json_integer_value(json_object_get(index, "updates"));
        if (f->loss_scale > 0 && json_object_get(index, "loss_scale")) {
            f->loss_scale = json_number_value(json_object_get(index, "loss_scale"));
            f->num_good_updates = json_integer_value(json_object_get(index, "good_updates"));
        }
        for (size_t kind = 0; kind < CR_COUNT(kinds) && err->status == CR_OK; kind++) {
            char *data = cr_asprintf("%s/state/%s.%s", folder, role, kinds[kind]);
            cr_note(read_kind(f, json_object_get(index, "params"), kind, data, err));
            cr_free(data);
        }
        if (err->status == CR_OK) cr_note(read_frozen(f, folder, role, err));
        CR_TRY(cri_reshard_all(f, err));
    }
    json_decref(index);
    cr_free(path);
    CR_TRY(cr_agree(f->mesh->group[CR_AXIS_ALL], "resume", err));
    return cr_fsdp_check_replicas(f, false, err);
}

/* ---- MODEL folder ---- */

static const struct {
    const char *stored, *config;
} dtype_names[] = {
    [CR_F32] = {"F32", "float32"}, [CR_BF16] = {"BF16", "bfloat16"}, [CR_F16] = {"F16", "float16"}};

/* Where each parameter, or the tensor it is in, begins in model.safetensors; the header is the same on every rank. */
typedef struct plan {
    cr_param **params;
    int64_t *first_byte; /* of the data, relative to the file */
    size_t num;
    cr_buf header; /* length and JSON */
    int64_t num_bytes;
} plan;

static const char *tensor_of(const cr_param *p)
{
    return p->stacked ? p->stacked->tensor : p->file_name;
}

/* Float32 before 16-bit, so that all begin at a multiple of their size; then by tensor and name. */
static int by_tensor(const void *a, const void *b)
{
    const cr_param *x = *(cr_param *const *)a, *y = *(cr_param *const *)b;
    int order = strcmp(tensor_of(x), tensor_of(y));

    if (x->is_fp32 != y->is_fp32) return x->is_fp32 ? -1 : 1;
    return order ? order : strcmp(x->name, y->name);
}

static cr_dtype stored_dtype(const cr_fsdp *f, const cr_param *param)
{
    return param->is_fp32 ? CR_F32 : f->args.param_dtype;
}

static void plan_make(const cr_fsdp *f, plan *p)
{
    cr_buf json = {0};
    uint64_t n;
    int64_t at = 0;

    *p = (plan){.num = f->model->num_params};
    p->params = CR_NEW_ARRAY(cr_param *, p->num);
    p->first_byte = CR_NEW_ARRAY(int64_t, p->num);
    memcpy(p->params, f->model->params, p->num * sizeof *p->params);
    qsort(p->params, p->num, sizeof *p->params, by_tensor);
    cr_buf_adds(&json, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < p->num; i++) {
        const cr_param *q = p->params[i];
        const int64_t *shape = q->stacked ? q->stacked->shape : q->shape;
        const char *tensor = tensor_of(q);
        int64_t num = 1;
        if (i > 0 && strcmp(tensor, tensor_of(p->params[i - 1])) == 0) {
            p->first_byte[i] = p->first_byte[i - 1]; /* the tensor is there */
            continue;
        }
        cr_buf_adds(&json, ",");
        cr_json_add_string(&json, tensor, strlen(tensor));
        cr_buf_addf(&json, ":{\"dtype\":\"%s\",\"shape\":[",
                    dtype_names[stored_dtype(f, q)].stored);
        for (int d = 0; d < (q->stacked ? 3 : q->num_dims); d++) {
            cr_buf_addf(&json, "%s%lld", d ? "," : "", (long long)shape[d]);
            num *= shape[d];
        }
        p->first_byte[i] = at;
        at += num * (int64_t)cr_dtype_bytes(stored_dtype(f, q));
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
    cr_param **at = bsearch(&key, p->params, p->num, sizeof *p->params, by_tensor);

    return p->first_byte[at - p->params];
}

/* config.json with the dtype that the weights are stored in; as it is if that is what it says. */
static cr_status copy_config(const char *from, const char *to, cr_dtype dtype, cr_err *err)
{
    const char *name = dtype_names[dtype].config, *key = "torch_dtype", *old;
    json_t *root = NULL;
    cr_buf text = {0};

    if (cr_json_read_file(from, &root, err) == CR_OK) {
        if (json_object_get(root, "dtype")) key = "dtype";
        old = json_string_value(json_object_get(root, key));
        if (old && strcmp(old, name) == 0) {
            cr_note(cr_file_read(from, &text, err));
        } else {
            json_object_set_new(root, key, json_string(name));
            cr_note(cr_json_add_value(&text, root, err));
        }
        if (err->status == CR_OK) cr_note(cr_file_write_atomic(to, text.data, text.num_bytes, err));
    }
    json_decref(root);
    cr_buf_free(&text);
    return err->status;
}

/* config.json, tokenizer files, templates: everything but weights. */
static cr_status copy_files(const char *from, const char *to, cr_dtype dtype, cr_err *err)
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
        if (strcmp(entry->d_name, "config.json") == 0)
            cr_note(copy_config(source, target, dtype, err));
        else if (cr_file_exists(source) && cr_file_read(source, &data, err) == CR_OK)
            cr_note(cr_file_write_atomic(target, data.data, data.num_bytes, err));
        cr_buf_free(&data);
        cr_free(source);
        cr_free(target);
    }
    closedir(dir);
    return err->status;
}

/* ---- the list of writes ---- */

static void add_piece(struct cri_save *s, piece p)
{
    s->pieces = cr_grow(s->pieces, s->num_pieces, &s->capacity, sizeof *s->pieces);
    s->pieces[s->num_pieces++] = p;
}

/* Masters and moments are read from here: the copy, or the shards. */
static cr_mem *saved(const cr_fsdp *f, const struct cri_save *s, size_t kind)
{
    size_t bytes = (size_t)f->units.trained_shard.elems * cr_dtype_bytes(f->args.master_dtype);

    return s->copy ? cr_mem_add(s->copy, kind * bytes) : buffer_of(f, kind);
}

static void list_model(cr_fsdp *f, struct cri_save *s, const plan *p)
{
    for (size_t i = 0; i < 2 * f->units.num; i++) {
        bool is_trained = i % 2 == 0;
        const cr_flat *flat =
            is_trained ? &f->units.unit[i / 2].trained : &f->units.unit[i / 2].frozen;
        for (size_t k = 0; k < flat->num_params; k++) {
            int64_t begin, end, at;
            if (!cri_is_writer(f, flat)) continue;
            if (!cri_shard_range(flat, k, cri_shard_of(f, flat), &begin, &end, &at)) continue;
            piece w = {.file = MODEL_FILE,
                       .from = cri_shard_dtype(f, flat, is_trained),
                       .to = cri_dtype(f, flat),
                       .num = (size_t)(end - begin)};
            w.at = plan_find(p, flat->params[k]);
            if (flat->params[k]->stacked)
                w.stacked = flat->params[k], w.first = begin;
            else
                w.at += begin * (int64_t)cr_dtype_bytes(w.to);
            w.dev = is_trained && s->copy ? f->host : cri_home(f);
            w.data = cr_at(w.from, cri_shard(f, flat, is_trained, saved(f, s, 0)), at);
            add_piece(s, w);
        }
    }
}

static cr_status list_state(cr_fsdp *f, struct cri_save *s, const json_t *params, cr_err *err)
{
    for (size_t kind = 0; kind < CR_COUNT(kinds); kind++)
        for (size_t i = 0; i < f->units.num; i++) {
            const cr_flat *flat = &f->units.unit[i].trained;
            for (size_t k = 0; k < flat->num_params; k++) {
                int64_t num, in_shard, in_file;
                bool is_here;
                CR_TRY(find_range(f, params, flat, k, "the index", &is_here, &num, &in_shard,
                                  &in_file, err));
                if (!is_here || !cri_is_writer(f, flat)) continue;
                add_piece(s,
                          (piece){.file = (int)kind,
                                  .from = f->args.master_dtype,
                                  .to = CR_F32,
                                  .dev = s->copy ? f->host : cri_home(f),
                                  .data = cr_at(f->args.master_dtype, saved(f, s, kind), in_shard),
                                  .num = (size_t)num,
                                  .at = in_file});
            }
        }
    return CR_OK;
}

static cr_status copy_shards(cr_fsdp *f, struct cri_save *s, cr_err *err)
{
    size_t bytes = (size_t)f->units.trained_shard.elems * cr_dtype_bytes(f->args.master_dtype);

    s->copy_bytes = CR_COUNT(kinds) * bytes;
    CR_TRY(cri_states_alloc(f, /*is_on_host=*/true, s->copy_bytes, &s->copy, err));
    for (size_t kind = 0; kind < CR_COUNT(kinds); kind++)
        CR_TRY(cr_move(f->host, cr_mem_add(s->copy, kind * bytes), cri_home(f), buffer_of(f, kind),
                       bytes, err));
    return CR_OK;
}

/* Before anything is written: a disk that gets full stops the exchange and the metrics, too. */
static cr_status check_room(const struct cri_save *s, cr_err *err)
{
    enum { SPARE = 4 << 20 };
    struct statvfs fs;
    int64_t need = (int64_t)(s->header.num_bytes + s->index.num_bytes), room;

    for (int i = 0; i < NUM_FILES; i++)
        need += s->file_bytes[i];
    if (statvfs(s->state_folder, &fs) != 0 && statvfs(s->model_folder, &fs) != 0) return CR_OK;
    room = (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
    if (need + SPARE <= room) return CR_OK;
    return cr_fail(err, CR_EIO,
                   "no room for %s: the checkpoint has %lld bytes, %lld are free, of which %d are "
                   "left to logs (free some, lower max_ckpt_to_keep, or set another output_dir)",
                   s->model_folder, (long long)need, (long long)room, SPARE);
}

static cr_status list_all(cr_fsdp *f, struct cri_save *s, bool save_only_model, cr_err *err)
{
    json_t *index = state_index(f);
    plan p;

    plan_make(f, &p);
    list_model(f, s, &p);
    if (!save_only_model && f->master)
        cr_note(list_state(f, s, json_object_get(index, "params"), err));
    if (f->mesh->rank == 0) {
        cr_buf_add(&s->header, p.header.data, p.header.num_bytes);
        s->file_bytes[MODEL_FILE] = p.num_bytes;
        for (size_t kind = 0; kind < CR_COUNT(kinds) && s->paths[kind]; kind++)
            s->file_bytes[kind] = 4 * json_integer_value(json_object_get(index, "elements"));
        if (err->status == CR_OK && !save_only_model && f->master)
            cr_note(cr_json_add_value(&s->index, index, err));
        if (err->status == CR_OK) cr_note(check_room(s, err));
    }
    plan_free(&p);
    json_decref(index);
    return err->status;
}

/* ---- writing ---- */

/* All blocks are there before the first byte, where the file system can do that. */
static void reserve(const struct cri_save *s, const int *fds, cr_err *err)
{
    for (int i = 0; i < NUM_FILES && err->status == CR_OK; i++) {
        if (fds[i] < 0 || s->file_bytes[i] == 0 || fallocate(fds[i], 0, 0, s->file_bytes[i]) == 0)
            continue;
        if ((errno == EOPNOTSUPP || errno == ENOSYS) && ftruncate(fds[i], s->file_bytes[i]) == 0)
            continue;
        cr_fail(err, CR_EIO, "cannot write %lld bytes of %s: %s", (long long)s->file_bytes[i],
                s->paths[i], strerror(errno));
    }
}

static void write_small_files(struct cri_save *s, int model_fd, cr_err *err)
{
    if (err->status == CR_OK)
        cr_note(transfer_all(model_fd, true, s->header.data, s->header.num_bytes, 0,
                             s->paths[MODEL_FILE], err));
    if (err->status == CR_OK) cr_note(copy_files(s->model_source, s->model_folder, s->dtype, err));
    if (err->status == CR_OK && s->index.num_bytes)
        cr_note(cr_file_write_atomic(s->index_path, s->index.data, s->index.num_bytes, err));
}

static void *write_all(void *arg)
{
    struct cri_save *s = arg;
    int fds[NUM_FILES];
    cr_err *err = &s->err;

    for (int i = 0; i < NUM_FILES; i++) {
        fds[i] = s->paths[i] ? open(s->paths[i], O_WRONLY | O_CREAT | O_CLOEXEC, 0666) : -1;
        if (s->paths[i] && fds[i] < 0)
            cr_fail(err, CR_EIO, "cannot write %s: %s", s->paths[i], strerror(errno));
    }
    if (err->status == CR_OK && s->model_source) reserve(s, fds, err);
    if (err->status == CR_OK && s->model_source) write_small_files(s, fds[MODEL_FILE], err);
    for (size_t i = 0; i < s->num_pieces && err->status == CR_OK; i++)
        cr_note(
            write_piece(&s->pieces[i], fds[s->pieces[i].file], s->paths[s->pieces[i].file], err));
    for (int i = 0; i < NUM_FILES; i++) {
        if (fds[i] < 0) continue;
        if (err->status == CR_OK && fsync(fds[i]) != 0)
            cr_fail(err, CR_EIO, "cannot write %s: %s", s->paths[i], strerror(errno));
        close(fds[i]);
        if (err->status != CR_OK) unlink(s->paths[i]); /* its bytes are wanted */
    }
    if (s->model_source) {
        cr_folder_sync(s->model_folder);
        cr_folder_sync(s->state_folder);
    }
    atomic_store(&s->is_done, true);
    return NULL;
}

static void save_free(struct cri_save *s)
{
    for (int i = 0; i < NUM_FILES; i++)
        cr_free(s->paths[i]);
    cr_free(s->pieces);
    cr_host_free(s->dev, s->copy, s->copy_bytes);
    cr_free(s->model_source);
    cr_free(s->model_folder);
    cr_free(s->state_folder);
    cr_free(s->index_path);
    cr_buf_free(&s->header);
    cr_buf_free(&s->index);
    cr_free(s);
}

void cri_save_abandon(cr_fsdp *f)
{
    if (!f->save) return;
    if (f->save->has_thread) pthread_join(f->save->thread, NULL);
    save_free(f->save);
    f->save = NULL;
}

static struct cri_save *new_save(cr_fsdp *f, const char *folder, const char *role,
                                 const char *model_source, bool save_only_model)
{
    struct cri_save *s = CR_NEW(struct cri_save);
    bool has_state = !save_only_model && f->master;

    s->dev = f->dev;
    s->dtype = f->args.param_dtype;
    s->model_folder = cr_path_join(folder, role);
    s->state_folder = cr_path_join(folder, "state");
    s->index_path = cr_asprintf("%s/%s.json", s->state_folder, role);
    for (size_t kind = 0; has_state && kind < CR_COUNT(kinds); kind++)
        s->paths[kind] = cr_asprintf("%s/%s.%s", s->state_folder, role, kinds[kind]);
    s->paths[MODEL_FILE] = cr_path_join(s->model_folder, "model.safetensors");
    if (f->mesh->rank == 0) s->model_source = cr_strdup(model_source);
    return s;
}

/* Folders, the list, and a copy of what changes. Replicas hold the same: the first one
 * writes (cri_is_writer). */
static cr_status prepare(cr_fsdp *f, const char *folder, const char *role, const char *model_source,
                         bool save_only_model, cr_err *err)
{
    bool is_writer = false;
    struct cri_save *s = new_save(f, folder, role, model_source, save_only_model);

    f->save = s;
    for (size_t i = 0; i < f->units.num; i++)
        is_writer = is_writer || cri_is_writer(f, &f->units.unit[i].trained);
    if (f->mesh->rank == 0 && cr_mkdirs(s->model_folder, err) == CR_OK && !save_only_model)
        cr_note(cr_mkdirs(s->state_folder, err));
    if (is_writer && err->status == CR_OK) {
        if (f->master) cr_note(copy_shards(f, s, err));
        if (err->status == CR_OK) cr_note(list_all(f, s, save_only_model, err));
    }
    if (cr_agree(f->mesh->group[CR_AXIS_ALL], "begin the checkpoint", err) != CR_OK)
        cri_save_abandon(f);
    return err->status;
}

cr_status cr_fsdp_save_start(cr_fsdp *f, const char *folder, const char *role,
                             const char *model_source, bool save_only_model, cr_err *err)
{
    int code;

    CR_TRY(cri_need_states(f, CR_STATE_PARAMS | CR_STATE_MOMENTS, "checkpoint", err));
    if (f->save) CR_TRY(cr_fsdp_save_wait(f, err));
    CR_TRY(prepare(f, folder, role, model_source, save_only_model, err));
    if (f->save->num_pieces == 0) return CR_OK;
    code = pthread_create(&f->save->thread, NULL, write_all, f->save);
    f->save->has_thread = code == 0;
    if (code != 0) write_all(f->save); /* no thread to be had: the save is there, only slower */
    return CR_OK;
}

bool cr_fsdp_is_saving(const cr_fsdp *f)
{
    return f->save && f->save->num_pieces && !atomic_load(&f->save->is_done);
}

cr_status cr_fsdp_save_wait(cr_fsdp *f, cr_err *err)
{
    struct cri_save *s = f->save;

    if (s) {
        if (s->has_thread) pthread_join(s->thread, NULL);
        s->has_thread = false;
        if (s->err.status != CR_OK) cr_fail(err, s->err.status, "%s", s->err.msg);
        cri_save_abandon(f);
    }
    return cr_agree(f->mesh->group[CR_AXIS_ALL], "write the checkpoint", err);
}
