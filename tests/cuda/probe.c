/* probe.c -- every GPU that CUDA shows (or the simulated one) runs a kernel of this build; without a GPU device cuda does
 * not open, and says so. Ends with 77 where there is no GPU.
 *
 * Not covered: any operation of the table of kernels, memory beyond a few kilobytes, NCCL at work.
 */
#include "kernels/gpu.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <string.h>

int main(void)
{
    static cr_gpu_report g;
    cr_device *dev;
    cr_err err = {0};
    int num_faults = 0;

    if (cr_gpu_probe(&g, &err) != CR_OK) {
        cr_err none = {0};
        if (cr_device_open("cuda", 1, &dev, &none) == CR_OK || !strstr(none.msg, "device cuda: ")) {
            printf("FAIL: device cuda without a GPU: %s\n", none.msg);
            return 1;
        }
        printf("SKIP: %s\n", err.msg);
        return 77;
    }
    if (cr_device_open("cuda", 1, &dev, &err) != CR_OK) {
        printf("FAIL: %s\n", err.msg);
        num_faults++;
    }
    cr_device_close(dev);
    for (int i = 0; i < g.num_listed; i++) {
        const cr_gpu *gpu = &g.gpu[i];
        bool is_fine = !gpu->fault[0] && gpu->name[0] && gpu->memory_bytes >= gpu->free_bytes &&
                       gpu->free_bytes > 0 && gpu->capability_major > 0;
        printf("%s: GPU %d %s, %d.%d, %zu bytes, %zu free%s%s\n", is_fine ? "ok" : "FAIL", i,
               gpu->name, gpu->capability_major, gpu->capability_minor, gpu->memory_bytes,
               gpu->free_bytes, gpu->fault[0] ? ": " : "", gpu->fault);
        num_faults += !is_fine;
    }
    return num_faults ? 1 : 0;
}
