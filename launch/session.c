/* session.c -- MODEL and worker keys to a model that is ready to run (see session.h). */
#include "launch/session.h"
#include "base/children.h"
#include "kernels/memory.h"
#include "launch/cores/cores.h"
#include "launch/device.h"
#include "launch/last_words.h"
#include "launch/ranks.h"
#include "mesh/collectives.h"
#include "mesh/mesh.h"
#include "models/files/peft.h"
#include "models/models.h"
#include "models/weights.h"
#include "samples/roles.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { GENERATE_BATCH = 256 }; /* samples at a time, if infer_batch_size is not given */

/* ---- worker keys ---- */

static bool is_key(const char *word, const char *key)
{
    size_t num = strlen(key);

    return strncmp(word, key, num) == 0 && word[num] == '=';
}

cr_status cr_session_read(cr_session *s, cr_session_kind kind, const cr_words *words, cr_err *err)
{
    cr_diagnostics d = {0};
    bool has_batch_size = false;
    cr_status status;

    *s = (cr_session){.kind = kind, .num_ranks = 1};
    if (words->num == 0) return cr_fail(err, CR_EUSAGE, "MODEL is missing (a folder)");
    s->folder = words->word[0];
    for (size_t i = 1; i < words->num; i++) {
        if (!strchr(words->word[i], '='))
            return cr_fail(err, CR_EUSAGE, "'%s' is not key=value", words->word[i]);
        has_batch_size |= is_key(words->word[i], "infer_batch_size");
        s->has_dtype |= is_key(words->word[i], "model_args.dtype") ||
                        is_key(words->word[i], "strategy_args.strategy_config.param_dtype");
    }
    status = cr_config_worker(kind == CR_SESSION_TRAIN ? "actor_train" : "reference", s->folder,
                              words->word + 1, words->num - 1, &s->config, &d, err);
    if (cr_world_kind_here() == CR_WORLD_LOCAL || status != CR_OK) cr_diagnostics_print(&d);
    cr_diagnostics_free(&d);
    CR_TRY(status);
    s->keys = &s->config.train;
    if (s->keys->num_devices > 1) s->num_ranks = s->keys->num_devices;
    s->batch_size = s->keys->infer_batch_size;
    if (kind == CR_SESSION_TRAIN) s->batch_size = s->keys->training.per_device_train_batch_size;
    if (kind == CR_SESSION_GENERATE && !has_batch_size) s->batch_size = GENERATE_BATCH;
    if (kind == CR_SESSION_GENERATE && s->keys->ulysses_size > 1)
        return cr_fail(err, CR_EUSAGE,
                       "M11: ulysses_size %lld is for training and log-probs only (use 1)",
                       (long long)s->keys->ulysses_size);
    if (kind == CR_SESSION_GENERATE && (s->keys->fsdp_size > 1 || s->keys->ep_size > 1))
        return cr_fail(
            err, CR_EUSAGE,
            "each rank that generates has the whole model: fsdp_size and ep_size have no "
            "effect (leave them out)");
    return CR_OK;
}

/* Over hosts, and before the world is open, with the rank and its host; CR_EPEER names another rank already. */
static cr_err with_rank(const cr_session *s, const cr_err *err)
{
    bool is_one_host =
        s->world ? !cr_world_spans_hosts(s->world) : cr_world_kind_here() == CR_WORLD_LOCAL;
    cr_err said = *err;

    if (!is_one_host && err->status != CR_OK && err->status != CR_EPEER)
        cr_fail_add(&said, "rank %d on %s", cr_world_rank_here(), cr_host_name());
    return said;
}

static int code_of(const cr_session *s, const cr_err *err)
{
    return cr_exit_code(s->kind == CR_SESSION_SERVE && err->status == CR_EPEER ? CR_ETIMEOUT
                                                                               : err->status);
}

static int say(const cr_session *s, const cr_command *command, const cr_err *err)
{
    const cr_err said = with_rank(s, err);

    cr_command_fail(command, &said);
    return code_of(s, err);
}

