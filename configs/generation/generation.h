/* generation.h -- how answers are drawn, and which chat template prompts have: of a role, of a domain, of a tag. Part of configs.h.
 */
#ifndef CR_GENERATION_KEYS_H
#define CR_GENERATION_KEYS_H

#include "base/base.h"

typedef struct cr_generating_args {
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k, max_new_tokens, num_return_sequences;
    char **stop_strings;
    size_t num_stop_strings;
    bool include_stop_str_in_output;
    int32_t *stop_token_ids; /* beside the model's own */
    size_t num_stop_token_ids;
} cr_generating_args;

/* Of a role that generates: what domain_generating_args says of a domain, with all that it leaves to generating_args. */
typedef struct cr_domain_generating {
    size_t domain; /* index into cr_config.rewards */
    cr_generating_args args;
} cr_domain_generating;

/* tag_to_template: the chat templates of rows with a tag. */
typedef struct cr_tag_templates {
    struct cr_tag_template {
        char *tag, *template;
    } * of_tag; /* [num_tags] */
    size_t num_tags;
} cr_tag_templates;

#endif
