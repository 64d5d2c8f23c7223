/* models_peft.c -- folders of PEFT: one that PEFT saved (tests/parity/peft, by peft_folder.py) gives PEFT's log-probs; what is
 * written is read again, and PEFT reads it:
 *
 *     build/release/unit_models_peft FOLDER && python tests/parity/peft_folder.py --check FOLDER
 *
 * and what is refused, by its name.
 * // also on far
 * // also on cuda
 */
#include "models/files/merge.h"
#include "tests/peft_folders.h"

/* ---- a model from files ---- */

/* beside: another adapter, or NULL. */
static cr_status open_files(const char *adapter, const char *beside, model_bench *b, cr_err *err)
{
    const cr_adapter_options other = {.folder = beside, .dropout = -1};
    const cr_model_options options = {
        .adapters = {.folder = adapter, .dropout = -1, .next = beside ? &other : NULL}};
    char *base = path_of(base_of(golden_of));

    *b = (model_bench){0};
    CR_TRY_GOTO(out, cr_model_open_with(base, &options, &b->model, err));
    CR_TRY_GOTO(out, cr_device_open(cr_device_default(), 1, &b->dev, err));
    CR_TRY_GOTO(out, cr_full_weights_load(&b->full, b->model, b->dev, CR_F32, base, err));
    b->tape = cr_stack_create(b->dev);
    b->scratch = cr_stack_create(b->dev);
    b->state = cr_pass_state_create();
out:
    cr_free(base);
    return err->status;
}

/* The log-probs of a pass with number `at` of a folder and one beside it; returns how many there are. */
static size_t run_beside(const char *adapter, const char *beside, int at, float *log_probs)
{
    cr_outputs out = {{log_probs}};
    cr_err err = {0};
    model_bench b;
    cr_pass pass;
    inputs in;

    must(open_files(adapter, beside, &b, &err), &err);
    make_inputs(&in);
    pass = pass_of(&b, &in, &(cr_pass){.dtype = CR_F32, .adapter = at});
    pass.tape = NULL;
    must(cr_model_forward(b.model, &pass, &out, &err), &err);
    model_bench_close(&b);
    return 21;
}

static size_t run_folder(const char *adapter, float *log_probs)
{
    return run_beside(adapter, NULL, 0, log_probs);
}

static void check_refusal(const char *adapter, const char *sentence)
{
    cr_err err = {0};
    model_bench b;

    if (open_files(adapter, NULL, &b, &err) == CR_OK)
        fail_msg("%s was read, not: %s", adapter, sentence);
    if (!strstr(err.msg, sentence) || strchr(err.msg, '\n'))
        fail_msg("'%s', expected '%s'", err.msg, sentence);
    cr_model_free(b.model);
    cr_full_weights_fini(&b.full);
    if (b.dev) cr_device_close(b.dev);
}

/* ---- tests ---- */

static void numbers_of_peft(void **state)
{
    json_t *golden = read_json(of_peft, "model.json"), *want = json_object_get(golden, "log_probs");
    float log_probs[MAX_TOKENS];
    cr_adapter_options o;
    cr_err err = {0};
    char *base;

    (void)state;
    must(cr_peft_config_read(of_peft, &o, &base, &err), &err);
    assert_string_equal(o.target, "q_proj,layers.1.mlp.down_proj,v_proj");
    assert_int_equal(o.rank, 2);
    assert_true(o.alpha == 3 && o.use_rslora && !base);
    cr_peft_options_fini(&o);
    assert_int_equal(run_folder(of_peft, log_probs), json_array_size(want));
    for (size_t t = 0; t < json_array_size(want); t++)
        check_near(log_probs[t], json_number_value(json_array_get(want, t)), 1e-5);
    json_decref(golden);
}

/* Of experts and routers: as PEFT 0.21 saves them, and as older PEFT did; of an embedding and modules_to_save, with PEFT's table of the
 * base. */
