/* make.h -- `croll plan`: a plan from the words of a command, and what is printed of it.
 *
 * What a role's rank does is counted by plan.h and roles.h; here are the file, the search for the largest micro-batch, and the
 * ways to print. Errors say which option or key they are of. The plan owns what it holds; options are borrowed. One thread.
 */
#ifndef CR_PLAN_MAKE_H
#define CR_PLAN_MAKE_H

#include "base/args.h"
#include "plan/run/hosts.h"

/* words: FILE, then key=value. p: zero but for world, num_gpus and with_moments. Prints what the file's keys say. */
CR_MUST cr_status cr_plan_make(cr_plan *p, const cr_words *words, const cr_plan_options *options,
                               cr_err *err);
/* To stdout, and to a page, unless it is NULL. */
CR_MUST cr_status cr_plan_show(const cr_plan *p, bool is_json, bool with_tree, const char *page,
                               cr_err *err);
void cr_plan_free(cr_plan *p); /* also after a failure */

#endif
