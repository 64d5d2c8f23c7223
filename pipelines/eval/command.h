/* command.h -- `croll eval`: from MODEL and a run's file to a run that only validates (val_only), and its table. */
#ifndef CR_EVAL_COMMAND_H
#define CR_EVAL_COMMAND_H

#include "base/args.h"
#include "launch/hosts.h"

typedef struct cr_eval_args {
    const char *
        model; /* a MODEL folder or its name on the hub; checkpoint-N of a run, or a role's folder in it */
    const char *adapter;      /* PEFT's folder, or NULL */
    const char *run;          /* FILE of a run, or NULL: config.yaml beside the checkpoint */
    const char *out;          /* or NULL: output/eval/NAME */
    const char *device;       /* or NULL: the file's */
    cr_words data;            /* rows; none: those of the file's validation */
    const char *image_folder; /* of their images, or NULL: the file's */
    cr_words keys;            /* key=value */
    int64_t num;              /* samples a prompt; CR_NOT_GIVEN (base/args.h): as the file says */
    bool should_overwrite, has_json;
    cr_hosts_args hosts;
} cr_eval_args;

/* Runs what is left of the evaluation and prints its table to stdout. CR_ECONFIG, CR_EUSAGE: nothing was started. */
CR_MUST cr_status cr_eval_run(const cr_eval_args *args, cr_err *err);

#endif
