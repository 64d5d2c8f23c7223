/* values.c -- see values.h. */
#include "pipelines/bisect/values.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool cri_numbers_differ(double a, double b, double tolerance)
{
    if (memcmp(&a, &b, sizeof a) == 0) return false;
    return !(fabs(a - b) <= tolerance * fmax(fabs(a), fabs(b))) || tolerance == 0;
}

static void put_text(char out[CRI_TEXT_BYTES], json_t *value)
{
    cr_buf text = {0};
    cr_err err = {0};

    if (!value)
        cr_buf_adds(&text, "absent");
    else if (cr_json_add_value(&text, value, &err) != CR_OK)
        cr_buf_addf(&text, "(%s)", err.msg);
    if (text.num_bytes >= CRI_TEXT_BYTES) { /* cut between characters */
        size_t n = CRI_TEXT_BYTES - 4;
        while (n > 0 && ((unsigned char)text.data[n] & 0xC0) == 0x80)
            n--;
        snprintf(out, CRI_TEXT_BYTES, "%.*s..", (int)n, text.data);
    } else {
        snprintf(out, CRI_TEXT_BYTES, "%s", text.data);
    }
    cr_buf_free(&text);
}

static bool leaf_differs(json_t *a, json_t *b, double tolerance)
{
    if (json_is_number(a) && json_is_number(b) && (json_is_real(a) || json_is_real(b)))
        return cri_numbers_differ(json_number_value(a), json_number_value(b), tolerance);
    return !json_equal(a, b);
}

/* ".member", without the dot at the beginning and after a file's name. */
static void add_member(cri_difference *at, size_t n, const char *name)
{
    bool has_dot = n > 0 && at->path[n - 1] != ' ';

    snprintf(at->path + n, sizeof at->path - n, "%s%s", has_dot ? "." : "", name);
}

static bool objects_differ(json_t *a, json_t *b, double tolerance, cri_difference *at)
{
    size_t n = strlen(at->path);
    const char *name;
    json_t *value;

    json_object_foreach(a, name, value)
    {
        add_member(at, n, name);
        if (cri_values_differ(value, json_object_get(b, name), tolerance, at)) return true;
    }
    json_object_foreach(b, name, value)
    {
        add_member(at, n, name);
        if (!json_object_get(a, name)) return cri_values_differ(NULL, value, tolerance, at);
    }
    at->path[n] = 0;
    return false;
}

static bool arrays_differ(json_t *a, json_t *b, double tolerance, cri_difference *at)
{
    size_t n = strlen(at->path), num_a = json_array_size(a), num_b = json_array_size(b);

    for (size_t i = 0; i < num_a || i < num_b; i++) {
        snprintf(at->path + n, sizeof at->path - n, "[%zu]", i);
        if (cri_values_differ(json_array_get(a, i), json_array_get(b, i), tolerance, at))
            return true;
    }
    at->path[n] = 0;
    return false;
}

bool cri_values_differ(json_t *a, json_t *b, double tolerance, cri_difference *at)
{
    if (json_is_object(a) && json_is_object(b)) return objects_differ(a, b, tolerance, at);
    if (json_is_array(a) && json_is_array(b)) return arrays_differ(a, b, tolerance, at);
    if (a && b && !leaf_differs(a, b, tolerance)) return false;
    put_text(at->a, a);
    put_text(at->b, b);
    return true;
}

bool cri_metric_is_compared(const char *name)
{
    static const char *const not_compared[] = {"time/", "memory/", "system/", "global_seqlen/"};

    for (size_t i = 0; i < CR_COUNT(not_compared); i++)
        if (strncmp(name, not_compared[i], strlen(not_compared[i])) == 0) return false;
    return true;
}
