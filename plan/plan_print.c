/* plan_print.c -- see plan_print.h. */
#include "plan/plan_print.h"
#include "actors/schedule.h"
#include "base/json.h"
#include "configs/worker.h"
#include "plan/devices.h"
#include "plan/gpu.h"
#include "plan/hosts_print.h"
#include "reports/html.h"
#include "rl/rl.h"

#include <stdio.h>
#include <string.h>

enum { BAR = 48, NUM_KINDS = CR_PLAN_KINDS };

const cr_plan_kind cr_plan_kinds[CR_PLAN_KINDS] = {
    {'M', "masters", "masters", offsetof(cr_plan_bytes, masters)},
    {'G', "gradients", "gradients", offsetof(cr_plan_bytes, gradients)},
    {'O', "moments", "optimizer moments", offsetof(cr_plan_bytes, moments)},
    {'V', "values", "weights without optimizer", offsetof(cr_plan_bytes, values)},
    {'U', "gathered", "gathered units", offsetof(cr_plan_bytes, gathered)},
    {'R', "reduction", "buffers of reductions", offsetof(cr_plan_bytes, reduction)},
    {'K', "kept", "kept: KV cache, packed weights", offsetof(cr_plan_bytes, kept)},
    {'T', "tape", "tape (activations)", offsetof(cr_plan_bytes, tape)},
    {'S', "scratch", "scratch", offsetof(cr_plan_bytes, scratch)},
};

int64_t cr_plan_part(const cr_plan_bytes *b, int kind)
{
    int64_t n;

    memcpy(&n, (const char *)b + cr_plan_kinds[kind].offset, sizeof n);
    return n;
}

const struct cr_plan_phase *cr_plan_peak_phase(const cr_plan_role *r)
{
    const struct cr_plan_phase *best = &r->phase[0];

    for (size_t i = 1; i < r->num_phases; i++)
        if (cr_plan_sum(&r->phase[i].bytes) > cr_plan_sum(&best->bytes)) best = &r->phase[i];
    return best;
}

const char *cr_plan_next_warning(const char **at, size_t *num)
{
    const char *found = *at ? strstr(*at, "warning: ") : NULL, *end;

    if (!found) return NULL;
    found += strlen("warning: ");
    end = strchr(found, '\n');
    *num = end ? (size_t)(end - found) : strlen(found);
    *at = found + *num;
    return found;
}

/* ---- text ---- */

static void text_batch(const cr_plan *p, cr_buf *out)
{
    const cr_config *c = &p->config;
    const cr_plan_batch *b = &p->batch;
    const cr_training_args *t = &c->train.training;
    long long mini = (long long)cr_worker_batch_samples(&c->train);
    char size[64];

    if (b->train_tokens)
        snprintf(size, sizeof size, "%lld", (long long)b->train_tokens);
    else
        snprintf(size, sizeof size, "%lld x %lld", (long long)b->num_samples,
                 (long long)b->sample_tokens);
    if (!p->is_rlvr)
        cr_buf_addf(out, "batch    %lld samples a step%s\n", (long long)p->num_samples,
                    p->row_samples > 1 ? ", 2 of each pair" : "");
    else
        cr_buf_addf(
            out, "batch    rollout_batch_size %lld x %lld in a group = %lld samples a step\n",
            (long long)c->rollout_batch_size, (long long)c->group_size, (long long)p->num_samples);
    cr_buf_addf(
        out,
        "         on %lld data-parallel ranks: %s%lld sample%s each\n"
        "         per_device_train_batch_size %lld x gradient_accumulation_steps %lld = %lld "
        "%s of an update and rank\n"
        "         %lld update%s a step, %lld micro-batch%s each, of at most %s tokens\n",
        (long long)p->num_dp, p->num_samples % p->num_dp ? "at most " : "",
        (long long)p->rank_samples, p->rank_samples == 1 ? "" : "s",
        (long long)t->per_device_train_batch_size, (long long)t->gradient_accumulation_steps, mini,
        p->row_samples > 1 ? "pairs" : "samples", (long long)b->updates, b->updates == 1 ? "" : "s",
        (long long)b->micros, b->micros == 1 ? "" : "es", size);
}

