/* messages.h -- the chat of a data row as a list of messages: a list, or one written as JSON text, of "role" and "content" or in ShareGPT's form.
 *
 * Flow 2 of 7.
 */
#ifndef CR_DATA_MESSAGES_H
#define CR_DATA_MESSAGES_H

#include "base/json.h"

/* A new reference. CR_EFORMAT says what the column `name` is instead. */
CR_MUST cr_status cri_messages_read(const json_t *column, const char *name, json_t **out,
                                    cr_err *err);

#endif
