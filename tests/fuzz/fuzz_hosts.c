/* fuzz_hosts.c -- arbitrary bytes as a list of hosts, as a hostfile, and as what Slurm says of an allocation (names, a NUL, tasks):
 * names that no command line takes for an option, 1 to CR_MAX_HOST_RANKS ranks each, no name twice, or an error. */
#include "launch/hosts.h"
#include "tests/fuzz/mutator.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(cr_status status, cr_hosts *hosts, const cr_err *err)
{
    if (status != CR_OK) {
        CR_CHECK(!hosts->host && hosts->num == 0 && cr_exit_code(status) == 2 && err->msg[0],
                 "error");
        return;
    }
    CR_CHECK(hosts->num > 0 && hosts->num <= CR_MAX_HOSTS, "%zu hosts", hosts->num);
    for (size_t i = 0; i < hosts->num; i++) {
        const char *name = hosts->host[i].name;
        CR_CHECK(name[0] && name[0] != '-' && !strpbrk(name, " \t\r\n,:;'\"$`\\|&<>()*?[]#~=%"),
                 "name '%s'", name);
        CR_CHECK(hosts->host[i].num_ranks > 0 && hosts->host[i].num_ranks <= CR_MAX_HOST_RANKS,
                 "%d", hosts->host[i].num_ranks);
        for (size_t k = 0; k < i && hosts->num < 100; k++)
            CR_CHECK(strcmp(hosts->host[k].name, name) != 0, "'%s' twice", name);
    }
    cr_hosts_free(hosts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = memchr(data, 0, size);
    cr_buf bytes = {0}, names = {0};
    cr_hosts hosts = {0};
    cr_err a = {0}, b = {0}, c = {0};

    cr_buf_add(&bytes, data, size);
    cr_buf_addc(&bytes, 0);
    bytes.num_bytes--;
    check(cr_hosts_read(bytes.data, &hosts, &a), &hosts, &a);
    check(cr_hosts_read_file(&bytes, "F", &hosts, &b), &hosts, &b);
    if (nul) {
        cr_buf_add(&names, data, (size_t)(nul - data));
        check(cr_hosts_read_slurm(&names, bytes.data + (nul - data) + 1, &hosts, &c), &hosts, &c);
    }
    cr_buf_free(&names);
    cr_buf_free(&bytes);
    return 0;
}
