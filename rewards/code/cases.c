/* cases.c -- see cases.h. */
#include "rewards/code/cases.h"

#include <stdio.h>
#include <string.h>

enum { MAX_CASES = 10000 };

/* ---- rows ---- */

/* A text whose end is its first NUL: those in it become U+FFFD. */
static void add_text(cr_buf *out, const char *text, size_t num_bytes)
{
    size_t n;

    for (size_t at = 0; at <= num_bytes; at += n + 1) {
        if (at) cr_buf_adds(out, "\xEF\xBF\xBD");
        n = strnlen(text + at, num_bytes - at);
        cr_buf_add(out, text + at, n);
    }
}

/* A text, or a list of lines. */
static char *text_of(const json_t *v)
{
    cr_buf out = {0};

    if (cr_json_digits(v)) return NULL;
    if (json_is_string(v)) add_text(&out, json_string_value(v), json_string_length(v));
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *line = json_array_get(v, i);
        if (!json_is_string(line) || cr_json_digits(line)) {
            cr_buf_free(&out);
            return NULL;
        }
        if (i) cr_buf_addc(&out, '\n');
        add_text(&out, json_string_value(line), json_string_length(line));
    }
    return out.data;
}

/* A text as it is, lines as one text, and any other value as JSON. */
static char *value_of(const json_t *v)
{
    cr_err ignored = {0};
    char *text = text_of(v);
    cr_buf out = {0};

    if (text || !v) return text;
    cr_note(cr_json_add_value(&out, v, &ignored));
    return out.data;
}

static const json_t *first_of(const json_t *v, const char *const *names)
{
    for (; *names; names++)
        if (json_object_get(v, *names)) return json_object_get(v, *names);
    return NULL;
}

static cr_status read_case(const json_t *v, size_t number, cr_code_row *row, cr_err *err)
{
    static const char *const inputs[] = {"stdin", "input", NULL}, *const wants[] = {
                                                                      "expected_stdout", "output",
                                                                      "expected_output", NULL};
    cr_code_case *c = &row->cases[row->num_cases++];
    char *prefix;

    if (row->kind == CR_CASE_IO || row->kind == CR_CASE_CALL) {
        c->input = value_of(first_of(v, inputs));
        c->want = value_of(first_of(v, wants));
        if (!c->input) c->input = cr_strdup("");
        if (c->want) return CR_OK;
        return cr_fail(err, CR_EFORMAT, "case %zu of test_cases has no expected_stdout", number);
    }
    c->test = text_of(json_is_object(v) ? json_object_get(v, "assert_code") : v);
    if (!c->test || !c->test[strspn(c->test, " \t\r\n")])
        return cr_fail(err, CR_EFORMAT, "case %zu of test_cases has no assert_code", number);
    prefix = text_of(json_object_get(v, "import_prefix"));
    if (prefix) {
        char *whole = cr_asprintf("%s\n%s", prefix, c->test);
        cr_free(c->test);
        c->test = whole;
    }
    cr_free(prefix);
    c->entry = text_of(json_object_get(v, "entry_point"));
    return CR_OK;
}

/* {"inputs": [..], "outputs": [..], "fn_name": ..}: cases in two lists. */
static cr_status read_lists(const json_t *v, cr_code_row *row, cr_err *err)
{
    const json_t *in = json_object_get(v, "inputs"), *out = json_object_get(v, "outputs");
    const char *function = json_string_value(json_object_get(v, "fn_name"));
    size_t num = json_array_size(in);

    if (num == 0 || num != json_array_size(out) || num > MAX_CASES)
        return cr_fail(err, CR_EFORMAT, "test_cases has %zu inputs and %zu outputs", num,
                       json_array_size(out));
    if (function && !row->function) row->function = cr_strdup(function);
    row->kind = row->function ? CR_CASE_CALL : CR_CASE_IO;
    row->cases = CR_NEW_ARRAY(cr_code_case, num);
    for (size_t i = 0; i < num; i++) {
        cr_code_case *c = &row->cases[row->num_cases++];
        const json_t *a = json_array_get(in, i), *b = json_array_get(out, i);
        cr_buf lines = {0};
        cr_err ignored = {0};
        for (size_t k = 0; row->function && json_is_array(a) && k < json_array_size(a); k++) {
            cr_note(cr_json_add_value(&lines, json_array_get(a, k), &ignored));
            cr_buf_addc(&lines, '\n');
        }
        c->input = lines.data ? lines.data : value_of(a);
        c->want = value_of(b);
        if (row->function && json_is_array(b)) { /* of a value, not of lines */
            cr_buf value = {0};
            cr_note(cr_json_add_value(&value, b, &ignored));
            cr_free(c->want);
            c->want = value.data;
        }
        if (!c->input || !c->want)
            return cr_fail(err, CR_EFORMAT, "test_cases: case %zu is empty", i);
    }
    return CR_OK;
}

