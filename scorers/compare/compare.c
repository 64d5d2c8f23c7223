/* compare.c -- see compare.h. */
#include "scorers/compare/compare.h"
#include "scorers/compare/recorded.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum {
    MAX_WAITING = 256,
    LONGEST_LINE = 256 << 20,
    SHOWN_BYTES = 300,
    MAX_TOLD = 3,
    MAX_FAULTS = 8
};

/* What a verdict comes to. */
typedef enum kind { RIGHT, WRONG, IN_PART, ABSTAIN, TIMEOUT, FAILED, NUM_KINDS } kind;
static const char *const kind_names[NUM_KINDS] = {"right",   "wrong",    "in part",
                                                  "abstain", "time-out", "error"};

enum { BEFORE, AFTER, SIDES };

typedef struct sample {
    cr_recorded recorded;
    cr_verdict verdict[SIDES]; /* owned */
    bool has_come[SIDES];
} sample;

struct cr_compare {
    cr_compare_args args;
    cr_scorer *scorer[SIDES]; /* NULL: recorded */
    sample *waiting;          /* in order of the file */
    size_t num_waiting, capacity;
    json_t *row, *domains; /* of the group; name -> samples */
    int64_t group;
    size_t num, num_bad, num_both, num_changed;
    int64_t num_faults[SIDES]; /* of a program before its first answer */
    size_t counts[NUM_KINDS][NUM_KINDS];
    double scores[SIDES], rewards[SIDES]; /* sums of the samples with both */
    cr_buf shown[NUM_KINDS][NUM_KINDS];
};

cr_compare *cr_compare_open(const cr_compare_args *args)
{
    const cr_version *const versions[SIDES] = {&args->before, &args->after};
    cr_compare *c = CR_NEW(cr_compare);

    c->args = *args;
    c->domains = json_object();
    for (int side = 0; side < SIDES; side++)
        if (versions[side]->args.argv) c->scorer[side] = cr_scorer_create(&versions[side]->args);
    return c;
}

static void sample_free(sample *s)
{
    cr_recorded_free(&s->recorded);
    for (int side = 0; side < SIDES; side++)
        cr_verdict_free(&s->verdict[side]);
}

void cr_compare_close(cr_compare *c)
{
    if (!c) return;
    for (int side = 0; side < SIDES; side++)
        cr_scorer_destroy(c->scorer[side]);
    for (size_t i = 0; i < c->num_waiting; i++)
        sample_free(&c->waiting[i]);
    for (int i = 0; i < NUM_KINDS * NUM_KINDS; i++)
        cr_buf_free(&c->shown[i / NUM_KINDS][i % NUM_KINDS]);
    cr_free(c->waiting);
    json_decref(c->row);
    json_decref(c->domains);
    cr_free(c);
}

/* ---- what has changed ---- */

static kind kind_of(const cr_verdict *v)
{
    if (v->outcome == CR_OUTCOME_OK) return v->score == 1 ? RIGHT : v->score == 0 ? WRONG : IN_PART;
    if (v->outcome == CR_OUTCOME_TIMEOUT) return TIMEOUT;
    return v->outcome == CR_OUTCOME_ABSTAIN ? ABSTAIN : FAILED;
}

/* Files have the nine digits of a float32. */
static bool differ(double a, double b)
{
    return fabs(a - b) > 1e-6 * fmax(1, fabs(a));
}

static void add_last(cr_buf *out, const char *name, const json_t *text)
{
    const char *t = json_string_value(text);
    size_t n = json_string_length(text), from = n > SHOWN_BYTES ? n - SHOWN_BYTES : 0;
    cr_buf quoted = {0};

    if (!t) return;
    while (from < n && ((unsigned char)t[from] & 0xC0) == 0x80)
        from++;
    cr_json_add_string(&quoted, t + from, n - from); /* no control characters */
    cr_buf_addf(out, "    %-13s %s%s\n", name, from ? ".. " : "", quoted.data);
    cr_buf_free(&quoted);
}

static void add_verdict_text(cr_buf *out, const char *name, const cr_verdict *v)
{
    cr_buf detail = {0};

    cr_json_add_string(&detail, v->detail, strlen(v->detail));
    cr_buf_addf(out, "    %-13s ", name);
    if (v->outcome == CR_OUTCOME_OK)
        cr_buf_addf(out, "score %.6g, reward %.6g", v->score, v->reward);
    else
        cr_buf_adds(out, cr_outcome_name(v->outcome));
    if (v->detail[0]) cr_buf_addf(out, " %s", detail.data);
    cr_buf_addc(out, '\n');
    cr_buf_free(&detail);
}

