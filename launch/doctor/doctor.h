/* doctor.h -- `croll doctor`: what a machine offers a run, and what each finding means; or the checks of several hosts before a
 * run. Findings go to stdout, a line of JSON each with has_json. Arguments are borrowed; one thread.
 */
#ifndef CR_DOCTOR_H
#define CR_DOCTOR_H

#include "base/args.h"
#include "launch/hosts.h"

typedef struct cr_doctor {
    bool has_json;
    bool has_failed;    /* something that runs need is missing */
    const char *device; /* to look at; NULL: the default one, or that of a FILE */
} cr_doctor;

typedef enum cr_finding { CR_FINDING_FINE, CR_FINDING_NOTE, CR_FINDING_MISSING } cr_finding;
void cr_doctor_say(cr_doctor *d, const char *name, cr_finding v, const char *found,
                   const char *meaning);

/* This machine. */
CR_MUST cr_status cr_doctor_here(cr_doctor *d, cr_err *err);
/* Only cores. description: of another machine (cr_topology_read), or NULL. */
CR_MUST cr_status cr_doctor_cores(cr_doctor *d, const char *description, cr_err *err);
/* Several hosts. words: none, or the FILE of a run and keys. network: the user's, or NULL. */
CR_MUST cr_status cr_doctor_hosts(const cr_doctor *d, const cr_hosts_args *args,
                                  const char *network, const cr_words *words, cr_err *err);

#endif
