/* schema.h -- every key, once (configs/ only). */
#ifndef CR_SCHEMA_H
#define CR_SCHEMA_H

#include "configs/configs.h"

typedef enum cri_type {
    CRI_BOOL,
    CRI_INT,      /* range: minimum as text, MIN..MAX, or NULL; without MAX at most 31 bits */
    CRI_REAL,     /* range: likewise; without MAX at most 1e30, which a float holds */
    CRI_OPTIONAL, /* a real, or null, which is not the default */
    CRI_TEXT,
    CRI_CHOICE, /* range: words separated by |; !word: known, not available yet; "exec PROGRAM": any
                   text that begins with "exec " */
    CRI_DTYPE,
    CRI_TEXTS,   /* a list of texts, or one text */
    CRI_INTS,    /* a list of whole numbers from 0 on, or one of them */
    CRI_MAP,     /* free keys */
    CRI_CHOICES, /* a map of choices; range: as of a choice */
    CRI_NUMBERS, /* a map of numbers */
    CRI_DEVICES,
    CRI_BLOCK,  /* range: the block's name */
    CRI_BLOCKS, /* a map of blocks */
    CRI_LIST,   /* a list of blocks */
    CRI_ANY,
} cri_type;

/* Every key has one of these; a row without is found by tests/unit/configs_keys.c. */
typedef enum cri_key_state {
    CRI_STATELESS,
    CRI_READ,      /* text: who reads it */
    CRI_NO_EFFECT, /* a note whenever it is given; text: why */
    CRI_LATER      /* "not available yet", unless the value is the default or switched off */
} cri_key_state;

typedef struct cri_key {
    const char *block, *name;
    cri_type type;
    const char *standard; /* default as YAML; NULL: none (null) */
    const char *range;
    cri_key_state state;
    const char *text;
} cri_key;

extern const cri_key cri_keys[];
extern const size_t cri_num_keys;
/* Class names at the end of worker_cls, and the rule they stand for. */
typedef struct cri_reward_class {
    const char *cls, *rule;
} cri_reward_class;
extern const cri_reward_class cri_reward_classes[];
#define CRI_REWARD_MODEL "reward_model" /* the rule of a RewardWorker, which has a model */
/* Has the block of a domain that rule? cls: its worker_cls, or NULL. */
bool cri_is_reward_model(const char *domain, const char *cls);
extern const size_t cri_num_reward_classes;

const cri_key *cri_find_key(const char *block, const char *name); /* NULL: unknown */
/* Which of a choice's words: as the enums of choices.h count. null is 0; without a default words count
 * from 1. */
int cri_choice_of(const char *block, const cr_node *map, const char *name);
/* Check `map` against a block and give back a map with every key in the schema's order. */
cr_node *cri_check_block(cr_yaml *yaml, const char *block, const cr_node *map, cr_diagnostics *d);

/* rules.c: the mesh of a worker against its devices and its model's heads (rules M1 to M5, M11). */
void cri_check_mesh(const cr_worker_config *w, const cr_node *block, cr_diagnostics *d);
/* rules.c: a warning if samples may be longer than what the model was trained with. */
void cri_check_positions(const cr_config *c, cr_diagnostics *d);
/* rules.c: products of counts that a run holds in memory or in 32 bits. */
void cri_check_sizes(const cr_config *c, cr_diagnostics *d);

#endif
