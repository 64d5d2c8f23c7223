/* measure.c -- see measure.h. */
#include "plan/measure.h"
#include "kernels/kernels.h"
#include "kernels/measure.h"
#include "plan/rates.h"

#include <stdio.h>

cr_status cr_rates_measure(const char *device, const char *path, char found[CR_MEASURED],
                           cr_err *err)
{
    char name[80], text[3][32];
    cr_device *dev = NULL;
    cr_buf out = {0};
    cr_speed s;

    CR_TRY_GOTO(out, cr_device_open(device, 1, &dev, err));
    CR_TRY_GOTO(out, cr_device_measure(dev, &s, err));
    snprintf(name, sizeof name, "%s%s%s", cr_device_name(dev), cr_device_variant(dev)[0] ? " " : "",
             cr_device_variant(dev));
    cr_rates_write(name, s.product_flops_s, s.attention_flops_s, s.memory_bytes_s, &out);
    CR_TRY_GOTO(out, cr_file_write_atomic(path, out.data, out.num_bytes, err));
    snprintf(found, CR_MEASURED, "%s, one rank: products %s, attention %s, memory %s", name,
             cr_amount_text(s.product_flops_s, "FLOP/s", text[0]),
             cr_amount_text(s.attention_flops_s, "FLOP/s", text[1]),
             cr_amount_text(s.memory_bytes_s, "B/s", text[2]));
out:
    if (dev) cr_device_close(dev);
    cr_buf_free(&out);
    return err->status;
}
