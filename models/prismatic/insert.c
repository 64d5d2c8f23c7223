/* insert.c -- the placeholders of an image in a sequence of Prismatic (vision.h). */
#include "models/vision/vision.h"

#include <string.h>

int64_t cr_vision_image_tokens(const cr_model_config *config)
{
    const cr_vision_config *c = config->vision;

    return c && c->num_vits ? c->vit[0].side * c->vit[0].side : 0;
}

void cr_vision_insert_image(const cr_model_config *config, const int32_t *ids,
                            const int32_t *labels, int64_t num, int32_t *out_ids,
                            int32_t *out_labels)
{
    int64_t more = cr_vision_image_tokens(config);
    size_t rest = (size_t)(num - 1) * sizeof *ids;

    CR_CHECK(more > 0 && num > 0, "an image in a sequence of %lld tokens", (long long)num);
    out_ids[0] = ids[0];
    for (int64_t i = 1; i <= more; i++)
        out_ids[i] = config->vision->image_id;
    memcpy(out_ids + 1 + more, ids + 1, rest);
    if (!labels) return;
    for (int64_t i = 0; i < more; i++)
        out_labels[i] = -1;
    out_labels[more] = labels[0];
    memcpy(out_labels + 1 + more, labels + 1, rest);
}
