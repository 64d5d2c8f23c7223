/* resume.c -- a role's state comes back from a checkpoint: see saved.h.
 *
 * Where every rank has the checkpoint and its files are whole, each reads the elements that its shards want, on any mesh. Else
 * the records of the files, or of the parts that ranks have written on their hosts, come to all ranks as a stream
 * (parts.c), and each takes what is its own; parts that are enough where they are are read there. All elements have to come.
 */
#include "base/digest.h"
#include "strategies/saved/saved.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the index ---- */

char *cri_index_path(const char *folder, const char *role)
{
    return cr_asprintf("%s/state/%s.json", folder, role);
}

enum { ADAPTERS_TEXT = 96, STATE_BYTES = (int)sizeof(float) /* of an element in its file */ };

/* What a resumed run must have, too: the numbers of the same A and B are others with another scale. */
static void adapters_text(const cr_model *model, char out[ADAPTERS_TEXT])
{
    const cr_adapter_options *o = model->adapters;

    snprintf(out, ADAPTERS_TEXT, "no adapters");
    if (o)
        snprintf(out, ADAPTERS_TEXT, "adapters of rank %lld and alpha %.10g%s", (long long)o->rank,
                 o->alpha, o->use_rslora ? " with rslora" : "");
}

/* First element of each trained parameter in the files: the order of the tree, without padding. */
json_t *cri_state_index(const cr_fsdp *f)
{
    json_t *root = json_object(), *params = json_object();
    int64_t at = 0;

    for (size_t i = 0; i < f->model->num_params; i++) {
        const cr_param *p = f->model->params[i];
        if (!p->is_trainable) continue;
        json_t *entry =
            json_pack("{s:I,s:I}", "first", (json_int_t)at, "num", (json_int_t)p->num_elems);
        if (f->choices[i].is_muon) json_object_set_new(entry, "optim", json_string("muon"));
        json_object_set_new(params, p->name, entry);
        at += p->num_elems;
    }
    json_object_set_new(root, "updates", json_integer(f->num_updates));
    if (f->loss_scale > 0) {
        json_object_set_new(root, "loss_scale", json_real(f->loss_scale));
        json_object_set_new(root, "good_updates", json_integer(f->num_good_updates));
    }
    if (f->model->adapters) {
        char text[ADAPTERS_TEXT];
        adapters_text(f->model, text);
        json_object_set_new(root, "adapters", json_string(text));
    }
    json_object_set_new(root, "elements", json_integer(at));
    json_object_set_new(root, "params", params);
    return root;
}

cr_status cri_map_states(const cr_model *model, const json_t *params, const char *path,
                         cr_weight_map *out, cr_err *err)
{
    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *p = model->params[i];
        const json_t *entry = json_object_get(params, p->name);
        if (!p->is_trainable) continue;
        if (!entry && json_object_size(params))
            return cr_fail(
                err, CR_EFORMAT,
                "%s has no parameter %s: it was frozen when this was written, or this is another "
                "model's (freeze what that run froze, or begin anew with its MODEL as pretrain)",
                path, p->name);
        if (!entry || json_integer_value(json_object_get(entry, "num")) != p->num_elems)
            return cr_fail(err, CR_EFORMAT,
                           "%s has no parameter %s of %lld elements: it belongs to another model",
                           path, p->name, (long long)p->num_elems);
        cr_weight_map_add(
            out, &(cr_weight_range){.param = (int32_t)i,
                                    .end = p->num_elems,
                                    .at = STATE_BYTES *
                                          json_integer_value(json_object_get(entry, "first")),
                                    .elem_bytes = STATE_BYTES});
    }
    return CR_OK;
}

static bool is_count(const json_t *v, int64_t max)
{
    return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= max;
}