/* Rates of the run's updates: where the schedule begins, is at its maximum, half-way and ends. The updates of an
 * sft run are known once its rows are. */
static void text_schedule(const cr_plan *p, cr_buf *out)
{
    const cr_training_args *t = &p->config.train.training;
    int64_t num = !p->is_rlvr ? 0 : cr_rlvr_num_updates(&p->config, &p->config.train);
    const cr_lr_schedule s = cr_training_schedule(&p->config.train, num);
    const int64_t points[] = {0, s.warmup_steps, num / 2, num - 1};
    int64_t last = -1;

    cr_buf_addf(out, "rate     %s, learning_rate %g", cr_schedule_names[s.kind], s.learning_rate);
    if (!p->is_rlvr && t->warmup_steps)
        cr_buf_addf(out, ", warm-up of %lld updates", (long long)t->warmup_steps);
    for (size_t i = 0; i < CR_COUNT(points); i++) {
        if (points[i] <= last || points[i] >= num) continue;
        cr_buf_addf(out, "%s update %lld: %.3g", last < 0 ? ";" : ",", (long long)points[i],
                    cr_learning_rate(&s, points[i]));
        last = points[i];
    }
    cr_buf_addc(out, '\n');
}

static void text_timeline(const cr_plan_role *r, cr_buf *out)
{
    int64_t peak = cr_plan_peak(r);
    char size[32];

    for (size_t i = 0; i < r->num_phases && peak > 0; i++) {
        const cr_plan_bytes *b = &r->phase[i].bytes;
        double sum = 0;
        int at = 0;
        cr_buf_addf(out, "    %-10s|", r->phase[i].name);
        for (int k = 0; k < NUM_KINDS; k++) {
            sum += (double)cr_plan_part(b, k);
            for (; at < (int)(sum / (double)peak * BAR + 0.5); at++)
                cr_buf_addc(out, cr_plan_kinds[k].letter);
        }
        cr_buf_addf(out, "%*s| %s\n", BAR - at, "", cr_size_text((int64_t)sum, size));
    }
}

static void text_bytes(const cr_plan_role *r, cr_buf *out)
{
    const struct cr_plan_phase *peak = cr_plan_peak_phase(r);
    char size[32];

    cr_buf_addf(out, "  memory of a rank, at most %s (%s)\n",
                cr_size_text(cr_plan_sum(&peak->bytes), size), peak->name);
    for (int k = 0; k < NUM_KINDS; k++)
        if (cr_plan_part(&peak->bytes, k))
            cr_buf_addf(out, "    %c %-30s %12s\n", cr_plan_kinds[k].letter, cr_plan_kinds[k].text,
                        cr_size_text(cr_plan_part(&peak->bytes, k), size));
    if (r->host_bytes)
        cr_buf_addf(out, "      %-30s %12s\n", "on the host (offload_policy)",
                    cr_size_text(r->host_bytes, size));
    if (r->pixel_bytes)
        cr_buf_addf(out, "      %-30s %12s\n", "on the host: patches of images",
                    cr_size_text(r->pixel_bytes, size));
}

static void text_gpu(const cr_plan_role *r, cr_buf *out)
{
    cr_gpu_need need[CR_GPU_NEEDS];
    char size[32];

    cr_gpu_needs(r, need);
    cr_buf_addf(out, "  a GPU keeps beside it, estimated: %s\n",
                cr_size_text(cr_gpu_need_bytes(r), size));
    for (int i = 0; i < CR_GPU_NEEDS; i++)
        if (need[i].bytes)
            cr_buf_addf(out, "      %-30s %12s  (%s)\n", need[i].what,
                        cr_size_text(need[i].bytes, size), need[i].source);
}

