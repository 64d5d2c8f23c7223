/* fields.h -- the tables of fields; inside serve/ only.
 *
 * A route has groups of fields; an object inside a body is a field with groups of its own. Values go
 * to a cri_draft, whose parts are checked against each other when the body has been read.
 */
#ifndef CR_SERVE_FIELDS_H
#define CR_SERVE_FIELDS_H

#include "base/json.h"
#include "serve/reader.h"
#include "serve/request.h"

/* Type of a field, and of the draft's member that it goes to. */
typedef enum cri_field_type {
    CRI_FLAG,     /* bool */
    CRI_INTEGER,  /* int64_t, in [min, max] */
    CRI_NUMBER,   /* float, in [min, max] */
    CRI_TEXT,     /* char *, without NUL, at most `max` bytes */
    CRI_TEXTS,    /* cri_texts: a string or a list of strings, at most `max` of them */
    CRI_IDS,      /* cri_id_lists: [int], one list of at least `min` (request_check.c) */
    CRI_ID_LISTS, /* cri_id_lists: [int] or [[int]] */
    CRI_PROMPT,   /* strings or lists of ids: draft.texts, draft.lists */
    CRI_BIAS,     /* cri_sent_bias: {"id": number in [min, max], ..} */
    CRI_TREE,     /* json_t *: an array (`max` 0) or an object (1) of any values */
    CRI_OBJECT,   /* groups of fields */
    CRI_CHOICE    /* int64_t: index in `choices` */
} cri_field_type;

typedef enum cri_field_state {
    CRI_BUILT,
    CRI_NEUTRAL, /* only values that change nothing: those of `choices`, as JSON */
    CRI_IGNORED  /* any value; it never changes numbers */
} cri_field_state;

typedef struct cri_field_group cri_field_group;

typedef struct cri_field {
    const char *name;
    cri_field_state state;
    cri_field_type type;
    size_t at; /* of its value in cri_draft */
    double min, max;
    const char *const *choices;           /* ends with NULL */
    const cri_field_group *const *groups; /* of an object; ends with NULL */
    const char *help;                     /* in openapi.json; with the default if it has one */
} cri_field;

struct cri_field_group {
    const cri_field *fields;
    size_t num_fields;
};

typedef struct cri_texts {
    char **text; /* owned */
    size_t *num_bytes;
    size_t num, capacity;
    bool is_list; /* sent as a list */
} cri_texts;

/* Lists of ids, one after the other. Of a list that is longer than the limit only the length is kept. */
typedef struct cri_id_lists {
    cr_ids ids;
    size_t *num_ids; /* [num] owned */
    size_t num, capacity;
    bool is_list; /* [[..]] */
} cri_id_lists;

/* An object of ids and numbers. */
typedef struct cri_sent_bias {
    cr_ids ids;
    cr_buf numbers; /* float */
} cri_sent_bias;

/* What was sent, before it is a request; begins as cri_draft_init says. */
typedef struct cri_draft {
    cr_serve_request request;
    char *model, *expect_weights, *expect_tokenizer; /* owned */
    cri_texts texts, stop, bad_words;
    cri_id_lists lists, stop_ids, candidates, allowed;
    cri_sent_bias bias;
    json_t *messages, *tools, *template_vars; /* owned */
    int64_t max_completion_tokens;            /* -1: absent */
    int64_t best_of;                          /* -1: absent */
    int64_t top_logprobs, prompt_start;       /* -1: absent */
    int64_t tool_choice, format, mode;        /* of cri_tool_choices, cri_formats, cri_modes */
    bool has_logprobs;                        /* chat: logprobs, /generate: return_logprob */
    bool has_stream_options, has_default_max; /* max_tokens was not sent */
    bool add_special, add_generation_prompt;
    bool has_images; /* messages have */
} cri_draft;

extern const char *const cri_tool_choices[], *const cri_formats[], *const cri_modes[];

/* Groups of a route, NULL at the end; path and what it does, for openapi.json. */
const cri_field_group *const *cri_route_groups(cr_serve_route route);
const char *cri_route_help(cr_serve_route route);
const cri_field *cri_find_field(const cri_field_group *const *groups, const char *name);
/* A field of the object croll: outside it, it would be taken for an unknown one and not be looked at. */
bool cri_belongs_in_croll(const char *name);
/* Fields of the object croll: it takes no others. */
bool cri_is_croll(const cri_field_group *const *groups);
/* One that holds what a request is about: a prompt, or the folder of new weights. A body has exactly one. */
bool cri_is_prompt(const cri_field *f);
void cri_draft_init(cri_draft *draft, cr_serve_route route);
void cri_draft_free(cri_draft *draft); /* not its request */
/* Check the parts against each other and fill in the request (request_check.c). */
CR_MUST cr_status cri_draft_finish(cri_draft *draft, const cr_serve_service *service,
                                   cr_serve_error *error);

#endif
