/* prompt_files.h -- files of prompts in the temporary folder of a test, and a chat whose template is there; included by one
 * source, after temp_folder.h. */
#ifndef TEST_PROMPT_FILES_H
#define TEST_PROMPT_FILES_H

#include "tests/check_near.h"
#include "tests/temp_folder.h"
#include "text/chat.h"

#include <string.h>

static cr_chat *chat;

/* Its path, owned by the caller. */
static inline char *put_file(const char *name, const void *data, size_t num_bytes)
{
    char *path = cr_path_join(temp_folder, name);
    cr_err err = {0};

    if (cr_file_write_atomic(path, data, num_bytes, &err) != CR_OK) fail_msg("%s", err.msg);
    return path;
}

static inline void use_template(const char *jinja)
{
    cr_err err = {0};

    cr_free(put_file("chat_template.jinja", jinja, strlen(jinja)));
    cr_chat_close(chat);
    if (cr_chat_open(temp_folder, &chat, &err) != CR_OK) fail_msg("%s", err.msg);
}

#endif
