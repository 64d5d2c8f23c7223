/* fuzz_math.c -- responses are written by a model in training: any text, of any depth and size.
 *
 * The bytes up to the first NUL are the ground truth, the rest is the response, once as it is and
 * once in a box. A verdict takes a bounded time, or says that it could not be made.
 */
#include "rewards/math/math.h"
#include "rewards/rules.h"

#include <string.h>

static void score(const char *gold, const char *response, size_t num_bytes)
{
    cr_rule_result r;
    double start = cr_now_s();

    cr_math_rule("", response, num_bytes, gold, start + 2, NULL, &r);
    if (r.score != 0 && r.score != 1) __builtin_trap();
    if (r.outcome != CR_OUTCOME_OK && (r.score != 0 || !r.detail[0])) __builtin_trap();
    if (cr_now_s() - start > 8) __builtin_trap(); /* under a sanitizer, on a busy machine */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t n = strnlen((const char *)data, size);
    char *gold = cr_strndup((const char *)data, n);
    const char *response = (const char *)data + n + (n < size);
    cr_buf boxed = {0};

    score(gold, response, size - n - (n < size));
    cr_buf_adds(&boxed, "a\n\n\\boxed{");
    cr_buf_add(&boxed, response, size - n - (n < size));
    cr_buf_adds(&boxed, "}");
    score(gold, boxed.data, boxed.num_bytes);
    score(boxed.data, boxed.data, boxed.num_bytes);
    cr_buf_free(&boxed);
    cr_free(gold);
    return 0;
}
