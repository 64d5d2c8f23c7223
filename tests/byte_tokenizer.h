/* byte_tokenizer.h -- a byte-level tokenizer without merges: the id of a byte is the byte. */
#ifndef CR_BYTE_TOKENIZER_H
#define CR_BYTE_TOKENIZER_H

#include "text/tokenizer.h"

#include <string.h>

/* All bytes, as they are in a byte-level vocabulary, <s>, and from 257 on `more` (JSON of added tokens with a comma before it, or "");
 * config_json: of tokenizer_config.json, or NULL. */
static inline cr_tokenizer *byte_tokenizer_of(const char *more, const char *config_json)
{
    cr_tokenizer *tokenizer = NULL;
    cr_buf json = {0};
    cr_err err = {0};
    int next = 256;

    cr_buf_adds(&json, "{\"added_tokens\":[{\"id\":256,\"content\":\"<s>\",\"special\":true}");
    cr_buf_adds(&json, more);
    cr_buf_adds(&json, "],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                       "\"decoder\":{\"type\":\"ByteLevel\"},"
                       "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int b = 0; b < 256; b++) {
        bool is_shown = (b > 32 && b < 127) || (b > 160 && b != 173);
        int c = is_shown ? b : next++;
        char text[4] = {(char)(c < 128 ? c : 0xC0 | c >> 6), (char)(c < 128 ? 0 : 0x80 | (c & 63))};
        cr_json_add_string(&json, text, strlen(text));
        cr_buf_addf(&json, ":%d%s", b, b < 255 ? "," : "}}}");
    }
    CR_CHECK(cr_tokenizer_parse(json.data, json.num_bytes, config_json, "bytes", &tokenizer,
                                &err) == CR_OK,
             "%s", err.msg);
    cr_buf_free(&json);
    return tokenizer;
}

static inline cr_tokenizer *byte_tokenizer_with(const char *config_json)
{
    return byte_tokenizer_of("", config_json);
}

static inline cr_tokenizer *byte_tokenizer(void)
{
    return byte_tokenizer_with(NULL);
}

#endif
