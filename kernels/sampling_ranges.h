/* sampling_ranges.h -- the parameters of sampling: default, smallest and largest value of each. Keys of a file (configs/keys.c), fields of
 * a request (serve/fields.c), options of `croll generate` and the check of the engine all take them from this table.
 */
#ifndef CR_SAMPLING_RANGES_H
#define CR_SAMPLING_RANGES_H

/* parameter: default, min, max */
#define CR_TEMPERATURE        1, 0, 1e6 /* 0: greedy; else at least CR_MIN_TEMPERATURE */
#define CR_TOP_P              1, 1e-9, 1
#define CR_TOP_K              -1, -1, 2147483647 /* 0 and -1: off */
#define CR_MIN_P              0, 0, 1
#define CR_REPETITION_PENALTY 1, 1e-6, 1e6
#define CR_PRESENCE_PENALTY   0, -2, 2
#define CR_FREQUENCY_PENALTY  0, -2, 2
#define CR_MAX_NEW_TOKENS     8192, 1, 2147483647
#define CR_MIN_NEW_TOKENS     0, 0, 2147483647
#define CR_NUM_SAMPLES        1, 1, 2147483647 /* of a prompt */

#define CR_MIN_TEMPERATURE 1e-6f /* below it logits that are divided by it are no numbers */

/* Parts of a row of the table. */
#define CR_DEFAULT_OF(...)                   CR_DEFAULT_OF_(__VA_ARGS__)
#define CR_DEFAULT_OF_(standard, min, max)   standard
#define CR_DEFAULT_TEXT(...)                 CR_DEFAULT_TEXT_(__VA_ARGS__)
#define CR_DEFAULT_TEXT_(standard, min, max) #standard
#define CR_RANGE_TEXT(...)                   CR_RANGE_TEXT_(__VA_ARGS__) /* "MIN..MAX" */
#define CR_RANGE_TEXT_(standard, min, max)   #min ".." #max
#define CR_MIN_OF(...)                       CR_MIN_OF_(__VA_ARGS__)
#define CR_MIN_OF_(standard, min, max)       min
#define CR_MAX_OF(...)                       CR_MAX_OF_(__VA_ARGS__)
#define CR_MAX_OF_(standard, min, max)       max

#endif
