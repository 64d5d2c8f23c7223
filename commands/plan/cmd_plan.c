/* cmd_plan.c -- `croll plan`: batch arithmetic, meshes, memory and traffic of a run before it starts.
 *
 * What a role's rank does is counted by plan.c; here are the file, the devices, the search for the
 * largest micro-batch, and the ways to print. What the file asks for and croll does not have yet
 * is named and left out of the plan.
 */
#include "actors/roles.h"
#include "commands/commands.h"
#include "commands/plan/hosts.h"
#include "engine/engine.h"
#include "kernels/attention.h"
#include "plan/gpu.h"
#include "plan/shapes.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int run(int argc, char **argv);

const cr_command cr_command_plan = {
    "plan",
    "plan FILE [key=value ..] [--world N] [--memory 80GB] [--hosts 128x8] [--tree] [--json] "
    "[--html PAGE]",
    "Memory, traffic and batch arithmetic of a run, without starting it (needs config.json of the "
    "model, no weights).",
    "croll plan configs/quickstart/rlvr.yaml --world 2 --memory 1GB\n"
    "  croll plan configs/quickstart/rlvr.yaml --world 64 --hosts 8x8 --link 400GB/s --device h100",
    run};

/* ---- the file ---- */

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

/* ---- the numbers ---- */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Micro-batches of a pass for log-probs over num samples of full length. */
static int64_t num_forwards(const cr_plan *p, const cr_worker_config *w, int64_t samples)
{
    return ceil_div(samples, w->batching.infer_tokens
                                 ? w->batching.infer_tokens / p->config.sequence_length
                                 : w->infer_batch_size);
}

static void arithmetic(cr_plan *p)
{
    const cr_config *c = &p->config;
    const cr_worker_config *w = &c->train;
    int64_t mini = cr_worker_batch_samples(w), length = c->sequence_length;

    p->is_sft = c->kind == CR_PIPELINE_SFT;
    p->num_dp = cr_worker_num_batches(w);
    p->num_samples = p->is_sft ? p->num_dp * mini : c->rollout_batch_size * c->group_size;
    p->rank_samples = ceil_div(p->num_samples, p->num_dp);
    p->batch = (cr_plan_batch){
        .num_samples = w->training.per_device_train_batch_size,
        .num_infer = w->infer_batch_size,
        .sample_tokens = c->sequence_length,
        .sample_rows = c->sequence_length - (p->is_sft ? 1 : c->prompt_length),
        .micros = w->training.gradient_accumulation_steps,
        .updates = p->is_sft ? 1
                             : (c->algorithm.ppo_epochs < 1 ? 1 : c->algorithm.ppo_epochs) *
                                   ceil_div(p->rank_samples, mini)};
    p->batch.train_tokens = w->batching.train_tokens;
    p->batch.infer_tokens = w->batching.infer_tokens;
    if (p->batch.train_tokens) /* at most: if every sample has full length */
        p->batch.micros = ceil_div(mini, p->batch.train_tokens / length);
    if (!p->is_sft && c->old_log_probs == CR_OLD_COMPUTED)
        p->batch.forwards = num_forwards(p, w, p->rank_samples);
}

/* A model of the role, from its folder or from its published shape. */
static cr_status open_model(const char *folder, const cr_worker_config *train, bool should_freeze,
                            cr_model **out, cr_err *err)
{
    json_t *known = cr_dir_exists(folder) ? NULL : cr_shape_config(folder);

    if (known)
        cr_note(cr_model_build(known, NULL, out, err));
    else if (cr_model_open(folder, out, err) != CR_OK)
        cr_fail_add(err,
                    "the plan needs the model's config.json (pretrain=FOLDER; known by name are "
                    "Qwen/Qwen3-0.6B to 235B-A22B, Qwen/Qwen2.5-0.5B to 72B, "
                    "meta-llama/Meta-Llama-3-8B and 70B)");
    json_decref(known);
    CR_TRY(err->status);
    return cr_model_prepare(*out, train, should_freeze, err);
}

