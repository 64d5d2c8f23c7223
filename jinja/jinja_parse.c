/* jinja_parse.c -- expressions, by Jinja's grammar: recursive descent, one token of lookahead. */
#include "jinja/jinja_parse.h"

#include <string.h>

cr_status cri_jinja_parse_fail(cri_jinja_parser *p, const char *why)
{
    return cr_fail(p->err, CR_EFORMAT, "%s: line %d: %s (at \"%.40s\")", p->what, p->t->line, why,
                   p->t->kind == JT_EOF         ? "end"
                   : p->t->kind == JT_BLOCK_END ? "%}"
                   : p->t->kind == JT_VAR_END   ? "}}"
                                                : p->t->s);
}

cri_node *cri_jinja_node_new(cri_jinja_parser *p, cri_node_kind kind)
{
    cri_node *n = cr_arena_alloc(p->arena, sizeof *n);
    *n = (cri_node){.kind = kind, .line = p->t->line};
    return n;
}

void cri_jinja_nodes_add(cri_nodes *list, cri_node *n)
{
    if (list->num == list->capacity) {
        size_t old = list->capacity * sizeof *list->node;
        list->capacity = list->capacity ? 2 * list->capacity : 8;
        list->node = cr_realloc(list->node, old, list->capacity * sizeof *list->node);
    }
    list->node[list->num++] = n;
}

/* Move the list into the arena. */
cri_node **cri_jinja_nodes_take(cri_jinja_parser *p, cri_nodes *list, size_t *num)
{
    cri_node **made = cr_arena_alloc(p->arena, (list->num + 1) * sizeof *made);
    if (list->num) memcpy(made, list->node, list->num * sizeof *made);
    *num = list->num;
    cr_free(list->node);
    *list = (cri_nodes){0};
    return made;
}

bool cri_jinja_at_op(const cri_jinja_parser *p, const char *op)
{
    return p->t->kind == JT_OP && strcmp(p->t->s, op) == 0;
}

bool cri_jinja_at_name(const cri_jinja_parser *p, const char *name)
{
    return p->t->kind == JT_NAME && strcmp(p->t->s, name) == 0;
}

bool cri_jinja_skip_op(cri_jinja_parser *p, const char *op)
{
    return cri_jinja_at_op(p, op) ? p->t++, true : false;
}

bool cri_jinja_skip_name(cri_jinja_parser *p, const char *name)
{
    return cri_jinja_at_name(p, name) ? p->t++, true : false;
}

cr_status cri_jinja_expect_op(cri_jinja_parser *p, const char *op)
{
    char why[40] = "expected ";
    if (cri_jinja_skip_op(p, op)) return CR_OK;
    strcat(why, op);
    return cri_jinja_parse_fail(p, why);
}

cr_status cri_jinja_expect_name(cri_jinja_parser *p, const char **name)
{
    if (p->t->kind != JT_NAME) return cri_jinja_parse_fail(p, "expected a name");
    *name = (p->t++)->s;
    return CR_OK;
}

cr_status cri_jinja_parse_enter(cri_jinja_parser *p)
{
    return ++p->depth > CRI_MAX_NESTING ? cri_jinja_parse_fail(p, "the template is nested too deep")
                                        : CR_OK;
}

static cr_status parse_unary(cri_jinja_parser *p, bool with_filter, cri_node **out);

/* ---- expressions ---- */

static bool is_tuple_end(const cri_jinja_parser *p, const char *end_name)
{
    return p->t->kind == JT_VAR_END || p->t->kind == JT_BLOCK_END || cri_jinja_at_op(p, ")") ||
           (end_name && cri_jinja_at_name(p, end_name));
}

static cr_status tuple_items(cri_jinja_parser *p, cri_tuple_form form, const char *end_name,
                             cri_nodes *items, bool *is_tuple)
{
    cri_node *item;
    for (;;) {
        if (items->num) CR_TRY(cri_jinja_expect_op(p, ","));
        if (is_tuple_end(p, end_name)) return CR_OK;
        if (form >= JF_TARGET)
            CR_TRY(cri_jinja_parse_primary(p, form == JF_NS_TARGET, &item));
        else
            CR_TRY(cri_jinja_parse_expression(p, form == JF_FULL, &item));
        cri_jinja_nodes_add(items, item);
        if (!cri_jinja_at_op(p, ",")) return CR_OK;
        *is_tuple = true;
    }
}

