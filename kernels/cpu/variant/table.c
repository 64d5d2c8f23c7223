/* table.c -- the kernels of one instruction set. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/variant/entries.h"

#define ENTRY(name, args) .name = CR_V(name),

const cr_kernels CR_V(cpu_kernels) = {.name = "cpu",
                                      .close = cri_cpu_close,
                                      .drop_scratch = cri_cpu_drop_scratch,
                                      .open_lane = cri_cpu_open_lane,
                                      .alloc = cri_cpu_alloc,
                                      .release = cri_cpu_release,
                                      .upload = cri_cpu_upload,
                                      .download = cri_cpu_download,
                                      .zero = cri_cpu_zero,
                                      .copy = cri_cpu_copy,
                                      .host_alloc = cri_cpu_alloc,
                                      .host_release = cri_cpu_release,
                                      .upload_async = cri_cpu_upload,
                                      .download_async = cri_cpu_download,
                                      .host_wrote = cri_wrote_now,
                                      .sync = cri_nothing_to_wait,
                                      .record = cri_event_over,
                                      .wait = cri_event_over,
                                      .is_over = cri_is_over_now,
                                      .graph_run = cri_call_work,
                                      .graph_destroy = cri_no_graph,
                                      .share = cri_share_as_is,
                                      .unshare = cri_forget,
                                      .spoil = cri_forget,
                                      .memory = cri_host_memory,
                                      .packed_bytes = CR_V(packed_bytes),
                                      .kv_block_bytes = CR_V(kv_block_bytes),
                                      CR_OPS(ENTRY, ENTRY)};
