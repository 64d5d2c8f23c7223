/* rates.c -- see rates.h. */
#include "plan/rates.h"
#include "base/json.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NVIDIA's data sheets, SXM: bf16 without sparsity, one direction of NVLink. */
static const struct gpu {
    const char *name, *title;
    double flops, memory_s, inside_s;
    int64_t memory_mib; /* as nvidia-smi shows it of the card; none was looked at by croll */
    double product_share, attention_share; /* of flops */
} gpus[] = {
    {"a100", "A100 80 GB", 312e12, 2.04e12, 300e9, 81920, 0.65, 0.4},
    {"h100", "H100 80 GB", 989e12, 3.35e12, 450e9, 81559, 0.45, 0.3},
    {"h200", "H200", 989e12, 4.8e12, 450e9, 143771, 0.45, 0.3},
    {"b200", "B200", 2250e12, 8e12, 900e9, 183359, 0.45, 0.3},
};

/* Shares are such that a plan comes near published runs of torchtitan (bench/README.md). croll's own kernels have not run on
 * hardware. */
static const double memory_share = 0.8, inside_share = 0.8;

const char *cr_amount_text(double x, const char *unit, char text[32])
{
    static const char *const steps[] = {"", "k", "M", "G", "T", "P"};
    size_t i = 0;

    while (fabs(x) >= 999.5 && i + 1 < CR_COUNT(steps))
        x /= 1000, i++;
    if (i == 0 && x == floor(x))
        snprintf(text, 32, "%.0f %s", x, unit);
    else
        snprintf(text, 32, "%.3g %s%s", x, steps[i], unit);
    return text;
}

static cr_rate share_of(const struct gpu *gpu, double peak, const char *unit, double share)
{
    cr_rate r = {.per_s = peak * share};
    char size[32];

    snprintf(r.source, sizeof r.source, "data sheet of %s: %.0f %% of %s", gpu->title, 100 * share,
             cr_amount_text(peak, unit, size));
    return r;
}

cr_status cr_rates_of_device(const char *name, cr_rates *out, int64_t *memory_bytes, cr_err *err)
{
    for (size_t i = 0; i < CR_COUNT(gpus); i++) {
        const struct gpu *g = &gpus[i];
        if (strcmp(name, g->name) != 0) continue;
        *memory_bytes = g->memory_mib << 20;
        out->products = share_of(g, g->flops, "FLOP/s", g->product_share);
        out->attention = share_of(g, g->flops, "FLOP/s", g->attention_share);
        out->memory = share_of(g, g->memory_s, "B/s", memory_share);
        out->inside = share_of(g, g->inside_s, "B/s", inside_share);
        return CR_OK;
    }
    return cr_fail(err, CR_EUSAGE,
                   "--device %s: cpu, cuda, or a GPU by name: a100, h100, h200, b200", name);
}

cr_status cr_rate_read(const char *text, const char *option, double *out, cr_err *err)
{
    static const char prefixes[] = "kmgt";
    char *end;
    double x = strtod(text, &end);
    const char *prefix = *end ? strchr(prefixes, tolower((unsigned char)*end)) : NULL;

    for (long i = 0; prefix && i <= prefix - prefixes; i++)
        x *= 1000;
    if (prefix) end++;
    if (strcmp(end, "bit/s") == 0 || strcmp(end, "b/s") == 0)
        x /= 8;
    else if (end == text || strcmp(end, "B/s") != 0)
        x = 0;
    if (!(x >= 1 && x <= 1e18))
        return cr_fail(err, CR_EUSAGE,
                       "%s %.40s is not a rate (as 400GB/s in bytes, 3.2Tbit/s in bits)", option,
                       text);
    *out = x;
    return CR_OK;
}

/* ---- files ---- */

