/* parquet.c -- see parquet.h. */
#include "parquet/parquet.h"
#include "base/json.h"
#include "parquet/column.h"
#include "parquet/text.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FOOTER = 256 << 20, MAX_ROW = 1 << 30 };

struct cr_parquet {
    cri_parquet_file file;
    cri_parquet_footer footer;
    cri_parquet_node root;
    cri_parquet_column *columns; /* [root.num_leaves] */
    size_t group;                /* of the next row */
    int64_t in_group, row;       /* rows of the group, and of the file, that were given */
    bool has_failed;
    int64_t num_not_finite;
    const char *not_finite;
};

bool cr_parquet_is(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char magic[4] = {0};
    bool is = fd >= 0 && pread(fd, magic, 4, 0) == 4 && memcmp(magic, "PAR", 3) == 0 &&
              (magic[3] == '1' || magic[3] == 'E');

    if (fd >= 0) close(fd);
    return is;
}

/* What helps with a feature that is not read. */
static const char *advice(const cr_err *err)
{
    return err->status == CR_EABSENT ? " (docs/data.md#parquet says how to write such a file again)"
                                     : "";
}

/* ---- a row ---- */

/* The value that is next in a column must belong to the place that is being written. */
static cr_status expect(cri_parquet_column *c, int rep, int def, cr_err *err)
{
    CR_TRY(cri_column_peek(c, err));
    if (!c->is_end && c->rep == rep && c->def == def) return CR_OK;
    return cr_fail(err, CR_EFORMAT,
                   "row group %zu, column %.100s: its levels are not those of its rows", c->group,
                   c->leaf->path);
}

/* A value of which there is nothing from level def on: each of its columns has an entry that says so. */
static cr_status skip_absent(cr_parquet *p, const cri_parquet_node *node, int rep, int def,
                             cr_err *err)
{
    for (size_t i = 0; i < node->num_leaves; i++) {
        cri_parquet_column *c = &p->columns[node->first_leaf + i];
        CR_TRY(expect(c, rep, def, err));
        c->is_peeked = false;
    }
    return CR_OK;
}

static cr_status add_leaf(cr_parquet *p, const cri_parquet_node *node, int rep, cr_buf *out,
                          cr_err *err)
{
    cri_parquet_column *c = &p->columns[node->first_leaf];
    bool is_finite = true;
    cri_span value;

    CR_TRY(expect(c, rep, node->def, err));
    CR_TRY(cri_column_value(c, &value, err));
    c->is_peeked = false;
    if (cri_parquet_text_add(node, value, out, &is_finite, err) != CR_OK)
        return cr_fail_add(err, "row group %zu, column %.100s", c->group, node->path);
    if (!is_finite && p->num_not_finite++ == 0) p->not_finite = node->path;
    return CR_OK;
}

static cr_status add_node(cr_parquet *p, const cri_parquet_node *node, int rep, cr_buf *out,
                          cr_err *err);

static cr_status add_struct(cr_parquet *p, const cri_parquet_node *node, int rep, cr_buf *out,
                            cr_err *err)
{
    for (size_t i = 0; i < node->num_children; i++) {
        cr_buf_addc(out, i ? ',' : '{');
        cr_buf_adds(out, node->children[i].key);
        CR_TRY(add_node(p, &node->children[i], rep, out, err));
    }
    cr_buf_addc(out, '}');
    return CR_OK;
}

/* A key of text makes a member of an object, others a list of two. */
static cr_status add_pair(cr_parquet *p, const cri_parquet_node *node, int rep, cr_buf *out,
                          cr_err *err)
{
    const cri_parquet_node *key = &node->children[0];
    const bool is_member = key->kind == CRI_KIND_TEXT;

    if (!is_member) cr_buf_addc(out, '[');
    if (is_member && key->is_optional)
        CR_TRY(expect(&p->columns[key->first_leaf], rep, key->def, err));
    CR_TRY(add_node(p, key, rep, out, err));
    cr_buf_addc(out, is_member ? ':' : ',');
    CR_TRY(add_node(p, &node->children[1], rep, out, err));
    if (!is_member) cr_buf_addc(out, ']');
    return CR_OK;
}

