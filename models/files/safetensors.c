/* safetensors.c -- reading safetensors files, with every check that safetensors.h lists. */
#include "models/files/safetensors.h"

#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_HEADER_BYTES = 100000000 };

static const struct {
    const char *name;
    unsigned bits;
} dtypes[] = {
    {"BOOL", 8}, {"F4", 4},          {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},   {"F8_E5M2", 8},     {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"U16", 16}, {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32}, {"U32", 32},        {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64}, {"U64", 64},
};

/* One mapped file. */
typedef struct cr_mapped_file {
    char *path, *name; /* whole path for errors, last part for cr_tensor.file */
    const unsigned char *bytes;
    size_t num_bytes;
    bool is_mapped;
} cr_mapped_file;

/* ---- one header ---- */

typedef struct entry {
    cr_tensor tensor;
    uint64_t begin, end;
} entry;

static cr_status read_shape(const cr_mapped_file *f, const json_t *shape, entry *e, unsigned bits,
                            cr_err *err)
{
    cr_tensor *t = &e->tensor;
    uint64_t num = 1, total;

    if (!json_is_array(shape))
        return cr_fail(err, CR_EFORMAT, "%s: tensor '%s' has no shape", f->path, t->name);
    if (json_array_size(shape) > CR_TENSOR_MAX_DIMS)
        return cr_fail(err, CR_EABSENT,
                       "%s: tensor '%s' has %zu dimensions, at most %d are possible", f->path,
                       t->name, json_array_size(shape), CR_TENSOR_MAX_DIMS);
    t->num_dims = (int)json_array_size(shape);
    for (int i = 0; i < t->num_dims; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return cr_fail(err, CR_EFORMAT,
                           "%s: tensor '%s' has a shape that is not a list of sizes", f->path,
                           t->name);
        t->shape[i] = json_integer_value(dim);
        if (__builtin_mul_overflow(num, (uint64_t)t->shape[i], &num))
            return cr_fail(err, CR_EFORMAT, "%s: the shape of tensor '%s' overflows", f->path,
                           t->name);
    }
    if (num > INT64_MAX || __builtin_mul_overflow(num, (uint64_t)bits, &total))
        return cr_fail(err, CR_EFORMAT, "%s: the shape of tensor '%s' overflows", f->path, t->name);
    if (total % 8)
        return cr_fail(err, CR_EFORMAT, "%s: tensor '%s' ends inside a byte", f->path, t->name);
    t->num_elems = (int64_t)num;
    t->num_bytes = (size_t)(total / 8);
    return CR_OK;
}

static cr_status read_entry(const cr_mapped_file *f, const char *name, const json_t *value,
                            entry *e, cr_err *err)
{
    const json_t *dtype = json_object_get(value, "dtype"),
                 *range = json_object_get(value, "data_offsets"), *begin, *end;
    unsigned bits = 0;

    e->tensor.name = cr_strdup(name);
    e->tensor.file = f->name;
    if (!json_is_object(value) || !json_is_string(dtype))
        return cr_fail(err, CR_EFORMAT, "%s: tensor '%s' has no dtype", f->path, name);
    for (size_t i = 0; i < CR_COUNT(dtypes); i++)
        if (strcmp(json_string_value(dtype), dtypes[i].name) == 0) {
            e->tensor.dtype = dtypes[i].name;
            bits = dtypes[i].bits;
        }
    if (!bits)
        return cr_fail(err, CR_EFORMAT, "%s: tensor '%s' has the unknown dtype '%s'", f->path, name,
                       json_string_value(dtype));
    CR_TRY(read_shape(f, json_object_get(value, "shape"), e, bits, err));
    begin = json_array_get(range, 0);
    end = json_array_get(range, 1);
    if (!json_is_array(range) || json_array_size(range) != 2 || !json_is_integer(begin) ||
        !json_is_integer(end) || json_integer_value(begin) < 0 || json_integer_value(end) < 0)
        return cr_fail(err, CR_EFORMAT, "%s: tensor '%s' needs data_offsets [begin, end]", f->path,
                       name);
    e->begin = (uint64_t)json_integer_value(begin);
    e->end = (uint64_t)json_integer_value(end);
    if (e->end < e->begin || e->end - e->begin != e->tensor.num_bytes)
        return cr_fail(err, CR_EFORMAT,
                       "%s: tensor '%s' has %zu bytes by its shape but data_offsets [%llu, %llu]",
                       f->path, name, e->tensor.num_bytes, (unsigned long long)e->begin,
                       (unsigned long long)e->end);
    return CR_OK;
}

