/* data_pairs.c -- which ids a pair has: its prompt, and both answers, as texts, as messages, with the prompt inside the answers, as ready
 * text; what the template does not make the same twice; rows that are left out or refused; and the file that keeps a reference's
 * log-probs. Not covered: the loss (unit/rl_pairs). */
#include "data/prompts.h"
#include "pipelines/rows/reference.h"
#include "tests/byte_tokenizer.h"
#include "tests/prompt_files.h"

#include <string.h>
#include <unistd.h>

static cr_tokenizer *tokenizer;
static cr_prompt_maker maker;
static cr_worker_config from;
static cr_config config;

static cr_status load(const char *row, cr_dataset *out, cr_err *err)
{
    char *path = put_file("pairs.jsonl", row, strlen(row));

    config.rows = (cr_row_keys){.prompt_key = (char[]){"instruction"},
                                .chosen_key = (char[]){"chosen"},
                                .rejected_key = (char[]){"rejected"},
                                .system_key = (char[]){"system"},
                                .query_key = (char[]){"input"}};
    config.sequence_length = 40;
    maker =
        (cr_prompt_maker){.config = &config, .from = &from, .tokenizer = tokenizer, .chat = chat};
    *out = (cr_dataset){0};
    *err = (cr_err){0};
    cr_note(cr_prompt_load(&maker, cr_prompt_encode_pair, out, path, err));
    cr_prompt_maker_close(&maker);
    cr_free(path);
    return err->status;
}

/* The row's prompt, chosen and rejected answer, as texts with a line's end between them ('$': the end-of-text token). */
static void check_pair(const char *row, const char *want)
{
    cr_dataset data;
    cr_buf text = {0};
    cr_err err;

    if (load(row, &data, &err) != CR_OK) fail_msg("%s", err.msg);
    assert_int_equal(data.num_rows, 1);
    for (size_t i = 0; i < data.rows[0].num_ids; i++) {
        if (i == data.rows[0].num_prompt || i == data.rows[0].num_prompt + data.rows[0].num_chosen)
            cr_buf_addc(&text, '\n');
        cr_buf_addc(&text, data.rows[0].ids[i] < 256 ? (char)data.rows[0].ids[i] : '$');
    }
    assert_string_equal(text.data, want);
    cr_buf_free(&text);
    cr_dataset_free(&data);
}

static void check_refused(const char *row, const char *pattern)
{
    cr_dataset data;
    cr_err err;

    assert_int_equal(load(row, &data, &err), CR_EFORMAT);
    if (!strstr(err.msg, pattern)) fail_msg("%s: %s", pattern, err.msg);
    cr_dataset_free(&data);
}

#define TEMPLATE                                                           \
    "{% for m in messages %}({{ m.role[0] }}){{ m.content }}|{% endfor %}" \
    "{% if add_generation_prompt %}(a){% endif %}"
#define MESSAGE(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define ROW(prompt, chosen, rejected) \
    "{\"instruction\":" prompt ",\"chosen\":" chosen ",\"rejected\":" rejected "}"

static void texts_and_messages(void **state)
{
    (void)state;
    use_template(TEMPLATE);
    from.data.prompt = NULL;
    check_pair(ROW("\"q\"", "\"yes\"", "\"no\""), "(u)q|(a)\nyes|\nno|");
    check_pair("{\"system\":\"s\",\"input\":\"more\",\"instruction\":\"q\",\"chosen\":\"yes\","
               "\"rejected\":\"no\"}",
               "(s)s|(u)q\nmore|(a)\nyes|\nno|");
    check_pair(ROW("[" MESSAGE("system", "s") "," MESSAGE("user", "q") "]",
                   "[" MESSAGE("assistant", "yes") "]", "[" MESSAGE("assistant", "no") "]"),
               "(s)s|(u)q|(a)\nyes|\nno|");
    check_pair(ROW("[" MESSAGE("user", "q") "]", "\"yes\"", "\"no\""), "(u)q|(a)\nyes|\nno|");
    /* answers of several turns count as a whole, as in TRL */
    check_pair(ROW("[" MESSAGE("user", "q") "]",
                   "[" MESSAGE("assistant", "b") "," MESSAGE("user", "c") "," MESSAGE("assistant",
                                                                                      "d") "]",
                   "[" MESSAGE("assistant", "no") "]"),
               "(u)q|(a)\nb|(u)c|(a)d|\nno|");
    /* answers that begin alike: only the prompt is shared */
    check_pair(ROW("\"q\"", "\"yes\"", "\"yet\""), "(u)q|(a)\nyes|\nyet|");
}

static void the_prompt_inside_the_answers(void **state)
{
    (void)state;
    use_template(TEMPLATE);
    from.data.prompt = NULL;
    check_pair(
        "{\"chosen\":[" MESSAGE("user", "q") "," MESSAGE(
            "assistant", "yes") "],\"rejected\":[" MESSAGE("user", "q") "," MESSAGE("assistant",
                                                                                    "no") "]}",
        "(u)q|(a)\nyes|\nno|");
    check_refused("{\"chosen\":[" MESSAGE("user", "q") "],\"rejected\":[" MESSAGE("user", "q") "]}",
                  "instruction");
    check_refused("{\"chosen\":\"a\",\"rejected\":\"b\"}", "instruction (prompt_key)");
}

static void ready_text(void **state)
{
    (void)state;
    from.data.prompt = (char[]){"text"};
    check_pair("{\"text\":\"Q: 1\",\"chosen\":\" A\",\"rejected\":\" B<s>\"}", "Q: 1\n A$\n B$");
    check_refused("{\"text\":\"Q\",\"chosen\":[],\"rejected\":\"B\"}", "chosen is no text");
    from.data.prompt = NULL;
}

