/* thrift.c -- see thrift.h. */
#include "parquet/thrift.h"

enum { STOP, YES, NO, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID, NUM_TYPES };
enum { MAX_DEPTH = 32 };

static uint64_t bad(cri_thrift *t, bool is_short)
{
    if (!t->is_bad) t->is_short = is_short;
    t->is_bad = true;
    t->at = t->end;
    return 0;
}

static uint8_t read_byte(cri_thrift *t)
{
    return t->at < t->end ? *t->at++ : (uint8_t)bad(t, true);
}

static uint64_t read_varint(cri_thrift *t)
{
    uint64_t out = 0;

    for (int shift = 0; shift < 64 && !t->is_bad; shift += 7) {
        uint8_t byte = read_byte(t);
        out |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return out;
    }
    return bad(t, false);
}

static int64_t read_zigzag(cri_thrift *t)
{
    uint64_t n = read_varint(t);

    return (int64_t)(n >> 1 ^ (0 - (n & 1)));
}

bool cri_thrift_next(cri_thrift *t, cri_thrift_field *f)
{
    uint8_t head = read_byte(t);

    if (t->is_bad || head == STOP) return false;
    f->type = head & 15;
    if (head >> 4) {
        f->id += head >> 4;
    } else {
        int64_t id = read_zigzag(t);
        f->id = id < 1 || id > INT16_MAX ? 0 : (int)id;
    }
    if (f->type == STOP || f->type >= NUM_TYPES || f->id < 1 || f->id > INT16_MAX) bad(t, false);
    return !t->is_bad;
}

bool cri_thrift_bool(cri_thrift *t, const cri_thrift_field *f)
{
    if (f->type != YES && f->type != NO) bad(t, false);
    return f->type == YES;
}

int64_t cri_thrift_int(cri_thrift *t, const cri_thrift_field *f)
{
    if (f->type == I8) return (int8_t)read_byte(t);
    if (f->type < I16 || f->type > I64) return (int64_t)bad(t, false);
    return read_zigzag(t);
}

int32_t cri_thrift_int32(cri_thrift *t, const cri_thrift_field *f)
{
    int64_t n = cri_thrift_int(t, f);

    return (int32_t)(n < INT32_MIN || n > INT32_MAX ? (int64_t)bad(t, false) : n);
}

static const char *read_text(cri_thrift *t, size_t *num_bytes)
{
    uint64_t n = read_varint(t);
    const char *out = (const char *)t->at;

    *num_bytes = 0;
    if (t->is_bad) return "";
    if (n > (size_t)(t->end - t->at)) {
        bad(t, true);
        return "";
    }
    t->at += n;
    *num_bytes = n;
    return out;
}

const char *cri_thrift_text(cri_thrift *t, const cri_thrift_field *f, size_t *num_bytes)
{
    if (f->type != BINARY) bad(t, false);
    return read_text(t, num_bytes);
}

/* Elements of a list or a set, of *type. An element has at least a byte. */
static size_t read_list(cri_thrift *t, int *type)
{
    uint8_t head = read_byte(t);
    uint64_t num = head >> 4 == 15 ? read_varint(t) : head >> 4;

    *type = head & 15;
    return num > (size_t)(t->end - t->at) ? bad(t, true) : num;
}

size_t cri_thrift_structs(cri_thrift *t, const cri_thrift_field *f)
{
    int type;
    size_t num = f->type == LIST ? read_list(t, &type) : bad(t, false);

    if (num && type != STRUCT) bad(t, false);
    return t->is_bad ? 0 : num;
}

bool cri_thrift_struct(cri_thrift *t, const cri_thrift_field *f)
{
    if (f->type != STRUCT) bad(t, false);
    return !t->is_bad;
}

static void skip_value(cri_thrift *t, int type, bool is_element);

static void skip_all(cri_thrift *t, int type, int other, size_t num)
{
    for (size_t i = 0; i < num && !t->is_bad; i++) {
        skip_value(t, type, true);
        if (other) skip_value(t, other, true);
    }
}

static void skip_struct(cri_thrift *t)
{
    cri_thrift_field f = {0};

    if (t->depth >= MAX_DEPTH) bad(t, false);
    t->depth++;
    while (cri_thrift_next(t, &f))
        skip_value(t, f.type, false);
    t->depth--;
}

static void skip_map(cri_thrift *t)
{
    uint64_t num = read_varint(t);
    uint8_t types = num ? read_byte(t) : 0;

    if (num > (size_t)(t->end - t->at)) bad(t, true);
    if (t->depth >= MAX_DEPTH) bad(t, false);
    t->depth++;
    skip_all(t, types >> 4, types & 15, num);
    t->depth--;
}

static void skip_list(cri_thrift *t)
{
    int type;
    size_t num = read_list(t, &type);

    if (t->depth >= MAX_DEPTH) bad(t, false);
    t->depth++;
    skip_all(t, type, 0, num);
    t->depth--;
}

static void skip_bytes(cri_thrift *t, size_t num)
{
    if (num > (size_t)(t->end - t->at))
        bad(t, true);
    else
        t->at += num;
}

/* A bool has a byte as an element, and is in the type of a field. */
static void skip_value(cri_thrift *t, int type, bool is_element)
{
    size_t num;

    switch (type) {
    case YES:
    case NO:
        skip_bytes(t, is_element);
        break;
    case I8:
        skip_bytes(t, 1);
        break;
    case I16:
    case I32:
    case I64:
        read_varint(t);
        break;
    case DOUBLE:
        skip_bytes(t, 8);
        break;
    case BINARY:
        read_text(t, &num);
        break;
    case LIST:
    case SET:
        skip_list(t);
        break;
    case MAP:
        skip_map(t);
        break;
    case STRUCT:
        skip_struct(t);
        break;
    case UUID:
        skip_bytes(t, 16);
        break;
    default:
        bad(t, false);
    }
}

void cri_thrift_skip(cri_thrift *t, const cri_thrift_field *f)
{
    skip_value(t, f->type, false);
}
