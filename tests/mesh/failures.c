/* failures.c -- a rank that does something else, one that does not come, one that says it failed:
 * named errors within the deadline, on both transports. New groups after each failure.
 * Not covered: a killed rank (mpirun ends the others), a rank stuck inside MPI (the guard).
 * // ranks: 2
 * // mostly waits
 */
#include "tests/memory.h"
#include "tests/mesh/mend.h"

#include <stdio.h>
#include <string.h>

#define OK(expr)   CR_CHECK((expr) == CR_OK, "%s", err.msg)
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

enum { DEADLINE_S = 30, SOON_S = 20 }; /* soon: long before the deadline, on a busy machine, too */

static cr_err err;
static cr_world *world;
static const int both[] = {0, 1};

static cr_group *fresh(const char *name)
{
    cr_group *g;

    mend(world);
    OK(cr_group_create(world, NULL, name, both, 2, &g, &err));
    return g;
}

static bool is_shared(const cr_group *g)
{
    return strcmp(cr_group_transport(g), "shared") == 0;
}

static void expect(cr_status got, const cr_err *e, cr_status want, const char *const *words)
{
    CR_CHECK(got == want, "status %d: %s", (int)got, e->msg);
    for (; *words; words++)
        CR_CHECK(strstr(e->msg, *words), "\"%s\" is not in: %s", *words, e->msg);
}

static void test_mismatch(void)
{
    cr_group *g = fresh("fsdp");
    cr_gather *gather;
    const cr_mem *whole;
    cr_mem *part;
    cr_err e = {0};
    double begin_s = cr_now_s(), x[2] = {1, 1};

    OK(cr_gather_create(g, 2, 1024, &gather, &err));
    OK(cr_gather_announce(gather, 0, world->rank ? "experts.1" : "experts.0", 512, &err));
    OK(cr_gather_begin(gather, 0, &part, &err));
    OK(cr_gather_publish(gather, 0, &err));
    expect(cr_gather_wait(gather, 0, &whole, &e), &e, CR_EDIVERGED,
           WORDS("all_gather experts.0", "all_gather experts.1", "rank 0", "rank 1", "fsdp"));
    CR_CHECK(cr_now_s() - begin_s < SOON_S, "not at once");
    g = fresh("sizes");
    e = (cr_err){0};
    expect(cr_all_reduce_f64(g, "norm", CR_OP_SUM, x, world->rank ? 2 : 1, &e), &e, CR_EDIVERGED,
           WORDS("all_reduce norm", "rank 0 has", "rank 1 has", "8", "16"));
    g = fresh("kinds");
    e = (cr_err){0};
    expect(world->rank ? cr_barrier(g, "end", &e)
                       : cr_all_reduce_f64(g, "loss", CR_OP_SUM, x, 1, &e),
           &e, CR_EDIVERGED, WORDS("rank 0", "rank 1", "all_reduce loss", "barrier end"));
}

/* Ranks that released other units before have the same one in other slots: each would read what was there. */
static void test_slots(void)
{
    cr_group *g = fresh("slots");
    cr_gather *gather;
    const cr_mem *whole;
    cr_mem *part;
    cr_err e = {0};
    double begin_s = cr_now_s();

    OK(cr_gather_create(g, 2, 1024, &gather, &err));
    OK(cr_gather_announce(gather, world->rank, "experts.2", 512, &err));
    OK(cr_gather_begin(gather, world->rank, &part, &err));
    OK(cr_gather_publish(gather, world->rank, &err));
    expect(cr_gather_wait(gather, world->rank, &whole, &e), &e, CR_EDIVERGED,
           WORDS("rank 0 calls all_gather experts.2 in slot 0",
                 "rank 1 calls all_gather experts.2 in slot 1"));
    CR_CHECK(cr_now_s() - begin_s < SOON_S, "not at once");
}

/* Rank 1 begins a slot that rank 0 never releases, because it went another way before. */
static void test_busy_slot(void)
{
    cr_group *g = fresh("busy");
    cr_gather *gather;
    const cr_mem *whole;
    cr_mem *part;
    cr_err e = {0};
    double begin_s;

    OK(cr_gather_create(g, 2, 1024, &gather, &err));
    OK(cr_gather_announce(gather, 0, "experts.0", 512, &err));
    OK(cr_gather_begin(gather, 0, &part, &err));
    OK(cr_gather_publish(gather, 0, &err));
    OK(cr_gather_wait(gather, 0, &whole, &err));
    begin_s = cr_now_s();
    if (world->rank) OK(cr_gather_release(gather, 0, &err));
    OK(cr_gather_announce(gather, world->rank ? 0 : 1, "experts.1", 512, &err));
    if (!is_shared(g)) return;
    if (world->rank)
        expect(cr_gather_begin(gather, 0, &part, &e), &e, CR_EDIVERGED,
               WORDS("rank 0", "rank 1", "experts.1"));
    else
        cr_sleep_s(0.5);
    CR_CHECK(cr_now_s() - begin_s < SOON_S, "not at once");
}

