/* fuzz_rows.c -- arbitrary bytes as a file of rows, lines or an array, of SFT (columns, messages), of pairs and of
 * RLVR, with columns as they are and made of others: every line is a row, is dropped, or is named by its number; ids of rows are in the vocabulary and rows
 * can be drawn. */
#include "data/prompts.h"
#include "tests/byte_tokenizer.h"
#include "tests/fuzz/mutator.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { VOCAB = 260, MAX_NUM = 40 };
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *tags[] = {(char[]){"gsm8k"}, (char[]){"ifeval"}};
static cr_reward_config rewards[] = {
    {.domain = (char[]){"math_rule"}, .tags = tags, .num_tags = 2},
    {.domain = (char[]){"ifeval"}, .tags = tags + 1, .num_tags = 1}};
static cr_data_column_part nested = {.path = (char[]){"a.b.0"}},
                           after = {.path = (char[]){"answer"}, .after = (char[]){"#"}},
                           chat_parts[] = {{.value = (char[]){"s"}, .role = (char[]){"system"}},
                                           {.path = (char[]){"messages"}}};
static cr_data_column columns[] = {
    {.name = (char[]){"prompt"}, .parts = &nested, .num_parts = 1},
    {.name = (char[]){"ground_truth"}, .parts = &after, .num_parts = 1},
    {.name = (char[]){"messages"}, .is_list = true, .parts = chat_parts, .num_parts = 2}};
static cr_tokenizer *tokenizer;
static cr_chat *chat;

static bool is_array(const uint8_t *data, size_t size)
{
    size_t i = size >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;

    while (i < size && memchr(" \t\r\n", data[i], 4))
        i++;
    return i < size && data[i] == '[';
}

static size_t count_lines(const uint8_t *data, size_t size)
{
    size_t num = 0, i = size >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    bool is_blank = true;

    for (; i < size; i++) {
        if (data[i] == '\n') is_blank = true;
        if (!memchr("\n \t\r", data[i], 4)) num += is_blank, is_blank = false;
    }
    return num;
}

static void load(const char *path, size_t num_lines, cr_row_encode encode, cr_prompt_maker *maker)
{
    cr_dataset rows = {0};
    cr_err err = {0};

    if (cr_prompt_load(maker, encode, &rows, path, &err) == CR_OK)
        CR_CHECK(num_lines == SIZE_MAX || rows.num_rows + rows.num_dropped == num_lines,
                 "%zu rows of %zu lines", rows.num_rows + rows.num_dropped, num_lines);
    else
        CR_CHECK(cr_exit_code(err.status) == 2 && strstr(err.msg, path), "%s", err.msg);
    for (size_t i = 0; i < rows.num_rows; i++) {
        const cr_row *row = &rows.rows[i];
        CR_CHECK(row->num_prompt <= row->num_ids && row->domain < 2, "row %zu", i);
        CR_CHECK(row->num_chosen
                     ? row->num_prompt > 0 && row->num_prompt + row->num_chosen <= MAX_NUM &&
                           row->num_chosen < row->num_ids - row->num_prompt &&
                           row->num_ids - row->num_chosen <= MAX_NUM
                     : row->num_ids <= MAX_NUM,
                 "lengths of row %zu", i);
        for (size_t k = 0; k < row->num_rewards; k++)
            CR_CHECK(row->num_rewards <= 2 && row->rewards[0] == row->domain &&
                         (row->rewards[k] == 0 || row->rewards[k] == 1),
                     "reward %zu of row %zu", k, i);
        for (size_t k = 0; k < row->num_ids; k++)
            CR_CHECK(row->ids[k] >= 0 && row->ids[k] < VOCAB, "id %d", row->ids[k]);
    }
    for (int d = 0; d < 2; d++) {
        cr_cursor cursor = {0};
        cr_order order;
        cr_order_init(&order, &rows, d, 7);
        for (size_t i = 0; order.num && i < 2 * order.num + 1; i++)
            CR_CHECK(rows.rows[cr_order_draw(&order, &cursor)].domain == d, "domain %d", d);
        cr_order_free(&order);
    }
    cr_prompt_maker_close(maker);
    cr_dataset_free(&rows);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cr_config config = {
        .rewards = rewards,
        .num_rewards = 2,
        .sequence_length = MAX_NUM,
        .train = {.data = {.messages = (char[]){"messages"}, .template = (char[]){"chatml"}}},
        .rows = {.prompt_key = (char[]){"prompt"},
                 .response_key = (char[]){"response"},
                 .chosen_key = (char[]){"response"},
                 .rejected_key = (char[]){"messages"},
                 .query_key = (char[]){"query"},
                 .system_key = (char[]){"system"}}};
    cr_prompt_maker maker = {.config = &config, .prompt_length = MAX_NUM};
    size_t num_lines = is_array(data, size) ? SIZE_MAX : count_lines(data, size);
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    char path[64];

    if (!tokenizer) {
        cr_err err = {0};
        tokenizer = byte_tokenizer();
        CR_CHECK(cr_chat_open("/nonexistent", &chat, &err) == CR_OK, "%s", err.msg);
    }
    maker.from = &config.train;
    maker.tokenizer = tokenizer;
    maker.chat = chat;
    CR_CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size, "%zu bytes of a file", size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    load(path, num_lines, cr_prompt_encode_sft, &maker);
    load(path, num_lines, cr_prompt_encode_rlvr, &maker);
    load(path, num_lines, cr_prompt_encode_pair, &maker);
    config.train.data.messages = NULL; /* prompt and response */
    load(path, num_lines, cr_prompt_encode_sft, &maker);
    config.train.data.prompt = (char[]){"prompt"}; /* ready text instead of messages */
    load(path, num_lines, cr_prompt_encode_rlvr, &maker);
    load(path, num_lines, cr_prompt_encode_pair, &maker);
    config.train.data.columns = columns;
    for (size_t n = 1; n <= CR_COUNT(columns); n++) {
        config.train.data.num_columns = n;
        config.train.data.messages = n == 3 ? (char[]){"messages"} : NULL;
        load(path, num_lines, n % 2 ? cr_prompt_encode_rlvr : cr_prompt_encode_sft, &maker);
    }
    close(fd);
    return 0;
}
