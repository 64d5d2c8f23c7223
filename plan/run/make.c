/* make.c -- see make.h. */
#include "plan/run/make.h"
#include "actors/strategy_args.h"
#include "configs/configs.h"
#include "configs/yaml/yaml.h"
#include "plan/devices.h"
#include "plan/plan_print.h"
#include "plan/run/reshard.h"
#include "plan/run/roles.h"
#include "samples/roles.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the file. What it asks for and croll does not have yet is named and left out of the plan ---- */

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
enum { NUM_BLOCKS = 3 * CR_NUM_ROLES };

static char *block_name(const cr_node *root, size_t i)
{
    const cr_role_kind *kind = &cr_role_kinds[i % CR_NUM_ROLES];
    const char *name = i < CR_NUM_ROLES       ? kind->name
                       : i < 2 * CR_NUM_ROLES ? kind->sft_name
                                              : kind->distill_name;
    const cr_node *rewards = cr_node_get(root, "rewards");

    if (i >= 2 * CR_NUM_ROLES && name == kind->name) name = NULL; /* it is of both kinds */
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
    int max = 0;

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
            if (b->devices[i] >= max) max = b->devices[i] + 1;
    }
    out->word =
        cr_realloc(out->word, out->num * sizeof *out->word, (out->num + num) * sizeof *out->word);
    for (size_t r = 0, i = 0; r < num; r++) {
        const struct scaled *b = &blocks[r];
        int64_t first, end;
        if (b->num == 0) continue;
        first = (int64_t)b->devices[0] * p->world / max;
        end = ((int64_t)b->devices[0] + b->num) * p->world / max; /* neighbours stay neighbours */
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

static cr_status load(cr_plan *p, const cr_words *words, cr_err *err)
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

/* ---- the largest micro-batch ---- */

/* Does a micro-batch of num samples fit, or, if it is not 0, one of that number of tokens? */
static cr_status try_micro(const cr_plan *p, int64_t num, int64_t tokens, bool *fits, cr_err *err)
{
    cr_plan_batch batch = p->batch;
    cr_plan_role role;

    batch.num_samples = num * p->row_samples;
    batch.train_tokens = tokens;
    batch.micros = 1;
    CR_TRY(cr_plan_train(p, &batch, &role, err));
    *fits = cr_plan_fullest(p, &role, NULL).bytes <= p->memory;
    cr_plan_role_free(&role);
    return CR_OK;
}

/* The largest number of tokens that fits, to 1/64 of a sample: from `largest` samples to one more. */
static cr_status search_tokens(cr_plan *p, cr_err *err)
{
    int64_t length = p->batch.sample_tokens * p->row_samples, step = length < 64 ? 1 : length / 64,
            min = p->largest * length, max = min + length;

    while (!p->is_limit && max - min > step) {
        int64_t mid = min + (max - min) / 2;
        bool fits;
        CR_TRY(try_micro(p, 0, mid, &fits, err));
        *(fits ? &min : &max) = mid;
    }
    p->largest_tokens = min;
    return CR_OK;
}

/* The largest micro-batch that fits: doubling, then halving the gap. At most a million tokens. */
static cr_status search(cr_plan *p, cr_err *err)
{
    int64_t min = 0, max, limit = (1 << 20) / p->batch.sample_tokens / p->row_samples;
    bool fits = true;

    if (limit < 1) limit = 1;
    if (p->is_rlvr && limit > p->rank_samples) limit = p->rank_samples;
    for (max = 1; fits && min < limit;) {
        if (max > limit) max = limit;
        CR_TRY(try_micro(p, max, 0, &fits, err));
        if (fits) min = max, max *= 2;
    }
    while (!fits && max - min > 1) {
        int64_t mid = min + (max - min) / 2;
        bool good;
        CR_TRY(try_micro(p, mid, 0, &good, err));
        *(good ? &min : &max) = mid;
    }
    p->largest = min;
    p->is_limit = min == limit;
    return min ? search_tokens(p, err) : CR_OK;
}

/* ---- other sizes of a shard group ---- */

static void add_choice(cr_plan *p, const cr_plan_role *role)
{
    const cr_plan_place place = {p->hosts.host_of[0], p->hosts.num, p->is_gpu};

    p->hosts.choice[p->hosts.num_choices++] = (cr_plan_choice){
        .fsdp_size = role->mesh.num_fsdp,
        .peak_bytes = cr_plan_fullest(p, role, NULL).bytes,
        .micro_s = cr_plan_time(role, &place, &p->hosts.rates, CR_PLAN_FIRST).all_s,
        .update_s = cr_plan_time(role, &place, &p->hosts.rates, CR_PLAN_UPDATE).all_s,
        .step_s = cr_plan_step_s(role, &place, &p->hosts.rates),
        .into_bytes = cr_plan_into_bytes(role, &place),
        .is_file = role == &p->role[0]};
}

static cr_status choose_size(cr_plan *p, int size, cr_err *err)
{
    const cr_plan_batch batch = p->batch; /* a copy: its moments are not asked for */
    int64_t file = p->config.train.fsdp_size;
    cr_plan_role role;

    p->config.train.fsdp_size = size;
    cr_note(cr_plan_train(p, &batch, &role, err));
    p->config.train.fsdp_size = file;
    CR_TRY(err->status);
    add_choice(p, &role);
    cr_plan_role_free(&role);
    return CR_OK;
}

/* A shard group of a host's ranks, twice as many .., all; and the file's. */
static cr_status choose(cr_plan *p, cr_err *err)
{
    cr_plan_hosts *h = &p->hosts;
    const int ranks = p->role[0].mesh.num_ranks, file = p->role[0].mesh.num_fsdp;
    cr_plan_choice *best = NULL;
    bool has_file = false;
    int here = 0;

    for (int i = 0; i < ranks; i++)
        here += h->host_of[0][i] == h->host_of[0][0];
    if (here == ranks) return CR_OK;
    h->choice = CR_NEW_ARRAY(cr_plan_choice, 20);
    for (int size = here, next; size <= ranks; size = next) {
        cr_mesh_shape shape;
        cr_err no = {0};
        cr_worker_config w = p->config.train;
        next = size < ranks && 2 * size > ranks ? ranks : 2 * size;
        if (size >= file && !has_file) {
            has_file = true;
            add_choice(p, &p->role[0]);
        }
        w.fsdp_size = size;
        if (size > 1 && size != file && cr_mesh_shape_of(&w, ranks, &shape, &no) == CR_OK)
            CR_TRY(choose_size(p, size, err));
    }
    for (size_t i = 0; i < h->num_choices; i++) {
        cr_plan_choice *x = &h->choice[i];
        if (x->step_s > 0 && (!p->memory || x->peak_bytes <= p->memory) &&
            (!best || x->step_s < best->step_s))
            best = x;
    }
    if (best) best->is_best = !best->is_file;
    return CR_OK;
}

/* ---- the plan ---- */

/* "80GB" = 80e9, "80GiB" = 80 x 2^30, "1000" = bytes. */
static cr_status read_memory(const char *text, int64_t *out, cr_err *err)
{
    static const char units[] = "kmgt";
    char *end;
    double x = strtod(text, &end), step = 1000;
    const char *unit = *end ? strchr(units, tolower((unsigned char)*end)) : NULL;

    if (unit && end[1] == 'i') step = 1024;
    for (long i = 0; unit && i <= unit - units; i++)
        x *= step;
    if (unit) end += end[1] == 'i' ? 2 : 1;
    if (*end == 'B') end++;
    if (*end || end == text || !(x >= 1) || x > 1e18)
        return cr_fail(err, CR_EUSAGE, "--memory %s is not a size (as 80GB or 80GiB)", text);
    if (!unit && x < 1 << 20)
        return cr_fail(err, CR_EUSAGE, "--memory %s is %.0f bytes (did you mean %.0fGiB?)", text, x,
                       x);
    *out = (int64_t)x;
    return CR_OK;
}

static cr_status count(cr_plan *p, cr_err *err)
{
    int reshard;

    CR_TRY(cr_plan_roles(p, err));
    CR_TRY(cr_reshard_choose(p, p->memory, err));
    p->device_peak = cr_plan_fullest(p, &p->role[0], NULL).bytes;
    cr_plan_hosts_place(p);
    if (p->hosts.num) CR_TRY(choose(p, err));
    reshard = p->config.train.reshard_after_forward;
    if (!p->memory) return CR_OK;
    if (p->config.train.is_reshard_auto) /* a larger micro-batch may not leave room for them */
        p->config.train.reshard_after_forward = -1;
    cr_note(search(p, err));
    p->config.train.reshard_after_forward = reshard;
    return err->status;
}

cr_status cr_plan_make(cr_plan *p, const cr_words *words, const cr_plan_options *options,
                       cr_err *err)
{
    cr_status status;

    if (words->num < 1) return cr_fail(err, CR_EUSAGE, "a FILE is needed (see croll plan --help)");
    if (p->world < 0 || p->world > 65536)
        return cr_fail(err, CR_EUSAGE, "--world %lld: from 1 to 65536", (long long)p->world);
    if (options->memory) CR_TRY(read_memory(options->memory, &p->memory, err));
    if (p->num_gpus < 0 || p->num_gpus > 1024)
        return cr_fail(err, CR_EUSAGE, "--gpus %lld: from 1 to 1024", (long long)p->num_gpus);
    p->path = words->word[0];
    status = load(p, words, err);
    cr_diagnostics_print(&p->d);
    CR_TRY(status);
    CR_TRY(cr_plan_hosts_open(p, options, err));
    CR_TRY(cr_plan_cores_open(p, options, err));
    return count(p, err);
}

cr_status cr_plan_show(const cr_plan *p, bool is_json, bool with_tree, const char *page,
                       cr_err *err)
{
    cr_buf out = {0};

    if (page) {
        cr_plan_html(p, &out);
        cr_note(cr_file_write_atomic(page, out.data, out.num_bytes, err));
        cr_buf_clear(&out);
    }
    if (is_json)
        cr_plan_json(p, with_tree, &out);
    else
        cr_plan_text(p, with_tree, &out);
    fwrite(out.data, 1, out.num_bytes, stdout);
    cr_buf_free(&out);
    return err->status;
}

void cr_plan_free(cr_plan *p)
{
    cr_plan_hosts_free(p);
    cr_plan_roles_free(p);
    for (size_t i = 0; p->override && p->override[i]; i++)
        cr_free(p->override[i]);
    cr_free(p->override);
    cr_config_free(&p->config);
    cr_diagnostics_free(&p->d);
}
