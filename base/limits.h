/* limits.h -- what the machine lets this process have. */
#ifndef CR_LIMITS_H
#define CR_LIMITS_H

#include "base/base.h"

/* The number of a file with lines "name number" (name with its colon, if it has one), such as /proc/meminfo; 0: none. */
int64_t cr_find_number(const char *path, const char *name);
/* Bytes of memory that the machine has, or the cgroup of this process if that is less. */
int64_t cr_memory_limit(void);
/* Of them those that this process can still get: of the machine, its cgroups, its address space and its data the least. */
int64_t cr_memory_left(void);
/* CPU time that the cgroup of this process gives, or one above it (docker --cpus, a limit of Kubernetes), in CPUs; 0: no limit. */
double cr_cpu_quota(void);

#endif
