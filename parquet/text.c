/* text.c -- see text.h. */
#include "parquet/text.h"
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DAY_S = 86400, JULIAN_1970 = 2440588 };

/* ---- numbers ---- */

static int64_t read_int(cri_span v)
{
    return v.num_bytes == 4 ? (int32_t)cri_le32(v.data) : (int64_t)cri_le64(v.data);
}

static void add_unsigned(cri_span v, cr_buf *out)
{
    cr_buf_addf(out, "%llu",
                (unsigned long long)(v.num_bytes == 4 ? cri_le32(v.data) : cri_le64(v.data)));
}

/* The fewest digits that read back as the same double, and a point or an exponent, so that it stays a real. */
static void add_real(double x, cr_buf *out)
{
    char text[40];

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    cr_buf_adds(out, text);
    if (!strpbrk(text, ".e")) cr_buf_adds(out, ".0");
}

static double read_half(const uint8_t *p)
{
    const int bits = p[0] | p[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double x = exponent == 31  ? (fraction ? (double)NAN : (double)INFINITY)
                     : exponent == 0 ? ldexp(fraction, -24)
                                     : ldexp(1024 + fraction, exponent - 25);

    return bits >> 15 ? -x : x;
}

static double read_real(const cri_parquet_node *leaf, cri_span v)
{
    uint32_t four;
    uint64_t eight;
    cr_float32 f;
    double d;

    if (leaf->kind == CRI_KIND_HALF) return read_half(v.data);
    if (leaf->kind == CRI_KIND_FLOAT) {
        four = cri_le32(v.data);
        memcpy(&f, &four, sizeof f);
        return (double)f;
    }
    eight = cri_le64(v.data);
    memcpy(&d, &eight, sizeof d);
    return d;
}

/* Digits of a number in two's complement, the highest byte first; returns how many, from text's end. */
static size_t print_digits(uint8_t *bytes, size_t num_bytes, char *end)
{
    size_t num = 0, first = 0;

    while (first < num_bytes) {
        unsigned rest = 0;
        for (size_t i = first; i < num_bytes; i++) {
            rest = rest << 8 | bytes[i];
            bytes[i] = (uint8_t)(rest / 10);
            rest %= 10;
        }
        *(end - ++num) = (char)('0' + rest);
        while (first < num_bytes && bytes[first] == 0)
            first++;
    }
    return num;
}

static cr_status add_decimal(const cri_parquet_node *leaf, cri_span v, cr_buf *out, cr_err *err)
{
    enum { MAX_BYTES = 64, MAX_TEXT = 400 };
    const bool is_little =
        leaf->element->type == CRI_PARQUET_INT32 || leaf->element->type == CRI_PARQUET_INT64;
    const size_t scale = (size_t)leaf->element->scale, n = v.num_bytes;
    uint8_t bytes[MAX_BYTES];
    char text[MAX_TEXT], *end = text + sizeof text;
    bool is_negative;
    size_t num;

    if (n == 0 || n > MAX_BYTES)
        return cr_fail(err, CR_EFORMAT, "a decimal number has %zu bytes", n);
    for (size_t i = 0; i < n; i++)
        bytes[i] = v.data[is_little ? n - 1 - i : i];
    is_negative = bytes[0] >> 7;
    for (size_t i = n, carry = 1; i-- > 0 && is_negative;) {
        unsigned byte = (uint8_t)~bytes[i] + (unsigned)carry;
        bytes[i] = (uint8_t)byte;
        carry = byte >> 8;
    }
    num = print_digits(bytes, n, end);
    while (num <= scale)
        *(end - ++num) = '0';
    cr_buf_adds(out, is_negative ? "\"-" : "\"");
    cr_buf_add(out, end - num, num - scale);
    if (scale) cr_buf_addc(out, '.');
    cr_buf_add(out, end - scale, scale);
    cr_buf_addc(out, '"');
    return CR_OK;
}

/* ---- dates and times ---- */

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

/* Days since 1970 in the Gregorian calendar: H. Hinnant's civil_from_days. */
static void add_date(int64_t days, cr_buf *out)
{
    const int64_t z = days + 719468, era = floor_div(z, 146097), in_era = z - era * 146097,
                  year_in = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146096) / 365,
                  day_in = in_era - (365 * year_in + year_in / 4 - year_in / 100),
                  month_in = (5 * day_in + 2) / 153, day = day_in - (153 * month_in + 2) / 5 + 1,
                  month = month_in < 10 ? month_in + 3 : month_in - 9,
                  year = year_in + era * 400 + (month <= 2);

    cr_buf_addf(out, "%04lld-%02d-%02d", (long long)year, (int)month, (int)day);
}

