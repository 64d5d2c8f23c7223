/* shapes.h -- config.json of models that example files name, for `croll plan` without a download.
 *
 * Shapes only: what a plan counts with. A run needs the MODEL folder itself.
 */
#ifndef CR_SHAPES_H
#define CR_SHAPES_H

#include "base/json.h"

/* The config.json of a published name (Qwen/Qwen3-8B-Base): owned by the caller; NULL: not known. */
json_t *cr_shape_config(const char *name);

#endif
