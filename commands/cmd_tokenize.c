/* cmd_tokenize.c -- croll tokenize: token ids of texts and chats, line by line. */
#include "commands/commands.h"
#include "text/encoder.h"
#include "text/lines.h"

typedef struct ask {
    cr_encoder encoder;
    bool has_text;
} ask;

static cr_status encode(void *ctx, const json_t *value, bool is_messages, int32_t **ids,
                        size_t *num, cr_err *err)
{
    ask *a = ctx;

    return cr_encoder_encode(&a->encoder, value, is_messages, ids, num, err);
}

static void add_images(cr_buf *row, const cr_image_items *items)
{
    cr_buf_adds(row, ",\"images\":[");
    for (size_t i = 0; i < items->num; i++) {
        const cr_image_item *item = &items->item[i];
        cr_buf_addf(row,
                    "%s{\"sha256\":\"%s\",\"width\":%d,\"height\":%d,\"grid\":[%d,%d,%d],"
                    "\"tokens\":%lld}",
                    i ? "," : "", item->digest, item->width, item->height, item->grid[0],
                    item->grid[1], item->grid[2], (long long)item->num_tokens);
    }
    cr_buf_addc(row, ']');
}

static cr_status answer(const ask *a, cr_lines *lines, const cr_line *line, cr_err *err)
{
    cr_buf row = {0};
    cr_status status;

    if (line->error) return cr_lines_write_error(lines, line, err);
    cr_buf_addf(&row, "{\"id\":%s,\"input_ids\":", line->id);
    cr_json_add_ids(&row, line->ids, line->num_ids);
    if (a->has_text) {
        cr_buf_adds(&row, ",\"text\":");
        cr_json_add_string(&row, a->encoder.text.data ? a->encoder.text.data : "",
                           a->encoder.text.num_bytes);
    }
    if (a->encoder.items.num) add_images(&row, &a->encoder.items);
    cr_buf_addc(&row, '}');
    status = cr_lines_write(lines, &row, err);
    cr_buf_free(&row);
    return status;
}

static cr_status tokenize(ask *a, const cr_words *words, cr_err *err)
{
    cr_line_rules rules = {
        .encode = encode, .ctx = a, .text_key = "text", .refuses_ids = true, .may_be_empty = true};
    cr_status status;
    cr_lines lines;
    cr_line line;

    if (words->num != 1) return cr_fail(err, CR_EUSAGE, "give one MODEL, a folder");
    CR_TRY(cr_encoder_open(&a->encoder, words->word[0], err));
    cr_lines_init(&lines, stdin, stdout);
    for (status = CR_OK; status == CR_OK && cr_lines_next(&lines, &rules, &line);) {
        status = answer(a, &lines, &line, err);
        cr_line_free(&line);
    }
    if (status == CR_OK && lines.has_failed)
        status = cr_fail(err, CR_EFORMAT, "some lines were bad; their answers say why");
    cr_lines_fini(&lines);
    return status;
}

static int run(int argc, char **argv)
{
    ask a = {.encoder.reads_images = true};
    const cr_option options[] = {
        {"text", CR_OPT_FLAG, &a.has_text, NULL, "also the text that was encoded"},
        {"image-folder", CR_OPT_STRING, &a.encoder.image_folder, "DIR",
         "where paths of images begin, which parts of messages may have (default: no paths)"},
        {"no-special", CR_OPT_FLAG, &a.encoder.has_no_special, NULL,
         "a text without the tokens that the tokenizer adds to it (BOS; default: with them)"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help;

    if (cr_args_parse(&cr_command_tokenize, options, CR_COUNT(options), argc, argv, &words,
                      &is_help, &err) == CR_OK &&
        !is_help)
        cr_note(tokenize(&a, &words, &err));
    cr_encoder_close(&a.encoder);
    cr_words_free(&words);
    return err.status ? cr_command_fail(&cr_command_tokenize, &err) : 0;
}

const cr_command cr_command_tokenize = {
    "tokenize",
    "tokenize MODEL [--text] [--no-special]",
    "Token ids of texts: JSONL {\"id\",\"text\"} or {\"id\",\"messages\"} on stdin, "
    "{\"id\",\"input_ids\"} on stdout. Only the tokenizer of MODEL is read, and its processor of "
    "images.",
    "echo '{\"id\":1,\"text\":\"354+3=\"}' | croll tokenize output/quickstart/sft_model",
    run,
};
