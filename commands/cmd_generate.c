/* cmd_generate.c -- croll generate: completions of prompts, line by line (serve/lines/generate.h). */
#include "commands/commands.h"
#include "serve/lines/generate.h"

#include <math.h>

static int run(int argc, char **argv)
{
    cr_session_call call = {&cr_command_generate, argc, argv};
    cr_generate_args args = {.presence_penalty = CR_DEFAULT_OF(CR_PRESENCE_PENALTY),
                             .frequency_penalty = CR_DEFAULT_OF(CR_FREQUENCY_PENALTY),
                             .min_new_tokens = CR_DEFAULT_OF(CR_MIN_NEW_TOKENS),
                             .temperature = NAN,
                             .top_p = NAN,
                             .repetition_penalty = NAN,
                             .max_new_tokens = CR_NOT_GIVEN,
                             .top_k = CR_NOT_GIVEN,
                             .num = CR_NOT_GIVEN};
    const cr_option table[] = {
        {"prompt", CR_OPT_STRING, &args.prompt, "TEXT",
         "one prompt as it is, without chat template, instead of lines on stdin"},
        {"max-new-tokens", CR_OPT_INT, &args.max_new_tokens, "N",
         "most tokens of an answer (generating_args.max_new_tokens, " CR_DEFAULT_TEXT(
             CR_MAX_NEW_TOKENS) ")"},
        {"min-new-tokens", CR_OPT_INT, &args.min_new_tokens, "N",
         "no end of text and no stop text before (" CR_DEFAULT_TEXT(CR_MIN_NEW_TOKENS) ")"},
        {"temperature", CR_OPT_DOUBLE, &args.temperature, "T",
         "divides the logits; 0: greedy (generating_args.temperature, " CR_DEFAULT_TEXT(
             CR_TEMPERATURE) ")"},
        {"top-p", CR_OPT_DOUBLE, &args.top_p, "P",
         "draw from the fewest tokens that hold this much probability; 1: from all "
         "(generating_args.top_p, " CR_DEFAULT_TEXT(CR_TOP_P) ")"},
        {"top-k", CR_OPT_INT, &args.top_k, "K",
         "draw from the K likeliest tokens; 0 and -1: from all "
         "(generating_args.top_k, " CR_DEFAULT_TEXT(CR_TOP_K) ")"},
        {"repetition-penalty", CR_OPT_DOUBLE, &args.repetition_penalty, "R",
         "weakens tokens that were there before; 1: off "
         "(generating_args.repetition_penalty, " CR_DEFAULT_TEXT(CR_REPETITION_PENALTY) ")"},
        {"presence-penalty", CR_OPT_DOUBLE, &args.presence_penalty, "P",
         "subtracted from the logits of tokens that the answer has (" CR_DEFAULT_TEXT(
             CR_PRESENCE_PENALTY) ")"},
        {"frequency-penalty", CR_OPT_DOUBLE, &args.frequency_penalty, "F",
         "the same for each time that it has the token (" CR_DEFAULT_TEXT(
             CR_FREQUENCY_PENALTY) ")"},
        {"n", CR_OPT_INT, &args.num, "N",
         "completions a prompt (generating_args.num_return_sequences, " CR_DEFAULT_TEXT(
             CR_NUM_SAMPLES) ")"},
        {"seed", CR_OPT_INT, &args.seed, "SEED", "another seed, other draws (0)"},
        {"stop", CR_OPT_LIST, &args.stop, "TEXT",
         "end an answer at this text; may be given again (generating_args.stop_strings)"},
        {"json", CR_OPT_FLAG, &args.has_json, NULL, "one JSON object a completion"},
        CR_LINE_IMAGE_OPTIONS(args.images),
        CR_ADAPTER_OPTION(call.adapter),
        {"device", CR_OPT_STRING, &call.device, "NAME",
         "cpu (default), cuda (never run on a GPU: docs/cuda.md)"},
        CR_HOSTS_OPTIONS(call.hosts),
    };
    cr_err err = {0};
    bool is_help;
    int code = 0;

    if (cr_args_parse(&cr_command_generate, table, CR_COUNT(table), argc, argv, &call.words,
                      &is_help, &err) == CR_OK &&
        !is_help)
        code = cr_generate_run(&call, &args);
    cr_words_free(&call.words);
    cr_words_free(&args.stop);
    return err.status ? cr_command_fail(&cr_command_generate, &err) : code;
}

const cr_command cr_command_generate = {
    "generate",
    "generate MODEL [key=value ..] < LINES.jsonl",
    "Complete prompts: {\"id\", \"prompt\" or \"messages\" or \"input_ids\"} in, text or "
    "{\"id\",\"index\",\"prompt_ids\",\"output_ids\",\"text\",\"logprobs\",\"finish_reason\"} out, "
    "in order. On several ranks, each with all weights: device_mapping='list(range(0,4))'; on "
    "several hosts also --hosts h1:2,h2:2. The answers are those of one rank, byte for byte.",
    "echo '{\"id\":1,\"messages\":[{\"role\":\"user\",\"content\":\"354+3=\"}]}' | "
    "croll generate output/quickstart/sft_model --temperature 0",
    run,
};
