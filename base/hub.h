/* hub.h -- models by their name at Hugging Face, as they are in the local cache of its tools. Nothing is
 * downloaded.
 *
 * "org/name" or "org/name@revision" is models--org--name/snapshots/<hash> in the first of $HF_HUB_CACHE,
 * $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub and ~/.cache/huggingface/hub whose variable is set; the hash is
 * the revision itself, or what refs/<revision> holds ("main" without one).
 */
#ifndef CR_HUB_H
#define CR_HUB_H

#include "base/base.h"

/* The folder of a model: `model` itself if it is one, else the snapshot of that name. Owned by the caller;
 * NULL: there is neither. */
char *cr_hub_find(const char *model);
/* Could it be a name at Hugging Face? */
bool cr_hub_is_name(const char *model);
/* CR_EFORMAT: there is no such model; says what downloads it, if it is a name. */
cr_status cr_hub_absent(const char *model, cr_err *err);

#endif
