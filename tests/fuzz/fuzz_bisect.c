/* fuzz_bisect.c -- arbitrary bytes as the files of two runs, apart by NULs: metrics, samples, and of a checkpoint its
 * manifest, the index of a role's state and moments. The runs are compared, or refused with a sentence; a run is equal to itself. */
#include "pipelines/bisect/bisect.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/mutator.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void compare(const char *a, const char *b, double tolerance)
{
    char *folder[2] = {cr_path_join(fuzz_folder, a), cr_path_join(fuzz_folder, b)};
    const cr_bisect_args args = {{folder[0], folder[1]}, tolerance};
    cr_bisect_result r;
    cr_err err = {0};

    if (cr_bisect(&args, &r, &err) != CR_OK)
        CR_CHECK(err.msg[0], "a failure without a sentence");
    else
        CR_CHECK(strcmp(a, b) != 0 || (!r.is_found && r.end[0] == r.end[1]), "%s: %s %s %s", a,
                 r.place, r.value[0], r.value[1]);
    cr_free(folder[0]);
    cr_free(folder[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {
        "a/metrics.jsonl",
        "b/metrics.jsonl",
        "a/rollouts/step-000000.jsonl",
        "b/rollouts/step-000000.jsonl",
        "a/checkpoint-0/manifest.json",
        "b/checkpoint-0/manifest.json",
        "a/checkpoint-0/state/x.json",
        "b/checkpoint-0/state/x.json",
        "a/checkpoint-0/state/x.m",
        "b/checkpoint-0/state/x.m",
    };

    if (!fuzz_folder[0]) {
        static const char *const inner[] = {"b/rollouts", "a/checkpoint-0/state",
                                            "b/checkpoint-0/state"};
        fuzz_begin("a/rollouts");
        for (size_t i = 0; i < CR_COUNT(inner); i++) {
            char *path = cr_path_join(fuzz_folder, inner[i]);
            cr_err err = {0};
            CR_CHECK(cr_mkdirs(path, &err) == CR_OK, "%s", err.msg);
            cr_free(path);
        }
        fuzz_put("a/config.yaml", "seed: 1\n", 8);
        fuzz_put("b/config.yaml", "seed: 2\n", 8);
        cr_log_setup(CR_LOG_ERROR, NULL);
    }
    fuzz_put_all(names, CR_COUNT(names), data, size);
    compare("a", "a", 0);
    compare("a", "b", 0);
    compare("a", "b", 1e-3);
    return 0;
}