/* Their names are below the folder `state`. */
static cr_status check_shards(const json_t *index, const char *path, cr_err *err)
{
    const json_t *shards = json_object_get(index, "shards"), *shard;
    size_t i;

    if (json_array_size(shards) == 0 || !is_count(json_object_get(index, "model_bytes"), INT64_MAX))
        return cr_fail(err, CR_EFORMAT, "%s has no parts (damaged?)", path);
    json_array_foreach(shards, i, shard)
    {
        const char *file = json_string_value(json_object_get(shard, "file"));
        if (!file || !*file || strchr(file, '/') ||
            !json_string_value(json_object_get(shard, "host")))
            return cr_fail(err, CR_EFORMAT, "%s: part %zu has no name or host (damaged?)", path, i);
    }
    return CR_OK;
}

/* Of what cri_state_index and save.c write. CR_EFORMAT: a number that is not a count, or elements beyond the files. */
static cr_status check_index(const json_t *index, const char *path, cr_err *err)
{
    const json_t *params = json_object_get(index, "params"),
                 *scale = json_object_get(index, "loss_scale");
    int64_t num = json_integer_value(json_object_get(index, "elements"));
    const char *name;
    json_t *entry;

    if (!is_count(json_object_get(index, "updates"), INT64_MAX / 2) ||
        !is_count(json_object_get(index, "elements"), INT64_MAX / STATE_BYTES) ||
        !json_is_object(params))
        return cr_fail(err, CR_EFORMAT,
                       "%s has no \"updates\", \"elements\" or \"params\" (damaged?)", path);
    if (scale && (!(json_number_value(scale) > 0) || !isfinite(json_number_value(scale)) ||
                  !is_count(json_object_get(index, "good_updates"), INT64_MAX / 2)))
        return cr_fail(err, CR_EFORMAT,
                       "%s has a loss scale that is not a positive number (damaged?)", path);
    if (json_object_get(index, "shards")) CR_TRY(check_shards(index, path, err));
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

/* ---- this rank's elements ---- */

typedef struct reader {
    cr_fsdp *f;
    const char *folder, *role;
    char *index_path;
    bool is_here, are_all_here;
    int lead;               /* the first rank that has the checkpoint */
    json_t *index, *shards; /* shards: borrowed from it; NULL: files are whole */
    struct moves {
        cr_weight_move *item; /* from its shards to the files, by place there (owned) */
        size_t num;
    } kept, seconds;       /* of masters and first moments; of second moments */
    int64_t wanted, taken; /* bytes of all states */
    char *spool;           /* MODEL for frozen parameters, where it is not here; or NULL */
    int spool_fd;          /* >= 0: this rank writes it */
} reader;

static int by_place(const void *a, const void *b)
{
    int64_t x = ((const cr_weight_move *)a)->to_at, y = ((const cr_weight_move *)b)->to_at;

    return (x > y) - (x < y);
}

static const struct moves *moves_of(const reader *r, int file)
{
    return file == CRI_FILE_V ? &r->seconds : &r->kept;
}

static void find_moves(const cr_weight_map *mine, const cr_weight_map *files, struct moves *out)
{
    out->item = cr_redistribute(mine, files, &out->num);
    if (out->num) qsort(out->item, out->num, sizeof *out->item, by_place);
}

static cr_status list_moves(reader *r, cr_err *err)
{
    cr_weight_map mine = {0}, seconds = {0}, files = {0};

    if (!r->f->args.is_train) return CR_OK;
    if (cri_map_states(r->f->model, json_object_get(r->index, "params"), r->index_path, &files,
                       err) == CR_OK) {
        cri_map_kept(r->f, /*is_trained=*/true, /*is_written=*/false, &mine);
        cri_map_seconds(r->f, /*is_written=*/false, &seconds);
        find_moves(&mine, &files, &r->kept);
        find_moves(&seconds, &files, &r->seconds);
    }
    for (int file = 0; file < CRI_NUM_STATES; file++)
        for (size_t i = 0; i < moves_of(r, file)->num; i++)
            r->wanted += STATE_BYTES * moves_of(r, file)->item[i].num;
    cr_weight_map_free(&mine);
    cr_weight_map_free(&seconds);
    cr_weight_map_free(&files);
    return err->status;
}

/* num elements of a state, float32, from the element at byte in_file on, which is in the move. */
static cr_status upload(cr_fsdp *f, int file, const cr_weight_move *own, int64_t in_file,
                        const float *from, size_t num, cr_err *err)
{
    static _Thread_local float stored[CRI_PUT_BYTES / STATE_BYTES];
    cr_dtype dtype = f->args.master_dtype;
    size_t bytes = cr_dtype_bytes(dtype),
           at = (size_t)own->from_at + (size_t)(in_file - own->to_at) / STATE_BYTES * bytes;

    if (dtype != CR_F32) cr_cast_host(dtype, stored, CR_F32, from, num);
    return cr_upload(cri_home(f), cr_mem_add(cri_state_of(f, (size_t)file), at),
                     dtype == CR_F32 ? from : stored, num * bytes, err);
}

/* A cri_put: what is this rank's of it. */
static cr_status take(void *ctx, int file, int64_t at, const void *data, size_t num_bytes,
                      cr_err *err)
{
    reader *r = ctx;
    int64_t end = at + (int64_t)num_bytes;
    const struct moves *moves;
    size_t low = 0, high;

    if (file == CRI_FILE_MODEL)
        return r->spool_fd < 0 ? CR_OK
                               : cri_transfer_bytes(r->spool_fd, true, (void *)(uintptr_t)data,
                                                    num_bytes, at, r->spool, err);
    if (at % STATE_BYTES || num_bytes % STATE_BYTES)
        return cr_fail(err, CR_EFORMAT, "%s: a part of a float (damaged?)", r->folder);
    moves = moves_of(r, file);
    high = moves->num;
    while (low < high) { /* the first move that ends after `at` */
        size_t mid = low + (high - low) / 2;
        if (moves->item[mid].to_at + STATE_BYTES * moves->item[mid].num <= at)
            low = mid + 1;
        else
            high = mid;
    }
    for (; low < moves->num && moves->item[low].to_at < end; low++) {
        const cr_weight_move *own = &moves->item[low];
        int64_t from = own->to_at > at ? own->to_at : at,
                stop = own->to_at + STATE_BYTES * own->num;
        if (stop > end) stop = end;
        CR_TRY(upload(r->f, file, own, from,
                      (const float *)(const void *)((const char *)data + (from - at)),
                      (size_t)(stop - from) / STATE_BYTES, err));
        r->taken += stop - from;
    }
    return CR_OK;
}

/* ---- whole files ---- */

/* Every rank reads its own elements. */
static cr_status read_own(reader *r, int file, cr_err *err)
{
    static _Thread_local float block[CRI_PUT_BYTES / STATE_BYTES];
    const struct moves *moves = moves_of(r, file);
    char *path = cr_saved_path(r->folder, r->role, file, r->f->model->adapters);
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) cr_fail(err, CR_EIO, "cannot open %s: %s", path, strerror(errno));
    for (size_t i = 0; i < moves->num; i++) {
        const cr_weight_move *own = &moves->item[i];
        int64_t end = own->to_at + STATE_BYTES * own->num, n;
        for (int64_t at = own->to_at; at < end && err->status == CR_OK; at += n) {
            n = end - at < CRI_PUT_BYTES ? end - at : CRI_PUT_BYTES;
            if (cri_transfer_bytes(fd, false, block, (size_t)n, at, path, err) == CR_OK)
                cr_note(upload(r->f, file, own, at, block, (size_t)n / STATE_BYTES, err));
            r->taken += n;
        }
    }
    if (fd >= 0) close(fd);
    cr_free(path);
    return err->status;
}