static void text_traffic(const cr_plan_role *r, cr_buf *out)
{
    const struct {
        const char *name;
        int64_t num, num_bytes;
    } rows[] = {{"all-gather of units", r->step.gathers.num, r->step.gathers.num_bytes},
                {"reduce-scatter of units", r->step.reduces.num, r->step.reduces.num_bytes},
                {"all-reduce over ddp", r->step.all_reduces.num, r->step.all_reduces.num_bytes},
                {"all-to-all", (int64_t)r->all_to_alls.num, (int64_t)r->all_to_alls.num_bytes},
                {"weights from training", r->synced.num, r->synced.num_bytes}};
    bool has_any = false;
    char size[32];

    for (size_t i = 0; i < CR_COUNT(rows); i++) {
        if (!rows[i].num) continue;
        if (!has_any) cr_buf_adds(out, "  collectives of a step and rank (whole buffers)\n");
        has_any = true;
        cr_buf_addf(out, "    %-24s %8lld x, together %s\n", rows[i].name, (long long)rows[i].num,
                    cr_size_text(rows[i].num_bytes, size));
    }
    if (r->first_sync_bytes > r->synced.num_bytes)
        cr_buf_addf(out, "      once a run those that are frozen, too: %s\n",
                    cr_size_text(r->first_sync_bytes, size));
    if (r->step_flops > 0)
        cr_buf_addf(out, "  compute of a step and rank: %.3g TFLOP\n", r->step_flops / 1e12);
}

static const char *prefix_of(const cr_plan_role *r)
{
    return r->is_judge ? "rewards." : "";
}

static void text_groups(const cr_plan_role *r, cr_buf *out)
{
    size_t at = 0, num;

    for (const char *line; (line = cr_line_next(&r->groups, &at, &num));)
        cr_buf_addf(out, "    group     %.*s\n", (int)num, line);
}

static void text_role(const cr_plan_role *r, const cr_worker_config *w, bool is_gpu, bool with_tree,
                      cr_buf *out)
{
    const cr_mesh_shape *m = &r->mesh;
    const bool is_mapped = w->strategy == CR_STRATEGY_OTHER; /* the file names another engine */
    const char *at = r->tree.data;
    size_t num;

    cr_buf_addf(out, "\n%s%s  %s%s%s%s on %d rank%s", prefix_of(r), r->name, cr_worker_runs(w),
                is_mapped ? " (for " : "", is_mapped ? w->strategy_name : "", is_mapped ? ")" : "",
                m->num_ranks, m->num_ranks == 1 ? "" : "s");
    if (r->num_units == 0)
        cr_buf_adds(out, ", each with the whole model\n");
    else
        cr_buf_addf(out, ": ddp %d x fsdp %d, dp %d x ulysses %d\n", m->num_ddp, m->num_fsdp,
                    m->num_dp, m->num_ulysses);
    cr_buf_addf(out, "  %.4g billion parameters", (double)r->num_elems / 1e9);
    if (r->is_train && r->num_trained < r->num_elems)
        cr_buf_addf(out, ", %.4g of them trained (%.3g %%)", (double)r->num_trained / 1e9,
                    100 * (double)r->num_trained / (double)r->num_elems);
    if (r->num_adapters)
        cr_buf_addf(out, ": adapters of %lld modules in %lld tensors", (long long)r->num_adapters,
                    (long long)r->num_trained_tensors);
    if (r->full_elems) cr_buf_addf(out, ", with %.4g billion in full", (double)r->full_elems / 1e9);
    if (r->copied_elems) cr_buf_addf(out, " and as many kept as they were");
    if (r->passes.times[CR_PLAN_BASE]) cr_buf_adds(out, ", the reference with them off");
    if (r->num_units)
        cr_buf_addf(out, ", %zu units, at most %d gathered at a time", r->num_units,
                    r->max_units_alive);
    cr_buf_adds(out, "\n");
    text_bytes(r, out);
    if (is_gpu) text_gpu(r, out);
    if (r->num_phases > 1) text_timeline(r, out);
    text_traffic(r, out);
    text_groups(r, out);
    if (with_tree && r->tree.data) cr_buf_add(out, r->tree.data, r->tree.num_bytes);
    for (const char *text; !with_tree && (text = cr_plan_next_warning(&at, &num));)
        cr_buf_addf(out, "  warning: %.*s\n", (int)num, text);
}

