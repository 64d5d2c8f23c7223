/* cmd_detokenize.c -- croll detokenize: the text of token ids, line by line. */
#include "base/hub.h"
#include "base/json.h"
#include "commands/commands.h"
#include "text/lines.h"
#include "text/tokenizer.h"

static cr_status answer(cr_lines *lines, const cr_line *line, const cr_tokenizer *tokenizer,
                        bool skip_special, cr_err *err)
{
    cr_buf text = {0}, row = {0};
    cr_status status;

    if (line->error) return cr_lines_write_error(lines, line, err);
    cr_tokenizer_decode(tokenizer, line->ids, line->num_ids, skip_special, &text);
    cr_buf_addf(&row, "{\"id\":%s,\"text\":", line->id);
    cr_json_add_string(&row, text.data ? text.data : "", text.num_bytes);
    cr_buf_addc(&row, '}');
    status = cr_lines_write(lines, &row, err);
    cr_buf_free(&text);
    cr_buf_free(&row);
    return status;
}

/* A model's matrix may have more rows than there are tokens: such an id has no text. */
static int64_t num_ids(const char *model, const cr_tokenizer *tokenizer)
{
    char *folder = cr_hub_find(model), *path = cr_path_join(folder ? folder : model, "config.json");
    const json_t *rows;
    json_t *root = NULL;
    cr_err ignored = {0};
    int64_t num = cr_tokenizer_num_ids(tokenizer);

    if (cr_file_exists(path)) cr_note(cr_json_read_file(path, &root, &ignored));
    rows = json_object_get(root, "vocab_size");
    if (!rows) rows = json_object_get(json_object_get(root, "text_config"), "vocab_size");
    if (json_integer_value(rows) > num && json_integer_value(rows) < INT32_MAX)
        num = json_integer_value(rows);
    json_decref(root);
    cr_free(folder);
    cr_free(path);
    return num;
}

static cr_status detokenize(const cr_words *words, bool skip_special, cr_err *err)
{
    cr_line_rules rules = {.may_be_empty = true};
    cr_tokenizer *tokenizer = NULL;
    cr_status status;
    cr_lines lines;
    cr_line line;

    if (words->num != 1) return cr_fail(err, CR_EUSAGE, "give one MODEL, a folder");
    CR_TRY(cr_tokenizer_open(words->word[0], &tokenizer, err));
    rules.vocab_size = num_ids(words->word[0], tokenizer);
    cr_lines_init(&lines, stdin, stdout);
    for (status = CR_OK; status == CR_OK && cr_lines_next(&lines, &rules, &line);) {
        status = answer(&lines, &line, tokenizer, skip_special, err);
        cr_line_free(&line);
    }
    if (status == CR_OK && lines.has_failed)
        status = cr_fail(err, CR_EFORMAT, "some lines were bad; their answers say why");
    cr_lines_fini(&lines);
    cr_tokenizer_close(tokenizer);
    return status;
}

static int run(int argc, char **argv)
{
    bool skip_special = false, is_help;
    const cr_option options[] = {
        {"skip-special", CR_OPT_FLAG, &skip_special, NULL,
         "leave out special tokens (default: keep them)"},
    };
    cr_words words = {0};
    cr_err err = {0};

    if (cr_args_parse(&cr_command_detokenize, options, CR_COUNT(options), argc, argv, &words,
                      &is_help, &err) == CR_OK &&
        !is_help)
        cr_note(detokenize(&words, skip_special, &err));
    cr_words_free(&words);
    return err.status ? cr_command_fail(&cr_command_detokenize, &err) : 0;
}

const cr_command cr_command_detokenize = {
    "detokenize",
    "detokenize MODEL [--skip-special]",
    "Text of token ids: JSONL {\"id\",\"input_ids\"} on stdin, {\"id\",\"text\"} on stdout. Only "
    "the "
    "tokenizer of MODEL is read.",
    "echo '{\"id\":1,\"input_ids\":[51,43,52,61]}' | croll detokenize "
    "output/quickstart/sft_model",
    run,
};
