/* comm_nccl_absent.c -- instead of NCCL in a build without it: groups of GPU memory are refused by name. */
#include "mesh/comm.h"

static cr_status refuse(cr_group *group, cr_err *err)
{
    return cr_fail(err, CR_EABSENT,
                   "memory of device %s moves between ranks by NCCL, which is not built in",
                   cr_device_name(group->dev));
}

static void close_none(cr_group *group)
{
    (void)group;
}

const cri_comm cri_comm_nccl = {.name = "nccl", .open = refuse, .close = close_none};
