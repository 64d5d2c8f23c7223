/* each_cpu.h -- runs a test of kernels on every instruction set of this CPU, or on that of CROLL_CPU. */
#ifndef CR_TEST_EACH_CPU_H
#define CR_TEST_EACH_CPU_H

#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>

const char *cri_cpu_variant(size_t i); /* of kernels/cpu/cpu.h */

/* run opens its device itself and returns how many tests failed. */
static inline int on_each_cpu(int (*run)(void))
{
    const char *wanted = getenv("CROLL_CPU"), *name;
    int num_failed = 0;

    if (wanted && wanted[0]) return run();
    for (size_t i = 0; (name = cri_cpu_variant(i)); i++) {
        cr_device *probe;
        cr_err why = {0};
        setenv("CROLL_CPU", name, 1);
        if (cr_device_open(cr_device_default(), 1, &probe, &why) != CR_OK) {
            printf("[ NOT RUN  ] %s: %s\n", name, why.msg);
            if (i == 0) num_failed++;
            continue;
        }
        cr_device_close(probe);
        printf("[ VARIANT  ] %s\n", name);
        fflush(stdout);
        num_failed += run();
    }
    return num_failed;
}

/* A run of one group of tests, with its device of one thread in *opened; what it returns is returned. */
static inline int with_device(cr_device **opened, int (*group)(void))
{
    cr_err why = {0};
    int num_failed;

    if (cr_device_open(cr_device_default(), 1, opened, &why) != CR_OK) return 1;
    num_failed = group();
    cr_device_close(*opened);
    return num_failed;
}

#endif
