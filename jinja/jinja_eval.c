/* jinja_eval.c -- walks the tree: expressions to values, statements to text. */
#include "jinja/jinja_impl.h"

#include <stdio.h>
#include <string.h>

/* ---- bounds ---- */

cr_status cri_jinja_fail(cri_run *run, const char *fmt, ...)
{
    char why[400];
    va_list args;

    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    return cr_fail(run->err, CR_EFORMAT, "%s: line %d: %s", run->jinja->what, run->line, why);
}

void *cri_jinja_alloc(cri_run *run, size_t num_bytes)
{
    size_t need = (num_bytes + 16) / 16 * 16;
    void *made;

    if (num_bytes > CRI_MAX_BYTES || run->num_bytes + need > CRI_MAX_BYTES) {
        cr_note(
            cri_jinja_fail(run, "the template needs more memory than %d MiB", CRI_MAX_BYTES >> 20));
        return NULL;
    }
    run->num_bytes += need;
    if (need > 4096) return cr_arena_alloc(run->arena, need);
    if (need > run->chunk_left) {
        run->chunk = cr_arena_alloc(run->arena, 32768);
        run->chunk_left = 32768;
    }
    made = run->chunk;
    run->chunk += need;
    run->chunk_left -= need;
    return made;
}

cr_status cri_jinja_spend(cri_run *run, size_t steps)
{
    run->num_steps += steps;
    if (run->num_steps <= CRI_MAX_STEPS) return CR_OK;
    return cri_jinja_fail(run, "the template takes too many steps");
}

cr_status cri_jinja_enter(cri_run *run)
{
    if (++run->depth <= CRI_MAX_DEPTH) return CR_OK;
    return cri_jinja_fail(run, "the template or its values are nested too deep");
}

static cr_status emit(cri_run *run, const char *s, size_t n)
{
    run->num_output += n;
    if (run->num_output > CRI_MAX_OUTPUT)
        return cri_jinja_fail(run, "the template writes more than %d MiB", CRI_MAX_OUTPUT >> 20);
    cr_buf_add(run->out, s, n);
    return CR_OK;
}

/* ---- names ---- */

static cr_status lookup(cri_run *run, const char *name, cri_value *out)
{
    CR_TRY(cri_jinja_spend(run, 1));
    for (const cri_scope *s = run->scope; s; s = s->parent) {
        const cri_value *found = cri_jinja_dict_text(&s->vars, name);
        CR_TRY(cri_jinja_spend(run, s->vars.num / 8));
        if (!found) continue;
        *out = *found;
        return CR_OK;
    }
    *out = cri_jinja_undefined(name);
    if (cri_jinja_find_function(name)) *out = (cri_value){.kind = JV_FUNCTION, .s = name};
    return CR_OK;
}

static cr_status assign_name(cri_run *run, const char *name, const cri_value *value)
{
    cri_value key = cri_jinja_string(name, strlen(name));
    return cri_jinja_dict_put(run, &run->scope->vars, &key, value);
}

static cr_status scope_new(cri_run *run, cri_scope *parent, cri_scope **out)
{
    *out = cri_jinja_alloc(run, sizeof **out);
    if (!*out) return run->err->status;
    **out = (cri_scope){.parent = parent};
    return CR_OK;
}

static cr_status assign(cri_run *run, const cri_node *target, const cri_value *value)
{
    cri_value ns, key;
    cri_jinja_seq *items;

    switch (target->kind) {
    case JN_NAME:
        return assign_name(run, target->text, value);
    case JN_NS_REF:
        CR_TRY(lookup(run, target->text, &ns));
        if (ns.kind != JV_NAMESPACE)
            return cri_jinja_fail(run, "%s is not a namespace, its attributes cannot be set",
                                  target->text);
        if (target->attr[0] == '_')
            return cri_jinja_fail(run, "a namespace takes no name with an underscore in front");
        key = cri_jinja_string(target->attr, strlen(target->attr));
        return cri_jinja_dict_put(run, ns.dict, &key, value);
    default:
        CR_TRY(cri_jinja_items(run, value, &items));
        if (items->num != target->num)
            return cri_jinja_fail(run, "%zu values for %zu names", items->num, target->num);
        for (size_t i = 0; i < items->num; i++)
            CR_TRY(assign(run, target->list[i], &items->item[i]));
        return CR_OK;
    }
}

