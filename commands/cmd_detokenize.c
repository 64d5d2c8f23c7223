/* cmd_detokenize.c -- croll detokenize: the text of token ids, line by line. */
#include "commands/commands.h"
#include "commands/lines.h"
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

static cr_status detokenize(const cr_words *words, bool skip_special, cr_err *err)
{
    /* an id without a token has no text: a model's matrix may have more rows than there are tokens */
    cr_line_rules rules = {.vocab_size = INT32_MAX, .may_be_empty = true};
    cr_tokenizer *tokenizer = NULL;
    cr_status status;
    cr_lines lines;
    cr_line line;

    if (words->num != 1) return cr_fail(err, CR_EUSAGE, "give one MODEL, a folder");
    CR_TRY(cr_tokenizer_open(words->word[0], &tokenizer, err));
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