/* The role's block of a file that was loaded. */
static cr_status find_role(cr_session *s, const char *file, const char *role, cr_err *err)
{
    cr_config *c = &s->config;

    const cr_reward_config *judged = NULL;

    for (int r = 0; r < CR_NUM_ROLES; r++)
        if (strcmp(cr_role_kinds[r].name, role) == 0) s->keys = cr_role_worker((cr_role)r, c);
    if (strncmp(role, CR_ROLE_REWARDS, strlen(CR_ROLE_REWARDS)) == 0) {
        judged = cr_config_find_reward(c, role + strlen(CR_ROLE_REWARDS));
        if (!judged || !(judged->judge_model.is_given || judged->model.is_given))
            return cr_fail(err, CR_ECONFIG,
                           "%s: %s is no domain with judge_model_type: inference, nor with a "
                           "reward model",
                           file, role);
        s->keys = judged->model.is_given ? &judged->model : &judged->judge_model;
        s->options.head = cr_model_options_of(s->keys, false).head;
    }
    CR_CHECK(s->keys, "no role %s", role);
    if (!s->keys->is_given)
        return cr_fail(err, CR_ECONFIG, "%s has no block %s (--role says which one)", file, role);
    if (s->keys->service.url)
        return cr_fail(err, CR_ECONFIG,
                       "%s: %s is a service already, at %s: start that one with its model's folder",
                       file, role, s->keys->service.url);
    if (!s->keys->model_path) return cr_fail(err, CR_ECONFIG, "%s: %s has no model", file, role);
    cr_envs_set(c->envs);
    cr_envs_set(s->keys->envs);
    s->folder = s->keys->model_path;
    s->has_dtype = true;
    s->is_of_run = !judged;
    s->batch_size = s->keys->infer_batch_size;
    if (s->keys->num_devices > 1 && !judged) s->num_ranks = s->keys->num_devices;
    return CR_OK;
}

cr_status cr_session_read_role(cr_session *s, cr_session_kind kind, const char *role,
                               const cr_words *words, bool is_quiet, cr_err *err)
{
    cr_diagnostics d = {0};
    cr_status status;

    *s = (cr_session){.kind = kind, .num_ranks = 1};
    status = cr_config_load(words->word[0], words->word + 1, words->num - 1, &s->config, &d, err);
    if ((cr_world_kind_here() == CR_WORLD_LOCAL && !is_quiet) || status != CR_OK)
        cr_diagnostics_print(&d);
    cr_diagnostics_free(&d);
    CR_TRY(status);
    return find_role(s, words->word[0], role, err);
}

void cr_session_adapt(cr_session *s, const char *const *folders, size_t num)
{
    cr_adapter_options *at = &s->options.adapters;

    s->more = CR_NEW_ARRAY(cr_adapter_options, num);
    for (size_t i = 0; i < num; i++) {
        if (s->folder && cr_world_kind_here() == CR_WORLD_LOCAL)
            cr_peft_compare_base(folders[i], s->folder);
        if (i) at->next = &s->more[i - 1];
        if (i) at = &s->more[i - 1];
        *at = (cr_adapter_options){.folder = folders[i],
                                   .keeps_originals =
                                       s->kind == CR_SESSION_SERVE, /* the base is a model, too */
                                   .dropout = -1};
    }
}

bool cr_session_launch(const cr_session *s, const cr_session_call *call, int *code)
{
    const cr_hosts_args *where = &call->hosts;
    cr_err err = {0};

    if (cr_world_kind_here() == CR_WORLD_MPI) return false;
    if (s->num_ranks <= 1) {
        if (!where->list && !where->file) return false;
        cr_fail(&err, CR_EUSAGE,
                "--hosts: one rank runs on this host (device_mapping says how many there are)");
        *code = say(s, call->command, &err);
        return true;
    }
    if (cr_ranks_run(where, s->folder, s->num_ranks, s->kind == CR_SESSION_SERVE, call->argc,
                     call->argv, code, &err) != CR_OK)
        *code = say(s, call->command, &err);
    return true;
}

/* ---- opening ---- */

cr_dtype cr_session_dtype(const cr_session *s, const cr_model *model)
{
    return s->has_dtype ? cr_dtype_of(s->keys->dtype) : model->config.storage_dtype;
}

