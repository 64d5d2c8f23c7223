/* schema.c -- the check of a tree against the table of keys (keys.c). */
#include "configs/schema.h"
#include "configs/yaml/yaml_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- the check ---- */

/* A block may extend another. */
static bool is_in(const char *block, const cri_key *key)
{
    static const char *const extends[][2] = {
        {"rlvr", "run"},           {"sft", "run"},        {"dpo", "run"},
        {"distill", "run"},        {"teacher", "worker"}, {"judge_model", "reward"},
        {"reward_model", "reward"}};

    if (strcmp(key->block, block) == 0) return true;
    for (size_t i = 0; i < CR_COUNT(extends); i++)
        if (strcmp(block, extends[i][0]) == 0 && strcmp(key->block, extends[i][1]) == 0)
            return true;
    return false;
}

const cri_key *cri_find_key(const char *block, const char *name)
{
    for (size_t i = 0; i < cri_num_keys; i++)
        if (is_in(block, &cri_keys[i]) && strcmp(cri_keys[i].name, name) == 0) return &cri_keys[i];
    return NULL;
}

/* The block, as a user writes it, that has a key of this name and is read; NULL: none. */
static const char *where_it_belongs(const char *block, const char *name)
{
    static const char *const places[][2] = {
        {"training_args", "training_args of actor_train or sft_train"},
        {"muon", "muon_args of training_args"},
        {"param_group", "an entry of param_groups of training_args"},
        {"generating_args", "generating_args of actor_infer or validation"},
        {"model_args", "model_args of a role"},
        {"data_args", "data_args of actor_train, sft_train or validation"},
        {"strategy_args", "strategy_args of a role"},
        {"fsdp2", "strategy_args.strategy_config of a role"},
        {"wrap_policy", "strategy_args.strategy_config.wrap_policy of a role"},
        {"worker", "the block of a role, as actor_train"},
        {"teacher", "teacher"},
        {"reward", "the block of a domain in rewards"},
        {"judge_model", "the block of a domain in rewards with judge_model_type: inference"},
        {"reward_model", "the block of a domain in rewards whose worker_cls is a RewardWorker"},
        {"exchange", "exchange"},
        {"service", "reference.service"},
        {"judge", "judge of a domain in rewards"},
        {"remote", "remote of a domain in rewards"},
        {"judge_answer", "judge_answer of a domain in rewards"},
        {"overlong", "overlong_buffer of a domain in rewards"},
        {"run", "the top of the file"},
        {"rlvr", "the top of an rlvr file"},
        {"sft", "the top of an sft file"},
        {"dpo", "the top of a dpo file"},
        {"distill", "the top of a distill file"}};

    for (size_t i = 0; i < CR_COUNT(places); i++)
        for (size_t k = 0; k < cri_num_keys; k++)
            if (strcmp(cri_keys[k].block, places[i][0]) == 0 && cri_keys[k].state == CRI_READ &&
                !is_in(block, &cri_keys[k]) && strcmp(cri_keys[k].name, name) == 0)
                return places[i][1];
    return NULL;
}

static void unknown_key(const char *block, const struct cr_item *item, cr_diagnostics *d)
{
    const char **names = CR_NEW_ARRAY(const char *, cri_num_keys);
    const char *near = NULL, *where;
    size_t num = 0;

    for (size_t i = 0; i < cri_num_keys; i++)
        if (is_in(block, &cri_keys[i]) && cri_keys[i].state != CRI_NO_EFFECT)
            names[num++] = cri_keys[i].name;
    for (size_t i = 0; i < num && !near;
         i++) /* a part of a longer name, as use_additional_prompts */
        if (strlen(item->key) > 5 && strstr(names[i], item->key)) near = names[i];
    if (!near) near = cr_nearest(item->key, names, num);
    where = where_it_belongs(block, item->key);
    if (cri_is_secret(item->key) && cri_find_key(block, "key_env"))
        cr_diagnose(d, CR_ERROR, item->place,
                    "unknown key '%.60s': a key stays out of the file (key_env: NAME of a variable "
                    "of the environment, or key_file: FILE)",
                    item->key);
    else if (where)
        cr_diagnose(d, CR_ERROR, item->place, "unknown key '%.60s' here (it belongs to %s)",
                    item->key, where);
    else
        cr_diagnose(d, CR_ERROR, item->place, "unknown key '%.60s'%s%s%s", item->key,
                    near ? " (did you mean " : " in this block", near ? near : "",
                    near ? "?)" : "");
    cr_free(names);
}