static cr_status put_file(const reader *r, cri_records *to, int file, cr_err *err)
{
    static _Thread_local char block[CRI_PUT_BYTES];
    char *path = cr_saved_path(r->folder, r->role, file, r->f->model->adapters);
    FILE *in = fopen(path, "rb");
    int64_t at = 0;
    size_t n;

    if (!in) cr_fail(err, CR_EIO, "cannot open %s: %s", path, strerror(errno));
    while (in && err->status == CR_OK && (n = fread(block, 1, sizeof block, in)) > 0) {
        cr_note(cri_records_put(to, file, at, block, n, err));
        at += (int64_t)n;
    }
    if (in && ferror(in)) cr_fail(err, CR_EIO, "cannot read %s: %s", path, strerror(errno));
    if (in) fclose(in);
    cr_free(path);
    return err->status;
}

static cr_status produce_files(void *ctx, cri_records *to, cr_err *err)
{
    reader *r = ctx;

    for (int file = 0; file < CRI_NUM_STATES && r->f->args.is_train; file++)
        CR_TRY(put_file(r, to, file, err));
    return r->spool ? put_file(r, to, CRI_FILE_MODEL, err) : CR_OK;
}

static cr_status stream(reader *r, const char *name, int from,
                        cr_status (*produce)(void *ctx, cri_records *to, cr_err *err), void *ctx,
                        cr_err *err)
{
    cri_record_reader records = {.name = name, .put = take, .ctx = r};
    const cri_saved_parts s = {"parts of a checkpoint", from, CRI_TO_ALL, produce, ctx, &records};

    cr_note(cri_parts_move(r->f, &s, err));
    cri_record_reader_free(&records);
    return err->status;
}

