/* train_wraps.h -- wrap policies of small trainings (see train.h). */
#ifndef TRAIN_WRAPS_H
#define TRAIN_WRAPS_H

#include "strategies/units.h"

static const char *const part_classes[] = {"Qwen3Attention", "Qwen3MLP", "Qwen3RMSNorm"};
static const char *const outer_classes[] = {"Qwen3Model", "Qwen3DecoderLayer"};
static const cr_wrap_policy parts = {part_classes, 3, true, true, .is_nested = true},
                            outer = {outer_classes, 2, false, true, .is_nested = true},
                            model_only = {outer_classes, 1, false, false, .is_nested = true},
                            by_size = {.min_elems = 2000};

#endif
