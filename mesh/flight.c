/* flight.c -- the ring of events and the counters (see flight.h). The ring is one mapping with its
 * header in front, private at first, a file once cr_flight_open was called. */
#include "base/children.h"
#include "mesh/comm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NUM_EVENTS = 4096 };

typedef struct flight_head {
    char magic[8];
    uint32_t head_bytes, event_bytes, capacity, rank;
    _Atomic uint64_t num_begun; /* events since the start; the ring holds the last `capacity` */
    uint64_t clock;
    double wall_offset_s;
    cr_flight_clock asked[2];
    char role[24], host[64];
    cr_flight_count count[CR_NUM_COLLS];
    double phase_begin_s; /* of the phase that goes on */
    char phase_now[48];
    uint32_t num_phases, reserved;
    cr_flight_phase phase[CR_FLIGHT_PHASES];
} flight_head;

struct cri_flight {
    flight_head *head; /* the mapping */
    cr_flight_event *event;
    uint64_t phase_event;                /* UINT64_MAX: none has begun */
    double phase_waited_s[CR_NUM_COLLS]; /* of the counts, when it began */
    cr_flight_watcher watcher;           /* or NULL */
    void *ctx;                           /* its */
};

static const char magic[8] = "CRFLT04";
static const size_t map_bytes = sizeof(flight_head) + NUM_EVENTS * sizeof(cr_flight_event);

const char *cr_coll_name(cr_coll coll)
{
    static const char *const names[] = {
#define CR_COLL_TEXT(id, text) text,
        CR_COLLS(CR_COLL_TEXT)
#undef CR_COLL_TEXT
    };
    return (unsigned)coll < CR_NUM_COLLS ? names[coll] : "unknown";
}

/* One number a running kernel: what CLOCK_MONOTONIC counts from. 0: unknown. */
static uint64_t clock_here(void)
{
    cr_buf id = {0};
    cr_err ignored = {0};
    uint64_t h = 0;

    if (cr_file_read("/proc/sys/kernel/random/boot_id", &id, &ignored) == CR_OK)
        for (size_t i = 0; i < id.num_bytes; i++)
            h = h * 1099511628211u + (uint8_t)id.data[i] + 1;
    cr_buf_free(&id);
    return h;
}

struct cri_flight *cri_flight_create(int rank)
{
    struct cri_flight *f = CR_NEW(struct cri_flight);

    f->head = cri_pages_map(map_bytes, /*is_meta=*/false);
    f->event = (cr_flight_event *)(f->head + 1);
    memcpy(f->head->magic, magic, sizeof magic);
    f->head->head_bytes = sizeof(flight_head);
    f->head->event_bytes = sizeof(cr_flight_event);
    f->head->capacity = NUM_EVENTS;
    f->head->rank = (uint32_t)rank;
    f->head->clock = clock_here();
    f->head->wall_offset_s = cr_wall_s() - cr_now_s();
    snprintf(f->head->host, sizeof f->head->host, "%s", cr_host_name());
    f->phase_event = UINT64_MAX;
    return f;
}

void cri_flight_destroy(struct cri_flight *flight)
{
    if (!flight) return;
    munmap(flight->head, map_bytes);
    cr_free(flight);
}

cr_status cr_flight_open(cr_world *world, const char *path, cr_err *err)
{
    struct cri_flight *f = world->flight;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), code = fd < 0 ? errno : 0;
    void *map = MAP_FAILED;

    /* all blocks at once: on a full disk a later write into the mapping would kill the rank (SIGBUS) */
    if (code == 0) code = posix_fallocate(fd, 0, (off_t)map_bytes);
    if (code != 0) {
        cr_fail(err, CR_EIO, "%s: cannot make the flight recorder's file of %.1f MB: %s", path,
                (double)map_bytes / 1e6, strerror(code));
        if (fd >= 0) close(fd);
        return err->status;
    }
    map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return cr_fail(err, CR_EIO, "%s: cannot map the flight recorder's file: %s", path,
                       strerror(errno));
    memcpy(map, f->head, map_bytes);
    munmap(f->head, map_bytes);
    f->head = map;
    f->event = (cr_flight_event *)(f->head + 1);
    return CR_OK;
}

void cr_flight_set_clock(cr_world *world, const cr_flight_clock *clock)
{
    flight_head *head = world->flight->head;

    if (head->asked[0].at_s == 0) head->asked[0] = *clock;
    head->asked[1] = *clock;
}

cr_flight_count cr_flight_get_count(const cr_world *world, cr_coll coll)
{
    return world->flight->head->count[coll];
}

