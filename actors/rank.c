/* rank.c -- the life of one actor rank: see actor.h. */
#include "actors/actor.h"
#include "base/children.h"
#include "mesh/flight.h"

#include <stdio.h>
#include <string.h>

static cr_status reply_to(cr_actor *a, const char *request, cr_record *reply, const cr_err *how,
                          cr_err *err)
{
    cr_buf packed = {0};

    cr_record_set_int(reply, CR_FIELD_STATUS, how->status);
    if (how->status != CR_OK) {
        reply->num_arrays = 0;
        cr_record_set_text(reply, CR_FIELD_MESSAGE, how->msg, strlen(how->msg));
        cr_record_set_text(reply, CR_FIELD_HOST, cr_host_name(), strlen(cr_host_name()));
    }
    if (cr_record_pack(reply, &packed, err) == CR_OK)
        cr_note(cr_reply_put(a->x, request, packed.data, packed.num_bytes, err));
    cr_buf_free(&packed);
    return err->status;
}

/* What the timeline aligns the ranks of several hosts by. */
void cr_actor_note_clock(cr_actor *a)
{
    cr_clock c = cr_heartbeat_clock(a->heart);

    cr_flight_set_clock(a->world, &(cr_flight_clock){c.at_s, c.ahead_s, c.error_s});
}

/* Serve commands until `stop` or a failure. */
static cr_status serve(cr_actor *a, cr_actor_serve role_serve, void *role, cr_err *err)
{
    char stream[96], consumer[32];
    const char *const streams[] = {stream};

    snprintf(stream, sizeof stream, "cmd:%s:%d", a->ranks->name, a->rank);
    snprintf(consumer, sizeof consumer, "actor-%d", a->rank);
    for (;;) {
        cr_entries entries;
        cr_heartbeat_say(a->heart, "waiting for a command");
        CR_TRY(cr_stream_take(a->x, streams, 1, a->ranks->name, consumer, 1, 10,
                              CR_RANK_CLAIM_SECONDS, &entries, err));
        if (entries.num) {
            cr_record command, reply = {0};
            cr_err how = {0};
            const char *op = "", *request;
            size_t n;
            bool should_stop = false;
            cr_ask ask;
            CR_TRY_GOTO(next, cr_record_unpack(entries.items[0].data, entries.items[0].num_bytes,
                                               &command, err));
            CR_TRY_GOTO(next, cr_record_get_text(&command, CR_FIELD_OP, &op, &n, err));
            CR_TRY_GOTO(next, cr_record_get_text(&command, CR_FIELD_REQUEST, &request, &n, err));
            /* finished before it is done: a rank that dies in it ends the run anyway */
            cr_stream_done(a->x, &entries.items[0], 1, a->ranks->name);
            cr_heartbeat_say(a->heart, "%s", op);
            cr_world_set_phase(a->world, NULL, op);
            if (cr_ask_find(op, a->ranks->worker, &ask, &how) == CR_OK && ask != CR_ASK_STOP)
                cr_note(role_serve(role, ask, &command, &reply, &how));
            cr_actor_note_clock(a);
            should_stop = how.status == CR_OK && ask == CR_ASK_STOP;
            if (how.status != CR_OK)
                cr_world_fail(a->world, &how);
            else
                cr_world_set_phase(a->world, NULL, "waiting for a command");
            CR_TRY_GOTO(next, reply_to(a, request, &reply, &how, err));
            if (how.status != CR_OK) *err = how;
        next:
            cr_record_free(&reply);
            cr_record_free(&command);
            cr_entries_free(&entries);
            if (should_stop || err->status != CR_OK) return err->status;
        }
        cr_entries_free(&entries);
    }
}

static cr_status open_mesh(cr_actor *a, cr_err *err)
{
    int *ranks = CR_NEW_ARRAY(int, a->ranks->num);
    cr_mesh_shape shape;

    for (int i = 0; i < a->ranks->num; i++)
        ranks[i] = a->ranks->first + i;
    if (cr_mesh_shape_of(a->ranks->worker, a->ranks->num, &shape, err) == CR_OK)
        cr_note(cr_mesh_create(a->world, a->dev, a->ranks->name, ranks, &shape, &a->mesh, err));
    cr_free(ranks);
    return err->status;
}

/* The ranks of all roles that take the command, the trained one and those that its weights come to, where there are such. */
static cr_status open_sync_group(cr_actor *a, cr_ask ask, const char *name, cr_group **out,
                                 cr_err *err)
{
    int *ranks, num = 0, num_train = 0;

    if (!cr_ask_is_for(ask, a->ranks->worker)) return CR_OK;
    ranks = CR_NEW_ARRAY(int, a->layout.num_ranks);
    for (int r = 0; r < a->layout.num_ranks; r++) {
        const cr_worker_config *w = a->layout.role[cr_layout_role(&a->layout, r)].worker;
        if (!cr_ask_is_for(ask, w)) continue;
        ranks[num++] = r;
        num_train += w->task == CR_TASK_TRAIN;
    }
    if (num > num_train) cr_note(cr_group_create(a->world, a->dev, name, ranks, num, out, err));
    cr_free(ranks);
    return err->status;
}

cr_status cr_actor_live(cr_actor *a, cr_err *err)
{
    CR_TRY(open_sync_group(a, CR_ASK_SYNC, "weight_sync", &a->sync_group, err));
    CR_TRY(open_sync_group(a, CR_ASK_SYNC_REFERENCE, "reference_sync", &a->reference_group, err));
    if (a->ranks->worker->task != CR_TASK_GENERATE) CR_TRY(open_mesh(a, err));
    if (a->ranks->worker->task == CR_TASK_GENERATE) {
        cr_generator *g;
        CR_TRY(cr_generator_open(a, &g, err));
        cr_note(serve(a, cr_generator_serve, g, err));
        cr_generator_close(g);
    } else {
        cr_trainer *t;
        CR_TRY(cr_trainer_open(a, &t, err));
        cr_note(serve(a, cr_trainer_serve, t, err));
        if (err->status == CR_OK) cr_trainer_close(t);
    }
    return err->status;
}
