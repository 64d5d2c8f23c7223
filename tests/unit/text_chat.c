/* text_chat.c -- chat templates: texts as Transformers renders them, refusals, bounds.
 * The expected texts were made by jinja2 3.1 in Transformers' environment. With CROLL_CHAT_CASES=FILE
 * that file's cases are tried too; tests/parity/chat_templates.py makes one and runs this.
 * Not covered: dates other than a fixed one, characters whose upper case is several others. */
#include "jinja/jinja.h"
#include "tests/check_near.h"
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VARS                                                                                       \
    "{\"n\": null, \"i\": 7, \"s\": \" A b\\n\", \"u\": \"\\u00e4\\ud83e\\udd17\", \"l\": [3, 1, " \
    "2], \"d\": {\"b\": 1, \"items\": [2, null], \"x\": 1.0}, \"o\": [{\"k\": \"v\", \"n\": 2}, "  \
    "{\"n\": 1}]}"

static const struct {
    const char *template, *text;
} given[] = {
    {"{{ n }}{{ l }}{{ d }}{{ missing }}{{ [missing, \"it's\", '\\n'] }}{{ 1e22 }}{{ 2.50 }}",
     "None[3, 1, 2]{'b': 1, 'items': [2, None], 'x': 1.0}[Undefined, \"it's\", '\\n']1e+222.5"},
    {"{{ d | tojson }}{{ u | tojson }}{{ l | tojson(indent=1) }}",
     "{\"b\": 1, \"items\": [2, null], \"x\": 1.0}\"\303\244\360\237\244\227\"[\n 3,\n 1,\n 2\n]"},
    {"{{ l[::-1] }}{{ u[0] }}{{ u[::-1] }}{{ s[1:-1] }}{{ l[-2:] }}{{ l[9] is defined }}",
     "[2, 1, 3]\303\244\360\237\244\227\303\244A b[1, 2]False"},
    {"{{ s.strip() }}|{{ s | trim | upper }}|{{ 'a,b,,c'.split(',') }}|{{ 'xyax'.strip('xy') }}|{{ "
     "'ab'.replace('', '-') }}",
     "A b|A B|['a', 'b', '', 'c']|a|-a-b-"},
    {"{{ 'a' ~ 1 ~ n }}{{ 1 + 2 * 3 }}{{ -7 // 2 }}{{ -7 % 3 }}{{ 1 < 2 < 3 }}{{ 'b' in d }}{{ 9 "
     "not in l }}{{ 'y' if n is none else 'x' }}",
     "a1None7-42TrueTrueTruey"},
    {"{{ d['items'] }}{{ d.get('zz', 4) }}{{ d.b is defined }}{{ d.zz is not defined }}{{ u | "
     "length }}{{ n | default('x', true) }}",
     "[2, None]4TrueTrue2x"},
    {"{{ o | selectattr('k') | map(attribute='n') | list }}{{ o | map(attribute='k', default='-') "
     "| join(',') }}{{ l | sort | reverse | list }}{{ d | dictsort }}",
     "[2]v,-[3, 2, 1][('b', 1), ('items', [2, None]), ('x', 1.0)]"},
    {"{{ i is number }}{{ 'a' is string }}{{ d is mapping }}{{ missing is iterable }}{{ 'a' is "
     "sequence }}{{ i is divisibleby 7 }}{{ n is true }}",
     "TrueTrueTrueTrueTrueTrueFalse"},
    {"{% for a in l %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.previtem }}{% if a == "
     "1 %}{% continue %}{% endif %}{{ a }};{% else %}none{% endfor %}",
     "1TrueFalse3;2FalseFalse33FalseTrue12;"},
    {"{% set x = 1 %}{% for a in l if a > 1 %}{% set x = a %}{{ x }}{{ loop.length }}{% endfor "
     "%}{{ x }}{% set ns = namespace(c=0) %}{% for a in l %}{% set ns.c = ns.c + a %}{% endfor "
     "%}{{ ns.c }}",
     "322216"},
    {"{% macro m(a, b=2) %}<{{ a }}{{ b }}{{ caller() if caller is defined }}>{% endmacro %}{{ "
     "m(1) }}{{ m(b=5, a=4) }}{% call m(0) %}in{% endcall %}",
     "<12><45><02in>"},
    {"a\n  {% if i %}\n  b\n  {%- endif %}  \nc {{- i -}} \n {# x #}\n{% raw %}{{ i }}{% endraw "
     "%}\n\n",
     "a\n  b  \nc7{{ i }}"},
    {"{% set x | upper %}a{{ i }}{% endset %}{{ x }}{% with y = 2 %}{{ y }}{% endwith %}{{ y is "
     "defined }}{% generation %}g{% endgeneration %}{{ (1, 2) }}{{ range(3) | list }}",
     "A72Falseg(1, 2)[0, 1, 2]"},
};

