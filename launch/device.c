/* device.c -- see device.h. */
#include "launch/device.h"
#include "kernels/kernels.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEVICE_LIMIT_MS = 60000 };

cr_status cr_device_open_to_compute(const char *name, int number, int num_threads, cr_device **out,
                                    cr_err *err)
{
    CR_TRY(cr_device_open_number(name, number, num_threads > 1 ? num_threads : 1, out, err));
    if (!cr_device_is_meta(*out)) return CR_OK;
    cr_device_close(*out);
    *out = NULL;
    return cr_fail(err, CR_EUSAGE, "device meta only counts, it has no numbers to answer with");
}

const char *cr_device_of_run(const cr_config *config)
{
    return cr_device_or(config->device);
}

bool cr_run_has_gpus(const cr_config *config)
{
    return cr_device_name_is_gpu(cr_device_of_run(config));
}

cr_status cr_device_check(const char *name, cr_err *err)
{
    cr_device *dev;

    if (cr_device_open(name, 1, &dev, err) == CR_OK) cr_device_close(dev);
    return err->status;
}

cr_status cr_device_try(const char *name, int number, cr_device_memory *memory, cr_err *err)
{
    struct answer {
        cr_err err;
        cr_device_memory memory;
    } found = {{0}, {0}};
    cr_device *dev;
    ssize_t num_bytes = 0;
    int ends[2];
    pid_t pid;

    *memory = (cr_device_memory){0};
    if (pipe2(ends, O_CLOEXEC) != 0 || (pid = fork()) < 0)
        return cr_fail(err, CR_EIO, "cannot look at the device: %s", strerror(errno));
    if (pid == 0) {
        if (cr_device_open_to_compute(name, number, 1, &dev, &found.err) == CR_OK) {
            cr_note(cr_device_get_memory(dev, &found.memory, &found.err));
            cr_device_close(dev);
        }
        _exit(write(ends[1], &found, sizeof found) == sizeof found ? 0 : 1);
    }
    close(ends[1]);
    if (poll(&(struct pollfd){.fd = ends[0], .events = POLLIN}, 1, DEVICE_LIMIT_MS) == 1)
        num_bytes = read(ends[0], &found, sizeof found);
    close(ends[0]);
    if (num_bytes != sizeof found) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, WNOHANG);
        return cr_fail(
            err, CR_EIO,
            "device %s: a process that opens it ends, or gives no answer within a minute "
            "(croll doctor)",
            name);
    }
    waitpid(pid, NULL, 0);
    *memory = found.memory;
    *err = found.err;
    return err->status;
}
