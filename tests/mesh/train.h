/* train.h -- a tiny model trained on some of the world's first ranks, as a plan says: shared by
 * strategies.c and modes.c. Every rank of the world calls train(); those outside wait at its end. */
#ifndef TRAIN_H
#define TRAIN_H

#include "tests/memory.h"
#include "tests/mesh/train_files.h"
#include "tests/mesh/train_steps.h"
#include "tests/mesh/train_wraps.h"

static void check_padding(const cr_fsdp *f)
{
    size_t num_bytes = (size_t)f->units.trained_shard.elems * sizeof(float);
    const cr_mem *of[] = {f->master, f->m, f->v, f->grad};
    float *x[CR_COUNT(of)];

    for (size_t k = 0; k < CR_COUNT(of); k++)
        x[k] = downloaded(cri_home(f), of[k], num_bytes);
    for (size_t i = 0; i < f->units.num; i++) {
        const cr_flat *flat = &f->units.unit[i].trained;
        bool *is_used = CR_NEW_ARRAY(bool, flat->shard_elems);
        int64_t begin, end, at, first = flat->first.elems;
        for (size_t k = 0; k < flat->num_params; k++)
            if (cri_shard_range(flat, k, cri_rank(f), &begin, &end, &at))
                memset(is_used + at, 1, (size_t)(end - begin));
        for (int64_t e = 0; e < flat->shard_elems; e++)
            for (size_t k = 0; k < CR_COUNT(of); k++)
                CR_CHECK(is_used[e] || x[k][first + e] == 0, "padding of %s is not zero",
                         f->units.unit[i].name);
        cr_free(is_used);
    }
    for (size_t k = 0; k < CR_COUNT(of); k++)
        cr_free(x[k]);
}

static bool is_away(const plan *p)
{
    return me >= p->away[0] && me < p->away[1];
}

static char *folder_of(const plan *p, const char *name)
{
    return cr_asprintf("%s/%s%s", folder, name, is_away(p) ? "-away" : "");
}

static void save_start(const plan *p, cr_fsdp *f, const char *name)
{
    char *path = folder_of(p, name);
    const cr_save_args args = {.folder = path,
                               .role = "actor_train",
                               .model_source = folder,
                               .kind = p->kind,
                               .is_here = !is_away(p),
                               .tag = "t"};

    OK(cr_fsdp_save_start(f, &args, &err));
    cr_free(path);
}

/* What was written is still known where the states have left the device before it is asked for. */
static void save(const plan *p, cr_fsdp *f, const char *name)
{
    bool is_lead = p->kind != CR_SAVE_EACH && me == (p->away[0] == 0 ? p->away[1] : 0);
    cr_saved saved;

    save_start(p, f, name);
    if (p->is_cycled) OK(cr_fsdp_offload(f, CR_STATE_ALL, &err));
    if (p->is_cycled) OK(cr_fsdp_load(f, CR_STATE_ALL, &err));
    OK(cr_fsdp_save_wait(f, &saved, &err));
    CR_CHECK((saved.num_bytes[3] > 0) == is_lead, "%s: %lld bytes of MODEL", p->name,
             (long long)saved.num_bytes[3]);
}

static void subtract(cr_traffic_count *a, const cr_traffic_count *b)
{
    a->num -= b->num;
    a->num_bytes -= b->num_bytes;
}

static cr_flight_count since(cr_coll coll, cr_flight_count before)
{
    cr_flight_count now = cr_flight_get_count(world, coll);

    now.num -= before.num;
    now.num_bytes -= before.num_bytes;
    return now;
}

static void measure_units(const cr_fsdp *f, result *r)
{
    r->num_units = f->units.num;
    for (size_t i = 0; i < f->units.num; i++) {
        const cr_unit *u = &f->units.unit[i];
        r->units[i] =
            (cr_unit_size){u->trained.padded_elems, u->frozen.padded_elems,
                           u->trained.shard_elems,  strcmp(u->module->cls, "Embedding") == 0,
                           u->trained.is_fp32,      u->module->layer};
    }
}