/* ---- expressions ---- */

static cr_status eval(cri_run *run, const cri_node *n, cri_value *out);
static cr_status exec_body(cri_run *run, const cri_node *n);

static cr_status eval_args(cri_run *run, const cri_node *n, cri_args *args)
{
    args->num = n->num;
    args->value = cri_jinja_alloc(run, n->num * sizeof *args->value);
    args->name = cri_jinja_alloc(run, n->num * sizeof *args->name);
    if (!args->value || !args->name) return run->err->status;
    for (size_t i = 0; i < n->num; i++) {
        bool is_keyword = n->list[i]->kind == JN_KEYWORD;
        args->name[i] = is_keyword ? n->list[i]->text : NULL;
        CR_TRY(eval(run, is_keyword ? n->list[i]->a : n->list[i], &args->value[i]));
    }
    return CR_OK;
}

static cr_status eval_list(cri_run *run, const cri_node *n, cri_value *out)
{
    cri_value item;

    CR_TRY(cri_jinja_seq_new(run, n->kind == JN_TUPLE ? JQ_TUPLE : JQ_LIST, n->num, out));
    for (size_t i = 0; i < n->num; i++) {
        CR_TRY(eval(run, n->list[i], &item));
        CR_TRY(cri_jinja_seq_add(run, out->seq, &item));
    }
    return CR_OK;
}

static cr_status eval_dict(cri_run *run, const cri_node *n, cri_value *out)
{
    cri_value key, value;

    CR_TRY(cri_jinja_dict_new(run, out));
    for (size_t i = 0; i < n->num; i += 2) {
        CR_TRY(eval(run, n->list[i], &key));
        CR_TRY(eval(run, n->list[i + 1], &value));
        CR_TRY(cri_jinja_dict_put(run, out->dict, &key, &value));
    }
    return CR_OK;
}

static cr_status eval_item(cri_run *run, const cri_node *n, cri_value *out)
{
    cri_value v, key, bounds[3] = {{0}, {0}, {0}};

    CR_TRY(eval(run, n->a, &v));
    if (n->b->kind != JN_SLICE) {
        CR_TRY(eval(run, n->b, &key));
        run->line = n->line;
        return cri_jinja_get_item(run, &v, &key, out);
    }
    for (int i = 0; i < 3; i++)
        if (n->b->list[i]) CR_TRY(eval(run, n->b->list[i], &bounds[i]));
    return cri_jinja_get_slice(run, &v, bounds, out);
}

static cr_status eval_concat(cri_run *run, const cri_node *n, cri_value *out)
{
    cri_value *part = cri_jinja_alloc(run, n->num * sizeof *part);
    size_t total = 0;
    char *s;

    if (!part) return run->err->status;
    for (size_t i = 0; i < n->num; i++) {
        CR_TRY(eval(run, n->list[i], &part[i]));
        CR_TRY(cri_jinja_to_text(run, &part[i], &part[i]));
        total += part[i].n;
    }
    s = cri_jinja_alloc(run, total + 1);
    if (!s) return run->err->status;
    *out = cri_jinja_string(s, total);
    for (size_t i = 0; i < n->num; i++) {
        memcpy(s, part[i].s, part[i].n);
        s += part[i].n;
    }
    *s = 0;
    return CR_OK;
}

static cr_status compare(cri_run *run, cri_op op, const cri_value *a, const cri_value *b, bool *out)
{
    int order;

    switch (op) {
    case JO_EQ:
        return cri_jinja_equal(run, a, b, out);
    case JO_NE:
        CR_TRY(cri_jinja_equal(run, a, b, out));
        *out = !*out;
        return CR_OK;
    case JO_IN:
        return cri_jinja_contains(run, b, a, out);
    case JO_NOT_IN:
        CR_TRY(cri_jinja_contains(run, b, a, out));
        *out = !*out;
        return CR_OK;
    default:
        CR_TRY(cri_jinja_order(run, a, b, &order));
        *out = op == JO_LT   ? order < 0
               : op == JO_LE ? order <= 0
               : op == JO_GT ? order > 0
                             : order >= 0;
        return CR_OK;
    }
}

