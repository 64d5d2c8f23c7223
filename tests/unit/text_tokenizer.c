/* text_tokenizer.c -- two small tokenizers against the ids and texts of Hugging Face's library
 * (tests/parity/tokenizers.py), a stream against the whole decoding, files that must be refused, and
 * seeded mutations of a tokenizer.json.
 * Not covered: large vocabularies and random text. */
#include "base/json.h"
#include "tests/check_near.h"
#include "text/tokenizer.h"

#include <string.h>

#define BYTES  "tests/parity/tokenizers/bytes"
#define PIECES "tests/parity/tokenizers/pieces"

static cr_tokenizer *open_folder(const char *folder)
{
    cr_tokenizer *t;
    cr_err err = {0};

    if (cr_tokenizer_open(folder, &t, &err) != CR_OK) fail_msg("%s", err.msg);
    return t;
}

static void check_ids(const cr_tokenizer *t, const char *text, size_t num_bytes, bool add_special,
                      const int32_t *want, size_t num)
{
    cr_ids ids = {0};
    cr_err err = {0};

    if (cr_tokenizer_encode(t, text, num_bytes, add_special, &ids, &err) != CR_OK)
        fail_msg("%s: %s", text, err.msg);
    if (ids.num != num || (num && memcmp(ids.id, want, num * sizeof *want)))
        fail_msg("\"%s\": %zu ids, the first %d, expected %zu, %d", text, ids.num,
                 ids.num ? ids.id[0] : -1, num, num ? want[0] : -1);
    cr_ids_free(&ids);
}

static void check_text(const cr_tokenizer *t, const int32_t *ids, size_t num, bool skip_special,
                       const char *want)
{
    cr_token_stream stream;
    cr_buf whole = {0}, pieces = {0};

    cr_tokenizer_decode(t, ids, num, skip_special, &whole);
    assert_string_equal(whole.data ? whole.data : "", want);
    cr_token_stream_init(&stream, t, skip_special);
    for (size_t i = 0; i < num; i++) {
        cr_token_stream_push(&stream, ids[i], &pieces);
        assert_true(cr_utf8_valid(pieces.data, pieces.num_bytes));
    }
    cr_token_stream_end(&stream, &pieces);
    assert_string_equal(pieces.data ? pieces.data : "", want);
    cr_buf_free(&whole);
    cr_buf_free(&pieces);
}

static void check_cases(const char *folder)
{
    cr_tokenizer *t = open_folder(folder);
    char *path = cr_path_join(folder, "cases.jsonl");
    cr_buf file = {0};
    cr_err err = {0};
    int num_cases = 0;
    char *next, *line;

    assert_int_equal(cr_file_read(path, &file, &err), CR_OK);
    for (next = file.data; (line = strsep(&next, "\n")) && *line; num_cases++) {
        json_t *json, *list, *entry;
        int32_t ids[512];
        size_t at;
        assert_int_equal(cr_json_parse(line, strlen(line), "case", &json, &err), CR_OK);
        list = json_object_get(json, "ids");
        assert_true(json_array_size(list) <= CR_COUNT(ids));
        json_array_foreach(list, at, entry) ids[at] = (int32_t)json_integer_value(entry);
        check_ids(t, json_string_value(json_object_get(json, "text")),
                  json_string_length(json_object_get(json, "text")), true, ids,
                  json_array_size(list));
        check_text(t, ids, json_array_size(list), false,
                   json_string_value(json_object_get(json, "decoded")));
        json_decref(json);
    }
    assert_true(num_cases >= 15);
    cr_free(path);
    cr_buf_free(&file);
    cr_tokenizer_close(t);
}

static void given_encodings(void **state)
{
    (void)state;
    check_cases(BYTES);
    check_cases(PIECES);
}