cr_status cri_jinja_parse_tuple(cri_jinja_parser *p, cri_tuple_form form, const char *end_name,
                                bool in_parentheses, cri_node **out)
{
    cri_nodes items = {0};
    bool is_tuple = false;
    cri_node *n = cri_jinja_node_new(p, JN_TUPLE);
    cr_status status = tuple_items(p, form, end_name, &items, &is_tuple);

    if (status == CR_OK && !is_tuple && items.num)
        n = items.node[0];
    else if (status == CR_OK && !is_tuple && !in_parentheses)
        status = cri_jinja_parse_fail(p, "expected an expression");
    else if (status == CR_OK)
        n->list = cri_jinja_nodes_take(p, &items, &n->num);
    cr_free(items.node);
    *out = n;
    return status;
}

/* "[a, b]" or "{a: b}" after its opener. */
static cr_status sequence_items(cri_jinja_parser *p, const char *end, bool is_dict,
                                cri_nodes *items)
{
    cri_node *item;
    while (!cri_jinja_at_op(p, end)) {
        if (items->num) {
            CR_TRY(cri_jinja_expect_op(p, ","));
            if (cri_jinja_at_op(p, end)) break;
        }
        CR_TRY(cri_jinja_parse_expression(p, true, &item));
        cri_jinja_nodes_add(items, item);
        if (!is_dict) continue;
        CR_TRY(cri_jinja_expect_op(p, ":"));
        CR_TRY(cri_jinja_parse_expression(p, true, &item));
        cri_jinja_nodes_add(items, item);
    }
    return cri_jinja_expect_op(p, end);
}

static cr_status parse_sequence(cri_jinja_parser *p, cri_node **out)
{
    bool is_dict = cri_jinja_at_op(p, "{");
    cri_node *n = cri_jinja_node_new(p, is_dict ? JN_DICT : JN_LIST);
    cri_nodes items = {0};
    cr_status status;

    p->t++;
    status = sequence_items(p, is_dict ? "}" : "]", is_dict, &items);
    n->list = cri_jinja_nodes_take(p, &items, &n->num);
    *out = n;
    return status;
}

static cr_status parse_string(cri_jinja_parser *p, cri_node *n)
{
    cr_buf text = {0};
    n->kind = JN_CONST;
    for (; p->t->kind == JT_STRING; p->t++)
        cr_buf_add(&text, p->t->s, p->t->n);
    n->value = cri_jinja_string(
        cr_arena_strndup(p->arena, text.data ? text.data : "", text.num_bytes), text.num_bytes);
    cr_buf_free(&text);
    return CR_OK;
}

static cr_status parse_name(cri_jinja_parser *p, bool is_target, cri_node *n)
{
    const char *name = (p->t++)->s;

    n->kind = JN_CONST;
    if (strcmp(name, "true") == 0 || strcmp(name, "True") == 0)
        n->value = cri_jinja_bool(true);
    else if (strcmp(name, "false") == 0 || strcmp(name, "False") == 0)
        n->value = cri_jinja_bool(false);
    else if (strcmp(name, "none") == 0 || strcmp(name, "None") == 0)
        n->value = cri_jinja_none();
    else {
        n->kind = JN_NAME;
        n->text = name;
        p->num_callers += strcmp(name, "caller") == 0;
        if (is_target && cri_jinja_skip_op(p, ".")) {
            n->kind = JN_NS_REF;
            return cri_jinja_expect_name(p, &n->attr);
        }
    }
    return CR_OK;
}

/* is_target: "ns.x" may be assigned to. */
cr_status cri_jinja_parse_primary(cri_jinja_parser *p, bool is_target, cri_node **out)
{
    cri_node *n = *out = cri_jinja_node_new(p, JN_CONST);

    switch (p->t->kind) {
    case JT_NAME:
        return parse_name(p, is_target, n);
    case JT_STRING:
        return parse_string(p, n);
    case JT_INT:
        n->value = cri_jinja_int((p->t++)->i);
        return CR_OK;
    case JT_FLOAT:
        n->value = cri_jinja_float((p->t++)->f);
        return CR_OK;
    default:
        if (cri_jinja_at_op(p, "[") || cri_jinja_at_op(p, "{")) return parse_sequence(p, out);
        if (!cri_jinja_skip_op(p, "(")) return cri_jinja_parse_fail(p, "unexpected");
        CR_TRY(cri_jinja_parse_enter(p));
        CR_TRY(cri_jinja_parse_tuple(p, JF_FULL, NULL, true, out));
        p->depth--;
        return cri_jinja_expect_op(p, ")");
    }
}