static cr_status eval_compare(cri_run *run, const cri_node *n, cri_value *out)
{
    cri_value left, right;
    bool holds = true;

    CR_TRY(eval(run, n->a, &left));
    for (size_t i = 0; i < n->num && holds; i++) {
        CR_TRY(eval(run, n->list[i]->a, &right));
        run->line = n->line;
        CR_TRY(compare(run, n->list[i]->op, &left, &right, &holds));
        left = right;
    }
    *out = cri_jinja_bool(holds);
    return CR_OK;
}

static cr_status eval_call(cri_run *run, const cri_node *n, const cri_value *caller, cri_value *out)
{
    cri_value callee;
    cri_args args;

    CR_TRY(eval(run, n->a, &callee));
    CR_TRY(eval_args(run, n, &args));
    run->line = n->line;
    if (caller) {
        cri_macro *macro;
        if (callee.kind != JV_MACRO || !callee.macro->node->value.b)
            return cri_jinja_fail(run, "what is called here takes no caller");
        macro = cri_jinja_alloc(run, sizeof *macro);
        if (!macro) return run->err->status;
        *macro = *callee.macro;
        macro->caller = *caller;
        callee.macro = macro;
    }
    return cri_jinja_call(run, &callee, &args, out);
}

static cr_status eval_logic(cri_run *run, const cri_node *n, cri_value *out)
{
    bool truth;

    CR_TRY(eval(run, n->a, out));
    CR_TRY(cri_jinja_truth(run, out, &truth));
    if (n->kind == JN_COND) {
        *out = cri_jinja_undefined("the value of an inline if without else");
        return truth ? eval(run, n->b, out) : n->c ? eval(run, n->c, out) : CR_OK;
    }
    if (n->kind == JN_NOT) {
        *out = cri_jinja_bool(!truth);
        return CR_OK;
    }
    return truth == (n->kind == JN_AND) ? eval(run, n->b, out) : CR_OK;
}

static cr_status eval_sign(cri_run *run, const cri_node *n, cri_value *out)
{
    cri_value zero = cri_jinja_int(0), v;

    CR_TRY(eval(run, n->a, &v));
    if (v.kind == JV_FLOAT) {
        *out = cri_jinja_float(n->kind == JN_NEG ? -v.f : v.f);
        return CR_OK;
    }
    return cri_jinja_binary(run, n->kind == JN_NEG ? JO_SUB : JO_ADD, &zero, &v, out);
}

static cr_status eval_filter(cri_run *run, const cri_node *n, const cri_value *in, cri_value *out)
{
    cri_args args;

    CR_TRY(eval_args(run, n, &args));
    run->line = n->line;
    return cri_jinja_filter(run, n->text, in, &args, out);
}

static cr_status eval_test(cri_run *run, const cri_node *n, cri_value *out)
{
    cri_value v;
    cri_args args;
    bool holds;

    CR_TRY(eval(run, n->a, &v));
    CR_TRY(eval_args(run, n, &args));
    run->line = n->line;
    CR_TRY(cri_jinja_test(run, n->text, &v, &args, &holds));
    *out = cri_jinja_bool(holds);
    return CR_OK;
}

