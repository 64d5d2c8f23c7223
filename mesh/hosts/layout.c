/* layout.c -- the ranks of a group on their hosts (see layout.h). */
#include "mesh/hosts/layout.h"

enum { SLICE_ELEMS = 16 }; /* slices begin on a cache line */

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
    int *memory = CR_NEW_ARRAY(int, 6 * num);

    l->num = num;
    l->host_of = memory;
    l->place = memory + num;
    l->on_host = memory + 2 * num;
    l->leader = memory + 3 * num;
    l->leaves_of = memory + 4 * num;
    l->leaf = memory + 5 * num;
    for (int r = 0; r < num; r++) {
        int first = 0, host;
        while (host_of[first] != host_of[r])
            first++;
        if (first == r) l->leader[l->num_hosts++] = r;
        host = first == r ? l->num_hosts - 1 : l->host_of[first];
        l->host_of[r] = host;
        l->place[r] = l->on_host[host]++;
        if (l->on_host[host] > l->most_on_host) l->most_on_host = l->on_host[host];
    }
    find_leaves(l, 0, num);
    return l;
}

void cri_layout_destroy(cri_layout *layout)
{
    if (!layout) return;
    cr_free(layout->host_of);
    cr_free(layout);
}

bool cri_layout_receives(const cri_layout *l, int rank, int p)
{
    int host = l->host_of[rank];

    return host != l->host_of[p] && p % l->on_host[host] == l->place[rank];
}

cri_slice cri_slice_of(size_t chunk_elems, int num_ranks, int q)
{
    size_t n = (size_t)num_ranks,
           each = ((chunk_elems + n - 1) / n + SLICE_ELEMS - 1) / SLICE_ELEMS * SLICE_ELEMS,
           begin = each * (size_t)q, left = begin < chunk_elems ? chunk_elems - begin : 0;

    return (cri_slice){left ? begin : 0, left < each ? left : each};
}

size_t cri_piece_bytes(int num_ranks)
{
    size_t each = CRI_STAGE_BYTES / (size_t)num_ranks / 64 * 64;

    CR_CHECK(each > 0, "a group of %d ranks", num_ranks);
    return each;
}
