/* agent.c -- see agent.h. */
#include "launch/preflight/agent.h"
#include "base/children.h"
#include "base/digest.h"
#include "base/json.h"
#include "base/limits.h"
#include "kernels/cpu_variants.h"
#include "kernels/gpu.h"
#include "launch/cores/topology.h"
#include "launch/preflight/agent_lines.h"
#include "launch/preflight/agent_links.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { IDLE_SECONDS = 60 };

typedef struct agent {
    cr_agent_self self;
    cr_agent_look host; /* what does not change while it lives */
} agent;

static cr_status say_hello(agent *a, const cr_agent_request *r, cr_buf *line, cr_err *err)
{
    char digest[CR_DIGEST_TEXT];
    int port;

    CR_TRY(cr_digest_file("/proc/self/exe", digest, NULL, err));
    a->self.node = r->node;
    memcpy(a->self.token, r->token, sizeof a->self.token);
    CR_TRY(cr_agent_listen(&a->self, &port, err));
    cr_buf_addf(line, "{\"digest\":\"%s\",\"port\":%d,\"host\":", digest, port);
    cr_json_add_string(line, cr_host_name(), strlen(cr_host_name()));
    cr_buf_adds(line, "}\n");
    return CR_OK;
}

/* Megabits a second of an interface; 0: it does not say. */
static int64_t speed_of(const char *interface)
{
    char path[80];
    int64_t speed;

    snprintf(path, sizeof path, "/sys/class/net/%s/speed", interface);
    speed = cr_find_number(path, "");
    return speed > 0 && speed < INT32_MAX ? speed : 0;
}

