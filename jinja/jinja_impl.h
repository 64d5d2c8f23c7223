/* jinja_impl.h -- one rendering of a template: values and what can be done with them.
 *
 *   tree -> jinja_eval.c -> text
 *           jinja_value.c, jinja_text.c, jinja_print.c: values and their operations
 *           jinja_filters.c, jinja_methods.c: what templates call by name
 *
 * Values live in the rendering's arena and go all at once; texts may stay in the variables' JSON.
 */
#ifndef CR_JINJA_IMPL_H
#define CR_JINJA_IMPL_H

#include "jinja/jinja_tree.h"

/* ---- values ---- */

typedef struct cri_jinja_seq {
    cri_seq_kind kind;
    bool is_spent; /* an iterator that was walked */
    size_t num, capacity;
    cri_value *item;
} cri_jinja_seq;

typedef struct cri_dict {
    size_t num, capacity;
    struct cri_pair {
        cri_value key, value;
    } * pair;
} cri_dict;

typedef struct cri_method {
    cri_value self;
    const struct cri_callable *callable; /* NULL: Python has it, this interpreter does not */
    const char *name;
} cri_method;

typedef struct cri_loop {
    const cri_jinja_seq *items;
    size_t index, depth;
    cri_value changed;
} cri_loop;

typedef struct cri_macro {
    const struct cri_node *node; /* JN_MACRO or JN_CALL_BLOCK */
    struct cri_scope *scope;     /* where it was defined */
    cri_value caller;
} cri_macro;

/* ---- a rendering ---- */

typedef struct cri_scope {
    struct cri_scope *parent;
    cri_dict vars;
} cri_scope;

typedef struct cri_run {
    const cr_jinja *jinja;
    cr_arena *arena;
    char *chunk; /* [chunk_left] free bytes */
    size_t chunk_left, num_bytes, num_output;
    uint64_t num_steps;
    int depth, line;
    cri_scope *scope;
    cr_buf *out;
    bool is_break, is_continue;
    size_t loop_depth;
    cr_err *err;
} cri_run;

cr_status cri_jinja_fail(cri_run *run, const char *fmt, ...) CR_PRINTF(2, 3);
/* NULL after an error: return run->err->status. */
void *cri_jinja_alloc(cri_run *run, size_t num_bytes);
CR_MUST cr_status cri_jinja_spend(cri_run *run, size_t steps);
CR_MUST cr_status cri_jinja_enter(cri_run *run); /* one deeper; run->depth-- to leave */

/* ---- values (jinja_value.c) ---- */

const char *cri_jinja_kind_name(const cri_value *v); /* as in Python: "str" */
CR_MUST cr_status cri_jinja_string_copy(cri_run *run, const char *s, size_t n, cri_value *out);
CR_MUST cr_status cri_jinja_string_take(cri_run *run, cr_buf *buf, cri_value *out); /* frees buf */
CR_MUST cr_status cri_jinja_seq_new(cri_run *run, cri_seq_kind kind, size_t capacity,
                                    cri_value *out);
CR_MUST cr_status cri_jinja_seq_add(cri_run *run, cri_jinja_seq *seq, const cri_value *item);
CR_MUST cr_status cri_jinja_dict_new(cri_run *run, cri_value *out);
CR_MUST cr_status cri_jinja_dict_put(cri_run *run, cri_dict *dict, const cri_value *key,
                                     const cri_value *value);
/* *out is NULL if there is no such value. */
CR_MUST cr_status cri_jinja_dict_find(cri_run *run, const cri_dict *dict, const cri_value *key,
                                      const cri_value **out);
const cri_value *cri_jinja_dict_text(const cri_dict *dict, const char *key); /* NULL: none */
CR_MUST cr_status cri_jinja_from_json(cri_run *run, const json_t *json, cri_value *out);
CR_MUST cr_status cri_jinja_truth(cri_run *run, const cri_value *v, bool *out);
CR_MUST cr_status cri_jinja_equal(cri_run *run, const cri_value *a, const cri_value *b, bool *out);
CR_MUST cr_status cri_jinja_order(cri_run *run, const cri_value *a, const cri_value *b,
                                  int *out); /* <0, 0, >0 */
CR_MUST cr_status cri_jinja_to_text(cri_run *run, const cri_value *v, cri_value *out); /* str(v) */
typedef struct cri_json_style {
    bool ascii_only, sort_keys;
    const char *indent; /* NULL: one line */
    size_t num_indent;
    cri_value item_separator, key_separator;
} cri_json_style;
CR_MUST cr_status cri_jinja_to_json(cri_run *run, const cri_value *v, const cri_json_style *style,
                                    int level, cr_buf *out);
