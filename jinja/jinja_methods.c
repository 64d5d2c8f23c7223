/* jinja_methods.c -- methods of values, functions by name, and tests. */
#include "jinja/jinja_impl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define METHOD(name) \
    static cr_status name(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)

static bool is_given(const cri_value *v)
{
    return v->kind != JV_ABSENT && v->kind != JV_NONE;
}

/* ---- str ---- */

static cr_status strip(cri_run *run, const cri_value *in, const cri_value *arg, bool left,
                       bool right, cri_value *out)
{
    cri_value v = *in;

    if (is_given(&arg[0])) CR_TRY(cri_jinja_need_string(run, &arg[0], "the characters to strip"));
    cri_jinja_strip(&v.s, &v.n, is_given(&arg[0]) ? &arg[0] : NULL, left, right);
    return cri_jinja_string_copy(run, v.s, v.n, out);
}

METHOD(s_strip)
{
    return strip(run, in, arg, true, true, out);
}

METHOD(s_lstrip)
{
    return strip(run, in, arg, true, false, out);
}

METHOD(s_rstrip)
{
    return strip(run, in, arg, false, true, out);
}

static cr_status split(cri_run *run, const cri_value *in, const cri_value *arg, bool from_right,
                       cri_value *out)
{
    int64_t max = -1;
    if (arg[1].kind != JV_ABSENT) CR_TRY(cri_jinja_need_int(run, &arg[1], "maxsplit", &max));
    return cri_jinja_split(run, in, &arg[0], max, from_right, out);
}

METHOD(s_split)
{
    return split(run, in, arg, false, out);
}

METHOD(s_rsplit)
{
    return split(run, in, arg, true, out);
}

METHOD(s_splitlines)
{
    bool keep_ends;
    CR_TRY(cri_jinja_truth(run, &arg[0], &keep_ends));
    return cri_jinja_split_lines(run, in, keep_ends, out);
}

static cr_status has_affix(cri_run *run, const cri_value *in, const cri_value *affix, bool at_end,
                           bool *out)
{
    *out = false;
    if (affix->kind == JV_SEQ && affix->seq->kind == JQ_TUPLE) {
        for (size_t i = 0; i < affix->seq->num && !*out; i++) {
            CR_TRY(cri_jinja_need_string(run, &affix->seq->item[i], "an affix"));
            CR_TRY(has_affix(run, in, &affix->seq->item[i], at_end, out));
        }
        return CR_OK;
    }
    CR_TRY(cri_jinja_need_string(run, affix, "an affix"));
    *out = in->n >= affix->n &&
           memcmp(in->s + (at_end ? in->n - affix->n : 0), affix->s, affix->n) == 0;
    return CR_OK;
}

static cr_status affix(cri_run *run, const cri_value *in, const cri_value *arg, bool at_end,
                       cri_value *out)
{
    bool has;
    if (arg[1].kind != JV_ABSENT) return cri_jinja_fail(run, "a start is not supported here");
    CR_TRY(has_affix(run, in, &arg[0], at_end, &has));
    *out = cri_jinja_bool(has);
    return CR_OK;
}

METHOD(s_startswith)
{
    return affix(run, in, arg, false, out);
}

METHOD(s_endswith)
{
    return affix(run, in, arg, true, out);
}

static cr_status remove_affix(cri_run *run, const cri_value *in, const cri_value *arg, bool at_end,
                              cri_value *out)
{
    bool has;
    CR_TRY(cri_jinja_need_string(run, &arg[0], "an affix"));
    CR_TRY(has_affix(run, in, &arg[0], at_end, &has));
    if (!has) return cri_jinja_string_copy(run, in->s, in->n, out);
    return cri_jinja_string_copy(run, in->s + (at_end ? 0 : arg[0].n), in->n - arg[0].n, out);
}

METHOD(s_removeprefix)
{
    return remove_affix(run, in, arg, false, out);
}

METHOD(s_removesuffix)
{
    return remove_affix(run, in, arg, true, out);
}

METHOD(s_upper)
{
    (void)arg;
    return cri_jinja_change_case(run, in, JC_UPPER, out);
}