static cr_status plan_train(const cr_plan *p, const cr_plan_batch *batch, cr_plan_role *out,
                            cr_err *err)
{
    const cr_worker_config *w = &p->config.train;
    cr_model *model = NULL;

    *out = (cr_plan_role){.name = cr_role_name(CR_ROLE_TRAIN, &p->config),
                          .is_train = true,
                          .with_moments = p->with_moments && batch == &p->batch};
    if (open_model(w->model_path, w, true, &model, err) == CR_OK)
        cr_note(cr_plan_run(model, w, w->num_devices, batch, out, err));
    cr_model_free(model);
    return err->status;
}

/* A role with a model of its own that is run forward over the samples of a step. */
static cr_status plan_score(cr_plan *p, const cr_worker_config *w, cr_plan_role *out, cr_err *err)
{
    int64_t dp = cr_worker_num_batches(w);
    cr_plan_batch batch = p->batch;
    cr_model *model = NULL;

    *out = (cr_plan_role){.name = w->name, .with_moments = p->with_moments};
    batch.num_infer = w->infer_batch_size;
    batch.infer_tokens = w->batching.infer_tokens;
    batch.forwards = num_forwards(p, w, ceil_div(p->num_samples, dp));
    if (open_model(w->model_path, &p->config.train, false, &model, err) == CR_OK)
        cr_note(cr_plan_run(model, w, w->num_devices, &batch, out, err));
    cr_model_free(model);
    return err->status;
}

/* The engine's cache: what max_running_requests sequences need, or what gpu_memory_utilization of --memory leaves
 * beside the weights. Without --memory nothing is known of the devices: a plan is often for another machine. */
static cr_status cache_bytes(const cr_plan *p, const cr_model *model, cr_device *dev,
                             int64_t length, int64_t weights, int64_t *out, cr_err *err)
{
    const cr_worker_config *w = &p->config.infer;
    const double share = w->engine.gpu_memory_utilization;
    const int64_t block = model->config.num_layers *
                          (int64_t)cr_kv_block_bytes(dev, cr_dtype_of(w->dtype),
                                                     model->config.num_kv_heads,
                                                     model->config.head_dim),
                  one = ceil_div(length, CR_KV_BLOCK) * block;
    int64_t memory = p->memory, budget;

    *out = p->config.max_running_requests * one;
    if (share <= 0 || memory == 0) return CR_OK;
    budget = cr_engine_cache_budget(share, memory, weights);
    if (budget < one)
        return cr_fail(err, CR_ECONFIG,
                       "actor_infer: gpu_memory_utilization %g of %lld bytes leaves %lld beside "
                       "%lld bytes of weights, and one sequence of %lld tokens needs %lld (raise "
                       "it, or shorten max_model_len)",
                       share, (long long)memory, (long long)(budget > 0 ? budget : 0),
                       (long long)weights, (long long)length, (long long)one);
    if (budget < *out) *out = budget / block * block;
    return CR_OK;
}

/* The engine has the whole model, cut as the sender cuts it, and a cache for its samples. */
static cr_status plan_infer(cr_plan *p, cr_plan_role *out, cr_err *err)
{
    const cr_config *c = &p->config;
    const cr_worker_config *w = &c->infer;
    cr_wrap_policy wrap = cr_wrap_policy_of(&c->train);
    int64_t length = w->engine.max_model_len ? w->engine.max_model_len : c->sequence_length, packed;
    cr_plan_bytes bytes = {0};
    cr_weight_copy *weights = NULL;
    cr_device *dev = NULL;
    cr_model *model = NULL;

    *out = (cr_plan_role){.name = cr_role_name(CR_ROLE_INFER, &p->config)};
    out->mesh = (cr_mesh_shape){w->num_devices, 1, 1, w->num_devices, 1, 1, 1, 1, false};
    CR_TRY_GOTO(out, open_model(w->model_path, &c->train, true, &model, err));
    CR_TRY_GOTO(out, cr_device_open("meta", 1, &dev, err));
    CR_TRY_GOTO(out, cr_weight_copy_create(model, dev, &wrap, p->role[0].mesh.num_fsdp,
                                           cr_dtype_of(w->dtype), &weights, err));
    bytes.values = (int64_t)cr_device_get_stats(dev).bytes_now;
    if (model->config.position_limit && length > model->config.position_limit)
        length = model->config.position_limit;
    packed = cr_engine_packed_bytes(model, dev, cr_dtype_of(w->dtype));
    CR_TRY_GOTO(out, cache_bytes(p, model, dev, length, bytes.values + packed, &bytes.kept, err));
    bytes.kept += packed;
    for (size_t i = 0; i < model->num_params; i++)
        out->num_elems += model->params[i]->num_elems;
    out->num_recorded = cr_engine_most_recorded(model, w->engine.enforce_eager);
    out->phase[out->num_phases++] = (struct cr_plan_phase){"rollout", bytes};
    out->synced.num = 1;
    out->synced.num_bytes = bytes.values;
out:
    cr_weight_copy_destroy(weights);
    if (dev) cr_device_close(dev);
    cr_model_free(model);
    return err->status;
}

