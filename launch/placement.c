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

static void place_neighbours(const cr_hosts *hosts, const cr_layout *layout, int *host_of)
{
    int *num_used = CR_NEW_ARRAY(int, hosts->num);

    for (int engines = 0; engines < 2; engines++)
        for (int r = 0; r < CR_NUM_ROLES; r++)
            if (layout->role[r].num &&
                (layout->role[r].worker->task == CR_TASK_GENERATE) == (engines == 1))
                place_role(hosts, &layout->role[r], num_used, host_of);
    cr_free(num_used);
}

/* The ranks of a device go to `host`, or, if that is -1, nowhere. Returns how many they are. */
static int place_device(const cr_layout *layout, int device, int host, int *host_of)
{
    int num = 0;

    for (int r = 0; r < CR_NUM_ROLES; r++) {
        const struct cr_role_ranks *role = &layout->role[r];
        for (int i = 0; i < role->num; i++) {
            if (role->worker->devices[i] != device) continue;
            num++;
            if (host >= 0) host_of[role->first + i] = host;
        }
    }
    return num;
}

/* The smallest one above `last` that a rank has, or -1. */
static int next_device(const cr_layout *layout, int last)
{
    int next = -1;

    for (int r = 0; r < CR_NUM_ROLES; r++)
        for (int i = 0; i < layout->role[r].num; i++) {
            int device = layout->role[r].worker->devices[i];
            if (device > last && (next < 0 || device < next)) next = device;
        }
    return next;
}

static cr_status place_devices(const cr_hosts *hosts, const cr_layout *layout, int64_t max_devices,
                               int *host_of, cr_err *err)
{
    int64_t num_devices = 0, num_ranks = 0; /* of the host that is filled */
    size_t host = 0;

    for (int d = next_device(layout, -1); d >= 0; d = next_device(layout, d)) {
        int num = place_device(layout, d, -1, NULL);
        while (host < hosts->num && (num_ranks + num > hosts->host[host].num_ranks ||
                                     (max_devices && num_devices == max_devices)))
            host++, num_devices = num_ranks = 0;
        if (host == hosts->num)
            return cr_fail(err, CR_ECONFIG,
                           "no host has room for device %d of device_mapping (ranks: %d): in "
                           "order, each host takes devices with all their ranks, up to its number "
                           "of ranks%s (croll plan --hosts .. --device cuda)",
                           d, num, max_devices ? " and to num_gpus_per_node" : "");
        num_devices++;
        num_ranks += place_device(layout, d, (int)host, host_of);
    }
    return CR_OK;
}

cr_status cr_placement_make(cr_hosts *hosts, const cr_layout *layout, bool has_gpus,
                            int64_t num_gpus_per_node, cr_err *err)
{
    int *host_of = CR_NEW_ARRAY(int, layout->num_ranks);

    if (has_gpus && hosts->num > 1)
        cr_note(place_devices(hosts, layout, num_gpus_per_node, host_of, err));
    else
        place_neighbours(hosts, layout, host_of);
    if (err->status == CR_OK) cr_hosts_place(hosts, host_of, layout->num_ranks);
    cr_free(host_of);
    return err->status;
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