/* Spaces become U+2581, one in front; characters without a token become bytes. */
static void byte_fallback(void **state)
{
    cr_tokenizer *t = open_folder(PIECES);
    static const char text[] = "Once upon a time\n\xF0\x9F\x98\x80";
    const int32_t broken[] = {3 + 0xF0, 3 + 0x9F, 3 + 'a'}; /* <0x00> has id 3 */
    cr_ids ids = {0};
    cr_err err = {0};

    (void)state;
    assert_int_equal(cr_tokenizer_find(t, "<0x0A>"), 3 + '\n');
    assert_int_equal(cr_tokenizer_role(t, CR_TOKEN_BOS), 1);
    assert_int_equal(cr_tokenizer_role(t, CR_TOKEN_EOS), 2);
    assert_int_equal(cr_tokenizer_num_ids(t), 420);
    assert_int_equal(cr_tokenizer_encode(t, text, strlen(text), true, &ids, &err), CR_OK);
    assert_int_equal(ids.id[0], 1);
    assert_int_equal(ids.id[ids.num - 4], 3 + 0xF0);
    check_text(t, ids.id, ids.num, true, text);
    check_text(t, broken, CR_COUNT(broken), false, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    cr_ids_free(&ids);
    cr_tokenizer_close(t);
}

/* ---- files made here ---- */

#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]"

static cr_status parse(const char *json, size_t num_bytes, cr_tokenizer **t, cr_err *err)
{
    *err = (cr_err){0};
    return cr_tokenizer_parse(json, num_bytes, NULL, "x", t, err);
}

static void added_tokens(void **state)
{
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\"," VOCAB "},\"added_tokens\":["
        "{\"id\":5,\"content\":\"<x>\",\"normalized\":false,\"lstrip\":true,\"special\":true},"
        "{\"id\":6,\"content\":\"<x><y>\",\"normalized\":false},"
        "{\"id\":7,\"content\":\"ba\",\"normalized\":false,\"single_word\":true}]}";
    static const struct {
        const char *text;
        int32_t ids[5];
        size_t num;
    } cases[] = {
        {"ab<x><y>a", {2, 6, 0}, 3}, /* the longest, and no pair over it */
        {"ab \n<x>b", {2, 5, 1}, 3}, /* white space on its left goes with it */
        {"ba", {7}, 1},
        {"bab", {1, 2}, 2}, /* part of a word */
        {"a<x", {0}, 1},    /* no token, no unk: nothing */
        {"", {0}, 0},
    };
    cr_tokenizer *t;
    cr_err err;

    (void)state;
    if (parse(json, strlen(json), &t, &err) != CR_OK) fail_msg("%s", err.msg);
    for (size_t i = 0; i < CR_COUNT(cases); i++)
        check_ids(t, cases[i].text, strlen(cases[i].text), true, cases[i].ids, cases[i].num);
    assert_true(cr_tokenizer_is_special(t, 5) && !cr_tokenizer_is_special(t, 6));
    assert_null(cr_tokenizer_token(t, 3, NULL));
    cr_tokenizer_close(t);
}

/* Many added tokens: each is copied once, and not again with all that follow (which would take hours). */
static void many_added_tokens(void **state)
{
    enum { NUM = 300000 };
    cr_buf json = {0};
    cr_tokenizer *t;
    cr_err err;

    (void)state;
    cr_buf_adds(&json, "{\"model\":{\"type\":\"BPE\"," VOCAB "},\"added_tokens\":[");
    for (int i = 0; i < NUM; i++)
        cr_buf_addf(&json, "%s{\"id\":%d,\"content\":\"<%d>\",\"normalized\":false}", i ? "," : "",
                    i + 3, i);
    cr_buf_adds(&json, "]}");
    if (parse(json.data, json.num_bytes, &t, &err) != CR_OK) fail_msg("%s", err.msg);
    check_ids(t, "a<299999>b<7>", 13, true, (const int32_t[]){0, NUM + 2, 1, 10}, 4);
    cr_buf_free(&json);
    cr_tokenizer_close(t);
}

/* Thirty normalizers, each of which doubles every a: refused, not 2^30 of them. */
static void growth(void **state)
{
    cr_buf json = {0};
    cr_tokenizer *t;
    cr_ids ids = {0};
    cr_err err;

    (void)state;
    cr_buf_adds(&json, "{\"model\":{\"type\":\"BPE\"," VOCAB "},\"normalizer\":{\"type\":"
                       "\"Sequence\",\"normalizers\":[");
    for (int i = 0; i < 30; i++)
        cr_buf_addf(&json,
                    "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aa\"}",
                    i ? "," : "");
    cr_buf_adds(&json, "]}}");
    if (parse(json.data, json.num_bytes, &t, &err) != CR_OK) fail_msg("%s", err.msg);
    assert_int_equal(cr_tokenizer_encode(t, "bab", 3, true, &ids, &err), CR_EFORMAT);
    assert_non_null(strstr(err.msg, "its normalizer makes more than 1048768 bytes of a text"));
    err = (cr_err){0};
    assert_int_equal(cr_tokenizer_encode(t, "b", 1, true, &ids, &err), CR_OK);
    cr_ids_free(&ids);
    cr_buf_free(&json);
    cr_tokenizer_close(t);
}

static void bad_files(void **state)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"model\":5}",
        "{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999},\"merges\":[]}}",
        "{\"model\":{\"type\":\"BPE\",\"dropout\":0.1," VOCAB "}}",
        "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"q\"," VOCAB "}}",
        "{\"model\":{" VOCAB "},\"normalizer\":{\"type\":\"NFQ\"}}",
        "{\"model\":{" VOCAB
        "},\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},"
        "\"behavior\":\"Isolated\",\"invert\":false}}",
        "{\"model\":{" VOCAB "},\"decoder\":{\"type\":\"WordPiece\"}}",
        "{\"model\":{" VOCAB "},\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
        "{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{}}"
        "}",
        "{\"model\":{" VOCAB "},\"added_tokens\":[{\"id\":1,\"content\":\"z\"}]}",
    };
    cr_tokenizer *t;
    cr_err err;

    (void)state;
    for (size_t i = 0; i < CR_COUNT(bad); i++) {
        if (parse(bad[i], strlen(bad[i]), &t, &err) != CR_EFORMAT) fail_msg("accepted: %s", bad[i]);
        assert_null(t);
        assert_memory_equal(err.msg, "x: ", 3);
    }
}

