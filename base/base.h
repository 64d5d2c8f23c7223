/* base.h -- what every room stands on: errors, memory, text buffers, files, time and the log.
 *
 * Nothing here depends on what croll does. Whatever can fail returns a cr_status and fills a cr_err with
 * one sentence (what, where, what to do); callers add context with cr_fail_add and only main logs
 * it. Broken invariants abort through CR_CHECK, which reports it to the other ranks first. Host memory that
 * cannot be had is such an abort: no caller could go on without it.
 *
 * Threads: the log may be called from any thread; everything else belongs to its caller.
 */
#ifndef CR_BASE_H
#define CR_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CR_MUST         __attribute__((warn_unused_result))
#define CR_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define CR_COUNT(a)     (sizeof(a) / sizeof((a)[0]))

#ifndef CR_FLOAT64
typedef float cr_float32; /* 32 bits in every build (base/float64.h) */
#endif

static inline int64_t cr_max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- errors ---- */

/* Name, exit code of the command that ends with it, meaning. */
#define CR_STATUSES(X)                              \
    X(CR_OK, 0, "no error")                         \
    X(CR_EUSAGE, 2, "wrong usage")                  \
    X(CR_ECONFIG, 2, "wrong configuration")         \
    X(CR_EFORMAT, 2, "malformed input")             \
    X(CR_EARG, 2, "argument out of range")          \
    X(CR_EABSENT, 2, "not available")               \
    X(CR_EIO, 1, "input or output failed")          \
    X(CR_EPEER, 1, "another process failed")        \
    X(CR_ENUMERIC, 1, "a number is not finite")     \
    X(CR_ETIMEOUT, 3, "a deadline passed")          \
    X(CR_EDIVERGED, 3, "ranks do different things") \
    X(CR_ESIGNAL, 130, "stopped by a signal")

typedef enum cr_status {
#define CR_STATUS_ENUM(name, exit_code, text) name,
    CR_STATUSES(CR_STATUS_ENUM)
#undef CR_STATUS_ENUM
} cr_status;

typedef struct cr_err {
    cr_status status; /* CR_OK until something fails; the first failure wins */
    char msg[480];    /* what, where, what to do; outermost context first; no newline */
} cr_err;

/* Record a failure and return its status: `return cr_fail(err, CR_EFORMAT, "...", ...);`
 * A failure that is already recorded is kept. */
cr_status cr_fail(cr_err *err, cr_status status, const char *fmt, ...) CR_PRINTF(3, 4);
/* Prefix context to the recorded failure: "step 40: unit 3 has 512 elements, expected 768". */
cr_status cr_fail_add(cr_err *err, const char *fmt, ...) CR_PRINTF(2, 3);
int cr_exit_code(cr_status status);
/* For a call whose failure is looked at in err afterwards: cr_note(cr_foo(.., err)). */
static inline void cr_note(cr_status status)
{
    (void)status;
}

/* The only two macros that change control flow. */
#define CR_TRY(expr)                        \
    do {                                    \
        cr_status cr_st_ = (expr);          \
        if (cr_st_ != CR_OK) return cr_st_; \
    } while (0)
#define CR_TRY_GOTO(label, expr)         \
    do {                                 \
        if ((expr) != CR_OK) goto label; \
    } while (0)

