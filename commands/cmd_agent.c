/* cmd_agent.c -- `croll agent`: one host of the checks before a run, started there by `croll run` and `croll doctor --hosts`. */
#include "commands/commands.h"
#include "kernels/cpu_variants.h"
#include "kernels/gpu.h"
#include "launch/cores/topology.h"
#include "launch/preflight/agent.h"

#include <stdio.h>
#include <unistd.h>

/* What rooms below launch/ know of this host. */
static cr_status look_here(const cr_gpu_report *gpus, cr_agent_look *host, cr_err *err)
{
    cr_topology t;
    cr_buf cpus = {0};
    const char *name;

    CR_TRY_GOTO(out, cr_topology_read(NULL, &t, err));
    *host = (cr_agent_look){
        .num_gpus = gpus->num_gpus, .num_cores = t.num_cores, .num_nodes = t.num_nodes};
    if (gpus->num_listed) snprintf(host->gpu, sizeof host->gpu, "%.63s", gpus->gpu[0].name);
    for (size_t i = 0; (name = cr_cpu_variant_here(i)); i++)
        cr_buf_addf(&cpus, "%s%s", i ? " " : "", name);
    snprintf(host->cpus, sizeof host->cpus, "%.*s", (int)sizeof host->cpus - 1, cpus.data);
out:
    cr_buf_free(&cpus);
    cr_topology_free(&t);
    return err->status;
}

static int run(int argc, char **argv)
{
    cr_gpu_report *gpus = CR_NEW(cr_gpu_report);
    cr_agent_look host = {0};
    cr_words words = {0};
    cr_err err = {0}, absent = {0};
    bool is_help;

    if (cr_args_parse(&cr_command_agent, NULL, 0, argc, argv, &words, &is_help, &err) == CR_OK &&
        !is_help) {
        cr_note(cr_gpu_probe(gpus, &absent)); /* without GPUs it has none to tell */
        cr_note(look_here(gpus, &host, &err));
        if (err.status == CR_OK) cr_note(cr_agent_serve(STDIN_FILENO, STDOUT_FILENO, &host, &err));
    }
    cr_words_free(&words);
    cr_free(gpus);
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
