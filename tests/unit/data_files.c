/* data_files.c -- files that a run reads back: rows of data, lines of metrics.jsonl, the progress of a
 * pipeline and the index of a role's state. What is damaged is refused, and nothing after it is lost.
 * Not covered: what is written (mesh/strategies.c, e2e/run_resume.sh); arbitrary bytes (tests/fuzz).
 */
#include "pipelines/progress.h"
#include "reports/tracker.h"
#include "strategies/checkpoint.h"
#include "tests/check_near.h"
#include "tests/model_bench.h"
#include "tests/temp_folder.h"

#include <stdio.h>
#include <stdlib.h>

static char *put(const char *name, const void *data, size_t num_bytes)
{
    char *path = cr_path_join(temp_folder, name);
    cr_err err = {0};

    if (cr_file_write_atomic(path, data, num_bytes, &err) != CR_OK) fail_msg("%s", err.msg);
    return path;
}

static cr_status one_id(void *ctx, cr_row *row, cr_err *err)
{
    (void)ctx;
    (void)err;
    row->ids = CR_NEW_ARRAY(int32_t, 1);
    row->num_ids = 1;
    return CR_OK;
}

/* A NUL at the beginning of a line is a wrong row, not the end of the file. */
static void rows_behind_a_nul(void **state)
{
    static const char text[] = "{\"a\":1}\n \r\n\0{}\n{\"a\":2}\n[]\n{\"a\":3}";
    char *path = put("rows.jsonl", text, sizeof text - 1);
    cr_dataset data = {0};
    cr_err err = {0};

    (void)state;
    assert_int_equal(cr_dataset_load(&data, path, &(cr_row_coder){.encode = one_id}, &err),
                     CR_EFORMAT);
    assert_non_null(strstr(err.msg, "rows.jsonl:3"));
    assert_non_null(strstr(err.msg, "(and 1 more wrong row in "));
    assert_int_equal(data.num_rows, 3);
    assert_int_equal(data.rows[2].line, 6);
    cr_dataset_free(&data);
    cr_free(path);
}

/* Zeros of a power cut in metrics.jsonl: the lines of earlier steps after them stay. */
static void metrics_behind_zeros(void **state)
{
    static const char text[] = "{\"step\":0}\n\0\0\0\n{\"step\":1}\n{\"step\":2}\n{\"step\":1";
    char *path = put("metrics.jsonl", text, sizeof text - 1);
    const cr_config config = {.track_with = CR_TRACK_NONE};
    cr_tracker *tracker;
    cr_buf kept = {0};
    cr_err err = {0};

    (void)state;
    if (cr_tracker_open(&config, temp_folder, 2, &tracker, &err) != CR_OK ||
        cr_file_read(path, &kept, &err) != CR_OK)
        fail_msg("%s", err.msg);
    assert_string_equal(kept.data, "{\"step\":0}\n{\"step\":1}\n");
    cr_tracker_close(tracker);
    cr_buf_free(&kept);
    cr_free(path);
}

#define LEARNING(updates) \
    "\"learning\":{\"updates\":" updates ",\"kl_coef\":0.5,\"moments\":[[1,2,3]]}"

static void progress(void **state)
{
    static const char *const wrong[] = {
        "[]",
        "{" LEARNING("1") "}",
        "{\"cursors\":{\"a\":{\"epoch\":0,\"next\":-1}}," LEARNING("1") "}",
        "{\"cursors\":{\"a\":{\"epoch\":9223372036854775807,\"next\":0}}," LEARNING("1") "}",
        "{\"cursors\":{\"a\":{\"epoch\":0}}," LEARNING("1") "}",
        "{\"cursors\":{\"a\":{\"epoch\":0,\"next\":0,\"owed\":2}}," LEARNING("1") "}",
        "{\"cursors\":{}," LEARNING("-1") "}",
        "{\"cursors\":{}}",
        "{\"cursors\":{},\"learning\":{\"updates\":1,\"kl_coef\":null,\"moments\":[]}}",
        "{\"cursors\":{},\"learning\":{\"updates\":1,\"kl_coef\":1,\"moments\":[[1,2]]}}"};
    cr_reward_config rewards[] = {{.domain = (char[]){"a"}}, {.domain = (char[]){"b"}}};
    const cr_config config = {.rewards = rewards, .num_rewards = 2};
    cr_moments moments[] = {{1, 2, 3}, {4, 5, 6}};
    cr_learning learning = {
        .config = &config, .actor = {.updates = 7}, .kl_coef = 0.25, .moments = moments};
    cr_cursor cursors[] = {{1, 2, 0.25}, {3, 4, -0.5}};
    char *path = cr_path_join(temp_folder, "pipeline.json");
    cr_err err = {0};

    (void)state;
    if (cr_progress_write(path, 5, &learning, cursors, &err) != CR_OK) fail_msg("%s", err.msg);
    memset(moments, 0, sizeof moments);
    memset(cursors, 0, sizeof cursors);
    learning.actor.updates = 0;
    learning.kl_coef = 0;
    if (cr_progress_read(path, &learning, cursors, &err) != CR_OK) fail_msg("%s", err.msg);
    assert_true(cursors[0].epoch == 1 && cursors[0].next == 2 && cursors[1].epoch == 3 &&
                cursors[1].next == 4 && learning.actor.updates == 7);
    check_near(cursors[0].deficit, 0.25, 0);
    check_near(cursors[1].deficit, -0.5, 0);
    check_near(learning.kl_coef, 0.25, 0);
    check_near(moments[1].var, 5, 0);
    cr_free(path);
    for (size_t i = 0; i < CR_COUNT(wrong); i++) {
        path = put("pipeline.json", wrong[i], strlen(wrong[i]));
        err = (cr_err){0};
        if (cr_progress_read(path, &learning, cursors, &err) != CR_EFORMAT)
            fail_msg("%s: read", wrong[i]);
        assert_non_null(strstr(err.msg, path));
        cr_free(path);
    }
}

