/* fuzz_peft.c -- arbitrary bytes as PEFT's folder of an adapter, apart by a NUL: adapter_config.json and
 * adapter_model.safetensors. What is accepted gives a tiny model each element of its A and B. */
#include "base/json.h"
#include "models/files/peft.h"
#include "models/files/random.h"
#include "models/weights.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/mutator.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char config[] =
    "{\"model_type\":\"qwen2\",\"hidden_size\":8,\"intermediate_size\":4,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":2,\"vocab_size\":5,"
    "\"tie_word_embeddings\":true,\"torch_dtype\":\"float32\"}";

static void begin(void)
{
    cr_random_weights written;
    cr_err err = {0};

    fuzz_begin("");
    fuzz_put("config.json", config, sizeof config - 1);
    CR_CHECK(cr_random_weights_write(fuzz_folder, 1, false, &written, &err) == CR_OK, "%s",
             err.msg);
    cr_free(written.path);
}

static cr_status read_values(const cr_model *model, cr_err *err)
{
    cr_weights *weights;

    CR_TRY(cr_weights_open(fuzz_folder, model, &weights, err));
    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *p = model->params[i];
        float *values = CR_NEW_ARRAY(float, (size_t)p->num_elems);
        cr_note(cr_weights_fill(weights, model, p, 0, 0, p->num_elems, values, err));
        cr_free(values);
    }
    cr_weights_close(weights);
    return err->status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {CR_PEFT_CONFIG, CR_PEFT_TENSORS};
    cr_model_options options = {0};
    cr_model *model = NULL;
    char *base;
    cr_err err = {0};

    if (!fuzz_folder[0]) begin();
    fuzz_put_all(names, CR_COUNT(names), data, size);
    if (cr_peft_config_read(fuzz_folder, &options.adapters, &base, &err) == CR_OK &&
        cr_model_open_with(fuzz_folder, &options, &model, &err) == CR_OK)
        cr_note(read_values(model, &err));
    CR_CHECK(err.status == CR_OK || (err.msg[0] && !strchr(err.msg, '\n')), "%s", err.msg);
    cr_model_free(model);
    cr_peft_options_fini(&options.adapters);
    cr_free(base);
    return 0;
}
