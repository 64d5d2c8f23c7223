/* jinja_statements.c -- tags and the text between them to the tree (see jinja_parse.h). */
#include "jinja/jinja_parse.h"

#include <string.h>

static cr_status parse_statement(cri_jinja_parser *p, cri_node **out);

static bool is_one_of(const cri_jinja_parser *p, const char *const *names)
{
    for (; *names; names++)
        if (cri_jinja_at_name(p, *names)) return true;
    return false;
}

/* Until a block tag that is one of ends (NULL: until the end); stands on its name then. */
static cr_status body_items(cri_jinja_parser *p, const char *const *ends, cri_nodes *items)
{
    cri_node *n;
    for (;;) {
        n = cri_jinja_node_new(p, JN_TEXT);
        switch (p->t->kind) {
        case JT_EOF:
            return ends ? cri_jinja_parse_fail(p, "a block without its end") : CR_OK;
        case JT_DATA:
            n->value = cri_jinja_string(p->t->s, p->t->n);
            p->t++;
            break;
        case JT_VAR_BEGIN:
            p->t++;
            n->kind = JN_OUTPUT;
            CR_TRY(cri_jinja_parse_tuple(p, JF_FULL, NULL, false, &n->a));
            if (p->t->kind != JT_VAR_END) return cri_jinja_parse_fail(p, "expected }}");
            p->t++;
            break;
        case JT_BLOCK_BEGIN:
            p->t++;
            if (ends && is_one_of(p, ends)) return CR_OK;
            CR_TRY(parse_statement(p, &n));
            if (p->t->kind != JT_BLOCK_END) return cri_jinja_parse_fail(p, "expected %}");
            p->t++;
            break;
        default:
            return cri_jinja_parse_fail(p, "unexpected");
        }
        cri_jinja_nodes_add(items, n);
    }
}

static cr_status parse_body(cri_jinja_parser *p, cri_node *n, const char *const *ends)
{
    cri_nodes items = {0};
    cr_status status = CR_OK;

    if (ends) {
        cri_jinja_skip_op(p, ":");
        if (p->t->kind != JT_BLOCK_END) return cri_jinja_parse_fail(p, "expected %}");
        p->t++;
        CR_TRY(cri_jinja_parse_enter(p));
    }
    status = body_items(p, ends, &items);
    n->body = cri_jinja_nodes_take(p, &items, &n->num_body);
    p->depth--;
    return status;
}

static cr_status parse_body_to(cri_jinja_parser *p, cri_node *n, const char *end)
{
    const char *const ends[] = {end, NULL};
    CR_TRY(parse_body(p, n, ends));
    p->t++;
    return CR_OK;
}

static cr_status check_target(cri_jinja_parser *p, const cri_node *n, bool is_loop)
{
    if (is_loop && n->kind == JN_NAME && strcmp(n->text, "loop") == 0)
        return cri_jinja_parse_fail(p, "loop is the loop's own name");
    if (n->kind == JN_NAME || n->kind == JN_NS_REF) return CR_OK;
    if (n->kind != JN_TUPLE) return cri_jinja_parse_fail(p, "this cannot be assigned to");
    for (size_t i = 0; i < n->num; i++)
        CR_TRY(check_target(p, n->list[i], is_loop));
    return CR_OK;
}

static cr_status parse_target(cri_jinja_parser *p, bool with_namespace, const char *end_name,
                              cri_node **out)
{
    CR_TRY(
        cri_jinja_parse_tuple(p, with_namespace ? JF_NS_TARGET : JF_TARGET, end_name, false, out));
    return check_target(p, *out, end_name != NULL);
}

static cr_status branch_items(cri_jinja_parser *p, cri_nodes *items)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    for (bool is_else = false;;) {
        cri_node *n = cri_jinja_node_new(p, JN_BRANCH);
        cri_jinja_nodes_add(items, n);
        if (is_else) return parse_body_to(p, n, "endif");
        CR_TRY(cri_jinja_parse_tuple(p, JF_NO_IF, NULL, false, &n->a));
        CR_TRY(parse_body(p, n, ends));
        if (cri_jinja_skip_name(p, "endif")) return CR_OK;
        is_else = cri_jinja_at_name(p, "else");
        p->t++;
    }
}

