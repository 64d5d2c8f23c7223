/* plan_print.h -- a finished plan as text for people, as one JSON object, or as a page with pictures
 * (plan_html.c). Pure functions. */
#ifndef CR_PLAN_PRINT_H
#define CR_PLAN_PRINT_H

#include "plan/whole.h"

/* Kinds of bytes, in the order in which a bar shows them. */
enum { CR_PLAN_KINDS = 9 };
typedef struct cr_plan_kind {
    char letter;
    const char *name, *text;
    size_t offset; /* in cr_plan_bytes */
} cr_plan_kind;
extern const cr_plan_kind cr_plan_kinds[CR_PLAN_KINDS];
int64_t cr_plan_part(const cr_plan_bytes *b, int kind);
const struct cr_plan_phase *cr_plan_peak_phase(const cr_plan_role *role);
/* The next warning in a tree's text (*at: role->tree.data at first): its start after "warning: ", its
 * length; NULL: no more. */
const char *cr_plan_next_warning(const char **at, size_t *num);

void cr_plan_text(const cr_plan *plan, bool with_tree, cr_buf *out);
void cr_plan_json(const cr_plan *plan, bool with_tree, cr_buf *out);
void cr_plan_html(const cr_plan *plan, cr_buf *out);

#endif
