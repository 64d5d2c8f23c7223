/* print_float.h -- a float32 as printf's "%.9g" writes it, byte for byte: nine digits read back as the same float. */
#ifndef CR_PRINT_FLOAT_H
#define CR_PRINT_FLOAT_H

#include "base/base.h"

enum { CR_FLOAT_TEXT = 24 };

/* Any float. Returns the length. */
size_t cr_print_float(float x, char out[CR_FLOAT_TEXT]);

#endif
