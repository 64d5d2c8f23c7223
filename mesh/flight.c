/* flight.c -- the ring of events and the counters (see flight.h). The ring is one mapping with its
 * header in front, private at first, a file once cr_flight_open was called. */
#include "mesh/flight.h"
#include "mesh/mesh_impl.h"

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
    uint64_t num_begun; /* events since the start; the ring holds the last `capacity` */
    double wall_offset_s;
    char role[24];
} flight_head;

struct cri_flight {
    flight_head *head; /* the mapping */
    cr_flight_event *event;
};

static const char magic[8] = "CRFLT02";
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

struct cri_flight *cri_flight_create(int rank)
{
    struct cri_flight *f = CR_NEW(struct cri_flight);

    f->head = cri_map(map_bytes, /*is_meta=*/false);
    f->event = (cr_flight_event *)(f->head + 1);
    memcpy(f->head->magic, magic, sizeof magic);
    f->head->head_bytes = sizeof(flight_head);
    f->head->event_bytes = sizeof(cr_flight_event);
    f->head->capacity = NUM_EVENTS;
    f->head->rank = (uint32_t)rank;
    f->head->wall_offset_s = cr_wall_s() - cr_now_s();
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
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    void *map = MAP_FAILED;

    if (fd < 0 || ftruncate(fd, (off_t)map_bytes) != 0) {
        cr_fail(err, CR_EIO, "%s: cannot make the flight recorder's file: %s", path,
                strerror(errno));
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

cr_flight_count cr_flight_get_count(const cr_world *world, cr_coll coll)
{
    return world->counts[coll];
}

static cr_flight_event *event_of(cr_world *world, uint64_t event)
{
    return &world->flight->event[event % NUM_EVENTS];
}

uint64_t cri_event_begin(cr_world *world, cr_coll coll, const char *group, const char *name)
{
    uint64_t event = world->flight->head->num_begun++;
    cr_flight_event *e = event_of(world, event);

    memset(e, 0, sizeof *e);
    e->coll = coll;
    e->begin_s = cr_now_s();
    snprintf(e->group, sizeof e->group, "%s", group);
    snprintf(e->name, sizeof e->name, "%s", name);
    return event;
}

void cri_event_entered(cr_world *world, uint64_t event, uint32_t sequence, size_t num_bytes)
{
    cr_flight_event *e = event_of(world, event);

    e->sequence = sequence;
    e->num_bytes = num_bytes;
    world->counts[e->coll].num++;
    world->counts[e->coll].num_bytes += num_bytes;
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
    world->counts[e->coll].waited_s += waited_s;
}

void cri_event_end(cr_world *world, uint64_t event)
{
    cr_flight_event *e = event_of(world, event);

    e->end_s = cr_now_s();
    world->counts[e->coll].total_s += e->end_s - e->begin_s;
}

void cri_flight_set_role(cr_world *world, const char *role)
{
    snprintf(world->flight->head->role, sizeof world->flight->head->role, "%s", role);
}

static bool is_text(const char *text, size_t capacity_bytes)
{
    return memchr(text, 0, capacity_bytes) != NULL; /* a cut name may end inside a character */
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
    if (memcmp(head.magic, magic, sizeof magic) != 0 || head.head_bytes != sizeof head ||
        head.event_bytes != sizeof(cr_flight_event) || head.capacity == 0 ||
        (file.num_bytes - sizeof head) / sizeof(cr_flight_event) != head.capacity ||
        !is_text(head.role, sizeof head.role)) {
        cr_fail(err, CR_EFORMAT, "%s: not a flight recorder's file of this version", path);
        goto out;
    }
    first = head.num_begun > head.capacity ? head.num_begun - head.capacity : 0;
    out->rank = (int)head.rank;
    memcpy(out->role, head.role, sizeof out->role);
    out->wall_offset_s = head.wall_offset_s;
    out->num_events = (size_t)(head.num_begun - first);
    out->event = CR_NEW_ARRAY(cr_flight_event, out->num_events);
    for (size_t i = 0; i < out->num_events; i++) {
        cr_flight_event *e = &out->event[i];
        memcpy(e, file.data + sizeof head + (first + i) % head.capacity * sizeof(cr_flight_event),
               sizeof *e);
        if (e->coll >= CR_NUM_COLLS || !is_text(e->group, sizeof e->group) ||
            !is_text(e->name, sizeof e->name)) {
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
