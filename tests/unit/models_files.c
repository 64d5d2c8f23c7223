/* models_files.c -- safetensors headers that must be refused, a file written and read back, shards with
 * an index, and a checkpoint matched against a model.
 * Not covered: files of other writers (the acceptance checks read those of safetensors itself). */
#include "models/files/safetensors.h"
#include "models/weights.h"
#include "tests/check_near.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- headers ---- */

static cr_status parse(const char *header, size_t length_in_file, size_t data_bytes, cr_err *err)
{
    size_t num = strlen(header);
    unsigned char *bytes = cr_alloc(8 + num + data_bytes);
    cr_tensors *tensors;
    cr_status status;

    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)((uint64_t)length_in_file >> 8 * i);
    memcpy(bytes + 8, header, num);
    status = cr_tensors_parse(bytes, 8 + num + data_bytes, "x", &tensors, err);
    cr_tensors_close(tensors);
    cr_free(bytes);
    return status;
}

#define T(dtype, shape, begin, end) \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static void good_headers(void **state)
{
    static const struct {
        const char *header;
        size_t data;
    } good[] = {
        {"{}", 0},
        {"{\"a\":" T("F32", "[2,3]", 0, 24) "}   ", 24},
        {"{\"__metadata__\":{\"format\":\"pt\"},\"b\":" T("BF16", "[]", 8,
                                                          10) ",\"a\":" T("I64", "[1]", 0, 8) "}",
         10},
        {"{\"a\":" T("F32", "[0,7]", 0, 0) ",\"b\":" T("U8", "[3]", 0, 3) "}", 3},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2],\"more\":1}}", 2},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(good); i++) {
        cr_err err = {0};
        if (parse(good[i].header, strlen(good[i].header), good[i].data, &err) != CR_OK)
            fail_msg("%s: %s", good[i].header, err.msg);
    }
}

static void bad_headers(void **state)
{
    static const struct {
        const char *header;
        size_t data;
    } bad[] = {
        {"", 0},
        {"[]", 0},
        {"{\"a\":1}", 0},
        {"{\"a\":" T("F32", "[2]", 0, 8), 8},                                     /* cut JSON */
        {"{\"a\":" T("F31", "[2]", 0, 8) "}", 8},                                 /* dtype */
        {"{\"a\":" T("F32", "[2]", 0, 8) "}", 9},                                 /* trailing */
        {"{\"a\":" T("F32", "[2]", 0, 8) "}", 7},                                 /* missing */
        {"{\"a\":" T("F32", "[3]", 0, 8) "}", 8},                                 /* shape */
        {"{\"a\":" T("F32", "[-2]", 0, 8) "}", 8},                                /* negative */
        {"{\"a\":" T("F32", "[2.0]", 0, 8) "}", 8},                               /* no integer */
        {"{\"a\":" T("F32", "2", 0, 8) "}", 8},                                   /* no list */
        {"{\"a\":" T("F4", "[3]", 0, 2) "}", 2},                                  /* half bytes */
        {"{\"a\":" T("F32", "[2]", 8, 0) "}", 8},                                 /* backwards */
        {"{\"a\":" T("F32", "[2]", 4, 12) "}", 12},                               /* hole */
        {"{\"a\":" T("U8", "[8]", 0, 8) ",\"b\":" T("U8", "[8]", 4, 12) "}", 12}, /* overlap */
        {"{\"a\":" T("U8", "[1]", 0, 1) ",\"a\":" T("U8", "[1]", 1, 2) "}", 2},   /* twice */
        {"{\"a\":" T("U8", "[4294967296,4294967296]", 0, 0) "}", 0},              /* overflow */
        {"{\"a\":" T("F64", "[2305843009213693952]", 0, 0) "}", 0},               /* in bits */
        {"{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1]", 0, 1) "}", 1},                  /* dimensions */
        {"{\"__metadata__\":{\"format\":1}}", 0},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(bad); i++) {
        cr_err err = {0};
        if (parse(bad[i].header, strlen(bad[i].header), bad[i].data, &err) == CR_OK)
            fail_msg("accepted: %s", bad[i].header);
        assert_int_equal(cr_exit_code(err.status), 2);
    }
    for (size_t length = 3; length; length = length == 3           ? 100000001
                                             : length == 100000001 ? SIZE_MAX
                                                                   : 0) {
        cr_err err = {0};
        assert_int_equal(parse("{}", length, 0, &err), CR_EFORMAT);
    }
}

