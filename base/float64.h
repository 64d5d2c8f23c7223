/* float64.h -- included before everything in a build of float64 (preset float64): the type `float` has 64 bits there.
 *
 * What models compute, keep and send is `float`; in this build all of it is float64, kernels of the baseline among it, so that a formula
 * can be held to a reference within 1e-9 instead of what float32 rounds away. It is for tests: one variant of device cpu, no 16-bit
 * dtypes; a dtype that says fp32 is the 64 bits, and safetensors have it as F64.
 *
 * Headers of the C library come first: they keep the float of their ABI. No other library that is used passes a float.
 */
#ifndef CR_FLOAT64_H
#define CR_FLOAT64_H

#include <float.h>
#include <math.h>
#include <stdlib.h>

#define CR_FLOAT64 1

typedef float cr_float32;

#define float double
#undef FLT_MAX
#define FLT_MAX DBL_MAX
#define expf    exp
#define fabsf   fabs
#define logf    log
#define powf    pow
#define sqrtf   sqrt

#endif
