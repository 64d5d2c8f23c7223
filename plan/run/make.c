/* make.c -- see make.h. */
#include "plan/run/make.h"
#include "configs/configs.h"
#include "plan/devices.h"
#include "plan/plan_print.h"
#include "plan/run/make_impl.h"
#include "plan/run/roles.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "80GB" = 80e9, "80GiB" = 80 x 2^30, "1000" = bytes. */
static cr_status read_memory(const char *text, int64_t *out, cr_err *err)
{
    static const char units[] = "kmgt";
    char *end;
    double x = strtod(text, &end), step = 1000;
    const char *unit = *end ? strchr(units, tolower((unsigned char)*end)) : NULL;

    if (unit && end[1] == 'i') step = 1024;
    for (long i = 0; unit && i <= unit - units; i++)
        x *= step;
    if (unit) end += end[1] == 'i' ? 2 : 1;
    if (*end == 'B') end++;
    if (*end || end == text || !(x >= 1) || x > 1e18)
        return cr_fail(err, CR_EUSAGE, "--memory %s is not a size (as 80GB or 80GiB)", text);
    if (!unit && x < 1 << 20)
        return cr_fail(err, CR_EUSAGE, "--memory %s is %.0f bytes (did you mean %.0fGiB?)", text, x,
                       x);
    *out = (int64_t)x;
    return CR_OK;
}

static cr_status count(cr_plan *p, cr_err *err)
{
    CR_TRY(cr_plan_roles(p, err));
    p->device_peak = cr_plan_fullest(p, &p->role[0], NULL).bytes;
    cr_plan_hosts_place(p);
    if (p->hosts.num) CR_TRY(cri_plan_choose(p, err));
    return p->memory ? cri_plan_search(p, err) : CR_OK;
}

cr_status cr_plan_make(cr_plan *p, const cr_words *words, const cr_plan_options *options,
                       cr_err *err)
{
    cr_status status;

    if (words->num < 1) return cr_fail(err, CR_EUSAGE, "a FILE is needed (see croll plan --help)");
    if (p->world < 0 || p->world > 65536)
        return cr_fail(err, CR_EUSAGE, "--world %lld: from 1 to 65536", (long long)p->world);
    if (options->memory) CR_TRY(read_memory(options->memory, &p->memory, err));
    if (p->num_gpus < 0 || p->num_gpus > 1024)
        return cr_fail(err, CR_EUSAGE, "--gpus %lld: from 1 to 1024", (long long)p->num_gpus);
    p->path = words->word[0];
    status = cri_plan_load(p, words, err);
    cr_diagnostics_print(&p->d);
    CR_TRY(status);
    CR_TRY(cr_plan_hosts_open(p, options, err));
    CR_TRY(cr_plan_cores_open(p, options, err));
    return count(p, err);
}

cr_status cr_plan_show(const cr_plan *p, bool is_json, bool with_tree, const char *page,
                       cr_err *err)
{
    cr_buf out = {0};

    if (page) {
        cr_plan_html(p, &out);
        cr_note(cr_file_write_atomic(page, out.data, out.num_bytes, err));
        cr_buf_clear(&out);
    }
    if (is_json)
        cr_plan_json(p, with_tree, &out);
    else
        cr_plan_text(p, with_tree, &out);
    fwrite(out.data, 1, out.num_bytes, stdout);
    cr_buf_free(&out);
    return err->status;
}

void cr_plan_free(cr_plan *p)
{
    cr_plan_hosts_free(p);
    cr_plan_roles_free(p);
    for (size_t i = 0; p->override && p->override[i]; i++)
        cr_free(p->override[i]);
    cr_free(p->override);
    cr_config_free(&p->config);
    cr_diagnostics_free(&p->d);
}
