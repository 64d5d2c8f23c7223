/* exchange.h -- commands, prompts, samples and rewards between the processes of a run, over Redis.
 *
 * A sample has one life: queued -> generating -> generated -> scoring -> scored -> trained. Each arrow
 * is one stream with one consumer group; moving on is one atomic script (append to the next stream
 * unless this id was already appended, acknowledge here). A worker that dies leaves its entries
 * pending: the next one with the same consumer name gets them first, any other after claim_s. Ids
 * decide duplicates, so a retry after a lost reply is harmless.
 *
 *     prompts  --group "actor_infer"-->  generated:<domain>  --group "reward"-->  scored  --"pipeline"-->
 *     cmd:<role>:<rank>  pipeline to one actor rank;  reply:<request>  back;  hb:<role>:<rank>  alive
 *
 * Messages are opaque bytes (record.h). Every call ends within the deadline of its connection
 * (CR_ETIMEOUT); a lost connection is made again within it, also while Redis restarts and loads.
 * Threads: one connection a thread. Many processes of any language may take part: docs/exchange.md.
 */
#ifndef CR_EXCHANGE_H
#define CR_EXCHANGE_H

#include "exchange/args.h"

typedef struct cr_exchange cr_exchange;

/* CR_ECONFIG: it cannot be reached so. The texts of args are copied. */
CR_MUST cr_status cr_exchange_open(const cr_exchange_args *args, cr_exchange **out, cr_err *err);
void cr_exchange_close(cr_exchange *x); /* accepts NULL */
void cr_exchange_set_prefix(cr_exchange *x, const char *prefix);
void cr_exchange_set_deadline(cr_exchange *x, double deadline_s);
bool cr_exchange_is_connected(const cr_exchange *x); /* as its last call left it */
/* The server's address for messages: without user and password. Borrowed. */
const char *cr_exchange_address(const cr_exchange *x);
/* The launcher of a run gives the url, which may hold a password, to its processes in this variable. */
#define CR_EXCHANGE_VARIABLE "CROLL_EXCHANGE_URL"
/* The variable's text (owned) or NULL; it is removed, so that programs started from here do not see it. */
char *cr_exchange_take_variable(void);

CR_MUST cr_status cr_exchange_open_revived(const cr_exchange_args *args, cr_exchange_revive revive,
                                           void *ctx, cr_exchange **out, cr_err *err);

/* ---- the embedded server ---- */

/* Write FOLDER/redis.conf (append-only file in FOLDER, socket with mode 0700) and give
 * the words that start it and its url. address: NULL, no TCP port; or that of this host which it also listens on, with a
 * password made for it: in the url, and in redis.conf, which only this user can read. A socket path longer than a unix address goes to a fresh
 * folder below /tmp. All owned by the caller; argv is NULL-terminated. */
typedef struct cr_server_plan {
    char *argv[3], *url, *socket_path,
        *socket_folder; /* socket_folder: to remove at the end, or NULL */
} cr_server_plan;
CR_MUST cr_status cr_server_plan_make(const char *folder, const char *address, cr_server_plan *out,
                                      cr_err *err);
void cr_server_plan_free(cr_server_plan *plan); /* removes the socket and its folder */

/* ---- streams ---- */

typedef struct cr_entry {
    char stream_id[40]; /* Redis' id */
    char stream[64];    /* which stream it came from (without prefix) */
    char *id;           /* the message's own id (owned) */
    char *data;         /* [num_bytes] (owned) */
    size_t num_bytes;
} cr_entry;

typedef struct cr_entries {
    cr_entry *items;
    size_t num;
} cr_entries;
void cr_entry_free(cr_entry *entry); /* what it owns */
void cr_entries_free(cr_entries *entries);

/* Make a stream and its group; nothing happens when they exist. */
CR_MUST cr_status cr_stream_make(cr_exchange *x, const char *stream, const char *group,
                                 cr_err *err);
/* Append unless `id` was appended to this stream before (CR_OK too; *is_new: it was not; may be NULL). */
CR_MUST cr_status cr_stream_put(cr_exchange *x, const char *stream, const char *id,
                                const void *data, size_t num_bytes, bool *is_new, cr_err *err);
