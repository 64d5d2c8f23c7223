/* placement.h -- which host each rank of a run is on.
 *
 * What exchanges the most stays on one host. Of a role that trains or computes log-probs these are, as far as a host has
 * room for them: all its ranks, else each of its shard groups (fsdp), else each of its ulysses groups, else each rank by itself. They
 * go to the first host with room, the roles in the order of cr_role; engines, which need no neighbours, fill what is left.
 * So with a:4,b:4 and two shard groups of 4 ranks, each has a host, whatever other ranks there are.
 *
 * On GPUs device_mapping says which ranks share one, so it places them, as in ROLL: the hosts in their order take devices in
 * theirs, each with its ranks of all roles, until there is no room for the next one or it would be one more than
 * num_gpus_per_node. A rank then takes GPU number device % GPUs of its host (cr_device_open_number).
 *
 * Pure arithmetic, one thread.
 */
#ifndef CR_PLACEMENT_H
#define CR_PLACEMENT_H

#include "launch/hosts.h"
#include "samples/roles.h"

/* hosts have room for all ranks of the layout (cr_hosts_open). num_gpus_per_node: 0: as many as there is room for.
 * CR_ECONFIG, of several hosts with GPUs alone: they have none for a device. */
CR_MUST cr_status cr_placement_make(cr_hosts *hosts, const cr_layout *layout, bool has_gpus,
                                    int64_t num_gpus_per_node, cr_err *err);
/* "a 0-3, b 4-7": the ranks of a role by host, owned by the caller. */
char *cr_placement_text(const cr_hosts *hosts, const cr_layout *layout, cr_role role);
/* A line a role with ranks; owned by the caller. */
char *cr_placement_table(const cr_hosts *hosts, const cr_layout *layout);

#endif
