/* worker.c -- MODEL and worker keys to a model that is ready to run (see worker.h). */
#include "commands/worker.h"
#include "base/children.h"
#include "kernels/memory.h"
#include "launch/cores/cores.h"
#include "launch/ranks.h"
#include "mesh/collectives.h"
#include "mesh/mesh.h"
#include "models/models.h"
#include "models/weights.h"
#include "samples/roles.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { GENERATE_BATCH = 256 }; /* samples at a time, if infer_batch_size is not given */
#define RANK_0_SPEAKS_S 0.3    /* time for its error message */

/* ---- worker keys ---- */

static bool is_key(const char *word, const char *key)
{
    size_t num = strlen(key);

    return strncmp(word, key, num) == 0 && word[num] == '=';
}

cr_status cr_worker_read(cr_worker *w, cr_worker_kind kind, const cr_words *words, cr_err *err)
{
    cr_diagnostics d = {0};
    bool has_batch_size = false;
    cr_status status;

    *w = (cr_worker){.kind = kind, .num_ranks = 1};
    if (words->num == 0) return cr_fail(err, CR_EUSAGE, "MODEL is missing (a folder)");
    w->folder = words->word[0];
    for (size_t i = 1; i < words->num; i++) {
        if (!strchr(words->word[i], '='))
            return cr_fail(err, CR_EUSAGE, "'%s' is not key=value", words->word[i]);
        has_batch_size |= is_key(words->word[i], "infer_batch_size");
        w->has_dtype |= is_key(words->word[i], "model_args.dtype") ||
                        is_key(words->word[i], "strategy_args.strategy_config.param_dtype");
    }
    status = cr_config_worker(kind == CR_WORKER_TRAIN ? "actor_train" : "reference", w->folder,
                              words->word + 1, words->num - 1, &w->config, &d, err);
    if (cr_world_kind_here() == CR_WORLD_LOCAL || status != CR_OK) cr_diagnostics_print(&d);
    cr_diagnostics_free(&d);
    CR_TRY(status);
    w->keys = &w->config.train;
    if (w->keys->num_devices > 1) w->num_ranks = w->keys->num_devices;
    w->batch_size = w->keys->infer_batch_size;
    if (kind == CR_WORKER_TRAIN) w->batch_size = w->keys->training.per_device_train_batch_size;
    if (kind == CR_WORKER_GENERATE && !has_batch_size) w->batch_size = GENERATE_BATCH;
    if (kind == CR_WORKER_GENERATE && w->keys->ulysses_size > 1)
        return cr_fail(err, CR_EUSAGE,
                       "M11: ulysses_size %lld is for training and log-probs only (use 1)",
                       (long long)w->keys->ulysses_size);
    if (kind == CR_WORKER_GENERATE && (w->keys->fsdp_size > 1 || w->keys->ep_size > 1))
        return cr_fail(
            err, CR_EUSAGE,
            "each rank that generates has the whole model: fsdp_size and ep_size have no "
            "effect (leave them out)");
    return CR_OK;
}

/* Over hosts, and before the world is open, with the rank and its host; CR_EPEER names another rank already. */
static int say(const cr_worker *w, const cr_command *command, const cr_err *err)
{
    bool is_one_host =
        w->world ? !cr_world_spans_hosts(w->world) : cr_world_kind_here() == CR_WORLD_LOCAL;
    cr_err said = *err;
    int code;

    if (!is_one_host && err->status != CR_EPEER)
        cr_fail_add(&said, "rank %d on %s", cr_world_rank_here(), cr_host_name());
    code = cr_command_fail(command, &said);
    return w->kind == CR_WORKER_SERVE && err->status == CR_EPEER ? cr_exit_code(CR_ETIMEOUT) : code;
}

