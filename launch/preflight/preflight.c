/* preflight.c -- see preflight.h: the steps of the checks, and what is an error. */
#include "launch/preflight/preflight_impl.h"

#include "base/children.h"
#include "base/lookup.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { CLOCK_TRIPS = 20 };
static const char mark_name[] = "/.croll-hosts";
static const double HELLO_S = 60, CLOCK_S = 5, TRIPS_S = 0.25, LOOK_S = 60, CONNECT_S = 1.5,
                    LOSSY_S = 3, CLOCK_LIMIT_S = 0.1,
                    SEEN_WITHIN_S = 1; /* a network's file system may show a new file late */

void cri_find_fault(cr_preflight *p, size_t node, cri_topic topic, bool is_error, const char *fmt,
                    ...)
{
    char text[600];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    p->finding = cr_grow(p->finding, p->num_findings, &p->findings_capacity, sizeof *p->finding);
    p->finding[p->num_findings++] = (cri_finding){node, topic, is_error, cr_strdup(text)};
}

/* The time since the part before. */
static void end_part(cr_preflight *p, const char *name)
{
    double now = cr_now_s() - p->began_s;

    for (size_t i = 0; i < p->num_parts; i++)
        now -= p->part[i].seconds;
    p->part[p->num_parts++] = (cri_preflight_part){name, now};
}

bool cri_is_out(const cr_preflight *p, size_t i)
{
    return p->agent[i].is_out;
}

/* ---- signals ---- */

static volatile sig_atomic_t caught;
static const int caught_signals[] = {SIGINT, SIGTERM, SIGHUP};
enum { CAUGHT_SIGNALS = CR_COUNT(caught_signals) };

static void on_signal(int number)
{
    caught = number;
}