static void show(const sample *s, cr_buf *out)
{
    cr_buf id = {0};

    cr_json_add_string(&id, s->recorded.id, strlen(s->recorded.id));
    cr_buf_addf(out, "  %s\n", id.data);
    cr_buf_free(&id);
    add_last(out, "prompt", json_object_get(s->recorded.root, "prompt"));
    add_last(out, "response", json_object_get(s->recorded.root, "response"));
    add_last(out, "ground truth", json_object_get(s->recorded.root, "ground_truth"));
    add_verdict_text(out, "before", &s->verdict[BEFORE]);
    add_verdict_text(out, "after", &s->verdict[AFTER]);
}

static void add_verdict(cr_buf *out, const char *name, const cr_verdict *v)
{
    cr_buf_addf(out, ",\"%s\":{", name);
    if (v->outcome == CR_OUTCOME_OK)
        cr_buf_addf(out, "\"score\":%.9g,\"reward\":%.9g,", v->score, v->reward);
    cr_buf_addf(out, "\"status\":\"%s\",\"detail\":", cr_outcome_name(v->outcome));
    cr_json_add_string(out, v->detail, strlen(v->detail));
    cr_buf_addc(out, '}');
}

static void print_line(cr_compare *c, const sample *s)
{
    static const char *const members[] = {"prompt", "ground_truth", "response"};
    cr_buf out = {0};
    cr_err ignored = {0};

    cr_buf_adds(&out, "{\"id\":");
    cr_json_add_string(&out, s->recorded.id, strlen(s->recorded.id));
    add_verdict(&out, "before", &s->verdict[BEFORE]);
    add_verdict(&out, "after", &s->verdict[AFTER]);
    for (size_t i = 0; i < CR_COUNT(members); i++) {
        const json_t *value = json_object_get(s->recorded.root, members[i]);
        if (!value) continue;
        cr_buf_addf(&out, ",\"%s\":", members[i]);
        cr_note(cr_json_add_value(&out, value, &ignored));
    }
    cr_buf_adds(&out, "}\n");
    fwrite(out.data, 1, out.num_bytes, c->args.to);
    cr_buf_free(&out);
}

static void settle(cr_compare *c, const sample *s)
{
    const cr_verdict *before = &s->verdict[BEFORE], *after = &s->verdict[AFTER];
    const kind from = kind_of(before), to = kind_of(after);
    const bool has_both = from < ABSTAIN && to < ABSTAIN,
               has_score = has_both && differ(before->score, after->score),
               has_reward = has_both && differ(before->reward, after->reward);

    c->num++;
    for (int side = 0; has_both && side < SIDES; side++) {
        c->scores[side] += s->verdict[side].score;
        c->rewards[side] += s->verdict[side].reward;
    }
    c->num_both += has_both;
    if (from == to && !has_score && !has_reward) return;
    c->num_changed++;
    if ((int64_t)c->counts[from][to]++ < c->args.num_shown && !c->args.is_json)
        show(s, &c->shown[from][to]);
    if (c->args.is_json) print_line(c, s);
}

/* ---- samples on their way ---- */

/* Verdicts that have come; waits a little for the first. CR_ECONFIG: a program cannot go on. */
static cr_status take_verdicts(cr_compare *c, int side, cr_err *err)
{
    const double moment_s = 0.02;
    cr_scorer *scorer = c->scorer[side];
    cr_verdict v;
    char *id;

    for (double wait_s = moment_s; scorer && cr_scorer_next(scorer, wait_s, &id, &v); wait_s = 0) {
        sample *s = c->waiting;
        while (s->has_come[side] || strcmp(s->recorded.id, id) != 0) /* of equal ids any one */
            s++;
        s->verdict[side] = v;
        s->has_come[side] = true;
        cr_free(id);
        c->num_faults[side] =
            v.is_fault ? c->num_faults[side] + 1 : INT64_MIN; /* it is a program */
        if (v.is_fault && strncmp(v.detail, CR_CANNOT_START, strlen(CR_CANNOT_START)) == 0)
            return cr_fail(err, CR_ECONFIG, "%s", v.detail);
        if (c->num_faults[side] == MAX_FAULTS)
            return cr_fail(err, CR_ECONFIG,
                           "the program has answered none of the first %d lines: %.300s",
                           MAX_FAULTS, v.detail);
    }
    if (scorer && cr_scorer_broken(scorer))
        return cr_fail(err, CR_ECONFIG, "%s", cr_scorer_broken(scorer));
    return CR_OK;
}

