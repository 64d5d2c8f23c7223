/* jinja_tree.h -- a template before it is rendered: tokens, constants, the tree.
 *
 *   text -> jinja_lex.c -> tokens -> jinja_parse.c, jinja_statements.c -> tree
 *
 * All of it lives in the template's arena.
 */
#ifndef CR_JINJA_TREE_H
#define CR_JINJA_TREE_H

#include "jinja/jinja.h"

/* ---- bounds ---- */
enum {
    CRI_MAX_DEPTH = 800,                /* nested evaluations: some 80 macro calls */
    CRI_MAX_NESTING = 150,              /* of the template's text */
    CRI_MAX_STEPS = 60 * 1000 * 1000,   /* nodes evaluated, and bytes looked at / 16 */
    CRI_MAX_BYTES = 512 * 1024 * 1024,  /* of values */
    CRI_MAX_OUTPUT = 128 * 1024 * 1024, /* of text */
    CRI_MAX_RANGE = 100000,             /* as Jinja's sandbox */
    CRI_MAX_PARAMS = 8,
};

/* ---- values ---- */

typedef enum cri_jinja_kind {
    JV_ABSENT, /* an argument not given; never a template's value */
    JV_UNDEFINED,
    JV_NONE,
    JV_BOOL,
    JV_INT,
    JV_FLOAT,
    JV_STRING,
    JV_SEQ,
    JV_DICT,
    JV_NAMESPACE,
    JV_LOOP,
    JV_MACRO,
    JV_METHOD,
    JV_FUNCTION,
} cri_jinja_kind;

typedef enum cri_seq_kind { JQ_LIST, JQ_TUPLE, JQ_RANGE, JQ_VIEW, JQ_ITERATOR } cri_seq_kind;

typedef struct cri_value {
    cri_jinja_kind kind;
    bool is_safe; /* strings: made by the filter `safe` */
    union {
        bool b;
        int64_t i;
        double f;
        struct {
            const char *s; /* UTF-8; also an undefined value's name, a function's name */
            size_t n;
        };
        struct cri_jinja_seq *seq;
        struct cri_dict *dict; /* also a namespace's */
        struct cri_loop *loop;
        struct cri_macro *macro;
        struct cri_method *method;
    };
} cri_value;

static inline cri_value cri_jinja_undefined(const char *name)
{
    return (cri_value){.kind = JV_UNDEFINED, .s = name};
}
static inline cri_value cri_jinja_none(void)
{
    return (cri_value){.kind = JV_NONE};
}
static inline cri_value cri_jinja_bool(bool b)
{
    return (cri_value){.kind = JV_BOOL, .b = b};
}
static inline cri_value cri_jinja_int(int64_t i)
{
    return (cri_value){.kind = JV_INT, .i = i};
}
static inline cri_value cri_jinja_float(double f)
{
    return (cri_value){.kind = JV_FLOAT, .f = f};
}
static inline cri_value cri_jinja_string(const char *s, size_t n)
{
    return (cri_value){.kind = JV_STRING, .s = s, .n = n};
}

/* ---- the tree ---- */

typedef enum cri_node_kind {
    JN_CONST,
    JN_NAME,
    JN_LIST,
    JN_TUPLE,
    JN_DICT, /* list: keys and values in turn */
    JN_ATTR,
    JN_ITEM,
    JN_SLICE,   /* list: start, stop, step, each may be NULL */
    JN_CALL,    /* a(list) */
    JN_FILTER,  /* a | text(list); a NULL: the body of a block */
    JN_TEST,    /* a is text(list) */
    JN_KEYWORD, /* text=a, among arguments */
    JN_NOT,
    JN_NEG,
    JN_POS,
    JN_AND,
    JN_OR,
    JN_BINARY, /* op */
    JN_CONCAT,
    JN_COMPARE, /* a, then list of JN_OPERAND */
    JN_OPERAND, /* op, a */
    JN_COND,    /* b if a else c */
    JN_NS_REF,  /* text.attr, as a target */
    JN_TEXT,
    JN_OUTPUT,
    JN_IF,         /* list of JN_BRANCH */
    JN_BRANCH,     /* a: condition or NULL */
    JN_FOR,        /* for a in b if c: body, d: JN_BRANCH of else */
    JN_SET,        /* a = b */
    JN_SET_BLOCK,  /* a = body | b */
    JN_MACRO,      /* text(list of JN_PARAM); value: whether it names its caller */
    JN_PARAM,      /* text=a */
    JN_CALL_BLOCK, /* a: the call; list: parameters of the caller */
    JN_FILTER_BLOCK,
    JN_WITH,  /* list: targets and values in turn */
    JN_SCOPE, /* generation */
    JN_BREAK,
    JN_CONTINUE,
} cri_node_kind;

typedef enum cri_op {
    JO_ADD,
    JO_SUB,
    JO_MUL,
    JO_DIV,
    JO_FLOORDIV,
    JO_MOD,
    JO_POW,
    JO_EQ,
    JO_NE,
    JO_LT,
    JO_LE,
    JO_GT,
    JO_GE,
    JO_IN,
    JO_NOT_IN,
} cri_op;

typedef struct cri_node {
    cri_node_kind kind;
    cri_op op;
    int line;
    const char *text, *attr; /* names, NUL-terminated */
    cri_value value;
    struct cri_node *a, *b, *c, *d;
    struct cri_node **list, **body;
    size_t num, num_body;
} cri_node;

struct cr_jinja {
    cr_arena *arena;
    char *what;
    cri_node *root; /* JN_SCOPE */
};

/* ---- tokens ---- */

typedef enum cri_token_kind {
    JT_EOF,
    JT_DATA,
    JT_VAR_BEGIN,
    JT_VAR_END,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_NAME,
    JT_STRING,
    JT_INT,
    JT_FLOAT,
    JT_OP, /* s: its characters */
} cri_token_kind;

typedef struct cri_token {
    cri_token_kind kind;
    int line;
    const char *s; /* in the arena, NUL-terminated */
    size_t n;
    int64_t i;
    double f;
} cri_token;

/* *tokens: to cr_free, also after a failure; the last is JT_EOF. Their texts are in the arena. */
CR_MUST cr_status cri_jinja_lex(const char *text, size_t num_bytes, const char *what,
                                cr_arena *arena, cri_token **tokens, size_t *num, cr_err *err);

#endif