/* The items that a loop over v sees (code points, keys, ..); an iterator is spent. */
CR_MUST cr_status cri_jinja_items(cri_run *run, const cri_value *v, cri_jinja_seq **out);
CR_MUST cr_status cri_jinja_length(cri_run *run, const cri_value *v, size_t *out);
/* v.name and v[key]; not there: undefined. */
CR_MUST cr_status cri_jinja_get_attr(cri_run *run, const cri_value *v, const char *name,
                                     cri_value *out);
CR_MUST cr_status cri_jinja_get_item(cri_run *run, const cri_value *v, const cri_value *key,
                                     cri_value *out);
/* bounds: JV_ABSENT or JV_NONE where left out. */
CR_MUST cr_status cri_jinja_get_slice(cri_run *run, const cri_value *v, const cri_value bounds[3],
                                      cri_value *out);
CR_MUST cr_status cri_jinja_contains(cri_run *run, const cri_value *v, const cri_value *item,
                                     bool *out);
CR_MUST cr_status cri_jinja_binary(cri_run *run, cri_op op, const cri_value *a, const cri_value *b,
                                   cri_value *out);
CR_MUST cr_status cri_jinja_need_int(cri_run *run, const cri_value *v, const char *what,
                                     int64_t *out);
CR_MUST cr_status cri_jinja_need_string(cri_run *run, const cri_value *v, const char *what);

/* ---- text (jinja_text.c): Python's str methods ---- */

bool cri_jinja_is_space(uint32_t c);
size_t cri_jinja_num_chars(const char *s, size_t n);
/* The byte at which character `index` starts (n at the end). */
size_t cri_jinja_char_at(const char *s, size_t n, size_t index);
void cri_jinja_strip(const char **s, size_t *n, const cri_value *chars, bool left, bool right);
const char *cri_jinja_find(const char *s, size_t n, const char *what, size_t num_what);
CR_MUST cr_status cri_jinja_replace(cri_run *run, const cri_value *in, const cri_value *from,
                                    const cri_value *to, int64_t max, cri_value *out);
typedef enum cri_case { JC_UPPER, JC_LOWER, JC_CAPITALIZE, JC_TITLE, JC_FILTER_TITLE } cri_case;
CR_MUST cr_status cri_jinja_change_case(cri_run *run, const cri_value *in, cri_case to,
                                        cri_value *out);
CR_MUST cr_status cri_jinja_split(cri_run *run, const cri_value *in, const cri_value *sep,
                                  int64_t max, bool from_right, cri_value *out);
CR_MUST cr_status cri_jinja_split_lines(cri_run *run, const cri_value *in, bool keep_ends,
                                        cri_value *out);
CR_MUST cr_status cri_jinja_join(cri_run *run, const cri_value *sep, const cri_jinja_seq *items,
                                 bool is_strict, cri_value *out);
CR_MUST cr_status cri_jinja_format_percent(cri_run *run, const cri_value *format,
                                           const cri_value *args, size_t num, cri_value *out);
void cri_jinja_add_float(cr_buf *out, double x);               /* repr(x) */
void cri_jinja_add_repr(cr_buf *out, const char *s, size_t n); /* repr(str) */

/* ---- what templates call (jinja_filters.c, jinja_methods.c) ---- */

typedef struct cri_args {
    cri_value *value;  /* positional ones first */
    const char **name; /* NULL for positional ones */
    size_t num;
} cri_args;

typedef struct cri_callable {
    const char *name;
    const char *params; /* "old new | count": names, those after the bar may be left out */
    /* arg[CRI_MAX_PARAMS]: as bound to params; JV_ABSENT where not given. */
    cr_status (*call)(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out);
    /* Instead of call, for what takes any arguments. */
    cr_status (*call_any)(cri_run *run, const cri_value *in, const cri_args *args, cri_value *out);
} cri_callable;

CR_MUST cr_status cri_jinja_call_bound(cri_run *run, const cri_callable *c, const cri_value *in,
                                       const cri_args *args, cri_value *out);
/* The part of sorted() by key(item); is_reverse keeps equal items in order, too. */
CR_MUST cr_status cri_jinja_sort(cri_run *run, cri_jinja_seq *items, const cri_jinja_seq *keys,
                                 bool is_reverse);
CR_MUST cr_status cri_jinja_filter(cri_run *run, const char *name, const cri_value *in,
                                   const cri_args *args, cri_value *out);
CR_MUST cr_status cri_jinja_test(cri_run *run, const char *name, const cri_value *in,
                                 const cri_args *args, bool *out);
/* The method `name` of v's type; *is_known false: Python has none of that name. */
const cri_callable *cri_jinja_find_method(const cri_value *v, const char *name, bool *is_known);
const cri_callable *cri_jinja_find_function(const char *name); /* NULL: none */
CR_MUST cr_status cri_jinja_call_function(cri_run *run, const char *name, const cri_args *args,
                                          cri_value *out);
/* any callable value (jinja_eval.c) */
CR_MUST cr_status cri_jinja_call(cri_run *run, const cri_value *callee, const cri_args *args,
                                 cri_value *out);

#endif