static cr_status parse_if(cri_jinja_parser *p, cri_node *n)
{
    cri_nodes items = {0};
    cr_status status = branch_items(p, &items);
    n->kind = JN_IF;
    n->list = cri_jinja_nodes_take(p, &items, &n->num);
    return status;
}

static cr_status parse_for(cri_jinja_parser *p, cri_node *n)
{
    static const char *const ends[] = {"endfor", "else", NULL};

    n->kind = JN_FOR;
    CR_TRY(parse_target(p, false, "in", &n->a));
    if (!cri_jinja_skip_name(p, "in")) return cri_jinja_parse_fail(p, "expected in");
    CR_TRY(cri_jinja_parse_tuple(p, JF_NO_IF, "recursive", false, &n->b));
    if (cri_jinja_skip_name(p, "if")) CR_TRY(cri_jinja_parse_expression(p, true, &n->c));
    if (cri_jinja_at_name(p, "recursive"))
        return cri_jinja_parse_fail(p, "recursive loops are not supported");
    p->num_loops++;
    CR_TRY(parse_body(p, n, ends));
    p->num_loops--;
    if (cri_jinja_skip_name(p, "endfor")) return CR_OK;
    p->t++;
    n->d = cri_jinja_node_new(p, JN_BRANCH);
    return parse_body_to(p, n->d, "endfor");
}

static cr_status parse_set(cri_jinja_parser *p, cri_node *n)
{
    CR_TRY(parse_target(p, true, NULL, &n->a));
    n->kind = JN_SET;
    if (cri_jinja_skip_op(p, "=")) return cri_jinja_parse_tuple(p, JF_FULL, NULL, false, &n->b);
    n->kind = JN_SET_BLOCK;
    CR_TRY(cri_jinja_parse_filters(p, false, &n->b));
    return parse_body_to(p, n, "endset");
}

static cr_status signature_items(cri_jinja_parser *p, cri_nodes *items)
{
    CR_TRY(cri_jinja_expect_op(p, "("));
    while (!cri_jinja_at_op(p, ")")) {
        cri_node *n = cri_jinja_node_new(p, JN_PARAM);
        if (items->num) CR_TRY(cri_jinja_expect_op(p, ","));
        CR_TRY(cri_jinja_expect_name(p, &n->text));
        if (cri_jinja_skip_op(p, "="))
            CR_TRY(cri_jinja_parse_expression(p, true, &n->a));
        else if (items->num && items->node[items->num - 1]->a)
            return cri_jinja_parse_fail(p, "a parameter without a default after one that has it");
        cri_jinja_nodes_add(items, n);
    }
    return cri_jinja_expect_op(p, ")");
}

static cr_status parse_signature(cri_jinja_parser *p, cri_node *n)
{
    cri_nodes items = {0};
    cr_status status = signature_items(p, &items);
    n->list = cri_jinja_nodes_take(p, &items, &n->num);
    return status;
}

/* The body of a macro is not in the loop around it. */
static cr_status parse_macro_body(cri_jinja_parser *p, cri_node *n, const char *end)
{
    int num_loops = p->num_loops;
    cr_status status;
    p->num_loops = 0;
    status = parse_body_to(p, n, end);
    p->num_loops = num_loops;
    return status;
}

static cr_status parse_macro(cri_jinja_parser *p, cri_node *n)
{
    int num_callers = p->num_callers;

    n->kind = JN_MACRO;
    CR_TRY(cri_jinja_expect_name(p, &n->text));
    CR_TRY(parse_signature(p, n));
    CR_TRY(parse_macro_body(p, n, "endmacro"));
    n->value = cri_jinja_bool(p->num_callers > num_callers);
    return CR_OK;
}

