/* fuzz_pair_reference.c -- arbitrary bytes as what follows the header of a file of a reference's log-probs (dpo): pairs that are
 * whole are kept, what is not is cut off, and what is added after it is there when the file is opened again. The first byte of
 * the input says whether the rest are the bytes themselves, or pairs that get a right hash, and how many bytes are cut off. */
#include "base/rng.h"
#include "pipelines/rows/reference.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/mutator.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROWS = 3 };
static const char weights[] = "of a reference";

/* row, number of tokens, that number of floats; the hash of it all is put after them. */
static void add_pairs(const uint8_t *data, size_t size, cr_buf *out)
{
    while (size >= 2) {
        const uint32_t head[2] = {data[0], data[1]};
        const size_t first = out->num_bytes, num = (size_t)data[1] * sizeof(float);
        const size_t n = num < size - 2 ? num : size - 2;
        uint64_t hash;
        cr_buf_add(out, head, sizeof head);
        cr_buf_add(out, data + 2, n);
        hash = cr_hash64(out->data + first, out->num_bytes - first);
        cr_buf_add(out, &hash, sizeof hash);
        data += 2 + n;
        size -= 2 + n;
    }
}

static void open_table(cr_reference_table *t, const cr_dataset *data)
{
    cr_err err = {0};

    CR_CHECK(cr_reference_open(t, data, fuzz_folder, weights, &err) == CR_OK, "%s", err.msg);
    CR_CHECK(t->num_known <= ROWS, "%zu", t->num_known);
}

/* The file that an empty folder gets: its path, and its header into *header. */
static char *begin_file(const cr_dataset *data, cr_buf *header)
{
    cr_reference_table t;
    char *path;
    cr_err err = {0};

    open_table(&t, data);
    path = cr_strdup(t.path);
    cr_reference_close(&t);
    CR_CHECK(cr_file_read(path, header, &err) == CR_OK, "%s", err.msg);
    return path;
}

static void try_file(const cr_dataset *data, const char *path, const cr_buf *bytes)
{
    static const double log_probs[] = {-1, -2, -3, -4};
    cr_reference_table t;
    cr_err err = {0};
    size_t num_known;

    CR_CHECK(cr_file_write_atomic(path, bytes->data, bytes->num_bytes, &err) == CR_OK, "%s",
             err.msg);
    open_table(&t, data);
    num_known = t.num_known;
    for (uint32_t i = 0; i < ROWS; i++)
        if (!t.of[i]) {
            CR_CHECK(cr_reference_add(&t, i, log_probs, &err) == CR_OK, "%s", err.msg);
            break;
        }
    cr_reference_close(&t);
    open_table(&t, data);
    CR_CHECK(t.num_known == (num_known < ROWS ? num_known + 1 : ROWS), "%zu, then %zu", num_known,
             t.num_known);
    cr_reference_close(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int32_t ids[] = {1, 2, 3, 4, 5};
    cr_row rows[ROWS] = {{.ids = ids, .num_ids = 5, .num_prompt = 1, .num_chosen = 2},
                         {.ids = ids, .num_ids = 4, .num_prompt = 2, .num_chosen = 1},
                         {.ids = ids, .num_ids = 5, .num_prompt = 2, .num_chosen = 1}};
    const cr_dataset set = {.rows = rows, .num_rows = ROWS};
    static cr_buf header; /* for all inputs */
    static char *path;
    cr_buf bytes = {0};

    if (!path) {
        fuzz_begin("a");
        path = begin_file(&set, &header);
    }
    cr_buf_add(&bytes, header.data, header.num_bytes);
    if (size && data[0] & 1)
        add_pairs(data + 1, size - 1, &bytes);
    else if (size)
        cr_buf_add(&bytes, data + 1, size - 1);
    if (size && data[0] & 2) { /* the last pair is cut off */
        size_t n = data[0] >> 2, added = bytes.num_bytes - header.num_bytes;
        bytes.num_bytes -= n < added ? n : added;
    }
    try_file(&set, path, &bytes);
    cr_buf_free(&bytes);
    return 0;
}
