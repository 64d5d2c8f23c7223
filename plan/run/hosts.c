/* hosts.c -- see hosts.h. */
#include "plan/run/hosts.h"
#include "launch/placement.h"
#include "samples/roles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 65536, MAX_NUMBER = 1000000 }; /* of a device: configs/devices.c */

/* ---- the hosts ---- */

/* Ranks that share a device, at most. */
static int ranks_a_device(const cr_plan *p)
{
    int num[CR_NUM_ROLES] = {0}, max = 1;
    cr_layout layout;

    cr_layout_init(&layout, &p->config);
    for (int r = 0; r < CR_NUM_ROLES; r++)
        for (int s = 0; s < CR_NUM_ROLES; s++) {
            const cr_worker_config *a = layout.role[r].worker, *b = layout.role[s].worker;
            if (layout.role[r].num == 0 || layout.role[s].num == 0) continue;
            num[r] += a->devices[0] <= b->devices[b->num_devices - 1] &&
                      b->devices[0] <= a->devices[a->num_devices - 1];
        }
    for (int r = 0; r < CR_NUM_ROLES; r++)
        if (num[r] > max) max = num[r];
    return max;
}

/* Devices that roles name, each once. */
static int num_named(const cr_plan *p)
{
    bool *is_named = CR_NEW_ARRAY(bool, MAX_NUMBER + 1);
    cr_layout layout;
    int num = 0;

    cr_layout_init(&layout, &p->config);
    for (int r = 0; r < CR_NUM_ROLES; r++)
        for (int i = 0; i < layout.role[r].num; i++) {
            bool *named = &is_named[layout.role[r].worker->devices[i]];
            num += !*named;
            *named = true;
        }
    cr_free(is_named);
    return num;
}

/* "128x8": *list as cr_hosts_choose takes it, owned by the caller; NULL: it is not of that form. */
static cr_status read_shape(const cr_plan *p, const char *text, char **list, int *devices,
                            cr_err *err)
{
    char *end = NULL;
    long num = strtol(text, &end, 10),
         each = end != text && *end == 'x' ? strtol(end + 1, &end, 10) : 0;
    int ranks = ranks_a_device(p), named = num_named(p);
    cr_buf out = {0};

    *list = NULL;
    if (text[strspn(text, "-0123456789x")] || !strchr(text, 'x')) return CR_OK;
    if (*end || num < 1 || each < 1 || num > MAX_DEVICES || each > MAX_DEVICES / num)
        return cr_fail(err, CR_EUSAGE, "--hosts %.40s: hosts x devices, 1x1 to %d devices in all",
                       text, MAX_DEVICES);
    if (named > num * each)
        return cr_fail(err, CR_ECONFIG,
                       "--hosts %.40s: %ld devices, device_mapping of the roles names %d", text,
                       num * each, named);
    for (long i = 0; i < num; i++)
        cr_buf_addf(&out, "%sh%ld:%ld", i ? "," : "", i + 1, each * ranks);
    *list = cr_strndup(out.data, out.num_bytes);
    *devices = (int)each;
    cr_buf_free(&out);
    return CR_OK;
}

typedef cr_status reader(const char *text, size_t num_bytes, const char *path, cr_rates *rates,
                         cr_err *err);

static cr_status read_rates(const char *path, reader *read, cr_rates *rates, cr_err *err)
{
    cr_buf text = {0};

    if (cr_file_read(path, &text, err) == CR_OK)
        cr_note(read(text.data, text.num_bytes, path, rates, err));
    cr_buf_free(&text);
    return err->status;
}

/* --link, or what a run in this output_dir has measured. */
static cr_status find_link(const cr_plan *p, const char *link, cr_rates *rates, cr_err *err)
{
    char *path;

    if (link) {
        snprintf(rates->link.source, sizeof rates->link.source, "--link");
        return cr_rate_read(link, "--link", &rates->link.per_s, err);
    }
    path = cr_asprintf("%s/hosts.json", p->config.output_dir);
    if (cr_file_exists(path)) cr_note(read_rates(path, cr_rates_read_links, rates, err));
    cr_free(path);
    return err->status;
}

