/* reward.c -- a reward program in C: 1 for the ground truth in the last \boxed{..}.
 *
 *     cc -O2 -o reward examples/rewards/reward.c -ljansson       exec: ./reward
 *
 * JSON is read by jansson, which croll needs, too. A line that cannot be scored is answered with status "error": it is left out of
 * the means, where a score of 0 would count as wrong. */
#define _POSIX_C_SOURCE 200809L
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The content of the last \boxed{..} without braces in it, or NULL. */
static const char *last_box(const char *response, size_t *num_bytes)
{
    static const char mark[] = "\\boxed{";
    const char *found = NULL;

    for (const char *p = response; (p = strstr(p, mark)) != NULL;) {
        size_t n = strcspn(p += strlen(mark), "{}");
        if (p[n] != '}') continue;
        found = p;
        *num_bytes = n;
    }
    return found;
}

static json_t *score(const json_t *row)
{
    const char *response = json_string_value(json_object_get(row, "response")),
               *gold = json_string_value(json_object_get(row, "ground_truth")), *box;
    size_t n = 0;

    if (!response || !gold)
        return json_pack("{s:s, s:s}", "status", "error", "detail",
                         "no text response or ground_truth");
    box = last_box(response, &n);
    return json_pack("{s:i}", "score", box && n == strlen(gold) && memcmp(box, gold, n) == 0);
}

int main(void)
{
    char *line = NULL;
    size_t capacity = 0;

    while (getline(&line, &capacity, stdin) > 0) {
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL), *answer;
        if (!row) continue; /* croll writes no such line */
        answer = score(row);
        json_object_set(answer, "id", json_object_get(row, "id"));
        json_dumpf(answer, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout); /* stdout is a pipe: without this croll waits */
        json_decref(answer);
        json_decref(row);
    }
    free(line);
    return 0;
}