/* *out: object[key], a number above 0, or as it was. */
static cr_status read_number(json_t *object, const char *key, const char *path, double *out,
                             cr_err *err)
{
    json_t *value = json_object_get(object, key);
    double x = json_number_value(value);

    if (!value) return CR_OK;
    if (!json_is_number(value) || !(x > 0 && x < 1e30))
        return cr_fail(err, CR_EFORMAT, "%s: %s is not a number above 0", path, key);
    *out = x;
    return CR_OK;
}

void cr_rates_write(const char *device, double product_flops_s, double attention_flops_s,
                    double memory_bytes_s, cr_buf *out)
{
    cr_buf_adds(out, "{\"device\":");
    cr_json_add_string(out, device, strlen(device));
    cr_buf_addf(out,
                ",\"product_flops_per_s\":%.4g,\"attention_flops_per_s\":%.4g,"
                "\"memory_bytes_per_s\":%.4g}\n",
                product_flops_s, attention_flops_s, memory_bytes_s);
}

static void measured(cr_rate *r, const char *device, const char *path)
{
    if (r->per_s > 0)
        snprintf(r->source, sizeof r->source, "measured on %.40s: %.80s", device, path);
}

cr_status cr_rates_read(const char *text, size_t num_bytes, const char *path, cr_rates *rates,
                        cr_err *err)
{
    cr_rates found = {0};
    const struct {
        const char *key;
        cr_rate *from, *to;
    } fields[] = {
        {"product_flops_per_s", &found.products, &rates->products},
        {"attention_flops_per_s", &found.attention, &rates->attention},
        {"memory_bytes_per_s", &found.memory, &rates->memory},
        {"inside_bytes_per_s", &found.inside, &rates->inside},
    };
    json_t *all;
    const char *device;

    CR_TRY(cr_json_parse(text, num_bytes, path, &all, err));
    device = json_string_value(json_object_get(all, "device"));
    if (!device)
        cr_fail(err, CR_EFORMAT,
                "%s: no \"device\": this is not what `croll doctor --measure FILE` writes", path);
    for (size_t i = 0; i < CR_COUNT(fields) && err->status == CR_OK; i++) {
        CR_TRY_GOTO(out, read_number(all, fields[i].key, path, &fields[i].from->per_s, err));
        measured(fields[i].from, device, path);
        if (fields[i].from->per_s > 0) *fields[i].to = *fields[i].from;
    }
out:
    json_decref(all);
    return err->status;
}

static cr_status read_link(json_t *link, const char *path, cr_rates *rates, cr_err *err)
{
    const char *from = json_string_value(json_object_get(link, "from")),
               *to = json_string_value(json_object_get(link, "to"));
    double per_s = 0, latency_s = 0;

    if (!from || !to)
        return cr_fail(err, CR_EFORMAT, "%s: a link without \"from\" and \"to\"", path);
    CR_TRY(read_number(link, "bytes_per_s", path, &per_s, err));
    CR_TRY(read_number(link, "latency_s", path, &latency_s, err));
    if (per_s > 0 && (rates->link.per_s <= 0 || per_s < rates->link.per_s)) {
        rates->link.per_s = per_s;
        snprintf(rates->link.source, sizeof rates->link.source,
                 "measured: the slowest link, %.30s to %.30s, %.60s", from, to, path);
    }
    if (latency_s > rates->latency_s) rates->latency_s = latency_s;
    return CR_OK;
}

cr_status cr_rates_read_links(const char *text, size_t num_bytes, const char *path, cr_rates *rates,
                              cr_err *err)
{
    json_t *all, *links, *link;
    size_t i;

    CR_TRY(cr_json_parse(text, num_bytes, path, &all, err));
    links = json_object_get(all, "links");
    if (!json_is_array(links)) cr_fail(err, CR_EFORMAT, "%s: no list \"links\"", path);
    rates->link = (cr_rate){0};
    rates->latency_s = 0;
    json_array_foreach(links, i, link) if (read_link(link, path, rates, err) != CR_OK) break;
    json_decref(all);
    return err->status;
}