/* ---- files ---- */

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/croll-files-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    cr_err err = {0};

    (void)state;
    return cr_remove_tree(folder, &err) == CR_OK ? 0 : -1;
}

static char *in_folder(const char *name)
{
    static char path[2][200];
    static int turn;

    turn ^= 1;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void write_and_read_back(void **state)
{
    static const uint16_t halves[] = {0x3C00, 0xC000, 0x0001, 0x8000, 0x7BFF}; /* f16 */
    static const float values[] = {1, -2, 0x1p-24f, -0.0f, 65504};
    const cr_tensor_spec specs[] = {
        {.name = "z", .dtype = CR_F32, .num_dims = 2, .shape = {2, 2}},
        {.name = "half \"quoted\"", .dtype = CR_F16, .num_dims = 1, .shape = {5}},
        {.name = "scalar", .dtype = CR_F32},
    };
    const float z[] = {1, 2, 3, 4}, scalar = 7;
    float got[5];
    cr_tensor_writer *writer;
    cr_tensors *tensors;
    cr_err err = {0};

    (void)state;
    assert_int_equal(cr_tensor_writer_open(in_folder("t.safetensors"), specs, 3, &writer, &err),
                     CR_OK);
    assert_int_equal(cr_tensor_writer_put(writer, 0, 2, 4, z + 2, &err), CR_OK);
    assert_int_equal(cr_tensor_writer_put(writer, 1, 0, 5, halves, &err), CR_OK);
    assert_int_equal(cr_tensor_writer_put(writer, 2, 0, 1, &scalar, &err), CR_OK);
    assert_false(cr_file_exists(in_folder("t.safetensors"))); /* not before it is complete */
    assert_int_equal(cr_tensor_writer_put(writer, 0, 0, 2, z, &err), CR_OK);
    assert_int_equal(cr_tensor_writer_close(writer, &err), CR_OK);
    assert_int_equal(cr_tensors_open(in_folder("t.safetensors"), &tensors, &err), CR_OK);
    assert_int_equal(tensors->num_tensors, 3);
    assert_string_equal(tensors->tensor[0].name, "scalar"); /* F32 first, then by name */
    assert_string_equal(tensors->tensor[1].name, "z");
    assert_int_equal(cr_tensor_read_f32(cr_tensors_find(tensors, "z"), 1, 4, got, &err), CR_OK);
    assert_memory_equal(got, z + 1, 3 * sizeof *got);
    assert_int_equal(
        cr_tensor_read_f32(cr_tensors_find(tensors, "half \"quoted\""), 0, 5, got, &err), CR_OK);
    assert_memory_equal(got, values, sizeof values);
    assert_null(cr_tensors_find(tensors, "y"));
    cr_tensors_close(tensors);

    assert_int_equal(cr_tensor_writer_open(in_folder("u.safetensors"), specs, 3, &writer, &err),
                     CR_OK);
    assert_int_equal(cr_tensor_writer_close(writer, &err), CR_EARG); /* nothing was put */
    assert_false(cr_file_exists(in_folder("u.safetensors")));
}

/* ---- a checkpoint of a model ---- */

static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":8,\"intermediate_size\":6,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":2,\"vocab_size\":5,\"tie_word_embeddings\":true}";

/* What is wrong with the checkpoint that is written. */
typedef enum fault { NONE, MISSING, RENAMED, RESHAPED, EXTRA, STORED_HEAD, OLD_ROPE } fault;

static void add_extra(cr_tensor_spec *spec, fault what)
{
    static const char *const name[] = {[EXTRA] = "model.extra",
                                       [STORED_HEAD] = "lm_head.weight",
                                       [OLD_ROPE] = "model.layers.0.self_attn.rotary_emb.inv_freq"};

    *spec = (cr_tensor_spec){.name = name[what], .dtype = CR_F32, .num_dims = 1, .shape = {2}};
}

static void write_checkpoint(const cr_model *model, fault what)
{
    cr_tensor_spec specs[32];
    float zeros[64] = {0};
    cr_tensor_writer *writer;
    cr_err err = {0};
    size_t num = 0;

    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *p = model->params[i];
        if (what == MISSING && i == 3) continue;
        specs[num] = (cr_tensor_spec){.name = p->name, .dtype = CR_F32, .num_dims = p->num_dims};
        memcpy(specs[num].shape, p->shape, sizeof p->shape);
        if (what == RENAMED && i == 3) specs[num].name = "model.layers.0.self_attn.q_prog.weight";
        if (what == RESHAPED && p->num_dims == 2 && p->shape[0] != p->shape[1]) {
            specs[num].shape[0] = p->shape[1];
            specs[num].shape[1] = p->shape[0];
        }
        num++;
    }
    if (what >= EXTRA) add_extra(&specs[num++], what);
    assert_int_equal(
        cr_tensor_writer_open(in_folder("model.safetensors"), specs, num, &writer, &err), CR_OK);
    for (size_t i = 0; i < num; i++) {
        int64_t elems = specs[i].shape[0] * (specs[i].num_dims > 1 ? specs[i].shape[1] : 1);
        assert_int_equal(cr_tensor_writer_put(writer, i, 0, elems, zeros, &err), CR_OK);
    }
    assert_int_equal(cr_tensor_writer_close(writer, &err), CR_OK);
}

