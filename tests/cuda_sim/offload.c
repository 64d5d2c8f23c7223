/* States of a model that leave the GPU and come back, as in a phase change: the host's pinned memory is made once, what has not changed
 * goes back without a copy, and what an update has changed is copied and is the same when it comes back. By the simulation's counts. */
#include "strategies/fsdp_impl.h"
#include "tests/memory.h"
#include "tests/model_bench.h"

#include "tests/check_near.h"

#include <cuda_runtime_api.h>

typedef struct bench {
    cr_world *world;
    cr_device *dev;
    cr_mesh *mesh;
    cr_model *model;
    cr_fsdp *f;
} bench;

static cr_err err;
#define OK(call) \
    if ((call) != CR_OK) fail_msg("%s", err.msg)

static bench make(bool is_offloaded)
{
    static const char text[] =
        "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"vocab_size\":64,"
        "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":1,"
        "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_embeddings\":64,"
        "\"rms_norm_eps\":1e-6,\"initializer_range\":0.1,\"torch_dtype\":\"float32\"}";
    static const int ranks[] = {0};
    cr_world_args world_args = {.kind = CR_WORLD_LOCAL};
    cr_fsdp_args args = {.is_train = true,
                         .seed = 5,
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .weight_decay = 0.5,
                         .is_offloaded = is_offloaded};
    cr_mesh_shape shape;
    bench b;

    OK(build_model(text, &b.model, &err));
    OK(cr_world_open(&world_args, &b.world, &err));
    OK(cr_device_open("cuda", 1, &b.dev, &err));
    OK(cr_mesh_shape_init(&shape, 1, 1, 1, 1, 0, &err));
    OK(cr_mesh_create(b.world, b.dev, "actor_train", ranks, &shape, &b.mesh, &err));
    OK(cr_fsdp_create(b.model, b.dev, b.mesh, &args, &b.f, &err));
    OK(cr_device_sync(b.dev, &err)); /* the first values are there */
    return b;
}

static void unmake(bench *b)
{
    cr_fsdp_destroy(b->f);
    cr_mesh_destroy(b->mesh);
    cr_device_close(b->dev);
    cr_world_close(b->world);
    cr_model_free(b->model);
}

/* Waits for what is queued, which is not counted as a wait. Says what it cost, too (bench/README.md). */
static cri_sim_stats since(const bench *b, const char *what, cri_sim_stats before)
{
    uint64_t host_waits = cri_sim_counts.host_waits - before.host_waits;
    cri_sim_stats now;

    OK(cr_device_sync(b->dev, &err));
    now = cri_sim_counts;
    now.host_waits = host_waits;
    now.to_host -= before.to_host;
    now.to_device -= before.to_device;
    now.pinned_allocs -= before.pinned_allocs;
    print_message("%s: %llu bytes to the host, %llu to the device, %llu waits of the host, %llu "
                  "pinned allocations\n",
                  what, (unsigned long long)now.to_host, (unsigned long long)now.to_device,
                  (unsigned long long)now.host_waits, (unsigned long long)now.pinned_allocs);
    return now;
}

static cri_sim_stats cycle(const bench *b, const char *what)
{
    cri_sim_stats before = cri_sim_counts;

    OK(cr_fsdp_offload(b->f, CR_STATE_ALL, &err));
    OK(cr_fsdp_load(b->f, CR_STATE_ALL, &err));
    return since(b, what, before);
}

static void test_phase_changes(void **state)
{
    bench b = make(/*is_offloaded=*/false);
    size_t shard = (size_t)b.f->units.trained_shard.elems * sizeof(float);
    uint64_t all = 3 * shard; /* masters and two moments; gradients are zero */
    void *old = downloaded(b.dev, b.f->master, shard), *changed, *back;
    cri_sim_stats now = cycle(&b, "first phase change");
    cr_update update;

    (void)state;
    assert_int_equal(now.pinned_allocs, 3);
    assert_int_equal(now.to_host, all);
    assert_int_equal(now.to_device, all);
    now = cycle(&b, "second, nothing has changed");
    assert_int_equal(now.pinned_allocs, 0);
    assert_int_equal(now.to_host, 0);
    assert_int_equal(now.to_device, all);
    OK(cr_fsdp_update(b.f, 0.1, &update, &err));
    changed = downloaded(b.dev, b.f->master, shard);
    assert_memory_not_equal(changed, old, shard);
    now = cycle(&b, "third, after an update");
    assert_int_equal(now.pinned_allocs, 0);
    assert_int_equal(now.to_host, all);
    back = downloaded(b.dev, b.f->master, shard);
    assert_memory_equal(back, changed, shard);
    cr_free(old);
    cr_free(changed);
    cr_free(back);
    unmake(&b);
}

/* What trainers send to engines, in bf16, the second time; here there is no engine. Offloaded moments stay on the host. */
static void test_sync(void **state)
{
    (void)state;
    for (int is_offloaded = 0; is_offloaded < 2; is_offloaded++) {
        bench b = make(is_offloaded);
        size_t shard = (size_t)b.f->units.trained_shard.elems * sizeof(float);
        cri_sim_stats before, now;
        OK(cr_weight_sync_send(b.f, b.mesh->group[CR_AXIS_ALL], CR_BF16, &err));
        before = cri_sim_counts;
        OK(cr_weight_sync_send(b.f, b.mesh->group[CR_AXIS_ALL], CR_BF16, &err));
        now = since(&b, is_offloaded ? "sync of offloaded states" : "sync", before);
        assert_int_equal(now.pinned_allocs, 0);
        assert_true(now.to_host < shard / 16);
        assert_true(is_offloaded ? now.to_device >= shard : now.to_device < shard / 16);
        unmake(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_phase_changes),
                                       cmocka_unit_test(test_sync)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