static cr_status add_items(cr_parquet *p, const cri_parquet_node *node, int rep, cr_buf *out,
                           cr_err *err)
{
    const bool is_map = node->kind == CRI_KIND_MAP,
               is_object = is_map && node->children[0].kind == CRI_KIND_TEXT;
    cri_parquet_column *first = &p->columns[node->first_leaf];
    bool is_more;

    CR_TRY(cri_column_peek(first, err));
    if (!first->is_end && first->def < node->item_def) {
        cr_buf_adds(out, is_object ? "{}" : "[]");
        return skip_absent(p, node, rep, node->def, err);
    }
    cr_buf_addc(out, is_object ? '{' : '[');
    do {
        CR_TRY(is_map ? add_pair(p, node, rep, out, err)
                      : add_node(p, node->children, rep, out, err));
        CR_TRY(cri_column_peek(first, err));
        rep = node->item_rep;
        is_more = !first->is_end && first->rep == rep;
        if (is_more) cr_buf_addc(out, ',');
    } while (is_more);
    cr_buf_addc(out, is_object ? '}' : ']');
    return CR_OK;
}

static cr_status add_node(cr_parquet *p, const cri_parquet_node *node, int rep, cr_buf *out,
                          cr_err *err)
{
    cri_parquet_column *first = &p->columns[node->first_leaf];

    if (out->num_bytes > MAX_ROW)
        return cr_fail(err, CR_EFORMAT, "it has more than %d bytes as JSON", MAX_ROW);
    CR_TRY(cri_column_peek(first, err));
    if (node->is_optional && !first->is_end && first->def < node->def) {
        cr_buf_adds(out, "null");
        return skip_absent(p, node, rep, node->def - 1, err);
    }
    switch (node->kind) {
    case CRI_KIND_STRUCT:
        return add_struct(p, node, rep, out, err);
    case CRI_KIND_LIST:
    case CRI_KIND_MAP:
        return add_items(p, node, rep, out, err);
    default:
        return add_leaf(p, node, rep, out, err);
    }
}

/* ---- row groups ---- */

static cr_status begin_group(cr_parquet *p, cr_err *err)
{
    const cri_parquet_group *g = &p->footer.groups[p->group];

    for (size_t i = 0; i < p->root.num_leaves; i++)
        CR_TRY(cri_column_begin(&p->columns[i], &g->chunks[i], p->group, err));
    return CR_OK;
}

static cr_status end_group(cr_parquet *p, cr_err *err)
{
    for (size_t i = 0; i < p->root.num_leaves && p->in_group; i++) {
        cri_parquet_column *c = &p->columns[i];
        CR_TRY(cri_column_peek(c, err));
        if (!c->is_end)
            return cr_fail(err, CR_EFORMAT,
                           "row group %zu, column %.100s: it has more values than rows", p->group,
                           c->leaf->path);
    }
    p->group++;
    p->in_group = 0;
    return CR_OK;
}

static cr_status next_row(cr_parquet *p, cr_buf *line, cr_err *err)
{
    while (p->group < p->footer.num_groups && p->in_group == p->footer.groups[p->group].num_rows)
        CR_TRY(end_group(p, err));
    if (p->group == p->footer.num_groups) return CR_OK;
    if (p->in_group == 0) CR_TRY(begin_group(p, err));
    CR_TRY(add_struct(p, &p->root, 0, line, err));
    p->in_group++;
    p->row++;
    return CR_OK;
}

cr_status cr_parquet_next(cr_parquet *file, cr_buf *line, cr_err *err)
{
    cr_buf_clear(line);
    if (file->has_failed) return CR_OK;
    if (next_row(file, line, err) == CR_OK) return CR_OK;
    cr_buf_clear(line);
    file->has_failed = true;
    return cr_fail_add(err, "%s: row %lld%s", file->file.path, (long long)file->row + 1,
                       advice(err));
}

/* ---- a file ---- */