static void checkpoints_are_matched(void **state)
{
    static const struct {
        fault what;
        const char *sentence; /* NULL: accepted */
    } cases[] = {
        {NONE, NULL},           {STORED_HEAD, NULL},
        {OLD_ROPE, NULL},       {MISSING, "lacks 1 parameters"},
        {RENAMED, "lacks"},     {RESHAPED, "has shape"},
        {EXTRA, "model.extra"},
    };
    cr_model *model;
    cr_err err = {0};

    (void)state;
    assert_int_equal(
        cr_file_write_atomic(in_folder("config.json"), config, sizeof config - 1, &err), CR_OK);
    assert_int_equal(cr_model_open(folder, &model, &err), CR_OK);
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_weights *weights;
        cr_err why = {0};
        cr_status status;
        write_checkpoint(model, cases[i].what);
        status = cr_weights_open(folder, model, &weights, &why);
        if (cases[i].sentence) {
            assert_int_equal(status, CR_EFORMAT);
            if (!strstr(why.msg, cases[i].sentence)) fail_msg("%s", why.msg);
        } else if (status != CR_OK) {
            fail_msg("%s", why.msg);
        }
        cr_weights_close(weights);
    }
    cr_model_free(model);
}

/* ---- a value head: where its values come from ---- */

/* A tensor of these numbers in a file of its own, or none. */
static void write_tensors(const char *file, const char *const names[2], const float *x, int64_t num)
{
    cr_tensor_spec specs[2] = {
        {.name = names[0], .dtype = CR_F32, .num_dims = 2, .shape = {1, num}},
        {.name = names[1], .dtype = CR_F32, .num_dims = 1, .shape = {1}}};
    cr_tensor_writer *writer;
    cr_err err = {0};
    size_t count = names[1] ? 2 : 1;

    assert_int_equal(cr_tensor_writer_open(in_folder(file), specs, count, &writer, &err), CR_OK);
    assert_int_equal(cr_tensor_writer_put(writer, 0, 0, num, x, &err), CR_OK);
    if (count == 2) assert_int_equal(cr_tensor_writer_put(writer, 1, 0, 1, x + num, &err), CR_OK);
    assert_int_equal(cr_tensor_writer_close(writer, &err), CR_OK);
}

