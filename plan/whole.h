/* whole.h -- a finished plan: its file, all roles, where they are and what is known of the hosts. For the printers. */
#ifndef CR_PLAN_WHOLE_H
#define CR_PLAN_WHOLE_H

#include "plan/traffic.h"

/* The trained role with another fsdp_size. Times 0: not known. */
typedef struct cr_plan_choice {
    int fsdp_size;
    int64_t peak_bytes;
    double micro_s, update_s, step_s, into_bytes; /* into a host, a step */
    bool is_file, is_best;
} cr_plan_choice;

typedef struct cr_plan_hosts {
    int num;         /* 0: not asked for */
    int num_idle;    /* without a rank */
    int num_devices; /* of each; 0: a list of hosts says how many ranks, not how many devices */
    char *table;     /* owned: which ranks are where */
    int *all_hosts;  /* owned: of the ranks of all roles */
    cr_rates rates;
    int **host_of; /* [num_roles] owned, [ranks of the role] each */
    cr_plan_choice *choice;
    size_t num_choices;
} cr_plan_hosts;

typedef struct cr_plan {
    const char *path;      /* borrowed */
    int64_t world, memory; /* as asked for; 0: not */
    char **override;       /* owned, as the texts in it, NULL at the end */
    cr_config config;
    cr_diagnostics d;
    bool is_rlvr, with_moments;
    int64_t num_images;  /* of each sample, as asked for (--images-per-row) */
    int64_t row_samples; /* of a row: 2 of a pair, else 1 */
    bool is_gpu;         /* device cuda or a GPU by name */
    int64_t
        num_gpus; /* of a host, which numbers of device_mapping take round robin; 0: each has its own */
    int64_t num_dp, num_samples; /* of the trained role; of a step */
    int64_t rank_samples;        /* most samples of a data-parallel rank */
    cr_plan_batch batch;
    cr_plan_role
        *role; /* [num_roles] owned; the trained one first, then those of roles, then judges */
    const cr_worker_config **worker; /* [num_roles] the array is owned */
    size_t num_roles;
    int64_t
        kept_bytes; /* reshard_after_forward: auto: of the fullest device with gathered weights; 0: not known */
    int64_t device_peak;    /* of the fullest device, whose roles take turns; judges do not */
    int64_t largest;        /* micro-batch that fits memory; 0: none does */
    int64_t largest_tokens; /* likewise, cut by tokens */
    bool is_limit;          /* nothing larger was looked at */
    cr_plan_hosts hosts;
    char *cores,
        *cores_json; /* owned: threads and cores of ranks, as lines and as JSON objects; NULL: not known */
} cr_plan;

#endif