static void other_folders_of_peft(void **state)
{
    static const struct {
        const char *folder, *base;
    } cases[] = {{"tests/parity/peft_moe", "moe"},
                 {"tests/parity/peft_older", "moe"},
                 {"tests/parity/peft_words", "words"}};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        json_t *golden = read_json(cases[i].folder, "model.json"),
               *want = json_object_get(golden, "log_probs");
        float log_probs[MAX_TOKENS];
        choose_base(cases[i].base);
        run_folder(cases[i].folder, log_probs);
        for (size_t t = 0; t < json_array_size(want); t++)
            check_near(log_probs[t], json_number_value(json_array_get(want, t)), 1e-5);
        json_decref(golden);
    }
    golden_of = of_peft;
}

/* Two adapters of a model: each has the bits that it has alone. */
static void beside_each_other(void **state)
{
    static const struct {
        const char *base, *folder, *other; /* other NULL: one that is written here */
        cr_adapter_options o;
    } cases[] = {
        {"moe", "tests/parity/peft_moe", "tests/parity/peft_older", {0}},
        {"", of_peft, NULL, {"all-linear", 3, 16}},
        {"words", NULL, NULL, {"all-embedding,k_proj", 3, 16}},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        char *some = path_of("some"), *other = path_of("other");
        const char *const names[] = {cases[i].folder ? cases[i].folder : some,
                                     cases[i].other ? cases[i].other : other};
        choose_base(cases[i].base);
        if (!cases[i].folder)
            write_adapter("some", &(cr_adapter_options){"embed_tokens,v_proj", 2, 3}, CR_F32);
        if (!cases[i].other) write_adapter("other", &cases[i].o, CR_F32);
        for (int at = 0; at < 4; at++) { /* in either order */
            float want[MAX_TOKENS], got[MAX_TOKENS];
            int first = at / 2;
            size_t num;
            num = run_folder(names[(at + first) % 2], want);
            run_beside(names[first], names[!first], at % 2, got);
            assert_memory_equal(got, want, num * sizeof *got);
        }
        golden_of = of_peft;
        cr_free(some);
        cr_free(other);
    }
}

/* One with modules in full is alone. */
static void full_beside_another(void **state)
{
    static const char *const full = "tests/parity/peft_words";
    const cr_adapter_options o = {"q_proj", 2, 3};
    char *other = path_of("other");

    (void)state;
    choose_base("words");
    write_adapter("other", &o, CR_F32);
    for (int at = 0; at < 2; at++) {
        cr_err err = {0};
        model_bench b;
        assert_int_equal(open_files(at ? other : full, at ? full : other, &b, &err), CR_EABSENT);
        if (!strstr(err.msg, "peft_words: an adapter with modules in full (modules_to_save: "))
            fail_msg("%s", err.msg);
        cr_model_free(b.model);
    }
    golden_of = of_peft;
    cr_free(other);
}

static const struct {
    const char *name;
    cr_adapter_options o;
} written[] = {
    {"list", {" q_proj , layers.1.mlp.down_proj", 3, 16, false, NULL, 0.2}},
    {"one", {"o_proj", 1, 0.5, true, NULL}},
    {"regex", {"model\\.layers\\.[01]\\.(mlp|self_attn)\\.[a-z]+_proj", 4, 8, false, NULL}},
    {"all-linear", {"all-linear", 2, 7, false, NULL}},
    {"moe", {"all-linear,all-router", 2, 6, false, NULL}},
    {"moe-experts", {"gate_proj,up_proj", 2, 6, true, NULL}},
    {"moe-parameters", {"q_proj,experts.gate_up_proj,down_proj", 3, 6, false, NULL}},
    {"words-table", {"embed_tokens,o_proj", 3, 6, true, NULL}},
    {"words-all", {"all-linear,all-embedding", 2, 6, false, NULL}},
    {"words-saved",
     {"q_proj,v_proj", 2, 6, false, NULL, .saved = "lm_head,embed_tokens,norm,layers.1.mlp"}},
    {"words-both", {"all-embedding,k_proj", 2, 6, false, NULL, .saved = "lm_head"}},
};