/* A signal ends the checks, not this process: no mark is left. What is ignored (nohup) stays so. */
static void catch_signals(struct sigaction before[CAUGHT_SIGNALS])
{
    struct sigaction action = {.sa_handler = on_signal};

    caught = 0;
    for (size_t i = 0; i < CAUGHT_SIGNALS; i++) {
        sigaction(caught_signals[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN) sigaction(caught_signals[i], &action, NULL);
    }
}

static void release_signals(const struct sigaction before[CAUGHT_SIGNALS])
{
    for (size_t i = 0; i < CAUGHT_SIGNALS; i++)
        sigaction(caught_signals[i], &before[i], NULL);
}

/* ---- questions ---- */

void cri_ask(cr_preflight *p, double seconds)
{
    bool *was_out = CR_NEW_ARRAY(bool, p->num);

    for (size_t i = 0; i < p->num; i++)
        was_out[i] = cri_is_out(p, i);
    cr_agents_ask(p->agent, p->num, p->question, seconds, &caught);
    for (size_t i = 0; i < p->num; i++)
        if (cri_is_out(p, i) && !was_out[i])
            cri_find_fault(p, i, CRI_HOST, true, "%s", p->agent[i].fault);
    cr_free(was_out);
}

/* Not an answer. */
static void reject(cr_preflight *p, size_t i, const cr_err *why)
{
    char text[400];

    snprintf(text, sizeof text, "its agent answered: %.360s", why->msg);
    cr_agent_drop(&p->agent[i], text);
    cri_find_fault(p, i, CRI_HOST, true, "%s", text);
}

/* ---- programs ---- */

static void make_token(char token[CR_AGENT_TOKEN + 1])
{
    unsigned char chance[CR_AGENT_TOKEN / 2];

    CR_CHECK(getrandom(chance, sizeof chance, 0) == (ssize_t)sizeof chance, "no random numbers");
    for (size_t i = 0; i < sizeof chance; i++)
        snprintf(token + 2 * i, 3, "%02x", chance[i]);
}

static void greet(cr_preflight *p)
{
    cr_agent_request r = {.ask = CR_AGENT_HELLO};

    make_token(r.token);
    for (size_t i = 0; i < p->num; i++) {
        r.node = (int)i;
        cr_agent_request_write(&r, &p->question[i]);
        if (cri_is_out(p, i)) cri_find_fault(p, i, CRI_HOST, true, "%s", p->agent[i].fault);
    }
    cri_ask(p, HELLO_S);
    for (size_t i = 0; i < p->num; i++) {
        cr_err why = {0};
        if (cri_is_out(p, i)) continue;
        p->node[i].has_hello =
            cr_agent_hello_read(p->agent[i].line.data, p->agent[i].line.num_bytes,
                                &p->node[i].hello, &why) == CR_OK;
        if (!p->node[i].has_hello) reject(p, i, &why);
    }
    for (size_t i = 0; i < p->num && p->node[p->here].has_hello; i++) {
        const char *digest = p->node[i].hello.digest, *here = p->node[p->here].hello.digest;
        if (!p->node[i].has_hello || strcmp(digest, here) == 0) continue;
        cri_find_fault(p, i, CRI_CROLL, true,
                       "another croll (%.8s, here %.8s): install the same program on all hosts",
                       digest, here);
        cr_agent_drop(&p->agent[i], "another croll"); /* it may speak otherwise */
    }
}

/* ---- clocks ---- */

double cr_clock_offset(const double *sent, const double *other, const double *received, size_t num,
                       double *round_trip_s)
{
    size_t best = 0;

    for (size_t k = 1; k < num; k++)
        if (received[k] - sent[k] < received[best] - sent[best]) best = k;
    *round_trip_s = received[best] - sent[best];
    return other[best] - (sent[best] + received[best]) / 2;
}

static void compare_clocks(cr_preflight *p)
{
    double *times = CR_NEW_ARRAY(double, p->num * 3 * CLOCK_TRIPS),
           wall_s = cr_wall_s() - cr_now_s(), until_s = cr_now_s() + TRIPS_S;
    size_t num_trips = 0;

    for (size_t k = 0; k < CLOCK_TRIPS && cr_now_s() < until_s; k++, num_trips++) {
        const cr_agent_request r = {.ask = CR_AGENT_CLOCK};
        for (size_t i = 0; i < p->num; i++)
            if (i != p->here) cr_agent_request_write(&r, &p->question[i]);
        cri_ask(p, CLOCK_S);
        for (size_t i = 0; i < p->num; i++) {
            double *t = times + i * 3 * CLOCK_TRIPS + k;
            cr_err why = {0};
            if (i == p->here || cri_is_out(p, i)) continue;
            t[0] = p->agent[i].asked_s + wall_s;
            t[2 * CLOCK_TRIPS] = p->agent[i].heard_s + wall_s;
            if (cr_agent_clock_read(p->agent[i].line.data, p->agent[i].line.num_bytes,
                                    &t[CLOCK_TRIPS], &why) != CR_OK)
                reject(p, i, &why);
        }
    }
    for (size_t i = 0; i < p->num; i++) {
        const double *t = times + i * 3 * CLOCK_TRIPS;
        cri_preflight_node *node = &p->node[i];
        if (i == p->here || cri_is_out(p, i)) continue;
        node->offset_s = cr_clock_offset(t, t + CLOCK_TRIPS, t + 2 * CLOCK_TRIPS, num_trips,
                                         &node->round_trip_s);
        if (node->offset_s > CLOCK_LIMIT_S || node->offset_s < -CLOCK_LIMIT_S)
            cri_find_fault(p, i, CRI_CLOCK, false,
                           "its clock is %.1f s %s this host's: set both by a time server (chrony, "
                           "systemd-timesyncd), or times of files and logs mislead",
                           node->offset_s > 0 ? node->offset_s : -node->offset_s,
                           node->offset_s > 0 ? "ahead of" : "late against");
    }
    cr_free(times);
}

/* ---- what a host has ---- */

static void check_model(cr_preflight *p, size_t i, size_t k)
{
    const cr_agent_model *here = &p->node[p->here].look.model[k], *there;

    there = &p->node[i].look.model[k];
    if (there->error[0])
        cri_find_fault(p, i, CRI_MODEL, true, "%s: the model has to be there on all hosts",
                       there->error);
    else if (!here->error[0] && strcmp(here->digest, there->digest) != 0)
        cri_find_fault(p, i, CRI_MODEL, true,
                       "%s is another model (%.8s, here %.8s: other names, sizes or bytes of its "
                       "files): copy it again",
                       p->needs->model[k], there->digest, here->digest);
}

static void check_room(cr_preflight *p, size_t i)
{
    const cr_preflight_needs *needs = p->needs;
    const cr_agent_look *look = &p->node[i].look, *here = &p->node[p->here].look;
    char has[CRI_BYTES_TEXT], wants[CRI_BYTES_TEXT];

    if (look->shm < needs->shm_bytes)
        cri_find_fault(p, i, CRI_SHM, true,
                       "/dev/shm has %s free, %s are needed: mount it with a larger size (docker: "
                       "--shm-size)",
                       cri_bytes((double)look->shm, has),
                       cri_bytes((double)needs->shm_bytes, wants));
    if (look->files < needs->num_files)
        cri_find_fault(
            p, i, CRI_FILES, true,
            "ulimit -n is %lld in what ssh or srun starts there, the run needs %lld open "
            "files",
            (long long)look->files, (long long)needs->num_files);
    if (i != p->here && !look->has_orted)
        cri_find_fault(
            p, i, CRI_HOST, false,
            "Open MPI's orted is not in PATH of what ssh or srun starts there: if its folder "
            "is not known to mpirun either, set PATH in the first lines of ~/.bashrc");
    if (needs->has_gpus && look->num_gpus == 0)
        cri_find_fault(
            p, i, CRI_GPUS, true,
            "device cuda needs a GPU, and it shows none: `croll doctor` on that host says why");
    else if (p->node[p->here].has_ranks && p->node[p->here].has_looked &&
             (look->num_gpus != here->num_gpus || strcmp(look->gpu, here->gpu) != 0))
        cri_find_fault(p, i, CRI_GPUS, false, "other GPUs (%d %s) than here (%d %s)",
                       look->num_gpus, look->gpu, here->num_gpus, here->gpu);
}

const char *cri_best_cpu(const cr_agent_look *look)
{
    const char *space = strrchr(look->cpus, ' ');

    return space ? space + 1 : look->cpus;
}

static bool has_cpu(const cr_agent_look *look, const char *name)
{
    size_t n = strlen(name);

    for (const char *at = look->cpus; (at = strstr(at, name)); at += n)
        if ((at == look->cpus || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return true;
    return false;
}

/* Log-probs of two instruction sets differ in their last bits: all ranks have the one that CROLL_CPU names, or the best that all
 * hosts have. A CPU that has one of them has all before it. */
static void choose_cpu(cr_preflight *p)
{
    const char *wanted = getenv("CROLL_CPU"), *best;
    size_t min = p->num;
    bool is_different = false;

    for (size_t i = 0; i < p->num; i++) {
        const cr_agent_look *look = &p->node[i].look;
        if (!p->node[i].has_ranks || !p->node[i].has_looked || p->needs->has_gpus) continue;
        if (wanted && wanted[0] && !has_cpu(look, wanted))
            cri_find_fault(p, i, CRI_CPU, true, "CROLL_CPU is %.40s, and its CPU has %.120s",
                           wanted, look->cpus);
        if (min < p->num) is_different |= strcmp(look->cpus, p->node[min].look.cpus) != 0;
        if (min == p->num || has_cpu(&p->node[min].look, cri_best_cpu(look))) min = i;
    }
    if (!is_different || (wanted && wanted[0])) return;
    best = cri_best_cpu(&p->node[min].look);
    snprintf(p->hosts->cpu, sizeof p->hosts->cpu, "%.31s", best);
    cri_find_fault(
        p, min, CRI_CPU, false,
        "its CPU has up to %s, others have more: all ranks use %s, so that generation and "
        "training have the same bits on all hosts (CROLL_CPU=NAME chooses)",
        best, best);
}

static void check_disk(cr_preflight *p, size_t i)
{
    const cr_preflight_needs *needs = p->needs;
    const cr_agent_look *look = &p->node[i].look;
    char has[CRI_BYTES_TEXT], wants[CRI_BYTES_TEXT];

    if ((i == p->here || (!look->has_mark && !needs->is_gathered)) && look->disk >= 0 &&
        look->disk < needs->disk_bytes)
        cri_find_fault(
            p, i, CRI_OUTPUT, true,
            "%s has %s of free disk, a checkpoint needs %s: free some, or write elsewhere",
            needs->output_dir, cri_bytes((double)look->disk, has),
            cri_bytes((double)needs->disk_bytes, wants));
}

/* A path that means the same on another host, where a program starts in another folder; owned. */
static char *absolute(const char *path)
{
    char *here = path[0] == '/' ? NULL : getcwd(NULL, 0);
    char *joined = here ? cr_path_join(here, path) : cr_strdup(path);

    free(here);
    return joined;
}

/* Does each host find what is written here into output_dir, or where it will be? NULL: cannot write. */
static char *write_mark(const char *folder, const char *text)
{
    char *near = cr_strdup(folder), *slash, *path;
    cr_err why = {0};

    while (!cr_dir_exists(near) && (slash = strrchr(near, '/')) && slash > near)
        *slash = 0;
    path = cr_asprintf("%s%s.%.16s", near, mark_name, text); /* of this check: others may be made */
    if (!cr_dir_exists(near) || cr_file_write_atomic(path, text, strlen(text), &why) != CR_OK) {
        cr_free(path);
        path = NULL;
    }
    cr_free(near);
    return path;
}

static void read_look(cr_preflight *p, size_t i)
{
    cr_agent_look *look = &p->node[i].look;
    cr_err why = {0};

    if (cri_is_out(p, i)) return;
    if (cr_agent_look_read(p->agent[i].line.data, p->agent[i].line.num_bytes, look, &why) ==
            CR_OK &&
        look->num_models != p->needs->num_models) {
        cr_fail(&why, CR_EFORMAT, "%zu models of %zu", look->num_models, p->needs->num_models);
        cr_agent_look_free(look);
    }
    p->node[i].has_looked = why.status == CR_OK;
    if (why.status != CR_OK) reject(p, i, &why);
}

static void look(cr_preflight *p)
{
    const cr_preflight_needs *needs = p->needs;
    char text[CR_AGENT_TOKEN + 1];
    cr_agent_request *r = &p->look;

    *r = (cr_agent_request){.ask = CR_AGENT_LOOK, .num_models = needs->num_models};
    r->model = CR_NEW_ARRAY(char *, needs->num_models);
    for (size_t k = 0; k < needs->num_models; k++)
        r->model[k] = absolute(needs->model[k]);
    make_token(text);
    r->text = cr_strdup(text);
    r->folder = needs->output_dir ? absolute(needs->output_dir) : NULL;
    r->mark = r->folder ? write_mark(r->folder, text) : NULL;
    p->marked_s = cr_now_s();
    for (size_t i = 0; i < p->num; i++)
        cr_agent_request_write(r, &p->question[i]);
    cri_ask(p, LOOK_S);
    for (size_t i = 0; i < p->num; i++)
        read_look(p, i);
    for (size_t i = 0; i < p->num; i++) {
        if (!p->node[i].has_ranks || !p->node[i].has_looked) continue;
        for (size_t k = 0; k < needs->num_models && p->node[p->here].has_looked; k++)
            check_model(p, i, k);
        check_room(p, i);
    }
    choose_cpu(p);
}

/* The others are asked for the mark once more, after all else: on most of them it was there, and nothing had to be waited for. */
static void look_again(cr_preflight *p)
{
    cr_agent_request r = {.ask = CR_AGENT_LOOK, .mark = p->look.mark, .text = p->look.text};
    bool *is_asked = CR_NEW_ARRAY(bool, p->num);

    r.seconds = p->marked_s + SEEN_WITHIN_S - cr_now_s();
    if (r.seconds < 0) r.seconds = 0;
    for (size_t i = 0; i < p->num && r.mark; i++) {
        is_asked[i] = p->node[i].has_looked && !p->node[i].look.has_mark && !cri_is_out(p, i);
        if (is_asked[i]) cr_agent_request_write(&r, &p->question[i]);
    }
    cri_ask(p, LOOK_S);
    for (size_t i = 0; i < p->num; i++) {
        cr_agent_look again;
        cr_err why = {0};
        if (!is_asked[i] || cri_is_out(p, i)) continue;
        if (cr_agent_look_read(p->agent[i].line.data, p->agent[i].line.num_bytes, &again, &why) !=
            CR_OK)
            reject(p, i, &why);
        p->node[i].look.has_mark = again.has_mark;
        cr_agent_look_free(&again);
    }
    if (r.mark) unlink(r.mark);
    for (size_t i = 0; i < p->num; i++)
        if (p->node[i].has_ranks && p->node[i].has_looked) check_disk(p, i);
    cr_free(is_asked);
}

/* ---- networks ---- */

/* Of a launcher without ranks; the addresses of the others are known. */
static void find_named(const char *name, char address[CR_AGENT_ADDRESS])
{
    struct addrinfo wanted = {.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM}, *found = NULL;

    address[0] = 0;
    if (cr_lookup(name, NULL, &wanted, &found) != 0) return;
    inet_ntop(AF_INET, &((struct sockaddr_in *)(void *)found->ai_addr)->sin_addr, address,
              CR_AGENT_ADDRESS);
    freeaddrinfo(found);
}

/* One machine under two names has no network with itself. */
static bool has_twins(cr_preflight *p)
{
    bool has_any = false;

    for (size_t i = 0; i < p->num; i++)
        for (size_t k = 0; k < i; k++) {
            const cr_agent_look *a = &p->node[i].look, *b = &p->node[k].look;
            if (cri_is_out(p, i) || cri_is_out(p, k) || a->num_addresses != b->num_addresses ||
                strcmp(p->node[i].hello.host, p->node[k].hello.host) != 0 ||
                (a->num_addresses &&
                 memcmp(a->address, b->address, a->num_addresses * sizeof *a->address) != 0))
                continue;
            has_any = true;
            cri_find_fault(p, i, CRI_HOST, true,
                           "it is the same machine as %s: name it once, with all its ranks",
                           p->node[k].name);
        }
    return has_any;
}

/* Which networks there are; an error of the user's choice is one of the launcher's host. */
static void find_networks(cr_preflight *p)
{
    cr_network_host *hosts = CR_NEW_ARRAY(cr_network_host, p->num);
    cr_err why = {0};

    for (size_t i = 0; i < p->num; i++) {
        hosts[i] = (cr_network_host){.name = p->node[i].name,
                                     .address = p->node[i].look.address,
                                     .num = p->node[i].look.num_addresses,
                                     .is_out = cri_is_out(p, i)};
        if (p->node[i].has_ranks)
            snprintf(hosts[i].named, sizeof hosts[i].named, "%s", p->hosts->host[i].address);
        else
            find_named(p->node[i].name, hosts[i].named);
    }
    if (cr_networks_find(hosts, p->num, p->needs->network, &p->network, &p->num_networks, &why) !=
        CR_OK)
        cri_find_fault(p, p->here, CRI_LINK, true, "%s", why.msg);
    else if (p->num_networks == 0)
        cri_find_fault(
            p, p->here, CRI_LINK, true,
            "no IPv4 network has an address of every host (--network 10.0.0.0/16 says which "
            "one to use)");
    cr_free(hosts);
}

/* What host i tries: the others, in each network. */
static void ask_connect(cr_preflight *p, size_t i, double seconds)
{
    cr_agent_request r = {.ask = CR_AGENT_CONNECT, .seconds = seconds};

    r.to = CR_NEW_ARRAY(cr_agent_peer, p->num_networks * p->num);
    for (size_t n = 0; n < p->num_networks; n++)
        for (size_t k = 0; k < p->num; k++) {
            cr_agent_peer *to = &r.to[r.num_to];
            if (k == i || !p->node[k].is_tried) continue;
            *to = (cr_agent_peer){.node = (int)k, .port = p->node[k].hello.port};
            snprintf(to->address, sizeof to->address, "%s", p->network[n].address[k]);
            r.num_to++;
        }
    cr_agent_request_write(&r, &p->question[i]);
    cr_agent_request_free(&r);
}

static void read_tries(cr_preflight *p, size_t i, size_t num_others)
{
    size_t num = num_others * p->num_networks, at = 0;
    cr_err why = {0};
    char **tries;

    if (cri_is_out(p, i)) return;
    if (cr_agent_tries_read(p->agent[i].line.data, p->agent[i].line.num_bytes, num, &tries, &why) !=
        CR_OK) {
        reject(p, i, &why);
        return;
    }
    for (size_t n = 0; n < p->num_networks; n++)
        for (size_t k = 0; k < p->num; k++) {
            cr_network *network = &p->network[n];
            if (k == i || !p->node[k].is_tried) continue;
            if (tries[at][0] && network->num_failed++ == 0)
                snprintf(network->fault, sizeof network->fault,
                         "%.40s cannot connect to %.40s (%s: %.60s)", p->node[i].name,
                         p->node[k].name, network->address[k], tries[at]);
            at++;
        }
    cr_agent_texts_free(tries, num);
}

/* Every host tries the others in every network, for that long. */
static void try_networks(cr_preflight *p, double seconds)
{
    size_t num_others = 0;

    for (size_t n = 0; n < p->num_networks; n++)
        p->network[n].num_failed = 0;
    for (size_t i = 0; i < p->num; i++)
        num_others += p->node[i].is_tried = !cri_is_out(p, i);
    for (size_t i = 0; i < p->num; i++)
        if (p->node[i].is_tried) ask_connect(p, i, seconds);
    cri_ask(p, seconds + CLOCK_S);
    for (size_t i = 0; i < p->num; i++)
        read_tries(p, i, num_others - 1);
    p->chosen = cr_networks_choose(p->network, p->num_networks);
}

static void connect_all(cr_preflight *p)
{
    if (has_twins(p)) return;
    find_networks(p);
    if (p->num_networks == 0) return;
    try_networks(p, CONNECT_S);
    if (!p->chosen) try_networks(p, LOSSY_S);
    for (size_t n = 0; n < p->num_networks && !p->chosen; n++)
        cri_find_fault(
            p, p->here, CRI_LINK, true,
            "%s (%s): %s; %zu pairs in all: open all TCP ports between the hosts, or look at "
            "the network",
            p->network[n].cidr, p->network[n].interface, p->network[n].fault,
            p->network[n].num_failed);
    if (!p->chosen) return;
    snprintf(p->hosts->address, sizeof p->hosts->address, "%s", p->chosen->address[p->here]);
    snprintf(p->hosts->subnet, sizeof p->hosts->subnet, "%s", p->chosen->cidr);
}

/* ---- all of it ---- */

static void start(cr_preflight *p)
{
    char *self = cr_self_path();
    cr_hosts *hosts = p->hosts;
    bool has_here = false;

    for (size_t i = 0; i < hosts->num; i++)
        has_here |= hosts->host[i].is_here;
    p->num = hosts->num + !has_here;
    p->here = hosts->num;
    p->node = CR_NEW_ARRAY(cri_preflight_node, p->num);
    p->agent = CR_NEW_ARRAY(cr_agent, p->num);
    p->question = CR_NEW_ARRAY(cr_buf, p->num);
    p->rate = CR_NEW_ARRAY(cr_agent_rate, p->num * p->num);
    for (size_t i = 0; i < p->num; i++) {
        cri_preflight_node *node = &p->node[i];
        node->has_ranks = i < hosts->num;
        node->name = node->has_ranks ? hosts->host[i].name : cr_host_name();
        if (node->has_ranks && hosts->host[i].is_here) p->here = i;
        cr_agent_start(&p->agent[i], node->name, hosts, i, self);
    }
    cr_free(self);
}

cr_preflight *cr_preflight_make(cr_hosts *hosts, const cr_preflight_needs *needs)
{
    cr_preflight *p = CR_NEW(cr_preflight);
    struct sigaction before[CAUGHT_SIGNALS];

    catch_signals(before);
    p->hosts = hosts;
    p->needs = needs;
    p->began_s = cr_now_s();
    start(p);
    greet(p);
    end_part(p, "agents");
    compare_clocks(p);
    end_part(p, "clocks");
    look(p);
    end_part(p, "look");
    if (p->num > 1) connect_all(p);
    end_part(p, "connect");
    if (p->chosen && !needs->is_brief) cri_measure_links(p);
    look_again(p);
    cr_agents_stop(p->agent, p->num);
    end_part(p, "links");
    release_signals(before);
    p->signal = caught;
    return p;
}

cr_status cr_preflight_check(const cr_preflight *p, cr_err *err)
{
    cr_buf text = {0};
    size_t num = 0, last = p->num, num_left = 0;

    if (p->signal)
        return cr_fail(err, CR_ESIGNAL, "stopped by signal %d. Nothing was started", p->signal);
    for (size_t k = 0; k < p->num_findings; k++) {
        const cri_finding *f = &p->finding[k];
        const char *name = p->node[f->node].name;
        if (!f->is_error) continue;
        num++;
        if (text.num_bytes + strlen(name) + strlen(f->text) > sizeof err->msg - 80)
            num_left++;
        else if (f->node == last)
            cr_buf_addf(&text, "; %s", f->text);
        else
            cr_buf_addf(&text, "%shost %s: %s", text.num_bytes ? "; " : "", name, f->text);
        last = f->node;
    }
    if (num_left)
        cr_buf_addf(&text, "%s%zu errors above", text.num_bytes ? "; and " : "", num_left);
    if (num) cr_fail(err, CR_ECONFIG, "%s. Nothing was started", text.data);
    cr_buf_free(&text);
    return err->status;
}

void cr_preflight_free(cr_preflight *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->num; i++) {
        cr_agent_look_free(&p->node[i].look);
        cr_buf_free(&p->question[i]);
    }
    for (size_t i = 0; i < p->num_findings; i++)
        cr_free(p->finding[i].text);
    cr_networks_free(p->network, p->num_networks);
    cr_agent_request_free(&p->look);
    cr_free(p->finding);
    cr_free(p->rate);
    cr_free(p->question);
    cr_free(p->agent);
    cr_free(p->node);
    cr_free(p);
}
