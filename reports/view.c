/* view.c -- see view.h. */
#include "reports/view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { CURVE = 24, QUIET_SECONDS = 30 };

struct cr_view {
    int64_t first_step, max_steps;
    char score_name[96];
    double curve[CURVE]; /* the newest scores, oldest first */
    int num_curve;
    double recent_s; /* smoothed duration of a step */
    double said_s;   /* when a line was written */
    bool is_terminal;
};

cr_view *cr_view_create(int64_t first_step, int64_t max_steps, const char *score_name)
{
    cr_view *v = CR_NEW(cr_view);
    const char *term = getenv("TERM");

    if (first_step >= max_steps)
        cr_log(CR_LOG_WARN, "run",
               "nothing is left to do: step %lld is done, and the run ends after %lld steps "
               "(max_steps, or "
               "num_train_epochs of the rows, whichever is less)",
               (long long)first_step - 1, (long long)max_steps);
    v->first_step = first_step;
    v->max_steps = max_steps;
    snprintf(v->score_name, sizeof v->score_name, "%s", score_name);
    v->is_terminal = isatty(STDERR_FILENO) && !getenv("NO_COLOR") && term &&
                     strcmp(term, "dumb") != 0; /* it shows escapes as they are */
    v->said_s = cr_now_s();
    return v;
}

void cr_view_free(cr_view *v)
{
    cr_log_transient("");
    cr_free(v);
}

/* What a step's line shows of its metrics; a pipeline has some of them. */
static const struct {
    const char *label, *name, *fmt;
} numbers[] = {
    {"val", "val_correct/all/mean", "%.3f"},
    {"val", "sft_train/val_loss", "%.4f"},
    {"val", "student/val_loss", "%.4f"},
    {"val acc", "val/rewards/accuracies", "%.3f"},
    {"score", "critic/score/mean", "%.3f"},
    {"loss", "actor/total_loss", "%.4f"},
    {"loss", "sft_train/loss", "%.4f"},
    {"loss", "actor/loss", "%.4f"},
    {"loss", "train/loss", "%.4f"},
    {"distill", "train/train_distill_loss", "%.4f"},
    {"margin", "rewards/margins", "%.4f"},
    {"acc", "rewards/accuracies", "%.3f"},
    {"kl", "critic/kl", "%.4f"},
    {"kl loss", "actor/kl_loss", "%.4f"},
    {"clip", "actor/clipfrac", "%.3f"},
    {"grad", "actor_train/grad_norm", "%.3f"},
    {"grad", "sft_train/grad_norm", "%.3f"},
    {"grad", "student/grad_norm", "%.3f"},
    {"lr", "actor/lr", "%.2e"},
    {"lr", "sft_train/lr", "%.2e"},
    {"lr", "student/lr", "%.2e"},
    {"tok/s", "system/tps/tps", "%.0f"},
};

static void add_number(cr_buf *line, const cr_metrics *m, const char *label, const char *name,
                       const char *fmt)
{
    const double *x = cr_metrics_get(m, name);

    if (!x) return;
    cr_buf_addf(line, "  %s ", label);
    cr_buf_addf(line, fmt, *x);
}

static void add_curve(cr_view *v, cr_buf *line, double score)
{
    static const char *const block[] = {"\u2581", "\u2582", "\u2583", "\u2584",
                                        "\u2585", "\u2586", "\u2587", "\u2588"};
    double min = score, max = score;

    if (v->num_curve == CURVE)
        memmove(v->curve, v->curve + 1, sizeof v->curve - sizeof *v->curve), v->num_curve--;
    v->curve[v->num_curve++] = score;
    for (int i = 0; i < v->num_curve; i++) {
        if (v->curve[i] < min) min = v->curve[i];
        if (v->curve[i] > max) max = v->curve[i];
    }
    cr_buf_adds(line, "  ");
    for (int i = 0; i < v->num_curve; i++)
        cr_buf_adds(line, block[max > min ? (int)(7.99 * (v->curve[i] - min) / (max - min)) : 0]);
}

void cr_view_step(cr_view *v, int64_t step, const cr_metrics *m, double step_s)
{
    static const char *const phase[][2] = {{"gen", "time/step_generate"},
                                           {"ref", "time/ref_log_probs_values"},
                                           {"old", "time/old_log_probs"},
                                           {"train", "time/step_train"},
                                           {"sync", "time/step_model_update"},
                                           {"val", "time/val_step"},
                                           {"val", "time/val"}};
    cr_buf line = {0};
    const double *score = cr_metrics_get(m, v->score_name);
    double left;

    v->recent_s = v->recent_s > 0 ? 0.8 * v->recent_s + 0.2 * step_s : step_s;
    left = v->recent_s * (double)(v->max_steps - step - 1);
    cr_buf_addf(&line, "step %*lld/%lld", v->max_steps > 999 ? 4 : 3, (long long)step,
                (long long)v->max_steps);
    for (size_t i = 0; i < CR_COUNT(numbers); i++)
        add_number(&line, m, numbers[i].label, numbers[i].name, numbers[i].fmt);
    cr_buf_addf(&line, "  %.2f s", step_s);
    for (size_t i = 0, shown = 0; i < CR_COUNT(phase); i++) {
        const double *x = cr_metrics_get(m, phase[i][1]);
        if (!x || *x < 0.0005) continue;
        cr_buf_addf(&line, "%s%s %.2f", shown++ ? " " : " (", phase[i][0], *x);
        if (i + 1 == CR_COUNT(phase)) cr_buf_adds(&line, "");
    }
    if (strchr(line.data, '(')) cr_buf_addc(&line, ')');
    if (left >= 1) cr_buf_addf(&line, "  left %d:%02d", (int)(left / 60), (int)fmod(left, 60));
    if (score && v->is_terminal) add_curve(v, &line, *score);
    v->said_s = cr_now_s();
    cr_log_line(line.data);
    cr_buf_free(&line);
}

void cr_view_progress(cr_view *v, const char *fmt, ...)
{
    char text[120];
    struct winsize size;
    va_list ap;

    if (!v->is_terminal && cr_now_s() - v->said_s < QUIET_SECONDS) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!v->is_terminal) {
        v->said_s = cr_now_s();
        cr_log_line(text);
        return;
    }
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 &&
        strlen(text) >= size.ws_col)
        text[size.ws_col - 1] = 0; /* a text of two lines cannot be replaced */
    cr_log_transient(text);
}