/* What was written is read again, in the bits of the model that it was written from. */
static void round_trips(void **state)
{
    (void)state;
    for (size_t i = 0; i < CR_COUNT(written); i++) {
        const cr_adapter_options *o = &written[i].o;
        char *at = path_of(written[i].name), *base;
        float got[MAX_TOKENS] = {0}, want[MAX_TOKENS] = {0};
        cr_adapter_options read;
        cr_outputs out = {{want}};
        cr_err err = {0};
        model_bench b;
        cr_pass pass;
        inputs in;
        choose_base(written[i].name);
        write_adapter(written[i].name, o, CR_F32);
        must(cr_peft_config_read(at, &read, &base, &err), &err);
        if (golden_of == of_peft)
            assert_string_equal(read.target, i == 0 ? "q_proj,layers.1.mlp.down_proj" : o->target);
        assert_true(read.rank == o->rank && read.alpha == o->alpha &&
                    read.use_rslora == o->use_rslora && read.dropout == o->dropout);
        assert_string_equal(base, "org/base");
        assert_string_equal(read.folder, at);
        cr_peft_options_fini(&read);
        cr_free(base);
        run_folder(at, got);
        must(open_files(at, NULL, &b, &err), &err);
        set_weights_to(trained_value, &b);
        make_inputs(&in);
        pass = pass_of(&b, &in, &(cr_pass){.dtype = CR_F32});
        must(cr_model_forward(b.model, &pass, &out, &err), &err);
        model_bench_close(&b);
        assert_memory_equal(got, want, sizeof got);
        cr_free(at);
    }
    golden_of = of_peft;
}

/* A folder alone says all; what is said beside it is not otherwise there. */
static void options_of_a_folder(void **state)
{
    static const struct {
        cr_adapter_options o;
        const char *sentence; /* NULL: it is built */
    } cases[] = {
        {{.folder = of_peft}, NULL},
        {{.folder = of_peft, .rank = 2, .alpha = 3, .use_rslora = true}, NULL},
        {{.folder = of_peft, .target = "v_proj,q_proj,model.layers.1.mlp.down_proj"}, NULL},
        {{.folder = of_peft, .rank = 4}, "has an adapter of rank 2, not 4"},
        {{.folder = of_peft, .alpha = 4}, "has an adapter of alpha 3, not 4"},
        {{.folder = "tests/parity"}, "has no " CR_PEFT_CONFIG},
    };
    json_t *golden = read_json(golden_of, "model.json");
    char *text = json_dumps(json_object_get(golden, "config"), JSON_COMPACT);

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        const cr_model_options options = {.adapters = cases[i].o};
        cr_err err = {0};
        cr_model *model;
        if (build_model_with(text, &options, &model, &err) != CR_OK) {
            if (!cases[i].sentence || !strstr(err.msg, cases[i].sentence))
                fail_msg("case %zu: %s", i, err.msg);
            continue;
        }
        assert_null(cases[i].sentence);
        assert_int_equal(model->adapters->rank, 2);
        assert_true(model->adapters->alpha == 3 && model->adapters->use_rslora);
        assert_string_equal(model->adapters->folder, of_peft);
        assert_non_null(cr_model_find_module(model, "model.layers.1.mlp.down_proj")->adapters);
        cr_model_free(model);
    }
    free(text);
    json_decref(golden);
}

