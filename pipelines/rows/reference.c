/* reference.c -- see reference.h. */
#include "pipelines/rows/reference.h"
#include "base/rng.h"
#include "samples/items/items.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char FIRST_LINE[] = "croll: log-probs of a reference, 1\n";
enum { HEADER = sizeof FIRST_LINE - 1 + CR_DIGEST_TEXT }; /* the digest, and a line's end */

static size_t num_tokens(const cr_row *row)
{
    return row->num_ids - row->num_prompt;
}

cr_status cr_reference_weights(const char *folder, char hex[CR_DIGEST_TEXT], cr_err *err)
{
    char *pattern = cr_path_join(folder, "*.safetensors"),
         *config = cr_path_join(folder, "config.json");
    cr_buf all = {0};
    glob_t files = {0};

    if (glob(pattern, 0, NULL, &files) != 0)
        cr_fail(err, CR_EIO, "%s: there are no weights", folder);
    for (size_t i = 0; i <= files.gl_pathc && err->status == CR_OK; i++) {
        if (cr_digest_file(i < files.gl_pathc ? files.gl_pathv[i] : config, hex, NULL, err) !=
            CR_OK)
            break;
        cr_buf_add(&all, hex, CR_DIGEST_TEXT);
    }
    cr_digest_bytes(all.data ? all.data : "", all.num_bytes, hex);
    globfree(&files);
    cr_buf_free(&all);
    cr_free(config);
    cr_free(pattern);
    return err->status;
}

/* Of the rows, and of what computes. */
static void digest_of(const cr_dataset *data, const char *weights, char hex[CR_DIGEST_TEXT])
{
    cr_buf all = {0};

    cr_buf_adds(&all, weights);
    for (size_t i = 0; i < data->num_rows; i++) {
        const cr_row *row = &data->rows[i];
        const uint64_t of[] = {row->num_prompt, row->num_chosen, row->num_ids,
                               cr_hash64(row->ids, row->num_ids * sizeof *row->ids)};
        cr_buf_add(&all, of, sizeof of);
        cr_buf_add(&all, row->image_digests,
                   row->num_images * CR_ITEM_DIGEST * sizeof *row->image_digests);
        cr_buf_add(&all, row->image_grids,
                   row->num_images * CR_ITEM_GRID * sizeof *row->image_grids);
    }
    cr_digest_bytes(all.data, all.num_bytes, hex);
    cr_buf_free(&all);
}

/* ---- the file: row, number of tokens, their log-probs, a hash of all that ---- */

static void write_pair(uint32_t row, const float *log_probs, size_t num, cr_buf *out)
{
    const uint32_t head[2] = {row, (uint32_t)num};
    size_t first = out->num_bytes;
    uint64_t hash;

    cr_buf_add(out, head, sizeof head);
    cr_buf_add(out, log_probs, num * sizeof *log_probs);
    hash = cr_hash64(out->data + first, out->num_bytes - first);
    cr_buf_add(out, &hash, sizeof hash);
}

static void keep(cr_reference_table *t, uint32_t row, const void *log_probs)
{
    size_t num = num_tokens(&t->data->rows[row]);

    if (t->of[row]) return;
    t->of[row] = CR_NEW_ARRAY(float, num + 1);
    memcpy(t->of[row], log_probs, num * sizeof(float));
    t->num_known++;
}

/* The bytes of the pair at `at`, which is kept; 0: it is not whole. */
static size_t read_pair(cr_reference_table *t, const cr_buf *file, size_t at)
{
    uint32_t head[2];
    uint64_t hash;
    size_t num, bytes;

    if (file->num_bytes - at < sizeof head) return 0;
    memcpy(head, file->data + at, sizeof head);
    if (head[0] >= t->data->num_rows) return 0;
    num = num_tokens(&t->data->rows[head[0]]);
    bytes = sizeof head + num * sizeof(float);
    if (head[1] != num || file->num_bytes - at < bytes + sizeof hash) return 0;
    memcpy(&hash, file->data + at + bytes, sizeof hash);
    if (hash != cr_hash64(file->data + at, bytes)) return 0;
    keep(t, head[0], file->data + at + sizeof head);
    return bytes + sizeof hash;
}

static cr_status failed(const cr_reference_table *t, cr_err *err)
{
    return cr_fail(err, CR_EIO, "%s: %s", t->path, strerror(errno));
}

static cr_status append(cr_reference_table *t, const cr_buf *bytes, cr_err *err)
{
    size_t done = 0;

    while (done < bytes->num_bytes) {
        ssize_t n = write(t->fd, bytes->data + done, bytes->num_bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return failed(t, err);
        done += (size_t)n;
    }
    return CR_OK;
}

/* What the file has; what is not whole is cut off. A file with another header is begun anew. */
static cr_status read_file(cr_reference_table *t, const char *header, cr_err *err)
{
    cr_buf file = {0}, begin = {0};
    size_t at = 0, num;

    CR_TRY_GOTO(out, cr_file_read(t->path, &file, err));
    if (file.num_bytes >= HEADER && memcmp(file.data, header, HEADER) == 0)
        for (at = HEADER; (num = read_pair(t, &file, at)) > 0;)
            at += num;
    if (at < file.num_bytes && ftruncate(t->fd, (off_t)at) != 0) CR_TRY_GOTO(out, failed(t, err));
    cr_buf_add(&begin, header, HEADER);
    if (at == 0) cr_note(append(t, &begin, err));
out:
    cr_buf_free(&begin);
    cr_buf_free(&file);
    return err->status;
}

cr_status cr_reference_open(cr_reference_table *t, const cr_dataset *data, const char *folder,
                            const char *weights, cr_err *err)
{
    char hex[CR_DIGEST_TEXT], *header;

    digest_of(data, weights, hex);
    header = cr_asprintf("%s%s\n", FIRST_LINE, hex);
    *t = (cr_reference_table){.data = data,
                              .of = CR_NEW_ARRAY(float *, data->num_rows + 1),
                              .path = cr_asprintf("%s/reference-%.16s.bin", folder, hex)};
    t->fd = open(t->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    cr_note(t->fd < 0 ? failed(t, err) : read_file(t, header, err));
    cr_free(header);
    return err->status;
}

void cr_reference_close(cr_reference_table *t)
{
    for (size_t i = 0; t->of && i < t->data->num_rows; i++)
        cr_free(t->of[i]);
    cr_free(t->of);
    cr_free(t->path);
    if (t->fd >= 0) close(t->fd);
    *t = (cr_reference_table){.fd = -1};
}

cr_status cr_reference_add(cr_reference_table *t, uint32_t row, const double *log_probs,
                           cr_err *err)
{
    size_t num = num_tokens(&t->data->rows[row]);
    float *numbers = CR_NEW_ARRAY(float, num + 1);
    cr_buf bytes = {0};

    for (size_t i = 0; i < num; i++)
        numbers[i] = (float)log_probs[i];
    keep(t, row, numbers);
    write_pair(row, numbers, num, &bytes);
    cr_note(append(t, &bytes, err));
    cr_buf_free(&bytes);
    cr_free(numbers);
    return err->status;
}