/* A time of day: with six digits of a second if there is a fraction, with nine if six do not do. */
static void add_time(int64_t seconds, int64_t ns, cr_buf *out)
{
    cr_buf_addf(out, "%02d:%02d:%02d", (int)(seconds / 3600), (int)(seconds / 60 % 60),
                (int)(seconds % 60));
    if (ns % 1000)
        cr_buf_addf(out, ".%09lld", (long long)ns);
    else if (ns)
        cr_buf_addf(out, ".%06lld", (long long)ns / 1000);
}

static cr_status add_time_of_day(const cri_parquet_node *leaf, int64_t x, cr_buf *out, cr_err *err)
{
    const int per_second = leaf->element->units_per_second;

    if (x < 0 || x / per_second >= DAY_S)
        return cr_fail(err, CR_EFORMAT, "a time is %lld units of 1/%d s, which is no time of a day",
                       (long long)x, per_second);
    cr_buf_addc(out, '"');
    add_time(x / per_second, x % per_second * (1000000000 / per_second), out);
    cr_buf_addc(out, '"');
    return CR_OK;
}

static void add_moment(int64_t x, int per_second, bool is_utc, cr_buf *out)
{
    const int64_t seconds = floor_div(x, per_second), days = floor_div(seconds, DAY_S),
                  part = x % per_second;

    cr_buf_addc(out, '"');
    add_date(days, out);
    cr_buf_addc(out, 'T');
    add_time(seconds - days * DAY_S,
             (part < 0 ? part + per_second : part) * (1000000000 / per_second), out);
    cr_buf_adds(out, is_utc ? "Z\"" : "\"");
}

/* Nanoseconds of a day, then its Julian number. */
static cr_status add_int96(cri_span v, cr_buf *out, cr_err *err)
{
    const int64_t ns = (int64_t)cri_le64(v.data), day = cri_le32(v.data + 8);

    if (ns < 0 || ns / 1000000000 >= DAY_S)
        return cr_fail(err, CR_EFORMAT, "an INT96 is no time: %lld nanoseconds of a day",
                       (long long)ns);
    cr_buf_addc(out, '"');
    add_date(day - JULIAN_1970, out);
    cr_buf_addc(out, 'T');
    add_time(ns / 1000000000, ns % 1000000000, out);
    cr_buf_addc(out, '"');
    return CR_OK;
}

/* ---- bytes ---- */

static cr_status add_text(cri_span v, cr_buf *out, cr_err *err)
{
    const char *text = (const char *)v.data;

    if (!cr_utf8_valid(text, v.num_bytes)) return cr_fail(err, CR_EFORMAT, "a text is not UTF-8");
    cr_json_add_string(out, text, v.num_bytes);
    return CR_OK;
}

static void add_uuid(const uint8_t *p, cr_buf *out)
{
    cr_buf_addc(out, '"');
    for (int i = 0; i < 16; i++)
        cr_buf_addf(out, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", p[i]);
    cr_buf_addc(out, '"');
}

cr_status cri_parquet_text_add(const cri_parquet_node *leaf, cri_span v, cr_buf *out,
                               bool *is_finite, cr_err *err)
{
    double x;

    switch (leaf->kind) {
    case CRI_KIND_BOOL:
        cr_buf_adds(out, *v.data ? "true" : "false");
        return CR_OK;
    case CRI_KIND_INT:
        cr_json_add_int(out, read_int(v));
        return CR_OK;
    case CRI_KIND_UINT:
        add_unsigned(v, out);
        return CR_OK;
    case CRI_KIND_HALF:
    case CRI_KIND_FLOAT:
    case CRI_KIND_DOUBLE:
        x = read_real(leaf, v);
        *is_finite = isfinite(x);
        if (*is_finite)
            add_real(x, out);
        else
            cr_buf_adds(out, "null");
        return CR_OK;
    case CRI_KIND_TEXT:
        return add_text(v, out, err);
    case CRI_KIND_BYTES:
        cr_json_add_base64(out, v.data, v.num_bytes);
        return CR_OK;
    case CRI_KIND_UUID:
        add_uuid(v.data, out);
        return CR_OK;
    case CRI_KIND_DECIMAL:
        return add_decimal(leaf, v, out, err);
    case CRI_KIND_DATE:
        cr_buf_addc(out, '"');
        add_date(read_int(v), out);
        cr_buf_addc(out, '"');
        return CR_OK;
    case CRI_KIND_TIME:
        return add_time_of_day(leaf, read_int(v), out, err);
    case CRI_KIND_TIMESTAMP:
        add_moment(read_int(v), leaf->element->units_per_second, leaf->element->is_utc, out);
        return CR_OK;
    case CRI_KIND_INT96:
        return add_int96(v, out, err);
    default:
        cr_buf_adds(out, "null");
        return CR_OK;
    }
}