/* Until at most num samples wait. */
static cr_status work(cr_compare *c, size_t num, cr_err *err)
{
    while (c->num_waiting > num) {
        size_t done = 0;
        for (int side = 0; side < SIDES; side++)
            CR_TRY(take_verdicts(c, side, err));
        while (done < c->num_waiting && c->waiting[done].has_come[BEFORE] &&
               c->waiting[done].has_come[AFTER]) {
            settle(c, &c->waiting[done]);
            sample_free(&c->waiting[done++]);
        }
        c->num_waiting -= done;
        memmove(c->waiting, c->waiting + done, c->num_waiting * sizeof *c->waiting);
    }
    return CR_OK;
}

/* The columns of a sample's row: its own, or those of an earlier one of its group. */
static const json_t *row_of(cr_compare *c, const cr_recorded *r)
{
    if (r->row) {
        json_decref(c->row);
        c->row = json_incref((json_t *)(uintptr_t)r->row);
        c->group = r->group;
    }
    return c->row && r->group >= 0 && r->group == c->group ? c->row : NULL;
}

static void count_domain(cr_compare *c, const char *domain)
{
    json_int_t num = json_integer_value(json_object_get(c->domains, domain));

    if (num || json_object_size(c->domains) < 32)
        json_object_set_new(c->domains, domain, json_integer(num + 1));
}

static cr_status take_line(cr_compare *c, const char *line, size_t n, cr_err *err)
{
    sample s = {.has_come = {false, false}};
    cr_buf asked = {0};
    const json_t *row;

    if (cr_recorded_read(line, n, c->args.domain, &s.recorded, err) == CR_OK) {
        count_domain(c, s.recorded.domain);
        row = row_of(c, &s.recorded);
        if (!cr_recorded_is_of(&s.recorded, c->args.domain)) {
            sample_free(&s);
            return CR_OK;
        }
        cr_note(cr_recorded_write(&s.recorded, row, &asked, err));
    }
    if (err->status != CR_OK) {
        sample_free(&s);
        cr_buf_free(&asked);
        return err->status;
    }
    for (int side = 0; side < SIDES; side++) {
        if (c->scorer[side]) {
            cr_scorer_put(c->scorer[side], s.recorded.id, &asked, s.recorded.num_ids);
            continue;
        }
        s.verdict[side] = s.recorded.verdict;
        s.recorded.verdict = (cr_verdict){.score = 0};
        s.has_come[side] = true;
    }
    cr_buf_free(&asked);
    c->waiting = cr_grow(c->waiting, c->num_waiting, &c->capacity, sizeof *c->waiting);
    c->waiting[c->num_waiting++] = s;
    return CR_OK;
}

static void take_bad_line(cr_compare *c, const char *path, long number, const char *why)
{
    if (++c->num_bad <= MAX_TOLD) cr_log(CR_LOG_WARN, "score", "%s:%ld: %s", path, number, why);
}

/* The next line with its newline, or what is longer than LONGEST_LINE of it; false: the file has ended. */
static bool next_line(FILE *file, cr_buf *line)
{
    int c = 0;

    cr_buf_clear(line);
    while (c != '\n' && line->num_bytes <= LONGEST_LINE && (c = getc_unlocked(file)) != EOF)
        cr_buf_addc(line, (char)c);
    return line->num_bytes > 0;
}

cr_status cr_compare_file(cr_compare *c, const char *path, cr_err *err)
{
    FILE *file = fopen(path, "r");
    cr_buf line = {0};
    long number = 0;

    if (!file) return cr_fail(err, CR_EUSAGE, "cannot read %s: %s", path, strerror(errno));
    json_decref(c->row);
    c->row = NULL;
    while (err->status == CR_OK && next_line(file, &line)) {
        cr_err bad = {0};
        number++;
        if (strspn(line.data, " \t\r\n") == line.num_bytes) continue;
        if (line.num_bytes > LONGEST_LINE)
            cr_fail(err, CR_EFORMAT, "%s:%ld: the line is longer than 256 MiB", path, number);
        else if (take_line(c, line.data, line.num_bytes, &bad) != CR_OK)
            take_bad_line(c, path, number, bad.msg);
        if (err->status == CR_OK) cr_note(work(c, MAX_WAITING, err));
    }
    if (err->status == CR_OK && ferror(file))
        cr_fail(err, CR_EUSAGE, "cannot read %s: %s", path, strerror(errno));
    cr_buf_free(&line);
    fclose(file);
    return err->status;
}