/* A template whose prompt is no beginning of its chats: answers begin where they part, and the run says so. */
static void other_prompts(void **state)
{
    (void)state;
    use_template("{% for m in messages %}({{ m.role[0] }}){{ m.content }}|{% endfor %}"
                 "{% if add_generation_prompt %}(a)<think>{% endif %}");
    check_pair(ROW("\"q\"", "\"yes\"", "\"no\""), "(u)q|(a)\nyes|\nno|");
    assert_int_equal(maker.num_merged, 1);
    use_template(TEMPLATE);
    check_pair(ROW("\"q\"", "\"yes\"", "\"no\""), "(u)q|(a)\nyes|\nno|");
    assert_int_equal(maker.num_merged, 0);
}

static void rows_that_are_left_out_or_refused(void **state)
{
    cr_dataset data;
    cr_err err;

    (void)state;
    use_template(TEMPLATE);
    assert_int_equal(
        load(ROW("\"q\"", "\"y\"", "\"a text of more than forty tokens, in bytes\""), &data, &err),
        CR_OK);
    assert_int_equal(data.num_rows, 0);
    assert_int_equal(data.num_dropped, 1);
    assert_int_equal(maker.num_long_pairs, 1);
    cr_dataset_free(&data);
    check_pair(ROW("\"q\"", "\"yes\"", "\"yesterday\""), "(u)q|(a)\nyes|\nyesterday|");
    assert_int_equal(maker.num_same_pairs, 0);
    check_pair(ROW("\"q\"", "\"yes\"", "\"yes\""), "(u)q|(a)\nyes|\nyes|");
    assert_int_equal(maker.num_same_pairs, 1);
    check_refused("{\"instruction\":\"q\",\"chosen\":\"y\"}", "rejected is missing");
    check_refused(ROW("3", "\"y\"", "\"n\""), "instruction (prompt_key) is neither a text nor");
    check_refused(ROW("\"q\"", "3", "\"n\""), "chosen is no text");
    check_refused("{\"instruction\":\"q\",\"chosen\":\"y\",\"rejected\":\"n\",\"images\":[\"a\"]}",
                  "images");
    use_template("{% for m in messages %}{{ m.content }}{% endfor %}");
    check_refused(ROW("\"q\"", "\"\"", "\"n\""), "no token of its chosen answer");
    check_refused(ROW("\"q\"", "\"y\"", "\"\""), "no token of its rejected answer");
}

/* ---- a reference's log-probs ---- */

static void open_table(cr_reference_table *t, const cr_dataset *data, const char *weights)
{
    cr_err err = {0};

    if (cr_reference_open(t, data, temp_folder, weights, &err) != CR_OK) fail_msg("%s", err.msg);
}

/* What is whole is read again, a pair that is cut off or damaged is not, nor what was of other rows or weights. */
static void a_file_of_log_probs(void **state)
{
    static const double numbers[] = {-1.5, -2.25, -3, -4, -5.5, -6, -7};
    int32_t ids[] = {1, 2, 3, 4, 5, 6, 7};
    cr_row rows[] = {{.ids = ids, .num_ids = 5, .num_prompt = 2, .num_chosen = 1},
                     {.ids = ids, .num_ids = 7, .num_prompt = 1, .num_chosen = 4}};
    cr_dataset data = {.rows = rows, .num_rows = 2};
    cr_reference_table t;
    cr_err err = {0};
    cr_buf file = {0};
    char *path;

    (void)state;
    open_table(&t, &data, "w");
    assert_int_equal(t.num_known, 0);
    for (uint32_t i = 2; i-- > 0;)
        assert_int_equal(cr_reference_add(&t, i, numbers, &err), CR_OK);
    path = cr_strdup(t.path);
    cr_reference_close(&t);

    open_table(&t, &data, "w");
    assert_int_equal(t.num_known, 2);
    for (size_t i = 0; i < 6; i++)
        check_near(t.of[1][i], numbers[i], 0);
    check_near(t.of[0][2], numbers[2], 0);
    cr_reference_close(&t);

    assert_int_equal(truncate(path, 35 + 65 + 8 + 24 + 8 + 7), 0); /* row 1, and a part of row 0 */
    open_table(&t, &data, "w");
    assert_int_equal(t.num_known, 1);
    assert_null(t.of[0]);
    assert_int_equal(cr_reference_add(&t, 0, numbers, &err), CR_OK);
    cr_reference_close(&t);
    assert_int_equal(cr_file_read(path, &file, &err), CR_OK);
    file.data[35 + 65 + 10] ^= 1; /* in the first pair: what follows is not known to be whole */
    cr_free(put_file(strrchr(path, '/') + 1, file.data, file.num_bytes));
    open_table(&t, &data, "w");
    assert_int_equal(t.num_known, 0);
    cr_reference_close(&t);

    open_table(&t, &data, "other weights");
    assert_int_equal(t.num_known, 0);
    assert_string_not_equal(t.path, path);
    cr_reference_close(&t);
    rows[1].num_chosen = 3;
    open_table(&t, &data, "w");
    assert_string_not_equal(t.path, path);
    cr_reference_close(&t);
    cr_buf_free(&file);
    cr_free(path);
}

static int set_up(void **state)
{
    tokenizer = byte_tokenizer_with("{\"eos_token\":\"<s>\"}");
    return make_temp_folder(state);
}

static int tear_down(void **state)
{
    cr_chat_close(chat);
    cr_tokenizer_close(tokenizer);
    return remove_temp_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_and_messages),
        cmocka_unit_test(the_prompt_inside_the_answers),
        cmocka_unit_test(ready_text),
        cmocka_unit_test(other_prompts),
        cmocka_unit_test(rows_that_are_left_out_or_refused),
        cmocka_unit_test(a_file_of_log_probs),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
