/* strategies_sync.c -- weight sync over a transport played here: what is sent is kept, may be damaged,
 * and is then received by the same process. Every flipped bit is found, and the message names the unit.
 * The real transport is in tests/mesh/strategies.c.
 * // also on far
 * // also on cuda
 */
#include "base/rng.h"
#include "mesh/comm.h"
#include "strategies/strategies.h"
#include "tests/model_bench.h"

#include <setjmp.h> /* cmocka needs these before it */
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* ---- the transport ---- */

static cr_buf wire;
/* What the sender said last under each name; the receiver says the version of the frozen parameters that it has. */
static const char *const names[] = {"weight sync", "weight map", "weight sums"};
static cr_buf said[CR_COUNT(names)];
static int64_t
    greeting[4]; /* of the receiver: it sends nothing, has no version, that one, and is not cut */

static int64_t *sender_version(void)
{
    return (int64_t *)(void *)said[0].data + 2;
}

static cr_status play_gather(cri_call *call, const char *data, size_t num_bytes, cr_buf *out,
                             size_t *offsets, cr_err *err)
{
    size_t k = 0;

    (void)err;
    while (strcmp(call->name, names[k]) != 0)
        k++;
    if (call->group->rank == 0) {
        cr_buf_clear(&said[k]);
        cr_buf_add(&said[k], data, num_bytes);
    } else if (k == 0) {
        memcpy(greeting, data, sizeof greeting);
    }
    cr_buf_add(out, said[k].data, said[k].num_bytes);
    offsets[0] = 0;
    offsets[1] = out->num_bytes;
    if (k == 0) cr_buf_add(out, greeting, sizeof greeting);
    offsets[2] = out->num_bytes;
    return CR_OK;
}

static cr_status play_transfer(cri_call *call, const cri_pieces *x, cr_err *err)
{
    size_t at = 0;

    (void)call;
    (void)err;
    if (x->num_sends) cr_buf_clear(&wire);
    for (size_t i = 0; i < x->num_sends; i++) {
        char *copy =
            downloaded(x->dev, MEM(x->send + x->sends[i].offset_bytes), x->sends[i].num_bytes);
        cr_buf_add(&wire, copy, x->sends[i].num_bytes);
        cr_free(copy);
    }
    for (size_t i = 0; i < x->num_recvs; at += x->recvs[i++].num_bytes)
        refill(x->dev, MEM(x->recv + x->recvs[i].offset_bytes), wire.data + at,
               x->recvs[i].num_bytes);
    if (x->num_recvs) assert_int_equal(at, wire.num_bytes);
    return CR_OK;
}

static const cri_comm played = {.transfer = play_transfer}, of_host = {.all_gather = play_gather};

/* ---- the test ---- */

static cr_model *make_model(const char *frozen, cr_err *err)
{
    static const char text[] =
        "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"vocab_size\":31,"
        "\"hidden_size\":16,\"intermediate_size\":24,\"num_hidden_layers\":2,"
        "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"max_position_embeddings\":64,"
        "\"rms_norm_eps\":1e-6,\"torch_dtype\":\"float32\"}";
    cr_model *model;

    assert_int_equal(build_model(text, &model, err), CR_OK);
    assert_int_equal(cr_model_freeze(model, frozen, err), CR_OK);
    return model;
}

