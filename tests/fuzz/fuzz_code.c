/* fuzz_code.c -- arbitrary bytes as a row of a code domain, as a response with a program, as what a program or a service answers. What is
 * equal is equal both ways round, and a row that is read has cases. */
#include "rewards/code/cases.h"
#include "scorers/code/code.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = cr_strndup((const char *)data, size), *other = text + strcspn(text, "|"), *code;
    char language[16], detail[160];
    json_t *row = NULL;
    cr_code_row cases;
    cr_err err = {0};
    int verdict;

    if (cr_json_parse(text, strlen(text), NULL, &row, &err) == CR_OK &&
        cr_code_row_read(row, &cases, &err) == CR_OK) {
        CR_CHECK(cases.num_cases > 0, "no cases");
        for (size_t i = 0; i < cases.num_cases; i++)
            CR_CHECK(cases.cases[i].test || (cases.cases[i].input && cases.cases[i].want),
                     "case %zu", i);
        cr_code_row_free(&cases);
    }
    json_decref(row);
    code = cr_code_of_response(text, strlen(text));
    cr_code_language(text, strlen(text), language);
    CR_CHECK(!code || *code, "an empty program");
    cr_free(code);
    verdict = cr_code_read_answer(text, strlen(text), "1", detail);
    CR_CHECK(verdict >= -1 && verdict <= 1, "%d", verdict);
    if (*other) *other++ = '\0';
    CR_CHECK(cr_code_same_output(text, text) &&
                 cr_code_same_output(text, other) == cr_code_same_output(other, text),
             "outputs");
    CR_CHECK(cr_code_same_value(text, other) || strcmp(text, other) != 0, "values");
    cr_free(text);
    return 0;
}
