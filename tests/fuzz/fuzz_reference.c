/* fuzz_reference.c -- arbitrary bytes as what services answer to a run: identity, log-probs, which are finite and not above
 * 0 if they are taken, and replies of a judge, whose score is 0 unless they are a verdict. */
#include "pipelines/service/service.h"
#include "rewards/judge.h"

#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t first[] = {3, 2}, num_each[] = {2, 1};
    const cr_role_service_want want = {"0a", 2, 2, first, num_each};
    const char *bytes = (const char *)data;
    cr_role_service_identity id;
    cr_rule_result verdict;
    float out[3];
    cr_err err = {0};

    if (cr_role_service_read_answer(bytes, size, &want, out, &err) == CR_OK)
        for (size_t i = 0; i < 3; i++)
            CR_CHECK(out[i] <= 0 && isfinite(out[i]), "%g was taken", (double)out[i]);
    err = (cr_err){0};
    if (cr_role_service_read_identity(bytes, size, size % 2 ? "a" : NULL, &id, &err) == CR_OK)
        CR_CHECK(strlen(id.weights) < sizeof id.weights && id.model[0], "an identity");
    cr_judge_read(bytes, size, &verdict);
    CR_CHECK(strcmp(verdict.status, "ok") == 0 || verdict.score == 0, "%s", verdict.status);
    return 0;
}
