/* deep.c -- see deep.h. */
#include "plan/run/deep.h"
#include "actors/strategy_args.h"
#include "base/args.h"
#include "base/children.h"
#include "base/limits.h"
#include "launch/device.h"
#include "models/weights.h"
#include "plan/run/roles.h"
#include "reports/html.h"
#include "samples/roles.h"
#include "strategies/units.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- models ---- */

/* Its files are there and whole: names, shapes and lengths. */
static cr_status check_weights(const cr_config *c, const cr_worker_config *w, const cr_model *model,
                               cr_err *err)
{
    cr_weights *weights = NULL;

    if (w->task == CR_TASK_GENERATE && !c->val_only)
        return CR_OK; /* its weights come from actor_train */
    cr_note(cr_weights_open(w->model_path, model, &weights, err));
    cr_weights_close(weights);
    return err->status;
}

static cr_status check_tokenizer(const char *folder, cr_err *err)
{
    cr_tokenizer *tokenizer = NULL;

    cr_note(cr_tokenizer_open(folder, &tokenizer, err));
    cr_tokenizer_close(tokenizer);
    return err->status;
}

/* Groups of parameters match some. */
static cr_status check_groups(const cr_worker_config *w, const cr_model *model, cr_err *err)
{
    const cr_optimizer_options options = cr_optimizer_options_of(&w->training);
    cr_param_choice *choices;

    if (!cr_task_trains(w->task)) return CR_OK;
    choices = CR_NEW_ARRAY(cr_param_choice, model->num_params);
    cr_note(cr_optimizer_choose(model, &options, w->training.weight_decay, choices, err));
    cr_free(choices);
    return err->status;
}

static cr_status check_ends(const cr_generating_args *g, const char *where, int64_t vocab_size,
                            cr_err *err)
{
    for (size_t i = 0; i < g->num_stop_token_ids; i++)
        if (g->stop_token_ids[i] >= vocab_size)
            return cr_fail(err, CR_ECONFIG,
                           "%s: stop_token_ids: %d is outside the vocabulary of %lld", where,
                           g->stop_token_ids[i], (long long)vocab_size);
    return CR_OK;
}

/* Tokens that end samples are those of the engine's model. */
static cr_status check_all_ends(const cr_config *c, const cr_model *model, cr_err *err)
{
    const cr_worker_config *const workers[] = {&c->infer, &c->validation};

    for (size_t k = 0; k < CR_COUNT(workers); k++) {
        const cr_worker_config *w = workers[k];
        const char *name = k ? "validation" : "actor_infer";
        CR_TRY(check_ends(&w->generating, name, model->config.vocab_size, err));
        for (size_t i = 0; i < w->num_domains; i++)
            CR_TRY(check_ends(&w->domains[i].args, name, model->config.vocab_size, err));
    }
    return CR_OK;
}

/* A reference that follows the policy is the model that trains, with weights of its own. */
static cr_status check_follower(const cr_config *c, const cr_worker_config *w,
                                const cr_model *model, cr_err *err)
{
    cr_model *trained = NULL;
    bool is_same;

    if (w->task != CR_TASK_FOLLOW || !c->train.model_path) return CR_OK;
    CR_TRY(cr_model_open(c->train.model_path, &trained, err));
    is_same = trained->num_params == model->num_params;
    for (size_t i = 0; i < model->num_params && is_same; i++)
        is_same = strcmp(trained->params[i]->name, model->params[i]->name) == 0 &&
                  trained->params[i]->num_elems == model->params[i]->num_elems;
    cr_model_free(trained);
    return is_same ? CR_OK
                   : cr_fail(err, CR_ECONFIG,
                             "sync_ref_model: %s has other parameters than the trained %s: it "
                             "cannot take their weights",
                             w->model_path, c->train.model_path);
}

/* The tree of a role exists, and what the file says of its modules matches something. */
static cr_status check_tree(const cr_config *c, const struct cr_role_ranks *ranks, cr_err *err)
{
    const cr_worker_config *w = ranks->worker;
    const cr_model_options options = cr_model_options_of(w, true);
    cr_wrap_policy policy = cr_wrap_policy_of(w);
    cr_model *model = NULL;
    cr_units units = {0};

    if (!w->model_path || w->num_devices < 1) return CR_OK;
    if (cr_model_open_with(w->model_path, &options, &model, err) == CR_OK &&
        cr_model_prepare(model, w, true, err) == CR_OK &&
        check_weights(c, w, model, err) == CR_OK && check_groups(w, model, err) == CR_OK &&
        check_follower(c, w, model, err) == CR_OK &&
        (w->task != CR_TASK_GENERATE || check_all_ends(c, model, err) == CR_OK) &&
        w->ep_size <= 1 && w->strategy != CR_STRATEGY_OTHER)
        cr_note(cr_units_build(model, &policy, 1, &units, err));
    cr_units_free(&units);
    cr_model_free(model);
    CR_TRY(err->status);
    return w->task == CR_TASK_GENERATE ? check_tokenizer(w->model_path, err) : CR_OK;
}