static cr_status parse_subscribed(cri_jinja_parser *p, cri_node **out)
{
    cri_node *n = cri_jinja_node_new(p, JN_SLICE);

    n->num = 3;
    n->list = cr_arena_alloc(p->arena, 3 * sizeof *n->list);
    memset(n->list, 0, 3 * sizeof *n->list);
    if (!cri_jinja_at_op(p, ":")) {
        CR_TRY(cri_jinja_parse_expression(p, true, &n->list[0]));
        if (!cri_jinja_at_op(p, ":")) {
            *out = n->list[0];
            return CR_OK;
        }
    }
    for (int i = 1; i < 3 && cri_jinja_skip_op(p, ":"); i++)
        if (!cri_jinja_at_op(p, ":") && !cri_jinja_at_op(p, "]") && !cri_jinja_at_op(p, ","))
            CR_TRY(cri_jinja_parse_expression(p, true, &n->list[i]));
    *out = n;
    return CR_OK;
}

static cr_status parse_subscript(cri_jinja_parser *p, cri_node **node)
{
    cri_node *n = cri_jinja_node_new(p, JN_ITEM);

    n->a = *node;
    *node = n;
    if (cri_jinja_skip_op(p, ".")) {
        if (p->t->kind == JT_INT) return cri_jinja_parse_primary(p, false, &n->b);
        n->kind = JN_ATTR;
        return cri_jinja_expect_name(p, &n->text);
    }
    CR_TRY(cri_jinja_expect_op(p, "["));
    CR_TRY(parse_subscribed(p, &n->b));
    return cri_jinja_expect_op(p, "]");
}

static cr_status argument_items(cri_jinja_parser *p, cri_nodes *items)
{
    bool has_keyword = false;

    while (!cri_jinja_at_op(p, ")")) {
        cri_node *n = cri_jinja_node_new(p, JN_KEYWORD);
        if (items->num) {
            CR_TRY(cri_jinja_expect_op(p, ","));
            if (cri_jinja_at_op(p, ")")) break;
        }
        if (cri_jinja_at_op(p, "*") || cri_jinja_at_op(p, "**"))
            return cri_jinja_parse_fail(p, "arguments by * and ** are not supported");
        if (p->t->kind == JT_NAME && p->t[1].kind == JT_OP && strcmp(p->t[1].s, "=") == 0) {
            has_keyword = true;
            n->text = p->t->s;
            p->t += 2;
            CR_TRY(cri_jinja_parse_expression(p, true, &n->a));
        } else {
            if (has_keyword)
                return cri_jinja_parse_fail(p, "a positional argument after a named one");
            CR_TRY(cri_jinja_parse_expression(p, true, &n));
        }
        cri_jinja_nodes_add(items, n);
    }
    return cri_jinja_expect_op(p, ")");
}

/* "(a, b=c)" at its opener: n's list. */
static cr_status parse_arguments(cri_jinja_parser *p, cri_node *n)
{
    cri_nodes items = {0};
    cr_status status = cri_jinja_expect_op(p, "(");

    if (status == CR_OK) status = argument_items(p, &items);
    n->list = cri_jinja_nodes_take(p, &items, &n->num);
    return status;
}

static cr_status parse_call(cri_jinja_parser *p, cri_node **node)
{
    cri_node *n = cri_jinja_node_new(p, JN_CALL);
    n->a = *node;
    *node = n;
    return parse_arguments(p, n);
}

static cr_status parse_postfix(cri_jinja_parser *p, cri_node **node)
{
    for (;;) {
        if (cri_jinja_at_op(p, ".") || cri_jinja_at_op(p, "["))
            CR_TRY(parse_subscript(p, node));
        else if (cri_jinja_at_op(p, "("))
            CR_TRY(parse_call(p, node));
        else
            return CR_OK;
    }
}

