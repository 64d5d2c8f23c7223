/* schema.h -- every key, once (configs/ only). */
#ifndef CR_SCHEMA_H
#define CR_SCHEMA_H

#include "configs/configs.h"

typedef enum cri_type {
    CRI_BOOL,
    CRI_INT,  /* range: least value as text, or NULL */
    CRI_REAL, /* range: likewise */
    CRI_TEXT,
    CRI_CHOICE, /* range: words separated by | */
    CRI_DTYPE,
    CRI_TEXTS,   /* a list of texts, or one text */
    CRI_MAP,     /* free keys */
    CRI_NUMBERS, /* a map of numbers */
    CRI_DEVICES,
    CRI_BLOCK,  /* range: the block's name */
    CRI_BLOCKS, /* a map of blocks */
    CRI_ANY,
} cri_type;

typedef enum cri_have {
    CRI_HAVE,
    CRI_LATER, /* a value other than the default is "not available yet" */
    CRI_DEAD,  /* ROLL ignores it, and so do we: a note */
} cri_have;

typedef struct cri_key {
    const char *block, *name;
    cri_type type;
    const char *standard; /* default as YAML; NULL: none (null) */
    const char *range;
    cri_have have;
} cri_key;

extern const cri_key cri_keys[];
extern const size_t cri_num_keys;
/* Class names at the end of worker_cls, the rule they stand for, and whether we have it. */
typedef struct cri_reward_class {
    const char *cls, *rule;
    bool is_there;
} cri_reward_class;
extern const cri_reward_class cri_reward_classes[];
extern const size_t cri_num_reward_classes;

/* Check `map` against a block and give back a map with every key in the schema's order. */
cr_node *cri_check_block(cr_yaml *yaml, const char *block, const cr_node *map, cr_diagnostics *d);

/* rules.c: the mesh of a worker against its devices and its model's heads (rules M1 to M5, M11). */
void cri_check_mesh(const cr_worker_config *w, const cr_node *block, cr_diagnostics *d);

#endif