/* The kind of ROLL's names, or without a name that of the first case. */
static cr_status find_kind(const char *type, const json_t *cases, cr_code_row *row, cr_err *err)
{
    static const struct {
        const char *name;
        cr_case_kind kind;
    } kinds[] = {
        {"assert", CR_CASE_TEST},   {"pytest", CR_CASE_TEST}, {"check_based", CR_CASE_TEST},
        {"check", CR_CASE_TEST},    {"text", CR_CASE_TEXT},   {"input", CR_CASE_IO},
        {"stdin", CR_CASE_IO},      {"stdio", CR_CASE_IO},    {"stdin_stdout", CR_CASE_IO},
        {"call_based", CR_CASE_IO}, {"call", CR_CASE_IO}};
    const json_t *first = json_array_get(cases, 0);
    size_t i = 0;

    row->kind =
        json_object_get(first, "assert_code") || json_is_string(first) ? CR_CASE_TEST : CR_CASE_IO;
    if (type && *type) {
        while (i < CR_COUNT(kinds) && strcmp(kinds[i].name, type) != 0)
            i++;
        if (i == CR_COUNT(kinds))
            return cr_fail(err, CR_EFORMAT,
                           "case_type is '%.40s' (known: assert, pytest, check_based, text, input, "
                           "call_based)",
                           type);
        row->kind = kinds[i].kind;
    }
    if (row->kind == CR_CASE_IO && row->function) row->kind = CR_CASE_CALL;
    if (row->kind == CR_CASE_IO && type && strncmp(type, "call", 4) == 0 && json_is_array(cases))
        return cr_fail(err, CR_EFORMAT, "case_type is %s, but test_case_function is empty", type);
    return CR_OK;
}

static cr_status read_cases(const json_t *cases, const char *type, cr_code_row *out, cr_err *err)
{
    size_t num = json_array_size(cases);

    CR_TRY(find_kind(type, cases, out, err));
    if (json_is_object(cases) && json_object_get(cases, "inputs"))
        return read_lists(cases, out, err);
    if (!json_is_array(cases) || num == 0 || num > MAX_CASES)
        return cr_fail(err, CR_EFORMAT, "test_cases is not a list of 1 to %d cases", MAX_CASES);
    if (type && strncmp(type, "check", 5) == 0) num = 1; /* the others repeat it */
    out->cases = CR_NEW_ARRAY(cr_code_case, num);
    for (size_t i = 0; i < num; i++)
        CR_TRY(read_case(json_array_get(cases, i), i + 1, out, err));
    if (type && strncmp(type, "check", 5) == 0 && !out->cases[0].entry)
        return cr_fail(err, CR_EFORMAT, "case_type is %s, but the case has no entry_point", type);
    return CR_OK;
}

cr_status cr_code_row_read(const json_t *row, cr_code_row *out, cr_err *err)
{
    const json_t *cases = json_object_get(row, "test_cases");
    const char *function = json_string_value(json_object_get(row, "test_case_function")),
               *type = json_string_value(json_object_get(row, "case_type"));
    json_t *parsed = NULL;

    *out = (cr_code_row){.num_cases = 0};
    if (function && *function) out->function = cr_strdup(function);
    out->interpreter = text_of(json_object_get(row, "interpreter"));
    if (json_is_string(cases))
        cr_note(cr_json_parse_integers(json_string_value(cases), json_string_length(cases),
                                       "test_cases", CR_JSON_EXACT, &parsed, err));
    if (!cases || json_is_null(cases))
        cr_fail(err, CR_EFORMAT, "the column test_cases is missing (code rewards need test cases)");
    if (err->status == CR_OK) cr_note(read_cases(parsed ? parsed : cases, type, out, err));
    json_decref(parsed);
    if (err->status != CR_OK) cr_code_row_free(out);
    return err->status;
}