/* A role beside the trained one that no device can hold, or NULL. */
static const cr_plan_role *too_large(const cr_plan *p)
{
    for (size_t r = 1; r < p->num_roles; r++)
        if (cr_plan_peak(&p->role[r]) > p->memory) return &p->role[r];
    return NULL;
}

/* "device 3", "devices 12-15"; text holds 48 bytes. */
static const char *devices_text(int first, int last, char text[48])
{
    snprintf(text, 48, last > first ? "devices %d-%d" : "device %d", first, last);
    return text;
}

/* The fullest device and the roles that add up there. */
static void text_fullest(const cr_plan *p, cr_buf *out)
{
    const cr_plan_fullest_device full = cr_plan_fullest(p, &p->role[0], NULL);
    char size[32], devices[48];

    cr_buf_addf(out, "\nfullest %s: %s on %s%s%s\n", p->num_gpus ? "GPU" : "device",
                cr_size_text(full.bytes, size), devices_text(full.first, full.last, devices),
                p->num_gpus ? ", with all devices that are on it (--gpus)" : "",
                p->num_roles > 1 ? " (roles that share one take turns)" : "");
    for (size_t r = 0; r < p->num_roles; r++) {
        const cr_plan_role *role = &p->role[r];
        bool is_working = r == full.working && !role->is_judge;
        char *name;
        if (!cr_plan_is_on(p->worker[r], full.first)) continue;
        name = cr_asprintf("%s%s", prefix_of(role), role->name);
        cr_buf_addf(out, "    %-24s %12s  %s%s\n", name,
                    cr_size_text(is_working ? cr_plan_work_bytes(p, role)
                                            : cr_plan_idle_bytes(p, role, p->worker[r]),
                                 size),
                    role->is_judge ? "always"
                    : is_working   ? "at work: "
                                   : "kept while another one works",
                    is_working ? cr_plan_peak_phase(role)->name : "");
        cr_free(name);
    }
}

/* A judge on devices of others: what is left of the fullest device when it has devices of its own. */
static void advise_judge(const cr_plan *p, size_t r, cr_buf *out)
{
    const cr_plan_fullest_device with = cr_plan_fullest(p, &p->role[0], NULL),
                                 less = cr_plan_fullest(p, &p->role[0], p->worker[r]);
    const int num = p->worker[r]->num_devices;
    char size[32], rest[32], devices[48];
    int first = 0;

    if (!cr_plan_is_on(p->worker[r], with.first) || less.bytes >= with.bytes) return;
    for (size_t k = 0; k < p->num_roles; k++)
        for (int i = 0; i < p->worker[k]->num_devices; i++)
            if (p->worker[k]->devices[i] >= first) first = p->worker[k]->devices[i] + 1;
    cr_buf_addf(out,
                "rewards.%s keeps %s on %s, which other roles have, too: with "
                "rewards.%s.device_mapping='list(range(%d,%d))' the fullest of their devices has "
                "%s, which %s\n",
                p->role[r].name, cr_size_text(cr_plan_work_bytes(p, &p->role[r]), size),
                devices_text(with.first, with.last, devices), p->role[r].name, first, first + num,
                cr_size_text(less.bytes, rest),
                less.bytes <= p->memory ? "fits" : "still does not fit");
}