/* The role's block of a file that was loaded. */
static cr_status find_role(cr_worker *w, const char *file, const char *role, cr_err *err)
{
    cr_config *c = &w->config;

    const cr_reward_config *judged = NULL;

    for (int r = 0; r < CR_NUM_ROLES; r++)
        if (strcmp(cr_role_kinds[r].name, role) == 0) w->keys = cr_role_worker((cr_role)r, c);
    if (strncmp(role, CR_ROLE_REWARDS, strlen(CR_ROLE_REWARDS)) == 0) {
        judged = cr_config_find_reward(c, role + strlen(CR_ROLE_REWARDS));
        if (!judged || !judged->judge_model.is_given)
            return cr_fail(err, CR_ECONFIG, "%s: %s is no domain with judge_model_type: inference",
                           file, role);
        w->keys = &judged->judge_model;
    }
    CR_CHECK(w->keys, "no role %s", role);
    if (!w->keys->is_given)
        return cr_fail(err, CR_ECONFIG, "%s has no block %s (--role says which one)", file, role);
    if (w->keys->service.url)
        return cr_fail(err, CR_ECONFIG,
                       "%s: %s is a service already, at %s: start that one with its model's folder",
                       file, role, w->keys->service.url);
    if (!w->keys->model_path) return cr_fail(err, CR_ECONFIG, "%s: %s has no model", file, role);
    cr_envs_set(c->envs);
    cr_envs_set(w->keys->envs);
    w->folder = w->keys->model_path;
    w->has_dtype = true;
    w->is_of_run = !judged;
    w->batch_size = w->keys->infer_batch_size;
    if (w->keys->num_devices > 1 && !judged) w->num_ranks = w->keys->num_devices;
    return CR_OK;
}

cr_status cr_worker_read_role(cr_worker *w, cr_worker_kind kind, const char *role,
                              const cr_words *words, bool is_quiet, cr_err *err)
{
    cr_diagnostics d = {0};
    cr_status status;

    *w = (cr_worker){.kind = kind, .num_ranks = 1};
    status = cr_config_load(words->word[0], words->word + 1, words->num - 1, &w->config, &d, err);
    if ((cr_world_kind_here() == CR_WORLD_LOCAL && !is_quiet) || status != CR_OK)
        cr_diagnostics_print(&d);
    cr_diagnostics_free(&d);
    CR_TRY(status);
    return find_role(w, words->word[0], role, err);
}

bool cr_worker_launch(const cr_worker *w, const cr_command *command, const cr_hosts_args *where,
                      int argc, char **argv, int *code)
{
    cr_err err = {0};

    if (cr_world_kind_here() == CR_WORLD_MPI) return false;
    if (w->num_ranks <= 1) {
        if (!where->list && !where->file) return false;
        cr_fail(&err, CR_EUSAGE,
                "--hosts: one rank runs on this host (device_mapping says how many there are)");
        *code = say(w, command, &err);
        return true;
    }
    if (cr_ranks_run(where, w->folder, w->num_ranks, w->kind == CR_WORKER_SERVE, argc, argv, code,
                     &err) != CR_OK)
        *code = say(w, command, &err);
    return true;
}

/* ---- opening ---- */

cr_dtype cr_worker_dtype(const cr_worker *w, const cr_model *model)
{
    return w->has_dtype ? cr_dtype_of(w->keys->dtype) : model->config.storage_dtype;
}

cr_status cr_worker_join(cr_worker *w, cr_err *err)
{
    cr_world_args args = {.kind = cr_world_kind_here(), .deadline_s = w->config.collective_timeout};

    CR_TRY(cr_ranks_join(err));
    CR_TRY(cr_world_open(&args, &w->world, err));
    w->rank = cr_world_rank(w->world);
    if (cr_world_num_ranks(w->world) != w->num_ranks)
        return cr_fail(err, CR_EUSAGE,
                       "mpirun started %d ranks, but device_mapping lists %d devices",
                       cr_world_num_ranks(w->world), w->num_ranks);
    return CR_OK;
}

static cr_status open_mesh(cr_worker *w, cr_err *err)
{
    int *ranks = CR_NEW_ARRAY(int, w->num_ranks);
    cr_mesh_shape shape;

    for (int i = 0; i < w->num_ranks; i++)
        ranks[i] = i;
    CR_TRY_GOTO(out, cr_mesh_shape_of(w->keys, w->num_ranks, &shape, err));
    CR_TRY_GOTO(out, cr_mesh_create(w->world, w->dev, w->keys->name, ranks, &shape, &w->mesh, err));
out:
    cr_free(ranks);
    return err->status;
}