cr_status cr_session_join(cr_session *s, cr_err *err)
{
    cr_world_args args = {.kind = cr_world_kind_here(), .deadline_s = s->config.collective_timeout};

    CR_TRY(cr_ranks_join(err));
    CR_TRY(cr_world_open(&args, &s->world, err));
    s->rank = cr_world_rank(s->world);
    if (cr_world_num_ranks(s->world) != s->num_ranks)
        return cr_fail(err, CR_EUSAGE,
                       "mpirun started %d ranks, but device_mapping lists %d devices",
                       cr_world_num_ranks(s->world), s->num_ranks);
    return CR_OK;
}

static cr_status open_mesh(cr_session *s, cr_err *err)
{
    int *ranks = CR_NEW_ARRAY(int, s->num_ranks);
    cr_mesh_shape shape;

    for (int i = 0; i < s->num_ranks; i++)
        ranks[i] = i;
    CR_TRY_GOTO(out, cr_mesh_shape_of(s->keys, s->num_ranks, &shape, err));
    CR_TRY_GOTO(out, cr_mesh_create(s->world, s->dev, s->keys->name, ranks, &shape, &s->mesh, err));
out:
    cr_free(ranks);
    return err->status;
}

static cr_status open_model(const cr_session *s, const char *folder, cr_model **model, cr_err *err)
{
    const cr_model_options of_keys = cr_model_options_of(s->keys, false), *options = &s->options;

    if (s->kind == CR_SESSION_TRAIN && !cr_has_adapters(&options->adapters)) options = &of_keys;
    CR_TRY(cr_model_open_with(folder, options, model, err));
    cr_experts_set(*model, s->kind == CR_SESSION_GENERATE ? NULL : s->keys);
    if (s->kind == CR_SESSION_GENERATE) return CR_OK;
    if (s->is_of_run) /* as its ranks do */
        return cr_model_prepare(*model, &s->config.train, false, err);
    return cr_model_prepare(*model, s->keys, true,
                            err); /* whose tower does not run: as it is stored */
}

cr_status cr_session_load(const cr_session *s, const char *folder, cr_model **model, cr_fsdp **fsdp,
                          cr_err *err)
{
    cr_fsdp_args args = cr_fsdp_args_of(s->keys, s->kind == CR_SESSION_TRAIN);

    *model = NULL;
    *fsdp = NULL;
    cr_note(open_model(s, folder, model, err));
    CR_TRY_GOTO(failed, cr_agree(s->mesh->group[CR_AXIS_ALL], "open the model", err));
    args.param_dtype = cr_session_dtype(s, *model);
    if (args.param_dtype == CR_F16) args.loss_scale = 1024; /* one gradient: nothing to adapt to */
    args.source = folder;
    CR_TRY_GOTO(failed, cr_fsdp_create(*model, s->dev, s->mesh, &args, fsdp, err));
    return cr_fsdp_check_finite(*fsdp, err);
failed:
    cr_model_free(*model);
    *model = NULL;
    return err->status;
}

int cr_session_num_here(const cr_session *s)
{
    int num = 0;

    for (int r = 0; r < s->num_ranks; r++)
        num += cr_world_is_here(s->world, r);
    return num;
}

/* The number of its device that a rank asks for; device_mapping may say none. */
static int device_of(const cr_session *s, int rank)
{
    const int at = rank + s->first_device;

    return at < s->keys->num_devices ? s->keys->devices[at] : -1;
}

/* Ranks on this host whose devices are the same GPU. */
static int num_on_gpu(const cr_session *s, int num_gpus)
{
    int own = device_of(s, s->rank), num = 0;

    for (int r = 0; r < s->num_ranks; r++)
        num += cr_world_is_here(s->world, r) && (device_of(s, r) - own) % num_gpus == 0;
    return num;
}

cr_status cr_session_memory(const cr_session *s, cr_device_memory *out, cr_err *err)
{
    int num;

    CR_TRY(cr_device_get_memory(s->dev, out, err));
    num = out->num_gpus ? num_on_gpu(s, out->num_gpus) : cr_session_num_here(s);
    out->all_bytes /= num;
    out->free_bytes /= num;
    return CR_OK;
}

