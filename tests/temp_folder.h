/* temp_folder.h -- a fresh folder of a test program, for cmocka_run_group_tests(tests, make_temp_folder,
 * remove_temp_folder); included by one source, after check_near.h. */
#ifndef TEMP_FOLDER_H
#define TEMP_FOLDER_H

#include "base/base.h"

#include <stdlib.h>

static char temp_folder[] = "/tmp/croll-test-XXXXXX";

static int make_temp_folder(void **state)
{
    (void)state;
    return mkdtemp(temp_folder) ? 0 : -1;
}

static int remove_temp_folder(void **state)
{
    cr_err err = {0};

    (void)state;
    return cr_remove_tree(temp_folder, &err) == CR_OK ? 0 : -1;
}

#endif
