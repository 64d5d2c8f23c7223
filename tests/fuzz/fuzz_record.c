/* fuzz_record.c -- a record may come from any process that reaches Redis. */
#include "exchange/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cr_record r;
    cr_buf again = {0};
    cr_err err = {0};

    if (cr_record_unpack(data, size, &r, &err) == CR_OK &&
        cr_record_pack(&r, &again, &err) != CR_OK)
        __builtin_trap(); /* what was read can be written */
    if (err.status == CR_OK) cr_record_free(&r);
    cr_buf_free(&again);
    return 0;
}
