/* fuzz_reference.c -- arbitrary bytes as what services answer to a run: identity, log-probs, which are finite and not above
 * 0 if they are taken, and replies of a judge, whose score is 0 unless they are a verdict. */
#include "pipelines/service/service.h"
#include "scorers/judge/remote.h"
#include "scorers/judge/reply.h"

#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t first[] = {3, 2}, num_each[] = {2, 1};
    const cr_role_service_want want = {"0a", 2, 2, first, num_each};
    cr_role_service_want likeliest = want;
    const char *bytes = (const char *)data;
    static char words[] = "(?<yes>A+)|(?<no>B)", digit[] = "(?<score>\\d)", field[] = "a.b";
    static cr_judge_answer forms[] = {{NULL},
                                      {.max = 10, .is_number = true},
                                      {.pattern = words},
                                      {.pattern = digit, .max = 5, .is_number = true},
                                      {.field = field}};
    static cr_judge_reader readers[CR_COUNT(forms)];
    cr_role_service_identity id;
    cr_rule_result verdict;
    float out[6];
    int32_t ids[6];
    cr_err err = {0};

    if (cr_role_service_read_answer(bytes, size, &want, NULL, out, &err) == CR_OK)
        for (size_t i = 0; i < 3; i++)
            CR_CHECK(out[i] <= 0 && isfinite(out[i]), "%g was taken", (double)out[i]);
    err = (cr_err){0};
    likeliest.top = 2;
    likeliest.vocab_size = 7;
    if (cr_role_service_read_answer(bytes, size, &likeliest, ids, out, &err) == CR_OK)
        for (size_t i = 0; i < 6; i++)
            CR_CHECK(out[i] <= 0 && ids[i] < 7 && (ids[i] < 0 || isfinite(out[i])), "%d: %g",
                     ids[i], (double)out[i]);
    err = (cr_err){0};
    if (cr_role_service_read_identity(bytes, size, size % 2 ? "a" : NULL, &id, &err) == CR_OK)
        CR_CHECK(strlen(id.weights) < sizeof id.weights && id.model[0], "an identity");
    err = (cr_err){0};
    for (size_t i = 0; i < CR_COUNT(forms); i++) {
        if (!readers[i].form)
            CR_CHECK(cr_judge_reader_open(&readers[i], &forms[i], &err) == CR_OK, "");
        cr_judge_read(&readers[i], bytes, size, &verdict);
        CR_CHECK(verdict.score >= 0 && verdict.score <= 1, "%g", verdict.score);
        CR_CHECK(verdict.outcome == CR_OUTCOME_OK || verdict.score == 0, "%s",
                 cr_outcome_name(verdict.outcome));
    }
    for (int i = 0; i < 2; i++) {
        char *path;
        (void)cr_remote_read(bytes, size, i, &path, &verdict);
        CR_CHECK(verdict.outcome == CR_OUTCOME_OK || verdict.score == 0, "%s",
                 cr_outcome_name(verdict.outcome));
        CR_CHECK(!path || strcspn(path, " \r\n?#%") == strlen(path), "%s", path);
        cr_free(path);
    }
    return 0;
}
