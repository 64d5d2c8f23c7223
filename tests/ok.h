/* ok.h -- for tests: OK(call) fails with the message that the call left in `err`. */
#ifndef CR_TEST_OK_H
#define CR_TEST_OK_H

#include "base/base.h"
#include "tests/check_near.h"

static cr_err err;

#define OK(call)                                                 \
    do {                                                         \
        if ((call) != CR_OK) fail_msg("%s: %s", #call, err.msg); \
    } while (0)

#endif
