/* data_prompts.c -- rows of data files: which tokens of a chat are learnt, which columns count, files that
 * are arrays, and files that are no JSON text. Not covered: what the loss makes of it (e2e/run_sft.sh).
 */
#include "data/prompts.h"
#include "tests/byte_tokenizer.h"
#include "tests/prompt_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char *tags[] = {(char[]){"gsm8k"}};
static char *more_tags[] = {(char[]){"gsm8k"}, (char[]){"other"}};
/* the third shares a tag with the first, and has one of its own */
static cr_reward_config rewards[] = {
    {.domain = (char[]){"math_rule"}, .tags = tags, .num_tags = 1, .probability = 1},
    {.domain = (char[]){"ifeval"}},
    {.domain = (char[]){"format"}, .tags = more_tags, .num_tags = 2}};
static cr_tokenizer *tokenizer;

static size_t num_blocks = 3;

/* Load a file; the status, and what was said in err. */
static cr_status load(const char *name, const char *text, size_t num_bytes, cr_worker_config *from,
                      cr_row_encode encode, cr_dataset *out, cr_err *err)
{
    cr_config config = {.rewards = rewards, .num_rewards = num_blocks, .sequence_length = 200};
    cr_prompt_maker maker = {.config = &config,
                             .from = from,
                             .tokenizer = tokenizer,
                             .chat = chat,
                             .prompt_length = 100};
    char *path = put_file(name, text, num_bytes);

    *out = (cr_dataset){0};
    *err = (cr_err){0};
    cr_note(cr_prompt_load(&maker, encode, out, path, err));
    cr_prompt_maker_close(&maker);
    cr_free(path);
    return err->status;
}

/* The ids of a row as text, those that are not learnt as '.' if only_learnt. */
static char *text_of(const cr_row *row, bool only_learnt)
{
    cr_buf out = {0};

    for (size_t i = 0; i < row->num_ids; i++)
        cr_buf_addc(&out, only_learnt && !row->learns[i] ? '.' : (char)row->ids[i]);
    return out.data;
}

