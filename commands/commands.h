/* commands.h -- the commands of croll, one entry each; main.c finds them here. */
#ifndef CR_COMMANDS_H
#define CR_COMMANDS_H

#include "base/args.h"

#define CR_VERSION "0.1.0"

/* Defined in commands/cmd_<name>.c. */
/* clang-format off */
#define CR_COMMAND_LIST(X) \
    X(run)                 \
    X(config)              \
    X(plan)                \
    X(generate)            \
    X(logprobs)            \
    X(grad)                \
    X(tokenize)            \
    X(detokenize)          \
    X(score)               \
    X(inspect)             \
    X(image)               \
    X(formula)             \
    X(init)                \
    X(export)              \
    X(report)              \
    X(replay)              \
    X(why)                 \
    X(bisect)              \
    X(eval)                \
    X(serve)               \
    X(doctor)              \
    X(reward)              \
    X(agent)               \
    X(actor)
/* clang-format on */

/* Of commands that run on several hosts; args: a cr_hosts_args. */
#define CR_HOSTS_OPTIONS(args)                                                           \
    {"hosts", CR_OPT_STRING, &(args).list, "H:N,..",                                     \
     "hosts and how many ranks each takes, reached by ssh (default: those of the Slurm " \
     "allocation this is in, or this host alone)"},                                      \
    {                                                                                    \
        "hostfile", CR_OPT_STRING, &(args).file, "FILE",                                 \
            "the same from a file: NAME slots=N a line"                                  \
    }

/* Of commands that read a run's file: *flag becomes a key of it (cr_words_add). */
#define CR_AS_FSDP2 "as_fsdp2=true"
#define CR_AS_FSDP2_OPTION(flag)                                                              \
    {                                                                                         \
        "as-fsdp2", CR_OPT_FLAG, &(flag), NULL,                                               \
            "run blocks of megatron and deepspeed as fsdp2: notes say what their keys become" \
    }

#define CR_COMMAND_DECLARE(name) extern const cr_command cr_command_##name;
CR_COMMAND_LIST(CR_COMMAND_DECLARE)
#undef CR_COMMAND_DECLARE

#endif
