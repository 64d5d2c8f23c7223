/* plan_print.h -- a finished plan as text for people, as one JSON object, or as a page with pictures
 * (plan_html.c). Pure functions. */
#ifndef CR_PLAN_PRINT_H
#define CR_PLAN_PRINT_H

#include "plan/plan.h"

typedef struct cr_plan {
    const char *path;      /* borrowed */
    int64_t world, memory; /* as asked for; 0: not */
    char **override;       /* owned, as the texts in it, NULL at the end */
    cr_config config;
    cr_diagnostics d;
    bool is_sft, with_moments;
    int64_t num_dp, num_samples; /* of the trained role; of a step */
    int64_t rank_samples;        /* most samples of a data-parallel rank */
    cr_plan_batch batch;
    cr_plan_role
        *role; /* [num_roles] owned; the trained one first, then those of roles, then judges */
    const cr_worker_config **worker; /* [num_roles] the array is owned */
    size_t num_roles;
    int64_t device_peak;    /* of the fullest device, whose roles take turns; judges do not */
    int64_t largest;        /* micro-batch that fits memory; 0: none does */
    int64_t largest_tokens; /* likewise, cut by tokens */
    bool is_limit;          /* nothing larger was looked at */
} cr_plan;

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