/* The model of a judge that the run starts, or of a reward, read as it will. */
static cr_status check_reward(const cr_worker_config *w, cr_err *err)
{
    const cr_model_options options = cr_model_options_of(w, false);
    cr_weights *weights = NULL;
    cr_model *model = NULL;

    if (cr_model_open_with(w->model_path, &options, &model, err) == CR_OK &&
        cr_model_prepare(model, w, true, err) == CR_OK)
        cr_note(cr_weights_open(w->model_path, model, &weights, err));
    cr_weights_close(weights);
    cr_model_free(model);
    CR_TRY(err->status);
    return check_tokenizer(w->model_path, err);
}

/* Where the file says the model of a block: its own key, or pretrain. */
static cr_place place_of_model(const cr_config *c, const char *block)
{
    char *dotted = cr_asprintf("%s.model_args.model_name_or_path", block);
    const cr_node *own = cr_node_at(c->yaml.root, dotted),
                  *all = cr_node_get(c->yaml.root, "pretrain");

    cr_free(dotted);
    if (own && own->place.line) return own->place;
    return all && all->place.line ? all->place : (cr_place){c->path, 0, 0};
}

static void check_models(const cr_config *c, cr_diagnostics *d)
{
    cr_layout layout;

    cr_layout_init(&layout, c);
    for (int r = 0; r < CR_NUM_ROLES; r++) {
        const char *name = layout.role[r].name;
        cr_err err = {0};
        if (layout.role[r].worker && check_tree(c, &layout.role[r], &err) != CR_OK)
            cr_diagnose(d, CR_ERROR, place_of_model(c, name), "%s: %s", name, err.msg);
    }
    for (size_t i = 0; i < c->num_rewards; i++) {
        char *name = cr_asprintf("rewards.%s", c->rewards[i].domain);
        cr_err err = {0};
        const cr_reward_config *r = &c->rewards[i];
        const cr_worker_config *w = r->model.is_given ? &r->model : &r->judge_model;
        if (w->is_given && check_reward(w, &err) != CR_OK)
            cr_diagnose(d, CR_ERROR, place_of_model(c, name), "%s: %s", name, err.msg);
        cr_free(name);
    }
}

/* ---- memory: on device cpu all ranks have that of the machine ---- */

typedef struct need {
    double all;     /* bytes of all ranks when the role that takes most works */
    size_t largest; /* the role that takes most of it */
} need;

/* is_min: what is certain; otherwise what the plan counts. */
static need need_of(const cr_plan *p, bool is_min)
{
    double extra = 0, max = 0;
    need out = {0};

    for (size_t r = 0; r < p->num_roles; r++) {
        const cr_plan_role *role = &p->role[r];
        double num = p->worker[r]->num_devices, work, idle;
        work = num * (double)(role->host_bytes +
                              (is_min ? cr_plan_min_bytes(p, role) : cr_plan_work_bytes(p, role)));
        idle = role->is_judge
                   ? work
                   : num * (double)(cr_plan_idle_bytes(p, role, p->worker[r]) + role->host_bytes);
        out.all += idle;
        if (work - idle > extra) extra = work - idle;
        if (work > max) max = work, out.largest = r;
    }
    out.all += extra;
    return out;
}

static void add_roles(const cr_plan *p, bool is_min, cr_buf *out)
{
    char size[32];

    for (size_t r = 0; r < p->num_roles; r++) {
        const cr_plan_role *role = &p->role[r];
        cr_buf_addf(
            out, "%s%s%s %d x %s", r ? ", " : "", role->is_judge ? "rewards." : "", role->name,
            p->worker[r]->num_devices,
            cr_size_text((p->is_gpu ? 0 : role->host_bytes) +
                             (is_min ? cr_plan_min_bytes(p, role) : cr_plan_work_bytes(p, role)),
                         size));
    }
}

static void check_fit(const cr_plan *p, cr_diagnostics *d)
{
    const int64_t memory = cr_memory_limit();
    const bool is_error = need_of(p, true).all > (double)memory;
    const need n = need_of(p, is_error);
    const cr_plan_role *largest = &p->role[n.largest];
    char *name = cr_asprintf("%s%s", largest->is_judge ? "rewards." : "", largest->name), a[32],
         b[32];
    cr_buf roles = {0};

    add_roles(p, is_error, &roles);
    if (n.all > (double)memory)
        cr_diagnose(d, is_error ? CR_ERROR : CR_WARNING, place_of_model(&p->config, name),
                    "%s %s of memory, this machine (or its cgroup) has %s: %s; %s takes most "
                    "(croll plan shows of what)",
                    is_error ? "the run needs at least" : "the run may need",
                    cr_size_text((int64_t)n.all, a), cr_size_text(memory, b), roles.data, name);
    cr_buf_free(&roles);
    cr_free(name);
}