/* What makes the fullest device smaller, when it does not fit. */
static void text_advice(const cr_plan *p, cr_buf *out)
{
    const cr_plan_fullest_device full = cr_plan_fullest(p, &p->role[0], NULL);
    char size[32];

    for (size_t r = 1; r < p->num_roles; r++) {
        const cr_worker_config *w = p->worker[r];
        int64_t kept = cr_plan_idle_bytes(p, &p->role[r], w);
        if (p->role[r].is_judge)
            advise_judge(p, r, out);
        else if (w->task == CR_TASK_GENERATE && cr_plan_is_on(w, full.first) && r != full.working &&
                 w->engine.sleep_level < 2 && kept > 0)
            cr_buf_addf(out,
                        "%s keeps %s while others work: strategy_config.sleep_level=2 frees its "
                        "weights then\n",
                        p->role[r].name, cr_size_text(kept, size));
        else if (w->task == CR_TASK_GENERATE && r == full.working)
            cr_buf_addf(out,
                        "%s is what works there, with %s of weights and cache: "
                        "strategy_config.gpu_memory_utilization, max_model_len and "
                        "max_running_requests bound its cache\n",
                        p->role[r].name, cr_size_text(cr_plan_work_bytes(p, &p->role[r]), size));
    }
}

/* As croll run will judge on such GPUs (commands/deep/deep.c). */
static void text_refusal(const cr_plan *p, cr_buf *out)
{
    const int64_t min = cr_plan_fullest_min(p).bytes;
    char a[32];

    cr_buf_addf(out, "states, weights and cache alone have %s there: croll run %s\n",
                cr_size_text(min, a),
                min > p->memory ? "refuses it"
                                : "starts, with a warning, and may run out of memory with samples "
                                  "of full length");
}

/* What became of reshard_after_forward: auto. */
static void text_reshard(const cr_plan *p, cr_buf *out)
{
    char a[32];

    if (!p->config.train.is_reshard_auto) return;
    if (!p->memory)
        cr_buf_adds(out, "reshard_after_forward auto: null here; with --memory, false if weights "
                         "fit that stay gathered\n");
    else
        cr_buf_addf(out,
                    "reshard_after_forward auto: %s, with weights that stay gathered %s there, %s "
                    "nine tenths of the memory\n",
                    p->config.train.reshard_after_forward == 0 ? "false" : "null",
                    cr_size_text(p->kept_bytes, a),
                    p->config.train.reshard_after_forward == 0 ? "within" : "above");
}

static void text_memory(const cr_plan *p, cr_buf *out)
{
    const cr_plan_role *alone;
    char a[32], b[32];

    text_fullest(p, out);
    text_reshard(p, out);
    if (!p->memory) return;
    if (p->device_peak <= p->memory)
        cr_buf_addf(out, "it fits in %s\n", cr_size_text(p->memory, b));
    else
        cr_buf_addf(out, "it does NOT fit in %s: %s too much\n", cr_size_text(p->memory, b),
                    cr_size_text(p->device_peak - p->memory, a));
    if (p->device_peak > p->memory && p->is_gpu) text_refusal(p, out);
    if (p->device_peak > p->memory) text_advice(p, out);
    if (p->largest) {
        const char *more = !p->is_limit ? ""
                           : !p->is_rlvr
                               ? " or more (a pass of more than a million tokens is not tried)"
                               : " or more (the most a step has)";
        cr_buf_addf(out,
                    "largest per_device_train_batch_size that fits: %lld%s\n"
                    "largest max_tokens_per_microbatch_in_train that fits: %lld%s\n",
                    (long long)p->largest, more, (long long)p->largest_tokens, more);
    } else if ((alone = too_large(p)))
        cr_buf_addf(out, "no micro-batch fits: %s alone needs %s\n", alone->name,
                    cr_size_text(cr_plan_peak(alone), a));
    else
        cr_buf_addf(out,
                    "no micro-batch fits, not even of one sample (%s is smaller with more shards, "
                    "recompute (disable_gradient_checkpointing: false), ulysses_size, tiles or "
                    "offload_policy)\n",
                    p->role[0].name);
}