static void check_turns(const char *row, const char *whole, const char *learnt)
{
    cr_worker_config from = {.data = {.messages = (char[]){"messages"}, .template = NULL}};
    cr_dataset data;
    cr_err err;
    char *text;

    if (load("t.jsonl", row, strlen(row), &from, cr_prompt_encode_sft, &data, &err) != CR_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(data.num_rows, 1);
    text = text_of(&data.rows[0], false);
    assert_string_equal(text, whole);
    cr_free(text);
    text = text_of(&data.rows[0], true);
    assert_string_equal(text + data.rows[0].num_prompt, learnt);
    for (size_t i = 0; i < data.rows[0].num_prompt; i++)
        assert_int_equal(data.rows[0].learns[i], 0);
    cr_free(text);
    cr_dataset_free(&data);
}

#define TURNS                                                                    \
    "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\"," \
    "\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"bb\"},{\"role\":"  \
    "\"tool\",\"content\":\"bb\"},{\"role\":\"assistant\",\"content\":\"cc\"},{" \
    "\"role\":\"user\",\"content\":\"d\"}]}"

/* Every turn of the assistant with its end, nothing else; the user's last turn is not even kept. */
static void turns_of_the_assistant(void **state)
{
    (void)state;
    use_template("{% for m in messages %}({{ m.role[0] }}){{ m.content }}|\n{% endfor %}"
                 "{% if add_generation_prompt %}(a){% endif %}");
    check_turns(TURNS, "(s)s|\n(u)a|\n(a)bb|\n(t)bb|\n(a)cc|", "bb|...........cc|");
}

/* As Qwen3's: the last turn shows reasoning (here an empty one), earlier turns do not. */
static void turns_without_reasoning(void **state)
{
    (void)state;
    use_template("{% for m in messages %}({{ m.role[0] }})"
                 "{% if m.role == 'assistant' and loop.last %}[]{% endif %}{{ m.content }}|\n"
                 "{% endfor %}{% if add_generation_prompt %}(a){% endif %}");
    check_turns("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
                "\"content\":\" b\"},{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\","
                "\"content\":\"d\"}]}",
                "(u)a|\n(a) b|\n(u)c|\n(a)[]d|", " b|..........[]d|");
}

static void turns_that_cannot_be_found(void **state)
{
    cr_worker_config from = {.data = {.messages = (char[]){"messages"}}};
    cr_dataset data;
    cr_err err;

    (void)state;
    use_template("{{ messages | length }}{% for m in messages %}({{ m.role[0] }}){{ m.content }}|"
                 "{% endfor %}{% if add_generation_prompt %}(a){% endif %}");
    assert_int_equal(
        load("t.jsonl", TURNS, strlen(TURNS), &from, cr_prompt_encode_sft, &data, &err),
        CR_EFORMAT);
    assert_non_null(strstr(err.msg, "t.jsonl:1: message 3: the chat template's generation prompt"));
    cr_dataset_free(&data);
    use_template("{% for m in messages %}{% set last = loop.last and m.role == 'assistant' %}({{ "
                 "m.role[0] }}){{ m.content | upper if last else "
                 "m.content }}{{ '!' if last else '|' }}{% endfor %}"
                 "{% if add_generation_prompt %}(a){% endif %}");
    assert_int_equal(
        load("t.jsonl", TURNS, strlen(TURNS), &from, cr_prompt_encode_sft, &data, &err),
        CR_EFORMAT);
    assert_non_null(strstr(err.msg, "message 3: the chat template writes this turn differently"));
    cr_dataset_free(&data);
}

/* ---- columns ---- */

static void check_rlvr(const char *row, cr_worker_config *from, int domain, const char *error)
{
    cr_dataset data;
    cr_err err;
    cr_status status = load("r.jsonl", row, strlen(row), from, cr_prompt_encode_rlvr, &data, &err);

    if (error && (status != CR_EFORMAT || !strstr(err.msg, error)))
        fail_msg("%s: '%s' is not '%s'", row, err.msg, error);
    if (!error && (status != CR_OK || data.num_rows != (domain >= 0) ||
                   (domain >= 0 && data.rows[0].domain != domain)))
        fail_msg("%s: %s", row, err.msg);
    cr_dataset_free(&data);
}

static void domains_of_rows(void **state)
{
    cr_worker_config from = {.data = {.prompt = (char[]){"q"}, .tag = (char[]){"source"}}},
                     drops = {.data = {.prompt = from.data.prompt,
                                       .tag = from.data.tag,
                                       .drops_unknown_tags = true}};

    (void)state;
    check_rlvr("{\"q\":\"1234567\",\"source\":\"gsm8k\",\"tag\":\"x\"}", &from, 0, NULL);
    check_rlvr("{\"q\":\"1234567\",\"source\":\"x\",\"domain\":\"ifeval\"}", &from, 1, NULL);
    check_rlvr("{\"q\":\"1234567\",\"domain\":\"code\"}", &from, -1, NULL);
    check_rlvr("{\"q\":\"1234567\",\"source\":\"x\"}", &from, 0, "the tag 'x'");
    check_rlvr("{\"q\":\"1234567\",\"tag\":\"gsm8k\"}", &from, 0, "domain nor source");
    check_rlvr("{\"q\":\"1234567\",\"source\":\"x\"}", &drops, -1, NULL);
    check_rlvr("{\"q\":\"1234567\",\"source\":\"gsm8k\"}", &drops, 0, NULL);
}

/* blocks: their numbers, the domain first. */
static void check_blocks(const char *row, const char *blocks)
{
    cr_worker_config from = {.data = {.prompt = (char[]){"q"}, .tag = (char[]){"tag"}}};
    cr_dataset data;
    cr_err err;
    char got[8] = "";

    if (load("r.jsonl", row, strlen(row), &from, cr_prompt_encode_rlvr, &data, &err) != CR_OK)
        fail_msg("%s: %s", row, err.msg);
    for (size_t k = 0; k < data.rows[0].num_rewards; k++)
        got[k] = (char)('0' + data.rows[0].rewards[k]);
    assert_int_equal(data.rows[0].domain, got[0] - '0');
    if (strcmp(got, blocks) != 0) fail_msg("%s: %s", row, got);
    cr_dataset_free(&data);
}

/* Blocks that share a tag; the first with a share of the prompts is the domain; a row may name them itself. */
static void several_rewards(void **state)
{
    cr_worker_config from = {.data = {.prompt = (char[]){"q"}, .tag = (char[]){"tag"}}};

    (void)state;
    check_blocks("{\"q\":\"1234567\",\"tag\":\"gsm8k\"}", "02");
    check_blocks("{\"q\":\"1234567\",\"tag\":\"other\"}", "2");
    check_blocks("{\"q\":\"1234567\",\"tag\":\"gsm8k\",\"domain\":\"format\"}", "2");
    check_blocks("{\"q\":\"1234567\",\"tag\":\"x\",\"domain\":[\"format\",\"math_rule\"]}", "20");
    check_blocks("{\"q\":\"1234567\",\"tag\":\"gsm8k\",\"domain\":null}", "02");
    rewards[0].probability = 0, rewards[2].probability = 1;
    check_blocks("{\"q\":\"1234567\",\"tag\":\"gsm8k\"}", "20");
    rewards[2].probability = 0;
    check_blocks("{\"q\":\"1234567\",\"tag\":\"gsm8k\"}", "02");
    rewards[0].probability = 1;
    check_rlvr("{\"q\":\"1234567\",\"domain\":[\"format\",\"banana\"]}", &from, 0,
               "banana is no block");
    check_rlvr("{\"q\":\"1234567\",\"domain\":[]}", &from, 0, "a list of 0 names");
    check_rlvr("{\"q\":\"1234567\",\"domain\":[\"format\",3]}", &from, 0, "is no block of rewards");
    check_rlvr("{\"q\":\"1234567\",\"domain\":[\"format\",\"format\"]}", &from, 0,
               "names format twice");
}

/* Rows of ROLL's vision-language files: their tag is data_source, unless they have a tag. */
static void tags_of_sources(void **state)
{
    static const char row[] = "{\"q\":\"1234567\",\"data_source\":\"gsm8k\"}";
    cr_worker_config from = {.data = {.prompt = (char[]){"q"}, .tag = (char[]){"tag"}}},
                     own = {.data = {.prompt = (char[]){"q"}, .tag = (char[]){"source"}}};
    cr_dataset data;
    cr_err err;

    (void)state;
    check_blocks(row, "02");
    check_blocks("{\"q\":\"1234567\",\"data_source\":\"gsm8k\",\"tag\":null}", "02");
    check_blocks("{\"q\":\"1234567\",\"data_source\":\"gsm8k\",\"tag\":\"other\"}", "2");
    check_rlvr("{\"q\":\"1234567\",\"data_source\":\"x\"}", &from, 0, "the tag 'x'");
    check_rlvr(row, &own, 0, "domain nor source");
    num_blocks = 1; /* no tag is needed */
    check_blocks("{\"q\":\"1234567\",\"data_source\":\"x\"}", "0");
    num_blocks = 3;
    if (load("r.jsonl", row, strlen(row), &from, cr_prompt_encode_rlvr, &data, &err) != CR_OK)
        fail_msg("%s", err.msg);
    assert_non_null(strstr(data.rows[0].text, "\"tag\":\"gsm8k\"")); /* programs see it, too */
    cr_dataset_free(&data);
}

static void images_are_refused(void **state)
{
    cr_worker_config text = {.data = {.prompt = (char[]){"q"}}},
                     chats = {.data = {.messages = (char[]){"m"}}};

    (void)state;
    use_template("{% for m in messages %}{{ m.role }}: {{ m.content[0].text }}{% endfor %}");
    check_rlvr("{\"q\":\"1234567\",\"domain\":\"ifeval\",\"images\":[\"a.png\"]}", &text, 1,
               "the column images is not empty");
    check_rlvr("{\"q\":\"1234567\",\"domain\":\"ifeval\",\"images\":[],\"video\":null}", &text, 1,
               NULL);
    check_rlvr(
        "{\"m\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"1234567\"}]}],"
        "\"domain\":\"ifeval\"}",
        &chats, 1, NULL);
    check_rlvr(
        "{\"m\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]"
        ",\"domain\":\"ifeval\"}",
        &chats, 1, "message 1 has a part of type 'image_url'");
}

/* ---- files ---- */

static void arrays_are_rows(void **state)
{
    static const char lines[] = "\xef\xbb\xbf{\"q\":\"1234567\",\"domain\":\"ifeval\"}\n\n"
                                "{\"q\":\"7654321\",\"domain\":\"ifeval\"}",
                      array[] = "\n [{\"q\": \"1234567\", \"domain\":\"ifeval\"},\n"
                                "{\"q\":\"7654321\",\"domain\":\"ifeval\"} ]\n",
                      wrong[] = "[{\"q\":\"1234567\"},{\"q\":3},4]", torn[] = "[{\"q\":\"1\"},";
    cr_worker_config from = {.data = {.prompt = (char[]){"q"}}};
    cr_dataset a, b;
    cr_err err;

    (void)state;
    if (load("a", lines, sizeof lines - 1, &from, cr_prompt_encode_rlvr, &a, &err) != CR_OK ||
        load("b", array, sizeof array - 1, &from, cr_prompt_encode_rlvr, &b, &err) != CR_OK)
        fail_msg("%s", err.msg);
    assert_true(a.num_rows == 2 && b.num_rows == 2 && a.rows[1].line == 3 && b.rows[1].line == 2);
    assert_string_equal(a.rows[0].text, b.rows[0].text);
    assert_true(json_equal(a.rows[1].json, b.rows[1].json));
    cr_dataset_free(&a);
    cr_dataset_free(&b);
    assert_int_equal(load("w", wrong, sizeof wrong - 1, &from, cr_prompt_encode_rlvr, &b, &err),
                     CR_EFORMAT);
    assert_non_null(strstr(err.msg, "/w: row 1: the row has neither"));
    assert_non_null(strstr(err.msg, "(and 2 more wrong rows in "));
    cr_dataset_free(&b);
    assert_int_equal(load("torn", torn, sizeof torn - 1, &from, cr_prompt_encode_rlvr, &b, &err),
                     CR_EFORMAT);
    assert_non_null(strstr(err.msg, "read as one JSON array"));
    cr_dataset_free(&b);
}

/* The first bytes of other formats: each is named with what converts it. */
static void other_formats(void **state)
{
    static const struct {
        const char *bytes;
        size_t num;
        const char *error;
    } cases[] = {{"PAR1....", 8, "x: the Parquet file is not read: it ends early"},
                 {"\x1f\x8b\x08", 3, "gunzip -c "},
                 {"\xff\xfe{\0", 4, "iconv -f UTF-16"},
                 {"\xfe\xff\0{", 4, "iconv -f UTF-16"},
                 {"\x28\xb5\x2f\xfd.", 5, "zstd -dc"},
                 {"{\"q\":}", 6, ":1: not valid JSON: column"},
                 {"{}\n{", 4, "x:2: not valid JSON: column"},
                 {"{\0\"\0", 4, "iconv -f UTF-16LE"},
                 {"q,a\n", 4, "(a file is lines with one JSON object each"},
                 {"[\0{\0", 4, "iconv -f UTF-16LE"}};
    cr_worker_config from = {.data = {.prompt = (char[]){"q"}, .drops_unknown_tags = true}};
    cr_dataset data;
    cr_err err;

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        if (load("x", cases[i].bytes, cases[i].num, &from, cr_prompt_encode_rlvr, &data, &err) !=
                CR_EFORMAT ||
            !strstr(err.msg, cases[i].error))
            fail_msg("case %zu: %s", i, err.msg);
        assert_null(strstr(err.msg, "more wrong"));
        cr_dataset_free(&data);
    }
}

