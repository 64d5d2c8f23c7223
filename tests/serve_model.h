/* serve_model.h -- a model of a service without weights: 512 ids, some with pieces in the manner of SentencePiece. */
#ifndef CR_TEST_SERVE_MODEL_H
#define CR_TEST_SERVE_MODEL_H

#include "serve/request.h"

#include <string.h>

static const char serve_tokenizer_json[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true},{\"id\":1,\"content\":\"<"
    "s>\","
    "\"special\":true},{\"id\":2,\"content\":\"</s>\",\"special\":true}],"
    "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
    "\"},\"content\":\"\xe2\x96\x81\"},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<"
    "s>\","
    "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[{\"Sequence\":{\"id\":"
    "\"A\","
    "\"type_id\":0}},{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],\"special_tokens\":{\"<s>\":{"
    "\"id\":\"<s>\","
    "\"ids\":[1],\"tokens\":[\"<s>\"]}}},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
    "\"String\":"
    "\"\xe2\x96\x81\"},\"content\":\" "
    "\"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","
    "\"content\":\" \",\"start\":1,\"stop\":0}]},"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,"
    "\"merges\":[\"\xe2\x96\x81 h\"],\"vocab\":{\"<unk>\":0,\"<s>\":1,\"</"
    "s>\":2,\"<0x0A>\":10,\"<0xE2>\":11,\"<0x61>\":12,"
    "\"a\":20,\"b\":21,\"c\":22,\"\xe2\x96\x81\":23,\"h\":24,\"i\":25,\"\xc3\xa9\":26,"
    "\"\xe2\x96\x81h\":27,"
    "\"\xe2\x96\x81One\":77,\"\xe2\x96\x81The\":78,\"\xe2\x96\x81"
    "a\":90,\"\xe2\x96\x81upon\":281,"
    "\"\xe2\x96\x81Once\":403}}}";
static const char serve_chat_template[] =
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
    "{% if tools %}t{{ tools|length }}{% endif %}{% if enable_thinking is defined %}"
    "{{ 'h' if enable_thinking else 'i' }}{% endif %}{% if add_generation_prompt %}a{% endif %}";

static cr_serve_model serve_models[1] = {{.name = "s",
                                          .root = "stories",
                                          .weights_sha256 = "0123456789abcdef0123",
                                          .tokenizer_sha256 = "fedcba9876543210",
                                          .weight_version = "1",
                                          .dtype = "fp32",
                                          .vocab_size = 512,
                                          .max_model_len = 32,
                                          .created = 1}};
static cr_serve_service serve_service = {.models = serve_models,
                                         .num_models = 1,
                                         .max_prompts = 16,
                                         .max_samples = 8,
                                         .max_logprobs = 128};

/* folder: an empty one, for the chat template. */
static inline void serve_model_open(const char *folder)
{
    cr_tokenizer *tokenizer;
    cr_chat *chat;
    cr_err err = {0};
    char *path = cr_path_join(folder, "chat_template.jinja");

    CR_CHECK(cr_file_write_atomic(path, serve_chat_template, strlen(serve_chat_template), &err) ==
                     CR_OK &&
                 cr_chat_open(folder, &chat, &err) == CR_OK &&
                 cr_tokenizer_parse(serve_tokenizer_json, strlen(serve_tokenizer_json), NULL,
                                    "test", &tokenizer, &err) == CR_OK,
             "%s", err.msg);
    cr_free(path);
    serve_models[0].tokenizer = tokenizer;
    serve_models[0].chat = chat;
}

static inline void serve_model_close(void)
{
    (void)serve_service;
    cr_tokenizer_close((cr_tokenizer *)(uintptr_t)serve_models[0].tokenizer);
    cr_chat_close((cr_chat *)(uintptr_t)serve_models[0].chat);
}

#endif