void cr_plan_text(const cr_plan *p, bool with_tree, cr_buf *out)
{
    cr_buf_addf(out, "plan of %s: nothing is started\n\n", p->path);
    text_batch(p, out);
    text_schedule(p, out);
    for (size_t r = 0; r < p->num_roles; r++)
        text_role(&p->role[r], p->worker[r], p->is_gpu, with_tree, out);
    text_memory(p, out);
    if (p->cores) cr_buf_addf(out, "\n%s", p->cores);
    if (p->hosts.num) cr_plan_hosts_text(p, out);
    for (size_t i = 0; i < p->d.num; i++)
        if (strstr(p->d.items[i].text, "not available"))
            cr_buf_addf(out, "left out: %s\n", p->d.items[i].text);
}

/* ---- JSON ---- */

static void key(cr_buf *out, const char *name)
{
    char last = out->num_bytes ? out->data[out->num_bytes - 1] : '{';

    if (last != '{' && last != '[') cr_buf_addc(out, ',');
    cr_buf_addf(out, "\"%s\":", name);
}

static void number(cr_buf *out, const char *name, int64_t x)
{
    key(out, name);
    cr_buf_addf(out, "%lld", (long long)x);
}

static void text(cr_buf *out, const char *name, const char *data, size_t num)
{
    key(out, name);
    cr_json_add_string(out, data, num);
}

static void json_bytes(cr_buf *out, const cr_plan_bytes *b)
{
    for (int k = 0; k < NUM_KINDS; k++)
        number(out, cr_plan_kinds[k].name, cr_plan_part(b, k));
    number(out, "total", cr_plan_sum(b));
}

static void json_count(cr_buf *out, const char *name, int64_t num, int64_t num_bytes)
{
    key(out, name);
    cr_buf_addf(out, "{\"num\":%lld,\"bytes\":%lld}", (long long)num, (long long)num_bytes);
}

static void json_traffic(cr_buf *out, const cr_plan_role *r)
{
    key(out, "step");
    cr_buf_addc(out, '{');
    json_count(out, "all_gather", r->step.gathers.num, r->step.gathers.num_bytes);
    json_count(out, "reduce_scatter", r->step.reduces.num, r->step.reduces.num_bytes);
    json_count(out, "all_reduce", r->step.all_reduces.num, r->step.all_reduces.num_bytes);
    json_count(out, "all_to_all", (int64_t)r->all_to_alls.num, (int64_t)r->all_to_alls.num_bytes);
    json_count(out, "weight_sync", r->synced.num, r->synced.num_bytes);
    number(out, "first_weight_sync_bytes", r->first_sync_bytes);
    key(out, "flops");
    cr_buf_addf(out, "%.17g}", r->step_flops);
}

static void json_gpu(cr_buf *out, const cr_plan_role *r)
{
    cr_gpu_need need[CR_GPU_NEEDS];

    cr_gpu_needs(r, need);
    key(out, "device_keeps");
    cr_buf_addc(out, '[');
    for (int i = 0; i < CR_GPU_NEEDS; i++) {
        cr_buf_adds(out, i ? ",{" : "{");
        text(out, "what", need[i].what, strlen(need[i].what));
        number(out, "bytes", need[i].bytes);
        text(out, "source", need[i].source, strlen(need[i].source));
        cr_buf_addc(out, '}');
    }
    cr_buf_addc(out, ']');
}

static void json_groups(cr_buf *out, const cr_plan_role *r)
{
    size_t from = 0, num;

    key(out, "param_groups");
    cr_buf_addc(out, '[');
    for (const char *line; (line = cr_line_next(&r->groups, &from, &num));) {
        if (out->data[out->num_bytes - 1] != '[') cr_buf_addc(out, ',');
        cr_json_add_string(out, line, num);
    }
    cr_buf_addc(out, ']');
}

