/* footer.c -- see footer.h. */
#include "parquet/footer.h"
#include "parquet/thrift.h"

#include <string.h>

enum { MAX_ELEMENTS = 20000 };

/* ---- schema ---- */

static void read_unit(cri_thrift *t, cri_parquet_element *e)
{
    static const int per_second[] = {0, 1000, 1000000, 1000000000};
    cri_thrift_field f = {0};

    while (cri_thrift_next(t, &f)) {
        if (f.id < (int)CR_COUNT(per_second)) e->units_per_second = per_second[f.id];
        cri_thrift_skip(t, &f);
    }
}

/* Of any member of LogicalType: what it has. */
static void read_logical_member(cri_thrift *t, cri_parquet_element *e)
{
    cri_thrift_field f = {0};

    while (cri_thrift_next(t, &f)) {
        const int logical = e->logical;
        if (logical == CRI_LOGICAL_DECIMAL && f.id == 1)
            e->scale = cri_thrift_int32(t, &f);
        else if ((logical == CRI_LOGICAL_TIME || logical == CRI_LOGICAL_TIMESTAMP) && f.id == 1)
            e->is_utc = cri_thrift_bool(t, &f);
        else if ((logical == CRI_LOGICAL_TIME || logical == CRI_LOGICAL_TIMESTAMP) && f.id == 2 &&
                 cri_thrift_struct(t, &f))
            read_unit(t, e);
        else if (logical == CRI_LOGICAL_INTEGER && f.id == 2)
            e->is_unsigned = !cri_thrift_bool(t, &f);
        else
            cri_thrift_skip(t, &f);
    }
}

static void read_logical(cri_thrift *t, cri_parquet_element *e)
{
    cri_thrift_field f = {0};

    while (cri_thrift_next(t, &f)) {
        e->logical = f.id;
        if (cri_thrift_struct(t, &f)) read_logical_member(t, e);
    }
}

/* What ConvertedType says, for files without LogicalType. */
static void translate(cri_parquet_element *e, int converted)
{
    static const struct {
        int logical, units;
        bool is_unsigned;
    } as[] = {{CRI_LOGICAL_STRING},
              {CRI_LOGICAL_MAP},
              {CRI_LOGICAL_MAP},
              {CRI_LOGICAL_LIST},
              {CRI_LOGICAL_ENUM},
              {CRI_LOGICAL_DECIMAL},
              {CRI_LOGICAL_DATE},
              {CRI_LOGICAL_TIME, 1000},
              {CRI_LOGICAL_TIME, 1000000},
              {CRI_LOGICAL_TIMESTAMP, 1000},
              {CRI_LOGICAL_TIMESTAMP, 1000000},
              {CRI_LOGICAL_INTEGER, 0, true},
              {CRI_LOGICAL_INTEGER, 0, true},
              {CRI_LOGICAL_INTEGER, 0, true},
              {CRI_LOGICAL_INTEGER, 0, true},
              {CRI_LOGICAL_INTEGER},
              {CRI_LOGICAL_INTEGER},
              {CRI_LOGICAL_INTEGER},
              {CRI_LOGICAL_INTEGER},
              {CRI_LOGICAL_JSON},
              {CRI_LOGICAL_BSON},
              {CRI_LOGICAL_INTERVAL}};

    if (e->logical || converted < 0 || (size_t)converted >= CR_COUNT(as)) return;
    e->logical = as[converted].logical;
    e->units_per_second = as[converted].units;
    e->is_unsigned = as[converted].is_unsigned;
    e->is_utc = e->logical == CRI_LOGICAL_TIMESTAMP;
}