static cr_status parse_call_block(cri_jinja_parser *p, cri_node *n)
{
    n->kind = JN_CALL_BLOCK;
    n->text = "caller";
    if (cri_jinja_at_op(p, "(")) CR_TRY(parse_signature(p, n));
    CR_TRY(cri_jinja_parse_expression(p, true, &n->a));
    if (n->a->kind != JN_CALL) return cri_jinja_parse_fail(p, "expected a call");
    return parse_macro_body(p, n, "endcall");
}

static cr_status parse_filter_block(cri_jinja_parser *p, cri_node *n)
{
    n->kind = JN_FILTER_BLOCK;
    CR_TRY(cri_jinja_parse_filters(p, true, &n->b));
    return parse_body_to(p, n, "endfilter");
}

static cr_status with_items(cri_jinja_parser *p, cri_nodes *items)
{
    cri_node *n;
    while (p->t->kind != JT_BLOCK_END) {
        if (items->num) CR_TRY(cri_jinja_expect_op(p, ","));
        CR_TRY(cri_jinja_parse_primary(p, false, &n));
        CR_TRY(check_target(p, n, false));
        cri_jinja_nodes_add(items, n);
        CR_TRY(cri_jinja_expect_op(p, "="));
        CR_TRY(cri_jinja_parse_expression(p, true, &n));
        cri_jinja_nodes_add(items, n);
    }
    return CR_OK;
}

static cr_status parse_with(cri_jinja_parser *p, cri_node *n)
{
    cri_nodes items = {0};
    cr_status status = with_items(p, &items);
    n->kind = JN_WITH;
    n->list = cri_jinja_nodes_take(p, &items, &n->num);
    return status == CR_OK ? parse_body_to(p, n, "endwith") : status;
}

static cr_status parse_generation(cri_jinja_parser *p, cri_node *n)
{
    n->kind = JN_SCOPE;
    return parse_macro_body(p, n, "endgeneration");
}

static cr_status parse_jump(cri_jinja_parser *p, cri_node *n)
{
    n->kind = strcmp(p->t[-1].s, "break") == 0 ? JN_BREAK : JN_CONTINUE;
    return p->num_loops ? CR_OK : cri_jinja_parse_fail(p, "break or continue outside of a loop");
}

static cr_status parse_statement(cri_jinja_parser *p, cri_node **out)
{
    static const struct {
        const char *name;
        cr_status (*parse)(cri_jinja_parser *p, cri_node *n);
    } all[] = {{"if", parse_if},           {"for", parse_for},
               {"set", parse_set},         {"macro", parse_macro},
               {"call", parse_call_block}, {"filter", parse_filter_block},
               {"with", parse_with},       {"generation", parse_generation},
               {"break", parse_jump},      {"continue", parse_jump}};

    *out = cri_jinja_node_new(p, JN_TEXT);
    for (size_t i = 0; i < CR_COUNT(all); i++)
        if (cri_jinja_skip_name(p, all[i].name)) return all[i].parse(p, *out);
    return cri_jinja_parse_fail(p, "this tag is not known or not supported");
}

cr_status cr_jinja_parse(const char *text, size_t num_bytes, const char *what, cr_jinja **out,
                         cr_err *err)
{
    cr_jinja *jinja = CR_NEW(cr_jinja);
    cri_token *tokens;
    size_t num;
    cr_status status;

    jinja->arena = cr_arena_create(64 * 1024);
    jinja->what = cr_strdup(what);
    status = cri_jinja_lex(text, num_bytes, what, jinja->arena, &tokens, &num, err);
    if (status == CR_OK) {
        cri_jinja_parser p = {
            .t = tokens, .arena = jinja->arena, .what = what, .depth = 1, .err = err};
        jinja->root = cri_jinja_node_new(&p, JN_SCOPE);
        status = parse_body(&p, jinja->root, NULL);
    }
    cr_free(tokens);
    *out = status == CR_OK ? jinja : NULL;
    if (status != CR_OK) cr_jinja_free(jinja);
    return status;
}

void cr_jinja_free(cr_jinja *jinja)
{
    if (!jinja) return;
    cr_arena_destroy(jinja->arena);
    cr_free(jinja->what);
    cr_free(jinja);
}
