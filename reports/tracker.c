/* tracker.c -- see tracker.h. */
#include "reports/tracker.h"
#include "base/json.h"
#include "reports/tensorboard.h"
#include "reports/track_program.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct cr_tracker {
    int fd;
    bool is_stdout;
    cr_tensorboard *tensorboard;
    cr_track_program *program;
    bool has_warned;
};

/* Keep the lines of steps before first_step, and count them; a torn last line (killed while writing) goes too. */
static cr_status cut_lines(const char *path, int64_t first_step, int64_t *num_kept, cr_err *err)
{
    cr_buf old = {0}, kept = {0};
    cr_status status = cr_file_read(path, &old, err);
    size_t at = 0, n;

    for (const char *line; status == CR_OK && (line = cr_line_next(&old, &at, &n));) {
        json_t *row = NULL;
        cr_err ignored = {0};
        if (line[n] == '\n' && cr_json_parse(line, n, path, &row, &ignored) == CR_OK &&
            json_is_integer(json_object_get(row, "step")) &&
            json_integer_value(json_object_get(row, "step")) < first_step) {
            cr_buf_add(&kept, line, n + 1);
            ++*num_kept;
        }
        json_decref(row);
    }
    if (status == CR_OK)
        status = cr_file_write_atomic(path, kept.data ? kept.data : "", kept.num_bytes, err);
    cr_buf_free(&old);
    cr_buf_free(&kept);
    return status;
}

cr_status cr_tracker_open(const cr_config *c, const char *output_dir, int64_t first_step,
                          cr_tracker **out, cr_err *err)
{
    char *path = cr_path_join(output_dir, "metrics.jsonl");
    cr_tracker *t = CR_NEW(cr_tracker);
    cr_status status = CR_OK;
    int64_t num_kept = 0;

    *out = NULL;
    if (cr_file_exists(path)) status = cut_lines(path, first_step, &num_kept, err);
    if (status == CR_OK && num_kept < first_step && !c->rollouts_from)
        cr_log(
            CR_LOG_WARN, "metrics",
            "%s has lines of %lld of the %lld steps before this resume (was it removed, or is it "
            "another folder?)",
            path, (long long)num_kept, (long long)first_step);
    t->fd = status == CR_OK ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    if (status == CR_OK && t->fd < 0)
        status = cr_fail(err, CR_EIO, "cannot write %s: %s", path, strerror(errno));
    t->is_stdout = c->track_with == CR_TRACK_STDOUT;
    if (status == CR_OK && c->track_with == CR_TRACK_TENSORBOARD)
        status = cr_tensorboard_open(c->tracker_log_dir ? c->tracker_log_dir : output_dir,
                                     &t->tensorboard, err);
    if (status == CR_OK && c->track_with == CR_TRACK_EXEC)
        status = cr_track_program_open(c, output_dir, first_step, &t->program, err);
    cr_free(path);
    if (status == CR_OK)
        *out = t;
    else
        cr_tracker_close(t);
    return status;
}

cr_status cr_tracker_log(cr_tracker *t, int64_t step, cr_metrics *m, cr_err *err)
{
    struct stat st;
    cr_buf line = {0};
    size_t num_bad = 0;
    cr_status status = CR_OK;

    for (size_t i = 0; i < m->num; i++) {
        if (isfinite(m->items[i].value)) continue;
        if (!t->has_warned)
            cr_log(CR_LOG_WARN, "metrics",
                   "step %lld: %s is not finite and is left out of the files", (long long)step,
                   m->items[i].name);
        t->has_warned = true;
        num_bad++;
    }
    if (num_bad) cr_metrics_set(m, (double)num_bad, "system/nonfinite_metrics");
    cr_buf_addf(&line, "{\"step\":%lld", (long long)step);
    for (size_t i = 0; i < m->num && status == CR_OK; i++) {
        if (!isfinite(m->items[i].value)) continue;
        cr_buf_addc(&line, ',');
        cr_json_add_string(&line, m->items[i].name, strlen(m->items[i].name));
        cr_buf_addc(&line, ':');
        status = cr_json_add_double(&line, m->items[i].value, err);
    }
    cr_buf_adds(&line, "}\n");
    if (fstat(t->fd, &st) == 0 && st.st_nlink == 0)
        status =
            cr_fail(err, CR_EIO,
                    "metrics.jsonl was removed while the run goes on: its lines would be lost");
    for (size_t done = 0; status == CR_OK && done < line.num_bytes;) {
        ssize_t n = write(t->fd, line.data + done, line.num_bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            status = cr_fail(err, CR_EIO, "cannot write metrics.jsonl: %s", strerror(errno));
        else
            done += (size_t)n;
    }
    if (status == CR_OK && t->is_stdout &&
        (fputs(line.data, stdout) == EOF || fflush(stdout) != 0)) {
        cr_log(CR_LOG_WARN, "metrics",
               "stdout cannot be written: no more lines go there, metrics.jsonl has all");
        t->is_stdout = false;
        clearerr(stdout); /* the run goes on */
    }
    if (status == CR_OK && t->program) cr_track_program_add(t->program, line.data, line.num_bytes);
    if (status == CR_OK && t->tensorboard)
        status = cr_tensorboard_add(t->tensorboard, step, m, err);
    cr_buf_free(&line);
    return status;
}

void cr_tracker_close(cr_tracker *t)
{
    if (!t) return;
    if (t->fd >= 0) close(t->fd);
    cr_tensorboard_close(t->tensorboard);
    cr_track_program_close(t->program);
    cr_free(t);
}
