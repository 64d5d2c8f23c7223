/* jinja_parse.h -- what the two parts of the parser share (jinja_parse.c: expressions,
 * jinja_statements.c: tags). A function that fails has said where in p->err. */
#ifndef CR_JINJA_PARSE_H
#define CR_JINJA_PARSE_H

#include "jinja/jinja_tree.h"

typedef struct cri_jinja_parser {
    const cri_token *t; /* the current one; the last is JT_EOF */
    cr_arena *arena;
    const char *what;
    int depth, num_loops;
    int num_callers; /* times that the name caller was met */
    cr_err *err;
} cri_jinja_parser;

typedef struct cri_nodes {
    cri_node **node; /* to cr_free until taken */
    size_t num, capacity;
} cri_nodes;

cr_status cri_jinja_parse_fail(cri_jinja_parser *p, const char *why);
CR_MUST cr_status cri_jinja_parse_enter(cri_jinja_parser *p);
cri_node *cri_jinja_node_new(cri_jinja_parser *p, cri_node_kind kind);
void cri_jinja_nodes_add(cri_nodes *list, cri_node *n);
cri_node **cri_jinja_nodes_take(cri_jinja_parser *p, cri_nodes *list,
                                size_t *num); /* into the arena */
bool cri_jinja_at_op(const cri_jinja_parser *p, const char *op);
bool cri_jinja_at_name(const cri_jinja_parser *p, const char *name);
bool cri_jinja_skip_op(cri_jinja_parser *p, const char *op);
bool cri_jinja_skip_name(cri_jinja_parser *p, const char *name);
CR_MUST cr_status cri_jinja_expect_op(cri_jinja_parser *p, const char *op);
CR_MUST cr_status cri_jinja_expect_name(cri_jinja_parser *p, const char **name);

typedef enum cri_tuple_form { JF_FULL, JF_NO_IF, JF_TARGET, JF_NS_TARGET } cri_tuple_form;
/* One expression, or several with commas; end_name: a word that ends it. */
CR_MUST cr_status cri_jinja_parse_tuple(cri_jinja_parser *p, cri_tuple_form form,
                                        const char *end_name, bool in_parentheses, cri_node **out);
CR_MUST cr_status cri_jinja_parse_expression(cri_jinja_parser *p, bool with_if, cri_node **out);
CR_MUST cr_status cri_jinja_parse_primary(cri_jinja_parser *p, bool is_target, cri_node **out);
/* All "| name(arguments)" that follow; starts_inline: the first has no bar. */
CR_MUST cr_status cri_jinja_parse_filters(cri_jinja_parser *p, bool starts_inline, cri_node **node);

#endif