/* Up to `most` entries of the streams (all have the group): first what this consumer took before and
 * never finished (once after each connect), then what others left for claim_s, then new ones,
 * waiting at most block_s (0: do not wait). None is CR_OK with num 0. */
CR_MUST cr_status cr_stream_take(cr_exchange *x, const char *const *streams, size_t num_streams,
                                 const char *group, const char *consumer, size_t max,
                                 double block_s, double claim_s, cr_entries *out, cr_err *err);
/* One atomic step: append messages to their streams, those whose ids were not appended there before, and finish `entry`
 * (acknowledge and delete; NULL: none) in the stream it came from. *num_new (or NULL): messages that were appended. */
typedef struct cr_stream_message {
    const char *stream, *id;
    const void *data;
    size_t num_bytes;
} cr_stream_message;
CR_MUST cr_status cr_stream_move(cr_exchange *x, const cr_entry *entry, const char *group,
                                 const cr_stream_message *messages, size_t num, size_t *num_new,
                                 cr_err *err);
/* Commands that are sent with the next one, to save their way there and back; a failure is the next
 * one's. As cr_stream_put and cr_stream_move. */
void cr_stream_put_later(cr_exchange *x, const char *stream, const char *id, const void *data,
                         size_t num_bytes);
void cr_stream_move_later(cr_exchange *x, const cr_entry *entry, const char *group,
                          const cr_stream_message *messages, size_t num);
/* Finish entries. */
void cr_stream_done(cr_exchange *x, const cr_entry *entries, size_t num, const char *group);
/* Forget the ids seen by a stream (a step is over) and what is still in it. */
void cr_stream_clear(cr_exchange *x, const char *stream);
/* Send them now. */
CR_MUST cr_status cr_exchange_flush(cr_exchange *x, cr_err *err);
/* Entries that wait or are being worked on. */
CR_MUST cr_status cr_stream_length(cr_exchange *x, const char *stream, int64_t *out, cr_err *err);

/* ---- tables: values by name that many readers look up ---- */

/* Sent with the next command. */
void cr_table_put_later(cr_exchange *x, const char *table, const char *name, const void *data,
                        size_t num_bytes);
void cr_table_remove_later(cr_exchange *x, const char *table, const char *name);
/* out [num] is replaced; empty where the table has no such name. */
CR_MUST cr_status cr_table_get(cr_exchange *x, const char *table, const char *const *names,
                               size_t num, cr_buf *out, cr_err *err);
void cr_table_clear(cr_exchange *x, const char *table); /* with the next command */

/* ---- small values: replies and signs of life ---- */

CR_MUST cr_status cr_reply_put(cr_exchange *x, const char *request, const void *data,
                               size_t num_bytes, cr_err *err);
/* Wait at most block_s; *is_there false when nothing came. out is replaced. */
CR_MUST cr_status cr_reply_wait(cr_exchange *x, const char *request, double block_s, cr_buf *out,
                                bool *is_there, cr_err *err);
CR_MUST cr_status cr_value_set(cr_exchange *x, const char *key, const char *text, cr_err *err);
void cr_value_set_later(cr_exchange *x, const char *key, const char *text);
/* out [num] is replaced; empty where a key is not there. */
CR_MUST cr_status cr_values_get(cr_exchange *x, const char *const *keys, size_t num, cr_buf *out,
                                cr_err *err);

/* ---- who owns the prefix ---- */

/* Own all keys of this prefix for lease_s, or go on owning them: called again before the lease ends. run_id
 * names the run, the same after it was resumed; who is shown to others. CR_ECONFIG: another run owns them. */
CR_MUST cr_status cr_prefix_hold(cr_exchange *x, const char *run_id, const char *who,
                                 double lease_s, cr_err *err);
/* Remove every key of this prefix but its owner's. */
CR_MUST cr_status cr_prefix_wipe(cr_exchange *x, cr_err *err);
/* Own it no longer, if run_id does. */
CR_MUST cr_status cr_prefix_release(cr_exchange *x, const char *run_id, cr_err *err);

#endif
