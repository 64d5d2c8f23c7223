/* rows.c -- see rows.h. */
#include "samples/rows.h"
#include "samples/protocol.h"

/* The id of the first sample of a sample's group. */
static uint64_t first_of(const char *sample_name)
{
    cr_sample_id id = cr_sample_id_read(sample_name);

    id.index = 0;
    return cr_sample_id_make(id);
}

cr_status cr_rows_put(cr_exchange *x, uint64_t first, const cr_prompt_row *row, cr_err *err)
{
    cr_buf packed = {0};
    char name[CR_SAMPLE_NAME];

    cr_sample_name(first, 0, /*is_second=*/false, name);
    if (cr_message_pack(CR_MESSAGE_ROW, row, &packed, err) == CR_OK)
        cr_table_put_later(x, CR_TABLE_ROWS, name, packed.data, packed.num_bytes);
    cr_buf_free(&packed);
    return err->status;
}

void cr_rows_clear(cr_exchange *x)
{
    cr_table_clear(x, CR_TABLE_ROWS);
}

cr_status cr_rows_has(cr_exchange *x, uint64_t first, bool *is_there, cr_err *err)
{
    char text[CR_SAMPLE_NAME];
    const char *name = text;
    cr_buf found = {0};

    cr_sample_name(first, 0, /*is_second=*/false, text);
    cr_note(cr_table_get(x, CR_TABLE_ROWS, &name, 1, &found, err));
    *is_there = found.num_bytes > 0;
    cr_buf_free(&found);
    return err->status;
}

static struct cr_rows_item *find(const cr_rows *rows, uint64_t first)
{
    for (size_t i = 0; i < rows->num; i++)
        if (rows->items[i].first == first) return &rows->items[i];
    return NULL;
}

/* Rows of `wanted` from number `from` on, which are not here yet. */
static cr_status ask(cr_rows *wanted, size_t from, cr_exchange *x, cr_err *err)
{
    size_t num = wanted->num - from;
    char(*text)[CR_SAMPLE_NAME] = cr_alloc(num * sizeof *text);
    const char **names = CR_NEW_ARRAY(const char *, num);
    cr_buf *found = CR_NEW_ARRAY(cr_buf, num);

    for (size_t i = 0; i < num; i++) {
        cr_sample_name(wanted->items[from + i].first, 0, /*is_second=*/false, text[i]);
        names[i] = text[i];
    }
    if (num) cr_note(cr_table_get(x, CR_TABLE_ROWS, names, num, found, err));
    for (size_t i = 0; i < num && err->status == CR_OK; i++) {
        struct cr_rows_item *item = &wanted->items[from + i];
        if (!found[i].num_bytes) continue;
        if (cr_record_unpack(found[i].data, found[i].num_bytes, &item->record, err) == CR_OK)
            cr_note(cr_message_read(&cr_messages[CR_MESSAGE_ROW], &item->record, &item->row, err));
        CR_TRY_GOTO(out, cr_fail_add(err, "the row of sample %s", names[i]));
    }
out:
    for (size_t i = 0; i < num; i++)
        cr_buf_free(&found[i]);
    cr_free(found);
    cr_free(names);
    cr_free(text);
    return err->status;
}

cr_status cr_rows_fetch(cr_rows *rows, cr_exchange *x, const cr_entries *entries, cr_err *err)
{
    cr_rows wanted = {CR_NEW_ARRAY(struct cr_rows_item, entries->num), 0};
    size_t num_here;

    for (size_t i = 0; i < entries->num; i++) {
        uint64_t first = first_of(entries->items[i].id);
        struct cr_rows_item *here = find(rows, first);
        if (!here || find(&wanted, first)) continue;
        wanted.items[wanted.num++] = *here;
        here->record = (cr_record){0}; /* it has moved */
    }
    num_here = wanted.num;
    for (size_t i = 0; i < entries->num; i++) {
        uint64_t first = first_of(entries->items[i].id);
        if (!find(&wanted, first))
            wanted.items[wanted.num++] = (struct cr_rows_item){.first = first};
    }
    cr_rows_free(rows);
    *rows = wanted;
    return ask(rows, num_here, x, err);
}

const cr_prompt_row *cr_rows_find(const cr_rows *rows, const char *sample_name)
{
    const struct cr_rows_item *item = find(rows, first_of(sample_name));

    return item && item->row.text.data ? &item->row : NULL;
}

void cr_rows_free(cr_rows *rows)
{
    for (size_t i = 0; i < rows->num; i++)
        cr_record_free(&rows->items[i].record);
    cr_free(rows->items);
    *rows = (cr_rows){0};
}