/* A run reads its rows more than once, and would wait for a writer for ever. */
static void pipes_are_refused(void **state)
{
    char *path = cr_path_join(temp_folder, "pipe");
    cr_dataset data = {0};
    cr_err err = {0};

    (void)state;
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(
        cr_dataset_load(&data, path, &(cr_row_coder){.encode = cr_prompt_encode_rlvr}, &err),
        CR_EFORMAT);
    assert_non_null(strstr(err.msg, "pipe is a pipe, a file is expected"));
    cr_dataset_free(&data);
    cr_free(path);
}

static cr_status encode_id(void *ctx, cr_row *row, cr_err *err)
{
    (void)ctx, (void)err;
    row->ids = CR_NEW_ARRAY(int32_t, 1);
    row->ids[0] = (int32_t)json_integer_value(json_object_get(row->json, "id"));
    return CR_OK;
}

/* Its files by name, without hidden ones; what holds no rows is refused. */
static void folders_are_their_files(void **state)
{
    static const struct {
        const char *name, *text, *ids, *error;
    } steps[] = {{"", "", "", "folder: the folder is empty"},
                 {"folder/b.jsonl", "{\"id\":51}\n{\"id\":52}", "34", NULL},
                 {"folder/c.json", "[{\"id\":53}]", "345", NULL},
                 {"folder/a.jsonl", "{\"id\":50}", "2345", NULL},
                 {"folder/.hidden", "x", "2345", NULL},
                 {"folder/d.jsonl", "x", "", "d.jsonl:1: "},
                 {"folder/notes.md", "x", "", "notes.md is no file of rows"}};
    char *folder = cr_path_join(temp_folder, "folder");
    cr_err err = {0};

    (void)state;
    assert_int_equal(cr_mkdirs(folder, &err), CR_OK);
    for (size_t i = 0; i < CR_COUNT(steps); i++) {
        cr_dataset data = {0};
        if (i) cr_free(put_file(steps[i].name, steps[i].text, strlen(steps[i].text)));
        err = (cr_err){0};
        cr_note(cr_dataset_load(&data, folder, &(cr_row_coder){.encode = encode_id}, &err));
        if (steps[i].error) {
            if (!strstr(err.msg, steps[i].error)) fail_msg("%zu: %s", i, err.msg);
        } else {
            assert_int_equal(data.num_rows, strlen(steps[i].ids));
            for (size_t k = 0; k < data.num_rows; k++)
                assert_int_equal(data.rows[k].ids[0], steps[i].ids[k]);
        }
        cr_dataset_free(&data);
    }
    cr_free(folder);
}