static cr_status eval_kind(cri_run *run, const cri_node *n, cri_value *out)
{
    cri_value a, b;

    switch (n->kind) {
    case JN_CONST:
        *out = n->value;
        return CR_OK;
    case JN_NAME:
        return lookup(run, n->text, out);
    case JN_LIST:
    case JN_TUPLE:
        return eval_list(run, n, out);
    case JN_DICT:
        return eval_dict(run, n, out);
    case JN_ATTR:
        CR_TRY(eval(run, n->a, &a));
        run->line = n->line;
        return cri_jinja_get_attr(run, &a, n->text, out);
    case JN_ITEM:
        return eval_item(run, n, out);
    case JN_CALL:
        return eval_call(run, n, NULL, out);
    case JN_FILTER:
        CR_TRY(eval(run, n->a, &a));
        return eval_filter(run, n, &a, out);
    case JN_TEST:
        return eval_test(run, n, out);
    case JN_NOT:
    case JN_AND:
    case JN_OR:
    case JN_COND:
        return eval_logic(run, n, out);
    case JN_NEG:
    case JN_POS:
        return eval_sign(run, n, out);
    case JN_BINARY:
        CR_TRY(eval(run, n->a, &a));
        CR_TRY(eval(run, n->b, &b));
        run->line = n->line;
        return cri_jinja_binary(run, n->op, &a, &b, out);
    case JN_CONCAT:
        return eval_concat(run, n, out);
    case JN_COMPARE:
        return eval_compare(run, n, out);
    default:
        return cri_jinja_fail(run, "this has no value");
    }
}

static cr_status eval(cri_run *run, const cri_node *n, cri_value *out)
{
    CR_TRY(cri_jinja_spend(run, 1));
    CR_TRY(cri_jinja_enter(run));
    run->line = n->line;
    CR_TRY(eval_kind(run, n, out));
    run->depth--;
    return CR_OK;
}

/* ---- macros ---- */

/* The text that n's body writes in `scope`. */
static cr_status body_text(cri_run *run, const cri_node *n, cri_scope *scope, cri_value *out)
{
    cri_scope *outer = run->scope;
    cr_buf text = {0}, *outer_out = run->out;
    cr_status status;

    run->scope = scope;
    run->out = &text;
    status = exec_body(run, n);
    run->scope = outer;
    run->out = outer_out;
    if (status == CR_OK) return cri_jinja_string_take(run, &text, out);
    cr_buf_free(&text);
    return status;
}

static cr_status bind_param(cri_run *run, const cri_node *macro, size_t i, const cri_args *args)
{
    const cri_node *param = macro->list[i];
    const cri_value *given = NULL;
    cri_value value;

    if (i < args->num && !args->name[i]) given = &args->value[i];
    for (size_t k = 0; k < args->num; k++) {
        if (!args->name[k] || strcmp(args->name[k], param->text) != 0) continue;
        if (given) return cri_jinja_fail(run, "%s is given twice", param->text);
        given = &args->value[k];
    }
    value = given ? *given : cri_jinja_undefined(param->text);
    if (!given && param->a) CR_TRY(eval(run, param->a, &value));
    return assign_name(run, param->text, &value);
}

static cr_status check_args(cri_run *run, const cri_node *macro, const cri_args *args)
{
    for (size_t k = 0; k < args->num; k++) {
        size_t i = 0;
        if (!args->name[k] && k >= macro->num)
            return cri_jinja_fail(run, "%s takes %zu arguments", macro->text, macro->num);
        while (args->name[k] && i < macro->num && strcmp(macro->list[i]->text, args->name[k]) != 0)
            i++;
        if (args->name[k] && i == macro->num)
            return cri_jinja_fail(run, "%s has no parameter %s", macro->text, args->name[k]);
    }
    return CR_OK;
}

static cr_status call_macro(cri_run *run, const cri_macro *macro, const cri_args *args,
                            cri_value *out)
{
    const cri_node *n = macro->node;
    cri_scope *scope, *outer = run->scope;
    int line = run->line;
    cr_status status = CR_OK;

    CR_TRY(check_args(run, n, args));
    CR_TRY(scope_new(run, macro->scope, &scope));
    run->scope = scope;
    if (n->kind == JN_MACRO && macro->caller.kind != JV_ABSENT)
        status = assign_name(run, "caller", &macro->caller);
    for (size_t i = 0; i < n->num && status == CR_OK; i++)
        status = bind_param(run, n, i, args);
    run->scope = outer;
    if (status == CR_OK) status = body_text(run, n, scope, out);
    run->line = line;
    return status;
}