static void json_role(cr_buf *out, const cr_plan_role *r, const cr_worker_config *w, bool is_gpu,
                      bool with_tree)
{
    const struct cr_plan_phase *peak = cr_plan_peak_phase(r);
    const char *at = r->tree.data;
    size_t num;

    cr_buf_addc(out, '{');
    text(out, "name", r->name, strlen(r->name));
    text(out, "strategy", cr_worker_runs(w), strlen(cr_worker_runs(w)));
    key(out, "mesh");
    cr_buf_addf(out, "{\"ranks\":%d,\"ddp\":%d,\"fsdp\":%d,\"dp\":%d,\"ulysses\":%d}",
                r->mesh.num_ranks, r->mesh.num_ddp, r->mesh.num_fsdp, r->mesh.num_dp,
                r->mesh.num_ulysses);
    number(out, "parameters", r->num_elems);
    number(out, "trained", r->num_trained);
    number(out, "trained_tensors", r->num_trained_tensors);
    number(out, "adapters", r->num_adapters);
    number(out, "trained_in_full", r->full_elems);
    number(out, "shard_elements", r->shard_elems);
    number(out, "units", (int64_t)r->num_units);
    number(out, "most_units_alive", r->max_units_alive);
    number(out, "host_bytes", r->host_bytes);
    number(out, "pixel_bytes", r->pixel_bytes);
    if (r->max_elems_in) {
        key(out, "largest_array");
        cr_buf_addf(out, "{\"operation\":\"%s\",\"elements\":%lld}", r->max_elems_in,
                    (long long)r->max_elems);
    }
    text(out, "peak_phase", peak->name, strlen(peak->name));
    key(out, "peak_bytes");
    cr_buf_addc(out, '{');
    json_bytes(out, &peak->bytes);
    cr_buf_addc(out, '}');
    key(out, "phases");
    cr_buf_addc(out, '[');
    for (size_t i = 0; i < r->num_phases; i++) {
        cr_buf_adds(out, i ? ",{" : "{");
        text(out, "phase", r->phase[i].name, strlen(r->phase[i].name));
        json_bytes(out, &r->phase[i].bytes);
        cr_buf_addc(out, '}');
    }
    cr_buf_addc(out, ']');
    json_traffic(out, r);
    if (is_gpu) json_gpu(out, r);
    json_groups(out, r);
    key(out, "warnings");
    cr_buf_addc(out, '[');
    for (const char *line; (line = cr_plan_next_warning(&at, &num));) {
        if (out->data[out->num_bytes - 1] != '[') cr_buf_addc(out, ',');
        cr_json_add_string(out, line, num);
    }
    cr_buf_addc(out, ']');
    if (with_tree && r->tree.data) text(out, "tree", r->tree.data, r->tree.num_bytes);
    cr_buf_addc(out, '}');
}

static void json_batch(const cr_plan *p, cr_buf *out)
{
    const cr_plan_batch *b = &p->batch;

    key(out, "batch");
    cr_buf_addc(out, '{');
    if (p->is_rlvr) {
        number(out, "rollout_batch_size", p->config.rollout_batch_size);
        number(out, "group", p->config.group_size);
    }
    number(out, "samples", p->num_samples);
    number(out, "dp", p->num_dp);
    number(out, "samples_per_rank", p->rank_samples);
    number(out, "per_device_train_batch_size", b->num_samples / p->row_samples);
    number(out, "gradient_accumulation_steps",
           p->config.train.training.gradient_accumulation_steps);
    number(out, "micro_batches", b->micros); /* of an update */
    number(out, "updates", b->updates);
    number(out, "log_prob_forwards", b->forwards);
    if (b->base_forwards) number(out, "reference_forwards", b->base_forwards);
    number(out, "sequence_length", b->sample_tokens);
    number(out, "micro_batch_tokens",
           b->train_tokens ? b->train_tokens : b->num_samples * b->sample_tokens);
    cr_buf_addc(out, '}');
}

