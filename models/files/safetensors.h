/* safetensors.h -- tensors in safetensors files: read one file, an index with its shards or a MODEL
 * folder; write one file.
 *
 * Files are outside input: everything of a header is checked before anything is used
 * (lengths, JSON, duplicate names, dtypes, shapes, offsets without holes or overlap, no missing or
 * trailing bytes). Data is mapped, not read; it may be misaligned, so take elements through
 * cr_tensor_read_f32 or memcpy. A writer appears under its name only when it is complete.
 *
 * Ownership: a cr_tensors owns its files, tensors and their names. Threads: an open cr_tensors is
 * read-only and may be shared; a writer has one caller. Errors: CR_EFORMAT names file and tensor.
 */
#ifndef CR_SAFETENSORS_H
#define CR_SAFETENSORS_H

#include "kernels/kernels.h"

enum { CR_TENSOR_MAX_DIMS = 8 };

typedef struct cr_tensor {
    char *name;
    const char *dtype; /* as in the file: "F32", "BF16", "I64", .. */
    int num_dims;
    int64_t shape[CR_TENSOR_MAX_DIMS];
    int64_t num_elems;
    size_t num_bytes;
    const void *data; /* mapped, any alignment */
    const char *file; /* its name without folder */
} cr_tensor;

typedef struct cr_tensors {
    cr_tensor *tensor; /* by file, then by offset */
    size_t num_tensors;
    cr_tensor **by_name; /* sorted */
    struct cr_mapped_file *files;
    size_t num_files;
} cr_tensors;

/* path: a .safetensors file, a .index.json, or a folder with model.safetensors(.index.json). */
CR_MUST cr_status cr_tensors_open(const char *path, cr_tensors **out, cr_err *err);
/* The same from memory that outlives it; what: its name in errors. */
CR_MUST cr_status cr_tensors_parse(const void *bytes, size_t num_bytes, const char *what,
                                   cr_tensors **out, cr_err *err);
void cr_tensors_close(cr_tensors *tensors);                                    /* accepts NULL */
const cr_tensor *cr_tensors_find(const cr_tensors *tensors, const char *name); /* NULL: none */
/* How files name a dtype: "F32", "BF16", "F16", "F64". */
const char *cr_tensor_dtype_name(cr_dtype dtype);
/* Of a tensor; false: it is none of these. */
bool cr_tensor_dtype(const cr_tensor *tensor, cr_dtype *out);
/* Elements [begin, end) of an F32, F16, BF16 or F64 tensor as float32. */
CR_MUST cr_status cr_tensor_read_f32(const cr_tensor *tensor, int64_t begin, int64_t end,
                                     float *out, cr_err *err);

/* ---- writing ---- */

typedef struct cr_tensor_spec {
    const char *name; /* copied */
    cr_dtype dtype;
    int num_dims;
    int64_t shape[CR_TENSOR_MAX_DIMS];
} cr_tensor_spec;

typedef struct cr_tensor_writer cr_tensor_writer;

/* Make `path` with these tensors, widest dtype first, then by name, as the reference writer does.
 * The header is written; every element must then be put exactly once, in any order. */
CR_MUST cr_status cr_tensor_writer_open(const char *path, const cr_tensor_spec *specs,
                                        size_t num_specs, cr_tensor_writer **out, cr_err *err);
/* Elements [begin, end) of tensor specs[index], in its dtype. */
CR_MUST cr_status cr_tensor_writer_put(cr_tensor_writer *writer, size_t index, int64_t begin,
                                       int64_t end, const void *data, cr_err *err);
/* fsync and rename: the file appears. Frees the writer in any case. CR_EARG: bytes are missing. */
CR_MUST cr_status cr_tensor_writer_close(cr_tensor_writer *writer, cr_err *err);
void cr_tensor_writer_abort(cr_tensor_writer *writer); /* leave nothing; accepts NULL */

#endif
