/* fl_vision.h - images: files, data sets, transforms, networks, detection

   From image files to trained, evaluated and drawn classifiers and detectors. What torchvision's
   functions mean counts, names and defaults too; resizing means what Pillow's does.

   >>example
    #define FL_IMPLEMENTATION
    #if defined(FL_CALLS_H) && !defined(FL_VISION_DECLARED)
#error "fl: with FL_TRACE_CALLS include fl_vision.h before fl.h, or fl_all.h: functions are macros now"
#endif
#define FL_VISION_DECLARED
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

   Contents: one room of fl/vision/ each.
     images.h      image files: JPEG, PNG, PPM and PGM read, PNG written
     sets.h        data sets: CIFAR, folders of classes, ImageNet, lists, images with objects
     shards.h      images in tar files, read and written
     transforms.h  what is done to images on their way to a network, and batches
     coco.h        objects in COCO's JSON, masks as run lengths, average precision
     models.h      networks with torchvision's names, and weights under the names of others
     detect.h      boxes, assignment, and the losses of a set of detections
     draw.h        boxes, masks and labels drawn into images
     regions.h     features of boxes: RoIAlign
     deform.h      deformable convolution

   Macros, all optional (besides those of fl_data.h)
     FL_USE_JPEG   read JPEG through libjpeg-turbo (link -ljpeg)
     FL_USE_PNG    read PNG through libpng (link -lpng)

   Concepts
     Image    A tensor u8 [c, h, w], of channels 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGBA), stored
              h, w, c: what files hold, and what a channels-last network wants, so that no step between
              changes the layout. 16-bit files give u16.
     Errors   As in fl_data.h: nothing here stops the program; functions return NULL or false with a text
              that names the file and, where it is known, the offset. */
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
