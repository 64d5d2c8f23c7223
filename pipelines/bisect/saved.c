/* saved.c -- see saved.h. */
#include "pipelines/bisect/saved.h"
#include "models/files/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- one file of both, mapped ---- */

typedef struct pair {
    unsigned char *data[2];
    size_t num_bytes[2];
} pair;

static void pair_close(pair *p)
{
    for (int k = 0; k < 2; k++)
        if (p->num_bytes[k]) munmap(p->data[k], p->num_bytes[k]);
}

static cr_status map_file(const char *path, unsigned char **data, size_t *num_bytes, cr_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat about = {0};
    void *at = NULL;

    if (fd < 0 || fstat(fd, &about) != 0 ||
        (about.st_size > 0 &&
         (at = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0)) == MAP_FAILED)) {
        cr_fail(err, CR_EIO, "cannot read %s: %s", path, strerror(errno));
    } else {
        *data = at;
        *num_bytes = (size_t)about.st_size;
    }
    if (fd >= 0) close(fd);
    return err->status;
}

/* The first byte that differs, from `at` on; the length of the shorter one if all of it is equal. */
static size_t first_byte(const pair *p, size_t at)
{
    size_t num = p->num_bytes[p->num_bytes[0] > p->num_bytes[1]];

    enum { BLOCK = 4096 };
    while (at + BLOCK <= num && memcmp(p->data[0] + at, p->data[1] + at, BLOCK) == 0)
        at += BLOCK;
    while (at < num && p->data[0][at] == p->data[1][at])
        at++;
    return at;
}

/* ---- raw float32 of state/ROLE.master, .m, .v ---- */

/* The parameter that has an element, as state/ROLE.json says; NULL: none. */
static const char *param_at(json_t *index, uint64_t element, uint64_t *first)
{
    const char *name;
    json_t *param;

    json_object_foreach(json_object_get(index, "params"), name, param)
    {
        uint64_t begin = (uint64_t)json_integer_value(json_object_get(param, "first"));
        uint64_t num = (uint64_t)json_integer_value(json_object_get(param, "num"));
        *first = begin;
        if (element >= begin && element - begin < num) return name;
    }
    return NULL;
}

static void put_element(const pair *p, json_t *index, const char *file, size_t element,
                        cri_difference *at)
{
    uint64_t first = 0;
    const char *param = param_at(index, element, &first);
    char *text[2] = {at->a, at->b};

    if (param)
        snprintf(at->path, sizeof at->path, "%s %s[%llu]", file, param,
                 (unsigned long long)(element - first));
    else
        snprintf(at->path, sizeof at->path, "%s element %zu", file, element);
    for (int k = 0; k < 2; k++) {
        float x;
        memcpy(&x, p->data[k] + element * sizeof x, sizeof x);
        snprintf(text[k], CRI_TEXT_BYTES, "%.9g", (double)x);
    }
}

static bool elements_differ(const pair *p, json_t *index, const char *file, double tolerance,
                            cri_difference *at)
{
    size_t num = p->num_bytes[p->num_bytes[0] > p->num_bytes[1]] / sizeof(float);

    for (size_t i = first_byte(p, 0) / sizeof(float); i < num; i++) {
        float x[2];
        for (int k = 0; k < 2; k++)
            memcpy(&x[k], p->data[k] + i * sizeof *x, sizeof *x);
        if (memcmp(&x[0], &x[1], sizeof *x) == 0 ||
            (tolerance > 0 && !cri_numbers_differ((double)x[0], (double)x[1], tolerance)))
            continue;
        put_element(p, index, file, i, at);
        return true;
    }
    return false;
}

static void put_bytes(const pair *p, const char *file, size_t byte, cri_difference *at)
{
    char *text[2] = {at->a, at->b};

    snprintf(at->path, sizeof at->path, "%s byte %zu", file, byte);
    for (int k = 0; k < 2; k++)
        if (byte < p->num_bytes[k])
            snprintf(text[k], CRI_TEXT_BYTES, "0x%02x", p->data[k][byte]);
        else
            snprintf(text[k], CRI_TEXT_BYTES, "absent (%zu bytes)", p->num_bytes[k]);
}

/* ---- tensors ---- */

