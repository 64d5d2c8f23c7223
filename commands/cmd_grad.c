/* cmd_grad.c -- croll grad: the full gradient of the cross entropy of given lines (serve/lines/grad.h). */
#include "commands/commands.h"
#include "serve/lines/grad.h"

static int run(int argc, char **argv)
{
    cr_session_call call = {&cr_command_grad, argc, argv};
    cr_line_image_words images = {0};
    const char *path = NULL;
    const cr_option options[] = {
        {"out", CR_OPT_STRING, &path, "FILE",
         "the gradient: a safetensors file, float32 (required)"},
        CR_LINE_IMAGE_OPTIONS(images),
        {"device", CR_OPT_STRING, &call.device, "NAME",
         "cpu (default), cuda (never run on a GPU: docs/cuda.md)"},
        CR_HOSTS_OPTIONS(call.hosts),
    };
    cr_err err = {0};
    bool is_help;
    int code = 0;

    if (cr_args_parse(&cr_command_grad, options, CR_COUNT(options), argc, argv, &call.words,
                      &is_help, &err) == CR_OK &&
        !is_help) {
        if (!path)
            cr_fail(&err, CR_EUSAGE, "--out FILE is missing (where the gradient goes)");
        else
            code = cr_grad_run(&call, path, &images);
    }
    cr_words_free(&call.words);
    return err.status ? cr_command_fail(&cr_command_grad, &err) : code;
}

const cr_command cr_command_grad = {
    "grad",
    "grad MODEL --out G.safetensors [key=value ..] < LINES.jsonl",
    "Gradient of the mean cross entropy over all label tokens of all lines; prints loss, tokens "
    "and "
    "grad_norm.",
    "echo '{\"id\":1,\"input_ids\":[51,43,52,61]}' | croll grad output/quickstart/sft_model --out "
    "/tmp/g.safetensors model_args.dtype=fp32",
    run,
};