/* The rates of all updates are `croll formula schedule`'s. */
static void json_schedule(const cr_plan *p, cr_buf *out)
{
    const cr_lr_schedule s = cr_training_schedule(
        &p->config.train, !p->is_rlvr ? 0 : cr_rlvr_num_updates(&p->config, &p->config.train));

    key(out, "schedule");
    cr_buf_addc(out, '{');
    text(out, "lr_scheduler_type", cr_schedule_names[s.kind], strlen(cr_schedule_names[s.kind]));
    number(out, "warmup_steps", s.warmup_steps);
    if (p->is_rlvr) number(out, "max_steps", s.max_steps);
    cr_buf_addc(out, '}');
}

static void json_fullest(cr_buf *out, const cr_plan *p)
{
    const cr_plan_fullest_device full = cr_plan_fullest(p, &p->role[0], NULL);

    key(out, "fullest_device");
    cr_buf_addf(out, "{\"first\":%d,\"last\":%d,\"roles\":[", full.first, full.last);
    for (size_t r = 0; r < p->num_roles; r++) {
        const cr_plan_role *role = &p->role[r];
        bool is_working = r == full.working || role->is_judge;
        if (!cr_plan_is_on(p->worker[r], full.first)) continue;
        cr_buf_adds(out, out->data[out->num_bytes - 1] == '[' ? "{" : ",{");
        text(out, "name", role->name, strlen(role->name));
        number(out, "bytes",
               is_working ? cr_plan_work_bytes(p, role)
                          : cr_plan_idle_bytes(p, role, p->worker[r]));
        cr_buf_addc(out, '}');
    }
    cr_buf_adds(out, "]}");
}

void cr_plan_json(const cr_plan *p, bool with_tree, cr_buf *out)
{
    bool is_first = true;

    cr_buf_addc(out, '{');
    text(out, "file", p->path, strlen(p->path));
    text(out, "pipeline", cr_pipeline_names[p->config.kind],
         strlen(cr_pipeline_names[p->config.kind]));
    json_batch(p, out);
    json_schedule(p, out);
    key(out, "roles");
    cr_buf_addc(out, '[');
    for (size_t r = 0; r < p->num_roles; r++) {
        if (r) cr_buf_addc(out, ',');
        json_role(out, &p->role[r], p->worker[r], p->is_gpu, with_tree);
    }
    cr_buf_addc(out, ']');
    number(out, "device_peak_bytes", p->device_peak);
    json_fullest(out, p);
    if (p->memory) {
        number(out, "memory_bytes", p->memory);
        key(out, "fits");
        cr_buf_adds(out, p->device_peak <= p->memory ? "true" : "false");
        number(out, "largest_per_device_train_batch_size", p->largest);
        number(out, "largest_max_tokens_per_microbatch_in_train", p->largest_tokens);
    }
    if (p->config.train.is_reshard_auto) {
        key(out, "reshard_after_forward");
        cr_buf_addf(out, "{\"auto\":%s",
                    p->config.train.reshard_after_forward == 0 ? "false" : "null");
        number(out, "kept_bytes", p->kept_bytes);
        cr_buf_addc(out, '}');
    }
    if (p->cores_json) {
        key(out, "cores");
        cr_buf_addf(out, "[%s]", p->cores_json);
    }
    if (p->hosts.num) cr_plan_hosts_json(p, out);
    key(out, "not_available");
    cr_buf_addc(out, '[');
    for (size_t i = 0; i < p->d.num; i++) {
        if (!strstr(p->d.items[i].text, "not available")) continue;
        if (!is_first) cr_buf_addc(out, ',');
        is_first = false;
        cr_json_add_string(out, p->d.items[i].text, strlen(p->d.items[i].text));
    }
    cr_buf_adds(out, "]}\n");
}