/* 1,000 copies of the small file with bytes changed, cut out or doubled: refused, or usable. */
static void mutations(void **state)
{
    cr_buf file = {0}, copy = {0}, text = {0};
    cr_err err = {0};
    uint64_t x = 7;

    (void)state;
    cr_tokenizer_close(open_folder(BYTES));
    assert_int_equal(cr_file_read(BYTES "/tokenizer.json", &file, &err), CR_OK);
    for (int i = 0; i < 1000; i++) {
        cr_tokenizer *t;
        cr_ids ids = {0};
        cr_buf_clear(&copy);
        cr_buf_add(&copy, file.data, file.num_bytes);
        for (int k = 0; k <= i % 4; k++) {
            size_t at, num;
            x = x * 6364136223846793005u + 1442695040888963407u;
            at = (size_t)(x >> 33) % copy.num_bytes;
            num = (size_t)(x >> 20) % 9;
            if (at + num > copy.num_bytes) num = copy.num_bytes - at;
            if (x >> 63)
                copy.data[at] = (char)(x >> 40);
            else {
                memmove(copy.data + at, copy.data + at + num, copy.num_bytes - at - num);
                copy.num_bytes -= num;
            }
        }
        if (parse(copy.data, copy.num_bytes, &t, &err) == CR_OK) {
            static const char sample[] = "the ranks <|endoftext|> 01 e\xCC\x81\n";
            if (cr_tokenizer_encode(t, sample, strlen(sample), true, &ids, &err) == CR_OK) {
                cr_buf_clear(&text);
                cr_tokenizer_decode(t, ids.id, ids.num, false, &text);
                assert_true(cr_utf8_valid(text.data, text.num_bytes));
            }
            cr_ids_free(&ids);
            cr_tokenizer_close(t);
        } else {
            assert_int_equal(cr_exit_code(err.status), 2);
        }
    }
    cr_buf_free(&file);
    cr_buf_free(&copy);
    cr_buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(given_encodings), cmocka_unit_test(byte_fallback),
        cmocka_unit_test(added_tokens),    cmocka_unit_test(many_added_tokens),
        cmocka_unit_test(growth),          cmocka_unit_test(bad_files),
        cmocka_unit_test(mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
