/* reshard.c -- see reshard.h. */
#include "plan/run/reshard.h"
#include "base/limits.h"
#include "configs/yaml/yaml.h"
#include "launch/device.h"
#include "plan/run/roles.h"
#include "reports/html.h"
#include "samples/roles.h"

cr_status cr_reshard_choose(cr_plan *p, int64_t limit, cr_err *err)
{
    cr_worker_config *w = &p->config.train;
    cr_plan_role role;

    if (!w->is_reshard_auto || limit == 0) return CR_OK;
    w->reshard_after_forward = 0;
    cr_note(cr_plan_train(p, &p->batch, &role, err));
    if (err->status == CR_OK) {
        p->kept_bytes = cr_plan_fullest(p, &role, NULL).bytes;
        if (p->kept_bytes <= limit / 10 * 9) {
            cr_plan_role_free(&p->role[0]);
            p->role[0] = role;
            return CR_OK;
        }
    }
    cr_plan_role_free(&role);
    w->reshard_after_forward = -1;
    return err->status;
}

static void write_key(cr_config *c, bool is_kept)
{
    char *dotted = cr_asprintf("%s.strategy_args.strategy_config", c->train.name);
    cr_node *n =
        cr_node_new(&c->yaml, is_kept ? CR_NODE_BOOL : CR_NODE_NULL, (cr_place){c->path, 0, 0});

    cr_node_set(&c->yaml, cr_node_at(c->yaml.root, dotted), "reshard_after_forward", n->place, n);
    cr_free(dotted);
}

void cr_reshard_fix(cr_config *config, bool is_one_host, const cr_device_memory *gpu)
{
    cr_plan p = {.path = config->path, .config = *config, .is_gpu = cr_run_has_gpus(config)};
    bool is_known = is_one_host && (!p.is_gpu || gpu->num_gpus);
    int64_t limit = 0;
    cr_layout layout;
    cr_err err = {0};
    char a[32], b[32];

    if (!config->train.is_reshard_auto) return;
    cr_layout_init(&layout, config);
    p.memory = p.is_gpu ? gpu->all_bytes : cr_memory_limit() / layout.num_ranks;
    if (is_known) limit = p.is_gpu ? gpu->free_bytes : p.memory;
    if (is_one_host) p.num_gpus = gpu->num_gpus;
    if (cr_plan_roles(&p, &err) == CR_OK && cr_reshard_choose(&p, limit, &err) != CR_OK)
        p.config.train.reshard_after_forward = -1;
    config->train.reshard_after_forward = p.config.train.reshard_after_forward;
    write_key(config, config->train.reshard_after_forward == 0);
    cr_log(CR_LOG_INFO, "run",
           "%s: reshard_after_forward auto is %s: with gathered weights the fullest device has %s "
           "of %s",
           config->train.name, config->train.reshard_after_forward == 0 ? "false" : "null",
           p.kept_bytes ? cr_size_text(p.kept_bytes, a) : "an unknown part",
           limit ? cr_size_text(limit, b) : "memory that is not known here");
    cr_plan_roles_free(&p);
}