#define MODEL                                                                              \
    "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":8," \
    "\"hidden_size\":4,\"intermediate_size\":2,\"num_attention_heads\":1,"                 \
    "\"num_key_value_heads\":1,\"num_hidden_layers\":1,\"rms_norm_eps\":1e-5,"             \
    "\"max_position_embeddings\":8,\"tie_word_embeddings\":true}"

/* The index of all parameters, one of them with another first element. */
static void put_index(const cr_model *model, const char *head, const char *first)
{
    cr_buf text = {0};
    int64_t at = 0;

    cr_buf_addf(&text, "{%s,\"params\":{", head);
    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *p = model->params[i];
        cr_buf_addf(&text, "%s\"%s\":{\"num\":%lld,\"first\":", i ? "," : "", p->name,
                    (long long)p->num_elems);
        if (first && i == 2)
            cr_buf_addf(&text, "%s}", first);
        else
            cr_buf_addf(&text, "%lld}", (long long)at);
        at += p->num_elems;
    }
    cr_buf_adds(&text, "}}");
    cr_free(put("state/t.json", text.data, text.num_bytes));
    cr_buf_free(&text);
}

/* First elements that lie before, or so far after, that their byte is beyond 63 bits; counts that are not counts. */
static void index_of_states(void **state)
{
    static const struct {
        const char *head, *first;
    } cases[] = {{"\"updates\":3,\"elements\":256", NULL}, /* well */
                 {"\"updates\":3,\"elements\":256", "-1"},
                 {"\"updates\":3,\"elements\":256", "250"},
                 {"\"updates\":3,\"elements\":256", "9223372036854775800"},
                 {"\"updates\":3,\"elements\":9223372036854775807", "9223372036854770000"},
                 {"\"updates\":3,\"elements\":256", "\"0\""},
                 {"\"updates\":-1,\"elements\":256", NULL},
                 {"\"updates\":1.5,\"elements\":256", NULL},
                 {"\"elements\":256", NULL},
                 {"\"updates\":3,\"elements\":256,\"loss_scale\":0,\"good_updates\":0", NULL},
                 {"\"updates\":3,\"elements\":256,\"loss_scale\":4", NULL}};
    const cr_fsdp_args args = {.is_train = true, .seed = 3, .loss_scale = 4};
    const cr_world_args local = {.kind = CR_WORLD_LOCAL};
    static const float zeros[256];
    cr_mesh_shape shape;
    cr_world *world;
    cr_mesh *mesh;
    cr_device *dev;
    cr_model *model;
    cr_fsdp *f;
    char *folder = cr_path_join(temp_folder, "state");
    cr_err err = {0};
    int rank = 0;

    (void)state;
    if (cr_mkdirs(folder, &err) != CR_OK || build_model(MODEL, &model, &err) != CR_OK ||
        cr_world_open(&local, &world, &err) != CR_OK ||
        cr_device_open(cr_device_default(), 1, &dev, &err) != CR_OK ||
        cr_mesh_shape_init(&shape, 1, 1, 1, 1, 0, &err) != CR_OK ||
        cr_mesh_create(world, dev, "t", &rank, &shape, &mesh, &err) != CR_OK ||
        cr_fsdp_create(model, dev, mesh, &args, &f, &err) != CR_OK)
        fail_msg("%s", err.msg);
    cr_free(put("state/t.master", zeros, sizeof zeros));
    cr_free(put("state/t.m", zeros, sizeof zeros));
    cr_free(put("state/t.v", zeros, sizeof zeros));
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        err = (cr_err){0};
        put_index(model, cases[i].head, cases[i].first);
        if (cr_fsdp_resume(f, temp_folder, "t", true, &err) != (i ? CR_EFORMAT : CR_OK))
            fail_msg("case %zu: %s", i, err.msg);
        assert_int_equal(cr_fsdp_num_updates(f), 3);
        if (i > 0 && !strstr(err.msg, "t.json")) fail_msg("case %zu: %s", i, err.msg);
    }
    cr_fsdp_destroy(f);
    cr_mesh_destroy(mesh);
    cr_device_close(dev);
    cr_world_close(world);
    cr_model_free(model);
    cr_free(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_behind_a_nul), cmocka_unit_test(metrics_behind_zeros),
        cmocka_unit_test(progress), cmocka_unit_test(index_of_states)};

    return cmocka_run_group_tests(tests, make_temp_folder, remove_temp_folder);
}
