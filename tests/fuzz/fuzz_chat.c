/* fuzz_chat.c -- arbitrary bytes as a chat template: a text or a sentence, in bounded time. */
#include "jinja/jinja.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"hi <b>\"}, {\"role\": \"assistant\", "
        "\"content\": \"\\u00e9\", \"tool_calls\": [{\"name\": \"f\", \"arguments\": {\"x\": "
        "1.5}}]}], "
        "\"tools\": null, \"add_generation_prompt\": true, \"bos_token\": \"<s>\"}";
    json_t *vars;
    cr_jinja *jinja;
    cr_buf out = {0};
    cr_err err = {0};

    if (cr_json_parse(text, strlen(text), "fuzz", &vars, &err) != CR_OK) return 0;
    if (cr_jinja_parse((const char *)data, size, "fuzz", &jinja, &err) == CR_OK) {
        cr_note(cr_jinja_render(jinja, vars, &out, &err));
        cr_jinja_free(jinja);
    }
    cr_buf_free(&out);
    json_decref(vars);
    return 0;
}