/* Our assert, never compiled out: prints file and line, calls the abort hook, exits with 1. */
#define CR_CHECK(cond, ...) \
    ((cond) ? (void)0 : cr_check_failed(__FILE__, __LINE__, #cond, __VA_ARGS__))
void cr_check_failed(const char *file, int line, const char *cond, const char *fmt, ...)
    CR_PRINTF(4, 5) __attribute__((noreturn));
/* mesh installs MPI_Abort here, so that no peer waits for a dead rank. NULL: plain exit. */
void cr_set_abort_hook(void (*hook)(void));

/* ---- host memory: aligned to 64 bytes, zeroed, never NULL (0 bytes give a valid pointer) ---- */

void *cr_alloc(size_t num_bytes);
void *cr_realloc(void *old, size_t old_bytes, size_t num_bytes); /* new bytes are zero */
void cr_free(void *ptr);                                         /* accepts NULL */
/* `array` with room for one element after its first num; it has *capacity elements and grows to twice as many. */
void *cr_grow(void *array, size_t num, size_t *capacity, size_t elem_bytes);
/* `array` with room for num elements; it has *capacity, and grows to half as many again. */
void *cr_reserve(void *array, size_t *capacity, size_t num, size_t elem_bytes);
char *cr_strdup(const char *text);
char *cr_strndup(const char *text, size_t num_bytes);
char *cr_asprintf(const char *fmt, ...) CR_PRINTF(1, 2); /* owned by the caller */
#define CR_NEW(type)          ((type *)cr_alloc(sizeof(type)))
#define CR_NEW_ARRAY(type, n) ((type *)cr_alloc(sizeof(type) * (size_t)(n)))

/* A stack of memory: allocations are freed together by going back to a mark. */
typedef struct cr_arena cr_arena;
cr_arena *cr_arena_create(size_t block_bytes);
void cr_arena_destroy(cr_arena *arena);                  /* accepts NULL */
void *cr_arena_alloc(cr_arena *arena, size_t num_bytes); /* aligned to 64 bytes, not zeroed */
char *cr_arena_strndup(cr_arena *arena, const char *text, size_t num_bytes);

/* ---- growable text or bytes; {0} is an empty one ---- */

typedef struct cr_buf {
    char *data; /* owned, NUL-terminated after every call; NULL while empty */
    size_t num_bytes, capacity_bytes;
} cr_buf;
void cr_buf_free(cr_buf *buf);
void cr_buf_clear(cr_buf *buf); /* keeps the memory */
void cr_buf_reserve(cr_buf *buf, size_t num_bytes);
void cr_buf_add(cr_buf *buf, const void *data, size_t num_bytes);
void cr_buf_adds(cr_buf *buf, const char *text);
void cr_buf_addc(cr_buf *buf, char c);
void cr_buf_addf(cr_buf *buf, const char *fmt, ...) CR_PRINTF(2, 3);

/* ---- files and names ---- */

/* Read a whole file (or, for "-", stdin). data gets a NUL after its last byte. CR_EIO, also for what takes more than a
 * third of the memory that is left, so that a file without an end is an error. */
CR_MUST cr_status cr_file_read(const char *path, cr_buf *out, cr_err *err);
/* Write to a temporary name in the same folder, fsync, rename: it appears whole or not at all. */
CR_MUST cr_status cr_file_write_atomic(const char *path, const void *data, size_t num_bytes,
                                       cr_err *err);
/* Returns the line of text at *at and advances *at past it; NULL at the end. Its newline is at [*num_bytes]: the
 * last line may have none there. Bytes are bytes: a NUL is one of a line. */
const char *cr_line_next(const cr_buf *text, size_t *at, size_t *num_bytes);
void cr_folder_sync(const char *path);                      /* so that a rename in it lasts */
CR_MUST cr_status cr_mkdirs(const char *path, cr_err *err); /* like mkdir -p */
CR_MUST cr_status cr_remove_tree(const char *path, cr_err *err);
bool cr_file_exists(const char *path);
bool cr_dir_exists(const char *path);
char *cr_path_join(const char *folder, const char *name); /* owned by the caller */
/* The name of `names` nearest to `name` by edit distance, or NULL if none is near. */
const char *cr_nearest(const char *name, const char *const *names, size_t num_names);

/* ---- UTF-8 ---- */

/* Decode one code point; returns its bytes (1 to 4), 0 at a malformed sequence. */
int cr_utf8_decode(const char *text, size_t num_bytes, uint32_t *code_point);
int cr_utf8_encode(uint32_t code_point, char out[4]);
bool cr_utf8_valid(const char *text, size_t num_bytes);

/* ---- time ---- */

double cr_now_s(void);  /* monotonic seconds */
double cr_wall_s(void); /* seconds since 1970 */
void cr_sleep_s(double seconds);

/* For qsort: doubles in ascending order. */
int cr_by_double(const void *a, const void *b);

/* Cores that this process may use. */
int cr_num_cores(void);

/* ---- log: stderr, one line an event ---- */

typedef enum cr_level { CR_LOG_DEBUG, CR_LOG_INFO, CR_LOG_WARN, CR_LOG_ERROR } cr_level;
/* who: borrowed for ever, e.g. "actor_train r1"; NULL: no name in the line. */
void cr_log_setup(cr_level min, const char *who);
void cr_log_tee(int fd);            /* also write each line, with its time, to fd; -1: stop */
void cr_log_line(const char *line); /* one line, to stderr and the tee */
/* Of a terminal: a text without newline on stderr that the next one, or the next line, replaces; "" clears it. */
void cr_log_transient(const char *text);
/* A line of a message: control characters that came with a text of others (a terminal would obey them) as \x1b. */
void cr_put_line(int fd, const char *line);
void cr_log(cr_level level, const char *room, const char *fmt, ...) CR_PRINTF(3, 4);

#ifdef __cplusplus
}
#endif
#endif