static const char *shown(const cr_node *n, char text[80])
{
    cr_buf out = {0};

    cr_node_write_json(n, &out);
    snprintf(text, 80, "%.70s%s", out.data, out.num_bytes > 70 ? ".." : "");
    cr_buf_free(&out);
    return text;
}

/* The name that DTYPES has for a dtype, or NULL. */
static const char *dtype_name(const char *s)
{
    static const char *const names[][2] = {
        {"bf16", "bf16"}, {"bfloat16", "bf16"}, {"fp16", "fp16"},    {"float16", "fp16"},
        {"half", "fp16"}, {"fp32", "fp32"},     {"float32", "fp32"}, {"float", "fp32"},
        {"fp64", "fp64"}, {"float64", "fp64"}};

    for (size_t i = 0; i < CR_COUNT(names); i++)
        if (strcmp(s, names[i][0]) == 0) return names[i][1];
    return NULL;
}

/* Which of a choice's words it is, from 0; -1: none. is_later: the word is not available yet. */
static int index_of(const char *words, const char *word, bool *is_later)
{
    int index = 0;

    for (const char *p = words; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL, index++) {
        size_t n;
        *is_later = *p == '!';
        p += *is_later;
        n = strcspn(p, "|");
        if (n > 8 && strncmp(p + n - 8, " PROGRAM", 8) == 0) {
            if (strncmp(p, word, n - 7) == 0 && word[n - 7]) return index;
        } else if (strncmp(p, word, n) == 0 && !word[n]) {
            return index;
        }
    }
    return -1;
}

int cri_choice_of(const char *block, const cr_node *map, const char *name)
{
    const cri_key *key = cri_find_key(block, name);
    const cr_node *n = cr_node_get(map, name);
    bool is_later;
    int index;

    if (!n || n->kind != CR_NODE_TEXT) return 0;
    index = index_of(key->range, n->text, &is_later);
    return index < 0 ? 0 : index + !key->standard;
}

static void wrong(const cri_key *key, const cr_node *n, const char *expected, cr_diagnostics *d)
{
    char text[80];

    cr_diagnose(d, CR_ERROR, n->place, "%s: %s is expected, not %s", key->name, expected,
                shown(n, text));
}

/* A path like a shell's: a folder of the name ~ would be made. */
static void check_home(const cr_node *n, cr_diagnostics *d)
{
    if (n->kind == CR_NODE_TEXT && strncmp(n->text, "~/", 2) == 0)
        cr_diagnose(d, CR_ERROR, n->place,
                    "'%.200s': ~ is not replaced here (write ${oc.env:HOME}%.200s)", n->text,
                    n->text + 1);
}

static void check_number(const cri_key *key, cr_node *n, cr_diagnostics *d)
{
    double x = n->kind == CR_NODE_INT ? (double)n->integer : n->real;
    const char *dots = key->range ? strstr(key->range, "..") : NULL;
    char expected[64];

    if ((key->type == CRI_REAL || key->type == CRI_OPTIONAL) && n->kind == CR_NODE_INT)
        n->real = x, n->kind = CR_NODE_REAL;
    if (key->range && !(x >= atof(key->range))) {
        snprintf(expected, sizeof expected, "a number of at least %.*s",
                 dots ? (int)(dots - key->range) : 32, key->range);
        wrong(key, n, expected, d);
    } else if (n->kind == CR_NODE_REAL && !(dots ? x <= atof(dots + 2) : fabs(x) <= 1e30)) {
        snprintf(expected, sizeof expected, "a number of at most %s", dots ? dots + 2 : "1e30");
        wrong(key, n, expected, d);
    }
}

/* Whole numbers are counted with and multiplied later on: without a limit of their own they fit in 31 bits, so
 * that a product of two does not overflow. */