/* gpu_memory_utilization is a share of all of a GPU, and others may have some of it. */
static void check_share(const cr_plan *p, const cr_device_memory *gpu, cr_place place,
                        cr_diagnostics *d)
{
    const double share = p->config.infer.engine.gpu_memory_utilization;
    char free[32], all[32];

    if (share * (double)gpu->all_bytes > (double)gpu->free_bytes)
        cr_diagnose(d, CR_ERROR, place,
                    "gpu_memory_utilization %g of a GPU with %s is more than the %s that are free "
                    "there (nvidia-smi shows who has the rest)",
                    share, cr_size_text(gpu->all_bytes, all), cr_size_text(gpu->free_bytes, free));
}

/* Roles of the fullest GPU, as croll plan adds them up. */
static void check_gpus(const cr_plan *p, const cr_device_memory *gpu, cr_diagnostics *d)
{
    const cr_plan_fullest_device min = cr_plan_fullest_min(p),
                                 max = cr_plan_fullest(p, &p->role[0], NULL);
    const bool is_error = min.bytes > gpu->free_bytes;
    const cr_plan_fullest_device *full = is_error ? &min : &max;
    const cr_plan_role *working = &p->role[full->working];
    char *name = cr_asprintf("%s%s", working->is_judge ? "rewards." : "", working->name), a[32],
         b[32];
    cr_buf roles = {0};

    add_roles(p, is_error, &roles);
    if (full->bytes > gpu->free_bytes)
        cr_diagnose(d, is_error ? CR_ERROR : CR_WARNING, place_of_model(&p->config, name),
                    "%s %s of device %d's GPU when %s works, %s are free: %s (croll plan FILE "
                    "--device cuda --gpus %d shows of what)",
                    is_error ? "the run needs at least" : "the run may need",
                    cr_size_text(full->bytes, a), full->first, name,
                    cr_size_text(gpu->free_bytes, b), roles.data, gpu->num_gpus);
    cr_buf_free(&roles);
    cr_free(name);
}

/* What is offloaded, on GPUs pinned. A virtual machine's memory may grow when it is used, so this is no error. */
static void check_offloaded(const cr_plan *p, cr_diagnostics *d)
{
    const int64_t left = cr_memory_left();
    int64_t sum = 0;
    char a[32], b[32];

    for (size_t r = 0; r < p->num_roles; r++)
        sum += p->worker[r]->num_devices * cr_plan_host_bytes(p, r);
    if (sum > left)
        cr_diagnose(
            d, CR_WARNING, (cr_place){p->config.path, 0, 0},
            "states that roles offload need %s of this host's memory, pinned for the GPU, and "
            "it has %s left: more memory, more hosts or devices of their own for roles",
            cr_size_text(sum, a), cr_size_text(left, b));
}

/* The cache of actor_infer as its ranks will have it (actors/generator.c), and all roles together. */
static void check_memory(const cr_config *c, bool is_one_host, const cr_device_memory *gpu,
                         cr_diagnostics *d)
{
    const cr_node *strategy = cr_node_at(c->yaml.root, "actor_infer.strategy_args.strategy_config");
    const cr_node *share = cr_node_get(strategy, "gpu_memory_utilization");
    const cr_place place = share && share->place.line ? share->place : (cr_place){c->path, 0, 0};
    cr_plan p = {.path = c->path, .config = *c, .is_gpu = cr_run_has_gpus(c)};
    cr_layout layout;
    cr_err err = {0};

    cr_layout_init(&layout, c);
    p.memory = p.is_gpu ? gpu->all_bytes : cr_memory_limit() / layout.num_ranks;
    if (is_one_host) p.num_gpus = gpu->num_gpus;
    if (cr_plan_roles(&p, &err) != CR_OK) {
        cr_diagnose(d, CR_ERROR, place, "%s", err.msg);
    } else if (is_one_host && !p.is_gpu) {
        check_fit(&p, d);
    } else if (is_one_host && gpu->num_gpus) {
        check_share(&p, gpu, place, d);
        check_gpus(&p, gpu, d);
        check_offloaded(&p, d);
    }
    cr_plan_roles_free(&p);
}

/* ---- the tracker ---- */

/* It starts when the ranks have: whether it can be is known before. */
static void check_tracker(const cr_config *c, cr_diagnostics *d)
{
    const cr_node *key = cr_node_get(c->yaml.root, "track_with");
    char **words, *found = NULL;
    cr_err err = {0};

    if (!c->track_program || !key) return;
    if (cr_split_words(c->track_program, &words, &err) == CR_OK) {
        found = cr_find_program(words[0]);
        if (!found || access(found, X_OK) != 0)
            cr_fail(&err, CR_ECONFIG, "%.200s %s", words[0],
                    found ? "cannot be executed" : "is not there");
        free(found); /* realpath's */
        cr_free(words);
    }
    if (err.status != CR_OK) cr_diagnose(d, CR_ERROR, key->place, "track_with: %s", err.msg);
}

void cr_deep_check(const cr_config *config, bool is_one_host, const cr_device_memory *gpu,
                   cr_diagnostics *d)
{
    check_models(config, d);
    check_tracker(config, d);
    if (d->num_errors == 0) check_memory(config, is_one_host, gpu, d);
}