METHOD(s_lower)
{
    (void)arg;
    return cri_jinja_change_case(run, in, JC_LOWER, out);
}

METHOD(s_title)
{
    (void)arg;
    return cri_jinja_change_case(run, in, JC_TITLE, out);
}

METHOD(s_capitalize)
{
    (void)arg;
    return cri_jinja_change_case(run, in, JC_CAPITALIZE, out);
}

METHOD(s_replace)
{
    int64_t max = -1;
    CR_TRY(cri_jinja_need_string(run, &arg[0], "what is replaced"));
    CR_TRY(cri_jinja_need_string(run, &arg[1], "the replacement"));
    if (arg[2].kind != JV_ABSENT) CR_TRY(cri_jinja_need_int(run, &arg[2], "the count", &max));
    return cri_jinja_replace(run, in, &arg[0], &arg[1], max, out);
}

METHOD(s_find)
{
    const char *p;
    CR_TRY(cri_jinja_need_string(run, &arg[0], "what is looked for"));
    p = cri_jinja_find(in->s, in->n, arg[0].s, arg[0].n);
    *out = cri_jinja_int(p ? (int64_t)cri_jinja_num_chars(in->s, (size_t)(p - in->s)) : -1);
    return cri_jinja_spend(run, in->n / 16);
}

METHOD(s_index)
{
    CR_TRY(s_find(run, in, arg, out));
    return out->i < 0 ? cri_jinja_fail(run, "index: the text is not there") : CR_OK;
}

METHOD(s_count)
{
    cri_value v = *in;
    int64_t num = 0;

    CR_TRY(cri_jinja_need_string(run, &arg[0], "what is counted"));
    if (arg[0].n == 0) return cri_jinja_fail(run, "an empty text is counted");
    for (const char *p; (p = cri_jinja_find(v.s, v.n, arg[0].s, arg[0].n)); num++) {
        v.n -= (size_t)(p - v.s) + arg[0].n;
        v.s = p + arg[0].n;
    }
    *out = cri_jinja_int(num);
    return cri_jinja_spend(run, in->n / 4);
}

METHOD(s_join)
{
    cri_jinja_seq *items;
    CR_TRY(cri_jinja_items(run, &arg[0], &items));
    return cri_jinja_join(run, in, items, true, out);
}

METHOD(s_isdigit)
{
    (void)arg;
    for (size_t i = 0; i < in->n; i++)
        if ((unsigned char)in->s[i] >= 128)
            return cri_jinja_fail(run, "isdigit of other than ASCII is not supported");
    *out = cri_jinja_bool(in->n > 0 && strspn(in->s, "0123456789") >= in->n);
    return CR_OK;
}

METHOD(s_isspace)
{
    cri_value v = *in;
    (void)arg;
    (void)run;
    cri_jinja_strip(&v.s, &v.n, NULL, true, false);
    *out = cri_jinja_bool(in->n > 0 && v.n == 0);
    return CR_OK;
}

static const cri_callable string_methods[] = {
    {"capitalize", "", s_capitalize, NULL},
    {"count", "sub", s_count, NULL},
    {"endswith", "suffix | start", s_endswith, NULL},
    {"find", "sub", s_find, NULL},
    {"index", "sub", s_index, NULL},
    {"isdigit", "", s_isdigit, NULL},
    {"isspace", "", s_isspace, NULL},
    {"join", "iterable", s_join, NULL},
    {"lower", "", s_lower, NULL},
    {"lstrip", "| chars", s_lstrip, NULL},
    {"removeprefix", "prefix", s_removeprefix, NULL},
    {"removesuffix", "suffix", s_removesuffix, NULL},
    {"replace", "old new | count", s_replace, NULL},
    {"rsplit", "| sep maxsplit", s_rsplit, NULL},
    {"rstrip", "| chars", s_rstrip, NULL},
    {"split", "| sep maxsplit", s_split, NULL},
    {"splitlines", "| keepends", s_splitlines, NULL},
    {"startswith", "prefix | start", s_startswith, NULL},
    {"strip", "| chars", s_strip, NULL},
    {"title", "", s_title, NULL},
    {"upper", "", s_upper, NULL},
};
static const char *const other_string_methods[] = {
    "casefold", "center",     "encode",    "expandtabs",   "format",    "format_map", "isalnum",
    "isalpha",  "isascii",    "isdecimal", "isidentifier", "islower",   "isnumeric",  "isprintable",
    "istitle",  "isupper",    "ljust",     "maketrans",    "partition", "rfind",      "rindex",
    "rjust",    "rpartition", "swapcase",  "translate",    "zfill"};