static cr_status open_model(const cr_worker *w, const char *folder, cr_model **model, cr_err *err)
{
    CR_TRY(cr_model_open(folder, model, err));
    cr_experts_set(*model, w->kind == CR_WORKER_GENERATE ? NULL : w->keys);
    if (w->kind == CR_WORKER_GENERATE) return CR_OK;
    if (w->is_of_run) /* as its ranks do */
        return cr_model_prepare(*model, &w->config.train, false, err);
    return cr_model_prepare(*model, w->keys, true,
                            err); /* whose tower does not run: as it is stored */
}

cr_status cr_worker_load(const cr_worker *w, const char *folder, cr_model **model, cr_fsdp **fsdp,
                         cr_err *err)
{
    cr_fsdp_args args = cr_fsdp_args_of(w->keys, w->kind == CR_WORKER_TRAIN);

    *model = NULL;
    *fsdp = NULL;
    cr_note(open_model(w, folder, model, err));
    CR_TRY_GOTO(failed, cr_agree(w->mesh->group[CR_AXIS_ALL], "open the model", err));
    args.param_dtype = cr_worker_dtype(w, *model);
    if (args.param_dtype == CR_F16) args.loss_scale = 1024; /* one gradient: nothing to adapt to */
    args.source = folder;
    CR_TRY_GOTO(failed, cr_fsdp_create(*model, w->dev, w->mesh, &args, fsdp, err));
    return cr_fsdp_check_finite(*fsdp, err);
failed:
    cr_model_free(*model);
    *model = NULL;
    return err->status;
}

cr_status cr_device_open_to_compute(const char *name, int number, int num_threads, cr_device **out,
                                    cr_err *err)
{
    CR_TRY(cr_device_open_number(name, number, num_threads > 1 ? num_threads : 1, out, err));
    if (!cr_device_is_meta(*out)) return CR_OK;
    cr_device_close(*out);
    *out = NULL;
    return cr_fail(err, CR_EUSAGE, "device meta only counts, it has no numbers to answer with");
}

const char *cr_device_of_run(const cr_config *config)
{
    return cr_device_or(config->device);
}

bool cr_run_has_gpus(const cr_config *config)
{
    return cr_device_name_is_gpu(cr_device_of_run(config));
}

int cr_worker_num_here(const cr_worker *w)
{
    int num = 0;

    for (int r = 0; r < w->num_ranks; r++)
        num += cr_world_is_here(w->world, r);
    return num;
}

/* The number of its device that a rank asks for; device_mapping may say none. */
static int device_of(const cr_worker *w, int rank)
{
    return rank < w->keys->num_devices ? w->keys->devices[rank] : -1;
}

/* Ranks on this host whose devices are the same GPU. */
static int num_on_gpu(const cr_worker *w, int num_gpus)
{
    int own = device_of(w, w->rank), num = 0;

    for (int r = 0; r < w->num_ranks; r++)
        num += cr_world_is_here(w->world, r) && (device_of(w, r) - own) % num_gpus == 0;
    return num;
}

cr_status cr_worker_memory(const cr_worker *w, cr_device_memory *out, cr_err *err)
{
    int num;

    CR_TRY(cr_device_get_memory(w->dev, out, err));
    num = out->num_gpus ? num_on_gpu(w, out->num_gpus) : cr_worker_num_here(w);
    out->all_bytes /= num;
    out->free_bytes /= num;
    return CR_OK;
}

cr_status cr_worker_cache_bytes(const cr_device_memory *memory, int64_t most, int64_t least,
                                int64_t *out, cr_err *err)
{
    *out = memory->num_gpus && memory->free_bytes < most ? memory->free_bytes : most;
    if (*out >= least || !memory->num_gpus) return CR_OK;
    return cr_fail(err, CR_ECONFIG,
                   "the GPU has %lld bytes left for this rank, of %lld: %lld for a cache hold no "
                   "block of %lld (nvidia-smi shows who has the others)",
                   (long long)memory->free_bytes, (long long)memory->all_bytes, (long long)*out,
                   (long long)least);
}