static void check_whole(const cri_key *key, cr_node *n, cr_diagnostics *d)
{
    const char *dots = key->range ? strstr(key->range, "..") : NULL;
    const int64_t max = dots ? strtoll(dots + 2, NULL, 10) : INT32_MAX;
    char expected[64];

    if (n->integer >= -max && n->integer <= max) return;
    snprintf(expected, sizeof expected, "a whole number of at most %lld%s", (long long)max,
             dots ? "" : " (31 bits)");
    if (n->integer > max || !key->range) /* else it was said */
        wrong(key, n, expected, d);
    n->integer = n->integer > 0 ? max : -max; /* what is derived from it is checked all the same */
}

static void check_ints(const cri_key *key, cr_node *n, cr_diagnostics *d)
{
    const bool is_list = n->kind == CR_NODE_LIST;

    if (n->kind == CR_NODE_MAP) wrong(key, n, "a list of whole numbers", d);
    for (size_t i = 0; n->kind != CR_NODE_MAP && i < (is_list ? n->num : 1); i++) {
        const cr_node *x = is_list ? n->items[i].value : n;
        if (x->kind != CR_NODE_INT || x->integer < 0 || x->integer > INT32_MAX)
            wrong(key, x, "a whole number from 0 to 2147483647", d);
    }
}

/* Case matters in a word, but hardly to who has typed it. */
static const char *nearest_word(const char *text, const char *const *words, size_t num)
{
    for (size_t i = 0; i < num; i++)
        if (strcasecmp(text, words[i]) == 0) return words[i];
    return cr_nearest(text, words, num);
}