/* ---- dict, list, loop ---- */

METHOD(d_get)
{
    const cri_value *found;
    CR_TRY(cri_jinja_dict_find(run, in->dict, &arg[0], &found));
    *out = found ? *found : arg[1].kind == JV_ABSENT ? cri_jinja_none() : arg[1];
    return CR_OK;
}

static cr_status views(cri_run *run, const cri_value *in, bool keys, bool values, cri_value *out)
{
    cri_value pair;

    CR_TRY(cri_jinja_seq_new(run, JQ_VIEW, in->dict->num, out));
    for (size_t i = 0; i < in->dict->num; i++) {
        const struct cri_pair *p = &in->dict->pair[i];
        if (keys && values) {
            CR_TRY(cri_jinja_seq_new(run, JQ_TUPLE, 2, &pair));
            CR_TRY(cri_jinja_seq_add(run, pair.seq, &p->key));
            CR_TRY(cri_jinja_seq_add(run, pair.seq, &p->value));
        } else {
            pair = keys ? p->key : p->value;
        }
        CR_TRY(cri_jinja_seq_add(run, out->seq, &pair));
    }
    return CR_OK;
}

METHOD(d_items)
{
    (void)arg;
    return views(run, in, true, true, out);
}

METHOD(d_keys)
{
    (void)arg;
    return views(run, in, true, false, out);
}

METHOD(d_values)
{
    (void)arg;
    return views(run, in, false, true, out);
}

/* Values never change, so a copy is the value itself. */
METHOD(v_copy)
{
    (void)run;
    (void)arg;
    *out = *in;
    return CR_OK;
}

METHOD(l_index)
{
    bool is_equal;
    for (size_t i = 0; i < in->seq->num; i++) {
        CR_TRY(cri_jinja_equal(run, &in->seq->item[i], &arg[0], &is_equal));
        *out = cri_jinja_int((int64_t)i);
        if (is_equal) return CR_OK;
    }
    return cri_jinja_fail(run, "index: the value is not there");
}

METHOD(l_count)
{
    bool is_equal;
    int64_t num = 0;
    for (size_t i = 0; i < in->seq->num; i++) {
        CR_TRY(cri_jinja_equal(run, &in->seq->item[i], &arg[0], &is_equal));
        num += is_equal;
    }
    *out = cri_jinja_int(num);
    return CR_OK;
}

static cr_status loop_cycle(cri_run *run, const cri_value *in, const cri_args *args, cri_value *out)
{
    if (args->num == 0) return cri_jinja_fail(run, "loop.cycle needs values");
    *out = args->value[in->loop->index % args->num];
    return CR_OK;
}

static cr_status loop_changed(cri_run *run, const cri_value *in, const cri_args *args,
                              cri_value *out)
{
    cri_value now;
    bool is_equal = false;

    CR_TRY(cri_jinja_seq_new(run, JQ_TUPLE, args->num, &now));
    for (size_t i = 0; i < args->num; i++)
        CR_TRY(cri_jinja_seq_add(run, now.seq, &args->value[i]));
    if (in->loop->changed.kind != JV_ABSENT)
        CR_TRY(cri_jinja_equal(run, &in->loop->changed, &now, &is_equal));
    in->loop->changed = now;
    *out = cri_jinja_bool(!is_equal);
    return CR_OK;
}