static void find_addresses(cr_agent_look *look)
{
    struct ifaddrs *all = NULL;
    size_t num = 0;

    if (getifaddrs(&all) != 0) return;
    for (struct ifaddrs *i = all; i; i = i->ifa_next)
        num++;
    look->address = CR_NEW_ARRAY(cr_agent_address, num);
    for (struct ifaddrs *i = all; i; i = i->ifa_next) {
        cr_agent_address *a = &look->address[look->num_addresses];
        if (!i->ifa_addr || !i->ifa_netmask || i->ifa_addr->sa_family != AF_INET ||
            !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK))
            continue;
        snprintf(a->name, sizeof a->name, "%s", i->ifa_name);
        inet_ntop(AF_INET, &((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr, a->address,
                  sizeof a->address);
        a->bits =
            __builtin_popcount(((struct sockaddr_in *)(void *)i->ifa_netmask)->sin_addr.s_addr);
        a->mbits = speed_of(a->name);
        look->num_addresses++;
    }
    freeifaddrs(all);
}

/* Of the file system that the path is in, or would be. */
static int64_t free_bytes(const char *path)
{
    char *folder = cr_strdup(path), *slash;
    struct statvfs fs;
    int code;

    while ((code = statvfs(folder, &fs)) != 0 && (slash = strrchr(folder, '/')) && slash > folder)
        *slash = 0;
    if (code != 0) code = statvfs(path[0] == '/' ? "/" : ".", &fs);
    cr_free(folder);
    return code == 0 ? (int64_t)fs.f_bavail * (int64_t)fs.f_frsize : 0;
}

static bool has_text(const char *path, const char *text, double seconds)
{
    double until_s = cr_now_s() + seconds;
    bool is_same = false;

    for (;;) {
        cr_buf found = {0};
        cr_err ignored = {0};
        if (cr_file_exists(path) && cr_file_read(path, &found, &ignored) == CR_OK)
            is_same = found.num_bytes == strlen(text) && strcmp(found.data, text) == 0;
        cr_buf_free(&found);
        if (is_same || cr_now_s() > until_s) return is_same;
        cr_sleep_s(0.05);
    }
}

static void look_at_models(const cr_agent_request *r, cr_agent_look *look)
{
    look->model = CR_NEW_ARRAY(cr_agent_model, r->num_models);
    look->num_models = r->num_models;
    for (size_t i = 0; i < r->num_models; i++) {
        cr_agent_model *m = &look->model[i];
        cr_err why = {0};
        if (cr_digest_model(r->model[i], m->digest, &m->num_bytes, &why) != CR_OK)
            snprintf(m->error, sizeof m->error, "%.*s", (int)sizeof m->error - 1, why.msg);
    }
}

static bool has_program(const char *name)
{
    char *path = cr_find_program(name);
    bool is_found = path != NULL;

    cr_free(path);
    return is_found;
}

static void look_around(const agent *a, const cr_agent_request *r, cr_buf *line)
{
    cr_agent_look look = {.shm = free_bytes("/dev/shm"),
                          .memory = cr_memory_left(),
                          .disk = r->folder ? free_bytes(r->folder) : -1,
                          .has_orted = has_program("orted") || has_program("prted"),
                          .num_gpus = a->host.num_gpus,
                          .num_cores = a->host.num_cores,
                          .num_nodes = a->host.num_nodes};
    struct rlimit files;

    find_addresses(&look);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        look.files = files.rlim_cur > INT64_MAX ? INT64_MAX : (int64_t)files.rlim_cur;
    memcpy(look.gpu, a->host.gpu, sizeof look.gpu);
    memcpy(look.cpus, a->host.cpus, sizeof look.cpus);
    look_at_models(r, &look);
    look.has_mark = r->mark && r->text && has_text(r->mark, r->text, r->seconds);
    cr_agent_look_write(&look, line);
    cr_agent_look_free(&look);
}

static void try_connections(const agent *a, const cr_agent_request *r, cr_buf *line)
{
    char **tries = CR_NEW_ARRAY(char *, r->num_to);

    cr_agent_connect(&a->self, r->to, r->num_to, r->seconds, tries);
    cr_buf_adds(line, "{\"tries\":[");
    for (size_t i = 0; i < r->num_to; i++) {
        if (i) cr_buf_addc(line, ',');
        cr_json_add_string(line, tries[i], strlen(tries[i]));
    }
    cr_buf_adds(line, "]}\n");
    cr_agent_texts_free(tries, r->num_to);
}

static cr_status measure(const agent *a, const cr_agent_request *r, cr_buf *line, cr_err *err)
{
    cr_agent_rate rate;

    CR_TRY(cr_agent_measure(&a->self, &r->to[0], r->seconds, &rate, err));
    cr_buf_addf(line, "{\"latency_s\":%.9g,\"bytes_per_s\":%.9g}\n", rate.latency_s,
                rate.bytes_per_s);
    return CR_OK;
}

static cr_status answer(agent *a, const cr_agent_request *r, cr_buf *line, cr_err *err)
{
    if (r->ask != CR_AGENT_HELLO && r->ask != CR_AGENT_CLOCK && !a->self.token[0])
        return cr_fail(err, CR_EFORMAT, "the first line is not a hello");
    switch (r->ask) {
    case CR_AGENT_HELLO:
        if (a->self.token[0]) return cr_fail(err, CR_EFORMAT, "a second hello");
        return say_hello(a, r, line, err);
    case CR_AGENT_CLOCK:
        cr_buf_addf(line, "{\"wall_s\":%.9f}\n", cr_wall_s());
        return CR_OK;
    case CR_AGENT_LOOK:
        look_around(a, r, line);
        return CR_OK;
    case CR_AGENT_CONNECT:
        try_connections(a, r, line);
        return CR_OK;
    default:
        return measure(a, r, line, err);
    }
}

static bool write_all(int fd, const cr_buf *line)
{
    size_t at = 0;
    ssize_t n = 0;

    while (at < line->num_bytes && (n = write(fd, line->data + at, line->num_bytes - at)) > 0)
        at += (size_t)n;
    return n > 0;
}

/* What does not change while it lives: GPUs, cores, instruction sets. */
static cr_status look_here(cr_agent_look *host, cr_err *err)
{
    cr_gpu_report *gpus = CR_NEW(cr_gpu_report);
    cr_err absent = {0};
    cr_topology t = {0};
    cr_buf cpus = {0};
    const char *name;

    cr_note(cr_gpu_probe(gpus, &absent)); /* without GPUs it has none to report */
    CR_TRY_GOTO(out, cr_topology_read(NULL, &t, err));
    *host = (cr_agent_look){
        .num_gpus = gpus->num_gpus, .num_cores = t.num_cores, .num_nodes = t.num_nodes};
    if (gpus->num_listed) snprintf(host->gpu, sizeof host->gpu, "%.63s", gpus->gpu[0].name);
    for (size_t i = 0; (name = cr_cpu_variant_here(i)); i++)
        cr_buf_addf(&cpus, "%s%s", i ? " " : "", name);
    snprintf(host->cpus, sizeof host->cpus, "%.*s", (int)sizeof host->cpus - 1, cpus.data);
out:
    cr_buf_free(&cpus);
    cr_topology_free(&t);
    cr_free(gpus);
    return err->status;
}

cr_status cr_agent_serve(int in, int out, cr_err *err)
{
    agent a = {0};
    FILE *lines = fdopen(in, "r");
    char *text = NULL;
    size_t capacity = 0;
    ssize_t n;
    bool goes_on = true;

    CR_TRY(look_here(&a.host, err));
    if (!lines) return cr_fail(err, CR_EIO, "cannot read stdin: %s", strerror(errno));
    /* SIGALRM ends the process: a launcher that was cut off says nothing more, and closes nothing */
    while (goes_on && (alarm(IDLE_SECONDS), n = getline(&text, &capacity, lines)) > 0) {
        cr_agent_request request;
        cr_buf line = {0};
        cr_err why = {0};
        if (cr_agent_request_read(text, (size_t)n, &request, &why) != CR_OK ||
            answer(&a, &request, &line, &why) != CR_OK) {
            cr_buf_clear(&line);
            cr_buf_adds(&line, "{\"error\":");
            cr_json_add_string(&line, why.msg, strlen(why.msg));
            cr_buf_adds(&line, "}\n");
        }
        goes_on = write_all(out, &line);
        cr_buf_free(&line);
        cr_agent_request_free(&request);
    }
    free(text);
    return err->status;
}