static cr_status define_macro(cri_run *run, const cri_node *n, cri_value *out)
{
    cri_macro *macro = cri_jinja_alloc(run, sizeof *macro);

    if (!macro) return run->err->status;
    *macro = (cri_macro){.node = n, .scope = run->scope};
    *out = (cri_value){.kind = JV_MACRO, .macro = macro};
    return CR_OK;
}

cr_status cri_jinja_call(cri_run *run, const cri_value *callee, const cri_args *args,
                         cri_value *out)
{
    const cri_method *m;

    switch (callee->kind) {
    case JV_MACRO:
        return call_macro(run, callee->macro, args, out);
    case JV_FUNCTION:
        return cri_jinja_call_function(run, callee->s, args, out);
    case JV_METHOD:
        m = callee->method;
        if (!m->callable)
            return cri_jinja_fail(run, "the method %s of %s is not supported", m->name,
                                  cri_jinja_kind_name(&m->self));
        return cri_jinja_call_bound(run, m->callable, &m->self, args, out);
    case JV_UNDEFINED:
        return cri_jinja_fail(run, "%s is undefined and cannot be called",
                              callee->s ? callee->s : "the value");
    default:
        return cri_jinja_fail(run, "a %s cannot be called", cri_jinja_kind_name(callee));
    }
}

/* ---- statements ---- */

static cr_status exec_if(cri_run *run, const cri_node *n)
{
    cri_value v;
    bool truth = true;

    for (size_t i = 0; i < n->num; i++) {
        const cri_node *branch = n->list[i];
        if (branch->a) {
            CR_TRY(eval(run, branch->a, &v));
            CR_TRY(cri_jinja_truth(run, &v, &truth));
        }
        if (truth || !branch->a) return exec_body(run, branch);
    }
    return CR_OK;
}

/* The items for which the loop's condition holds. */
static cr_status filter_items(cri_run *run, const cri_node *n, cri_jinja_seq **items)
{
    cri_scope *outer = run->scope;
    cri_value kept, v;
    bool truth;

    if (!n->c) return CR_OK;
    CR_TRY(cri_jinja_seq_new(run, JQ_LIST, 0, &kept));
    CR_TRY(scope_new(run, outer, &run->scope));
    for (size_t i = 0; i < (*items)->num; i++) {
        run->scope->vars.num = 0;
        CR_TRY(assign(run, n->a, &(*items)->item[i]));
        CR_TRY(eval(run, n->c, &v));
        CR_TRY(cri_jinja_truth(run, &v, &truth));
        if (truth) CR_TRY(cri_jinja_seq_add(run, kept.seq, &(*items)->item[i]));
    }
    run->scope = outer;
    *items = kept.seq;
    return CR_OK;
}

static cr_status exec_loop(cri_run *run, const cri_node *n, const cri_jinja_seq *items)
{
    cri_loop *loop = cri_jinja_alloc(run, sizeof *loop);
    cri_value loop_value = {.kind = JV_LOOP, .loop = loop};

    if (!loop) return run->err->status;
    *loop = (cri_loop){.items = items, .depth = 1};
    for (size_t i = 0; i < items->num && !run->is_break; i++) {
        loop->index = i;
        run->scope->vars.num = 0;
        CR_TRY(assign_name(run, "loop", &loop_value));
        CR_TRY(assign(run, n->a, &items->item[i]));
        CR_TRY(exec_body(run, n));
        run->is_continue = false;
    }
    run->is_break = false;
    return CR_OK;
}

static cr_status exec_for(cri_run *run, const cri_node *n)
{
    cri_scope *outer = run->scope;
    cri_value v;
    cri_jinja_seq *items;

    CR_TRY(eval(run, n->b, &v));
    CR_TRY(cri_jinja_items(run, &v, &items));
    CR_TRY(filter_items(run, n, &items));
    CR_TRY(scope_new(run, outer, &run->scope));
    if (items->num)
        CR_TRY(exec_loop(run, n, items));
    else if (n->d)
        CR_TRY(exec_body(run, n->d));
    run->scope = outer;
    return CR_OK;
}