static void read_element(cri_thrift *t, cri_parquet_element *e)
{
    cri_thrift_field f = {0};
    int converted = -1;
    const char *text;
    size_t n;

    e->type = CRI_PARQUET_GROUP;
    while (cri_thrift_next(t, &f))
        switch (f.id) {
        case 1:
            e->type = (cri_parquet_type)cri_thrift_int32(t, &f);
            break;
        case 2:
            e->type_length = cri_thrift_int32(t, &f);
            break;
        case 3:
            e->repetition = cri_thrift_int32(t, &f);
            break;
        case 4:
            text = cri_thrift_text(t, &f, &n);
            cr_free(e->name);
            e->name = cr_strndup(text, n);
            break;
        case 5:
            e->num_children = cri_thrift_int32(t, &f);
            break;
        case 6:
            converted = cri_thrift_int32(t, &f);
            break;
        case 7:
            e->scale = cri_thrift_int32(t, &f);
            break;
        case 10:
            if (cri_thrift_struct(t, &f)) read_logical(t, e);
            break;
        default:
            cri_thrift_skip(t, &f);
        }
    if (!e->name) e->name = cr_strdup("");
    translate(e, converted);
}

/* ---- row groups ---- */

static void read_chunk_data(cri_thrift *t, cri_parquet_chunk *c)
{
    cri_thrift_field f = {0};

    c->has_data = true;
    while (cri_thrift_next(t, &f))
        switch (f.id) {
        case 1:
            c->type = cri_thrift_int32(t, &f);
            break;
        case 4:
            c->codec = cri_thrift_int32(t, &f);
            break;
        case 5:
            c->num_values = cri_thrift_int(t, &f);
            break;
        case 7:
            c->num_bytes = cri_thrift_int(t, &f);
            break;
        case 9:
            c->data_at = cri_thrift_int(t, &f);
            break;
        case 11:
            c->dictionary_at = cri_thrift_int(t, &f);
            break;
        default:
            cri_thrift_skip(t, &f);
        }
}

static void read_chunk(cri_thrift *t, cri_parquet_chunk *c)
{
    cri_thrift_field f = {0};

    while (cri_thrift_next(t, &f)) {
        c->is_elsewhere = c->is_elsewhere || f.id == 1;
        c->is_encrypted = c->is_encrypted || f.id == 8;
        if (f.id == 3 && cri_thrift_struct(t, &f))
            read_chunk_data(t, c);
        else
            cri_thrift_skip(t, &f);
    }
}

static void read_group(cri_thrift *t, cri_parquet_group *g)
{
    cri_thrift_field f = {0};

    while (cri_thrift_next(t, &f)) {
        if (f.id == 1 && !g->chunks) {
            const size_t num = cri_thrift_structs(t, &f);
            size_t capacity = 0;
            for (size_t i = 0; i < num && !t->is_bad; i++) {
                g->chunks = cr_grow(g->chunks, i, &capacity, sizeof *g->chunks);
                g->chunks[i] = (cri_parquet_chunk){0};
                read_chunk(t, &g->chunks[g->num_chunks++]);
            }
        } else if (f.id == 3) {
            g->num_rows = cri_thrift_int(t, &f);
        } else {
            cri_thrift_skip(t, &f);
        }
    }
}

static void read_schema(cri_thrift *t, const cri_thrift_field *f, cri_parquet_footer *out)
{
    const size_t num = cri_thrift_structs(t, f);
    size_t capacity = 0;

    for (size_t i = 0; i < num && i <= MAX_ELEMENTS && !t->is_bad; i++) {
        out->elements = cr_grow(out->elements, i, &capacity, sizeof *out->elements);
        out->elements[i] = (cri_parquet_element){0};
        read_element(t, &out->elements[out->num_elements++]);
    }
    if (out->num_elements > MAX_ELEMENTS) t->is_bad = true;
}

static void read_groups(cri_thrift *t, const cri_thrift_field *f, cri_parquet_footer *out)
{
    const size_t num = cri_thrift_structs(t, f);
    size_t capacity = 0;

    for (size_t i = 0; i < num && !t->is_bad; i++) {
        out->groups = cr_grow(out->groups, i, &capacity, sizeof *out->groups);
        out->groups[i] = (cri_parquet_group){0};
        read_group(t, &out->groups[out->num_groups++]);
    }
}

