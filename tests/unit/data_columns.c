/* data_columns.c -- columns that are made of others: rows as verl, TRL and Hugging Face data sets have them, what cannot be
 * made, chats of ShareGPT's form. The keys of the file: unit/configs_keys and e2e/rows_forms.sh, where runs read such files.
 */
#include "data/columns.h"

#include "tests/ok.h"

#include <string.h>

#define PATH(p)          \
    {                    \
        .path = (char[]) \
        {                \
            p            \
        }                \
    }
#define ONE(c, ...)                                                                        \
    {                                                                                      \
        .name = (char[]){c}, .parts = (cr_data_column_part[]){__VA_ARGS__}, .num_parts = 1 \
    }

static const char verl[] =
    "{\"data_source\":\"openai/gsm8k\",\"prompt\":[{\"role\":\"user\",\"content\":\"3+4?\"}],"
    "\"ability\":\"math\",\"reward_model\":{\"style\":\"rule\",\"ground_truth\":\"7\"},"
    "\"extra_info\":\"{\\\"split\\\": \\\"train\\\", \\\"ids\\\": [5, 6]}\",\"a.b\":{\"c\":1},"
    "\"answer\":\"3+4 is\\n#### no #### 7 \\n\",\"number\":100000000000000000000}";

static cr_status make(const cr_data_column *columns, size_t num, cr_row *row)
{
    cr_data_args from = {.columns = (cr_data_column *)(uintptr_t)columns, .num_columns = num};
    cr_err ignored = {0};

    *row = (cr_row){.text = cr_strdup(verl)};
    err = (cr_err){0};
    if (cr_json_parse_integers(verl, strlen(verl), NULL, CR_JSON_EXACT, &row->json, &ignored) !=
        CR_OK)
        fail_msg("%s", ignored.msg);
    return cr_columns_make(&from, row, &err);
}

static void row_end(cr_row *row)
{
    json_decref(row->json);
    cr_free(row->text);
}

/* What is made, as JSON, is in the row and in its text, at its end; the rest is as it was. */
static void made(void **state)
{
    const struct {
        cr_data_column column;
        const char *json;
    } cases[] = {
        {ONE("ground_truth", PATH("reward_model.ground_truth")), "\"7\""},
        {ONE("tag", {.value = (char[]){"mine"}}), "\"mine\""},
        {ONE("ids", PATH("extra_info.ids.1")), "6"},
        {ONE("c", PATH("a.b.c")), "1"},
        {ONE("gold", {.path = (char[]){"answer"}, .after = (char[]){"####"}}), "\"7\""},
        {ONE("big", {.path = (char[]){"number"}, .after = (char[]){"1"}}),
         "\"00000000000000000000\""},
        {ONE("chat", {.path = (char[]){"ability"}, .role = (char[]){"user"}}),
         "[{\"role\":\"user\",\"content\":\"math\"}]"},
        {{.name = (char[]){"chat"},
          .is_list = true,
          .num_parts = 2,
          .parts = (cr_data_column_part[]){{.value = (char[]){"Add."}, .role = (char[]){"system"}},
                                           PATH("prompt")}},
         "[{\"role\":\"system\",\"content\":\"Add.\"},{\"role\":\"user\",\"content\":\"3+4?\"}]"},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        char want[200];
        cr_row row;
        cr_buf text = {0};
        snprintf(want, sizeof want, ",\"%s\":%s}", cases[i].column.name, cases[i].json);
        if (make(&cases[i].column, 1, &row) != CR_OK) fail_msg("%zu: %s", i, err.msg);
        OK(cr_json_add_value(&text, row.json, &err));
        assert_string_equal(text.data, row.text);
        assert_true(strlen(row.text) > strlen(want));
        assert_string_equal(row.text + strlen(row.text) - strlen(want), want);
        assert_memory_equal(row.text, verl, 60);
        cr_buf_free(&text);
        row_end(&row);
    }
}

/* Two columns that change places are made of the row as it was. */
static void exchanged(void **state)
{
    const cr_data_column columns[] = {ONE("ability", PATH("data_source")),
                                      ONE("data_source", PATH("ability"))};
    cr_row row;

    (void)state;
    if (make(columns, 2, &row) != CR_OK) fail_msg("%s", err.msg);
    assert_string_equal(json_string_value(json_object_get(row.json, "ability")), "openai/gsm8k");
    assert_string_equal(json_string_value(json_object_get(row.json, "data_source")), "math");
    row_end(&row);
}

static void not_made(void **state)
{
    const struct {
        cr_data_column column;
        const char *text;
    } cases[] = {
        {ONE("gold", PATH("reward_model.truth")),
         "data_args.columns: gold: reward_model.truth: there is no truth, reward_model has style, "
         "ground_truth"},
        {ONE("gold", PATH("solution")), "there is no solution, the row has data_source, prompt"},
        {ONE("gold", PATH("ability.x")), "there is no x, ability is no object"},
        {ONE("gold", PATH("prompt.1")), "there is no 1, prompt is a list"},
        {ONE("gold", PATH("prompt.-1")), "there is no -1, prompt is a list"},
        {ONE("gold", PATH("prompt.x")), "there is no x, prompt is a list"},
        {ONE("gold", PATH("reward_model..x")), "there is no .x, reward_model has style"},
        {ONE("gold", {.path = (char[]){"answer"}, .after = (char[]){"@@"}}),
         "answer: the text has no \"@@\" (after)"},
        {ONE("gold", {.path = (char[]){"prompt"}, .after = (char[]){"@@"}}),
         "prompt: a text is expected for after"},
        {{.name = (char[]){"chat"},
          .is_list = true,
          .num_parts = 1,
          .parts = (cr_data_column_part[]){PATH("ability")}},
         "chat: ability: a list is expected"},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_row row;
        if (make(&cases[i].column, 1, &row) != CR_EFORMAT || !strstr(err.msg, cases[i].text))
            fail_msg("%zu: %s", i, err.msg);
        assert_string_equal(row.text, verl);
        row_end(&row);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(made), cmocka_unit_test(exchanged),
                                       cmocka_unit_test(not_made)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