static cr_status tensor_differs(const cr_tensor *a, const cr_tensor *b, double tolerance,
                                bool *is_found, cri_difference *at, const char *file, cr_err *err)
{
    const cr_tensor *both[2] = {a, b};
    char *text[2] = {at->a, at->b};
    const char *x = a->data, *y = b ? b->data : NULL;
    size_t size;

    if (!b || strcmp(a->dtype, b->dtype) != 0 || a->num_bytes != b->num_bytes ||
        a->num_elems != b->num_elems) {
        *is_found = true;
        snprintf(at->path, sizeof at->path, "%s %s", file, a->name);
        for (int k = 0; k < 2; k++)
            if (both[k])
                snprintf(text[k], CRI_TEXT_BYTES, "%s, %lld elements", both[k]->dtype,
                         (long long)both[k]->num_elems);
            else
                snprintf(text[k], CRI_TEXT_BYTES, "absent");
        return CR_OK;
    }
    if (a->num_elems == 0 || memcmp(x, y, a->num_bytes) == 0) return CR_OK;
    size = a->num_bytes / (size_t)a->num_elems;
    for (int64_t i = 0; i < a->num_elems && !*is_found; i++) {
        float value[2];
        if (memcmp(x + (size_t)i * size, y + (size_t)i * size, size) == 0) continue;
        for (int k = 0; k < 2; k++)
            CR_TRY(cr_tensor_read_f32(both[k], i, i + 1, &value[k], err));
        if (tolerance > 0 && !cri_numbers_differ((double)value[0], (double)value[1], tolerance))
            continue;
        *is_found = true;
        snprintf(at->path, sizeof at->path, "%s %s[%lld]", file, a->name, (long long)i);
        for (int k = 0; k < 2; k++)
            snprintf(text[k], CRI_TEXT_BYTES, "%.9g", (double)value[k]);
    }
    return CR_OK;
}

static cr_status tensors_differ(char *const path[2], const char *file, double tolerance,
                                bool *is_found, cri_difference *at, cr_err *err)
{
    cr_tensors *of[2] = {NULL, NULL};

    for (int k = 0; k < 2; k++)
        CR_TRY_GOTO(out, cr_tensors_open(path[k], &of[k], err));
    for (size_t i = 0; i < of[0]->num_tensors && !*is_found; i++) {
        const cr_tensor *a = &of[0]->tensor[i];
        CR_TRY_GOTO(out, tensor_differs(a, cr_tensors_find(of[1], a->name), tolerance, is_found, at,
                                        file, err));
    }
    for (size_t i = 0; i < of[1]->num_tensors && !*is_found; i++) {
        const cr_tensor *b = &of[1]->tensor[i];
        if (cr_tensors_find(of[0], b->name)) continue;
        *is_found = true;
        snprintf(at->path, sizeof at->path, "%s %s", file, b->name);
        snprintf(at->a, sizeof at->a, "absent");
        snprintf(at->b, sizeof at->b, "%s, %lld elements", b->dtype, (long long)b->num_elems);
    }
out:
    cr_tensors_close(of[0]);
    cr_tensors_close(of[1]);
    return err->status;
}

/* ---- the files of a checkpoint ---- */

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n >= m && strcmp(name + n - m, end) == 0;
}

typedef enum kind { STATE, FIRST_MOMENTS, SECOND_MOMENTS, MASTERS, WEIGHTS, OTHERS, KINDS } kind;

static kind kind_of(const char *name)
{
    if (ends_with(name, ".m")) return FIRST_MOMENTS;
    if (ends_with(name, ".v")) return SECOND_MOMENTS;
    if (ends_with(name, ".master")) return MASTERS;
    if (ends_with(name, ".safetensors")) return WEIGHTS;
    return strncmp(name, "state/", 6) == 0 && ends_with(name, ".json") ? STATE : OTHERS;
}

static cr_status json_differs(const pair *p, const char *file, double tolerance, bool *is_found,
                              cri_difference *at, cr_err *err)
{
    json_t *of[2] = {NULL, NULL};

    for (int k = 0; k < 2; k++)
        CR_TRY_GOTO(out,
                    cr_json_parse((const char *)p->data[k], p->num_bytes[k], file, &of[k], err));
    snprintf(at->path, sizeof at->path, "%s ", file);
    *is_found = cri_values_differ(of[0], of[1], tolerance, at);
out:
    json_decref(of[0]);
    json_decref(of[1]);
    return err->status;
}