/* Shards: the model in m.safetensors, and a head, or none. */
static void index_with(const char *const *names)
{
    cr_buf text = {0};
    cr_tensors *tensors;
    cr_err err = {0};

    assert_int_equal(cr_tensors_open(in_folder("m.safetensors"), &tensors, &err), CR_OK);
    cr_buf_adds(&text, "{\"weight_map\":{");
    for (size_t i = 0; i < tensors->num_tensors; i++)
        cr_buf_addf(&text, "%s\"%s\":\"m.safetensors\"", i ? "," : "", tensors->tensor[i].name);
    for (int i = 0; names && i < 2 && names[i]; i++)
        cr_buf_addf(&text, ",\"%s\":\"h.safetensors\"", names[i]);
    cr_buf_adds(&text, "}}");
    cr_tensors_close(tensors);
    assert_int_equal(cr_file_write_atomic(in_folder("model.safetensors.index.json"), text.data,
                                          text.num_bytes, &err),
                     CR_OK);
    cr_buf_free(&text);
}

/* The head's values: weight, then bias. */
static void read_head(const cr_model *model, float out[9])
{
    cr_weights *weights;
    cr_err err = {0};
    const cr_param *w = cr_model_find_param(model, "score.weight"),
                   *b = cr_model_find_param(model, "score.bias");

    if (cr_weights_open(folder, model, &weights, &err) != CR_OK) fail_msg("%s", err.msg);
    assert_int_equal(cr_weights_fill(weights, model, w, 7, 0, 8, out, &err), CR_OK);
    assert_int_equal(cr_weights_fill(weights, model, b, 7, 0, 1, out + 8, &err), CR_OK);
    cr_weights_close(weights);
}

/* A reward model's, without a bias; TRL's, in the model's files and beside them. */
static const struct {
    const char *names[2], *file;
} heads[] = {{{"score.weight", "score.bias"}, "h.safetensors"},
             {{"score.weight", NULL}, "h.safetensors"},
             {{"v_head.summary.weight", "v_head.summary.bias"}, "h.safetensors"},
             {{"v_head.summary.weight", "v_head.summary.bias"}, "value_head.safetensors"}};

/* A base alone: a new head. */
static void check_new_heads(cr_model *const models[2])
{
    float head[9], other[9], largest = 0;

    read_head(models[0], head); /* normal(0, 0.02), and 0 */
    read_head(models[1], other);
    for (int i = 0; i < 9; i++) {
        assert_true(fabsf(head[i]) < 0.1F && (i == 8) == (fabsf(head[i]) <= 0));
        largest = fmaxf(largest, fabsf(other[i]));
    }
    assert_true(largest > 0.1F && largest < 0.35356F && fabsf(other[8]) > 0); /* 1 / sqrt(8) */
}

static void heads_of_values(void **state)
{
    const cr_model_options options[] = {{.head = CR_HEAD_VALUE}, {.head = CR_HEAD_VALUE_TRL}};
    const float x[9] = {1, -2, 3, -4, 5, -6, 7, -8, 9};
    cr_model *models[2], *base;
    cr_weights *weights;
    cr_err err = {0};
    float head[9];
    char *from;

    (void)state;
    assert_int_equal(
        cr_file_write_atomic(in_folder("config.json"), config, sizeof config - 1, &err), CR_OK);
    assert_int_equal(cr_model_open(folder, &base, &err), CR_OK);
    write_checkpoint(base, NONE);
    for (int i = 0; i < 2; i++)
        assert_int_equal(cr_model_open_with(folder, &options[i], &models[i], &err), CR_OK);
    check_new_heads(models);
    from = cr_strdup(in_folder("model.safetensors"));
    assert_int_equal(rename(from, in_folder("m.safetensors")), 0);
    cr_free(from);
    for (size_t i = 0; i < CR_COUNT(heads); i++) {
        bool is_beside = strcmp(heads[i].file, "h.safetensors") != 0;
        write_tensors(heads[i].file, heads[i].names, x, 8);
        index_with(is_beside ? NULL : heads[i].names);
        read_head(models[i % 2], head);
        assert_memory_equal(head, x, (heads[i].names[1] ? 9 : 8) * sizeof *x);
        if (!heads[i].names[1]) assert_true(i % 2 == 1 || fabsf(head[8]) <= 0);
    }
    assert_int_equal(unlink(in_folder("value_head.safetensors")), 0);
    assert_int_equal(cr_file_write_atomic(in_folder("value_head.bin"), "PK", 2, &err), CR_OK);
    assert_int_equal(cr_weights_open(folder, models[0], &weights, &err), CR_EFORMAT);
    assert_non_null(strstr(err.msg, "value_head.bin is not read"));
    for (int i = 0; i < 2; i++)
        cr_model_free(models[i]);
    cr_model_free(base);
}