static void test_all_to_all_sizes(void)
{
    cr_group *g = fresh("a2a");
    size_t sends[2] = {8, 8}, recvs[2] = {8, world->rank ? 8 : 12};
    char send[16] = {0}, recv[32];
    cr_err e = {0};
    cr_status status = cr_all_to_all(g, "heads", MEM(send), sends, MEM(recv), recvs, &e);

    if (world->rank == 0)
        expect(status, &e, CR_EPEER, WORDS("rank 1 sends 8 bytes, rank 0 expects 12"));
}

static void test_deadline(void)
{
    cr_group *g = fresh("fsdp");
    double begin_s;
    cr_err e = {0};

    cr_world_set_phase(world, "actor_train", "step 7 train");
    OK(cr_barrier(g, "begin", &err));
    begin_s = cr_now_s();
    cr_world_set_deadline(world, 0.3);
    if (world->rank == 1) {
        cr_sleep_s(1);
    } else {
        bool has_board = is_shared(g);
        expect(cr_barrier(g, "model.layers.3", &e), &e, CR_ETIMEOUT,
               WORDS("barrier model.layers.3", "sequence 2", "rank 1", "barrier begin",
                     has_board ? "step 7 train" : "", has_board ? "actor_train" : ""));
        CR_CHECK(cr_now_s() - begin_s < SOON_S, "waited %.3f s", cr_now_s() - begin_s);
    }
    cr_world_set_deadline(world, DEADLINE_S);
}

/* A slot that a peer never releases. */
static void test_late_release(void)
{
    cr_group *g = fresh("slots");
    cr_gather *gather;
    const cr_mem *whole;
    cr_mem *part;
    cr_err e = {0};

    OK(cr_gather_create(g, 1, 1024, &gather, &err));
    OK(cr_gather_announce(gather, 0, "a", 512, &err));
    OK(cr_gather_begin(gather, 0, &part, &err));
    OK(cr_gather_publish(gather, 0, &err));
    OK(cr_gather_wait(gather, 0, &whole, &err));
    CR_CHECK(cr_gather_announce(gather, 0, "b", 512, &e) == CR_EARG, "announced twice");
    e = (cr_err){0};
    if (world->rank == 1 || !is_shared(g)) return;
    cr_world_set_deadline(world, 0.2);
    OK(cr_gather_release(gather, 0, &err));
    OK(cr_gather_announce(gather, 0, "b", 512, &err));
    CR_CHECK(!cr_gather_is_free(gather, 0), "free");
    expect(cr_gather_begin(gather, 0, &part, &e), &e, CR_ETIMEOUT,
           WORDS("beginning b", "slot 0", "rank 1"));
    cr_world_set_deadline(world, DEADLINE_S);
}

/* Long before the deadline: the peer has said that it failed. */
static void test_failed_peer(void)
{
    cr_group *g = fresh("fsdp");
    cr_err e = {0};
    double begin_s = cr_now_s();

    if (world->rank == 1) {
        cr_fail(&e, CR_ENUMERIC, "loss is NaN at step 3");
        cr_world_fail(world, &e);
        cr_sleep_s(1);
    } else {
        expect(cr_barrier(g, "x", &e), &e, CR_EPEER, WORDS("rank 1 failed: loss is NaN at step 3"));
        CR_CHECK(cr_now_s() - begin_s < SOON_S, "after %.2f s", cr_now_s() - begin_s);
    }
}

int main(void)
{
    cr_world_args args = {.kind = cr_world_kind_here(), .deadline_s = DEADLINE_S};

    OK(cr_world_open(&args, &world, &err));
    CR_CHECK(world->num_ranks == 2, "run with scripts/mpi 2");
    for (int pass = 0; pass < 2; pass++) {
        test_mismatch();
        test_slots();
        test_busy_slot();
        test_all_to_all_sizes();
        test_deadline();
        test_late_release();
        test_failed_peer();
        for (int r = 0; r < 2; r++)
            world->host_of[r] = r; /* the second pass goes by messages */
    }
    outer_barrier(world);
    printf("rank ok\n");
    fflush(stdout);
    MPI_Finalize(); /* windows of broken groups are left as they are */
    return 0;
}
