/* fuzz_checkpoint.c -- arbitrary bytes as the three JSON files of a checkpoint, apart by NULs: its manifest,
 * the index of a role's state and the progress of the pipeline. Each is refused with a sentence, or what
 * was read can be used. */
#include "pipelines/checkpoint.h"
#include "pipelines/progress.h"
#include "strategies/checkpoint.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/mutator.h"
#include "tests/model_bench.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[96];
static cr_fsdp *f;
static cr_reward_config rewards[] = {{.domain = (char[]){"a"}}, {.domain = (char[]){"b"}}};

/* A model of 160 elements that is trained by one rank, and the files of its state. */
static void begin(void)
{
    static const char model_json[] =
        "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":8,"
        "\"hidden_size\":4,\"intermediate_size\":2,\"num_attention_heads\":1,"
        "\"num_key_value_heads\":1,\"num_hidden_layers\":1,\"rms_norm_eps\":1e-5,"
        "\"max_position_embeddings\":8,\"tie_word_embeddings\":true}";
    static const char *const names[] = {"checkpoint-3/state/actor_train.master",
                                        "checkpoint-3/state/actor_train.m",
                                        "checkpoint-3/state/actor_train.v"};
    const cr_fsdp_args args = {.is_train = true, .seed = 3, .loss_scale = 4};
    const cr_world_args local = {.kind = CR_WORLD_LOCAL};
    cr_mesh_shape shape;
    cr_world *world;
    cr_mesh *mesh;
    cr_device *dev;
    cr_model *model;
    float zeros[1024] = {0};
    cr_err err = {0};
    int rank = 0;

    fuzz_begin("checkpoint-3/state");
    snprintf(folder, sizeof folder, "%s/checkpoint-3", fuzz_folder);
    if (build_model(model_json, &model, &err) != CR_OK ||
        cr_world_open(&local, &world, &err) != CR_OK ||
        cr_device_open(cr_device_default(), 1, &dev, &err) != CR_OK ||
        cr_mesh_shape_init(&shape, 1, 1, 1, 1, 0, &err) != CR_OK ||
        cr_mesh_create(world, dev, "actor_train", &rank, &shape, &mesh, &err) != CR_OK ||
        cr_fsdp_create(model, dev, mesh, &args, &f, &err) != CR_OK)
        CR_CHECK(false, "%s", err.msg);
    for (size_t i = 0; i < CR_COUNT(names); i++)
        fuzz_put(names[i], zeros, sizeof zeros);
    cr_log_setup(CR_LOG_ERROR, NULL);
}

static void find(void)
{
    cr_config config = {.resume = folder, .output_dir = fuzz_folder, .checkpoint_dir = fuzz_folder};
    cr_err err = {0};
    int64_t first_step;
    char *path;

    if (cr_checkpoint_find(&config, &path, &first_step, &err) == CR_OK)
        CR_CHECK(first_step == 4, "step %lld", (long long)first_step);
    else
        CR_CHECK(err.status == CR_ECONFIG && strstr(err.msg, "checkpoint-3") && !path, "%s",
                 err.msg);
    cr_free(path);
}

static void resume(void)
{
    cr_err err = {0};

    if (cr_fsdp_resume(f, folder, "actor_train", true, &err) == CR_OK)
        CR_CHECK(cr_fsdp_num_updates(f) >= 0, "%lld updates", (long long)cr_fsdp_num_updates(f));
    else
        CR_CHECK(strstr(err.msg, "checkpoint-3"), "%s", err.msg);
}

static void go_on(void)
{
    const cr_config config = {.rewards = rewards, .num_rewards = 2};
    cr_row rows[] = {{.domain = 0}, {.domain = 1}, {.domain = 0}};
    const cr_dataset dataset = {.rows = rows, .num_rows = 3};
    cr_moments moments[2] = {{0}};
    cr_learning learning = {.config = &config, .moments = moments};
    cr_cursor cursors[2];
    char *path = cr_path_join(folder, "state/pipeline.json");
    cr_err err = {0};

    if (cr_progress_read(path, &learning, cursors, &err) == CR_OK) {
        for (int d = 0; d < 2; d++) {
            cr_order order;
            cr_order_init(&order, &dataset, d, 7);
            for (int i = 0; i < 5; i++)
                CR_CHECK(rows[cr_order_draw(&order, &cursors[d])].domain == d, "domain %d", d);
            cr_order_free(&order);
        }
        CR_CHECK(cr_progress_write(path, 3, &learning, cursors, &err) == CR_OK &&
                     cr_progress_read(path, &learning, cursors, &err) == CR_OK,
                 "%s", err.msg);
    } else {
        CR_CHECK(strstr(err.msg, path), "%s", err.msg);
    }
    cr_free(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"checkpoint-3/manifest.json",
                                        "checkpoint-3/state/actor_train.json",
                                        "checkpoint-3/state/pipeline.json"};

    if (!f) begin();
    fuzz_put_all(names, CR_COUNT(names), data, size);
    find();
    resume();
    go_on();
    return 0;
}
