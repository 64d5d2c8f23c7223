/* deep.h -- what a run needs beside its file, looked at without starting or writing anything: by `croll run` before it makes
 * a folder, and by `croll config --deep`. Data and reward programs are the pipeline's part (pipelines.h, open).
 */
#ifndef CR_DEEP_H
#define CR_DEEP_H

#include "configs/configs.h"
#include "kernels/memory.h"

/* Models of all roles and of judges that the run starts: folder, architecture, tree, weights, tokenizer. If they are right, the
 * memory: room for the cache of actor_infer, and, where is_one_host, whether all roles fit into this machine (device cpu) or its GPUs, and
 * what they offload into its memory. gpu: what a GPU of this host was found to have (cr_device_try), num_gpus 0: nothing is known of GPUs.
 * Everything there is to say is in d, at the key that is wrong. */
void cr_deep_check(const cr_config *config, bool is_one_host, const cr_device_memory *gpu,
                   cr_diagnostics *d);

#endif
