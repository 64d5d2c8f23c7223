/* base.c -- errors, memory, text buffers, UTF-8, time and the log (see base.h). */
#include "base/base.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- errors ---- */

/* A message may quote outside bytes, and is one line all the same. */
static void make_one_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = ' ';
}

cr_status cr_fail(cr_err *err, cr_status status, const char *fmt, ...)
{
    va_list ap;

    if (err->status != CR_OK) return err->status;
    err->status = status;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    make_one_line(err->msg);
    return status;
}

cr_status cr_fail_add(cr_err *err, const char *fmt, ...)
{
    char old[sizeof err->msg], add[200];
    va_list ap;

    if (err->status == CR_OK) return CR_OK;
    memcpy(old, err->msg, sizeof old);
    va_start(ap, fmt);
    vsnprintf(add, sizeof add, fmt, ap);
    va_end(ap);
    snprintf(err->msg, sizeof err->msg, "%s: %.*s", add, (int)(sizeof old - sizeof add - 3), old);
    make_one_line(err->msg);
    return err->status;
}

int cr_exit_code(cr_status status)
{
    static const int code[] = {
#define CR_STATUS_EXIT(name, exit_code, text) exit_code,
        CR_STATUSES(CR_STATUS_EXIT)
#undef CR_STATUS_EXIT
    };
    return (size_t)status < CR_COUNT(code) ? code[status] : 1;
}

static void (*abort_hook)(void);

void cr_set_abort_hook(void (*hook)(void))
{
    abort_hook = hook;
}

void cr_check_failed(const char *file, int line, const char *cond, const char *fmt, ...)
{
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cr_log(CR_LOG_ERROR, "check", "%s:%d: %s: %s", file, line, cond, text);
    if (abort_hook) abort_hook();
    _exit(1);
}

/* ---- host memory ---- */

/* A limit of this process or of the machine, no fault of the program: a sentence, and the same end. */
static _Noreturn void out_of_memory(size_t num_bytes)
{
    cr_log(CR_LOG_ERROR, "memory",
           "out of memory: there is no room for %zu bytes more (what the machine, its cgroups, "
           "ulimit -v and ulimit -d give is used up)",
           num_bytes);
    if (abort_hook) abort_hook();
    _exit(1);
}

void *cr_alloc(size_t num_bytes)
{
    void *ptr = NULL;
    size_t rounded = (num_bytes + 63) / 64 * 64;

    if (rounded == 0) rounded = 64;
    if (rounded < num_bytes || posix_memalign(&ptr, 64, rounded) != 0) out_of_memory(num_bytes);
    memset(ptr, 0, rounded);
    return ptr;
}

void *cr_realloc(void *old, size_t old_bytes, size_t num_bytes)
{
    void *ptr = cr_alloc(num_bytes);

    if (old) memcpy(ptr, old, old_bytes < num_bytes ? old_bytes : num_bytes);
    free(old);
    return ptr;
}

void *cr_grow(void *array, size_t num, size_t *capacity, size_t elem_bytes)
{
    size_t old = *capacity;

    if (num < old) return array;
    *capacity = old ? 2 * old : 16;
    return cr_realloc(array, old * elem_bytes, *capacity * elem_bytes);
}

void *cr_reserve(void *array, size_t *capacity, size_t num, size_t elem_bytes)
{
    size_t old = *capacity * elem_bytes;

    if (num <= *capacity) return array;
    *capacity = num + num / 2;
    return cr_realloc(array, old, *capacity * elem_bytes);
}

void cr_free(void *ptr)
{
    free(ptr);
}

char *cr_strndup(const char *text, size_t num_bytes)
{
    char *copy = cr_alloc(num_bytes + 1);

    memcpy(copy, text, num_bytes);
    return copy;
}

char *cr_strdup(const char *text)
{
    return cr_strndup(text, strlen(text));
}

struct cr_arena {
    struct block {
        struct block *next;
        size_t used, capacity;
        char *data;
    } * first, *current;
    size_t block_bytes;
};

static struct block *block_create(size_t capacity)
{
    struct block *b = CR_NEW(struct block);
    void *data = NULL;

    if (posix_memalign(&data, 64, capacity) != 0) out_of_memory(capacity);
    b->data = data;
    b->capacity = capacity;
    return b;
}

cr_arena *cr_arena_create(size_t block_bytes)
{
    cr_arena *arena = CR_NEW(cr_arena);

    arena->block_bytes = (block_bytes + 63) / 64 * 64;
    arena->first = arena->current = block_create(arena->block_bytes);
    return arena;
}

