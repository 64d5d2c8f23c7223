/* hosts_print.h -- the part of a plan about several hosts; inside the room. Pure functions. */
#ifndef CR_HOSTS_PRINT_H
#define CR_HOSTS_PRINT_H

#include "plan/whole.h"

void cr_plan_hosts_text(const cr_plan *p, cr_buf *out);
/* ,"hosts":{..} after a member of an object */
void cr_plan_hosts_json(const cr_plan *p, cr_buf *out);

#endif