static void train_steps(const plan *p, cr_fsdp *f, int rank, result *r)
{
    for (int s = p->first; s < p->last; s++) {
        cr_flight_count gathers = cr_flight_get_count(world, CR_COLL_ALL_GATHER),
                        reduces = cr_flight_get_count(world, CR_COLL_REDUCE_SCATTER),
                        all_reduces = cr_flight_get_count(world, CR_COLL_ALL_REDUCE);
        loss_ctx l = {.is_inf = s == p->inf_step && rank == p->ranks - 1};
        cr_traffic traffic;
        cr_update update;
        if (p->is_async && s == p->last - 1) {
            save(p, f, "now");
            save_start(p, f, "background");
        }
        traffic = cr_fsdp_get_stats(f).traffic;
        step_grads(p, f, rank, s, &l, r);
        OK(cr_all_reduce_f64(f->mesh->group[CR_AXIS_ALL], "loss", CR_OP_SUM, &l.sum, 1, &err));
        if (s == p->first && p->first == 0 && p->inf_step < 0) {
            double norm;
            OK(cr_fsdp_visit_grads(f, keep_grad, r, &norm, &err));
        }
        OK(cr_fsdp_update(f, p->lr > 0 ? p->lr : s % 2 ? 3e-3 : 2e-3, &update, &err));
        r->loss_scale[s] = update.loss_scale;
        r->traffic = cr_fsdp_get_stats(f).traffic;
        subtract(&r->traffic.gathers, &traffic.gathers);
        subtract(&r->traffic.reduces, &traffic.reduces);
        subtract(&r->traffic.all_reduces, &traffic.all_reduces);
        r->loss[s] = l.sum;
        r->norm[s] = update.grad_norm;
        r->is_skipped[s] = update.is_skipped;
        r->gathers = since(CR_COLL_ALL_GATHER, gathers);
        r->reduces = since(CR_COLL_REDUCE_SCATTER, reduces);
        r->all_reduces = since(CR_COLL_ALL_REDUCE, all_reduces);
    }
}

static result train(plan p)
{
    cr_fsdp_args args = {.is_train = true,
                         .param_dtype = p.dtype,
                         .reduce_dtype = p.reduce,
                         .reshard = p.reshard,
                         .reshard_ranks = p.reshard_ranks,
                         .is_reduced_once = p.is_reduced_once,
                         .is_offloaded = p.is_offloaded,
                         .master_dtype = p.master,
                         .optimizer = p.optimizer,
                         .loss_scale = p.loss_scale,
                         .loss_scale_interval = 2,
                         .wrap = p.wrap,
                         .should_recompute = !p.is_recomputed_off,
                         .seed = 11,
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .weight_decay = 0.1,
                         .max_grad_norm = 0.5};
    int ranks[RANKS] = {0, 1, 2, 3};
    cr_model *model = NULL;
    cr_device *dev = NULL;
    cr_mesh *mesh = NULL;
    cr_mesh_shape shape;
    cr_fsdp *f = NULL;
    result r = {0};

    if (p.fsdp == 0) p.fsdp = p.ranks;
    if (me < p.ranks) {
        OK(cr_device_open(cr_device_default(), 1, &dev, &err));
        model = make_model(&p);
        OK(cr_mesh_shape_init(&shape, p.ranks, p.fsdp, 1, 1, 0, &err));
        OK(cr_mesh_create(world, dev, "actor_train", ranks, &shape, &mesh, &err));
        OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
        if (p.resume) {
            char *path = folder_of(&p, p.resume);
            OK(cr_fsdp_resume(f, path, "actor_train", !is_away(&p), &err));
            CR_CHECK(cr_fsdp_num_updates(f) == p.first, "%lld updates",
                     (long long)cr_fsdp_num_updates(f));
            cr_free(path);
        }
        r.model = model;
        measure_units(f, &r);
        train_steps(&p, f, me, &r);
        r.stats = cr_fsdp_get_stats(f);
        if (p.master == CR_F32 && !p.optimizer.muon.is_on) check_padding(f);
        if (p.is_async) OK(cr_fsdp_save_wait(f, NULL, &err));
        if (p.save) save(&p, f, p.save);
        cr_fsdp_destroy(f);
        cr_mesh_destroy(mesh);
        cr_model_free(model);
        cr_device_close(dev);
    }
    OK(cr_barrier(everyone, p.name, &err));
    return r;
}

#endif