/* The device, once this rank has its share of the cores of its host. */
static cr_status open_device(cr_worker *w, cr_err *err)
{
    int num_threads = 1, index = 0;

    for (int r = 0; r < w->rank; r++)
        index += cr_world_is_here(w->world, r);
    if (!cr_device_name_is_gpu(w->device))
        CR_TRY(cr_cores_take(w->keys->envs, index, cr_worker_num_here(w), &num_threads, err));
    return cr_device_open_to_compute(w->device, device_of(w, w->rank), num_threads, &w->dev, err);
}

cr_status cr_worker_open(cr_worker *w, const char *device, cr_err *err)
{
    w->device = device ? device : cr_device_of_run(&w->config);
    if (!w->world) CR_TRY(cr_worker_join(w, err));
    CR_TRY(open_device(w, err));
    CR_TRY(open_mesh(w, err));
    if (w->kind == CR_WORKER_SERVE) return CR_OK;
    if (w->kind != CR_WORKER_GENERATE)
        CR_TRY(cr_worker_load(w, w->folder, &w->model, &w->fsdp, err));
    else
        CR_TRY(open_model(w, w->folder, &w->model, err));
    w->dtype = cr_worker_dtype(w, w->model);
    if (w->kind != CR_WORKER_GENERATE) return CR_OK;
    return cr_full_weights_load(&w->full, w->model, w->dev, w->dtype, w->folder, err);
}

/* Rank 0 does, also for those of its host, which it hears of (cr_world_fail). */
static bool should_speak(const cr_worker *w, const cr_err *err)
{
    return w->rank == 0 || (err->status != CR_EPEER && !cr_world_is_here(w->world, 0));
}

int cr_worker_leave(cr_worker *w, const cr_command *command, int code, const cr_err *err)
{
    if (err->status != CR_OK) {
        if (w->world) cr_world_fail(w->world, err);
        if (w->rank != 0) /* mpirun ends all when one leaves with an error: rank 0 speaks first */
            cr_sleep_s(RANK_0_SPEAKS_S);
        code = should_speak(w, err) ? say(w, command, err) : cr_exit_code(err->status);
    }
    code = cr_ranks_leave(code);
    if (err->status != CR_OK && w->world && w->num_ranks > 1) {
        fflush(NULL);
        _exit(code); /* broken groups cannot be given back */
    }
    cr_fsdp_destroy(w->fsdp);
    cr_mesh_destroy(w->mesh);
    if (w->world) cr_world_close(w->world);
    cr_full_weights_fini(&w->full);
    cr_encoder_close(&w->encoder);
    cr_model_free(w->model);
    if (w->dev) cr_device_close(w->dev);
    cr_config_free(&w->config);
    *w = (cr_worker){0};
    return code;
}

/* ---- lines ---- */

cr_status cr_worker_need_tokenizer(cr_worker *w, cr_err *err)
{
    return cr_encoder_open(&w->encoder, w->folder, err);
}

static cr_status encode(void *ctx, const json_t *text, bool is_messages, int32_t **out, size_t *num,
                        cr_err *err)
{
    cr_worker *w = ctx;

    CR_TRY(cr_worker_need_tokenizer(w, err));
    return cr_encoder_encode(&w->encoder, text, is_messages, out, num, err);
}

cr_line_rules cr_worker_rules(cr_worker *w)
{
    const cr_model_config *c = &w->model->config;

    return (cr_line_rules){
        .encode = encode, .ctx = w, .vocab_size = c->vocab_size, .max_tokens = c->position_limit};
}

int64_t cr_line_pack(cr_packed *p, const cr_line *line)
{
    int32_t *rows = cr_packed_add(p, line->ids, line->num_ids);
    const int32_t *labels = line->labels ? line->labels : line->ids;
    int64_t num_labels = 0;

    for (size_t t = 0; t + 1 < line->num_ids; t++) {
        rows[t] = labels[t + 1];
        num_labels += rows[t] >= 0;
    }
    return num_labels;
}