/* A process of a judge has its model as shards of one rank and as the engine's copy, and a cache. */
static cr_status plan_judge(const cr_plan *p, const cr_worker_config *w, cr_plan_role *out,
                            cr_err *err)
{
    enum {
        SAMPLES = 64,
        SHARE = 4
    }; /* croll serve: at a time; the most of the memory that a cache takes */
    cr_plan_bytes bytes = {0};
    cr_device *dev = NULL;
    cr_model *model = NULL;
    cr_dtype dtype = cr_dtype_of(w->dtype);
    int64_t length = w->engine.max_model_len;

    *out = (cr_plan_role){.name = w->name, .is_judge = true};
    out->mesh = (cr_mesh_shape){w->num_devices, 1, 1, w->num_devices, 1, 1, 1, 1, false};
    CR_TRY_GOTO(out, open_model(w->model_path, w, true, &model, err));
    CR_TRY_GOTO(out, cr_device_open("meta", 1, &dev, err));
    for (size_t i = 0; i < model->num_params; i++)
        out->num_elems += model->params[i]->num_elems;
    bytes.values = 2 * out->num_elems * (int64_t)cr_dtype_bytes(dtype);
    if (!length || length > model->config.max_position_embeddings)
        length = model->config.max_position_embeddings;
    bytes.kept =
        SAMPLES * ceil_div(length, CR_KV_BLOCK) * model->config.num_layers *
        (int64_t)cr_kv_block_bytes(dev, dtype, model->config.num_kv_heads, model->config.head_dim);
    if (p->memory && bytes.kept > p->memory / SHARE) bytes.kept = p->memory / SHARE;
    bytes.kept += cr_engine_packed_bytes(model, dev, dtype);
    out->num_recorded = cr_engine_most_recorded(model, /*is_eager=*/false);
    out->phase[out->num_phases++] = (struct cr_plan_phase){"judge", bytes};
out:
    if (dev) cr_device_close(dev);
    cr_model_free(model);
    return cr_fail_add(err, "rewards.%s", w->name);
}

static int64_t peak_bytes(const cr_plan *p, const cr_plan_role *r)
{
    return p->is_gpu ? cr_gpu_peak(r) : cr_plan_peak(r);
}

/* What a role keeps of a device while another one works there (phases.h, on a device that is the host). */
static int64_t idle_bytes(const cr_plan *p, const cr_plan_role *r, const cr_worker_config *w)
{
    const cr_plan_bytes *b = &r->phase[0].bytes;
    int64_t own = p->is_gpu ? cr_gpu_idle_bytes(r) : 0;

    if (r->is_judge) return peak_bytes(p, r);
    return own + (w->engine.sleep_level > 1 ? 0 : b->masters + b->moments + b->values);
}

/* The fullest device. Roles that share one take turns. */
static int64_t device_peak(const cr_plan *p, const cr_plan_role *train)
{
    int most = 0;
    int64_t *idle, peak = 0;

    for (size_t r = 0; r < p->num_roles; r++)
        for (int i = 0; i < p->worker[r]->num_devices; i++)
            if (p->worker[r]->devices[i] >= most) most = p->worker[r]->devices[i] + 1;
    idle = CR_NEW_ARRAY(int64_t, most);
    for (int pass = 0; pass < 2; pass++) /* first what all of them keep, then who works */
        for (size_t r = 0; r < p->num_roles; r++) {
            const cr_plan_role *role = r == 0 ? train : &p->role[r];
            int64_t kept = idle_bytes(p, role, p->worker[r]), extra = peak_bytes(p, role) - kept;
            for (int i = 0; i < p->worker[r]->num_devices; i++) {
                int64_t *at = &idle[p->worker[r]->devices[i]];
                if (pass == 0) *at += kept;
                if (pass == 1 && *at + extra > peak) peak = *at + extra;
            }
        }
    cr_free(idle);
    return peak;
}

