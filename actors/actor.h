/* actor.h -- one actor rank from inside: what launch/actor.c sets up and the roles work with.
 *
 * An actor sleeps in a blocking read of its command stream (protocol.h). After a failure the rank reports to its
 * peers and leaves with the failure's exit code.
 */
#ifndef CR_ACTOR_H
#define CR_ACTOR_H

#include "actors/phases.h"
#include "actors/strategy_args.h"
#include "exchange/heartbeat.h"
#include "exchange/record.h"
#include "samples/protocol.h"

/* Commands and prompts of a rank are its own: a dead rank ends the run, no other takes them over. */
enum { CR_RANK_CLAIM_SECONDS = 3600 };

typedef struct cr_actor {
    const cr_config *config;
    cr_layout layout;
    cr_role role;
    int rank; /* in the role */
    const struct cr_role_ranks *ranks;
    cr_world *world;
    cr_mesh *mesh; /* of the role; NULL: an engine, which holds the whole model */
    cr_group
        *sync_group; /* of the weight sync: the trained role, then engines; NULL: not in this run */
    cr_group *reference_group; /* likewise, then a reference that follows */
    cr_device *dev;
    cr_model *model;
    cr_exchange *x;
    cr_heartbeat *heart;
    cr_exchange_args exchange;
    bool has_folder; /* the launcher's output_dir and folder of checkpoints are on this host, too */
} cr_actor;

/* ---- a rank: rank.c ---- */

/* Everything of the rank up to its model is open: make its groups and serve commands until `stop` or a failure. */
CR_MUST cr_status cr_actor_live(cr_actor *a, cr_err *err);
/* What the timeline aligns the ranks of several hosts by, from the last heartbeat. */
void cr_actor_note_clock(cr_actor *a);

/* ---- the roles ---- */

/* One command: fill reply, or fail. */
typedef cr_status (*cr_actor_serve)(void *role, cr_ask ask, const cr_record *command,
                                    cr_record *reply, cr_err *err);

/* fsdp2_train, or fsdp2_infer of a reference. */
typedef struct cr_trainer cr_trainer;
CR_MUST cr_status cr_trainer_open(cr_actor *a, cr_trainer **out, cr_err *err);
void cr_trainer_close(cr_trainer *t); /* accepts NULL */
CR_MUST cr_status cr_trainer_serve(void *trainer, cr_ask ask, const cr_record *command,
                                   cr_record *reply, cr_err *err);

/* fsdp2_infer with the generation engine. */
typedef struct cr_generator cr_generator;
CR_MUST cr_status cr_generator_open(cr_actor *a, cr_generator **out, cr_err *err);
void cr_generator_close(cr_generator *g); /* accepts NULL */
CR_MUST cr_status cr_generator_serve(void *generator, cr_ask ask, const cr_record *command,
                                     cr_record *reply, cr_err *err);

#endif