/* Words that are not available yet are no advice. */
static void check_choice(const cri_key *key, const cr_node *n, cr_diagnostics *d)
{
    const char *names[32], *near;
    char text[80], *copy = cr_strdup(key->range);
    cr_buf there = {0};
    bool is_later = false;
    size_t num = 0;
    int index = n->kind == CR_NODE_TEXT ? index_of(key->range, n->text, &is_later) : -1;

    for (char *p = copy, *next; p && num < CR_COUNT(names); p = next) {
        next = strchr(p, '|');
        if (next) *next++ = 0;
        if (*p == '!') continue;
        names[num++] = p;
        cr_buf_addf(&there, "%s%s", num > 1 ? "|" : "", p);
    }
    near = index < 0 && n->kind == CR_NODE_TEXT ? nearest_word(n->text, names, num) : NULL;
    if (index < 0)
        cr_diagnose(d, CR_ERROR, n->place, "%s: %s is none of %s%s%s%s", key->name, shown(n, text),
                    there.data, near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
    else if (is_later)
        cr_diagnose(d, CR_ERROR, n->place, "%s: %.60s is not available yet (%s %s)", key->name,
                    n->text, there.data, num > 1 ? "are" : "is");
    cr_buf_free(&there);
    cr_free(copy);
}

/* A block, or a list of blocks, that switches off what it describes. */
static bool is_off(const cr_node *n)
{
    static const char *const switches[] = {"enabled", "enable"};
    const cr_node *mode = cr_node_get(n, "mode");

    if (n->kind == CR_NODE_LIST) {
        for (size_t i = 0; i < n->num; i++)
            if (!is_off(n->items[i].value)) return false;
        return true;
    }
    if (n->kind != CR_NODE_MAP) return false;
    for (size_t i = 0; i < CR_COUNT(switches); i++) {
        const cr_node *on = cr_node_get(n, switches[i]);
        if (on && on->kind == CR_NODE_BOOL) return !on->flag;
    }
    if (mode && mode->kind == CR_NODE_TEXT) return strcmp(mode->text, "disable") == 0;
    return n->num == 0;
}

static bool same_value(cr_yaml *yaml, const cri_key *key, const cr_node *n)
{
    cr_diagnostics none = {0};
    cr_node *standard =
        cr_yaml_parse_value(yaml, key->standard ? key->standard : "null", n->place, &none);
    cr_buf a = {0}, b = {0};
    bool is_same;

    cr_node_write_json(n, &a);
    cr_node_write_json(standard, &b);
    is_same = strcmp(a.data, b.data) == 0 || is_off(n) ||
              (standard->kind == CR_NODE_INT && n->kind == CR_NODE_REAL &&
               n->real == (double)standard->integer) ||
              (key->type == CRI_TEXT && key->range && n->kind == CR_NODE_TEXT &&
               strcmp(n->text, key->range) == 0);
    cr_buf_free(&a);
    cr_buf_free(&b);
    cr_diagnostics_free(&none);
    return is_same;
}

static const char *text_at(const cr_node *block, const char *key)
{
    const cr_node *n = cr_node_get(block, key);

    return n && n->kind == CR_NODE_TEXT ? n->text : "";
}

/* Which keys a block of a map has: a judge that the run starts, and a reward model, have a model. */
static const char *name_of(const cri_key *key, const struct cr_item *item)
{
    const char *cls = text_at(item->value, "worker_cls");

    if (strcmp(key->range, "reward") != 0) return key->range;
    if (strcmp(text_at(item->value, "judge_model_type"), "inference") == 0) return "judge_model";
    return cri_is_reward_model(item->key, *cls ? cls : NULL) ? "reward_model" : "reward";
}

static void check_blocks(cr_yaml *yaml, const cri_key *key, cr_node *n, cr_diagnostics *d)
{
    char text[80];

    for (size_t i = 0; i < n->num; i++)
        if (n->items[i].value->kind == CR_NODE_MAP)
            n->items[i].value =
                cri_check_block(yaml, name_of(key, &n->items[i]), n->items[i].value, d);
        else
            cr_diagnose(d, CR_ERROR, n->items[i].value->place,
                        "%s.%s: a block of keys is expected, not %s", key->name, n->items[i].key,
                        shown(n->items[i].value, text));
}

/* A block with a url may be given as this url alone. */
static cr_node *block_of_url(cr_yaml *yaml, const cri_key *key, cr_node *n)
{
    cr_node *block;

    if (n->kind != CR_NODE_TEXT || !cri_find_key(key->range, "url")) return n;
    block = cr_node_new(yaml, CR_NODE_MAP, n->place);
    cr_node_set(yaml, block, "url", n->place, n);
    return block;
}

/* One value; may be replaced (blocks). */
static cr_node *check_value(cr_yaml *yaml, const cri_key *key, cr_node *n, cr_diagnostics *d)
{
    size_t before = d->num_errors;

    switch (key->type) {
    case CRI_BOOL:
        if (n->kind != CR_NODE_BOOL) wrong(key, n, "true or false", d);
        break;
    case CRI_INT:
        if (n->kind != CR_NODE_INT)
            wrong(key, n, "a whole number", d);
        else {
            check_number(key, n, d);
            check_whole(key, n, d);
        }
        break;
    case CRI_REAL:
    case CRI_OPTIONAL:
        if (n->kind != CR_NODE_INT && n->kind != CR_NODE_REAL)
            wrong(key, n, "a number", d);
        else
            check_number(key, n, d);
        break;
    case CRI_TEXT:
        if (n->kind == CR_NODE_LIST || n->kind == CR_NODE_MAP) wrong(key, n, "a text", d);
        check_home(n, d);
        break;
    case CRI_CHOICE:
        check_choice(key, n, d);
        break;
    case CRI_DTYPE:
        if (n->kind != CR_NODE_TEXT || !dtype_name(n->text))
            wrong(key, n, "a dtype (fp32, bf16, ..)", d);
        else
            n->text = cr_arena_strndup(yaml->arena, dtype_name(n->text), 4);
        break;
    case CRI_TEXTS:
        if (n->kind == CR_NODE_MAP) wrong(key, n, "a text or a list of texts", d);
        check_home(n, d);
        for (size_t i = 0; n->kind == CR_NODE_LIST && i < n->num; i++) {
            if (n->items[i].value->kind == CR_NODE_MAP || n->items[i].value->kind == CR_NODE_LIST)
                wrong(key, n->items[i].value, "a text", d);
            check_home(n->items[i].value, d);
        }
        break;
    case CRI_INTS:
        check_ints(key, n, d);
        break;
    case CRI_CHOICES:
        if (n->kind != CR_NODE_MAP) wrong(key, n, "a map", d);
        for (size_t i = 0; n->kind == CR_NODE_MAP && i < n->num; i++)
            check_choice(key, n->items[i].value, d);
        break;
    case CRI_MAP:
        if (n->kind != CR_NODE_MAP) wrong(key, n, "a map", d);
        break;
    case CRI_NUMBERS:
        if (n->kind != CR_NODE_MAP) wrong(key, n, "a map of numbers", d);
        for (size_t i = 0; n->kind == CR_NODE_MAP && i < n->num; i++)
            if (n->items[i].value->kind != CR_NODE_INT && n->items[i].value->kind != CR_NODE_REAL)
                wrong(key, n->items[i].value, "a number", d);
        break;
    case CRI_DEVICES:
        if (n->kind != CR_NODE_TEXT && n->kind != CR_NODE_LIST)
            wrong(key, n, "a list of devices, as list(range(0,8)),", d);
        break;
    case CRI_BLOCK:
        n = block_of_url(yaml, key, n);
        if (n->kind != CR_NODE_MAP)
            wrong(key, n, "a block of keys", d);
        else
            n = cri_check_block(yaml, key->range, n, d);
        break;
    case CRI_BLOCKS:
        if (n->kind != CR_NODE_MAP)
            wrong(key, n, "a map of blocks", d);
        else
            check_blocks(yaml, key, n, d);
        break;
    case CRI_LIST:
        if (n->kind != CR_NODE_LIST)
            wrong(key, n, "a list of blocks", d);
        else
            check_blocks(yaml, key, n, d);
        break;
    case CRI_ANY:
        break;
    }
    if (key->state == CRI_LATER && d->num_errors == before && !same_value(yaml, key, n)) {
        char text[80];
        cr_diagnose(d, CR_ERROR, n->place, "%s: %s is not available yet", key->name,
                    n->kind == CR_NODE_MAP ? "this block" : shown(n, text));
    }
    return n;
}

/* The value of a key that is not given. */
static cr_node *standard_of(cr_yaml *yaml, const cri_key *key, cr_place place, cr_diagnostics *d)
{
    cr_node *value = cr_yaml_parse_value(yaml, key->standard ? key->standard : "null", place, d);

    if ((key->type == CRI_REAL || key->type == CRI_OPTIONAL) && value->kind == CR_NODE_INT)
        value->real = (double)value->integer, value->kind = CR_NODE_REAL;
    return value;
}

/* A value of another type was reported; what is derived from the key is checked with its default. */
static bool is_bound(const cri_key *key, const cr_node *n)
{
    switch (key->type) {
    case CRI_BOOL:
        return n->kind == CR_NODE_BOOL;
    case CRI_INT:
        return n->kind == CR_NODE_INT;
    case CRI_REAL:
    case CRI_OPTIONAL:
        return n->kind == CR_NODE_REAL;
    case CRI_CHOICE:
    case CRI_DTYPE:
        return n->kind == CR_NODE_TEXT;
    default:
        return true;
    }
}

cr_node *cri_check_block(cr_yaml *yaml, const char *block, const cr_node *map, cr_diagnostics *d)
{
    cr_node *out = cr_node_new(yaml, CR_NODE_MAP, map->place);

    for (size_t i = 0; i < map->num; i++)
        if (!map->items[i].is_read && !cri_find_key(block, map->items[i].key))
            unknown_key(block, &map->items[i], d);
    for (size_t i = 0; i < cri_num_keys; i++) {
        const cri_key *key = &cri_keys[i];
        struct cr_item *item;
        cr_node *value;
        if (!is_in(block, key) || cri_find_key(block, key->name) != key) continue;
        item = cr_node_item(map, key->name);
        if (key->state == CRI_NO_EFFECT) {
            if (item && item->value->kind != CR_NODE_NULL)
                cr_diagnose_unused(d, item->place, key->name, "%s", key->text);
            continue;
        }
        if (item && item->value->kind == CR_NODE_NULL && key->type == CRI_OPTIONAL) {
            cr_node_set(yaml, out, key->name, item->place, item->value);
        } else if (item && item->value->kind != CR_NODE_NULL) {
            value = check_value(yaml, key, item->value, d);
            if (!is_bound(key, value)) value = standard_of(yaml, key, item->place, d);
            cr_node_set(yaml, out, key->name, item->place, value);
        } else {
            value =
                standard_of(yaml, key, item ? item->place : (cr_place){map->place.file, 0, 0}, d);
            cr_node_set(yaml, out, key->name, value->place, value);
        }
    }
    return out;
}
