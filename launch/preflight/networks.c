/* networks.c -- see networks.h. */
#include "launch/preflight/networks.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t mask_of(int bits)
{
    return bits == 0 ? 0 : UINT32_MAX << (32 - bits);
}

static uint32_t number_of(const char *address)
{
    struct in_addr number = {0};

    inet_pton(AF_INET, address, &number);
    return ntohl(number.s_addr);
}

static void write_cidr(uint32_t number, int bits, char out[20])
{
    struct in_addr first = {htonl(number & mask_of(bits))};
    char text[CR_AGENT_ADDRESS];

    inet_ntop(AF_INET, &first, text, sizeof text);
    snprintf(out, 20, "%s/%d", text, bits);
}

/* The host's address in it; of several in one subnet the one of its name, or the first. NULL: it has none, or *has_many of
 * several subnets. */
static const cr_agent_address *address_in(const cr_network_host *host, uint32_t number, int bits,
                                          bool *has_many)
{
    const cr_agent_address *found = NULL;

    *has_many = false;
    for (size_t i = 0; i < host->num; i++) {
        const cr_agent_address *a = &host->address[i];
        uint32_t own = number_of(a->address);
        if ((own ^ number) & mask_of(bits)) continue;
        *has_many |= found && (a->bits != found->bits ||
                               (number_of(found->address) ^ own) & mask_of(a->bits));
        if (!found || strcmp(a->address, host->named) == 0) found = a;
    }
    return *has_many ? NULL : found;
}

/* One address of each host in that prefix, all different. *lacks: the first host that spoils it. */
static bool make(const cr_network_host *hosts, size_t num_hosts, uint32_t number, int bits,
                 cr_network *out, size_t *lacks, bool *has_many)
{
    bool is_first = true, is_speed_known = true;

    *out = (cr_network){.address = cr_alloc(num_hosts * sizeof *out->address)};
    write_cidr(number, bits, out->cidr);
    for (size_t i = 0; i < num_hosts; i++) {
        const cr_agent_address *a;
        *lacks = i;
        *has_many = false;
        if (hosts[i].is_out) continue;
        a = address_in(&hosts[i], number, bits, has_many);
        for (size_t k = 0; k < i && a; k++)
            if (strcmp(out->address[k], a->address) == 0)
                a = NULL; /* each host's own, as docker0 */
        if (!a) {
            cr_free(out->address);
            return false;
        }
        snprintf(out->address[i], sizeof out->address[i], "%s", a->address);
        if (is_first) {
            snprintf(out->interface, sizeof out->interface, "%s", a->name);
            out->is_named = strcmp(a->address, hosts[i].named) == 0;
            out->mbits = a->mbits;
        }
        is_first = false;
        is_speed_known &= a->mbits > 0;
        if (a->mbits < out->mbits) out->mbits = a->mbits;
    }
    if (!is_speed_known) out->mbits = 0;
    return !is_first;
}

/* The shortest prefix over the names' addresses; false: one has none. */
static bool cover(const cr_network_host *hosts, size_t num_hosts, uint32_t *number, int *bits)
{
    bool is_first = true;

    *bits = 32;
    for (size_t i = 0; i < num_hosts; i++) {
        uint32_t other = number_of(hosts[i].named);
        if (hosts[i].is_out) continue;
        if (!hosts[i].named[0]) return false;
        if (is_first) *number = other;
        is_first = false;
        while ((*number ^ other) & mask_of(*bits))
            --*bits;
    }
    return !is_first && *bits >= 8;
}

static cr_status read_prefix(const char *text, uint32_t *number, int *bits, cr_err *err)
{
    char address[CR_AGENT_ADDRESS], *end;
    const char *slash = strchr(text, '/');
    struct in_addr found;
    long n = slash ? strtol(slash + 1, &end, 10) : -1;

    snprintf(address, sizeof address, "%.*s", (int)(slash ? slash - text : 0), text);
    if (!slash || end == slash + 1 || *end || n < 0 || n > 32 || slash - text > 15 ||
        inet_pton(AF_INET, address, &found) != 1)
        return cr_fail(err, CR_EUSAGE, "--network: '%.60s' is not a prefix such as 10.77.0.0/24",
                       text);
    *number = ntohl(found.s_addr);
    *bits = (int)n;
    return CR_OK;
}

static bool is_known(const cr_network *networks, size_t num, const char *cidr)
{
    for (size_t i = 0; i < num; i++)
        if (strcmp(networks[i].cidr, cidr) == 0) return true;
    return false;
}

cr_status cr_networks_find(const cr_network_host *hosts, size_t num_hosts, const char *wanted,
                           cr_network **out, size_t *num, cr_err *err)
{
    size_t first = 0, lacks;
    uint32_t number = 0;
    int bits = 0;
    bool has_many;

    *num = 0;
    while (first < num_hosts && hosts[first].is_out)
        first++;
    *out = CR_NEW_ARRAY(cr_network, first < num_hosts ? hosts[first].num + 1 : 1);
    if (wanted) {
        if (read_prefix(wanted, &number, &bits, err) == CR_OK && first < num_hosts) {
            if (make(hosts, num_hosts, number, bits, &(*out)[0], &lacks, &has_many))
                *num = 1;
            else
                cr_fail(err, CR_ECONFIG, "host %s has %s address in --network %s",
                        hosts[lacks].name, has_many ? "more than one" : "no own", wanted);
        }
        return err->status;
    }
    for (size_t i = 0; first < num_hosts && i < hosts[first].num; i++) {
        const cr_agent_address *a = &hosts[first].address[i];
        char cidr[20];
        write_cidr(number_of(a->address), a->bits, cidr);
        if (a->bits < 32 && !is_known(*out, *num, cidr))
            *num += make(hosts, num_hosts, number_of(a->address), a->bits, &(*out)[*num], &lacks,
                         &has_many);
    }
    if (*num == 0 && cover(hosts, num_hosts, &number, &bits))
        *num = make(hosts, num_hosts, number, bits, &(*out)[0], &lacks, &has_many);
    return CR_OK;
}

static bool is_better(const cr_network *a, const cr_network *b)
{
    if (a->mbits && b->mbits && a->mbits != b->mbits) return a->mbits > b->mbits;
    return a->is_named && !b->is_named;
}

const cr_network *cr_networks_choose(const cr_network *networks, size_t num)
{
    const cr_network *best = NULL;

    for (size_t i = 0; i < num; i++)
        if (networks[i].num_failed == 0 && (!best || is_better(&networks[i], best)))
            best = &networks[i];
    return best;
}

void cr_networks_free(cr_network *networks, size_t num)
{
    for (size_t i = 0; i < num && networks; i++)
        cr_free(networks[i].address);
    cr_free(networks);
}
