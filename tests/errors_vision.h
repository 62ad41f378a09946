/* errors_vision.h - the rows of test_errors.c for images */

static void rows_of_vision(void) {
    const fl_vision_read_opts plain = {.partial = false};
    const fl_vision_batch_opts batch = {.drop_last = true};
    fl_vision_info info;
    fl_vision_pixels pixels;
    fl_vision_arrays arrays;
    fl_data_text text = {0};
    fl_tensor *none = NULL, *floats = o.f23;
    NO_FILE_AS(fl_vision_read_opt, "fl_vision_read", (NULL, plain), NULLS);
    NO_FILE_AS(fl_vision_read_opt, "fl_vision_read", ("/no/such/file", plain), "/no/such/file");
    NO_FILE_AS(fl_vision_read_opt, "fl_vision_read", (o.file, plain), o.file, "no image");
    NO_FILE_AS(fl_vision_decode_opt, "fl_vision_decode", (NULL, 0, plain), "bytes are NULL");
    NO_FILE_AS(fl_vision_decode_opt, "fl_vision_decode", ("", 0, (fl_vision_read_opts){.depth = 3}),
               "depth 3");
    NO_FILE(fl_vision_inspect, (NULL, 0, false, &info), NULLS);
    NO_FILE_AS(fl_vision_inspect, "fl_vision_read", ("x", 1, false, &info), "no image");
    NO_FILE_AS(fl_vision_read_bytes, "fl_vision_read", ("/no/such/file"), "/no/such/file");
    NO_FILE(fl_vision_write_png, (NULL, fl_zeros(FL_SHAPE(3, 4, 5), FL_U8)), NULLS);
    NO_FILE(fl_vision_write_png, ("x", o.f23), "f32 [2, 3] is no image");
    NO_FILE_AS(fl_vision_encode_png, "fl_vision_write_png", (&text, fl_zeros(FL_SHAPE(5, 4, 5), FL_U8)),
               "[5, 4, 5]");
    NO_FILE(fl_vision_encode_png, (NULL, o.f23), NULLS);
    NO_FILE(fl_vision_pixels_of, (&none, &pixels), NULLS);
    NO_FILE(fl_vision_pixels_of, (&floats, &pixels), "f32 [2, 3] on cpu is no image");
    NO_FILE_AS(fl_vision_image, "fl_out_on", (-1, 2, 3, NULL), "not valid");
    NO_FILE_AS(fl_vision_cifar_opt, "fl_vision_cifar",
               (NULL, "train", &arrays, (fl_vision_cifar_opts){.coarse = false}), NULLS);
    NO_FILE_AS(fl_vision_cifar_opt, "fl_vision_cifar",
               ("/no/folder", "train", &arrays, (fl_vision_cifar_opts){.coarse = false}), "/no/folder");
    fl_tensor *image = fl_vision_image(3, 4, 5, NULL);
    const double plane[6] = {1, 0, 0, 0, 1, 0};
    NO_FILE_AS(fl_vision_resized_opt, "fl_vision_pixels_of",
               (NULL, 2, 2, (fl_vision_resize_opts){.box = {0}}), NULLS);
    NO_FILE_AS(fl_vision_resized_opt, "fl_vision_resized",
               (image, 0, 2, (fl_vision_resize_opts){.box = {0}}), "0 x 2");
    NO_FILE_AS(fl_vision_resized_opt, "fl_vision_resized",
               (image, 2, 2, (fl_vision_resize_opts){.box = {0, 0, 9, 2}}),
               "box 0, 0 to 9, 2 of [3, 4, 5]");
    NO_FILE_AS(fl_vision_changed_opt, "fl_vision_changed",
               (image, FL_VISION_BLUR, 1, (fl_vision_change_opts){.size = 2}), "size 2");
    NO_FILE_AS(fl_vision_changed_opt, "fl_vision_pixels_of",
               (NULL, FL_VISION_HUE, 1, (fl_vision_change_opts){.size = 0}), NULLS);
    NO_FILE_AS(fl_vision_affine, "fl_vision_pixels_of", (NULL, plane, (fl_vision_change_opts){.size = 0}),
               NULLS);
    NO_FILE(fl_vision_apply, (NULL, 0, NULL, NULL), NULLS);
    NO_FILE_AS(fl_vision_batch_opt, "fl_vision_batch", (NULL, 1, batch), NULLS);
    NO_FILE_AS(fl_vision_batch_opt, "fl_vision_batch", (fl_data_tensors(&o.f23, 1), 0, batch),
               "batches of 0");
}