/* Does a micro-batch of num samples fit, or, if it is not 0, one of that number of tokens? */
static cr_status try_micro(const cr_plan *p, int64_t num, int64_t tokens, bool *fits, cr_err *err)
{
    cr_plan_batch batch = p->batch;
    cr_plan_role role;

    batch.num_samples = num;
    batch.train_tokens = tokens;
    batch.micros = 1;
    CR_TRY(plan_train(p, &batch, &role, err));
    *fits = device_peak(p, &role) <= p->memory;
    cr_plan_role_free(&role);
    return CR_OK;
}

/* The largest number of tokens that fits, to 1/64 of a sample: from `largest` samples to one more. */
static cr_status search_tokens(cr_plan *p, cr_err *err)
{
    int64_t length = p->batch.sample_tokens, step = length < 64 ? 1 : length / 64,
            least = p->largest * length, most = least + length;

    while (!p->is_limit && most - least > step) {
        int64_t mid = least + (most - least) / 2;
        bool fits;
        CR_TRY(try_micro(p, 0, mid, &fits, err));
        *(fits ? &least : &most) = mid;
    }
    p->largest_tokens = least;
    return CR_OK;
}

/* The largest micro-batch that fits: doubling, then halving the gap. At most a million tokens. */
static cr_status search(cr_plan *p, cr_err *err)
{
    int64_t least = 0, most, limit = (1 << 20) / p->batch.sample_tokens;
    bool fits = true;

    if (limit < 1) limit = 1;
    if (!p->is_sft && limit > p->rank_samples) limit = p->rank_samples;
    for (most = 1; fits && least < limit;) {
        if (most > limit) most = limit;
        CR_TRY(try_micro(p, most, 0, &fits, err));
        if (fits) least = most, most *= 2;
    }
    while (!fits && most - least > 1) {
        int64_t mid = least + (most - least) / 2;
        bool good;
        CR_TRY(try_micro(p, mid, 0, &good, err));
        *(good ? &least : &most) = mid;
    }
    p->largest = least;
    p->is_limit = least == limit;
    return least ? search_tokens(p, err) : CR_OK;
}

/* ---- other sizes of a shard group ---- */

