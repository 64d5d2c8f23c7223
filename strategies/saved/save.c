/* save.c -- a role's part of a checkpoint is written: see saved.h.
 *
 * Each rank writes its own elements with pwrite, whatever the mesh. Frozen parameters are in MODEL only, and come from
 * there: a run may freeze what an earlier one trained.
 *
 * A save is a list of pieces. They are written by a thread from a copy of masters and moments, so that training can go on; one
 * save at a time. The thread calls nothing that communicates and touches nothing of the cr_fsdp that changes. Pieces of a rank
 * that does not have the folder (CR_SAVE_GATHERED) are sent before that, from where they are, to the lead: the first rank that
 * has it.
 */
#include "base/children.h"
#include "base/digest.h"
#include "models/files/peft.h"
#include "strategies/saved/saved.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static const char *const states[] = {"master", "m", "v"};
static const double SEEN_WITHIN_S = 10; /* a network's file system may show a new file late */

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
    cr_save_kind kind;
    bool is_here, is_lead; /* this rank has the folder; it is the first one that has it */
    int lead;
    char *paths[CR_SAVED_FILES], *shard_path; /* NULL: not written */
    int fds[CR_SAVED_FILES], shard_fd;
    uint64_t shard_sum; /* of the bytes that shard_fd got */
    piece *pieces;
    size_t num_pieces, capacity;
    cr_mem *copy; /* masters and moments as they were at the call, or NULL */
    size_t copy_bytes;
    cr_device *dev;
    char *model_folder, *state_folder, *model_source, *index_path;
    cr_dtype dtype;
    const cr_model *model;
    json_t *shards;       /* CR_SAVE_EACH: those of all ranks */
    cr_buf header, index; /* of the lead */
    cri_put put;          /* where pieces go */
    void *ctx;
    cr_saved saved;
    /* the writer */
    pthread_t thread;
    bool has_work, has_thread;
    atomic_bool is_done;
    cr_err err;
};

/* ---- bytes ---- */