static cr_status choose(cr_plan *p, const cr_plan_options *o, cr_err *err)
{
    cr_plan_hosts *h = &p->hosts;
    cr_hosts_args args = {o->hosts, o->hostfile};
    cr_layout layout;
    cr_hosts hosts;
    char *list = NULL;

    if (o->hosts) CR_TRY(read_shape(p, o->hosts, &list, &h->num_devices, err));
    if (list) args.list = list;
    cr_layout_init(&layout, &p->config);
    cr_note(cr_hosts_choose(&args, layout.num_ranks, &hosts, err));
    cr_free(list);
    CR_TRY(err->status);
    CR_TRY_GOTO(
        out, cr_placement_make(&hosts, &layout, p->is_gpu,
                               h->num_devices ? h->num_devices : p->config.num_gpus_per_node, err));
    h->num = (int)hosts.num;
    h->table = cr_placement_table(&hosts, &layout);
    h->all_hosts = CR_NEW_ARRAY(int, layout.num_ranks);
    memcpy(h->all_hosts, hosts.host_of, (size_t)layout.num_ranks * sizeof(int));
    h->num_idle = h->num;
    for (int i = 0; i < h->num; i++)
        for (int r = 0; r < layout.num_ranks; r++)
            if (hosts.host_of[r] == i) {
                h->num_idle--;
                break;
            }
out:
    cr_hosts_free(&hosts);
    return err->status;
}

/* The allocation, as `croll run` takes it. What a run would refuse is no reason to plan nothing. */
static void use_job(cr_plan *p, const cr_plan_options *o)
{
    cr_err why = {0};

    if (choose(p, o, &why) != CR_OK)
        cr_log(CR_LOG_WARN, "plan", "without hosts (--hosts 2x8 names some): %s", why.msg);
}

cr_status cr_plan_hosts_open(cr_plan *p, const cr_plan_options *o, cr_err *err)
{
    cr_plan_hosts *h = &p->hosts;
    const char *device = o->device ? o->device : p->config.device;
    bool is_asked = o->hosts || o->hostfile;
    int64_t memory = 0;

    p->is_gpu = strcmp(device, "cpu") != 0;
    if (!p->is_gpu && p->num_gpus)
        return cr_fail(err, CR_EUSAGE,
                       "--gpus %lld: of a plan with --device cuda (or h100, ..), or of a file with "
                       "device: cuda",
                       (long long)p->num_gpus);
    if (is_asked)
        CR_TRY(choose(p, o, err));
    else if (p->world == 0 && getenv("SLURM_JOB_ID"))
        use_job(p, o);
    if (!h->num && (o->link || o->rates))
        return cr_fail(err, CR_EUSAGE,
                       "--link and --rates are of a plan with --hosts (as --hosts 16x8)");
    if (p->is_gpu && strcmp(device, "cuda") != 0)
        CR_TRY(cr_rates_of_device(device, &h->rates, &memory, err));
    if (p->memory == 0) p->memory = memory;
    if (!h->num) return CR_OK;
    if (o->rates) CR_TRY(read_rates(o->rates, cr_rates_read, &h->rates, err));
    return find_link(p, o->link, &h->rates, err);
}

void cr_plan_hosts_place(cr_plan *p)
{
    cr_plan_hosts *h = &p->hosts;
    cr_layout layout;

    if (!h->num) return;
    cr_layout_init(&layout, &p->config);
    h->host_of = CR_NEW_ARRAY(int *, p->num_roles);
    for (size_t r = 0; r < p->num_roles; r++) {
        h->host_of[r] = CR_NEW_ARRAY(int, p->worker[r]->num_devices); /* of a judge: the first */
        for (int k = 0; k < CR_NUM_ROLES; k++)
            if (layout.role[k].worker == p->worker[r])
                memcpy(h->host_of[r], h->all_hosts + layout.role[k].first,
                       (size_t)layout.role[k].num * sizeof(int));
    }
}

void cr_plan_hosts_free(cr_plan *p)
{
    for (size_t r = 0; p->hosts.host_of && r < p->num_roles; r++)
        cr_free(p->hosts.host_of[r]);
    cr_free(p->hosts.host_of);
    cr_free(p->hosts.all_hosts);
    cr_free(p->hosts.table);
    cr_free(p->hosts.choice);
    cr_free(p->cores);
    cr_free(p->cores_json);
}