static void add_choice(cr_plan *p, const cr_plan_role *role)
{
    const cr_plan_place place = {p->hosts.host_of[0], p->hosts.num, p->is_gpu};

    p->hosts.choice[p->hosts.num_choices++] = (cr_plan_choice){
        .fsdp_size = role->mesh.num_fsdp,
        .peak_bytes = device_peak(p, role),
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
    cr_note(plan_train(p, &batch, &role, err));
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

static cr_status make(cr_plan *p, cr_err *err)
{
    const cr_config *c = &p->config;

    arithmetic(p);
    p->role = CR_NEW_ARRAY(cr_plan_role, CR_NUM_ROLES + c->num_rewards);
    p->worker = CR_NEW_ARRAY(const cr_worker_config *, CR_NUM_ROLES + c->num_rewards);
    for (cr_role r = 0; r < CR_NUM_ROLES; r++) {
        const cr_worker_config *w = cr_role_in_run(r, c);
        cr_plan_role *role = &p->role[p->num_roles];
        if (!w || (r != CR_ROLE_TRAIN && !w->num_devices)) continue;
        p->worker[p->num_roles++] = w;
        CR_TRY(w->task == CR_TASK_TRAIN      ? plan_train(p, &p->batch, role, err)
               : w->task == CR_TASK_GENERATE ? plan_infer(p, role, err)
                                             : plan_score(p, w, role, err));
    }
    for (size_t i = 0; i < c->num_rewards; i++) {
        const cr_worker_config *w = &c->rewards[i].judge_model;
        if (!w->is_given || !w->num_devices || !w->model_path) continue;
        p->worker[p->num_roles] = w;
        CR_TRY(plan_judge(p, w, &p->role[p->num_roles++], err));
    }
    p->device_peak = device_peak(p, &p->role[0]);
    cr_plan_hosts_place(p);
    if (p->hosts.num) CR_TRY(choose(p, err));
    return p->memory ? search(p, err) : CR_OK;
}

/* ---- the command ---- */

static cr_status plan(cr_plan *p, const cr_words *words, const char *memory,
                      const cr_plan_options *options, cr_err *err)
{
    cr_status status;

    if (words->num < 1) return cr_fail(err, CR_EUSAGE, "a FILE is needed (see croll plan --help)");
    if (p->world < 0 || p->world > 65536)
        return cr_fail(err, CR_EUSAGE, "--world %lld: from 1 to 65536", (long long)p->world);
    if (memory) CR_TRY(read_memory(memory, &p->memory, err));
    p->path = words->word[0];
    status = load(p, words, err);
    cr_diagnostics_print(&p->d);
    CR_TRY(status);
    CR_TRY(cr_plan_hosts_open(p, options, err));
    return make(p, err);
}

static cr_status print(const cr_plan *p, bool is_json, bool with_tree, const char *page,
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

static int run(int argc, char **argv)
{
    bool is_json = false, with_tree = false, is_help = false, as_fsdp2 = false;
    const char *memory = NULL, *page = NULL;
    cr_plan_options where = {0};
    cr_plan p = {0};
    const cr_option options[] = {
        {"world", CR_OPT_INT, &p.world, "N",
         "plan for N devices: every role's mapping is scaled (default: the file's)"},
        {"memory", CR_OPT_STRING, &memory, "SIZE",
         "of a device, as 80GB: say what fits and the largest micro-batch"},
        {"hosts", CR_OPT_STRING, &where.hosts, "HOSTS",
         "128x8 (hosts x devices), or a:8,b:8 as croll run has it: places, traffic, times"},
        {"hostfile", CR_OPT_STRING, &where.hostfile, "FILE",
         "the same from a file: NAME slots=N a line"},
        {"link", CR_OPT_STRING, &where.link, "RATE",
         "into a host, as 400GB/s or 3.2Tbit/s (default: hosts.json in output_dir)"},
        {"device", CR_OPT_STRING, &where.device, "NAME",
         "cpu (default), cuda, or a100, h100, h200, b200: its memory and speed by data sheet"},
        {"rates", CR_OPT_STRING, &where.rates, "FILE",
         "what `croll doctor --measure FILE` found: speed of a device for --hosts"},
        CR_AS_FSDP2_OPTION(as_fsdp2),
        {"tree", CR_OPT_FLAG, &with_tree, NULL, "the wrapped tree of every role, too"},
        {"json", CR_OPT_FLAG, &is_json, NULL, "one JSON object"},
        {"html", CR_OPT_STRING, &page, "PAGE",
         "also write a page to look at: meshes, trees, memory along a step, traffic"},
    };
    cr_words words = {0};
    cr_err err = {0};

    if (cr_args_parse(&cr_command_plan, options, CR_COUNT(options), argc, argv, &words, &is_help,
                      &err) == CR_OK &&
        !is_help) {
        p.with_moments = page != NULL;
        if (as_fsdp2 && words.num) cr_words_add(&words, CR_AS_FSDP2);
        if (plan(&p, &words, memory, &where, &err) == CR_OK)
            cr_note(print(&p, is_json, with_tree, page, &err));
    }
    cr_words_free(&words);
    cr_plan_hosts_free(&p);
    for (size_t i = 0; i < p.num_roles; i++)
        cr_plan_role_free(&p.role[i]);
    for (size_t i = 0; p.override && p.override[i]; i++)
        cr_free(p.override[i]);
    cr_free(p.override);
    cr_free(p.role);
    cr_free(p.worker);
    cr_config_free(&p.config);
    cr_diagnostics_free(&p.d);
    return err.status == CR_OK ? 0 : cr_command_fail(&cr_command_plan, &err);
}