void cr_arena_destroy(cr_arena *arena)
{
    if (!arena) return;
    for (struct block *b = arena->first, *next; b; b = next) {
        next = b->next;
        free(b->data);
        free(b);
    }
    free(arena);
}

void *cr_arena_alloc(cr_arena *arena, size_t num_bytes)
{
    size_t need = (num_bytes + 63) / 64 * 64;

    while (arena->current->capacity - arena->current->used < need) {
        if (!arena->current->next)
            arena->current->next =
                block_create(need > arena->block_bytes ? need : arena->block_bytes);
        arena->current = arena->current->next;
    }
    arena->current->used += need;
    return arena->current->data + arena->current->used - need;
}

char *cr_arena_strndup(cr_arena *arena, const char *text, size_t num_bytes)
{
    char *copy = cr_arena_alloc(arena, num_bytes + 1);

    memcpy(copy, text, num_bytes);
    copy[num_bytes] = 0;
    return copy;
}

/* ---- growable bytes ---- */

void cr_buf_free(cr_buf *buf)
{
    free(buf->data);
    *buf = (cr_buf){0};
}

void cr_buf_clear(cr_buf *buf)
{
    buf->num_bytes = 0;
    if (buf->data) buf->data[0] = 0;
}

void cr_buf_reserve(cr_buf *buf, size_t num_bytes)
{
    size_t want = buf->capacity_bytes ? buf->capacity_bytes : 64;
    char *data;

    if (num_bytes < buf->capacity_bytes) return;
    while (want <= num_bytes)
        want *= 2;
    data = realloc(buf->data, want);
    if (!data) out_of_memory(want);
    buf->data = data;
    buf->data[buf->num_bytes] = 0;
    buf->capacity_bytes = want;
}

void cr_buf_add(cr_buf *buf, const void *data, size_t num_bytes)
{
    cr_buf_reserve(buf, buf->num_bytes + num_bytes);
    if (num_bytes) memcpy(buf->data + buf->num_bytes, data, num_bytes);
    buf->num_bytes += num_bytes;
    buf->data[buf->num_bytes] = 0;
}

void cr_buf_adds(cr_buf *buf, const char *text)
{
    cr_buf_add(buf, text, strlen(text));
}

void cr_buf_addc(cr_buf *buf, char c)
{
    cr_buf_add(buf, &c, 1);
}

static void add_formatted(cr_buf *buf, const char *fmt, va_list ap)
{
    enum { USUAL = 64 };
    size_t room;
    va_list again;
    int n;

    cr_buf_reserve(buf, buf->num_bytes + USUAL);
    room = buf->capacity_bytes - buf->num_bytes;
    va_copy(again, ap);
    n = vsnprintf(buf->data + buf->num_bytes, room, fmt, again);
    va_end(again);
    CR_CHECK(n >= 0, "bad format %s", fmt);
    if ((size_t)n >= room) {
        cr_buf_reserve(buf, buf->num_bytes + (size_t)n);
        vsnprintf(buf->data + buf->num_bytes, (size_t)n + 1, fmt, ap);
    }
    buf->num_bytes += (size_t)n;
}

void cr_buf_addf(cr_buf *buf, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    add_formatted(buf, fmt, ap);
    va_end(ap);
}

char *cr_asprintf(const char *fmt, ...)
{
    cr_buf buf = {0};
    va_list ap;

    va_start(ap, fmt);
    add_formatted(&buf, fmt, ap);
    va_end(ap);
    return buf.data;
}

/* ---- names ---- */

/* Levenshtein distance, at most `limit` + 1. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row[128], n = strlen(b);

    if (n >= CR_COUNT(row)) return SIZE_MAX;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t keep = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = row[j] + 1 < keep ? row[j] + 1 : keep;
            if (row[j - 1] + 1 < row[j]) row[j] = row[j - 1] + 1;
        }
    }
    return row[n];
}

const char *cr_nearest(const char *name, const char *const *names, size_t num_names)
{
    const char *best = NULL;
    size_t min = strlen(name) / 2 + 1;

    for (size_t i = 0; i < num_names; i++) {
        size_t d = edit_distance(name, names[i]);
        if (d <= min) {
            best = names[i];
            if (d == 0) return best;
            min = d - 1;
        }
    }
    return best;
}

/* ---- UTF-8 ---- */