static cr_status render(const char *template, cr_buf *out, cr_err *err)
{
    cr_jinja *jinja;
    json_t *vars;
    cr_status status = cr_jinja_parse(template, strlen(template), "t", &jinja, err);

    if (status != CR_OK) return status;
    assert_int_equal(cr_json_parse(VARS, strlen(VARS), "vars", &vars, err), CR_OK);
    status = cr_jinja_render(jinja, vars, out, err);
    cr_jinja_free(jinja);
    json_decref(vars);
    return status;
}

static void given_texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < CR_COUNT(given); i++) {
        cr_buf out = {0};
        cr_err err = {0};
        if (render(given[i].template, &out, &err) != CR_OK)
            fail_msg("%s: %s", given[i].template, err.msg);
        assert_string_equal(out.data ? out.data : "", given[i].text);
        cr_buf_free(&out);
    }
}

/* Each is refused with a sentence that holds `why`. The last ones would run, grow or nest for ever. */
static void refusals(void **state)
{
    static const struct {
        const char *template, *why;
    } all[] = {
        {"a\n{% if i %}", "line 2: a block without its end"},
        {"\n\n{{ i +* }}", "line 3"},
        {"{% nope %}", "not known"},
        {"{{ missing.x }}", "missing is undefined"},
        {"{{ l | nope }}", "filter nope"},
        {"{{ i is nope }}", "test nope"},
        {"{{ l.append(1) }}", "append"},
        {"{{ s.__class__ }}", "__class__"},
        {"x\n{{ raise_exception('no ' ~ i) }}",
         "line 2: the template refuses these messages: no 7"},
        {"{{ 1 / 0 }}", "division by zero"},
        {"{{ s + i }}", "str + int"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested too deep"},
        {"{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
         "steps"},
        {"{% set ns = namespace(t='abcdefgh') %}{% for a in range(99) %}"
         "{% set ns.t = ns.t + ns.t %}{% endfor %}",
         "memory"},
        {"{% set t = 'a' * 9999999 %}{% for a in l * 9 %}{{ t }}{% endfor %}", "writes more"},
        {"{% set ns = namespace(t=[]) %}{% for a in range(9999) %}{% set ns.t = [ns.t] %}"
         "{% endfor %}{{ ns.t }}",
         "nested too deep"},
        {"{{ 'a' * 99999999999 }}", "too long"},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(all); i++) {
        cr_buf out = {0};
        cr_err err = {0};
        if (render(all[i].template, &out, &err) != CR_EFORMAT || !strstr(err.msg, all[i].why))
            fail_msg("%s: \"%s\", expected \"%s\"", all[i].template, err.msg, all[i].why);
        cr_buf_free(&out);
    }
}

/* Brackets, unary signs and blocks, deeper than the parser goes. */
static void deep_texts(void **state)
{
    static const char *const pieces[] = {"(", "[", "-", "not ", "{% if i %}", "a if "};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(pieces); i++) {
        cr_buf text = {0}, out = {0};
        cr_err err = {0};
        cr_buf_adds(&text, pieces[i][0] == '{' ? "" : "{{ ");
        for (int k = 0; k < 100000; k++)
            cr_buf_adds(&text, pieces[i]);
        assert_int_equal(render(text.data, &out, &err), CR_EFORMAT);
        cr_buf_free(&text);
        cr_buf_free(&out);
    }
}