/* Each float dtype, as it is stored. */
static void dtypes(void **state)
{
    static const cr_dtype all[] = {CR_F64, CR_BF16, CR_F16};
    static const cr_adapter_options o = {"q_proj", 2, 4, false, NULL};
    char *at = path_of("dtypes");

    (void)state;
    for (size_t i = 0; i < CR_COUNT(all); i++) {
        const cr_param *p;
        void *weights;
        cr_err err = {0};
        model_bench b;
        write_adapter("dtypes", &o, all[i]);
        must(open_files(at, NULL, &b, &err), &err);
        weights = model_bench_weights(&b);
        p = cr_model_find_param(b.model, "model.layers.1.self_attn.q_proj.lora_B.weight");
        for (int64_t e = 0; e < p->num_elems; e++) {
            const float *got = in_copy(weights, b.full.data, p->weight.data);
            double stored;
            assert_true(got[e] == store(all[i], value_of(p, e), &stored));
        }
        cr_free(weights);
        model_bench_close(&b);
    }
    cr_free(at);
}

static void keys_that_are_refused(void **state)
{
    static const struct {
        const char *key, *value,
            *sentence; /* value NULL: the key is taken out; sentence NULL: it is read */
    } cases[] = {
        {"use_dora", "true", "use_dora is not available: let PEFT merge"},
        {"peft_type", "\"IA3\"", "peft_type is IA3, and only LORA is available"},
        {"peft_type", NULL, "peft_type is missing"},
        {"modules_to_save", "[\"lm_head\"]", "additional_target 'lm_head': qwen2 has tied word"},
        {"modules_to_save", "\"norm\"", "modules_to_save must be a list"},
        {"modules_to_save", "[\"norm\"]",
         "the adapter lacks 5 parameters of the model: model.layers.0.input_layernorm.weight, "},
        {"target_modules", "[\"q_proj\", \"embed_tokens\"]",
         "target 'embed_tokens': qwen2 has tied word embeddings"},
        {"rank_pattern", "{\"q_proj\": 4}", "rank_pattern is not available"},
        {"alpha_pattern", "{\"q_proj\": 4}", "alpha_pattern is not available"},
        {"rank_pattern", "{\".*\\\\.gate_up_proj\": 4}", "rank_pattern without alpha_pattern"},
        {"rank_pattern", "{\".*\\\\.gate_up_proj\": 3}", "rank_pattern is not available"},
        {"layers_to_transform", "[0]", "layers_to_transform is not available"},
        {"layers_to_transform", "0", "layers_to_transform is not available"},
        {"target_parameters", "[\"mlp.experts.down_proj\"]", "matches no Linear"},
        {"target_parameters", "[3]", "target_parameters must be a list"},
        {"exclude_modules", "[\"q_proj\"]", "exclude_modules is not available"},
        {"bias", "\"lora_only\"", "bias is not available"},
        {"lora_bias", "true", "lora_bias is not available"},
        {"fan_in_fan_out", "true", "fan_in_fan_out is not available"},
        {"init_lora_weights", "\"pissa\"", "init_lora_weights is not available"},
        {"init_lora_weights", "\"gaussian\"", NULL},
        {"alora_invocation_tokens", "[1]", "alora_invocation_tokens is not available"},
        {"of_another_version", "{\"a\": 1}", "of_another_version is not available"},
        {"of_another_version", "{}", NULL},
        {"lora_dropout", "0.1", NULL},
        {"r", "0", "r must be an integer from 1"},
        {"r", "2.0", "r must be an integer from 1"},
        {"r", "9223372036854775807", "r must be an integer from 1"},
        {"r", "3", "has shape [2, 64], the model's config.json wants [3, 64] with r of"},
        {"lora_alpha", "\"16\"", "lora_alpha must be a number"},
        {"lora_alpha", "1e300", "lora_alpha must be a number"},
        {"use_rslora", "1", "use_rslora must be true or false"},
        {"target_modules", NULL, "target_modules must be a list"},
        {"target_modules", "[]", "target_modules must be a list"},
        {"target_modules", "\"\"", "target_modules must be a list"},
        {"target_modules", "[\"q_proj\", 3]", "target_modules must be a list"},
        {"target_modules", "[\"q_proj,v_proj\"]", "target_modules must be a list"},
        {"target_modules", "[\"q_prj\"]",
         "'q_prj' matches no Linear of the model (is it 'q_proj'?)"},
        {"target_modules", "\"q_proj\"", "matches no Linear"}, /* whole names, as PEFT has it */
        {"target_modules", "\"(.*[.]q_proj\"", "parenthesis"},
        {"target_modules", "[\"q_proj\", \"v_proj\"]",
         "the adapter has 2 tensors that the model does not know: "
         "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight, "},
        {"target_modules", "[\"q_proj\", \"v_proj\", \"mlp.down_proj\"]",
         "the adapter lacks 2 parameters of the model: "
         "model.layers.0.mlp.down_proj.lora_A.weight, "},
    };
    char *at = make_folder("refused"), *from = cr_path_join(of_peft, CR_PEFT_TENSORS),
         *to = cr_path_join(at, CR_PEFT_TENSORS), *config = cr_path_join(at, CR_PEFT_CONFIG);
    cr_buf tensors = {0};
    cr_err err = {0};

    (void)state;
    check_refusal("/no/such/adapter", "/no/such/adapter");
    check_refusal(at, "has no " CR_PEFT_CONFIG);
    must(cr_file_write_atomic(config, "[1", 2, &err), &err);
    check_refusal(at, "not valid JSON");
    must(cr_file_write_atomic(config, "[1]", 3, &err), &err);
    check_refusal(at, "expected an object");
    must(cr_file_read(from, &tensors, &err), &err);
    must(cr_file_write_atomic(to, tensors.data, tensors.num_bytes, &err), &err);
    cr_buf_free(&tensors);
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        json_t *json = read_json(of_peft, CR_PEFT_CONFIG);
        if (cases[i].value)
            json_object_set_new(json, cases[i].key,
                                json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(json, cases[i].key);
        write_json(at, CR_PEFT_CONFIG, json);
        json_decref(json);
        if (cases[i].sentence) {
            check_refusal(at, cases[i].sentence);
        } else {
            float log_probs[MAX_TOKENS];
            run_folder(at, log_probs);
        }
    }
    cr_free(at);
    cr_free(from);
    cr_free(to);
    cr_free(config);
}

