/* bisect.c -- see bisect.h. */
#include "pipelines/bisect/bisect.h"
#include "configs/configs.h"
#include "pipelines/bisect/saved.h"
#include "pipelines/checkpoint.h"
#include "samples/messages.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum phase { VALIDATION, PROMPTS, GENERATE, REWARD, ADVANTAGE, METRICS, CHECKPOINT } phase;
static const char *const phase_names[] = {"validation", "prompts", "generation", "rewards",
                                          "advantages", "metrics", "checkpoint"};

/* Of a member of a line of rollouts/. */
static phase phase_of(const char *member)
{
    phase of = ADVANTAGE;

    for (size_t i = 0; i < cr_sample_lines.num_fields; i++)
        if (strcmp(cr_sample_lines.fields[i].name, member) == 0)
            while (of > PROMPTS && strcmp(phase_names[of], cr_sample_lines.fields[i].what) != 0)
                of--;
    return of;
}

typedef struct run {
    const char *folder;
    char *saves;     /* folder of its checkpoints; owned */
    json_t *metrics; /* lines by step: the last one of each; owned */
    json_t *steps; /* an object with a member for each step that left something, "%020lld"; owned */
} run;

static void add_step(run *r, long long step)
{
    char name[24];

    snprintf(name, sizeof name, "%020lld", step);
    if (step >= 0) json_object_set_new(r->steps, name, json_integer(step));
}

/* ---- what there is ---- */

static cr_status read_metrics(run *r, cr_err *err)
{
    char *path = cr_path_join(r->folder, "metrics.jsonl");
    cr_buf text = {0};
    size_t at = 0, n, number = 0;

    if (cr_file_exists(path)) cr_note(cr_file_read(path, &text, err));
    for (const char *line; err->status == CR_OK && (line = cr_line_next(&text, &at, &n));) {
        json_t *row = NULL, *step;
        char name[24];
        bool is_cut = at == text.num_bytes && line[n] != '\n'; /* by a kill, in its last line */
        number++;
        if (cr_json_parse(line, n, NULL, &row, err) != CR_OK) {
            if (is_cut)
                *err = (cr_err){0};
            else
                cr_fail_add(err, "%s, line %zu", path, number);
            break;
        }
        step = json_object_get(row, "step");
        snprintf(name, sizeof name, "%020lld", (long long)json_integer_value(step));
        if (json_is_integer(step)) {
            json_object_set(r->metrics, name, row);
            add_step(r, json_integer_value(step));
        }
        json_decref(row);
    }
    cr_buf_free(&text);
    cr_free(path);
    return err->status;
}

static void read_names(run *r)
{
    char *path = cr_path_join(r->folder, "rollouts");
    DIR *folder = opendir(path);
    uint64_t *steps;
    size_t num;

    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        long long step;
        char rest;
        if (sscanf(entry->d_name, "step-%lld.json%c", &step, &rest) == 2 ||
            sscanf(entry->d_name, "val-%lld.json%c", &step, &rest) == 2)
            add_step(r, step);
    }
    if (folder) closedir(folder);
    steps = cr_checkpoint_steps(r->saves, &num);
    for (size_t i = 0; i < num; i++)
        add_step(r, (long long)steps[i]);
    cr_free(steps);
    cr_free(path);
}

/* checkpoint_config.output_dir, if the run has one. */
static char *saves_of(const char *folder, const char *config_path)
{
    cr_diagnostics d = {0};
    cr_yaml yaml = {0};
    const cr_node *saves = NULL;
    char *path;

    cr_yaml_load(&yaml, config_path, NULL, NULL, 0, &d);
    if (yaml.root) saves = cr_node_get(yaml.root, "checkpoint_config");
    if (saves) saves = cr_node_get(saves, "output_dir");
    path = cr_strdup(saves && saves->kind == CR_NODE_TEXT && *saves->text ? saves->text : folder);
    if (yaml.arena) cr_yaml_free(&yaml);
    cr_diagnostics_free(&d);
    return path;
}

static cr_status run_open(run *r, const char *folder, cr_err *err)
{
    char *path = cr_path_join(folder, "config.yaml");

    *r = (run){.folder = folder, .metrics = json_object(), .steps = json_object()};
    if (!cr_file_exists(path)) {
        cr_fail(err, CR_EUSAGE, "%s is not a folder of a run: it has no config.yaml", folder);
    } else {
        r->saves = saves_of(folder, path);
        read_names(r);
        cr_note(read_metrics(r, err));
    }
    cr_free(path);
    return err->status;
}