/* state/ROLE.json beside state/ROLE.m; {} without one. */
static json_t *index_beside(const char *path)
{
    const char *dot = strrchr(path, '.');
    char *name = cr_asprintf("%.*s.json", (int)(dot - path), path);
    json_t *index = NULL;
    cr_err ignored = {0};

    cr_note(cr_json_read_file(name, &index, &ignored));
    cr_free(name);
    return index ? index : json_object();
}

static cr_status file_differs(char *const path[2], const char *file, double tolerance,
                              bool *is_found, cri_difference *at, cr_err *err)
{
    kind of = kind_of(file);
    json_t *index = NULL;
    pair p = {{NULL, NULL}, {0, 0}};
    size_t byte;

    for (int k = 0; k < 2; k++)
        CR_TRY_GOTO(out, map_file(path[k], &p.data[k], &p.num_bytes[k], err));
    byte = first_byte(&p, 0);
    if (byte == p.num_bytes[0] && byte == p.num_bytes[1]) goto out;
    if (of == WEIGHTS) {
        CR_TRY_GOTO(out, tensors_differ(path, file, tolerance, is_found, at, err));
    } else if (of == STATE) {
        CR_TRY_GOTO(out, json_differs(&p, file, tolerance, is_found, at, err));
    } else if (of != OTHERS) {
        index = index_beside(path[0]);
        *is_found = elements_differ(&p, index, file, tolerance, at);
    }
    if (*is_found || (tolerance > 0 && of != OTHERS && p.num_bytes[0] == p.num_bytes[1])) goto out;
    *is_found = true; /* no value says it: bytes do */
    put_bytes(&p, file, byte, at);
out:
    json_decref(index);
    pair_close(&p);
    return err->status;
}

/* Of a manifest, which comes from outside: nothing above the checkpoint is read. */
static bool is_inside(const char *name)
{
    return name[0] != '/' && !strstr(name, "..");
}

static cr_status kind_differs(const char *const folder[2], json_t *const files[2], kind of,
                              double tolerance, bool *is_found, cri_difference *at, cr_err *err)
{
    for (int from = 0; from < 2; from++) {
        const char *name;
        json_t *about;
        json_object_foreach(files[from], name, about)
        {
            bool is_in_both = json_object_get(files[1 - from], name) != NULL;
            char *path[2], *text[2] = {at->a, at->b};
            if (*is_found || kind_of(name) != of || (is_in_both && from == 1)) continue;
            if (!is_inside(name))
                return cr_fail(err, CR_EFORMAT, "%s/manifest.json: '%s' is not a file of it",
                               folder[from], name);
            if (!is_in_both) {
                *is_found = true;
                snprintf(at->path, sizeof at->path, "%s", name);
                snprintf(text[from], CRI_TEXT_BYTES, "a file");
                snprintf(text[1 - from], CRI_TEXT_BYTES, "absent");
                continue;
            }
            for (int k = 0; k < 2; k++)
                path[k] = cr_path_join(folder[k], name);
            cr_note(file_differs(path, name, tolerance, is_found, at, err));
            for (int k = 0; k < 2; k++)
                cr_free(path[k]);
            CR_TRY(err->status);
        }
    }
    return CR_OK;
}

cr_status cri_saved_differ(const char *const folder[2], bool has_state, double tolerance,
                           bool *is_found, cri_difference *at, cr_err *err)
{
    json_t *manifest[2] = {NULL, NULL}, *files[2];

    *is_found = false;
    for (int k = 0; k < 2; k++) {
        char *path = cr_path_join(folder[k], "manifest.json");
        cr_note(cr_json_read_file(path, &manifest[k], err));
        cr_free(path);
        CR_TRY_GOTO(out, err->status);
        files[k] = json_object_get(manifest[k], "files");
    }
    for (kind of = has_state ? STATE : FIRST_MOMENTS; of < KINDS && !*is_found; of++)
        CR_TRY_GOTO(out, kind_differs(folder, files, of, tolerance, is_found, at, err));
out:
    json_decref(manifest[0]);
    json_decref(manifest[1]);
    return err->status;
}