/* ---- parts ---- */

static char *shard_path(const char *folder, const json_t *shard)
{
    return cr_asprintf("%s/state/%s", folder, json_string_value(json_object_get(shard, "file")));
}

static cr_status produce_shard(void *ctx, cri_records *to, cr_err *err)
{
    return cri_record_file_read(ctx, cri_records_put, to, err);
}

/* Are the parts on this host enough for this rank, and so everywhere? */
static cr_status read_shards_here(reader *r, bool *are_enough, cr_err *err)
{
    double is_enough;
    const json_t *shard;
    size_t i;

    json_array_foreach(r->shards, i, shard)
    {
        char *path = shard_path(r->folder, shard);
        if (err->status == CR_OK && cr_file_exists(path))
            cr_note(cri_record_file_read(path, take, r, err));
        cr_free(path);
    }
    is_enough = r->taken == r->wanted;
    CR_TRY(cr_agree(r->f->mesh->group[CR_AXIS_ALL], "parts of this host", err));
    CR_TRY(cr_all_reduce_f64(r->f->mesh->group[CR_AXIS_ALL], "parts of this host", CR_OP_MIN,
                             &is_enough, 1, err));
    *are_enough = is_enough > 0;
    return CR_OK;
}

/* Each part from the first rank that has it on its host. */
static cr_status stream_shards(reader *r, cr_err *err)
{
    size_t num = json_array_size(r->shards), num_ranks = (size_t)r->f->mesh->shape.num_ranks;
    char *mine = CR_NEW_ARRAY(char, num), *all = CR_NEW_ARRAY(char, num *num_ranks);

    for (size_t i = 0; i < num; i++) {
        char *path = shard_path(r->folder, json_array_get(r->shards, i));
        mine[i] = cr_file_exists(path);
        cr_free(path);
    }
    CR_TRY_GOTO(out, cri_tell_all(r->f, "who has which part", mine, num, all, err));
    r->taken = 0;
    for (size_t i = 0; i < num; i++) {
        const json_t *shard = json_array_get(r->shards, i);
        char *path = shard_path(r->folder, shard);
        size_t from = 0;
        while (from < num_ranks && !all[num * from + i])
            from++;
        if (from == num_ranks)
            cr_fail(err, CR_ECONFIG,
                    "%s is missing: it was written on host %s, which is not among the hosts of "
                    "this run, or has lost it (run on that host, too, or copy the file from "
                    "there)",
                    path, json_string_value(json_object_get(shard, "host")));
        else
            cr_note(stream(r, path, (int)from, produce_shard, path, err));
        cr_free(path);
        if (err->status != CR_OK) break;
    }
out:
    cr_free(mine);
    cr_free(all);
    return err->status;
}