static void an_index_must_tell_the_truth(void **state)
{
    static const struct {
        const char *index;
        bool is_good;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"b.safetensors\"}}", true},
        {"{\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"a.safetensors\"}}", false},
        {"{\"weight_map\":{\"a\":\"a.safetensors\",\"c\":\"b.safetensors\"}}", false},
        {"{\"weight_map\":{\"a\":\"../a.safetensors\"}}", false},
        {"{\"weight_map\":{\"a\":\"absent.safetensors\"}}", false},
        {"{\"weight_map\":{\"a\":\"a.safetensors\\u0000\"}}", false},
        {"{\"weight_map\":{\"a\":\"a.safetensors\\u0000.bin\"}}", false},
        {"{\"weight_map\":{\"a\":7}}", false},
        {"{\"weight_map\":{}}", false},
        {"[]", false},
    };
    cr_err err = {0};

    (void)state;
    for (int i = 0; i < 2; i++) {
        cr_tensor_spec spec = {.name = i ? "b" : "a", .dtype = CR_F32};
        float x = (float)i;
        cr_tensor_writer *writer;
        assert_int_equal(cr_tensor_writer_open(in_folder(i ? "b.safetensors" : "a.safetensors"),
                                               &spec, 1, &writer, &err),
                         CR_OK);
        assert_int_equal(cr_tensor_writer_put(writer, 0, 0, 1, &x, &err), CR_OK);
        assert_int_equal(cr_tensor_writer_close(writer, &err), CR_OK);
    }
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        char *path = in_folder("x.safetensors.index.json");
        cr_tensors *tensors;
        cr_err why = {0};
        assert_int_equal(cr_file_write_atomic(path, cases[i].index, strlen(cases[i].index), &err),
                         CR_OK);
        if ((cr_tensors_open(path, &tensors, &why) == CR_OK) != cases[i].is_good)
            fail_msg("%s: %s", cases[i].index, why.msg);
        if (!cases[i].is_good) assert_int_equal(cr_exit_code(why.status), 2);
        cr_tensors_close(tensors);
    }
}

static void two_shards_with_one_tensor(void **state)
{
    static const char index[] =
        "{\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"b.safetensors\"}}";
    cr_tensor_spec specs[2] = {{.name = "a", .dtype = CR_F32}, {.name = "b", .dtype = CR_F32}};
    cr_err err = {0}, why = {0};
    cr_tensors *tensors;
    float x = 1;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        cr_tensor_writer *writer;
        assert_int_equal(cr_tensor_writer_open(in_folder(i ? "b.safetensors" : "a.safetensors"),
                                               specs, i + 1, &writer, &err),
                         CR_OK);
        for (size_t k = 0; k <= i; k++)
            assert_int_equal(cr_tensor_writer_put(writer, k, 0, 1, &x, &err), CR_OK);
        assert_int_equal(cr_tensor_writer_close(writer, &err), CR_OK);
    }
    assert_int_equal(cr_file_write_atomic(in_folder("model.safetensors.index.json"), index,
                                          sizeof index - 1, &err),
                     CR_OK);
    assert_int_equal(cr_tensors_open(folder, &tensors, &why), CR_EFORMAT);
    if (!strstr(why.msg, folder) || !strstr(why.msg, "tensor 'a' is in") ||
        !strstr(why.msg, "a.safetensors") || !strstr(why.msg, "b.safetensors"))
        fail_msg("%s", why.msg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_headers),
        cmocka_unit_test(bad_headers),
        cmocka_unit_test_setup_teardown(write_and_read_back, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(checkpoints_are_matched, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(heads_of_values, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(an_index_must_tell_the_truth, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(two_shards_with_one_tensor, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