/* One line of CROLL_CHAT_CASES: {"name", "template", "vars", "text" or null where Python fails}. */
static bool check_case(const json_t *c)
{
    const json_t *want = json_object_get(c, "text");
    const char *template = json_string_value(json_object_get(c, "template")),
               *name = json_string_value(json_object_get(c, "name"));
    cr_jinja *jinja = NULL;
    cr_buf got = {0};
    cr_err err = {0};
    cr_status status = cr_jinja_parse(template, json_string_length(json_object_get(c, "template")),
                                      "t", &jinja, &err);
    bool is_same;

    if (status == CR_OK) status = cr_jinja_render(jinja, json_object_get(c, "vars"), &got, &err);
    cr_jinja_free(jinja);
    is_same =
        json_is_string(want)
            ? status == CR_OK && got.num_bytes == json_string_length(want) &&
                  (!got.num_bytes || memcmp(got.data, json_string_value(want), got.num_bytes) == 0)
            : status == CR_EFORMAT;
    if (!is_same)
        print_message("%s: %s\n  got  %s%s\n  want %s\n", name, template, status ? "error " : "",
                      status ? err.msg : got.data,
                      json_is_string(want) ? json_string_value(want) : "an error");
    cr_buf_free(&got);
    return is_same;
}

static void cases_of_a_file(void **state)
{
    const char *path = getenv("CROLL_CHAT_CASES");
    cr_buf file = {0};
    cr_err err = {0};
    size_t num = 0, num_bad = 0;
    char *next, *line;

    (void)state;
    if (cr_file_read(path, &file, &err) != CR_OK) fail_msg("%s", err.msg);
    for (next = file.data; (line = strsep(&next, "\n")) && *line; num++) {
        json_t *c;
        if (cr_json_parse(line, strlen(line), "case", &c, &err) != CR_OK) fail_msg("%s", err.msg);
        num_bad += !check_case(c);
        json_decref(c);
    }
    print_message("%zu cases, %zu differ\n", num, num_bad);
    assert_int_equal(num_bad, 0);
    cr_buf_free(&file);
}

/* ---- a checkpoint's templates ---- */

static char folder[] = "/tmp/croll_chat_XXXXXX";

static void write_file(const char *name, const char *text)
{
    char *path = cr_path_join(folder, name);
    cr_err err = {0};
    if (text && cr_file_write_atomic(path, text, strlen(text), &err) != CR_OK)
        fail_msg("%s", err.msg);
    if (!text) unlink(path);
    cr_free(path);
}

/* The text of messages, or the error's. The caller frees it. */
static char *chat(const char *name, const char *messages, const char *vars, bool prompt)
{
    cr_chat *c = NULL;
    cr_buf out = {0};
    cr_err err = {0};
    json_t *list, *more = NULL;
    char *text;

    assert_int_equal(cr_json_parse(messages, strlen(messages), "messages", &list, &err), CR_OK);
    if (vars) assert_int_equal(cr_json_parse(vars, strlen(vars), "vars", &more, &err), CR_OK);
    if (cr_chat_open(folder, &c, &err) == CR_OK)
        cr_note(cr_chat_render_with(c, name, list, more, prompt, &out, &err));
    text = cr_strdup(err.status == CR_OK ? out.data ? out.data : "" : err.msg);
    cr_chat_close(c);
    cr_buf_free(&out);
    json_decref(list);
    json_decref(more);
    return text;
}

static void check_chat(const char *name, const char *messages, const char *vars, bool prompt,
                       const char *want)
{
    char *got = chat(name, messages, vars, prompt);
    if (!strstr(got, want)) fail_msg("%s: \"%s\", expected \"%s\"", messages, got, want);
    cr_free(got);
}

#define HI      "[{\"role\": \"user\", \"content\": \"hi\"}]"
#define HI_TURN "<|im_start|>user\nhi<|im_end|>\n"
#define OPENER  "<|im_start|>assistant\n"

