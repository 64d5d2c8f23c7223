/* cmd_logprobs.c -- croll logprobs: log-probs of given tokens, line by line (serve/lines/logprobs.h). */
#include "commands/commands.h"
#include "serve/lines/logprobs.h"

static int run(int argc, char **argv)
{
    cr_session_call call = {&cr_command_logprobs, argc, argv};
    cr_logprobs_args args = {0};
    const cr_option options[] = {
        {"entropy", CR_OPT_FLAG, &args.has_entropy, NULL,
         "also the entropy at every position (nats)"},
        {"top-logprobs", CR_OPT_INT, &args.num_top, "K",
         "also the K most likely ids at every position, top_ids, and their top_logprobs (of equal "
         "ones the lower id first)"},
        {"rank", CR_OPT_FLAG, &args.has_rank, NULL,
         "also the rank of every token: 1 + ids that are more likely"},
        {"logits", CR_OPT_STRING, &args.logits, "FILE",
         "also write float32 [tokens, vocabulary] per id to this safetensors file"},
        CR_LINE_IMAGE_OPTIONS(args.images),
        CR_ADAPTER_OPTION(call.adapter),
        {"device", CR_OPT_STRING, &call.device, "NAME",
         "cpu (default), cuda (never run on a GPU: docs/cuda.md)"},
        CR_HOSTS_OPTIONS(call.hosts),
    };
    cr_err err = {0};
    bool is_help;
    int code = 0;

    if (cr_args_parse(&cr_command_logprobs, options, CR_COUNT(options), argc, argv, &call.words,
                      &is_help, &err) == CR_OK &&
        !is_help)
        code = cr_logprobs_run(&call, &args);
    cr_words_free(&call.words);
    return err.status ? cr_command_fail(&cr_command_logprobs, &err) : code;
}

const cr_command cr_command_logprobs = {
    "logprobs",
    "logprobs MODEL [key=value ..] < LINES.jsonl",
    "Log-probability of every next token of each line: {\"id\", \"input_ids\" or \"prompt\" or "
    "\"messages\"} in, {\"id\",\"input_ids\",\"logprobs\"} out, in order. \"candidates\" of a "
    "line, "
    "[id, ..] or a list of those for each token after the first, adds candidate_logprobs.",
    "echo '{\"id\":1,\"input_ids\":[51,43,52,61]}' | croll logprobs output/quickstart/sft_model "
    "model_args.dtype=fp32 --entropy",
    run,
};
