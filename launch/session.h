/* session.h -- MODEL and worker keys of a command (`croll logprobs MODEL model_args.dtype=fp32 ..`): the
 * model, its weights and its device, ready to run, on as many ranks as device_mapping lists.
 *
 * Keys are those of a YAML worker block without its name, read by the schema of
 * configs/. A command that works on several ranks does, in this order:
 *
 *     cr_session_read      keys; CR_OK on every rank or on none
 *     cr_session_adapt     adapters beside MODEL, if the call names any
 *     cr_session_launch    is this the process that only starts the ranks and waits for them?
 *     cr_session_join      the world: from here on it has a rank; or left to cr_session_open
 *     cr_session_open      device, mesh, model, weights
 *     ...                 rank 0 has stdin and stdout
 *     cr_session_leave     close, and the exit code
 *
 * Ownership: a cr_session owns everything in it but `folder`. Threads: one caller.
 */
#ifndef CR_SESSION_H
#define CR_SESSION_H

#include "actors/strategy_args.h"
#include "base/args.h"
#include "configs/configs.h"
#include "launch/hosts.h"
#include "strategies/packed.h"
#include "text/encoder.h"
#include "text/lines.h"

typedef enum cr_session_kind {
    CR_SESSION_INFER,
    CR_SESSION_GENERATE,
    CR_SESSION_TRAIN,
    CR_SESSION_SERVE /* signals are rank 0's, and a rank that is lost is exit code 3; models come by cr_session_load */
} cr_session_kind;

typedef struct cr_session {
    cr_session_kind kind;
    const char *folder;       /* borrowed from words or keys */
    cr_model_options options; /* of every model that it opens */
    cr_adapter_options *more; /* [num - 1] adapters after the first of them, owned */
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
    int first_device; /* of device_mapping, of rank 0 */
} cr_session;

/* words: MODEL, then key=value. */
CR_MUST cr_status cr_session_read(cr_session *session, cr_session_kind kind, const cr_words *words,
                                  cr_err *err);
/* The same of a run's FILE: the block of a role ("reference"), with its model, or the judge of a domain
 * or the reward model of a domain ("rewards.llm_judge"), of which every process is one rank with one device. words: FILE, then key=value. is_quiet: errors only. */
#define CR_ROLE_REWARDS "rewards."
CR_MUST cr_status cr_session_read_role(cr_session *session, cr_session_kind kind, const char *role,
                                       const cr_words *words, bool is_quiet, cr_err *err);
/* How a command was called. */
typedef struct cr_session_call {
    const cr_command *command;
    int argc;
    char **argv;
    cr_words words;      /* MODEL or FILE, and keys */
    const char *device;  /* of --device, or NULL */
    const char *adapter; /* of --adapter, a PEFT folder, or NULL */
    cr_hosts_args hosts;
} cr_session_call;
#define CR_ADAPTER_OPTION(value)                                                              \
    {                                                                                         \
        "adapter", CR_OPT_STRING, &(value), "DIR",                                            \
            "a LoRA adapter in PEFT's layout; MODEL is its base and stays as it is, unmerged" \
    }
/* Models are opened with these PEFT folders (models/files/peft.h), which are borrowed, in this order. */
void cr_session_adapt(cr_session *session, const char *const *folders, size_t num);
/* True: the call ran on several ranks, or failed; *code is the exit code of the command. */
bool cr_session_launch(const cr_session *session, const cr_session_call *call, int *code);
/* Collective. */
CR_MUST cr_status cr_session_join(cr_session *session, cr_err *err);
/* The model of a folder and its units, with the keys of the worker: owned by the caller. A failure of one rank is one
 * of all, and nothing is held. Collective. */
CR_MUST cr_status cr_session_load(const cr_session *session, const char *folder, cr_model **model,
                                  cr_fsdp **fsdp, cr_err *err);
/* Of keys, else as it is stored. */
cr_dtype cr_session_dtype(const cr_session *session, const cr_model *model);
/* device: of --device, or NULL for that of the file (cpu of a MODEL); borrowed. Collective. */
CR_MUST cr_status cr_session_open(cr_session *session, const char *device, cr_err *err);
/* Ranks on this host, this one among them. The world is open. */
int cr_session_num_here(const cr_session *session);
/* Memory of this rank: of its GPU, divided by the ranks that the command has on it; elsewhere of the host, divided by those on it. num_gpus
 * 0: of the host. */
CR_MUST cr_status cr_session_memory(const cr_session *session, cr_device_memory *out, cr_err *err);
/* Bytes for a cache that may take `most` of a memory, and of a GPU no more than is free. CR_ECONFIG: of a GPU less than `least`, one block. */
CR_MUST cr_status cr_session_cache_bytes(const cr_device_memory *memory, int64_t max, int64_t min,
                                         int64_t *out, cr_err *err);
/* Say what went wrong (once, not on every rank), close, and give the exit code. {0} is fine. After a failure on several
 * ranks it ends the process: their groups cannot be closed. */
int cr_session_leave(cr_session *session, const cr_command *command, int code, const cr_err *err);
/* Of one rank alone, without a word. {0} is fine. */
void cr_session_close(cr_session *session);
/* What lines this model takes. Prompts and messages open the tokenizer when the first one comes. */
cr_line_rules cr_session_rules(cr_session *session);
/* Open the tokenizer of MODEL, unless it is open. */
CR_MUST cr_status cr_session_need_tokenizer(cr_session *session, cr_err *err);

/* Append a good line to a batch. Row t has label labels[t + 1] (ids[t + 1] if the line has none); the last row
 * has no label. Returns the number of labelled rows. */
int64_t cr_line_pack(cr_packed *packed, const cr_line *line);

#endif
