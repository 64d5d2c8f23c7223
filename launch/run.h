/* run.h -- a running job as the pipelines see it: its processes, its exchange, its files.
 *
 * `croll run` opens a cr_run: it starts Redis, the actor ranks (one mpirun), judges and the reward workers,
 * and from then on watches them in every wait: a dead reward worker or judge is started again, a dead Redis
 * too, a dead or silent actor rank ends the run with a sentence that names it. The pipelines (rlvr,
 * sft) only call the functions below.
 *
 * Threads: the launcher's only one. Failures: cr_run_close ends every process and leaves no file
 * that blocks the next start.
 */
#ifndef CR_RUN_H
#define CR_RUN_H

#include "actors/run_mark.h"
#include "base/children.h"
#include "configs/configs.h"
#include "exchange/record.h"
#include "launch/endpoint.h"
#include "launch/hosts.h"
#include "launch/mpirun/mpi_folder.h"
#include "launch/mpirun/watched.h"
#include "launch/rewards/judges.h"
#include "reports/tracker.h"
#include "reports/view.h"
#include "samples/items/items.h"
#include "samples/protocol.h"
#include "scorers/reward_workers.h"

struct cr_rollout;

typedef struct cr_run {
    const cr_config *config; /* borrowed */
    const cr_hosts *hosts;   /* borrowed */
    cr_layout layout;
    char *output_dir, *config_path, *self_path; /* owned */
    int64_t first_step, step;                   /* step: the one that runs now, for messages */
    cr_endpoint endpoint;
    cr_exchange *x;          /* the endpoint's */
    cr_heartbeat *heartbeat; /* of this launcher, for ranks of other hosts; NULL: there are none */
    cr_server_plan server_plan;
    bool has_server_answered; /* the embedded one */
    cr_child server;
    cr_watched actors;
    cr_mpi_folder mpi_folder; /* of the actors */
    char mark[CR_RUN_MARK];   /* in output_dir and the folder of checkpoints */
    cr_reward_workers rewards;
    cr_judges judges;
    struct cr_life {              /* of each actor rank */
        char last[240], host[64]; /* of its last sign of life: "COUNT HOST WHAT"; "": none yet */
        double moved_s;           /* when its count moved */
    } * lives;
    double looked_s;
    dev_t output_device; /* of output_dir, with its inode: is it still there? */
    ino_t output_inode;
    int64_t num_requests;
    cr_item_store *items; /* images that are on the exchange */
    bool has_said_stop;   /* that it will end with this step */
    bool has_begun;       /* a rank has done a command: what fails from now on is no wrong use */
    /* what the pipeline does while it waits for a reply, or NULL: must not wait itself */
    cr_status (*on_wait)(void *context, cr_err *err);
    void *on_wait_context;
    int64_t end_step; /* the last step is the one before it */
    /* what is done to recorded samples (rollouts_from) before they are learned, or NULL */
    cr_status (*change)(void *context, struct cr_rollout *rollout, cr_err *err);
    void *change_context;
    /* of the last step (pipelines/why/) */
    bool has_terms;       /* terms/ are written */
    const uint64_t *only; /* the sample whose gradient alone is derived; NULL: all */
    cr_tracker *tracker;
    cr_view *view;
    int log_fd;
} cr_run;

/* Start everything. config_path: the resolved configuration in output_dir. endpoint: claimed, taken over.
 * first_step: 0, or the one after the checkpoint that is resumed. Call cr_run_close also after a failure. */
CR_MUST cr_status cr_run_open(cr_run *run, const cr_config *config, const char *config_path,
                              const cr_hosts *hosts, cr_endpoint *endpoint, int64_t first_step,
                              cr_err *err);
/* End everything. */
void cr_run_close(cr_run *run);

/* Look after the children; fails when the run cannot go on, and at the second signal. Called by every
 * wait below. */
CR_MUST cr_status cr_run_watch(cr_run *run, cr_err *err);
/* A signal has come: save at the end of this step, then call cr_run_stopped, which ends the run
 * (CR_ESIGNAL) if one has come. */
bool cr_run_should_stop(void);
CR_MUST cr_status cr_run_stopped(cr_run *run, cr_err *err);

/* Send a command to one rank of a role, with the next cr_run_wait. request: where its reply will lie. */
typedef struct cr_request {
    char name[32];
    cr_role role;
    int rank;
    cr_ask ask;
} cr_request;
CR_MUST cr_status cr_run_send(cr_run *run, cr_role role, int rank, cr_ask ask, cr_record *args,
                              cr_request *out, cr_err *err);
/* Wait for its reply, at most rpc_timeout; a reply that is a failure becomes ours, with role, rank and step. */
CR_MUST cr_status cr_run_wait(cr_run *run, const cr_request *request, cr_record *reply,
                              cr_err *err);

#endif
