/* peft.h -- PEFT's folder of a LoRA adapter: adapter_config.json and adapter_model.safetensors.
 *
 *     cr_peft_config_read     what the model is to have; then cr_model_open_with and cr_weights_open bring the values
 *     cr_peft_config_write    beside a file of tensors with the names of cr_peft_tensor_name
 *
 * Files are outside input. A key that would make PEFT compute other numbers is refused by its name (DoRA, rank_pattern, ..), and so is one that PEFT 0.21 does not have, unless it is null, false or empty. lora_dropout
 * acts in training alone.
 */
#ifndef CR_PEFT_H
#define CR_PEFT_H

#include "models/models.h"

#define CR_PEFT_CONFIG  "adapter_config.json"
#define CR_PEFT_TENSORS "adapter_model.safetensors"

/* folder: or its name on the hub (base/hub.h). On success the caller owns o->target and o->folder (cr_peft_options_fini),
 * and *base_model, which may be NULL. CR_EFORMAT, CR_EABSENT: the file, the key, and what to do. */
CR_MUST cr_status cr_peft_config_read(const char *folder, cr_adapter_options *o, char **base_model,
                                      cr_err *err);
/* A warning in the log where the adapter says that it was trained on another base than model: shapes alone do not tell. Folders and names on
 * the hub are compared by what follows their last slash. */
void cr_peft_compare_base(const char *folder, const char *model);
void cr_peft_options_fini(cr_adapter_options *o); /* {0} is fine */
/* Into a folder that is there. base_model: its folder or name, or NULL. PEFT refuses a regular expression that also matches
 * modules that are not Linears. */
CR_MUST cr_status cr_peft_config_write(const char *folder, const cr_adapter_options *o,
                                       const char *base_model, cr_err *err);
/* "base_model.model." and the name of a parameter; owned by the caller. */
char *cr_peft_tensor_name(const char *param_name);

#endif