static void run_close(run *r)
{
    cr_free(r->saves);
    json_decref(r->metrics);
    json_decref(r->steps);
}

/* ---- one step ---- */

typedef struct search {
    const cr_bisect_args *args;
    cr_bisect_result *out;
    run of[2];
    int64_t step;
} search;

static void found(search *s, phase of, const char *sample, const cri_difference *at)
{
    cr_bisect_result *r = s->out;

    r->is_found = true;
    r->step = s->step;
    r->phase = phase_names[of];
    snprintf(r->sample, sizeof r->sample, "%s", sample);
    snprintf(r->place, sizeof r->place, "%s", at->path);
    snprintf(r->value[0], sizeof r->value[0], "%s", at->a);
    snprintf(r->value[1], sizeof r->value[1], "%s", at->b);
}

/* The earliest phase of which a member of two lines differs; false: no later one than *limit does. */
static bool line_differs(json_t *a, json_t *b, double tolerance, phase *limit, cri_difference *at)
{
    json_t *both[2] = {a, b};
    bool is_found = false;

    for (int from = 0; from < 2; from++) {
        const char *name;
        json_t *value;
        json_object_foreach(both[from], name, value)
        {
            const phase of = phase_of(name);
            cri_difference here = {.path = ""};
            if (of >= *limit) continue;
            snprintf(here.path, sizeof here.path, "%s", name);
            if (!cri_values_differ(json_object_get(a, name), json_object_get(b, name), tolerance,
                                   &here))
                continue;
            *limit = of;
            *at = here;
            is_found = true;
        }
    }
    return is_found;
}

/* A line that is not JSON, or no value of which differs from the other's. */
static void put_byte(const char *const line[2], const size_t num[2], size_t number,
                     cri_difference *at)
{
    size_t i = 0;
    char *text[2] = {at->a, at->b};

    while (i < num[0] && i < num[1] && line[0][i] == line[1][i])
        i++;
    snprintf(at->path, sizeof at->path, "line %zu, byte %zu", number, i);
    for (int k = 0; k < 2; k++)
        if (!line[k] || i >= num[k])
            snprintf(text[k], CRI_TEXT_BYTES, "absent");
        else
            snprintf(text[k], CRI_TEXT_BYTES, "0x%02x", (unsigned char)line[k][i]);
}

/* Lines number (from 1) of both; NULL: absent. is_first: the earliest so far of *limit. */
static void compare_lines(const char *const line[2], const size_t num[2], size_t number,
                          double tolerance, phase *limit, char sample[32], cri_difference *at)
{
    json_t *of[2] = {NULL, NULL};
    cr_err ignored = {0};
    const char *id;
    phase before = *limit;

    for (int k = 0; k < 2; k++)
        if (line[k]) cr_note(cr_json_parse(line[k], num[k], "a sample", &of[k], &ignored));
    if (!json_is_object(of[0]) || !json_is_object(of[1])) {
        *limit = PROMPTS;
        put_byte(line, num, number, at);
    } else if (!line_differs(of[0], of[1], tolerance, limit, at) && tolerance == 0 &&
               *limit > ADVANTAGE && json_equal(of[0], of[1])) {
        *limit = ADVANTAGE;
        put_byte(line, num, number, at);
    }
    id = json_string_value(json_object_get(of[0] ? of[0] : of[1], "id"));
    if (*limit < before) snprintf(sample, 32, "%s", id ? id : "");
    json_decref(of[0]);
    json_decref(of[1]);
}

static cr_status samples_differ(search *s, bool is_validation, cr_err *err)
{
    char *path[2];
    cr_buf text[2] = {{0}, {0}};
    size_t at[2] = {0, 0}, number = 0;
    phase limit = METRICS;
    cri_difference place = {.path = ""};
    char sample[32] = "";

    for (int k = 0; k < 2; k++)
        path[k] = cr_asprintf("%s/rollouts/%s-%06lld.jsonl", s->of[k].folder,
                              is_validation ? "val" : "step", (long long)s->step);
    if (cr_file_exists(path[0]) && cr_file_exists(path[1]))
        for (int k = 0; k < 2; k++)
            cr_note(cr_file_read(path[k], &text[k], err));
    while (err->status == CR_OK) {
        const char *line[2];
        size_t num[2] = {0, 0};
        for (int k = 0; k < 2; k++)
            line[k] = cr_line_next(&text[k], &at[k], &num[k]);
        if (!line[0] && !line[1]) break;
        number++;
        if (line[0] && line[1]) s->out->num_samples++;
        if (!line[0] || !line[1] || num[0] != num[1] || memcmp(line[0], line[1], num[0]) != 0)
            compare_lines(line, num, number, s->args->tolerance, &limit, sample, &place);
    }
    if (limit < METRICS) found(s, is_validation ? VALIDATION : limit, sample, &place);
    for (int k = 0; k < 2; k++) {
        cr_buf_free(&text[k]);
        cr_free(path[k]);
    }
    return err->status;
}