cr_status cri_transfer_bytes(int fd, bool is_write, void *data, size_t num_bytes, int64_t at,
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
static cr_status put_columns(struct cri_save *s, const piece *p, cr_err *err)
{
    enum { BLOCK = 1 << 12 };
    static _Thread_local float block[BLOCK], stored[BLOCK];
    size_t from = cr_dtype_bytes(p->from), to = cr_dtype_bytes(p->to);
    char *all = cr_alloc(p->num * from);

    cr_note(cr_download(p->dev, all, p->data, p->num * from, err));
    for (int64_t col = 0; col < cr_stacked_num_columns(p->stacked) && err->status == CR_OK; col++) {
        cr_column run = cr_stacked_column(p->stacked, p->first, p->first + (int64_t)p->num, col);
        for (int64_t i = 0; i < run.num && err->status == CR_OK; i += BLOCK) {
            int64_t n = run.num - i < BLOCK ? run.num - i : BLOCK;
            for (int64_t k = 0; k < n; k++)
                memcpy((char *)block + (size_t)k * from,
                       all + (size_t)(run.elem + (i + k) * run.step - p->first) * from, from);
            if (p->from != p->to) cr_cast_host(p->to, stored, p->from, block, (size_t)n);
            cr_note(s->put(s->ctx, p->file, p->at + (run.at + i) * (int64_t)to,
                           p->from == p->to ? block : stored, (size_t)n * to, err));
        }
    }
    cr_free(all);
    return err->status;
}

static cr_status put_piece(struct cri_save *s, const piece *p, cr_err *err)
{
    enum { BLOCK = 1 << 16 };
    static _Thread_local float block[BLOCK], stored[BLOCK];
    size_t from = cr_dtype_bytes(p->from), to = cr_dtype_bytes(p->to);

    if (p->stacked) return put_columns(s, p, err);
    for (size_t i = 0; i < p->num; i += BLOCK) {
        size_t n = p->num - i < BLOCK ? p->num - i : BLOCK;
        CR_TRY(cr_download(p->dev, block, cr_mem_add_const(p->data, i * from), n * from, err));
        if (p->from != p->to) cr_cast_host(p->to, stored, p->from, block, n);
        CR_TRY(s->put(s->ctx, p->file, p->at + (int64_t)(to * i), p->from == p->to ? block : stored,
                      to * n, err));
    }
    return CR_OK;
}

/* Are no two of its elements beside each other in the file (B of an expert)? */
static bool is_scattered(const piece *p)
{
    return p->stacked && p->stacked->stacked->row_step != 1 && p->stacked->stacked->col_step != 1;
}

/* Elements of a piece to their places in its tensor. */
static cr_status scatter(const piece *p, char *tensor, bool *is_there, cr_err *err)
{
    const cr_stacked *of = p->stacked->stacked;
    size_t from = cr_dtype_bytes(p->from), to = cr_dtype_bytes(p->to);
    char *all = cr_alloc(p->num * from), *stored = cr_alloc(p->num * to);

    if (cr_download(p->dev, all, p->data, p->num * from, err) == CR_OK) {
        if (p->from != p->to) cr_cast_host(p->to, stored, p->from, all, p->num);
        for (size_t i = 0; i < p->num; i++) {
            int64_t e = p->first + (int64_t)i, cols = p->stacked->shape[1],
                    at = of->first + e / cols * of->row_step + e % cols * of->col_step;
            memcpy(tensor + (size_t)at * to, (p->from == p->to ? all : stored) + i * to, to);
            is_there[at] = true;
        }
    }
    cr_free(all);
    cr_free(stored);
    return err->status;
}

/* Pieces of one tensor: what they have beside each other there is written at once. */
static cr_status put_scattered(struct cri_save *s, const piece *p, size_t num, cr_err *err)
{
    const cr_stacked *of = p->stacked->stacked;
    size_t all = (size_t)(of->shape[0] * of->shape[1]), to = cr_dtype_bytes(p->to);
    char *tensor = cr_alloc(all * to);
    bool *is_there = CR_NEW_ARRAY(bool, all);

    for (size_t i = 0; i < num && err->status == CR_OK; i++)
        cr_note(scatter(&p[i], tensor, is_there, err));
    for (size_t at = 0, end; at < all && err->status == CR_OK; at = end + 1) {
        end = at;
        while (end < all && is_there[end])
            end++;
        if (end > at)
            cr_note(s->put(s->ctx, p->file, p->at + (int64_t)(at * to), tensor + at * to,
                           (end - at) * to, err));
    }
    cr_free(tensor);
    cr_free(is_there);
    return err->status;
}

static int by_place(const void *a, const void *b)
{
    const piece *x = a, *y = b;

    if (x->file != y->file) return x->file - y->file;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return (is_scattered(x) && !is_scattered(y)) - (!is_scattered(x) && is_scattered(y));
}

/* All that this rank has to write; the lead, the header of MODEL, too. */
static cr_status put_all(struct cri_save *s, cr_err *err)
{
    if (s->header.num_bytes)
        CR_TRY(s->put(s->ctx, CRI_FILE_MODEL, 0, s->header.data, s->header.num_bytes, err));
    if (s->num_pieces) qsort(s->pieces, s->num_pieces, sizeof *s->pieces, by_place);
    for (size_t i = 0, num; i < s->num_pieces; i += num) {
        const piece *p = &s->pieces[i];
        num = 1;
        while (is_scattered(p) && i + num < s->num_pieces && p[num].file == p->file &&
               p[num].at == p->at)
            num++;
        CR_TRY(is_scattered(p) ? put_scattered(s, p, num, err) : put_piece(s, p, err));
    }
    return CR_OK;
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

    return s->copy ? cr_mem_add(s->copy, kind * bytes) : cri_state_of(f, kind);
}

static void map_own(const cr_fsdp *f, int file, bool is_trained, cr_weight_map *out)
{
    if (file == CRI_FILE_V)
        cri_map_seconds(f, /*is_written=*/true, out);
    else
        cri_map_kept(f, is_trained, /*is_written=*/true, out);
}

/* What this rank writes of trained or frozen parameters into a file that has the map `to`. */
static void list_moves(cr_fsdp *f, struct cri_save *s, int file, bool is_trained, cr_mem *kept,
                       const cr_weight_map *to)
{
    bool is_copied = is_trained && s->copy;
    cr_weight_map mine = {0};
    cr_weight_move *moves;
    size_t num;

    map_own(f, file, is_trained, &mine);
    moves = cr_redistribute(&mine, to, &num);
    for (size_t i = 0; i < num; i++) {
        const cr_weight_move *m = &moves[i];
        const cr_param *p = f->model->params[m->param];
        bool is_stacked = file == CRI_FILE_MODEL && p->stacked;
        add_piece(s, (piece){.file = file,
                             .from = cri_kept_dtype(f, p),
                             .to = file == CRI_FILE_MODEL ? cri_model_dtype(f, p) : CR_F32,
                             .dev = is_copied ? f->host : cri_home(f),
                             .data = cr_mem_add(kept, (size_t)m->from_at),
                             .num = (size_t)m->num,
                             .at = m->to_at,
                             .stacked = is_stacked ? p : NULL,
                             .first = is_stacked ? m->begin : 0});
    }
    cr_free(moves);
    cr_weight_map_free(&mine);
}

static cr_status list_states(cr_fsdp *f, struct cri_save *s, const json_t *params, cr_err *err)
{
    cr_weight_map files = {0};

    cr_note(cri_map_states(f->model, params, "the index", &files, err));
    for (size_t kind = 0; kind < CRI_NUM_STATES && err->status == CR_OK; kind++)
        list_moves(f, s, (int)kind, /*is_trained=*/true, saved(f, s, kind), &files);
    cr_weight_map_free(&files);
    return err->status;
}

static cr_status copy_shards(cr_fsdp *f, struct cri_save *s, cr_err *err)
{
    const size_t elem = cr_dtype_bytes(f->args.master_dtype),
                 bytes = (size_t)f->units.trained_shard.elems * elem,
                 seconds = (size_t)f->num_seconds * elem;

    s->copy_bytes = 2 * bytes + seconds;
    CR_TRY(cr_host_alloc(f->dev, s->copy_bytes, &s->copy, err));
    for (size_t kind = 0; kind < CRI_NUM_STATES; kind++)
        CR_TRY(cr_move(f->host, cr_mem_add(s->copy, kind * bytes), cri_home(f),
                       cri_state_of(f, kind), kind == CRI_FILE_V ? seconds : bytes, err));
    return CR_OK;
}

/* Its pieces are at the lead when cr_fsdp_save_start returns: they need no copy and no thread. */
static bool is_sent(const struct cri_save *s)
{
    return s->kind == CR_SAVE_GATHERED && !s->is_here;
}

/* Before anything is written: a disk that gets full stops the exchange and the metrics, too. */
static cr_status check_room(const struct cri_save *s, int64_t need, cr_err *err)
{
    enum { SPARE = 4 << 20 };
    struct statvfs fs;
    int64_t room;

    if (statvfs(s->state_folder, &fs) != 0 && statvfs(s->model_folder, &fs) != 0) return CR_OK;
    room = (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
    if (need + SPARE <= room) return CR_OK;
    return cr_fail(err, CR_EIO,
                   "no room for %s: the checkpoint has %lld bytes, %lld are free, of which %d are "
                   "left to logs (free some, lower max_ckpt_to_keep, or set another output_dir)",
                   s->model_folder, (long long)need, (long long)room, SPARE);
}

static int64_t bytes_of_pieces(const struct cri_save *s)
{
    int64_t num = (int64_t)s->header.num_bytes;

    for (size_t i = 0; i < s->num_pieces; i++)
        num += (int64_t)(s->pieces[i].num * cr_dtype_bytes(s->pieces[i].to));
    return num;
}

/* What the lead says of the whole: the header of MODEL, and the state's index, which names the parts of the ranks. */
static cr_status list_whole(struct cri_save *s, const cri_model_plan *p, json_t *index,
                            bool has_index, bool has_state, cr_err *err)
{
    int64_t need = 0;

    cr_buf_add(&s->header, p->header.data, p->header.num_bytes);
    if (s->shards) {
        json_object_set_new(index, "model_bytes", json_integer(p->num_bytes));
        json_object_set(index, "shards", s->shards);
        return cr_json_add_value(&s->index, index, err);
    }
    s->saved.num_bytes[CRI_FILE_MODEL] = p->num_bytes;
    for (size_t i = 0; has_state && i < CRI_NUM_STATES; i++)
        s->saved.num_bytes[i] =
            (int64_t)sizeof(float) * json_integer_value(json_object_get(index, "elements"));
    if (has_index) CR_TRY(cr_json_add_value(&s->index, index, err));
    for (int i = 0; i < CR_SAVED_FILES; i++)
        need += s->saved.num_bytes[i];
    return check_room(s, need + (int64_t)s->index.num_bytes, err);
}

static cr_status list_all(cr_fsdp *f, struct cri_save *s, bool save_only_model, cr_err *err)
{
    bool has_state = !save_only_model && f->master;
    json_t *index = cri_state_index(f);
    cri_model_plan p;

    if (s->model->adapters) json_object_set_new(index, "base", json_string(f->base));
    cri_model_plan_make(f, &p);
    for (int is_trained = 0; is_trained < 2; is_trained++)
        list_moves(f, s, CRI_FILE_MODEL, is_trained, cri_kept(f, is_trained, saved(f, s, 0)),
                   &p.map);
    if (has_state) cr_note(list_states(f, s, json_object_get(index, "params"), err));
    if (s->is_lead && err->status == CR_OK)
        cr_note(list_whole(s, &p, index, !save_only_model, has_state, err));
    if (s->kind == CR_SAVE_EACH && err->status == CR_OK)
        cr_note(check_room(s, bytes_of_pieces(s), err));
    cri_model_plan_free(&p);
    json_decref(index);
    return err->status;
}

/* ---- writing ---- */

static cr_status put_in_files(void *ctx, int file, int64_t at, const void *data, size_t num_bytes,
                              cr_err *err)
{
    struct cri_save *s = ctx;

    if (s->fds[file] < 0)
        return cr_fail(err, CR_EFORMAT, "bytes of a file that this save has not: %d", file);
    return cri_transfer_bytes(s->fds[file], true, (void *)(uintptr_t)data, num_bytes, at,
                              s->paths[file], err);
}

/* Of this rank: what is sent to the lead is counted where it comes from. */
static cr_status put_own(void *ctx, int file, int64_t at, const void *data, size_t num_bytes,
                         cr_err *err)
{
    struct cri_save *s = ctx;

    s->saved.sums[file] += cr_sum_bytes(at, data, num_bytes);
    return put_in_files(s, file, at, data, num_bytes, err);
}

/* A cri_saved_parts' produce: the same as a stream. */
static cr_status put_records(void *ctx, cri_records *r, cr_err *err)
{
    struct cri_save *s = ctx;

    s->put = cri_records_put;
    s->ctx = r;
    CR_TRY(put_all(s, err));
    memcpy(s->saved.sums, r->sums, sizeof s->saved.sums);
    return CR_OK;
}

/* The lead makes the files; others find them, or they are in another folder. */
static cr_status open_files(struct cri_save *s, cr_err *err)
{
    double until_s = cr_now_s() + SEEN_WITHIN_S;

    for (int i = 0; i < CR_SAVED_FILES && err->status == CR_OK; i++) {
        if (!s->paths[i]) continue;
        do {
            s->fds[i] = open(s->paths[i], O_WRONLY | O_CLOEXEC | (s->is_lead ? O_CREAT : 0), 0666);
        } while (s->fds[i] < 0 && errno == ENOENT && !s->is_lead && cr_now_s() < until_s &&
                 (cr_sleep_s(0.1), true));
        if (s->fds[i] < 0)
            cr_fail(err, CR_EIO, "cannot write %s: %s", s->paths[i], strerror(errno));
    }
    return err->status;
}

/* All blocks are there before the first byte, where the file system can do that. */
static cr_status reserve(const struct cri_save *s, cr_err *err)
{
    for (int i = 0; i < CR_SAVED_FILES; i++) {
        int64_t num_bytes = s->saved.num_bytes[i];
        if (s->fds[i] < 0 || num_bytes == 0 || fallocate(s->fds[i], 0, 0, num_bytes) == 0) continue;
        if ((errno == EOPNOTSUPP || errno == ENOSYS) && ftruncate(s->fds[i], num_bytes) == 0)
            continue;
        return cr_fail(err, CR_EIO, "cannot write %lld bytes of %s: %s", (long long)num_bytes,
                       s->paths[i], strerror(errno));
    }
    return CR_OK;
}

static cr_status write_small_files(struct cri_save *s, cr_err *err)
{
    CR_TRY(cri_model_copy_files(s->model_source, s->model_folder, s->dtype, s->model, err));
    return s->index.num_bytes
               ? cr_file_write_atomic(s->index_path, s->index.data, s->index.num_bytes, err)
               : CR_OK;
}

/* On disk, or removed: its bytes are wanted. */
static void close_file(int *fd, const char *path, cr_err *err)
{
    if (*fd < 0) return;
    if (err->status == CR_OK && fsync(*fd) != 0)
        cr_fail(err, CR_EIO, "cannot write %s: %s", path, strerror(errno));
    close(*fd);
    *fd = -1;
    if (err->status != CR_OK) unlink(path);
}

static cr_status flush_shard(void *ctx, const void *data, size_t num_bytes, cr_err *err)
{
    struct cri_save *s = ctx;

    CR_TRY(cri_transfer_bytes(s->shard_fd, true, (void *)(uintptr_t)data, num_bytes,
                              s->saved.shard_bytes, s->shard_path, err));
    s->shard_sum += cr_sum_bytes(s->saved.shard_bytes, data, num_bytes);
    s->saved.shard_bytes += (int64_t)num_bytes;
    return CR_OK;
}

/* This rank's part in a file of its own, read back once it is on disk. */
static void write_shard(struct cri_save *s, cr_err *err)
{
    cri_records r = {.flush = flush_shard, .ctx = s};
    uint64_t sum;
    int64_t num_bytes;

    s->shard_fd = open(s->shard_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (s->shard_fd < 0)
        cr_fail(err, CR_EIO, "cannot write %s: %s", s->shard_path, strerror(errno));
    cri_records_begin(&r);
    if (err->status == CR_OK && put_records(s, &r, err) == CR_OK) cr_note(cri_records_end(&r, err));
    cri_records_free(&r);
    close_file(&s->shard_fd, s->shard_path, err);
    if (err->status == CR_OK &&
        cr_digest_file_and_sum(s->shard_path, s->saved.shard_hex, &num_bytes, &sum, err) == CR_OK &&
        (num_bytes != s->saved.shard_bytes || sum != s->shard_sum))
        cr_fail(err, CR_EIO, "%s does not hold what was written into it", s->shard_path);
}

/* This rank's part of the files of all ranks. */
static void write_files(struct cri_save *s, cr_err *err)
{
    s->put = put_own;
    s->ctx = s;
    if (err->status == CR_OK && !s->is_lead) cr_note(open_files(s, err));
    if (err->status == CR_OK) cr_note(put_all(s, err));
    for (int i = 0; i < CR_SAVED_FILES; i++)
        close_file(&s->fds[i], s->paths[i], err);
}

static void *write_all(void *arg)
{
    struct cri_save *s = arg;

    if (s->kind == CR_SAVE_EACH)
        write_shard(s, &s->err);
    else
        write_files(s, &s->err);
    if (s->err.status == CR_OK && s->is_lead) cr_note(write_small_files(s, &s->err));
    if (s->is_lead) cr_folder_sync(s->model_folder);
    if (s->is_lead || s->kind == CR_SAVE_EACH) cr_folder_sync(s->state_folder);
    atomic_store(&s->is_done, true);
    return NULL;
}

/* ---- parts of ranks that do not have the folder ---- */

/* One rank after the other, in blocks, into the files that the lead has made. Collective. */
static cr_status gather_parts(cr_fsdp *f, struct cri_save *s, const bool *is_here, cr_err *err)
{
    int num = f->mesh->shape.num_ranks;

    for (int r = 0; r < num; r++) {
        cri_record_reader reader = {
            .name = "a part of the checkpoint", .put = put_in_files, .ctx = s};
        const cri_saved_parts parts = {"checkpoint parts", r, s->lead,
                                       put_records,        s, s->is_lead ? &reader : NULL};
        if (is_here[r]) continue;
        cr_note(cri_parts_move(f, &parts, err));
        cri_record_reader_free(&reader);
        if (err->status != CR_OK) break;
    }
    return err->status;
}

/* ---- a save ---- */

static void save_free(struct cri_save *s)
{
    for (int i = 0; i < CR_SAVED_FILES; i++) {
        if (s->fds[i] >= 0) close(s->fds[i]);
        cr_free(s->paths[i]);
    }
    cr_free(s->shard_path);
    cr_free(s->pieces);
    cr_host_free(s->dev, s->copy, s->copy_bytes);
    cr_free(s->model_source);
    cr_free(s->model_folder);
    cr_free(s->state_folder);
    cr_free(s->index_path);
    cr_buf_free(&s->header);
    cr_buf_free(&s->index);
    json_decref(s->shards);
    cr_free(s);
}

void cri_save_abandon(cr_fsdp *f)
{
    if (!f->save) return;
    if (f->save->has_thread) pthread_join(f->save->thread, NULL);
    save_free(f->save);
    f->save = NULL;
}

static struct cri_save *new_save(cr_fsdp *f, const cr_save_args *a)
{
    struct cri_save *s = CR_NEW(struct cri_save);
    bool has_state = !a->save_only_model && f->master;

    *s = (struct cri_save){.kind = a->kind,
                           .is_here = a->is_here,
                           .dev = f->dev,
                           .dtype = f->args.param_dtype,
                           .model = f->model,
                           .fds = {-1, -1, -1, -1},
                           .shard_fd = -1};
    s->model_folder = cr_path_join(a->folder, a->role);
    s->state_folder = cr_path_join(a->folder, "state");
    s->index_path = cri_index_path(a->folder, a->role);
    s->model_source = cr_strdup(a->model_source);
    for (int i = 0; i < CR_SAVED_FILES && a->kind != CR_SAVE_EACH; i++)
        if (i == CRI_FILE_MODEL || has_state)
            s->paths[i] = cr_saved_path(a->folder, a->role, i, s->model->adapters);
    return s;
}

static char *shard_name(const cr_save_args *a, int rank)
{
    return cr_asprintf("%s.rank-%02d.%s.shard", a->role, rank, a->tag);
}

typedef struct place { /* of a rank */
    bool is_here, is_lost, is_writer;
    char host[64];
} place;

/* Who has the folder, who leads, and with CR_SAVE_EACH which parts there will be. Collective. */
static cr_status agree_places(cr_fsdp *f, const cr_save_args *a, bool *is_here, cr_err *err)
{
    struct cri_save *s = f->save;
    int num = f->mesh->shape.num_ranks, rank = f->mesh->rank;
    place mine = {.is_here = s->is_here}, *all = CR_NEW_ARRAY(place, num);

    for (size_t i = 0; i < f->units.num; i++)
        mine.is_writer = mine.is_writer || cri_is_writer(f, &f->units.unit[i].trained);
    mine.is_lost =
        !s->is_here && (a->kind == CR_SAVE_SHARED || (a->kind == CR_SAVE_EACH && a->was_here));
    snprintf(mine.host, sizeof mine.host, "%s", cr_host_name());
    s->lead = -1;
    s->shards = a->kind == CR_SAVE_EACH ? json_array() : NULL;
    CR_TRY_GOTO(out, cri_tell_all(f, "places of a checkpoint", &mine, sizeof mine, all, err));
    for (int r = 0; r < num; r++) {
        is_here[r] = all[r].is_here;
        if (s->lead < 0 && is_here[r]) s->lead = r;
        if (all[r].is_lost)
            CR_TRY_GOTO(out, cr_fail(err, CR_EIO,
                                     "%s on %s (%s rank %d) is not the folder that the launcher "
                                     "has made: was output_dir replaced or unmounted there?",
                                     a->folder, all[r].host, a->role, r));
    }
    if (s->lead < 0)
        CR_TRY_GOTO(out, cr_fail(err, CR_ECONFIG, "no rank of %s is on a host that has %s", a->role,
                                 a->folder));
    s->is_lead = rank == s->lead;
    s->has_work = mine.is_writer || s->is_lead;
    for (int r = 0; s->shards && r < num; r++)
        if (all[r].is_writer || r == s->lead) {
            char *name = shard_name(a, r);
            json_array_append_new(s->shards,
                                  json_pack("{s:s,s:s}", "file", name, "host", all[r].host));
            cr_free(name);
        }
    if (s->shards && s->has_work) {
        char *name = shard_name(a, rank);
        s->shard_path = cr_path_join(s->state_folder, name);
        snprintf(s->saved.shard, sizeof s->saved.shard, "%s", name);
        cr_free(name);
    }
out:
    cr_free(all);
    return err->status;
}

/* Folders, the list, and a copy of what changes. Replicas hold the same: the first one writes (cri_is_writer). */
static cr_status prepare(cr_fsdp *f, const cr_save_args *a, cr_err *err)
{
    struct cri_save *s = f->save;

    if (s->is_lead) CR_TRY(cr_mkdirs(s->model_folder, err));
    if ((s->is_lead && !a->save_only_model) || a->kind == CR_SAVE_EACH)
        CR_TRY(cr_mkdirs(s->state_folder, err));
    if (!s->has_work) return CR_OK;
    if (f->master && !is_sent(s)) CR_TRY(copy_shards(f, s, err));
    CR_TRY(list_all(f, s, a->save_only_model, err));
    if (!s->is_lead || a->kind == CR_SAVE_EACH) return CR_OK;
    CR_TRY(open_files(s, err));
    return reserve(s, err);
}

cr_status cr_fsdp_save_start(cr_fsdp *f, const cr_save_args *args, cr_err *err)
{
    bool *is_here;
    int code;

    CR_TRY(cri_need_states(f, CR_STATE_PARAMS | CR_STATE_MOMENTS, "checkpoint", err));
    if (f->save) CR_TRY(cr_fsdp_save_wait(f, NULL, err));
    f->save = new_save(f, args);
    f->saved = (cr_saved){0};
    is_here = CR_NEW_ARRAY(bool, f->mesh->shape.num_ranks);
    if (agree_places(f, args, is_here, err) == CR_OK && f->model->adapters)
        cr_note(cri_base_text(f, err));
    if (err->status == CR_OK) {
        cr_note(prepare(f, args, err));
        cr_note(cr_agree(f->mesh->group[CR_AXIS_ALL], "begin the checkpoint", err));
        if (err->status == CR_OK && args->kind == CR_SAVE_GATHERED)
            cr_note(gather_parts(f, f->save, is_here, err));
    }
    cr_free(is_here);
    if (err->status != CR_OK) {
        cri_save_abandon(f);
        return err->status;
    }
    if (is_sent(f->save)) f->save->has_work = false;
    if (!f->save->has_work) return CR_OK;
    code = pthread_create(&f->save->thread, NULL, write_all, f->save);
    f->save->has_thread = code == 0;
    if (code != 0) write_all(f->save); /* no thread to be had: the save is there, only slower */
    return CR_OK;
}

bool cr_fsdp_is_saving(const cr_fsdp *f)
{
    return f->save && f->save->has_work && !atomic_load(&f->save->is_done);
}

cr_status cr_fsdp_save_wait(cr_fsdp *f, cr_saved *out, cr_err *err)
{
    struct cri_save *s = f->save;

    if (s) {
        if (s->has_thread) pthread_join(s->thread, NULL);
        s->has_thread = false;
        if (s->err.status != CR_OK) cr_fail(err, s->err.status, "%s", s->err.msg);
        f->saved = s->saved;
        cri_save_abandon(f);
    }
    if (out) *out = f->saved;
    return cr_agree(f->mesh->group[CR_AXIS_ALL], "write the checkpoint", err);
}

char *cr_saved_path(const char *folder, const char *role, int file, bool has_adapters)
{
    if (file != CRI_FILE_MODEL) return cr_asprintf("%s/state/%s.%s", folder, role, states[file]);
    return cr_asprintf("%s/%s/%s", folder, role,
                       has_adapters ? CR_PEFT_TENSORS : "model.safetensors");
}

/* ---- parts of checkpoints that are gone ---- */

static void forget_in(const char *folder, const char *role)
{
    char *state = cr_path_join(folder, "state"), *start = cr_asprintf("%s.rank-", role);
    DIR *dir = opendir(state);
    struct dirent *entry;

    while (dir && (entry = readdir(dir))) {
        const char *dot = strrchr(entry->d_name, '.');
        if (strncmp(entry->d_name, start, strlen(start)) == 0 && dot && !strcmp(dot, ".shard"))
            unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir) closedir(dir);
    rmdir(state); /* if they are empty now */
    rmdir(folder);
    cr_free(state);
    cr_free(start);
}

void cr_saved_forget(const char *output_dir, const char *role, const uint64_t *kept, size_t num)
{
    DIR *dir = opendir(output_dir);
    struct dirent *entry;

    while (dir && (entry = readdir(dir))) {
        const char *digits = entry->d_name + strlen("checkpoint-");
        bool is_kept = false;
        char *folder;
        if (strncmp(entry->d_name, "checkpoint-", strlen("checkpoint-")) != 0 || !*digits ||
            digits[strspn(digits, "0123456789")])
            continue;
        for (size_t i = 0; i < num; i++)
            is_kept = is_kept || kept[i] == strtoull(digits, NULL, 10);
        if (is_kept) continue;
        folder = cr_path_join(output_dir, entry->d_name);
        forget_in(folder, role);
        cr_free(folder);
    }
    if (dir) closedir(dir);
}
