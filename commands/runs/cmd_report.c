/* cmd_report.c -- `croll report`: run.html once more from the files of a run, after a launcher that was
 * killed, or of a run that still goes on. */
#include "commands/commands.h"
#include "configs/configs.h"
#include "reports/report.h"

#include <string.h>

static int run(int argc, char **argv);

const cr_command cr_command_report = {"report", "report RUN",
                                      "Write run.html of a run's folder again: curves, timeline of "
                                      "all ranks, what ranks disagree on.",
                                      "croll report output/quickstart/rlvr", run};

static cr_status report(const char *folder, cr_err *err)
{
    char *path = cr_path_join(folder, "config.yaml");
    cr_diagnostics d = {0};
    const cr_image_files images = {0};
    cr_yaml yaml = {0};
    const cr_node *name;

    if (!cr_file_exists(path)) {
        cr_fail(err, CR_EUSAGE, "%s is not a folder of a run: it has no config.yaml", folder);
    } else {
        cr_yaml_load(&yaml, path, NULL, NULL, 0, &d);
        name = yaml.root ? cr_node_get(yaml.root, "exp_name") : NULL;
        cr_note(cr_report_write(folder, name && name->kind == CR_NODE_TEXT ? name->text : folder,
                                NULL, &images, err));
    }
    if (yaml.arena) cr_yaml_free(&yaml);
    cr_diagnostics_free(&d);
    cr_free(path);
    return err->status;
}

static int run(int argc, char **argv)
{
    cr_words words = {0};
    cr_err err = {0};
    bool is_help;

    if (cr_args_parse(&cr_command_report, NULL, 0, argc, argv, &words, &is_help, &err) == CR_OK &&
        !is_help) {
        if (words.num != 1)
            cr_fail(&err, CR_EUSAGE, "one RUN is needed (see croll report --help)");
        else
            cr_note(report(words.word[0], &err));
    }
    cr_words_free(&words);
    return err.status == CR_OK ? 0 : cr_command_fail(&cr_command_report, &err);
}