/* A question as text where a chat is expected: the message has the key that makes one of it. */
static void text_is_no_chat(void **state)
{
    cr_worker_config from = {.data = {.messages = (char[]){"q"}}};

    (void)state;
    check_rlvr("{\"tag\":\"gsm8k\",\"q\":\"3+4?\"}", &from, 0,
               "the column q is plain text, a list of messages is "
               "expected (data_args.columns: {q: {path: q, role: user}}");
    check_rlvr("{\"tag\":\"gsm8k\",\"q\":\" [3\"}", &from, 0, "q: not valid JSON");
    check_rlvr("{\"tag\":\"gsm8k\",\"q\":\"{}\"}", &from, 0, "the column q holds no list");
}

static int begin(void **state)
{
    tokenizer = byte_tokenizer();
    return make_temp_folder(state);
}

static int end(void **state)
{
    cr_tokenizer_close(tokenizer);
    cr_chat_close(chat);
    return remove_temp_folder(state);
}

/* What rollouts and the terminal show of a prompt. */
/* A ground truth that math_rule cannot read: its row is left out, and named. */
static void rows_that_no_rule_can_judge(void **state)
{
    static const char text[] =
        "{\"tag\":\"gsm8k\",\"ground_truth\":\"5\",\"prompt\":\"what is it?\"}\n"
        "{\"tag\":\"gsm8k\",\"ground_truth\":\"a \\\\Rightarrow 6\",\"prompt\":\"what is it?\"}\n"
        "{\"tag\":\"gsm8k\",\"ground_truth\":100000000000000000001,\"prompt\":\"what is it?\"}\n";
    cr_reward_config blocks[] = {{.domain = (char[]){"math_rule"},
                                  .rule = (char[]){"math_rule"},
                                  .tags = tags,
                                  .num_tags = 1,
                                  .probability = 1}};
    cr_config config = {.rewards = blocks, .num_rewards = 1, .sequence_length = 200};
    cr_worker_config from = {.data = {.prompt = (char[]){"prompt"}}};
    cr_prompt_maker maker = {
        .config = &config, .from = &from, .tokenizer = tokenizer, .prompt_length = 100};
    char *path = put_file("u.jsonl", text, sizeof text - 1);
    cr_dataset data = {0};
    cr_err err = {0};

    (void)state;
    if (cr_prompt_load(&maker, cr_prompt_encode_rlvr, &data, path, &err) != CR_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(data.num_rows, 2);
    assert_int_equal(maker.num_unread, 1);
    assert_non_null(strstr(maker.first_unread, "row 2: the ground truth cannot be read"));
    assert_string_equal(json_string_value(json_object_get(data.rows[1].json, "ground_truth")),
                        "100000000000000000001");
    assert_non_null(strstr(data.rows[1].text, ":100000000000000000001,"));
    cr_prompt_maker_close(&maker);
    cr_dataset_free(&data);
    cr_free(path);
}

static void what_is_asked(void **state)
{
    static const struct {
        const char *row, *asked;
    } cases[] = {
        {"{\"prompt\":\"another\",\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{"
         "\"role\":\"user\",\"content\":\"3+4=\"}],\"ground_truth\":\"7\",\"tag\":\"gsm8k\"}",
         "3+4="},
        {"{\"messages\":\"[{\\\"role\\\":\\\"user\\\",\\\"content\\\":\\\"3+4=\\\"}]\","
         "\"ground_truth\":\"7\",\"tag\":\"gsm8k\"}",
         "3+4="},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"3+4=\"}]"
         "}],\"ground_truth\":\"7\",\"tag\":\"gsm8k\"}",
         "3+4="},
    };
    cr_worker_config chats = {.data = {.messages = (char[]){"messages"}, .tag = (char[]){"tag"}}};
    cr_worker_config texts = {.data = {.prompt = (char[]){"prompt"}, .tag = (char[]){"tag"}}};
    cr_dataset data;
    cr_err err;

    (void)state;
    use_template("prompt: {% for m in messages %}{{ m.content }}{% endfor %}");
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        const char *row = cases[i].row;
        if (load("a.jsonl", row, strlen(row), &chats, cr_prompt_encode_rlvr, &data, &err) != CR_OK)
            fail_msg("%s", err.msg);
        assert_string_equal(json_string_value(data.rows[0].asked), cases[i].asked);
        cr_dataset_free(&data);
    }
    if (load("a.jsonl", cases[0].row, strlen(cases[0].row), &texts, cr_prompt_encode_rlvr, &data,
             &err) != CR_OK)
        fail_msg("%s", err.msg);
    assert_string_equal(json_string_value(data.rows[0].asked), "another");
    cr_dataset_free(&data);
    assert_int_equal(load("a.jsonl", cases[1].row, strlen(cases[1].row), &texts,
                          cr_prompt_encode_rlvr, &data, &err),
                     CR_EFORMAT);
    assert_non_null(strstr(err.msg, "the column prompt (data_args.prompt) is missing"));
    cr_dataset_free(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(turns_of_the_assistant),
                                       cmocka_unit_test(turns_without_reasoning),
                                       cmocka_unit_test(turns_that_cannot_be_found),
                                       cmocka_unit_test(domains_of_rows),
                                       cmocka_unit_test(several_rewards),
                                       cmocka_unit_test(tags_of_sources),
                                       cmocka_unit_test(what_is_asked),
                                       cmocka_unit_test(rows_that_no_rule_can_judge),
                                       cmocka_unit_test(images_are_refused),
                                       cmocka_unit_test(arrays_are_rows),
                                       cmocka_unit_test(other_formats),
                                       cmocka_unit_test(pipes_are_refused),
                                       cmocka_unit_test(folders_are_their_files),
                                       cmocka_unit_test(text_is_no_chat)};

    return cmocka_run_group_tests(tests, begin, end);
}
