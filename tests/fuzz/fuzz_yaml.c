/* fuzz_yaml.c -- arbitrary bytes as the YAML of `croll run`: composed, interpolated, checked and freed,
 * with a diagnostic for every refusal. */
#include "configs/configs.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    cr_diagnostics d = {0};
    cr_config config = {0};
    cr_err err = {0};
    char path[64];

    CR_CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size, "%zu bytes of a file", size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (cr_config_load(path, NULL, 0, &config, &d, &err) != CR_OK)
        CR_CHECK(cr_exit_code(err.status) == 2 && err.msg[0], "status %d", (int)err.status);
    cr_config_free(&config);
    cr_diagnostics_free(&d);
    close(fd);
    return 0;
}
