/* fl_vision.h - images: files, data sets, transforms, networks, detection

   From image files to training, evaluating and visualising classifiers and detectors. Semantics, names and
   defaults are torchvision's; resizing is Pillow's.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_vision.h"
    int main(void) {
        fl_scope s = fl_scope_begin();
        fl_tensor *image = fl_cast(fl_randint(FL_SHAPE(3, 24, 32), 0, 256, NULL), FL_U8);
        if (!fl_vision_write_png("noise.png", image)) return 1;
        fl_data_text png = {0};
        fl_vision_encode_png(&png, image);
        fl_print(fl_int(png.n)); // bytes
        fl_heap_free(png.p);
        fl_scope_end(&s);
        return 0;
    }
   <<example

   Contents: the files of fl/vision/.
     images.h      image files: reading JPEG, PNG, PPM and PGM, writing PNG
     sets.h        data sets: CIFAR, a folder per class, ImageNet, lists, images with objects
     shards.h      tar shards of images: reading and writing
     transforms.h  preprocessing and augmentation of images, batches
     coco.h        COCO annotations, run-length masks, average precision
     models.h      networks with torchvision's names; loading weights with other names
     detect.h      bounding boxes, matching, losses of set prediction
     draw.h        drawing boxes, masks and labels into images
     regions.h     features of boxes: RoIAlign
     deform.h      deformable convolution

   Macros, all optional (besides those of fl_data.h)
     FL_USE_JPEG   read JPEG through libjpeg-turbo (link -ljpeg)
     FL_USE_PNG    read PNG through libpng (link -lpng)

   Concepts
     Image    A tensor u8 [c, h, w] with 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGBA) channels, stored in
              the order h, w, c (channels-last), as in files and in channels-last networks, so that no step
              changes the layout. 16-bit files give u16.
     Errors   As in fl_data.h, no function here calls the error handler: they return NULL or false, with an
              error text that names the file and, if known, the offset. */
#if defined(FL_CALLS_H) && !defined(FL_VISION_DECLARED)
#error "fl: with FL_TRACE_CALLS include fl_vision.h before fl.h, or fl_all.h: functions are macros now"
#endif
#define FL_VISION_DECLARED
#include "fl_optim.h"
#include "fl/vision/images.h"
#include "fl/vision/sets.h"
#include "fl/vision/shards.h"
#include "fl/vision/transforms.h"
#include "fl/vision/coco.h"
#include "fl/vision/regions.h"
#include "fl/vision/deform.h"
FL__GLUE_BEGIN
#include "fl/vision/models.h"
#include "fl/vision/detect.h"
#include "fl/vision/draw.h"
FL__GLUE_END

/* MIT licence: see LICENSE. */