/* ---- what is in MODEL only: frozen parameters, and values of a role that does not train ---- */

/* Where MODEL is not here or in parts: a copy of it for the ranks of this host, for as long as they read. */
static cr_status open_spool(reader *r, cr_err *err)
{
    enum { PATH = 256 };
    const char *temp = getenv("TMPDIR");
    char mine[PATH] = "", *all = cr_alloc((size_t)r->f->mesh->shape.num_ranks * PATH);
    int first = cr_group_first_here(r->f->mesh->group[CR_AXIS_ALL]);

    if (first == r->f->mesh->rank) {
        snprintf(mine, sizeof mine, "%s/croll-model.XXXXXX", temp && *temp ? temp : "/tmp");
        if (!mkdtemp(mine))
            cr_fail(err, CR_EIO, "cannot make a folder %s: %s", mine, strerror(errno));
    }
    if (cri_tell_all(r->f, "folders for MODEL", mine, sizeof mine, all, err) == CR_OK)
        r->spool = cr_strdup(all + first * PATH);
    if (mine[0] && err->status == CR_OK) {
        char *path = cr_path_join(mine, "model.safetensors");
        r->spool_fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (r->spool_fd < 0) cr_fail(err, CR_EIO, "cannot write %s: %s", path, strerror(errno));
        cr_free(path);
    }
    cr_free(all);
    return cr_agree(r->f->mesh->group[CR_AXIS_ALL], "folders for MODEL", err);
}

static cr_status read_model(reader *r, cr_err *err)
{
    char *model = r->spool ? cr_strdup(r->spool) : cr_path_join(r->folder, r->role);

    cr_note(cri_shards_read_model(r->f, model, err));
    cr_free(model);
    return err->status;
}

/* ---- all of it ---- */

/* From the first rank that has it. Collective. */
static cr_status read_index(reader *r, cr_err *err)
{
    cr_group *group = r->f->mesh->group[CR_AXIS_ALL];
    int num = r->f->mesh->shape.num_ranks;
    bool *is_here = CR_NEW_ARRAY(bool, num);
    const char *path = r->index_path;
    cr_buf text = {0};
    int64_t num_bytes = -1;

    r->are_all_here = true;
    r->lead = -1;
    CR_TRY_GOTO(
        out, cri_tell_all(r->f, "who has the checkpoint", &r->is_here, sizeof(bool), is_here, err));
    for (int i = num - 1; i >= 0; i--)
        if (is_here[i])
            r->lead = i;
        else
            r->are_all_here = false;
    if (r->lead < 0)
        CR_TRY_GOTO(out, cr_fail(err, CR_EIO, "%s is on no host of %s", r->folder, r->role));
    if (r->lead == r->f->mesh->rank) {
        if (!cr_file_exists(path))
            cr_fail(err, CR_EIO,
                    "%s is not there: this checkpoint cannot be resumed (was it written with "
                    "save_only_model?)",
                    path);
        else if (cr_file_read(path, &text, err) == CR_OK)
            num_bytes = (int64_t)text.num_bytes;
    }
    CR_TRY_GOTO(out, cr_agree(group, "the index of a checkpoint", err));
    CR_TRY_GOTO(out, cr_broadcast(group, "the index of a checkpoint", r->lead, &num_bytes,
                                  sizeof num_bytes, err));
    cr_buf_reserve(&text, (size_t)num_bytes + 1);
    text.num_bytes = (size_t)num_bytes;
    CR_TRY_GOTO(out, cr_broadcast(group, "the index of a checkpoint", r->lead, text.data,
                                  text.num_bytes, err));
    CR_TRY_GOTO(out, cr_json_parse(text.data, text.num_bytes, path, &r->index, err));
    CR_TRY_GOTO(out, check_index(r->index, path, err));
    r->shards = json_object_get(r->index, "shards");
out:
    cr_buf_free(&text);
    cr_free(is_here);
    return err->status;
}

