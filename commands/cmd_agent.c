/* cmd_agent.c -- `croll agent`: one host of the checks before a run, started there by `croll run` and `croll doctor --hosts`. */
#include "commands/commands.h"
#include "launch/preflight/agent.h"

#include <unistd.h>

static int run(int argc, char **argv)
{
    cr_words words = {0};
    cr_err err = {0};
    bool is_help;

    if (cr_args_parse(&cr_command_agent, NULL, 0, argc, argv, &words, &is_help, &err) == CR_OK &&
        !is_help)
        cr_note(cr_agent_serve(STDIN_FILENO, STDOUT_FILENO, &err));
    cr_words_free(&words);
    return err.status ? cr_command_fail(&cr_command_agent, &err) : 0;
}

const cr_command cr_command_agent = {
    .name = "agent",
    .usage = "agent",
    .summary = "Answers for one host in the checks before a run over hosts (croll run and croll "
               "doctor --hosts start "
               "it there). Lines of JSON on stdin and stdout.",
    .example = "echo '{\"ask\":\"clock\"}' | croll agent",
    .run = run,
    .is_hidden = true,
};