static void templates_of_a_folder(void **state)
{
    (void)state;
    check_chat(NULL, HI, NULL, true, "the model has no chat template");
    check_chat("chatml", HI, NULL, true, HI_TURN OPENER);
    check_chat("empty", HI, NULL, false, HI_TURN OPENER);
    write_file("special_tokens_map.json", "{\"bos_token\": \"<b>\", \"eos_token\": \"no\"}");
    write_file("tokenizer_config.json",
               "{\"eos_token\": {\"content\": \"<e>\"}, \"unk_token\": null, \"chat_template\": ["
               "{\"name\": \"default\", \"template\": \"{{ bos_token }}{{ messages[0].content }}"
               "{{ eos_token }}{{ unk_token is defined }}{{ tools is none }}{{ enable_thinking }}"
               "{{ add_generation_prompt }}\"},"
               "{\"name\": \"tool_use\", \"template\": \"T{{ tools }}\"},"
               "{\"name\": \"rag\", \"template\": \"{{ documents }}\"}]}");
    check_chat(NULL, HI, NULL, true, "<b>hi<e>FalseTrueTrue");
    check_chat("native", HI, NULL, false, "<b>hi<e>FalseTrueFalse");
    check_chat("qwen3", HI, NULL, true, "<b>hi<e>FalseTrueTrueTrue");
    check_chat("native_nonthinking", HI, NULL, true, "<b>hi<e>FalseTrueFalseTrue");
    check_chat("longcot_V3", HI, NULL, true, "<b>hi<e>FalseTrueTrue<think>\n");
    check_chat(NULL, HI, "{\"tools\": [1]}", true, "T[1]");
    check_chat("rag", HI, "{\"documents\": [2]}", true, "[2]");
    check_chat("qwen", HI, NULL, true, "there is no template qwen; did you mean qwen3");
    write_file("chat_template.jinja", "{% for m in messages %}{{ m }}{% endfor %}\n");
    check_chat(NULL,
               "[{\"role\": \"assistant\", \"content\": null, \"reasoning\": \"r\", "
               "\"tool_calls\": [{}]}]",
               NULL, true,
               "{'thinking': 'r', 'role': 'assistant', 'reasoning': 'r', 'tool_calls': [{}], "
               "'reasoning_content': 'r'}");
    write_file("chat_template.jinja", "\n{{ messages | nope");
    check_chat(NULL, HI, NULL, true, "chat_template.jinja: line 2: ");
    check_chat("chatml", HI, NULL, true, HI_TURN OPENER);
    write_file("chat_template.jinja", NULL);
    write_file("tokenizer_config.json", "{\"chat_template\": 5}");
    check_chat("chatml", HI, NULL, true, "chat_template must be a string");
    write_file("tokenizer_config.json", NULL);
}

static void malformed_messages(void **state)
{
    static const char *const bad[] = {"[]",
                                      "\"text\"",
                                      "[1]",
                                      "{}",
                                      "[{\"role\": \"user\"}]",
                                      "[{\"content\": \"x\"}]",
                                      "[{\"role\": \"user\", \"content\": 5}]",
                                      "[{\"role\": 7, \"content\": \"x\"}]"};
    (void)state;
    for (size_t i = 0; i < CR_COUNT(bad); i++)
        check_chat("chatml", bad[i], NULL, true, "message");
    check_chat("empty", "[{\"role\": \"system\", \"content\": \"x\"}]", NULL, true, "one user");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(given_texts),        cmocka_unit_test(refusals),
        cmocka_unit_test(deep_texts),         cmocka_unit_test(templates_of_a_folder),
        cmocka_unit_test(malformed_messages),
    };
    const struct CMUnitTest of_a_file[] = {cmocka_unit_test(cases_of_a_file)};
    cr_err err = {0};
    int rc;

    if (!mkdtemp(folder)) return 1;
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    if (getenv("CROLL_CHAT_CASES")) rc += cmocka_run_group_tests(of_a_file, NULL, NULL);
    cr_note(cr_remove_tree(folder, &err));
    return rc;
}
