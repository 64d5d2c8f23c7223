/* cmd_doctor.c -- croll doctor: what this machine offers a run, and what each finding means (launch/doctor/doctor.h). */
#include "commands/commands.h"
#include "launch/doctor/doctor.h"
#include "plan/measure.h"

#include <stdlib.h>

/* rates: where the speed of the device goes, or NULL. */
static cr_status look_here(cr_doctor *d, const char *rates, cr_err *err)
{
    char found[CR_MEASURED], *meaning;

    CR_TRY(cr_doctor_here(d, err));
    if (rates) {
        CR_TRY(cr_rates_measure(d->device, rates, found, err));
        meaning = cr_asprintf("in %s: croll plan FILE --hosts 16x8 --rates %s", rates, rates);
        cr_doctor_say(d, "speed", CR_FINDING_FINE, found, meaning);
        cr_free(meaning);
    }
    return d->has_failed
               ? cr_fail(err, CR_EABSENT, "something that runs need is missing (see above)")
               : CR_OK;
}

static int run(int argc, char **argv)
{
    cr_doctor r = {0};
    const char *network = NULL, *rates = NULL, *topology = NULL, *device = NULL;
    char *key = NULL;
    cr_hosts_args hosts = {NULL, NULL};
    const cr_option options[] = {
        {"json", CR_OPT_FLAG, &r.has_json, NULL, "one JSON object a finding"},
        {"measure", CR_OPT_STRING, &rates, "FILE",
         "also measure products, attention and memory of the device, in seconds; FILE is for croll "
         "plan --rates"},
        {"device", CR_OPT_STRING, &device, "NAME",
         "to look at: cpu (default), cuda; with a FILE in place of its key device"},
        CR_HOSTS_OPTIONS(hosts),
        {"network", CR_OPT_STRING, &network, "CIDR",
         "the network between them (default: found out)"},
        {"topology", CR_OPT_STRING, &topology, "TEXT",
         "only the cores, of another machine: \"numa:8 core:16 pu:2\", or an XML file of lstopo"},
    };
    cr_words words = {0};
    cr_err err = {0};
    bool is_help;

    if (cr_args_parse(&cr_command_doctor, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help) {
        const char *nodes = getenv("SLURM_JOB_NUM_NODES");
        bool has_hosts = hosts.list || hosts.file || words.num || (nodes && atoi(nodes) > 1);
        if (device) unsetenv("CROLL_DEVICE");
        if (device && words.num) cr_words_add(&words, key = cr_asprintf("device=%s", device));
        r.device = device;
        if (topology)
            cr_note(hosts.list || hosts.file || words.num || rates
                        ? cr_fail(&err, CR_EUSAGE,
                                  "--topology stands alone (croll plan FILE --topology: of a run)")
                        : cr_doctor_cores(&r, topology, &err));
        else if (has_hosts && rates)
            cr_fail(&err, CR_EUSAGE, "--measure is of this host alone");
        else if (has_hosts)
            cr_note(cr_doctor_hosts(&r, &hosts, network, &words, &err));
        else if (network)
            cr_fail(&err, CR_EUSAGE, "--network is for several hosts (--hosts a:8,b:8)");
        else
            cr_note(look_here(&r, rates, &err));
    }
    cr_words_free(&words);
    cr_free(key);
    return err.status ? cr_command_fail(&cr_command_doctor, &err) : 0;
}

const cr_command cr_command_doctor = {
    "doctor",
    "doctor [--json] [--device NAME] [--measure FILE | --topology TEXT]\n       croll doctor "
    "--hosts H:N,.. "
    "[--network CIDR] "
    "[--json] [FILE "
    "[key=value ..]]",
    "What croll finds on this machine (CPU, memory, MPI, Redis, limits, GPUs), and what each "
    "means; or the checks of several hosts before a run (of FILE): program, models, clocks, room, "
    "network, links. "
    "Exit code 2 if something that runs need is missing.",
    "croll doctor",
    run,
};
