/* code.c -- how the programs of a code domain are run: here in a sandbox, or by a service. */
#include "configs/bind.h"

#include <stdio.h>
#include <string.h>

enum { LINES_HERE = 4, LINES_OF_SERVICE = 32 }; /* at once; ROLL has 20 */

void cri_bind_code(cr_config *c, cr_node *block, cr_reward_config *r, cr_diagnostics *d)
{
    static const char *const of_code[] = {"code_url",    "use_local",    "sandbox",
                                          "interpreter", "case_timeout", "case_memory_mb"};
    bool is_code = r->rule && strcmp(r->rule, "code") == 0;
    char where[160];

    r->code = (cr_code_keys){.service = {.url = cri_text_of(block, "code_url")},
                             .use_local = cri_flag_of(block, "use_local"),
                             .is_open = cri_choice_of("reward", block, "sandbox") == 1,
                             .interpreter = cri_text_of(block, "interpreter"),
                             .case_timeout = cri_real_of(block, "case_timeout"),
                             .case_memory_mb = cri_int_of(block, "case_memory_mb")};
    for (size_t i = 0; i < CR_COUNT(of_code) && !is_code; i++)
        if (cri_is_in_file(block, of_code[i]))
            cr_diagnose(d, CR_NOTE, cr_node_get(block, of_code[i])->place,
                        "%s has no effect (rewards.%s runs no programs)", of_code[i], r->domain);
    if (!is_code) return;
    snprintf(where, sizeof where, "rewards.%.100s.code_url", r->domain);
    if (r->code.service.url)
        cri_check_service_keys(cr_node_get(block, "code_url"), &r->code.service, where, d);
    if (!cri_is_in_file(block, "max_in_flight")) {
        r->max_in_flight =
            r->code.service.url && !r->code.use_local ? LINES_OF_SERVICE : LINES_HERE;
        cri_set_int(c, block, "max_in_flight", r->max_in_flight);
    }
    r->code.service.connections = r->max_in_flight;
    if (r->code.is_open)
        cr_diagnose(
            d, CR_WARNING, cr_node_get(block, "sandbox")->place,
            "rewards.%s.sandbox: none: programs of the model run with the rights of this user",
            r->domain);
}
