/* file.c -- from the words of `croll plan` to the configuration that is planned (make.h). What the file asks for and croll
 * does not have yet is named and left out of the plan. */
#include "configs/configs.h"
#include "configs/yaml/yaml.h"
#include "plan/run/make_impl.h"
#include "samples/roles.h"

#include <string.h>

/* What stops a run and not its plan: parts that croll does not have, another engine's name, rows that
 * are not whole mini-batches on this number of ranks. */
static bool is_excused(const struct cr_diagnostic *x)
{
    static const char *const marks[] = {"not available", "is another engine's",
                                        "not whole mini-batches"};

    for (size_t i = 0; i < CR_COUNT(marks); i++)
        if (strstr(x->text, marks[i])) return true;
    return false;
}

/* If all errors are of that kind, they become warnings. */
static bool excuse(cr_diagnostics *d)
{
    for (size_t i = 0; i < d->num; i++)
        if (d->items[i].severity == CR_ERROR && !is_excused(&d->items[i])) return false;
    for (size_t i = 0; i < d->num; i++)
        if (d->items[i].severity == CR_ERROR) d->items[i].severity = CR_WARNING;
    d->num_errors = 0;
    return true;
}

/* Blocks with devices, as the file names them: roles of either kind of file, and judges of the run. */
enum { NUM_BLOCKS = 2 * CR_NUM_ROLES };

static char *block_name(const cr_node *root, size_t i)
{
    const cr_role_kind *kind = &cr_role_kinds[i % CR_NUM_ROLES];
    const char *name = i < CR_NUM_ROLES ? kind->name : kind->sft_name;
    const cr_node *rewards = cr_node_get(root, "rewards");

    if (i >= NUM_BLOCKS) return cr_asprintf("rewards.%s", rewards->items[i - NUM_BLOCKS].key);
    return name ? cr_strdup(name) : NULL;
}

/* --world N: the devices of every role, scaled so that all roles together have N. */
static cr_status scale_devices(cr_plan *p, const cr_words *words, cr_words *out, cr_err *err)
{
    struct scaled {
        char *name;
        int *devices, num;
    } *blocks = NULL;
    const cr_node *rewards;
    cr_diagnostics d = {0};
    cr_yaml yaml = {0};
    size_t num = 0;
    int most = 0;

    cr_yaml_load(&yaml, words->word[0], NULL, words->word + 1, words->num - 1, &d);
    if (d.num_errors) goto out;
    rewards = cr_node_get(yaml.root, "rewards");
    num = NUM_BLOCKS + (rewards && rewards->kind == CR_NODE_MAP ? rewards->num : 0);
    blocks = cr_alloc(num * sizeof *blocks);
    p->override = CR_NEW_ARRAY(char *, num + 1);
    for (size_t r = 0; r < num; r++) {
        struct scaled *b = &blocks[r];
        char *key =
            (b->name = block_name(yaml.root, r)) ? cr_asprintf("%s.device_mapping", b->name) : NULL;
        const cr_node *n = key ? cr_node_at(yaml.root, key) : NULL;
        cr_free(key);
        if (!n || n->kind != CR_NODE_TEXT) continue;
        CR_TRY_GOTO(out, cr_device_mapping(n->text, &b->devices, &b->num, err));
        for (int i = 0; i < b->num; i++)
            if (b->devices[i] >= most) most = b->devices[i] + 1;
    }
    out->word =
        cr_realloc(out->word, out->num * sizeof *out->word, (out->num + num) * sizeof *out->word);
    for (size_t r = 0, i = 0; r < num; r++) {
        const struct scaled *b = &blocks[r];
        int64_t first, end;
        if (b->num == 0) continue;
        first = (int64_t)b->devices[0] * p->world / most;
        end = ((int64_t)b->devices[0] + b->num) * p->world / most; /* neighbours stay neighbours */
        if (end > p->world) end = p->world;
        if (end == first) end++;
        out->word[out->num++] = p->override[i++] = cr_asprintf(
            "%s.device_mapping=list(range(%lld,%lld))", b->name, (long long)first, (long long)end);
    }
out:
    for (size_t r = 0; r < num; r++) {
        cr_free(blocks[r].devices);
        cr_free(blocks[r].name);
    }
    cr_free(blocks);
    if (yaml.arena) cr_yaml_free(&yaml);
    cr_diagnostics_free(&d); /* they come again */
    return err->status;
}

cr_status cri_plan_load(cr_plan *p, const cr_words *words, cr_err *err)
{
    cr_words all = {CR_NEW_ARRAY(const char *, words->num), 0};

    for (size_t i = 1; i < words->num; i++)
        all.word[all.num++] = words->word[i];
    if (p->world == 0 || scale_devices(p, words, &all, err) == CR_OK)
        cr_note(cr_config_load(words->word[0], all.word, all.num, &p->config, &p->d, err));
    cr_free(all.word);
    if (err->status == CR_ECONFIG && excuse(&p->d)) *err = (cr_err){0};
    CR_TRY(err->status);
    if (!p->config.train.model_path || p->config.train.num_devices < 1)
        return cr_fail(err, CR_ECONFIG, "%s has no part that can be planned (see above)",
                       words->word[0]);
    return CR_OK;
}