int cr_utf8_decode(const char *text, size_t num_bytes, uint32_t *code_point)
{
    const unsigned char *s = (const unsigned char *)text;
    uint32_t c, min;
    int n;

    if (num_bytes == 0) return 0;
    c = s[0];
    if (c < 0x80) {
        *code_point = c;
        return 1;
    }
    if (c >= 0xC2 && c < 0xE0)
        n = 2, c &= 0x1F, min = 0x80;
    else if (c >= 0xE0 && c < 0xF0)
        n = 3, c &= 0x0F, min = 0x800;
    else if (c >= 0xF0 && c < 0xF5)
        n = 4, c &= 0x07, min = 0x10000;
    else
        return 0;
    if ((size_t)n > num_bytes) return 0;
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3F);
    }
    if (c < min || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return 0;
    *code_point = c;
    return n;
}

int cr_utf8_encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

bool cr_utf8_valid(const char *text, size_t num_bytes)
{
    uint32_t c;

    for (size_t i = 0; i < num_bytes;) {
        int n = cr_utf8_decode(text + i, num_bytes - i, &c);
        if (n == 0) return false;
        i += (size_t)n;
    }
    return true;
}

/* ---- time ---- */

static double clock_s(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int cr_by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double cr_now_s(void)
{
    return clock_s(CLOCK_MONOTONIC);
}

double cr_wall_s(void)
{
    return clock_s(CLOCK_REALTIME);
}

void cr_sleep_s(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};

    if (seconds > 0) nanosleep(&t, NULL);
}

/* ---- log ---- */

static struct {
    pthread_mutex_t lock;
    cr_level min;
    const char *who;
    int tee_fd;
    bool has_transient;
} sink = {PTHREAD_MUTEX_INITIALIZER, CR_LOG_INFO, NULL, -1, false};

void cr_log_setup(cr_level min, const char *who)
{
    sink.min = min;
    sink.who = who;
}

void cr_log_tee(int fd)
{
    pthread_mutex_lock(&sink.lock);
    sink.tee_fd = fd;
    pthread_mutex_unlock(&sink.lock);
}

/* Nowhere is left to report a failed write of the log. */
static void put(int fd, const char *text, size_t num_bytes)
{
    while (num_bytes > 0) {
        ssize_t n = write(fd, text, num_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return;
        text += n;
        num_bytes -= (size_t)n;
    }
}

void cr_put_line(int fd, const char *line)
{
    char text
        [4096]; /* written at once with its newline, so that lines of several processes stay lines */
    size_t n = 0;

    for (const char *p = line; *p; p++) {
        unsigned char c = (unsigned char)*p, next = (unsigned char)p[1];
        bool is_c1 = c == 0xc2 && next >= 0x80 && next < 0xa0; /* U+0080 to U+009F */
        if (n + 8 > sizeof text) {
            put(fd, text, n);
            n = 0;
        }
        if ((c >= 0x20 && c != 0x7f && !is_c1) || c == '\n' || c == '\t')
            text[n++] = (char)c;
        else
            n += (size_t)snprintf(text + n, sizeof text - n, "\\x%02x", is_c1 ? next : c);
        p += is_c1;
    }
    text[n++] = '\n';
    put(fd, text, n);
}

static void put_transient(const char *text)
{
    static const char clear[] = "\r\033[K";

    if (sink.has_transient) put(STDERR_FILENO, clear, sizeof clear - 1);
    put(STDERR_FILENO, text, strlen(text));
    sink.has_transient = *text != 0;
}

void cr_log_transient(const char *text)
{
    pthread_mutex_lock(&sink.lock);
    put_transient(text);
    pthread_mutex_unlock(&sink.lock);
}

void cr_log_line(const char *line)
{
    char stamp[32];
    time_t now = time(NULL);
    struct tm tm;

    pthread_mutex_lock(&sink.lock);
    put_transient("");
    cr_put_line(STDERR_FILENO, line);
    if (sink.tee_fd >= 0) {
        put(sink.tee_fd, stamp,
            strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S ", localtime_r(&now, &tm)));
        cr_put_line(sink.tee_fd, line);
    }
    pthread_mutex_unlock(&sink.lock);
}

void cr_log(cr_level level, const char *room, const char *fmt, ...)
{
    static const char *const word[] = {"debug", "info", "warning", "error"};
    char text[1024], line[1200];
    va_list ap;

    if (level < sink.min) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(line, sizeof line, "%s%s%s: %s: %s", sink.who ? sink.who : "", sink.who ? ": " : "",
             room, word[level], text);
    cr_log_line(line);
}
