/* fuzz_config.c -- arbitrary bytes as config.json (and generation_config.json): a tree or a sentence. */
#include "models/models.h"
#include "tests/fuzz/mutator.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *json;
    cr_model *model;
    cr_err err = {0};

    if (cr_json_parse((const char *)data, size, "fuzz", &json, &err) != CR_OK) return 0;
    if (cr_model_build(json, json, &model, &err) == CR_OK) cr_model_free(model);
    json_decref(json);
    return 0;
}
