/* cases.h -- what a row of a code domain asks of a program: its test cases, in the forms that ROLL's rows have.
 *
 * Columns: case_type, test_cases (a list, or its JSON as text), test_case_function. Pure functions over any bytes.
 */
#ifndef CR_CODE_CASES_H
#define CR_CODE_CASES_H

#include "base/json.h"

typedef enum cr_case_kind {
    CR_CASE_IO,   /* stdin and stdout of a program: input, want */
    CR_CASE_CALL, /* a function: one argument a line in input, its value as JSON in want */
    CR_CASE_TEST, /* statements, or functions test_*: test */
    CR_CASE_TEXT  /* statements about the text of the response: test */
} cr_case_kind;

typedef struct cr_code_case {
    char *input, *want, *test; /* owned; NULL: not of its kind */
    char *entry;               /* the argument of the test's function check, or NULL */
} cr_code_case;

typedef struct cr_code_row {
    cr_case_kind kind;
    char *function;    /* of CR_CASE_CALL; owned */
    char *interpreter; /* the row's own, or NULL; owned */
    cr_code_case *cases;
    size_t num_cases;
} cr_code_row;

/* CR_EFORMAT: the row does not say how its programs are tested, or in a way that no program can pass. */
CR_MUST cr_status cr_code_row_read(const json_t *row, cr_code_row *out, cr_err *err);
void cr_code_row_free(cr_code_row *row);
/* It can be read. */
CR_MUST cr_status cr_code_check_row(const json_t *row, cr_err *err);

/* The program in a response: after the last </think> and <|begin_of_solution|> the first fenced block with "def ", or the first
 * one, or the text itself; NULL: nothing. Owned by the caller. */
char *cr_code_of_response(const char *text, size_t num_bytes);
/* The language that its fence names, "" if none; borrowed from nothing. */
void cr_code_language(const char *text, size_t num_bytes, char out[16]);

/* Is what a program wrote what it should have written? Blanks at the ends of lines and of the text do not count; words
 * that are numbers, both not written as integers, may differ by 1e-6 of the larger, or by 1e-6; an integer equals a number that
 * is it exactly (5 and 5.0, not 5 and 5.0000000001), as == of Python has it. */
bool cr_code_same_output(const char *got, const char *want);
/* Two values as JSON; what is not JSON is compared as text. Two numbers that are not integers may differ by 1e-9 of the
 * larger. */
bool cr_code_same_value(const char *got, const char *want);

#endif
