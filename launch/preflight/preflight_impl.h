/* preflight_impl.h -- a pre-flight as its steps fill it in (preflight.c, links.c) and its forms show it (show.c). */
#ifndef CR_PREFLIGHT_IMPL_H
#define CR_PREFLIGHT_IMPL_H

#include "launch/preflight/agents.h"
#include "launch/preflight/networks.h"
#include "launch/preflight/preflight.h"

/* What a finding is about: the column that gets a mark. */
typedef enum cri_topic {
    CRI_HOST,
    CRI_CROLL,
    CRI_MODEL,
    CRI_CLOCK,
    CRI_SHM,
    CRI_MEMORY,
    CRI_FILES,
    CRI_GPUS,
    CRI_CORES,
    CRI_CPU,
    CRI_OUTPUT,
    CRI_LINK,
    CRI_TOPICS
} cri_topic;

typedef struct cri_finding {
    size_t node;
    cri_topic topic;
    bool is_error;
    char *text; /* owned */
} cri_finding;

/* A host of the run, or the launcher's, which may have no ranks. */
typedef struct cri_preflight_node {
    const char *name; /* borrowed */
    bool has_ranks, has_hello, has_looked;
    bool is_tried; /* the others connect to it */
    cr_agent_hello hello;
    cr_agent_look look;
    double offset_s, round_trip_s; /* of its clock; round_trip_s 0: not known */
} cri_preflight_node;

typedef struct cri_preflight_part { /* of the time that it took */
    const char *name;
    double seconds;
} cri_preflight_part;
enum { CRI_PARTS = 5 };

struct cr_preflight {
    cr_hosts *hosts;                 /* borrowed */
    const cr_preflight_needs *needs; /* borrowed */
    size_t num, here;                /* nodes; the launcher's */
    cri_preflight_node *node;        /* [num] */
    cr_agent *agent;                 /* [num] */
    cr_buf *question;                /* [num] scratch */
    cr_agent_request
        look;        /* what each is asked; its mark is written for as long as the checks take */
    double marked_s; /* when that was */
    cr_network *network;
    size_t num_networks;
    const cr_network *chosen; /* NULL: none connects all, or there is one host */
    cr_agent_rate *rate;      /* [num * num], from * num + to; latency_s 0: not measured */
    cri_finding *finding;
    size_t num_findings, findings_capacity;
    cri_preflight_part part[CRI_PARTS];
    size_t num_parts;
    double began_s;
    int signal; /* that ended the checks, 0: none */
};

static inline const cr_agent_rate *cri_rate(const cr_preflight *p, size_t from, size_t to)
{
    return &p->rate[from * p->num + to];
}
/* Its agent has failed or ended. */
bool cri_is_out(const cr_preflight *p, size_t i);
/* Every agent's questions go out, and those that have failed are findings. */
void cri_ask(cr_preflight *p, double seconds);
void cri_find_fault(cr_preflight *p, size_t node, cri_topic topic, bool is_error, const char *fmt,
                    ...) CR_PRINTF(5, 6);
/* All pairs of up to 8 hosts; of more hosts 7 partners each, spread over all. */
void cri_measure_links(cr_preflight *p);
/* The best of a host's instruction sets. */
const char *cri_best_cpu(const cr_agent_look *look);
/* "9.1 GB", "64 MB". */
enum { CRI_BYTES_TEXT = 24 };
const char *cri_bytes(double num, char text[CRI_BYTES_TEXT]);

#endif