void cr_flight_watch(cr_world *world, cr_flight_watcher watcher, void *ctx)
{
    world->flight->watcher = watcher;
    world->flight->ctx = ctx;
}

static cr_flight_event *event_of(cr_world *world, uint64_t event)
{
    return &world->flight->event[event % NUM_EVENTS];
}

static cr_flight_count *count_of(cr_world *world, const cr_flight_event *e)
{
    return &world->flight->head->count[e->coll];
}

/* The event is whole before it counts: a death between leaves the oldest one torn, nothing else. */
uint64_t cri_event_begin(cr_world *world, cr_coll coll, const cr_group *group, const char *name)
{
    uint64_t event = world->flight->head->num_begun;
    cr_flight_event *e = event_of(world, event);

    memset(e, 0, sizeof *e);
    e->coll = coll;
    e->begin_s = cr_now_s();
    if (group) {
        memcpy(e->group, group->name, sizeof e->group);
        e->group_tag = group->tag;
        e->num_ranks = (uint32_t)group->num_ranks;
    }
    snprintf(e->name, sizeof e->name, "%s", name);
    world->flight->head->num_begun = event + 1;
    return event;
}

void cri_event_round(cr_world *world, uint64_t event, uint32_t sequence, size_t num_bytes)
{
    cr_flight_event *e = event_of(world, event);

    e->sequence = sequence;
    e->num_bytes = num_bytes;
}

void cri_event_posted(cr_world *world, uint64_t event, uint32_t sequence, size_t num_bytes)
{
    cr_flight_event *e = event_of(world, event);

    e->sequence = sequence;
    e->num_bytes = num_bytes;
    count_of(world, e)->num++;
    count_of(world, e)->num_bytes += num_bytes;
    if (world->flight->watcher) world->flight->watcher(world->flight->ctx, e);
}

void cri_event_named(cr_world *world, uint64_t event, const char *name)
{
    cr_flight_event *e = event_of(world, event);

    snprintf(e->name, sizeof e->name, "%s", name);
}

void cri_event_waited(cr_world *world, uint64_t event, double waited_s)
{
    cr_flight_event *e = event_of(world, event);

    e->waited_s += waited_s;
    count_of(world, e)->waited_s += waited_s;
}

void cri_count_received(cr_world *world, cr_coll coll, int num_messages, size_t num_bytes)
{
    cr_flight_count *c = &world->flight->head->count[coll];

    c->num_messages += (uint64_t)num_messages;
    c->received_bytes += num_bytes;
}

void cri_event_end(cr_world *world, uint64_t event)
{
    cr_flight_event *e = event_of(world, event);

    e->end_s = cr_now_s();
    count_of(world, e)->total_s += e->end_s - e->begin_s;
}

void cri_flight_set_role(cr_world *world, const char *role)
{
    snprintf(world->flight->head->role, sizeof world->flight->head->role, "%s", role);
}

/* The row of a phase's sums; the last row is of all that find no room. */
static cr_flight_phase *phase_row(flight_head *head, const char *name)
{
    cr_flight_phase *p;

    for (uint32_t i = 0; i < head->num_phases; i++)
        if (strcmp(head->phase[i].name, name) == 0) return &head->phase[i];
    if (head->num_phases == CR_FLIGHT_PHASES) return &head->phase[CR_FLIGHT_PHASES - 1];
    p = &head->phase[head->num_phases];
    snprintf(p->name, sizeof p->name, "%s",
             head->num_phases + 1 == CR_FLIGHT_PHASES ? "others" : name);
    head->num_phases++;
    return p;
}

static void end_phase(cr_world *world)
{
    struct cri_flight *f = world->flight;
    cr_flight_phase *p;

    if (f->phase_event == UINT64_MAX) return;
    if (f->phase_event + NUM_EVENTS <= f->head->num_begun) { /* the ring went round: once more */
        f->phase_event = cri_event_begin(world, CR_COLL_PHASE, NULL, f->head->phase_now);
        event_of(world, f->phase_event)->begin_s = f->head->phase_begin_s;
    }
    event_of(world, f->phase_event)->end_s = cr_now_s();
    p = phase_row(f->head, f->head->phase_now);
    p->num++;
    p->total_s += cr_now_s() - f->head->phase_begin_s;
    for (int k = 0; k < CR_NUM_COLLS; k++)
        p->waited_s[k] += f->head->count[k].waited_s - f->phase_waited_s[k];
}

void cri_flight_set_phase(cr_world *world, const char *phase)
{
    struct cri_flight *f = world->flight;

    end_phase(world);
    f->phase_event = cri_event_begin(world, CR_COLL_PHASE, NULL, phase);
    f->head->phase_begin_s = cr_now_s();
    snprintf(f->head->phase_now, sizeof f->head->phase_now, "%s", phase);
    for (int k = 0; k < CR_NUM_COLLS; k++)
        f->phase_waited_s[k] = f->head->count[k].waited_s;
}