cr_status cri_parquet_footer_parse(const uint8_t *data, size_t num_bytes, cri_parquet_footer *out,
                                   cr_err *err)
{
    cri_thrift t = {.at = data, .end = data + num_bytes};
    cri_thrift_field f = {0};

    *out = (cri_parquet_footer){0};
    while (cri_thrift_next(&t, &f)) {
        if (f.id == 2 && !out->elements) {
            read_schema(&t, &f, out);
        } else if (f.id == 3) {
            out->num_rows = cri_thrift_int(&t, &f);
        } else if (f.id == 4 && !out->groups) {
            read_groups(&t, &f, out);
        } else {
            out->is_encrypted = out->is_encrypted || f.id == 8;
            cri_thrift_skip(&t, &f);
        }
    }
    if (!t.is_bad) return CR_OK;
    return cr_fail(err, CR_EFORMAT, "its footer is damaged");
}

void cri_parquet_footer_free(cri_parquet_footer *footer)
{
    for (size_t i = 0; i < footer->num_elements; i++)
        cr_free(footer->elements[i].name);
    for (size_t i = 0; i < footer->num_groups; i++)
        cr_free(footer->groups[i].chunks);
    cr_free(footer->elements);
    cr_free(footer->groups);
    *footer = (cri_parquet_footer){0};
}

/* ---- page headers ---- */

/* Of the three kinds of pages; `type` says which of the fields means what. */
static void read_kind(cri_thrift *t, int type, cri_parquet_page *p)
{
    cri_thrift_field f = {0};
    const bool is_second = type == CRI_PAGE_DATA_2;

    while (cri_thrift_next(t, &f)) {
        if (f.id == 1)
            p->num_values = cri_thrift_int32(t, &f);
        else if (f.id == (is_second ? 4 : 2))
            p->encoding = cri_thrift_int32(t, &f);
        else if (type == CRI_PAGE_DATA && f.id == 3)
            p->def_encoding = cri_thrift_int32(t, &f);
        else if (type == CRI_PAGE_DATA && f.id == 4)
            p->rep_encoding = cri_thrift_int32(t, &f);
        else if (is_second && f.id == 5)
            p->def_bytes = cri_thrift_int32(t, &f);
        else if (is_second && f.id == 6)
            p->rep_bytes = cri_thrift_int32(t, &f);
        else if (is_second && f.id == 7)
            p->is_compressed = cri_thrift_bool(t, &f);
        else
            cri_thrift_skip(t, &f);
    }
}

cri_header_status cri_parquet_page_parse(const uint8_t *data, size_t num_bytes,
                                         cri_parquet_page *out, size_t *used)
{
    static const int kinds[] = {
        [5] = CRI_PAGE_DATA, [7] = CRI_PAGE_DICTIONARY, [8] = CRI_PAGE_DATA_2};
    cri_thrift t = {.at = data, .end = data + num_bytes};
    cri_thrift_field f = {0};

    *out = (cri_parquet_page){.type = -1, .num_values = -1, .encoding = -1, .is_compressed = true};
    while (cri_thrift_next(&t, &f))
        switch (f.id) {
        case 1:
            out->type = cri_thrift_int32(&t, &f);
            break;
        case 2:
            out->num_bytes = cri_thrift_int32(&t, &f);
            break;
        case 3:
            out->num_compressed = cri_thrift_int32(&t, &f);
            break;
        case 4:
            out->crc = (uint32_t)cri_thrift_int32(&t, &f);
            out->has_crc = true;
            break;
        case 5:
        case 7:
        case 8:
            if (kinds[f.id] == out->type && cri_thrift_struct(&t, &f))
                read_kind(&t, out->type, out);
            else
                cri_thrift_skip(&t, &f);
            break;
        default:
            cri_thrift_skip(&t, &f);
        }
    *used = (size_t)(t.at - data);
    if (!t.is_bad) return CRI_HEADER_OK;
    return t.is_short ? CRI_HEADER_SHORT : CRI_HEADER_BAD;
}