/* All "| name(arguments)" that follow; starts_inline: the first has no bar. */
cr_status cri_jinja_parse_filters(cri_jinja_parser *p, bool starts_inline, cri_node **node)
{
    while (starts_inline || cri_jinja_skip_op(p, "|")) {
        cri_node *n = cri_jinja_node_new(p, JN_FILTER);
        starts_inline = false;
        n->a = *node;
        CR_TRY(cri_jinja_expect_name(p, &n->text));
        if (cri_jinja_at_op(p, "(")) CR_TRY(parse_arguments(p, n));
        *node = n;
    }
    return CR_OK;
}

static bool starts_test_argument(const cri_jinja_parser *p)
{
    if (p->t->kind == JT_NAME)
        return !cri_jinja_at_name(p, "else") && !cri_jinja_at_name(p, "or") &&
               !cri_jinja_at_name(p, "and");
    return p->t->kind == JT_STRING || p->t->kind == JT_INT || p->t->kind == JT_FLOAT ||
           cri_jinja_at_op(p, "[") || cri_jinja_at_op(p, "{");
}

static cr_status parse_test(cri_jinja_parser *p, cri_node **node)
{
    cri_node *n = cri_jinja_node_new(p, JN_TEST), *negated = cri_jinja_node_new(p, JN_NOT);
    bool is_negated;

    p->t++;
    is_negated = cri_jinja_skip_name(p, "not");
    n->a = *node;
    CR_TRY(cri_jinja_expect_name(p, &n->text));
    if (cri_jinja_at_op(p, "(")) {
        CR_TRY(parse_arguments(p, n));
    } else if (starts_test_argument(p)) {
        if (cri_jinja_at_name(p, "is"))
            return cri_jinja_parse_fail(p, "tests cannot be chained with is");
        n->list = cr_arena_alloc(p->arena, sizeof *n->list);
        n->num = 1;
        CR_TRY(cri_jinja_parse_primary(p, false, n->list));
        CR_TRY(parse_postfix(p, n->list));
    }
    negated->a = n;
    *node = is_negated ? negated : n;
    return CR_OK;
}

static cr_status parse_unary(cri_jinja_parser *p, bool with_filter, cri_node **out)
{
    cri_node *n = cri_jinja_node_new(p, cri_jinja_at_op(p, "-") ? JN_NEG : JN_POS);

    CR_TRY(cri_jinja_parse_enter(p));
    if (cri_jinja_skip_op(p, "-") || cri_jinja_skip_op(p, "+")) {
        CR_TRY(parse_unary(p, false, &n->a));
        *out = n;
    } else {
        CR_TRY(cri_jinja_parse_primary(p, false, out));
    }
    CR_TRY(parse_postfix(p, out));
    while (with_filter) {
        if (cri_jinja_at_op(p, "|"))
            CR_TRY(cri_jinja_parse_filters(p, false, out));
        else if (cri_jinja_at_name(p, "is"))
            CR_TRY(parse_test(p, out));
        else if (cri_jinja_at_op(p, "("))
            CR_TRY(parse_call(p, out));
        else
            break;
    }
    p->depth--;
    return CR_OK;
}

static const struct {
    const char *text;
    cri_op op;
    int level;
} binaries[] = {{"+", JO_ADD, 0}, {"-", JO_SUB, 0},       {"*", JO_MUL, 1}, {"/", JO_DIV, 1},
                {"%", JO_MOD, 1}, {"//", JO_FLOORDIV, 1}, {"**", JO_POW, 2}};

static cr_status parse_concat(cri_jinja_parser *p, cri_node **out);

/* level 0: sums, above "~"; 1: products; 2: powers. */
static cr_status parse_binary(cri_jinja_parser *p, int level, cri_node **out)
{
    cri_node *right;

    if (level == 3) return parse_unary(p, true, out);
    CR_TRY(level == 0 ? parse_concat(p, out) : parse_binary(p, level + 1, out));
    for (;;) {
        cri_node *n = cri_jinja_node_new(p, JN_BINARY);
        size_t i = 0;
        while (i < CR_COUNT(binaries) &&
               (binaries[i].level != level || !cri_jinja_at_op(p, binaries[i].text)))
            i++;
        if (i == CR_COUNT(binaries)) return CR_OK;
        p->t++;
        CR_TRY(level == 0 ? parse_concat(p, &right) : parse_binary(p, level + 1, &right));
        n->op = binaries[i].op;
        n->a = *out;
        n->b = right;
        *out = n;
    }
}

