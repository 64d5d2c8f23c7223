/* cmd_serve.c -- `croll serve`: models as a service over HTTP (serve/models/start.h). */
#include "commands/commands.h"
#include "serve/models/start.h"

static int run(int argc, char **argv)
{
    cr_session_call call = {&cr_command_serve, argc, argv};
    cr_serve_args args = {.service = {.max_prompts = 1024, .max_samples = 128, .max_logprobs = 128},
                          .options = {.http = cr_http_defaults,
                                      .access_log = "-",
                                      .max_queue = 1024,
                                      .max_queue_tokens = 8 << 20,
                                      .drain_s = 30,
                                      .stall_s = 60,
                                      .metrics_prefix = "croll_",
                                      .version = CR_VERSION}};
    cr_http_options *h = &args.options.http;
    cr_serve_service *service = &args.service;
    const cr_option options[] = {
        {"listen", CR_OPT_STRING, &h->listen, "ADDRESS",
         "HOST:PORT (default 127.0.0.1:8000; port 0: any free one) or unix:PATH"},
        {"keys", CR_OPT_STRING, &args.options.keys, "FILE",
         "a line a user: NAME KEY SCOPES [REQUESTS/S [WEIGHT]]; scopes score,generate,admin"},
        {"allow-updates", CR_OPT_FLAG, &args.options.can_update, NULL,
         "users with the scope admin may replace weights while it runs; else they never change"},
        {"no-auth", CR_OPT_FLAG, &args.options.needs_no_keys, NULL,
         "no keys, although other machines reach the address"},
        {"tls-cert", CR_OPT_STRING, &h->tls_cert, "FILE",
         "HTTPS with this certificate chain (PEM)"},
        {"tls-key", CR_OPT_STRING, &h->tls_key, "FILE", "and its key"},
        {"tls-ca", CR_OPT_STRING, &h->tls_ca, "FILE",
         "clients must show a certificate of this authority; its CN is the user's name"},
        {"role", CR_OPT_STRING, &args.role, "NAME",
         "block of FILE: reference (default), teacher, actor_infer or rewards.DOMAIN"},
        {"served-model-name", CR_OPT_STRING, &args.name, "NAME",
         "name in requests (default: MODEL)"},
        {"max-queue", CR_OPT_INT, &args.options.max_queue, "N",
         "requests that may wait, more get 503 (default 1024)"},
        {"max-queue-tokens", CR_OPT_INT, &args.options.max_queue_tokens, "N",
         "and their tokens, as estimated by the size of a request (default 8388608)"},
        {"drain-s", CR_OPT_DOUBLE, &args.options.drain_s, "SECONDS",
         "that SIGTERM gives to requests that were taken (default 30)"},
        {"stall-s", CR_OPT_DOUBLE, &args.options.stall_s, "SECONDS",
         "after which work that does not move makes /health 503 (default 60)"},
        {"max-logprobs", CR_OPT_INT, &service->max_logprobs, "K",
         "most log-probs a place that a request may ask for (default 128)"},
        {"score-only", CR_OPT_FLAG, &service->only_scores, NULL,
         "at most one token is sampled; without the engine's copy of the weights"},
        {"allow-random", CR_OPT_FLAG, &args.may_be_random, NULL,
         "also a model that gives nearly equal chances to all tokens"},
        {"clamp-max-tokens", CR_OPT_FLAG, &service->clamps_max_tokens, NULL,
         "max_tokens beyond the context is cut instead of refused"},
        {"max-chat-tokens", CR_OPT_INT, &service->max_chat_tokens, "N",
         "of a chat without max_tokens (default: what is left of the context)"},
        {"max-connections", CR_OPT_INT, &h->max_connections, "N",
         "at the same time (default 4096)"},
        {"half-close", CR_OPT_FLAG, &h->is_half_close_fine, NULL,
         "a client that has closed its sending side still waits for the answer"},
        {"access-log", CR_OPT_STRING, &args.options.access_log, "FILE",
         "a JSON line a request; -: stderr (default); none"},
        {"metrics-prefix", CR_OPT_STRING, &args.options.metrics_prefix, "TEXT",
         "of names at /metrics (default croll_)"},
        {"quiet", CR_OPT_FLAG, &args.is_quiet, NULL,
         "no notes on FILE, no line that says where it listens"},
        {"port-file", CR_OPT_STRING, &args.port_file, "FILE", "gets the number of the port"},
        {"adapter", CR_OPT_LIST, &args.adapters, "[NAME=]DIR",
         "a LoRA adapter in PEFT's layout beside MODEL, which requests name as their model "
         "(default: DIR); may be given again"},
        {"device", CR_OPT_STRING, &call.device, "NAME",
         "cpu, cuda (never run on a GPU: docs/cuda.md); default: device of FILE, cpu of a MODEL"},
        CR_HOSTS_OPTIONS(call.hosts),
    };
    cr_err err = {0};
    bool is_help = false;
    int code = 0;

    h->listen = "127.0.0.1:8000";
    if (cr_args_parse(&cr_command_serve, options, CR_COUNT(options), argc, argv, &call.words,
                      &is_help, &err) == CR_OK &&
        !is_help)
        code = cr_serve_run(&call, &args);
    cr_words_free(&call.words);
    cr_words_free(&args.adapters);
    return err.status ? cr_command_fail(&cr_command_serve, &err) : code;
}

const cr_command cr_command_serve = {
    "serve",
    "serve MODEL|NAME=MODEL ..|FILE [key=value ..]",
    "A model, several by name, or the reference of a run's YAML file, as a service over HTTP, for "
    "clients of "
    "OpenAI, vLLM and SGLang: log-probs of prompts, "
    "samples, chats, streams. Ends with SIGTERM or Ctrl-C.",
    "croll serve output/quickstart/sft_model --listen 127.0.0.1:8000 model_args.dtype=fp32\n"
    "  croll serve output/quickstart/model --served-model-name base --adapter "
    "sums=output/lora/adapter",
    run,
};