/* Files of tensors that are cut, or not there. */
static void tensors_that_are_refused(void **state)
{
    static const cr_adapter_options o = {"q_proj", 2, 4, false, NULL};
    char *at = path_of("cut"), *path = cr_path_join(at, CR_PEFT_TENSORS);
    cr_buf tensors = {0};
    cr_err err = {0};

    (void)state;
    write_adapter("cut", &o, CR_F32);
    must(cr_file_read(path, &tensors, &err), &err);
    must(cr_file_write_atomic(path, tensors.data, tensors.num_bytes / 2, &err), &err);
    check_refusal(at, CR_PEFT_TENSORS);
    memcpy(strstr(tensors.data + 8, "F32"), "I32", 3);
    must(cr_file_write_atomic(path, tensors.data, tensors.num_bytes, &err), &err);
    check_refusal(at, "is I32, expected F32, BF16 or F16");
    must(cr_remove_tree(path, &err), &err);
    check_refusal(at, "has no " CR_PEFT_TENSORS " (adapter_model.bin");
    cr_buf_free(&tensors);
    cr_free(at);
    cr_free(path);
}

/* ---- merged ---- */

static cr_tensors *open_tensors(const char *in)
{
    char *path = path_of(in);
    cr_tensors *tensors;
    cr_err err = {0};

    must(cr_tensors_open(path, &tensors, &err), &err);
    cr_free(path);
    return tensors;
}