static void a_flipped_bit_is_found(void **state)
{
    static const char frozen[] = "model.embed_tokens,model.layers.1.mlp.up_proj";
    cr_err err = {0};
    cr_world_args world_args = {.kind = CR_WORLD_LOCAL};
    cr_fsdp_args args = {.is_train = true, .param_dtype = CR_BF16, .seed = 3};
    int here[2] = {0, 0};
    cr_model *sender = make_model(frozen, &err), *receiver = make_model(frozen, &err);
    cr_group to = {.comm = &played,
                   .base = &of_host,
                   .name = "sync",
                   .num_ranks = 2,
                   .world_ranks = here},
             from = to;
    size_t whole_bytes;
    int64_t whole_version = 0;
    cr_world *world;
    cr_device *dev;
    cr_mesh_shape shape;
    cr_mesh *mesh;
    cr_fsdp *f;
    cr_weight_copy *replica;

    (void)state;
    assert_int_equal(cr_world_open(&world_args, &world, &err), CR_OK);
    to.world = from.world = world;
    from.rank = 1;
    assert_int_equal(cr_device_open(cr_device_default(), 1, &dev, &err), CR_OK);
    to.dev = from.dev = dev;
    assert_int_equal(cr_mesh_shape_init(&shape, 1, 1, 1, 1, 0, &err), CR_OK);
    assert_int_equal(cr_mesh_create(world, dev, "actor_train", here, &shape, &mesh, &err), CR_OK);
    assert_int_equal(cr_fsdp_create(sender, dev, mesh, &args, &f, &err), CR_OK);
    assert_int_equal(cr_weight_copy_create(receiver, dev, CR_BF16, &replica, &err), CR_OK);
    assert_int_equal(cr_weight_sync_send(f, &to, CR_BF16, &err), CR_OK);
    assert_int_equal(cr_weight_sync_receive(replica, &from, &err), CR_OK);
    whole_bytes = wire.num_bytes;
    for (uint64_t i = 0; i < 400; i++) {
        uint32_t w[4];
        if (i < 200) (*sender_version())++; /* all comes once more */
        if (i == 200) { /* what is frozen is there: flips of the rest are found as well */
            (*sender_version())++;
            assert_int_equal(cr_weight_sync_receive(replica, &from, &err), CR_OK);
            whole_version = *sender_version();
            greeting[2] = 1; /* as the sender has them */
            assert_int_equal(cr_weight_sync_send(f, &to, CR_BF16, &err), CR_OK);
            *sender_version() = whole_version;
            assert_int_equal(wire.num_bytes, whole_bytes - (31 + 24) * 16 * 2);
        }
        size_t at;
        cr_rng_philox(1, CR_RNG_TEST, 0, i, w);
        at = i == 0 ? 0 : i == 1 ? wire.num_bytes - 1 : w[0] % wire.num_bytes;
        wire.data[at] = (char)(wire.data[at] ^ (1 << w[1] % 8));
        assert_int_equal(cr_weight_sync_receive(replica, &from, &err), CR_EPEER);
        assert_non_null(strstr(err.msg, "weight of rank 0 arrived"));
        err = (cr_err){0};
        wire.data[at] = (char)(wire.data[at] ^ (1 << w[1] % 8));
    }
    assert_int_equal(cr_weight_sync_receive(replica, &from, &err), CR_OK);
    cr_weight_copy_destroy(replica);
    cr_fsdp_destroy(f);
    cr_mesh_destroy(mesh);
    cr_device_close(dev);
    cr_world_close(world);
    cr_model_free(sender);
    cr_model_free(receiver);
    cr_buf_free(&wire);
    for (size_t k = 0; k < CR_COUNT(said); k++)
        cr_buf_free(&said[k]);
}

/* ---- units ---- */

static void units_of(const char *const *classes, size_t num, cr_units *out, cr_err *err)
{
    cr_model *model = make_model(NULL, err);
    cr_wrap_policy policy = {classes, num, false, false};

    cr_note(cr_units_build(model, &policy, 4, out, err));
    if (err->status == CR_OK) cr_units_free(out);
    cr_model_free(model);
}

static void a_class_that_matches_nothing_is_named(void **state)
{
    const char *const wrong[] = {"LlamaDecoderLayer", "LlamaAttn"}, *const list[] = {"ModuleList"};
    cr_units units;
    cr_err err = {0};

    (void)state;
    units_of(wrong, 2, &units, &err);
    assert_int_equal(err.status, CR_ECONFIG);
    assert_non_null(strstr(err.msg, "LlamaAttn"));
    assert_non_null(strstr(err.msg, "LlamaDecoderLayer, LlamaAttention"));
    err = (cr_err){0};
    units_of(list, 1, &units, &err);
    assert_int_equal(err.status, CR_ECONFIG);
}

static void a_prefix_that_matches_nothing_is_named(void **state)
{
    cr_err err = {0};
    cr_model *model = make_model(NULL, &err);

    (void)state;
    assert_int_equal(cr_model_freeze(model, "lm_head,model.layer.0", &err), CR_ECONFIG);
    assert_non_null(strstr(err.msg, "'model.layer.0'"));
    assert_non_null(strstr(err.msg, "model.layers.0"));
    cr_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flipped_bit_is_found),
        cmocka_unit_test(a_class_that_matches_nothing_is_named),
        cmocka_unit_test(a_prefix_that_matches_nothing_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
