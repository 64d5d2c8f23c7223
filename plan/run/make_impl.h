/* make_impl.h -- parts of make.c. */
#ifndef CRI_PLAN_MAKE_H
#define CRI_PLAN_MAKE_H

#include "base/args.h"
#include "plan/run/hosts.h"

/* p->config, with --world's devices. What stops a run and not its plan becomes a warning in p->d. */
CR_MUST cr_status cri_plan_load(cr_plan *p, const cr_words *words, cr_err *err);
/* p->largest: the largest micro-batch that fits into p->memory. */
CR_MUST cr_status cri_plan_search(cr_plan *p, cr_err *err);
/* p->hosts.choice: other sizes of the shard group, over several hosts. */
CR_MUST cr_status cri_plan_choose(cr_plan *p, cr_err *err);

#endif
