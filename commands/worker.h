/* worker.h -- MODEL and worker keys of a command (`croll logprobs MODEL model_args.dtype=fp32 ..`): the
 * model, its weights and its device, ready to run, on as many ranks as device_mapping lists.
 *
 * Keys are those of a YAML worker block without its name, read by the schema of
 * configs/. A command that works on several ranks does, in this order:
 *
 *     cr_worker_read      keys; CR_OK on every rank or on none
 *     cr_worker_launch    is this the process that only starts the ranks and waits for them?
 *     cr_worker_join      the world: from here on it has a rank; or left to cr_worker_open
 *     cr_worker_open      device, mesh, model, weights
 *     ...                 rank 0 has stdin and stdout
 *     cr_worker_leave     close, and the exit code
 *
 * Ownership: a cr_worker owns everything in it but `folder`. Threads: one caller.
 */
#ifndef CR_WORKER_H
#define CR_WORKER_H

#include "actors/strategy_args.h"
#include "base/args.h"
#include "commands/lines.h"
#include "configs/configs.h"
#include "launch/hosts.h"
#include "strategies/packed.h"
#include "text/encoder.h"

typedef enum cr_worker_kind {
    CR_WORKER_INFER,
    CR_WORKER_GENERATE,
    CR_WORKER_TRAIN,
    CR_WORKER_SERVE /* signals are rank 0's, and a rank that is lost is exit code 3; models come by cr_worker_load */
} cr_worker_kind;

typedef struct cr_worker {
    cr_worker_kind kind;
    const char *folder; /* borrowed from words or keys */
    cr_config config;
    const cr_worker_config *keys; /* in config */
    bool has_dtype;               /* a key says so */
    bool is_of_run;               /* a role of a run's file */
    const char *device;           /* the name of dev; borrowed */
    cr_world *world;
    cr_mesh *mesh;
    cr_device *dev;
    cr_model *model;
    cr_fsdp *fsdp;        /* logprobs, grad */
    cr_full_weights full; /* generate */
    cr_encoder encoder;   /* {0} until it is needed */
    cr_dtype dtype;
    int64_t batch_size; /* lines of one forward and rank; samples at a time if it generates */
    int rank, num_ranks;
} cr_worker;

/* words: MODEL, then key=value. */
CR_MUST cr_status cr_worker_read(cr_worker *worker, cr_worker_kind kind, const cr_words *words,
                                 cr_err *err);
/* The same of a run's FILE: the block of a role ("reference"), with its model, or the judge of a domain
 * ("rewards.llm_judge"), of which every process is one rank with one device. words: FILE, then key=value. is_quiet: errors only. */
#define CR_ROLE_REWARDS "rewards."
CR_MUST cr_status cr_worker_read_role(cr_worker *worker, cr_worker_kind kind, const char *role,
                                      const cr_words *words, bool is_quiet, cr_err *err);
/* True: argv ran on several ranks, or failed; *code is the exit code of the command. */
bool cr_worker_launch(const cr_worker *worker, const cr_command *command,
                      const cr_hosts_args *where, int argc, char **argv, int *code);
/* Collective. */
CR_MUST cr_status cr_worker_join(cr_worker *worker, cr_err *err);
/* The model of a folder and its units, with the keys of the worker: owned by the caller. A failure of one rank is one
 * of all, and nothing is held. Collective. */
CR_MUST cr_status cr_worker_load(const cr_worker *worker, const char *folder, cr_model **model,
                                 cr_fsdp **fsdp, cr_err *err);
/* Of keys, else as it is stored. */
cr_dtype cr_worker_dtype(const cr_worker *worker, const cr_model *model);
/* device: of --device, or NULL for that of the file (cpu of a MODEL); borrowed. Collective. */
CR_MUST cr_status cr_worker_open(cr_worker *worker, const char *device, cr_err *err);
/* Ranks on this host, this one among them. The world is open. */
int cr_worker_num_here(const cr_worker *worker);
/* Memory of this rank: of its GPU, divided by the ranks that the command has on it; elsewhere of the host, divided by those on it. num_gpus
 * 0: of the host. */
CR_MUST cr_status cr_worker_memory(const cr_worker *worker, cr_device_memory *out, cr_err *err);
/* Bytes for a cache that may take `most` of a memory, and of a GPU no more than is free. CR_ECONFIG: of a GPU less than `least`, one block. */
CR_MUST cr_status cr_worker_cache_bytes(const cr_device_memory *memory, int64_t most, int64_t least,
                                        int64_t *out, cr_err *err);
/* Say what went wrong (once, not on every rank), close, and give the exit code. {0} is fine. After a failure on several
 * ranks it ends the process: their groups cannot be closed. */
int cr_worker_leave(cr_worker *worker, const cr_command *command, int code, const cr_err *err);
/* A device with numbers: meta is CR_EUSAGE. number: that of device_mapping (cr_device_open_number). */
CR_MUST cr_status cr_device_open_to_compute(const char *name, int number, int num_threads,
                                            cr_device **out, cr_err *err);
/* The device of a run's ranks; borrowed. */
const char *cr_device_of_run(const cr_config *config);
/* They have GPUs, and a place by them (launch/placement.h). */
bool cr_run_has_gpus(const cr_config *config);
/* What lines this model takes. Prompts and messages open the tokenizer when the first one comes. */
cr_line_rules cr_worker_rules(cr_worker *worker);
/* Open the tokenizer of MODEL, unless it is open. */
CR_MUST cr_status cr_worker_need_tokenizer(cr_worker *worker, cr_err *err);

/* Append a good line to a batch. Row t has label labels[t + 1] (ids[t + 1] if the line has none); the last row
 * has no label. Returns the number of labelled rows. */
int64_t cr_line_pack(cr_packed *packed, const cr_line *line);

#endif
