/* examples/vision_image.c - decodes an image file to raw samples

   make vision-image FILE=x.jpg OUT=y.raw [MODE=grey|rgb|rgba|asis] [DEPTH=8|16] [ORIENT=0]
   ./vision_image --file x.jpg --out y.raw --mode rgb --depth 8 --stored

   Writes rows of pixels, 16-bit samples little-endian, and prints "width height channels depth". */
#include "vision.h"

int main(int argc, char **argv) {
    static const char *const names[] = {"rgb", "grey", "rgba", "asis"};
    const char *file = NULL, *out = NULL, *mode = "rgb";
    double depth = 0;
    bool stored = false, partial = false;
    const argument list[] = {
        {"file", .text = &file, .about = "JPEG, PNG, PPM ..."},
        {"out", .text = &out, .about = "output file for the samples"},
        {"mode", .text = &mode, .about = "rgb, grey, rgba or asis"},
        {"depth", .number = &depth, .low = 8, .high = 16, .about = "bits per sample; default: the file's"},
        {"stored", .on = &stored, .about = "ignore the EXIF orientation"},
        {"partial", .on = &partial, .about = "accept a truncated file"},
        {NULL, .low = 0}};
    int kind = 0;
    if (!arguments_read(argc, argv, list)) return 2;
    while (kind < 4 && strcmp(names[kind], mode)) kind++;
    if (!file || !out || kind == 4)
        return fprintf(stderr, "usage: vision_image --file FILE --out FILE --mode rgb|grey|rgba|asis\n"), 2;
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_vision_read(file, .mode = (fl_vision_mode)kind, .depth = (int)depth,
                                  .as_stored = stored, .partial = partial);
    fl_tensor *rows = t ? fl_contiguous(fl_permute(t, 3, (int[]){1, 2, 0})) : NULL;
    const int64_t bytes = rows ? fl_numel(rows) * (int64_t)fl_dtype_size(rows->dtype) : 0;
    const void *samples = rows ? fl_map(rows, FL_READ) : NULL;
    const bool ok = samples && fl_data_replace("vision_image", out, samples, (size_t)bytes);
    if (samples) fl_unmap(rows, FL_READ);
    if (ok) printf("%lld %lld %lld %d\n", (long long)rows->shape[1], (long long)rows->shape[0],
                   (long long)rows->shape[2], rows->dtype == FL_U16 ? 16 : 8);
    else fprintf(stderr, "%s\n", fl_error());
    fl_scope_end(&s);
    return ok ? 0 : 1;
}
/* MIT licence: see LICENSE. */