cr_status cr_session_cache_bytes(const cr_device_memory *memory, int64_t max, int64_t min,
                                 int64_t *out, cr_err *err)
{
    *out = memory->num_gpus && memory->free_bytes < max ? memory->free_bytes : max;
    if (*out >= min || !memory->num_gpus) return CR_OK;
    return cr_fail(err, CR_ECONFIG,
                   "the GPU has %lld bytes left for this rank, of %lld: %lld for a cache hold no "
                   "block of %lld (nvidia-smi shows who has the others)",
                   (long long)memory->free_bytes, (long long)memory->all_bytes, (long long)*out,
                   (long long)min);
}

/* The device, once this rank has its share of the cores of its host. */
static cr_status open_device(cr_session *s, cr_err *err)
{
    int num_threads = 1, index = 0;

    for (int r = 0; r < s->rank; r++)
        index += cr_world_is_here(s->world, r);
    if (!cr_device_name_is_gpu(s->device))
        CR_TRY(cr_cores_take(s->keys->envs, index, cr_session_num_here(s), &num_threads, err));
    return cr_device_open_to_compute(s->device, device_of(s, s->rank), num_threads, &s->dev, err);
}

cr_status cr_session_open(cr_session *s, const char *device, cr_err *err)
{
    s->device = device ? device : cr_device_of_run(&s->config);
    if (!s->world) CR_TRY(cr_session_join(s, err));
    CR_TRY(open_device(s, err));
    CR_TRY(open_mesh(s, err));
    if (s->kind == CR_SESSION_SERVE) return CR_OK;
    if (s->kind != CR_SESSION_GENERATE)
        CR_TRY(cr_session_load(s, s->folder, &s->model, &s->fsdp, err));
    else
        CR_TRY(open_model(s, s->folder, &s->model, err));
    s->dtype = cr_session_dtype(s, s->model);
    if (s->kind != CR_SESSION_GENERATE) return CR_OK;
    return cr_full_weights_load(&s->full, s->model, s->dev, s->dtype, s->folder, err);
}

/* A rank but 0 has failed: rank 0, if that is reported to it, reports to its launcher, which then ends all. */
static void leave_to_rank_0(const cr_session *s, const cr_command *command, const cr_err *err)
{
    bool is_beside_0 = cr_world_is_here(s->world, 0);

    if (is_beside_0 || s->mesh) cr_last_words_stay();
    if (!is_beside_0 && err->status != CR_EPEER) say(s, command, err);
}

void cr_session_close(cr_session *s)
{
    cr_fsdp_destroy(s->fsdp);
    cr_mesh_destroy(s->mesh);
    if (s->world) cr_world_close(s->world);
    cr_full_weights_fini(&s->full);
    cr_encoder_close(&s->encoder);
    cr_model_free(s->model);
    if (s->dev) cr_device_close(s->dev);
    cr_config_free(&s->config);
    cr_free(s->more);
    *s = (cr_session){0};
}

int cr_session_leave(cr_session *s, const cr_command *command, int code, const cr_err *err)
{
    const bool has_failed = err->status != CR_OK;
    const cr_err said = with_rank(s, err);

    if (has_failed && s->world) cr_world_fail(s->world, err);
    if (has_failed) code = code_of(s, err);
    fflush(stdout); /* before the launcher's sentence */
    if (cr_ranks_leave(code, &said))
        code = 0;
    else if (has_failed && s->rank == 0)
        cr_command_fail(command, &said);
    else if (has_failed)
        leave_to_rank_0(s, command, err);
    if (has_failed && s->world && s->num_ranks > 1) {
        fflush(NULL);
        _exit(code); /* broken groups cannot be given back */
    }
    cr_session_close(s);
    return code;
}

/* ---- lines ---- */

cr_status cr_session_need_tokenizer(cr_session *s, cr_err *err)
{
    return cr_encoder_open(&s->encoder, s->folder, err);
}

static cr_status encode(void *ctx, const json_t *text, bool is_messages, int32_t **out, size_t *num,
                        cr_err *err)
{
    cr_session *s = ctx;

    CR_TRY(cr_session_need_tokenizer(s, err));
    return cr_encoder_encode(&s->encoder, text, is_messages, out, num, err);
}

cr_line_rules cr_session_rules(cr_session *s)
{
    const cr_model_config *c = &s->model->config;

    return (cr_line_rules){
        .encode = encode, .ctx = s, .vocab_size = c->vocab_size, .max_tokens = c->position_limit};
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