/* ---- the end ---- */

static void print_counts(const cr_compare *c, cr_buf *out)
{
    bool is_first = true;

    cr_buf_addf(out, "{\"samples\":%zu,\"changed\":%zu,\"changes\":{", c->num, c->num_changed);
    for (int from = 0; from < NUM_KINDS; from++)
        for (int to = 0; to < NUM_KINDS; to++) {
            if (!c->counts[from][to]) continue;
            cr_buf_addf(out, "%s\"%s -> %s\":%zu", is_first ? "" : ",", kind_names[from],
                        kind_names[to], c->counts[from][to]);
            is_first = false;
        }
    cr_buf_addf(out, "},\"with_both\":%zu", c->num_both);
    if (c->num_both)
        cr_buf_addf(out, ",\"score\":[%.9g,%.9g],\"reward\":[%.9g,%.9g]",
                    c->scores[BEFORE] / (double)c->num_both, c->scores[AFTER] / (double)c->num_both,
                    c->rewards[BEFORE] / (double)c->num_both,
                    c->rewards[AFTER] / (double)c->num_both);
    cr_buf_adds(out, "}\n");
}

static void print_summary(const cr_compare *c, cr_buf *out)
{
    cr_buf_addf(out, "%zu of %zu samples of %s change from %s to %s\n", c->num_changed, c->num,
                c->args.domain, c->args.before.name, c->args.after.name);
    for (int from = 0; from < NUM_KINDS; from++)
        for (int to = 0; to < NUM_KINDS; to++)
            if (c->counts[from][to])
                cr_buf_addf(out, "  %8zu  %s -> %s%s\n", c->counts[from][to], kind_names[from],
                            kind_names[to], from == to ? ", another score or reward" : "");
    if (c->num_both)
        cr_buf_addf(
            out, "mean score %.4f -> %.4f, mean reward %.4f -> %.4f, of %zu with a score in both\n",
            c->scores[BEFORE] / (double)c->num_both, c->scores[AFTER] / (double)c->num_both,
            c->rewards[BEFORE] / (double)c->num_both, c->rewards[AFTER] / (double)c->num_both,
            c->num_both);
    for (int from = 0; from < NUM_KINDS; from++)
        for (int to = 0; to < NUM_KINDS; to++)
            if (c->shown[from][to].num_bytes)
                cr_buf_addf(out, "\n%s -> %s, the first of %zu:\n%s", kind_names[from],
                            kind_names[to], c->counts[from][to], c->shown[from][to].data);
}

static cr_status no_sample(const cr_compare *c, cr_err *err)
{
    cr_buf there = {0};
    const char *name;
    json_t *num;

    json_object_foreach(c->domains, name, num)
        cr_buf_addf(&there, "%s%.60s", there.num_bytes ? ", " : "", name);
    cr_fail(err, CR_EUSAGE, "no sample is of %s (%s%s%s)", c->args.domain,
            there.data ? "there are samples of " : "the files have no samples",
            there.data ? there.data : "",
            there.data ? ": name one of these, with --config RUN/config.yaml" : "");
    cr_buf_free(&there);
    return err->status;
}

cr_status cr_compare_end(cr_compare *c, cr_err *err)
{
    cr_buf out = {0};

    CR_TRY(work(c, 0, err));
    if (c->num == 0 && c->num_bad == 0) return no_sample(c, err);
    if (c->num && c->args.is_json) print_counts(c, &out);
    if (c->num && !c->args.is_json) print_summary(c, &out);
    if (out.num_bytes) fwrite(out.data, 1, out.num_bytes, c->args.to);
    fflush(c->args.to);
    cr_buf_free(&out);
    if (c->num_bad)
        return cr_fail(err, CR_EFORMAT, "%zu lines are no samples of rollouts/", c->num_bad);
    return CR_OK;
}