static const cri_callable dict_methods[] = {{"copy", "", v_copy, NULL},
                                            {"get", "key | default", d_get, NULL},
                                            {"items", "", d_items, NULL},
                                            {"keys", "", d_keys, NULL},
                                            {"values", "", d_values, NULL}};
static const char *const other_dict_methods[] = {"clear",   "fromkeys",   "pop",
                                                 "popitem", "setdefault", "update"};
static const cri_callable list_methods[] = {{"copy", "", v_copy, NULL},
                                            {"count", "value", l_count, NULL},
                                            {"index", "value", l_index, NULL}};
static const char *const other_list_methods[] = {"append", "clear",  "extend",  "insert",
                                                 "pop",    "remove", "reverse", "sort"};
static const cri_callable tuple_methods[] = {{"count", "value", l_count, NULL},
                                             {"index", "value", l_index, NULL}};
static const char *const range_names[] = {"count", "index", "start", "step", "stop"};
static const char *const view_names[] = {"isdisjoint", "mapping"};
static const char *const iterator_names[] = {
    "close", "gi_code", "gi_frame", "gi_running", "gi_suspended", "gi_yieldfrom", "send", "throw"};
static const char *const number_names[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
    "numerator",        "real",      "to_bytes"};
static const cri_callable loop_methods[] = {{"cycle", NULL, NULL, loop_cycle},
                                            {"changed", NULL, NULL, loop_changed}};

static const cri_callable *find(const cri_callable *all, size_t num, const char *name)
{
    for (size_t i = 0; i < num; i++)
        if (strcmp(all[i].name, name) == 0) return &all[i];
    return NULL;
}