static void metrics_differ(search *s, const char *step)
{
    json_t *line[2] = {json_object_get(s->of[0].metrics, step),
                       json_object_get(s->of[1].metrics, step)};

    if (!line[0] || !line[1]) return;
    for (int from = 0; from < 2; from++) {
        const char *name;
        json_t *value;
        json_object_foreach(line[from], name, value)
        {
            cri_difference at = {.path = ""};
            snprintf(at.path, sizeof at.path, "%s", name);
            if (!cri_metric_is_compared(name) || s->out->is_found ||
                !cri_values_differ(json_object_get(line[0], name), json_object_get(line[1], name),
                                   s->args->tolerance, &at))
                continue;
            found(s, METRICS, "", &at);
        }
    }
}

static cr_status checkpoint_differs(search *s, cr_err *err)
{
    char *folder[2];
    bool is_found = false, is_in_both = true;
    cri_difference at = {.path = ""};

    for (int k = 0; k < 2; k++) {
        char *manifest;
        folder[k] = cr_asprintf("%s/checkpoint-%lld", s->of[k].saves, (long long)s->step);
        manifest = cr_path_join(folder[k], "manifest.json");
        is_in_both = is_in_both && cr_file_exists(manifest);
        cr_free(manifest);
    }
    if (is_in_both) {
        cr_note(cri_saved_differ((const char *const *)folder, /*has_state=*/true,
                                 s->args->tolerance, &is_found, &at, err));
        s->out->num_checkpoints++;
    }
    if (is_found) found(s, CHECKPOINT, "", &at);
    cr_free(folder[0]);
    cr_free(folder[1]);
    return err->status;
}

static cr_status step_differs(search *s, const char *name, cr_err *err)
{
    cr_bisect_result *r = s->out;

    CR_TRY(samples_differ(s, true, err));
    if (!r->is_found) CR_TRY(samples_differ(s, false, err));
    if (!r->is_found) metrics_differ(s, name);
    return r->is_found ? CR_OK : checkpoint_differs(s, err);
}

/* ---- all steps ---- */

static int by_number(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Steps that both have, in order; owned by the caller. */
static int64_t *steps_of_both(const search *s, size_t *num)
{
    int64_t *steps = CR_NEW_ARRAY(int64_t, json_object_size(s->of[0].steps));
    const char *name;
    json_t *step;

    *num = 0;
    json_object_foreach(s->of[0].steps, name, step) if (json_object_get(s->of[1].steps, name))
        steps[(*num)++] = json_integer_value(step);
    if (*num) qsort(steps, *num, sizeof *steps, by_number);
    return steps;
}

static int64_t last_step(const run *r)
{
    int64_t last = -1;
    const char *name;
    json_t *step;

    json_object_foreach(r->steps, name, step) last = cr_max64(last, json_integer_value(step));
    return last;
}

static cr_status compare(search *s, cr_err *err)
{
    size_t num;
    int64_t *steps = steps_of_both(s, &num);
    bool is_terminal = isatty(STDERR_FILENO);

    for (size_t i = 0; i < num && !s->out->is_found && err->status == CR_OK; i++) {
        char name[24], text[64];
        s->step = steps[i];
        snprintf(name, sizeof name, "%020lld", (long long)s->step);
        snprintf(text, sizeof text, "step %lld, %zu of %zu", (long long)s->step, i + 1, num);
        if (is_terminal) cr_log_transient(text);
        s->out->num_steps++;
        cr_note(step_differs(s, name, err));
    }
    if (is_terminal) cr_log_transient("");
    for (int k = 0; k < 2; k++)
        s->out->end[k] = last_step(&s->of[k]);
    cr_free(steps);
    return err->status;
}

cr_status cr_bisect(const cr_bisect_args *args, cr_bisect_result *out, cr_err *err)
{
    search s = {.args = args, .out = out};

    *out = (cr_bisect_result){.end = {-1, -1}, .phase = ""};
    for (int k = 0; k < 2 && err->status == CR_OK; k++)
        cr_note(run_open(&s.of[k], args->folder[k], err));
    if (err->status == CR_OK) cr_note(compare(&s, err));
    for (int k = 0; k < 2; k++)
        run_close(&s.of[k]);
    return err->status;
}
