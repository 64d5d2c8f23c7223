/* cmd_plan.c -- `croll plan`: batch arithmetic, meshes, memory and traffic of a run before it starts (plan/run/make.h). */
#include "commands/commands.h"
#include "plan/run/make.h"

static int run(int argc, char **argv);

const cr_command cr_command_plan = {
    "plan",
    "plan FILE [key=value ..] [--world N] [--memory 80GB] [--hosts 128x8] [--tree] [--json] "
    "[--html PAGE] [--images-per-row N]",
    "Memory, traffic and batch arithmetic of a run, without starting it (needs config.json of the "
    "model, no weights).",
    "croll plan configs/quickstart/rlvr.yaml --world 2 --memory 1GB\n"
    "  croll plan configs/quickstart/rlvr.yaml --world 64 --hosts 8x8 --link 400GB/s --device h100",
    run};

static int run(int argc, char **argv)
{
    bool is_json = false, with_tree = false, is_help = false, as_fsdp2 = false;
    const char *page = NULL;
    cr_plan_options where = {0};
    cr_plan p = {0};
    const cr_option options[] = {
        {"world", CR_OPT_INT, &p.world, "N",
         "plan for N devices: every role's mapping is scaled (default: the file's)"},
        {"memory", CR_OPT_STRING, &where.memory, "SIZE",
         "of a device, as 80GB: say what fits and the largest micro-batch"},
        {"hosts", CR_OPT_STRING, &where.hosts, "HOSTS",
         "128x8 (hosts x devices), or a:8,b:8 as croll run has it: places, traffic, times"},
        {"hostfile", CR_OPT_STRING, &where.hostfile, "FILE",
         "the same from a file: NAME slots=N a line"},
        {"link", CR_OPT_STRING, &where.link, "RATE",
         "into a host, as 400GB/s or 3.2Tbit/s (default: hosts.json in output_dir)"},
        {"device", CR_OPT_STRING, &where.device, "NAME",
         "cpu, cuda, or a100, h100, h200, b200: its memory and speed by data sheet (default: "
         "device of the file)"},
        {"gpus", CR_OPT_INT, &p.num_gpus, "N",
         "GPUs of a host, which the numbers of device_mapping take round robin: its memory is "
         "divided among those on it (default: each number has its own)"},
        {"rates", CR_OPT_STRING, &where.rates, "FILE",
         "what `croll doctor --measure FILE` found: speed of a device for --hosts"},
        {"images-per-row", CR_OPT_INT, &p.num_images, "N",
         "rows have N images, as large as the processor of the model allows and rows have room "
         "for (default: text)"},
        CR_AS_FSDP2_OPTION(as_fsdp2),
        {"topology", CR_OPT_STRING, &where.topology, "TEXT",
         "of each host, for threads and cores of its ranks: \"numa:8 core:16 pu:2\", or an XML "
         "file of "
         "lstopo (default: this machine's, without --hosts)"},
        {"tree", CR_OPT_FLAG, &with_tree, NULL, "the wrapped tree of every role, too"},
        {"json", CR_OPT_FLAG, &is_json, NULL, "one JSON object"},
        {"html", CR_OPT_STRING, &page, "PAGE",
         "also write a page to look at: meshes, trees, memory along a step, traffic"},
    };
    cr_words words = {0};
    cr_err err = {0};

    if (cr_args_parse(&cr_command_plan, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help) {
        p.with_moments = page != NULL;
        if (as_fsdp2 && words.num) cr_words_add(&words, CR_AS_FSDP2);
        if (cr_plan_make(&p, &words, &where, &err) == CR_OK)
            cr_note(cr_plan_show(&p, is_json, with_tree, page, &err));
    }
    cr_words_free(&words);
    cr_plan_free(&p);
    return err.status == CR_OK ? 0 : cr_command_fail(&cr_command_plan, &err);
}
