/* curriculum.c -- the block curriculum: which rows are drawn. */
#include "configs/bind.h"

#include <math.h>
#include <stdio.h>

static void note_unused(const cr_node *block, const char *key, const char *why, cr_diagnostics *d)
{
    char name[64];

    snprintf(name, sizeof name, "curriculum.%s", key);
    if (cri_is_in_file(block, key))
        cr_diagnose_unused(d, cr_node_get(block, key)->place, name, "%s", why);
}

void cri_bind_curriculum(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    const cr_node *block = cri_block_of(c, root, "curriculum", "curriculum", d);
    const bool has_easy = cri_is_given(block, "easy_threshold"),
               has_hard = cri_is_given(block, "hard_threshold");
    cr_curriculum_keys *k = &c->curriculum;

    *k = (cr_curriculum_keys){
        .max_solved = cri_int_of(block, "max_solved"),
        .solved_score = cri_real_of(block, "solved_score"),
        .easy_threshold = has_easy ? cri_real_of(block, "easy_threshold") : INFINITY,
        .easy_fraction = cri_real_of(block, "easy_fraction"),
        .hard_threshold = has_hard ? cri_real_of(block, "hard_threshold") : -INFINITY,
        .hard_fraction = cri_real_of(block, "hard_fraction")};
    k->is_on = (k->max_solved || has_easy || has_hard) && !c->rollouts_from && !c->val_only;
    if (!k->max_solved) note_unused(block, "solved_score", "there is no max_solved", d);
    if (!has_easy) note_unused(block, "easy_fraction", "there is no easy_threshold", d);
    if (!has_hard) note_unused(block, "hard_fraction", "there is no hard_threshold", d);
    if (k->hard_threshold >= k->easy_threshold)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "curriculum"),
                    "curriculum.hard_threshold is %g: it must be below easy_threshold %g",
                    k->hard_threshold, k->easy_threshold);
}
