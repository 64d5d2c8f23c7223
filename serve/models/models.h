/* models.h -- the models of `croll serve`: on every rank the shards that rounds of scoring need, on rank 0 also names,
 * identities, and engines with whole copies of the weights.
 *
 *     cr_serve_models_add      any number
 *     cr_serve_models_adapt    an adapter of the last of them, by a name of its own; with names of models at most 32
 *     cr_serve_models_open     all ranks; then the others follow rounds, and rank 0 goes on:
 *     cr_serve_models_begin    self-checks, engines, the service that clients see
 *     cr_serve_models_update   other weights for one of them, while none is worked on
 *     cr_serve_models_close
 *
 * An update loads the new weights beside the old ones: the folder, its shape and digest and the memory are looked at
 * before anything else, then all ranks load their shards, the self-check runs on them, rank 0 makes an engine. What fails
 * until then leaves all as it was. Then the new model takes the place of the old one on every rank.
 *
 * A model takes the memory of its shards on each rank, and on rank 0 (unless models are only scored) that of a whole copy,
 * of its packed weights, and of a cache: a quarter of the machine's memory for all caches together, with that of an update.
 * Ownership: session, names and folders are borrowed. Threads: that of the world.
 */
#ifndef CR_SERVE_MODELS_H
#define CR_SERVE_MODELS_H

#include "launch/session.h"
#include "serve/compute.h"
#include "serve/self_check.h"
#include "serve/server/server.h"
#include "serve/texts.h"

/* What a request names: a model, or an adapter of it, which computes with the weights and the engine of its base. */
typedef struct cr_served_name {
    const char *name, *root; /* root: the folder, or its name on the hub */
    int adapter;             /* CR_NO_ADAPTER: the model itself */
    /* on rank 0 */
    char weights[CR_DIGEST_TEXT];
    cr_self_check self_check;
    cr_serve_model identity;
} cr_served_name;

/* A model. */
typedef struct cr_served {
    const char *folder;    /* or its name on the hub */
    char *own_folder;      /* of an update: folder */
    cr_served_name *names; /* [num_names] owned: the model's, then those of its adapters */
    size_t num_names;
    int64_t num_before; /* updates */
    char version[129];
    cr_model *model;
    cr_fsdp *fsdp;
    cr_dtype dtype;
    /* on rank 0 */
    cr_model *sampled; /* the engine's copy */
    cr_full_weights full;
    cr_engine *engine;
    cr_encoder texts;
    cr_serve_texts *strings;
    cr_chat *chat;
    cr_serve_images *images; /* NULL: it takes none */
    cr_buf tokenizer_config;
    char tokenizer[CR_DIGEST_TEXT];
} cr_served;

typedef struct cr_serve_models {
    cr_session *session;
    cr_served *served[CR_SERVE_MAX_MODELS]; /* [num] owned, with all that is in them */
    size_t num;
    bool may_be_random;       /* passes a self-check without knowing anything */
    cr_serve_service service; /* limits are the caller's */
    cr_serve_service *shown;  /* to clients; owned, with its models */
    cr_served *next;          /* that an update loads; NULL: none */
    bool can_update;
    cr_server *server; /* borrowed, for updates */
    cr_scoring *scoring;
    cr_compute compute;
    cr_lanes *lanes; /* of the device, owned */
} cr_serve_models;

/* CR_EUSAGE: the name is there, or there are too many. CR_EFORMAT: the folder is not. Local. */
CR_MUST cr_status cr_serve_models_add(cr_serve_models *m, const char *name, const char *folder,
                                      cr_err *err);
/* The session opens its models with these folders in this order (cr_session_adapt). CR_EUSAGE: as above. Local. */
CR_MUST cr_status cr_serve_models_adapt(cr_serve_models *m, const char *name, const char *folder,
                                        cr_err *err);
/* Collective. */
CR_MUST cr_status cr_serve_models_open(cr_serve_models *m, cr_err *err);
/* On rank 0. */
CR_MUST cr_status cr_serve_models_begin(cr_serve_models *m, cr_err *err);
/* On rank 0 (cr_serve_updates). */
CR_MUST cr_status cr_serve_models_update(void *models, const cr_serve_update *wanted, size_t place,
                                         cr_serve_error *error, cr_err *err);
/* On the other ranks: rounds and updates until rank 0 ends. */
CR_MUST cr_status cr_serve_models_follow(cr_serve_models *m, cr_err *err);
/* Collective if they were opened; {0} is fine. */
void cr_serve_models_close(cr_serve_models *m);

#endif