static cr_status apply_filters(cri_run *run, const cri_node *n, cri_value *v)
{
    if (!n) return CR_OK;
    CR_TRY(apply_filters(run, n->a, v));
    return eval_filter(run, n, v, v);
}

static cr_status exec_set_block(cri_run *run, const cri_node *n)
{
    cri_scope *scope;
    cri_value v;

    CR_TRY(scope_new(run, run->scope, &scope));
    CR_TRY(body_text(run, n, scope, &v));
    CR_TRY(apply_filters(run, n->b, &v));
    if (n->kind == JN_FILTER_BLOCK) {
        CR_TRY(cri_jinja_to_text(run, &v, &v));
        return emit(run, v.s, v.n);
    }
    return assign(run, n->a, &v);
}

/* with: values are evaluated outside, names live inside; without names: a scope of its own. */
static cr_status exec_scope(cri_run *run, const cri_node *n)
{
    cri_scope *outer = run->scope, *inner;
    cri_value v;

    CR_TRY(scope_new(run, outer, &inner));
    for (size_t i = 0; i < n->num; i += 2) {
        CR_TRY(eval(run, n->list[i + 1], &v));
        run->scope = inner;
        CR_TRY(assign(run, n->list[i], &v));
        run->scope = outer;
    }
    run->scope = inner;
    CR_TRY(exec_body(run, n));
    run->scope = outer;
    return CR_OK;
}

static cr_status exec_output(cri_run *run, const cri_node *n)
{
    cri_value v;

    CR_TRY(eval(run, n->a, &v));
    CR_TRY(cri_jinja_to_text(run, &v, &v));
    return emit(run, v.s, v.n);
}

static cr_status exec_call_block(cri_run *run, const cri_node *n)
{
    cri_value caller, v;

    CR_TRY(define_macro(run, n, &caller));
    CR_TRY(eval_call(run, n->a, &caller, &v));
    CR_TRY(cri_jinja_to_text(run, &v, &v));
    return emit(run, v.s, v.n);
}

static cr_status exec(cri_run *run, const cri_node *n)
{
    cri_value v;

    CR_TRY(cri_jinja_spend(run, 1));
    run->line = n->line;
    switch (n->kind) {
    case JN_TEXT:
        return emit(run, n->value.s, n->value.n);
    case JN_OUTPUT:
        return exec_output(run, n);
    case JN_IF:
        return exec_if(run, n);
    case JN_FOR:
        return exec_for(run, n);
    case JN_SET:
        CR_TRY(eval(run, n->b, &v));
        return assign(run, n->a, &v);
    case JN_SET_BLOCK:
    case JN_FILTER_BLOCK:
        return exec_set_block(run, n);
    case JN_MACRO:
        CR_TRY(define_macro(run, n, &v));
        return assign_name(run, n->text, &v);
    case JN_CALL_BLOCK:
        return exec_call_block(run, n);
    case JN_WITH:
    case JN_SCOPE:
        return exec_scope(run, n);
    case JN_BREAK:
        run->is_break = true;
        return CR_OK;
    default: /* JN_CONTINUE */
        run->is_continue = true;
        return CR_OK;
    }
}

static cr_status exec_body(cri_run *run, const cri_node *n)
{
    CR_TRY(cri_jinja_enter(run));
    for (size_t i = 0; i < n->num_body && !run->is_break && !run->is_continue; i++)
        CR_TRY(exec(run, n->body[i]));
    run->depth--;
    return CR_OK;
}

static cr_status render(cri_run *run, const json_t *vars)
{
    cri_scope top = {0};
    cri_value globals;

    run->scope = &top;
    CR_TRY(cri_jinja_from_json(run, vars, &globals));
    top.vars = *globals.dict;
    return exec_scope(run, run->jinja->root);
}

cr_status cr_jinja_render(const cr_jinja *jinja, const json_t *vars, cr_buf *out, cr_err *err)
{
    cr_arena *arena = cr_arena_create(256 * 1024);
    cri_run run = {.jinja = jinja, .arena = arena, .line = 1, .out = out, .err = err};
    cr_status status = render(&run, vars);

    cr_arena_destroy(arena);
    return status;
}