static cr_status concat_items(cri_jinja_parser *p, cri_nodes *items)
{
    cri_node *item;
    do {
        CR_TRY(parse_binary(p, 1, &item));
        cri_jinja_nodes_add(items, item);
    } while (cri_jinja_skip_op(p, "~"));
    return CR_OK;
}

static cr_status parse_concat(cri_jinja_parser *p, cri_node **out)
{
    cri_node *n = cri_jinja_node_new(p, JN_CONCAT);
    cri_nodes items = {0};
    cr_status status = concat_items(p, &items);

    n->list = cri_jinja_nodes_take(p, &items, &n->num);
    *out = status == CR_OK && n->num == 1 ? n->list[0] : n;
    return status;
}

static bool compare_operator(cri_jinja_parser *p, cri_op *op)
{
    static const struct {
        const char *text;
        cri_op op;
    } all[] = {{"==", JO_EQ}, {"!=", JO_NE}, {"<", JO_LT},
               {"<=", JO_LE}, {">", JO_GT},  {">=", JO_GE}};

    for (size_t i = 0; i < CR_COUNT(all); i++)
        if (cri_jinja_skip_op(p, all[i].text)) return *op = all[i].op, true;
    if (cri_jinja_skip_name(p, "in")) return *op = JO_IN, true;
    if (cri_jinja_at_name(p, "not") && p->t[1].kind == JT_NAME && strcmp(p->t[1].s, "in") == 0)
        return p->t += 2, *op = JO_NOT_IN, true;
    return false;
}

static cr_status compare_items(cri_jinja_parser *p, cri_nodes *items)
{
    cri_op op;
    while (compare_operator(p, &op)) {
        cri_node *n = cri_jinja_node_new(p, JN_OPERAND);
        n->op = op;
        cri_jinja_nodes_add(items, n);
        CR_TRY(parse_binary(p, 0, &n->a));
    }
    return CR_OK;
}

static cr_status parse_compare(cri_jinja_parser *p, cri_node **out)
{
    cri_node *n = cri_jinja_node_new(p, JN_COMPARE);
    cri_nodes items = {0};
    cr_status status;

    CR_TRY(parse_binary(p, 0, out));
    status = compare_items(p, &items);
    n->list = cri_jinja_nodes_take(p, &items, &n->num);
    n->a = *out;
    if (n->num) *out = n;
    return status;
}

static cr_status parse_not(cri_jinja_parser *p, cri_node **out)
{
    cri_node *n = cri_jinja_node_new(p, JN_NOT);

    if (!cri_jinja_skip_name(p, "not")) return parse_compare(p, out);
    CR_TRY(cri_jinja_parse_enter(p));
    CR_TRY(parse_not(p, &n->a));
    p->depth--;
    *out = n;
    return CR_OK;
}

static cr_status parse_logic(cri_jinja_parser *p, bool is_or, cri_node **out)
{
    CR_TRY(is_or ? parse_logic(p, false, out) : parse_not(p, out));
    while (cri_jinja_skip_name(p, is_or ? "or" : "and")) {
        cri_node *n = cri_jinja_node_new(p, is_or ? JN_OR : JN_AND);
        n->a = *out;
        CR_TRY(is_or ? parse_logic(p, false, &n->b) : parse_not(p, &n->b));
        *out = n;
    }
    return CR_OK;
}

cr_status cri_jinja_parse_expression(cri_jinja_parser *p, bool with_if, cri_node **out)
{
    CR_TRY(cri_jinja_parse_enter(p));
    CR_TRY(parse_logic(p, true, out));
    while (with_if && cri_jinja_skip_name(p, "if")) {
        cri_node *n = cri_jinja_node_new(p, JN_COND);
        n->b = *out;
        CR_TRY(parse_logic(p, true, &n->a));
        if (cri_jinja_skip_name(p, "else")) CR_TRY(cri_jinja_parse_expression(p, true, &n->c));
        *out = n;
    }
    p->depth--;
    return CR_OK;
}