static cr_status check_metadata(const cr_mapped_file *f, const json_t *metadata, cr_err *err)
{
    void *at;

    if (!json_is_object(metadata))
        return cr_fail(err, CR_EFORMAT, "%s: __metadata__ must map text to text", f->path);
    for (at = json_object_iter((json_t *)(uintptr_t)metadata); at;
         at = json_object_iter_next((json_t *)(uintptr_t)metadata, at))
        if (!json_is_string(json_object_iter_value(at)))
            return cr_fail(err, CR_EFORMAT, "%s: __metadata__ must map text to text", f->path);
    return CR_OK;
}

static int by_offset(const void *a, const void *b)
{
    const entry *x = a, *y = b;

    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return 0;
}

/* Every byte of the data belongs to exactly one tensor. */
static cr_status place(const cr_mapped_file *f, entry *entries, size_t num, size_t data_at,
                       cr_err *err)
{
    uint64_t at = 0;

    qsort(entries, num, sizeof *entries, by_offset);
    for (size_t i = 0; i < num; i++) {
        if (entries[i].begin != at)
            return cr_fail(err, CR_EFORMAT,
                           "%s: tensor '%s' begins at %llu but the one before it ends at %llu (a "
                           "hole or an overlap)",
                           f->path, entries[i].tensor.name, (unsigned long long)entries[i].begin,
                           (unsigned long long)at);
        at = entries[i].end;
        if (at > f->num_bytes - data_at) break;
        entries[i].tensor.data = f->bytes + data_at + entries[i].begin;
    }
    if (at != f->num_bytes - data_at)
        return cr_fail(err, CR_EFORMAT,
                       "%s: the header describes %llu bytes of data but there are "
                       "%zu (the file is cut off or damaged)",
                       f->path, (unsigned long long)at, f->num_bytes - data_at);
    return CR_OK;
}

static void add_tensors(cr_tensors *all, entry *entries, size_t num)
{
    all->tensor = cr_realloc(all->tensor, all->num_tensors * sizeof(cr_tensor),
                             (all->num_tensors + num) * sizeof(cr_tensor));
    for (size_t i = 0; i < num; i++) {
        all->tensor[all->num_tensors++] = entries[i].tensor;
        entries[i].tensor.name = NULL;
    }
}

static cr_status read_header(cr_tensors *all, const cr_mapped_file *f, const json_t *header,
                             size_t data_at, cr_err *err)
{
    size_t num = 0, capacity = json_object_size(header);
    entry *entries = CR_NEW_ARRAY(entry, capacity);
    cr_status status = CR_OK;

    for (void *at = json_object_iter((json_t *)(uintptr_t)header); at && status == CR_OK;
         at = json_object_iter_next((json_t *)(uintptr_t)header, at)) {
        const char *name = json_object_iter_key(at);
        if (strcmp(name, "__metadata__") == 0)
            status = check_metadata(f, json_object_iter_value(at), err);
        else
            status = read_entry(f, name, json_object_iter_value(at), &entries[num++], err);
    }
    if (status == CR_OK) status = place(f, entries, num, data_at, err);
    if (status == CR_OK) add_tensors(all, entries, num);
    for (size_t i = 0; i < num; i++)
        cr_free(entries[i].tensor.name);
    cr_free(entries);
    return status;
}

