/* resize.h -- bicubic resizing with antialiasing of RGB pixels, bit for bit as Pillow or torchvision do it on a CPU.
 *
 * Both stretch the same kernel (a = -0.5) when an image shrinks, go along rows first, and round to 8 bits after each of the two
 * passes. They differ in how they round weights: Pillow to 22 bits, torchvision to what fits 16 bits with a sign. (Pillow 13 goes along
 * columns first where the height shrinks much more than the width. Here the order is that of Pillow up to 12.)
 */
#ifndef CR_IMAGE_RESIZE_H
#define CR_IMAGE_RESIZE_H

#include "images/image.h"

typedef enum cr_resize_form { CR_RESIZE_PIL, CR_RESIZE_TORCHVISION } cr_resize_form;
#define CR_RESIZE_FORMS "pil", "torchvision"

/* *image becomes width x height. */
void cr_image_resize(cr_image *image, int width, int height, cr_resize_form form);

#endif