static cr_status read_at(const cri_parquet_file *file, int64_t at, void *out, size_t num_bytes,
                         cr_err *err)
{
    size_t done = 0;

    while (done < num_bytes) {
        ssize_t n = pread(file->fd, (char *)out + done, num_bytes - done, at + (int64_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return cr_fail(err, CR_EIO, "cannot read it: %s",
                           n < 0 ? strerror(errno) : "it has become shorter");
        done += (size_t)n;
    }
    return CR_OK;
}

/* The end of a file is its footer, the footer's length and "PAR1". */
static cr_status read_footer(cr_parquet *p, cr_err *err)
{
    uint8_t end[8];
    cr_buf text = {0};
    int64_t num;

    if (p->file.num_bytes < 12) return cr_fail(err, CR_EFORMAT, "it ends early");
    CR_TRY(read_at(&p->file, p->file.num_bytes - 8, end, 8, err));
    if (memcmp(end + 4, "PARE", 4) == 0)
        return cr_fail(err, CR_EABSENT, "it is encrypted, which is not read");
    if (memcmp(end + 4, "PAR1", 4) != 0)
        return cr_fail(err, CR_EFORMAT, "it ends early: it does not end with PAR1");
    num = cri_le32(end);
    if (num > p->file.num_bytes - 12 || num > MAX_FOOTER)
        return cr_fail(err, CR_EFORMAT,
                       "its footer is said to have %lld bytes, of %lld of the file", (long long)num,
                       (long long)p->file.num_bytes);
    cr_buf_reserve(&text, (size_t)num);
    if (read_at(&p->file, p->file.num_bytes - 8 - num, text.data, (size_t)num, err) == CR_OK)
        cr_note(cri_parquet_footer_parse((const uint8_t *)text.data, (size_t)num, &p->footer, err));
    cr_buf_free(&text);
    if (err->status == CR_OK && p->footer.is_encrypted)
        cr_fail(err, CR_EABSENT, "it has encrypted columns, which are not read");
    return err->status;
}

/* Rows are as many as the footer says, and each has at least one value in each column. */
static cr_status check_groups(const cr_parquet *p, cr_err *err)
{
    int64_t num_rows = 0;

    for (size_t i = 0; i < p->footer.num_groups; i++) {
        const cri_parquet_group *g = &p->footer.groups[i];
        if (g->num_chunks != p->root.num_leaves)
            return cr_fail(err, CR_EFORMAT, "row group %zu has %zu columns, the schema %zu", i,
                           g->num_chunks, p->root.num_leaves);
        for (size_t k = 0; k < g->num_chunks; k++)
            if (g->num_rows < 0 || g->num_rows > INT32_MAX || g->chunks[k].num_values < g->num_rows)
                return cr_fail(
                    err, CR_EFORMAT,
                    "row group %zu is said to have %lld rows, and %lld values of column %.100s", i,
                    (long long)g->num_rows, (long long)g->chunks[k].num_values,
                    p->columns[k].leaf->path);
        num_rows += g->num_rows;
        if (num_rows > INT32_MAX) break;
    }
    if (num_rows == p->footer.num_rows && num_rows <= INT32_MAX) return CR_OK;
    return cr_fail(err, CR_EFORMAT,
                   "it is said to have %lld rows, and its row groups %lld (%d are the limit)",
                   (long long)p->footer.num_rows, (long long)num_rows, INT32_MAX);
}

static void list_leaves(cr_parquet *p, const cri_parquet_node *node)
{
    if (node->path)
        p->columns[node->first_leaf] = (cri_parquet_column){.file = &p->file, .leaf = node};
    for (size_t i = 0; i < node->num_children; i++)
        list_leaves(p, &node->children[i]);
}

static cr_status open_file(cr_parquet *p, const char *path, cr_err *err)
{
    struct stat file;

    p->file.path = path;
    p->file.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (p->file.fd < 0 || fstat(p->file.fd, &file) != 0)
        return cr_fail(err, CR_EIO, "cannot open it: %s", strerror(errno));
    p->file.num_bytes = file.st_size;
    CR_TRY(read_footer(p, err));
    CR_TRY(cri_parquet_schema_make(&p->footer, &p->root, err));
    p->columns = CR_NEW_ARRAY(cri_parquet_column, p->root.num_leaves);
    list_leaves(p, &p->root);
    return check_groups(p, err);
}

cr_status cr_parquet_open(const char *path, cr_parquet **out, cr_err *err)
{
    cr_parquet *p = CR_NEW(cr_parquet);

    *out = NULL;
    if (open_file(p, path, err) != CR_OK) {
        cr_parquet_close(p);
        return cr_fail_add(err, "%s: the Parquet file is not read%s", path, advice(err));
    }
    *out = p;
    return CR_OK;
}

int64_t cr_parquet_num_rows(const cr_parquet *file)
{
    return file->footer.num_rows;
}

int64_t cr_parquet_num_not_finite(const cr_parquet *file, const char **column)
{
    *column = file->not_finite;
    return file->num_not_finite;
}

void cr_parquet_close(cr_parquet *file)
{
    if (!file) return;
    for (size_t i = 0; i < file->root.num_leaves && file->columns; i++)
        cri_column_free(&file->columns[i]);
    cr_free(file->columns);
    cri_parquet_node_free(&file->root);
    cri_parquet_footer_free(&file->footer);
    if (file->file.fd >= 0) close(file->file.fd);
    cr_free(file);
}