static bool is_one_of(const char *const *names, size_t num, const char *name)
{
    for (size_t i = 0; i < num; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

#define LOOK_UP(methods, others)                                        \
    do {                                                                \
        found = find(methods, CR_COUNT(methods), name);                 \
        *is_known = found || is_one_of(others, CR_COUNT(others), name); \
    } while (0)

const cri_callable *cri_jinja_find_method(const cri_value *v, const char *name, bool *is_known)
{
    const cri_callable *found = NULL;

    *is_known = false;
    switch (v->kind) {
    case JV_STRING:
        LOOK_UP(string_methods, other_string_methods);
        break;
    case JV_DICT:
        LOOK_UP(dict_methods, other_dict_methods);
        break;
    case JV_SEQ:
        if (v->seq->kind == JQ_LIST)
            LOOK_UP(list_methods, other_list_methods);
        else if (v->seq->kind == JQ_TUPLE)
            *is_known = (found = find(tuple_methods, CR_COUNT(tuple_methods), name)) != NULL;
        else if (v->seq->kind == JQ_RANGE)
            *is_known = is_one_of(range_names, CR_COUNT(range_names), name);
        else if (v->seq->kind == JQ_VIEW)
            *is_known = is_one_of(view_names, CR_COUNT(view_names), name);
        else
            *is_known = is_one_of(iterator_names, CR_COUNT(iterator_names), name);
        break;
    case JV_LOOP:
        found = find(loop_methods, CR_COUNT(loop_methods), name);
        *is_known = found != NULL;
        break;
    case JV_BOOL:
    case JV_INT:
    case JV_FLOAT:
        *is_known = is_one_of(number_names, CR_COUNT(number_names), name);
        break;
    default:
        break;
    }
    return found;
}

/* ---- functions ---- */

static cr_status fn_range(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    int64_t bound[3] = {0, 0, 1}, num;
    cri_value v;

    (void)in;
    for (int i = 0; i < 3; i++) {
        if (arg[i].kind == JV_ABSENT) break;
        CR_TRY(cri_jinja_need_int(run, &arg[i], "a bound of range", &bound[i]));
        if (bound[i] < -(1LL << 40) || bound[i] > 1LL << 40)
            return cri_jinja_fail(run, "a range is too long");
    }
    if (arg[1].kind == JV_ABSENT) bound[1] = bound[0], bound[0] = 0;
    if (bound[2] == 0) return cri_jinja_fail(run, "the step of a range is 0");
    num = bound[2] > 0 ? (bound[1] - bound[0] + bound[2] - 1) / bound[2]
                       : (bound[0] - bound[1] - bound[2] - 1) / -bound[2];
    if (num < 0) num = 0;
    if (num > CRI_MAX_RANGE) return cri_jinja_fail(run, "a range is too long");
    CR_TRY(cri_jinja_seq_new(run, JQ_RANGE, (size_t)num, out));
    for (int64_t i = 0; i < num; i++) {
        v = cri_jinja_int(bound[0] + i * bound[2]);
        CR_TRY(cri_jinja_seq_add(run, out->seq, &v));
    }
    return CR_OK;
}

/* dict(..) and namespace(..): a mapping, then names. */
static cr_status new_mapping(cri_run *run, const cri_args *args, bool is_namespace, cri_value *out)
{
    CR_TRY(cri_jinja_dict_new(run, out));
    for (size_t k = 0; k < args->num; k++) {
        const cri_value *v = &args->value[k];
        cri_value key;
        if (args->name[k]) {
            key = cri_jinja_string(args->name[k], strlen(args->name[k]));
            if (is_namespace && key.s[0] == '_')
                return cri_jinja_fail(run, "a namespace takes no name with an underscore in front");
            CR_TRY(cri_jinja_dict_put(run, out->dict, &key, v));
        } else if (k == 0 && v->kind == JV_DICT) {
            for (size_t i = 0; i < v->dict->num; i++) {
                if (is_namespace && v->dict->pair[i].key.kind != JV_STRING)
                    return cri_jinja_fail(run, "a namespace takes texts as names");
                CR_TRY(cri_jinja_dict_put(run, out->dict, &v->dict->pair[i].key,
                                          &v->dict->pair[i].value));
            }
        } else {
            return cri_jinja_fail(run, "dict and namespace of a %s are not supported",
                                  cri_jinja_kind_name(v));
        }
    }
    if (is_namespace) out->kind = JV_NAMESPACE;
    return CR_OK;
}

static cr_status fn_dict(cri_run *run, const cri_value *in, const cri_args *args, cri_value *out)
{
    (void)in;
    return new_mapping(run, args, false, out);
}

static cr_status fn_namespace(cri_run *run, const cri_value *in, const cri_args *args,
                              cri_value *out)
{
    (void)in;
    return new_mapping(run, args, true, out);
}

static cr_status fn_raise_exception(cri_run *run, const cri_value *in, const cri_value *arg,
                                    cri_value *out)
{
    (void)in;
    CR_TRY(cri_jinja_to_text(run, &arg[0], out));
    return cri_jinja_fail(run, "the template refuses these messages: %.*s",
                          (int)(out->n < 300 ? out->n : 300), out->s);
}

static cr_status fn_strftime_now(cri_run *run, const cri_value *in, const cri_value *arg,
                                 cri_value *out)
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    time_t now = epoch ? (time_t)strtoll(epoch, NULL, 10) : time(NULL);
    cri_value format;
    char text[1024];
    struct tm tm;
    size_t n;

    (void)in;
    CR_TRY(cri_jinja_need_string(run, &arg[0], "the format of a date"));
    CR_TRY(cri_jinja_string_copy(run, arg[0].s, arg[0].n, &format));
    if (format.n == 0) return cri_jinja_string_copy(run, "", 0, out);
    if (!(epoch ? gmtime_r(&now, &tm) : localtime_r(&now, &tm)))
        return cri_jinja_fail(run, "the date is out of range");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    n = strftime(text, sizeof text, format.s, &tm);
#pragma GCC diagnostic pop
    if (n == 0) return cri_jinja_fail(run, "the format of a date is not supported");
    return cri_jinja_string_copy(run, text, n, out);
}

static cr_status fn_unsupported(cri_run *run, const cri_value *in, const cri_args *args,
                                cri_value *out)
{
    (void)in;
    (void)args;
    (void)out;
    return cri_jinja_fail(run, "cycler, joiner and lipsum are not supported");
}

static const cri_callable functions[] = {
    {"cycler", NULL, NULL, fn_unsupported},
    {"dict", NULL, NULL, fn_dict},
    {"joiner", NULL, NULL, fn_unsupported},
    {"lipsum", NULL, NULL, fn_unsupported},
    {"namespace", NULL, NULL, fn_namespace},
    {"raise_exception", "message", fn_raise_exception, NULL},
    {"range", "start | stop step", fn_range, NULL},
    {"strftime_now", "format", fn_strftime_now, NULL},
};

const cri_callable *cri_jinja_find_function(const char *name)
{
    return find(functions, CR_COUNT(functions), name);
}

cr_status cri_jinja_call_function(cri_run *run, const char *name, const cri_args *args,
                                  cri_value *out)
{
    cri_value none = {0};
    return cri_jinja_call_bound(run, cri_jinja_find_function(name), &none, args, out);
}

/* ---- tests ---- */

typedef enum test_of_kind {
    IS_DEFINED,
    IS_UNDEFINED,
    IS_NONE,
    IS_STRING,
    IS_MAPPING,
    IS_ITERABLE,
    IS_SEQUENCE,
    IS_NUMBER,
    IS_INTEGER,
    IS_FLOAT,
    IS_BOOLEAN,
    IS_TRUE,
    IS_FALSE,
    IS_CALLABLE,
    IS_ODD,
    IS_EVEN,
    IS_LOWER,
    IS_UPPER,
} test_of_kind;

static const struct {
    const char *name;
    test_of_kind test;
} kind_tests[] = {{"defined", IS_DEFINED},   {"undefined", IS_UNDEFINED}, {"none", IS_NONE},
                  {"string", IS_STRING},     {"mapping", IS_MAPPING},     {"iterable", IS_ITERABLE},
                  {"sequence", IS_SEQUENCE}, {"number", IS_NUMBER},       {"integer", IS_INTEGER},
                  {"float", IS_FLOAT},       {"boolean", IS_BOOLEAN},     {"true", IS_TRUE},
                  {"false", IS_FALSE},       {"callable", IS_CALLABLE},   {"odd", IS_ODD},
                  {"even", IS_EVEN},         {"lower", IS_LOWER},         {"upper", IS_UPPER}};

static const struct {
    const char *name;
    cri_op op;
} order_tests[] = {{"eq", JO_EQ}, {"equalto", JO_EQ}, {"==", JO_EQ},       {"ne", JO_NE},
                   {"!=", JO_NE}, {"lt", JO_LT},      {"lessthan", JO_LT}, {"<", JO_LT},
                   {"le", JO_LE}, {"<=", JO_LE},      {"gt", JO_GT},       {"greaterthan", JO_GT},
                   {">", JO_GT},  {"ge", JO_GE},      {">=", JO_GE},       {"in", JO_IN}};

static cr_status test_parity(cri_run *run, const cri_value *v, bool odd, bool *out)
{
    int64_t i;
    CR_TRY(cri_jinja_need_int(run, v, "what is odd or even", &i));
    *out = (i % 2 != 0) == odd;
    return CR_OK;
}

static cr_status test_case(cri_run *run, const cri_value *v, bool upper, bool *out)
{
    cri_value text, changed, other;
    bool is_same, has_case;

    CR_TRY(cri_jinja_to_text(run, v, &text));
    CR_TRY(cri_jinja_change_case(run, &text, upper ? JC_UPPER : JC_LOWER, &changed));
    CR_TRY(cri_jinja_change_case(run, &text, upper ? JC_LOWER : JC_UPPER, &other));
    CR_TRY(cri_jinja_equal(run, &text, &changed, &is_same));
    CR_TRY(cri_jinja_equal(run, &other, &changed, &has_case));
    *out = is_same && !has_case;
    return CR_OK;
}

static cr_status test_kind(cri_run *run, test_of_kind test, const cri_value *v, bool *out)
{
    cri_jinja_kind k = v->kind;

    switch (test) {
    case IS_DEFINED:
        *out = k != JV_UNDEFINED;
        break;
    case IS_UNDEFINED:
        *out = k == JV_UNDEFINED;
        break;
    case IS_NONE:
        *out = k == JV_NONE;
        break;
    case IS_STRING:
        *out = k == JV_STRING;
        break;
    case IS_MAPPING:
        *out = k == JV_DICT;
        break;
    case IS_ITERABLE:
        *out = k == JV_STRING || k == JV_SEQ || k == JV_DICT || k == JV_UNDEFINED || k == JV_LOOP;
        break;
    case IS_SEQUENCE:
        *out = k == JV_STRING || k == JV_DICT || k == JV_UNDEFINED ||
               (k == JV_SEQ && v->seq->kind <= JQ_RANGE);
        break;
    case IS_NUMBER:
        *out = k == JV_INT || k == JV_FLOAT || k == JV_BOOL;
        break;
    case IS_INTEGER:
        *out = k == JV_INT;
        break;
    case IS_FLOAT:
        *out = k == JV_FLOAT;
        break;
    case IS_BOOLEAN:
        *out = k == JV_BOOL;
        break;
    case IS_TRUE:
    case IS_FALSE:
        *out = k == JV_BOOL && v->b == (test == IS_TRUE);
        break;
    case IS_CALLABLE: /* an undefined value has __call__ */
        *out = k == JV_MACRO || k == JV_METHOD || k == JV_FUNCTION || k == JV_UNDEFINED;
        break;
    case IS_ODD:
    case IS_EVEN:
        return test_parity(run, v, test == IS_ODD, out);
    default:
        return test_case(run, v, test == IS_UPPER, out);
    }
    return CR_OK;
}

static cr_status test_order(cri_run *run, cri_op op, const cri_value *a, const cri_value *b,
                            bool *out)
{
    int order;

    if (op == JO_IN) return cri_jinja_contains(run, b, a, out);
    if (op == JO_EQ || op == JO_NE) {
        CR_TRY(cri_jinja_equal(run, a, b, out));
        *out = *out == (op == JO_EQ);
        return CR_OK;
    }
    CR_TRY(cri_jinja_order(run, a, b, &order));
    *out = op == JO_LT   ? order < 0
           : op == JO_LE ? order <= 0
           : op == JO_GT ? order > 0
                         : order >= 0;
    return CR_OK;
}

static cr_status test_divisible(cri_run *run, const cri_value *in, const cri_value *by, bool *out)
{
    cri_value rest;
    CR_TRY(cri_jinja_binary(run, JO_MOD, in, by, &rest));
    *out = (rest.kind == JV_INT && rest.i == 0);
    return CR_OK;
}

/* The same object: for plain values the same kind and value. */
static cr_status test_same(cri_run *run, const cri_value *a, const cri_value *b, bool *out)
{
    if (a->kind == JV_SEQ || a->kind == JV_DICT || a->kind == JV_STRING || a->kind == JV_FLOAT)
        return cri_jinja_fail(run, "sameas of a %s is not supported", cri_jinja_kind_name(a));
    *out = false;
    return a->kind == b->kind ? cri_jinja_equal(run, a, b, out) : CR_OK;
}

cr_status cri_jinja_test(cri_run *run, const char *name, const cri_value *in, const cri_args *args,
                         bool *out)
{
    *out = false;
    for (size_t i = 0; i < CR_COUNT(kind_tests); i++) {
        if (strcmp(kind_tests[i].name, name) != 0) continue;
        if (args->num) return cri_jinja_fail(run, "the test %s takes no argument", name);
        return test_kind(run, kind_tests[i].test, in, out);
    }
    if (args->num != 1 || args->name[0])
        return cri_jinja_fail(run, "the test %s is not known with %zu arguments", name, args->num);
    for (size_t i = 0; i < CR_COUNT(order_tests); i++)
        if (strcmp(order_tests[i].name, name) == 0)
            return test_order(run, order_tests[i].op, in, &args->value[0], out);
    if (strcmp(name, "divisibleby") == 0) return test_divisible(run, in, &args->value[0], out);
    if (strcmp(name, "sameas") == 0) return test_same(run, in, &args->value[0], out);
    return cri_jinja_fail(run, "the test %s is not known", name);
}