static cr_status read_states(reader *r, cr_err *err)
{
    bool are_enough = false;

    if (!r->shards && r->are_all_here) {
        for (int file = 0; file < CRI_NUM_STATES && r->f->args.is_train; file++)
            CR_TRY(read_own(r, file, err));
    } else if (!r->shards) {
        CR_TRY(stream(r, r->folder, r->lead, produce_files, r, err));
    } else {
        if (!r->spool) CR_TRY(read_shards_here(r, &are_enough, err));
        if (!are_enough) CR_TRY(stream_shards(r, err));
    }
    if (r->taken != r->wanted)
        return cr_fail(err, CR_EFORMAT, "%s has %lld of %lld bytes of this rank's state (damaged?)",
                       r->folder, (long long)r->taken, (long long)r->wanted);
    return CR_OK;
}

/* The same modules have adapters, of one shape and scale, or none have. */
static cr_status check_adapters(const reader *r, cr_err *err)
{
    const json_t *text = json_object_get(r->index, "adapters");
    const char *then = json_is_string(text) ? json_string_value(text) : "no adapters";
    int64_t num = 0;
    char now[ADAPTERS_TEXT];

    adapters_text(r->f->model, now);
    if (strcmp(then, now) != 0)
        return cr_fail(err, CR_ECONFIG,
                       "%s has %.100s, and this run has %s (lora_target, lora_rank, lora_alpha and "
                       "use_rslora must be as they were)",
                       r->folder, then, now);
    for (size_t i = 0; i < r->f->model->num_params; i++)
        if (r->f->model->params[i]->is_trainable) num += r->f->model->params[i]->num_elems;
    if (r->f->model->adapters && num != json_integer_value(json_object_get(r->index, "elements")))
        return cr_fail(err, CR_ECONFIG,
                       "%s has adapters of other modules than this run (lora_target and "
                       "additional_target must be as they were)",
                       r->folder);
    return CR_OK;
}

/* Moments are those of the optimizer that each parameter has. */
static cr_status check_optimizers(const reader *r, cr_err *err)
{
    for (size_t i = 0; i < r->f->model->num_params; i++) {
        const cr_param *p = r->f->model->params[i];
        const json_t *entry = json_object_get(json_object_get(r->index, "params"), p->name);
        const bool was_muon = json_object_get(entry, "optim") != NULL,
                   is_muon = r->f->choices[i].is_muon;
        if (p->is_trainable && entry && was_muon != is_muon)
            return cr_fail(err, CR_ECONFIG,
                           "%s has moments of %s for %s, and this run trains it with %s (optim and "
                           "param_groups must be as they were, or begin anew with its MODEL as "
                           "pretrain)",
                           r->folder, was_muon ? "muon" : "adamw", p->name,
                           is_muon ? "muon" : "adamw");
    }
    return CR_OK;
}

/* Adapters belong to the weights that they were trained with. Another dtype has other sums. Collective. */
static cr_status check_base(reader *r, cr_err *err)
{
    const char *then = json_string_value(json_object_get(r->index, "base")), *now = r->f->base;

    if (!r->f->model->adapters || !then) return CR_OK;
    CR_TRY(cri_base_text(r->f, err));
    if (strcmp(then, now) == 0 || strncmp(then, now, strcspn(now, " ")) != 0) return CR_OK;
    return cr_fail(err, CR_ECONFIG,
                   "%s has adapters of another base than %s (go on with the model that they were "
                   "trained with)",
                   r->folder, r->f->args.source);
}

static cr_status read_all(reader *r, cr_err *err)
{
    cr_fsdp *f = r->f;
    bool has_more; /* in MODEL; the base of adapters is not in the checkpoint */

    CR_TRY(read_index(r, err));
    f->num_updates = json_integer_value(json_object_get(r->index, "updates"));
    if (f->loss_scale > 0 && json_object_get(r->index, "loss_scale")) {
        f->loss_scale = json_number_value(json_object_get(r->index, "loss_scale"));
        f->num_good_updates = json_integer_value(json_object_get(r->index, "good_updates"));
    }
    CR_TRY(check_adapters(r, err));
    CR_TRY(check_base(r, err));
    CR_TRY(check_optimizers(r, err));
    cr_note(list_moves(r, err));
    CR_TRY(cr_agree(f->mesh->group[CR_AXIS_ALL], "resume", err));
    has_more = !f->args.is_train || (f->units.num_frozen && !f->model->adapters);
    if (has_more && (r->shards || !r->are_all_here)) CR_TRY(open_spool(r, err));
    CR_TRY(read_states(r, err));
    return has_more ? read_model(r, err) : CR_OK;
}