static cr_status read_file(cr_tensors *all, const cr_mapped_file *f, cr_err *err)
{
    uint64_t num = 0;
    json_t *header = NULL;
    cr_status status;

    if (f->num_bytes < 8)
        return cr_fail(err, CR_EFORMAT, "%s: %zu bytes are too few for a safetensors file", f->path,
                       f->num_bytes);
    for (int i = 7; i >= 0; i--)
        num = num << 8 | f->bytes[i];
    if (f->num_bytes > 11 && memcmp(f->bytes, "version http", 12) == 0)
        return cr_fail(
            err, CR_EFORMAT,
            "%s is a Git LFS pointer and not the file (git lfs pull, or hf download, gets it)",
            f->path);
    if (num > MAX_HEADER_BYTES)
        return cr_fail(err, CR_EFORMAT,
                       "%s: a header of %llu bytes (at most 100000000): this is no "
                       "safetensors file",
                       f->path, (unsigned long long)num);
    if (num > f->num_bytes - 8)
        return cr_fail(err, CR_EFORMAT, "%s: the header has %llu bytes but the file ends after %zu",
                       f->path, (unsigned long long)num, f->num_bytes);
    CR_TRY(cr_json_parse((const char *)f->bytes + 8, (size_t)num, f->path, &header, err));
    if (json_is_object(header))
        status = read_header(all, f, header, 8 + (size_t)num, err);
    else
        status = cr_fail(err, CR_EFORMAT, "%s: the header must be a JSON object", f->path);
    json_decref(header);
    return status;
}

/* ---- all files ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(cr_tensor *const *)a)->name, (*(cr_tensor *const *)b)->name);
}

/* path: the file or the index that was opened. */
static cr_status sort_names(cr_tensors *all, const char *path, cr_err *err)
{
    all->by_name = CR_NEW_ARRAY(cr_tensor *, all->num_tensors);
    for (size_t i = 0; i < all->num_tensors; i++)
        all->by_name[i] = &all->tensor[i];
    qsort(all->by_name, all->num_tensors, sizeof *all->by_name, by_name);
    for (size_t i = 1; i < all->num_tensors; i++)
        if (strcmp(all->by_name[i - 1]->name, all->by_name[i]->name) == 0)
            return cr_fail(err, CR_EFORMAT, "%s: tensor '%s' is in %s and again in %s", path,
                           all->by_name[i]->name, all->by_name[i - 1]->file, all->by_name[i]->file);
    return CR_OK;
}

static cr_mapped_file *add_file(cr_tensors *all, const char *path)
{
    const char *slash = strrchr(path, '/');
    cr_mapped_file *f;

    all->files =
        cr_realloc(all->files, all->num_files * sizeof *f, (all->num_files + 1) * sizeof *f);
    f = &all->files[all->num_files++];
    f->path = cr_strdup(path);
    f->name = cr_strdup(slash ? slash + 1 : path);
    return f;
}

static cr_status map_file(cr_mapped_file *f, cr_err *err)
{
    struct stat st;
    int fd = open(f->path, O_RDONLY | O_CLOEXEC);
    void *bytes;

    if (fd < 0)
        return cr_fail(err, CR_EFORMAT, "%s cannot be opened: %s", f->path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return cr_fail(err, CR_EFORMAT, "%s is not a regular file", f->path);
    }
    f->num_bytes = (size_t)st.st_size;
    if (f->num_bytes) {
        bytes = mmap(NULL, f->num_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED) {
            close(fd);
            return cr_fail(err, CR_EIO, "%s cannot be mapped: %s", f->path, strerror(errno));
        }
        f->bytes = bytes;
        f->is_mapped = true;
    }
    close(fd);
    return CR_OK;
}

static cr_status open_file(cr_tensors *all, const char *path, cr_err *err)
{
    cr_mapped_file *f = add_file(all, path);

    CR_TRY(map_file(f, err));
    return read_file(all, f, err);
}