void cr_code_row_free(cr_code_row *row)
{
    for (size_t i = 0; i < row->num_cases; i++) {
        cr_free(row->cases[i].input);
        cr_free(row->cases[i].want);
        cr_free(row->cases[i].test);
        cr_free(row->cases[i].entry);
    }
    cr_free(row->cases);
    cr_free(row->function);
    cr_free(row->interpreter);
    *row = (cr_code_row){.num_cases = 0};
}

cr_status cr_code_check_row(const json_t *row, cr_err *err)
{
    cr_code_row want;

    CR_TRY(cr_code_row_read(row, &want, err));
    cr_code_row_free(&want);
    return CR_OK;
}

/* ---- responses ---- */

static const char *after_last(const char *text, const char *mark)
{
    for (const char *at = text; (at = strstr(at, mark));)
        text = at += strlen(mark);
    return text;
}

/* The next block "```LANGUAGE\n .. ```" or, cut off, to the end; false: none. */
static bool next_block(const char **at, const char **begin, size_t *num)
{
    const char *fence = strstr(*at, "```"), *end;

    if (!fence) return false;
    *begin = fence + 3 + strcspn(fence + 3, "\n");
    if (**begin) ++*begin;
    end = strstr(*begin, "```");
    *num = end ? (size_t)(end - *begin) : strlen(*begin);
    *at = end ? end + 3 : *begin + *num;
    return true;
}

static bool has_word(const char *text, size_t num, const char *word)
{
    size_t n = strlen(word);

    for (size_t i = 0; i + n <= num; i++)
        if (memcmp(text + i, word, n) == 0) return true;
    return false;
}

/* The block that counts; NULL: the text has no block. */
static const char *find_block(const char *text, size_t *num)
{
    const char *at = text, *begin, *found = NULL;
    size_t n;

    while (next_block(&at, &begin, &n)) {
        bool is_one = has_word(begin, n, "def ");
        if (found && !is_one) continue;
        found = begin;
        *num = n;
        if (is_one) break;
    }
    return found;
}

static char *solution_of(const char *text, size_t num_bytes)
{
    cr_buf copy = {0};
    char *solution;

    add_text(&copy, text, num_bytes);
    solution = cr_strdup(after_last(after_last(copy.data, "</think>"), "<|begin_of_solution|>"));
    cr_buf_free(&copy);
    return solution;
}

char *cr_code_of_response(const char *text, size_t num_bytes)
{
    static const char *const ends[] = {"<|endoftext|>", "<|im_end|>", "<pad>",
                                       "<|end_of_solution|>"};
    char *solution = solution_of(text, num_bytes), *code, *end;
    const char *block;
    size_t num;

    for (size_t i = 0; i < CR_COUNT(ends); i++)
        if ((end = strstr(solution, ends[i]))) *end = '\0';
    block = find_block(solution, &num);
    code = block ? cr_strndup(block, num) : cr_strdup(solution);
    cr_free(solution);
    if (code[strspn(code, " \t\r\n")]) return code;
    cr_free(code);
    return NULL;
}

void cr_code_language(const char *text, size_t num_bytes, char out[16])
{
    char *solution = solution_of(text, num_bytes);
    const char *block, *fence;
    size_t num, n;

    out[0] = '\0';
    block = find_block(solution, &num);
    if (block) {
        fence = block - 1; /* the newline after the fence's word */
        while (fence > solution && fence[-1] != '`')
            fence--;
        n = strcspn(fence, " \t\r\n{");
        snprintf(out, 16, "%.*s", n < 15 ? (int)n : 15, fence);
    }
    cr_free(solution);
}