/* W + scale B A of float32 numbers, in float64; of a table scale A B^T, of its A. */
static double exact(const cr_module *m, cr_dtype dtype, int64_t row, int64_t col)
{
    const cr_param *a = m->adapters->a->weight, *b = m->adapters->b->weight;
    int64_t rank = b->shape[1], cols = m->weight->shape[1];
    double stored, sum = 0;

    for (int64_t k = 0; k < rank; k++)
        sum += m->is_lookup
                   ? (double)value_of(a, row * rank + k) * (double)value_of(b, col * rank + k)
                   : (double)value_of(b, row * rank + k) * (double)value_of(a, k * cols + col);
    return (double)store(dtype, value_of(m->weight, row * cols + col), &stored) +
           (double)m->adapters->scale * sum;
}

/* Adapted weights are off by the rounding to their dtype and little more; what was trained in full is rounded once; all others have the bytes
 * of the base. */
static void check_merged(const char *base, const char *name, cr_dtype dtype,
                         const cr_adapter_options *o)
{
    cr_tensors *before = open_tensors(base), *after = open_tensors(name);
    cr_model *model = build(o);

    assert_int_equal(before->num_tensors, after->num_tensors);
    for (size_t i = 0; i < after->num_tensors; i++) {
        const cr_tensor *t = &after->tensor[i], *old = cr_tensors_find(before, t->name);
        char *module = cr_strndup(t->name, strlen(t->name) - strlen(".weight"));
        const cr_module *m = cr_model_find_module(model, module);
        cr_err err = {0};
        cr_free(module);
        assert_string_equal(t->dtype, old->dtype);
        assert_int_equal(t->num_bytes, old->num_bytes);
        if (m && m->weight->is_adapter) {
            for (int64_t e = 0; e < t->num_elems; e++) {
                double stored;
                float got;
                must(cr_tensor_read_f32(t, e, e + 1, &got, &err), &err);
                assert_true(got == store(dtype, trained_value(m->weight, e), &stored));
            }
            continue;
        }
        if (!m || !m->adapters || strstr(t->name, ".bias")) {
            assert_memory_equal(t->data, old->data, t->num_bytes);
            continue;
        }
        for (int64_t e = 0; e < t->num_elems; e++) {
            double want = exact(m, dtype, e / t->shape[1], e % t->shape[1]);
            float got;
            must(cr_tensor_read_f32(t, e, e + 1, &got, &err), &err);
            check_near((double)got, want,
                       ldexp(0.5, ilogb(want) - (dtype == CR_F32 ? 23 : 7)) + 2e-7);
        }
    }
    cr_model_free(model);
    cr_tensors_close(before);
    cr_tensors_close(after);
}

/* golden_of, with the adapter `name`, whose base is `of` in float32: merged in both dtypes, and its log-probs. */
static void check_merges(const char *of, const char *name, const cr_adapter_options *o)
{
    char *fp32 = path_of(of), *bf16 = path_of("bf16"), *adapter = path_of(name),
         *out = make_folder("merged");
    float unmerged[MAX_TOKENS] = {0}, in_weights[MAX_TOKENS] = {0};
    cr_outputs outputs = {{in_weights}};
    cr_err err = {0};
    cr_model *model;
    model_bench b = {0};
    cr_pass pass;
    inputs in;

    write_adapter(name, o, CR_F32);
    write_base("bf16", CR_BF16);
    must(cr_adapter_merge(bf16, adapter, out, &err), &err);
    check_merged("bf16", "merged", CR_BF16, o);
    must(cr_adapter_merge(fp32, adapter, out, &err), &err);
    check_merged(of, "merged", CR_F32, o);
    run_folder(adapter, unmerged);
    model = build(NULL);
    b.model = model;
    must(cr_device_open(cr_device_default(), 1, &b.dev, &err), &err);
    must(cr_full_weights_load(&b.full, model, b.dev, CR_F32, out, &err), &err);
    b.scratch = cr_stack_create(b.dev);
    b.state = cr_pass_state_create();
    make_inputs(&in);
    pass = pass_of(&b, &in, &(cr_pass){.dtype = CR_F32});
    must(cr_model_forward(model, &pass, &outputs, &err), &err);
    for (int t = 0; t < 21; t++)
        check_near((double)in_weights[t], (double)unmerged[t], 2e-5);
    model_bench_close(&b);
    cr_free(fp32);
    cr_free(bf16);
    cr_free(adapter);
    cr_free(out);
}