static bool is_text(const char *text, size_t capacity_bytes)
{
    return memchr(text, 0, capacity_bytes) != NULL; /* a cut name may end inside a character */
}

/* Seconds that can be added up and drawn. */
static bool is_time(double s)
{
    return s >= 0 && s < 1e12;
}

static bool is_event(const cr_flight_event *e)
{
    return e->coll < CR_NUM_COLLS && is_text(e->group, sizeof e->group) &&
           is_text(e->name, sizeof e->name) && is_time(e->begin_s) && is_time(e->waited_s) &&
           (e->end_s == 0 || (is_time(e->end_s) && e->end_s >= e->begin_s));
}

static bool is_head(const flight_head *h, size_t file_bytes)
{
    bool is_good = memcmp(h->magic, magic, sizeof magic) == 0 && h->head_bytes == sizeof *h &&
                   h->event_bytes == sizeof(cr_flight_event) && h->capacity > 0 &&
                   (file_bytes - sizeof *h) / sizeof(cr_flight_event) == h->capacity &&
                   h->rank < 1 << 20 && h->num_phases <= CR_FLIGHT_PHASES &&
                   is_text(h->role, sizeof h->role) && is_text(h->phase_now, sizeof h->phase_now) &&
                   is_text(h->host, sizeof h->host) && is_time(h->phase_begin_s) &&
                   is_time(h->wall_offset_s);

    for (int k = 0; k < 2 && is_good; k++)
        is_good = is_time(h->asked[k].at_s) && is_time(h->asked[k].ahead_s) &&
                  is_time(h->asked[k].error_s);
    for (int k = 0; k < CR_NUM_COLLS && is_good; k++)
        is_good = is_time(h->count[k].waited_s) && is_time(h->count[k].total_s);
    for (uint32_t i = 0; is_good && i < h->num_phases; i++) {
        is_good =
            is_text(h->phase[i].name, sizeof h->phase[i].name) && is_time(h->phase[i].total_s);
        for (int k = 0; k < CR_NUM_COLLS && is_good; k++)
            is_good = is_time(h->phase[i].waited_s[k]);
    }
    return is_good;
}

cr_status cr_flight_read(const char *path, cr_flight_log *out, cr_err *err)
{
    cr_buf file = {0};
    flight_head head;
    uint64_t first;

    memset(out, 0, sizeof *out);
    CR_TRY_GOTO(out, cr_file_read(path, &file, err));
    if (file.num_bytes < sizeof head) {
        cr_fail(err, CR_EFORMAT, "%s: %zu bytes are too few for a flight recorder's file", path,
                file.num_bytes);
        goto out;
    }
    memcpy(&head, file.data, sizeof head);
    if (!is_head(&head, file.num_bytes)) {
        cr_fail(err, CR_EFORMAT, "%s: not a flight recorder's file of this version", path);
        goto out;
    }
    /* once it has gone round, the oldest event may be half another one */
    first = head.num_begun > head.capacity - 1 ? head.num_begun - (head.capacity - 1) : 0;
    out->rank = (int)head.rank;
    memcpy(out->role, head.role, sizeof out->role);
    memcpy(out->host, head.host, sizeof out->host);
    memcpy(out->asked, head.asked, sizeof out->asked);
    memcpy(out->phase_now, head.phase_now, sizeof out->phase_now);
    out->phase_begin_s = head.phase_begin_s;
    out->clock = head.clock;
    out->wall_offset_s = head.wall_offset_s;
    out->num_begun = head.num_begun;
    memcpy(out->count, head.count, sizeof out->count);
    memcpy(out->phase, head.phase, sizeof out->phase);
    out->num_phases = head.num_phases;
    out->num_events = (size_t)(head.num_begun - first);
    out->event = CR_NEW_ARRAY(cr_flight_event, out->num_events);
    for (size_t i = 0; i < out->num_events; i++) {
        cr_flight_event *e = &out->event[i];
        memcpy(e, file.data + sizeof head + (first + i) % head.capacity * sizeof(cr_flight_event),
               sizeof *e);
        if (!is_event(e)) {
            cr_fail(err, CR_EFORMAT, "%s: event %zu is damaged", path, i);
            cr_flight_log_free(out);
            goto out;
        }
    }
out:
    cr_buf_free(&file);
    return err->status;
}

void cr_flight_log_free(cr_flight_log *log)
{
    cr_free(log->event);
    memset(log, 0, sizeof *log);
}
