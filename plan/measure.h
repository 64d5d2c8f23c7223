/* measure.h -- how fast the device of this machine is, measured in seconds (`croll doctor --measure`). One thread. */
#ifndef CR_PLAN_MEASURE_H
#define CR_PLAN_MEASURE_H

#include "base/base.h"

enum { CR_MEASURED = 200 };
/* As one rank has the device: one thread on cpu. path gets what cr_rates_read reads, found a line for people. */
CR_MUST cr_status cr_rates_measure(const char *device, const char *path, char found[CR_MEASURED],
                                   cr_err *err);

#endif
