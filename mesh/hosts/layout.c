/* layout.c -- the ranks of a group on their hosts (see layout.h). */
#include "mesh/hosts/layout.h"

static bool is_on_one_host(const int *host_of, int first, int num)
{
    for (int r = first; r < first + num; r++)
        if (host_of[r] != host_of[first]) return false;
    return true;
}

static void find_leaves(cri_layout *l, int first, int num)
{
    int half = cri_half(num);

    if (!is_on_one_host(l->host_of, first, num)) {
        find_leaves(l, first, half);
        find_leaves(l, first + half, num - half);
        return;
    }
    for (int r = first; r < first + num; r++)
        l->leaf[r] = first;
    l->leaves_of[l->host_of[first]]++;
    l->num_leaves++;
}

cri_layout *cri_layout_create(const int *host_of, int num)
{
    cri_layout *l = CR_NEW(cri_layout);
    int *memory = CR_NEW_ARRAY(int, 7 * num), places = 0;

    l->num = num;
    l->host_of = memory;
    l->place = memory + num;
    l->on_host = memory + 2 * num;
    l->leader = memory + 3 * num;
    l->leaves_of = memory + 4 * num;
    l->leaf = memory + 5 * num;
    l->leaf_place = memory + 6 * num;
    for (int r = 0; r < num; r++) {
        int first = 0, host;
        while (host_of[first] != host_of[r])
            first++;
        if (first == r) l->leader[l->num_hosts++] = r;
        host = first == r ? l->num_hosts - 1 : l->host_of[first];
        l->host_of[r] = host;
        l->place[r] = l->on_host[host]++;
        if (l->on_host[host] > l->max_on_host) l->max_on_host = l->on_host[host];
    }
    find_leaves(l, 0, num);
    for (int host = 0; host < l->num_hosts; host++)
        for (int r = l->leader[host]; r < num; r++)
            if (l->host_of[r] == host && l->leaf[r] == r) l->leaf_place[r] = places++;
    return l;
}

void cri_layout_destroy(cri_layout *layout)
{
    if (!layout) return;
    cr_free(layout->host_of);
    cr_free(layout);
}

int cri_layout_receiver(const cri_layout *l, int host, int p)
{
    return p % l->on_host[host];
}

bool cri_layout_receives(const cri_layout *l, int rank, int p)
{
    int host = l->host_of[rank];

    return host != l->host_of[p] && cri_layout_receiver(l, host, p) == l->place[rank];
}

size_t cri_slice_elems(size_t num, int num_ranks)
{
    size_t n = (size_t)num_ranks;

    return ((num + n - 1) / n + CRI_SLICE_ELEMS - 1) / CRI_SLICE_ELEMS * CRI_SLICE_ELEMS;
}

size_t cri_slice_num(size_t each, size_t num, int q)
{
    size_t begin = each * (size_t)q, left = begin < num ? num - begin : 0;

    return left < each ? left : each;
}

size_t cri_piece_bytes(int num_ranks)
{
    size_t each = CRI_STAGE_BYTES / (size_t)num_ranks / 64 * 64;

    CR_CHECK(each > 0, "a group of %d ranks", num_ranks);
    return each;
}