/* Shards are files beside their index, each opened once. */
static cr_status open_shards(cr_tensors *all, const char *path, const json_t *map, cr_err *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? cr_strndup(path, (size_t)(slash - path)) : cr_strdup(".");
    json_t *seen = json_object();
    cr_status status = CR_OK;

    for (void *at = json_object_iter((json_t *)(uintptr_t)map); at && status == CR_OK;
         at = json_object_iter_next((json_t *)(uintptr_t)map, at)) {
        const json_t *value = json_object_iter_value(at);
        const char *file = json_string_value(value);
        char *shard;
        if (!file || !*file || strchr(file, '/') || file[0] == '.' ||
            strlen(file) != json_string_length(value)) {
            status = cr_fail(err, CR_EFORMAT, "%s: weight_map gives '%s' no file beside the index",
                             path, json_object_iter_key(at));
            continue;
        }
        if (json_object_get(seen, file)) continue;
        json_object_set_new(seen, file, json_true());
        shard = cr_path_join(folder, file);
        status = open_file(all, shard, err);
        cr_free(shard);
    }
    json_decref(seen);
    cr_free(folder);
    return status;
}

static cr_status check_index(const cr_tensors *all, const char *path, const json_t *map,
                             cr_err *err)
{
    for (void *at = json_object_iter((json_t *)(uintptr_t)map); at;
         at = json_object_iter_next((json_t *)(uintptr_t)map, at)) {
        const char *name = json_object_iter_key(at),
                   *file = json_string_value(json_object_iter_value(at));
        const cr_tensor *t = cr_tensors_find(all, name);
        if (!t || strcmp(t->file, file) != 0)
            return cr_fail(err, CR_EFORMAT, "%s: tensor '%s' is not in %s as weight_map says", path,
                           name, file);
    }
    return CR_OK;
}