static void merged(void **state)
{
    static const cr_adapter_options o = {"all-linear", 3, 5, false, NULL},
                                    words = {"all-linear,all-embedding", 3, 5, false, NULL,
                                             .saved = "lm_head,norm"};
    char *fp32 = path_of("base"), *out = make_folder("merged"), *none = make_folder("none");
    cr_err err = {0};

    (void)state;
    check_merges("base", "to_merge", &o);
    choose_base("words");
    check_merges("base_words", "words_to_merge", &words);
    golden_of = of_peft;
    assert_int_equal(cr_adapter_merge(fp32, none, out, &err), CR_EFORMAT);
    cr_free(fp32);
    cr_free(out);
    cr_free(none);
}

/* PEFT saves the table beside its adapter: the one of another model is refused. */
static void table_of_another_base(void **state)
{
    char *path = path_of("base_words/model.safetensors");
    cr_buf file = {0};
    cr_err err = {0};
    uint64_t header;
    json_t *json;
    int64_t at;

    (void)state;
    choose_base("words");
    must(cr_file_read(path, &file, &err), &err);
    memcpy(&header, file.data, sizeof header);
    json = json_loadb(file.data + 8, header, 0, NULL);
    at = json_integer_value(json_array_get(
        json_object_get(json_object_get(json, "model.embed_tokens.weight"), "data_offsets"), 1));
    file.data[8 + (int64_t)header + at - 1] ^= 1;
    must(cr_file_write_atomic(path, file.data, file.num_bytes, &err), &err);
    check_refusal("tests/parity/peft_words",
                  "tensor 'base_model.model.model.embed_tokens.base_layer.weight' is not "
                  "model.embed_tokens.weight of the model");
    file.data[8 + (int64_t)header + at - 1] ^= 1;
    must(cr_file_write_atomic(path, file.data, file.num_bytes, &err), &err);
    json_decref(json);
    cr_buf_free(&file);
    cr_free(path);
    golden_of = of_peft;
}

static void write_bases(void)
{
    for (size_t i = 0; i < CR_COUNT(bases); i++) {
        golden_of = bases[i].golden;
        write_base(bases[i].base, CR_F32);
    }
}

/* For peft_folder.py --check. */
static void write_for_check(void)
{
    write_bases();
    for (size_t i = 0; i < CR_COUNT(written); i++) {
        char *at = path_of(written[i].name);
        float log_probs[MAX_TOKENS];
        json_t *list = json_array();
        size_t num;
        choose_base(written[i].name);
        write_adapter(written[i].name, &written[i].o, CR_F32);
        num = run_folder(at, log_probs);
        for (size_t t = 0; t < num; t++)
            json_array_append_new(list, json_real((double)log_probs[t]));
        write_json(at, "log_probs.json", list);
        json_decref(list);
        cr_free(at);
    }
}

static int set_up(void **state)
{
    if (make_temp_folder(state) != 0) return -1;
    write_bases();
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_peft),
        cmocka_unit_test(other_folders_of_peft),
        cmocka_unit_test(beside_each_other),
        cmocka_unit_test(full_beside_another),
        cmocka_unit_test(round_trips),
        cmocka_unit_test(options_of_a_folder),
        cmocka_unit_test(dtypes),
        cmocka_unit_test(keys_that_are_refused),
        cmocka_unit_test(tensors_that_are_refused),
        cmocka_unit_test(merged),
        cmocka_unit_test(table_of_another_base),
    };

    if (argc == 2) {
        folder = argv[1];
        write_for_check();
        return 0;
    }
    return cmocka_run_group_tests(tests, set_up, remove_temp_folder);
}
