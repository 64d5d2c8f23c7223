/* check_near.h -- comparisons for tests that NaN cannot pass (cmocka's float asserts let it). */
#ifndef CR_CHECK_NEAR_H
#define CR_CHECK_NEAR_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* after the four above, as cmocka asks */
#include <cmocka.h>

static inline void check_near_at(double got, double want, double tolerance, const char *file,
                                 int line)
{
    if (!(fabs(got - want) <= tolerance)) {
        print_error("%s:%d: got %.9g, want %.9g, tolerance %.3g\n", file, line, got, want,
                    tolerance);
        _fail(file, line);
    }
}
#define check_near(got, want, tolerance) \
    check_near_at((got), (want), (tolerance), __FILE__, __LINE__)

#endif
