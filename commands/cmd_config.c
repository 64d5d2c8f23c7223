/* cmd_config.c -- `croll config`: the resolved configuration, or everything that is wrong with it. */
#include "commands/commands.h"
#include "configs/configs.h"
#include "pipelines/start/start.h"

#include <stdio.h>

static int run(int argc, char **argv);

const cr_command cr_command_config = {
    "config", "config FILE [key=value ..] [--deep] [--json] [--raw]",
    "Check a YAML file and print the resolved configuration.",
    "croll config configs/quickstart/rlvr.yaml max_steps=20 --json", run};

static void print_tree(const cr_node *root, bool is_json)
{
    cr_buf out = {0};

    if (is_json)
        cr_node_write_json(root, &out);
    else
        cr_node_write_yaml(root, &out);
    fwrite(out.data ? out.data : "", 1, out.num_bytes, stdout);
    if (is_json) putchar('\n');
    cr_buf_free(&out);
}

static int run(int argc, char **argv)
{
    bool is_json = false, is_raw = false, is_deep = false, is_help = false, as_fsdp2 = false;
    const cr_option options[] = {
        {"json", CR_OPT_FLAG, &is_json, NULL, "one JSON object instead of YAML"},
        {"raw", CR_OPT_FLAG, &is_raw, NULL, "composed and interpolated only, before the schema"},
        {"deep", CR_OPT_FLAG, &is_deep, NULL,
         "look at models, data, reward programs and memory, too, as `croll run` does first"},
        CR_AS_FSDP2_OPTION(as_fsdp2),
    };
    cr_words words = {0};
    cr_diagnostics d = {0};
    cr_config config = {0};
    cr_yaml yaml = {0};
    cr_err err = {0};

    if (cr_args_parse(&cr_command_config, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help) {
        if (as_fsdp2 && words.num) cr_words_add(&words, CR_AS_FSDP2);
        if (words.num < 1) {
            cr_fail(&err, CR_EUSAGE, "a FILE is needed (see croll config --help)");
        } else if (is_raw) {
            cr_yaml_load(&yaml, words.word[0], NULL, words.word + 1, words.num - 1, &d);
            if (d.num_errors == 0)
                print_tree(yaml.root, is_json);
            else
                cr_fail(&err, CR_ECONFIG, "%zu error%s", d.num_errors, d.num_errors > 1 ? "s" : "");
        } else if (cr_config_load(words.word[0], words.word + 1, words.num - 1, &config, &d,
                                  &err) == CR_OK &&
                   (!is_deep || cr_start_look(&config, &d, &err) == CR_OK)) {
            print_tree(config.yaml.root, is_json);
        }
        cr_diagnostics_print(&d);
    }
    cr_words_free(&words);
    cr_config_free(&config);
    if (yaml.arena) cr_yaml_free(&yaml);
    cr_diagnostics_free(&d);
    return err.status == CR_OK ? 0 : cr_command_fail(&cr_command_config, &err);
}
