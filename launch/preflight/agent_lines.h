/* agent_lines.h -- what the launcher and the `croll agent` of each host say to each other: one JSON object a line.
 *
 *     launcher                                              agent
 *     {"ask":"hello","node":1,"token":"32 hex digits"}      {"digest":"64 hex digits","host":"b","port":40123}
 *     {"ask":"clock"}                                       {"wall_s":1700000000.123456}
 *     {"ask":"look","models":["/m"],"folder":"/out",
 *      "mark":"/out/.croll-hosts","text":"16 digits",
 *      "seconds":0}                                         {"addresses":[..],"shm":..,"models":[..],..}: the mark is waited for that long
 *     {"ask":"connect","seconds":1.5,"to":[{"node":0,
 *      "address":"10.0.0.1","port":40123},..]}              {"tries":["","timed out",..]}: "" has connected
 *     {"ask":"measure","seconds":0.1,"to":[ one ]}          {"latency_s":5.1e-05,"bytes_per_s":1.2e+10}: from there to here
 *     anything                                              {"error":"why it cannot"}
 *
 * Both sides read what another machine wrote: unknown keys are let pass, a missing or wrong one is CR_EFORMAT.
 */
#ifndef CR_AGENT_LINES_H
#define CR_AGENT_LINES_H

#include "base/base.h"

enum { CR_AGENT_TOKEN = 32, CR_AGENT_ADDRESS = 16, CR_AGENT_NAME = 64 };

typedef enum cr_agent_ask {
    CR_AGENT_HELLO,
    CR_AGENT_CLOCK,
    CR_AGENT_LOOK,
    CR_AGENT_CONNECT,
    CR_AGENT_MEASURE,
    CR_AGENT_ASKS
} cr_agent_ask;

typedef struct cr_agent_peer {
    int node; /* who has to answer there */
    char address[CR_AGENT_ADDRESS];
    int port;
} cr_agent_peer;

typedef struct cr_agent_request {
    cr_agent_ask ask;
    int node;
    char token[CR_AGENT_TOKEN + 1];
    char **model; /* [num_models] owned, as the texts below */
    size_t num_models;
    char *folder, *mark, *text; /* NULL: not asked for */
    double seconds;
    cr_agent_peer *to; /* [num_to] owned */
    size_t num_to;
} cr_agent_request;

void cr_agent_request_write(const cr_agent_request *request, cr_buf *line); /* with its newline */
CR_MUST cr_status cr_agent_request_read(const char *line, size_t num_bytes, cr_agent_request *out,
                                        cr_err *err);
void cr_agent_request_free(cr_agent_request *request);

typedef struct cr_agent_hello {
    char digest[65], host[CR_AGENT_NAME];
    int port;
} cr_agent_hello;

/* An IPv4 address of a host; loopback is left out. */
typedef struct cr_agent_address {
    char name[16], address[CR_AGENT_ADDRESS];
    int bits;      /* of its network's prefix */
    int64_t mbits; /* speed of its interface; 0: not known */
} cr_agent_address;

typedef struct cr_agent_model {
    char digest[65], error[200]; /* either is "" */
    int64_t num_bytes;
} cr_agent_model;

typedef struct cr_agent_look {
    cr_agent_address *address; /* [num_addresses] owned */
    size_t num_addresses;
    cr_agent_model *model; /* [num_models] owned */
    size_t num_models;
    int64_t shm, memory,
        disk;       /* bytes free; disk: of the file system of the folder, -1: not asked for */
    int64_t files;  /* that a process may open */
    bool has_mark;  /* the text was found at the mark */
    bool has_orted; /* Open MPI's daemon is in PATH */
    int num_gpus, num_cores, num_nodes; /* nodes: NUMA */
    char gpu[CR_AGENT_NAME];
    char cpus
        [2 *
         CR_AGENT_NAME]; /* instruction sets of device cpu, narrowest first, with spaces between */
} cr_agent_look;

typedef struct cr_agent_rate {
    double latency_s, bytes_per_s;
} cr_agent_rate;

/* Answers. {"error": ..} is CR_EPEER with its text. */
CR_MUST cr_status cr_agent_hello_read(const char *line, size_t num_bytes, cr_agent_hello *out,
                                      cr_err *err);
CR_MUST cr_status cr_agent_clock_read(const char *line, size_t num_bytes, double *wall_s,
                                      cr_err *err);
CR_MUST cr_status cr_agent_look_read(const char *line, size_t num_bytes, cr_agent_look *out,
                                     cr_err *err);
/* num: how many were asked for. The texts are owned by the caller, the array, too. */
CR_MUST cr_status cr_agent_tries_read(const char *line, size_t num_bytes, size_t num, char ***out,
                                      cr_err *err);
CR_MUST cr_status cr_agent_rate_read(const char *line, size_t num_bytes, cr_agent_rate *out,
                                     cr_err *err);
void cr_agent_look_write(const cr_agent_look *look, cr_buf *line);
void cr_agent_look_free(cr_agent_look *look); /* {0} is fine */
void cr_agent_texts_free(char **texts, size_t num);

#endif
