/* placement.c -- see placement.h. */
#include "launch/placement.h"

#include <string.h>

enum { NUM_SIZES = 4 };

/* How many neighbours stay together, best first. */
static void sizes_of(const struct cr_role_ranks *role, int sizes[NUM_SIZES])
{
    const cr_worker_config *w = role->worker;
    int fsdp = w->fsdp_size > 1 && w->fsdp_size < role->num ? (int)w->fsdp_size : role->num,
        ulysses = w->ulysses_size > 1 && w->ulysses_size < role->num ? (int)w->ulysses_size : 1;
    const int wanted[NUM_SIZES] = {role->num, fsdp, ulysses, 1};

    for (int i = 0; i < NUM_SIZES; i++)
        sizes[i] = w->task == CR_TASK_GENERATE ? 1 : wanted[i];
}

/* The first host that takes num ranks, or -1. */
static int find_room(const cr_hosts *hosts, const int *num_used, int num)
{
    for (size_t i = 0; i < hosts->num; i++)
        if (hosts->host[i].num_ranks - num_used[i] >= num) return (int)i;
    return -1;
}

static void place_role(const cr_hosts *hosts, const struct cr_role_ranks *role, int *num_used,
                       int *host_of)
{
    int sizes[NUM_SIZES];

    if (role->num == 0) return;
    sizes_of(role, sizes);
    for (int r = 0, num; r < role->num; r += num) {
        int host = -1;
        num = 0;
        for (int i = 0; i < NUM_SIZES && host < 0; i++) {
            num = sizes[i];
            if (r % num == 0 && r + num <= role->num) host = find_room(hosts, num_used, num);
        }
        CR_CHECK(host >= 0, "no room for %s rank %d", role->name, r);
        num_used[host] += num;
        for (int k = 0; k < num; k++)
            host_of[role->first + r + k] = host;
    }
}

void cr_placement_make(cr_hosts *hosts, const cr_layout *layout)
{
    int *num_used = CR_NEW_ARRAY(int, hosts->num), *host_of = CR_NEW_ARRAY(int, layout->num_ranks);

    for (int engines = 0; engines < 2; engines++)
        for (int r = 0; r < CR_NUM_ROLES; r++)
            if (layout->role[r].num &&
                (layout->role[r].worker->task == CR_TASK_GENERATE) == (engines == 1))
                place_role(hosts, &layout->role[r], num_used, host_of);
    cr_hosts_place(hosts, host_of, layout->num_ranks);
    cr_free(num_used);
    cr_free(host_of);
}

char *cr_placement_text(const cr_hosts *hosts, const cr_layout *layout, cr_role role)
{
    const struct cr_role_ranks *ranks = &layout->role[role];
    const int *host_of = hosts->host_of + ranks->first;
    cr_buf text = {0};
    char *out;

    for (int r = 0, end; r < ranks->num; r = end) {
        for (end = r + 1; end < ranks->num && host_of[end] == host_of[r];)
            end++;
        cr_buf_addf(&text, "%s%s %d", r ? ", " : "", hosts->host[host_of[r]].name, r);
        if (end > r + 1) cr_buf_addf(&text, "-%d", end - 1);
    }
    out = cr_strndup(text.data ? text.data : "", text.num_bytes);
    cr_buf_free(&text);
    return out;
}

char *cr_placement_table(const cr_hosts *hosts, const cr_layout *layout)
{
    cr_buf text = {0};
    char *out;

    cr_buf_addf(&text, "  %-16s%s\n", "ranks", "host and ranks of the role there, ..");
    for (int r = 0; r < CR_NUM_ROLES; r++) {
        char *line;
        if (layout->role[r].num == 0) continue;
        line = cr_placement_text(hosts, layout, (cr_role)r);
        cr_buf_addf(&text, "  %-16s%s\n", layout->role[r].name, line);
        cr_free(line);
    }
    out = cr_strndup(text.data, text.num_bytes);
    cr_buf_free(&text);
    return out;
}
