/* cores.c -- threads and cores of the ranks of a plan (hosts.h): the shares of launch/cores, host by host. */
#include "launch/cores/cores.h"
#include "plan/run/hosts.h"
#include "samples/roles.h"

/* Ranks of a role on host `host`; without hosts all are here. */
static int count_ranks(const cr_plan *p, const struct cr_role_ranks *role, int host)
{
    int num = 0;

    for (int i = 0; i < role->num; i++)
        num += !p->hosts.num || p->hosts.all_hosts[role->first + i] == host;
    return num;
}

/* Does every role have as many ranks on host a as on host b? */
static bool is_alike(const cr_plan *p, const cr_layout *layout, int a, int b)
{
    for (int r = 0; r < CR_NUM_ROLES; r++)
        if (count_ranks(p, &layout->role[r], a) != count_ranks(p, &layout->role[r], b))
            return false;
    return true;
}

static cr_status show_host(const cr_plan *p, const cr_layout *layout, const cr_topology *t,
                           int host, cr_buf *rows, cr_buf *json, cr_err *err)
{
    for (int r = 0; r < CR_NUM_ROLES; r++) {
        const struct cr_role_ranks *role = &layout->role[r];
        int num = count_ranks(p, role, host);
        cr_cores_wish wish;
        if (num == 0) continue;
        CR_TRY(cr_cores_wish_read(role->worker->envs, &wish, err));
        cr_cores_row(t, &wish, role->name, num, rows);
        cr_cores_json(t, &wish, role->name, num, json);
    }
    return CR_OK;
}

/* Hosts in a row that have the same ranks are one part of the table. */
static cr_status show(cr_plan *p, const cr_topology *t, cr_buf *rows, cr_buf *json, cr_err *err)
{
    cr_layout layout;
    int num_hosts = p->hosts.num ? p->hosts.num : 1;

    cr_layout_init(&layout, &p->config);
    cr_buf_adds(rows, "cores    ");
    cr_topology_text(t, rows);
    cr_buf_addc(rows, '\n');
    cr_cores_row(t, &(cr_cores_wish){0}, NULL, 0, rows);
    for (int h = 0, end; h < num_hosts; h = end) {
        for (end = h + 1; end < num_hosts && is_alike(p, &layout, h, end);)
            end++;
        if (end > h + 1)
            cr_buf_addf(rows, "  on hosts %d to %d\n", h + 1, end);
        else if (p->hosts.num)
            cr_buf_addf(rows, "  on host %d\n", h + 1);
        cr_buf_addf(json, "%s{\"first_host\":%d,\"last_host\":%d,\"shares\":[", h ? "," : "", h + 1,
                    end);
        CR_TRY(show_host(p, &layout, t, h, rows, json, err));
        cr_buf_adds(json, "]}");
    }
    return CR_OK;
}

cr_status cr_plan_cores_open(cr_plan *p, const cr_plan_options *o, cr_err *err)
{
    cr_buf rows = {0}, json = {0};
    cr_topology t = {0};

    if (p->is_gpu || (p->hosts.num && !o->topology))
        return o->topology ? cr_fail(err, CR_EUSAGE, "--topology is of a plan for CPUs") : CR_OK;
    if (cr_topology_read(o->topology, &t, err) == CR_OK &&
        show(p, &t, &rows, &json, err) == CR_OK) {
        p->cores = cr_strndup(rows.data, rows.num_bytes);
        p->cores_json = cr_strndup(json.data, json.num_bytes);
    }
    cr_topology_free(&t);
    cr_buf_free(&rows);
    cr_buf_free(&json);
    return err->status;
}