static cr_status open_index(cr_tensors *all, const char *path, cr_err *err)
{
    json_t *index = NULL;
    const json_t *map;
    cr_status status;

    CR_TRY(cr_json_read_file(path, &index, err));
    map = json_object_get(index, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        status = cr_fail(err, CR_EFORMAT, "%s: weight_map is missing", path);
    else
        status = open_shards(all, path, map, err);
    if (status == CR_OK) status = sort_names(all, path, err);
    if (status == CR_OK) status = check_index(all, path, map, err);
    json_decref(index);
    return status;
}

static cr_status open_path(cr_tensors *all, const char *path, cr_err *err)
{
    size_t num = strlen(path);

    if (num > 5 && strcmp(path + num - 5, ".json") == 0) return open_index(all, path, err);
    CR_TRY(open_file(all, path, err));
    return sort_names(all, path, err);
}

static cr_status open_folder(cr_tensors *all, const char *folder, cr_err *err)
{
    char *one = cr_path_join(folder, "model.safetensors");
    char *index = cr_path_join(folder, "model.safetensors.index.json");
    char *pickle = cr_path_join(folder, "pytorch_model.bin");
    cr_status status;

    if (cr_file_exists(one))
        status = open_path(all, one, err);
    else if (cr_file_exists(index))
        status = open_path(all, index, err);
    else
        status =
            cr_fail(err, CR_EFORMAT,
                    "%s has neither model.safetensors nor model.safetensors.index.json%s", folder,
                    cr_file_exists(pickle) ? " (pytorch_model.bin is not read: Transformers' "
                                             "save_pretrained writes safetensors)"
                                           : "");
    cr_free(pickle);
    cr_free(one);
    cr_free(index);
    return status;
}

cr_status cr_tensors_open(const char *path, cr_tensors **out, cr_err *err)
{
    cr_tensors *all = CR_NEW(cr_tensors);
    cr_status status =
        cr_dir_exists(path) ? open_folder(all, path, err) : open_path(all, path, err);

    *out = all;
    if (status == CR_OK) return CR_OK;
    cr_tensors_close(all);
    *out = NULL;
    return status;
}

cr_status cr_tensors_parse(const void *bytes, size_t num_bytes, const char *what, cr_tensors **out,
                           cr_err *err)
{
    cr_tensors *all = CR_NEW(cr_tensors);
    cr_mapped_file *f = add_file(all, what);

    f->bytes = bytes;
    f->num_bytes = num_bytes;
    *out = all;
    if (read_file(all, f, err) == CR_OK && sort_names(all, what, err) == CR_OK) return CR_OK;
    cr_tensors_close(all);
    *out = NULL;
    return err->status;
}

void cr_tensors_close(cr_tensors *all)
{
    if (!all) return;
    for (size_t i = 0; i < all->num_tensors; i++)
        cr_free(all->tensor[i].name);
    for (size_t i = 0; i < all->num_files; i++) {
        cr_mapped_file *f = &all->files[i];
        if (f->is_mapped) munmap((void *)(uintptr_t)f->bytes, f->num_bytes);
        cr_free(f->path);
        cr_free(f->name);
    }
    cr_free(all->tensor);
    cr_free(all->by_name);
    cr_free(all->files);
    cr_free(all);
}

const cr_tensor *cr_tensors_find(const cr_tensors *all, const char *name)
{
    size_t low = 0, high = all->num_tensors;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, all->by_name[middle]->name);
        if (order == 0) return all->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* ---- elements ---- */

static float from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, bits;
    cr_float32 x;

    if (exponent == 0) { /* zero or subnormal: units of 2^-24 */
        x = (float)(half & 1023) * 0x1p-24f;
        return sign ? -x : x;
    }
    bits = sign | (exponent == 31 ? 255u << 23 : (exponent + 112) << 23) |
           (uint32_t)(half & 1023) << 13;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float from_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    cr_float32 x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

const char *cr_tensor_dtype_name(cr_dtype dtype)
{
    static const char *const name[] = {[CR_F32] = sizeof(float) == 8 ? "F64" : "F32",
                                       [CR_BF16] = "BF16",
                                       [CR_F16] = "F16",
                                       [CR_F64] = "F64"};

    return name[dtype];
}

bool cr_tensor_dtype(const cr_tensor *t, cr_dtype *out)
{
    static const cr_dtype all[] = {CR_F32, CR_BF16, CR_F16, CR_F64};

    for (size_t i = 0; i < CR_COUNT(all); i++)
        if (strcmp(t->dtype, cr_tensor_dtype_name(all[i])) == 0) {
            *out = all[i];
            return true;
        }
    return false;
}

cr_status cr_tensor_read_f32(const cr_tensor *t, int64_t begin, int64_t end, float *out,
                             cr_err *err)
{
    const unsigned char *data = t->data;
    size_t num = (size_t)(end - begin);
    cr_dtype dtype;

    CR_CHECK(begin >= 0 && begin <= end && end <= t->num_elems, "range of %s", t->name);
    if (!cr_tensor_dtype(t, &dtype))
        return cr_fail(err, CR_EFORMAT, "%s: tensor '%s' is %s, expected F32, BF16 or F16", t->file,
                       t->name, t->dtype);
    if (dtype == CR_F32) {
        if (num) memcpy(out, data + (size_t)begin * sizeof *out, num * sizeof *out);
        return CR_OK;
    }
    for (size_t i = 0; i < num && dtype == CR_F64; i++) {
        double x;
        memcpy(&x, data + ((size_t)begin + i) * 8, 8);
        out[i] = (float)x;
    }
    for (size_t i = 0; i < num && dtype != CR_F64; i++) {
        uint16_t half;
        memcpy(&half, data + ((size_t)begin + i) * 2, 2);
        out[i] = dtype == CR_BF16 ? from_bf16(half) : from_f16(half);
    }
    return CR_OK;
}