cr_status cr_fsdp_resume(cr_fsdp *f, const char *folder, const char *role, bool is_here,
                         cr_err *err)
{
    reader r = {.f = f, .folder = folder, .role = role, .is_here = is_here, .spool_fd = -1};
    cr_err ignored = {0};

    CR_TRY(cri_need_states(f, CR_STATE_PARAMS | CR_STATE_MOMENTS, "resume", err));
    cri_states_changed(f);
    r.index_path = cri_index_path(folder, role);
    if (read_all(&r, err) == CR_OK) cr_note(cri_reshard_all(f, err));
    cr_note(cr_agree(f->mesh->group[CR_AXIS_ALL], "resume", err));
    if (r.spool_fd >= 0) {
        close(r.spool_fd);
        cr_note(cr_remove_tree(r.spool, &ignored));
    }
    json_decref(r.index);
    cr_free(r.index_path);
    cr_free(r.kept.item);
    cr_free(r.seconds.item);
    cr_free(r.spool);
    CR_TRY(err->status);
    return cr_fsdp_check_replicas(f, false, err);
}

/* ---- MODEL of parts ---- */

typedef struct joined {
    const char *path;
    int fd;
    int64_t num_bytes;
} joined;

static cr_status join(void *ctx, int file, int64_t at, const void *data, size_t num_bytes,
                      cr_err *err)
{
    joined *to = ctx;

    if (file != CRI_FILE_MODEL) return CR_OK;
    to->num_bytes += (int64_t)num_bytes;
    return cri_transfer_bytes(to->fd, true, (void *)(uintptr_t)data, num_bytes, at, to->path, err);
}

static cr_status join_shards(const char *folder, const json_t *index, joined *to, cr_err *err)
{
    const json_t *shard;
    size_t i;

    json_array_foreach(json_object_get(index, "shards"), i, shard)
    {
        char *path = shard_path(folder, shard);
        if (!cr_file_exists(path))
            cr_fail(err, CR_EFORMAT, "%s is missing: it is on host %s (copy it from there)", path,
                    json_string_value(json_object_get(shard, "host")));
        else
            cr_note(cri_record_file_read(path, join, to, err));
        cr_free(path);
        CR_TRY(err->status);
    }
    if (to->num_bytes != json_integer_value(json_object_get(index, "model_bytes")))
        return cr_fail(err, CR_EFORMAT, "%s: its parts have %lld bytes of the model (damaged?)",
                       folder, (long long)to->num_bytes);
    return CR_OK;
}

cr_status cr_saved_join_model(const char *folder, const char *role, const char *path,
                              bool *is_parted, cr_err *err)
{
    char *index_path = cri_index_path(folder, role);
    json_t *index = NULL;
    joined to = {.path = path, .fd = -1};

    *is_parted = false;
    if (cr_file_exists(index_path) && cr_json_read_file(index_path, &index, err) == CR_OK &&
        check_index(index, index_path, err) == CR_OK && json_object_get(index, "shards")) {
        *is_parted = true;
        to.fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (to.fd < 0)
            cr_fail(err, CR_EIO, "cannot write %s: %s", path, strerror(errno));
        else if (join_shards(folder, index, &to, err) == CR_OK && fsync(to.fd) != 0)
            cr_fail(err, CR_EIO, "cannot write %s: %s", path, strerror(errno));
    }
    if (to.fd >= 0) close(to.fd);
    json_decref(index);
    cr_free(index_path);
    return err->status;
}
