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
    NO_FILE_AS(fl_vision_read_opt, "fl_vision_read", (o.file, plain), o.file, "unknown image format");
    NO_FILE_AS(fl_vision_decode_opt, "fl_vision_decode", (NULL, 0, plain), "bytes is NULL");
    NO_FILE_AS(fl_vision_decode_opt, "fl_vision_decode", ("", 0, (fl_vision_read_opts){.depth = 3}),
               "depth 3");
    NO_FILE(fl_vision_inspect, (NULL, 0, false, &info), NULLS);
    NO_FILE_AS(fl_vision_inspect, "fl_vision_read", ("x", 1, false, &info), "unknown image format");
    NO_FILE_AS(fl_vision_read_bytes, "fl_vision_read", ("/no/such/file"), "/no/such/file");
    NO_FILE(fl_vision_write_png, (NULL, fl_zeros(FL_SHAPE(3, 4, 5), FL_U8)), NULLS);
    NO_FILE(fl_vision_write_png, ("x", o.f23), "got f32 [2, 3], expected an image");
    NO_FILE_AS(fl_vision_encode_png, "fl_vision_write_png", (&text, fl_zeros(FL_SHAPE(5, 4, 5), FL_U8)),
               "[5, 4, 5]");
    NO_FILE(fl_vision_encode_png, (NULL, o.f23), NULLS);
    NO_FILE(fl_vision_pixels_of, (&none, &pixels), NULLS);
    NO_FILE(fl_vision_pixels_of, (&floats, &pixels), "got f32 [2, 3] on cpu, expected a non-empty image");
    NO_FILE(fl_vision_image, (-1, 2, 3, NULL), "-1 channels of 2 x 3 pixels");
    NO_FILE_AS(fl_vision_cifar_opt, "fl_vision_cifar",
               (NULL, "train", &arrays, (fl_vision_cifar_opts){.coarse = false}), NULLS);
    NO_FILE_AS(fl_vision_cifar_opt, "fl_vision_cifar",
               ("/no/folder", "train", &arrays, (fl_vision_cifar_opts){.coarse = false}), "/no/folder");
    fl_vision_rle rle, full = {2, 2, 1, (uint32_t[]){4}},
                       both[] = {{2, 2, 1, (uint32_t[]){4}}, {1, 4, 1, (uint32_t[]){4}}};
    fl_vision_coco coco = {0};
    fl_vision_ap ap = {.n_category = 0};
    const fl_vision_object object = {.id = 7};
    double box[4];
    unsigned char mask[4];
    NO_FILE(fl_vision_rle_parse, (NULL, 0, 1, 1, &rle), NULLS);
    NO_FILE(fl_vision_rle_parse, ("\x01", 1, 2, 2, &rle), "offset 1", "invalid run");
    NO_FILE(fl_vision_rle_parse, ("9", 1, 2, 2, &rle), "run 0 is 9: negative, or past the end of");
    NO_FILE(fl_vision_rle_parse, ("3", 1, 2, 2, &rle), "the sum of the runs is 3, expected 2 x 2");
    NO_FILE(fl_vision_rle_parse, ("4", 1, 70000, 2, &rle), "mask of h, w = 70000, 2");
    NO_FILE(fl_vision_rle_put, (NULL, NULL), NULLS);
    NO_FILE(fl_vision_rle_encode, (NULL, 2, 2, &rle), NULLS);
    NO_FILE(fl_vision_rle_polygon, (NULL, 3, 2, 2, &rle), "not NULL");
    NO_FILE(fl_vision_rle_polygon, ((double[]){0, 0, NAN, 1, 2, 2}, 3, 2, 2, &rle), "corner 1 is at nan");
    NO_FILE(fl_vision_rle_merge, (both, 2, false, &rle), "sizes differ: 2 x 2 and 1 x 4");
    FINE(fl_vision_rle_decode, (fl_vision_rle_decode(&full, mask), true));
    FINE(fl_vision_rle_area, fl_vision_rle_area(&full) == 0);
    FINE(fl_vision_rle_box, (fl_vision_rle_box(&full, box), box[2] == 0));
    FINE(fl_vision_rle_iou, fl_vision_rle_iou(&both[0], &both[1], false) == -1);
    NO_FILE(fl_vision_coco_load, (o.file, NULL), NULLS);
    NO_FILE_AS(fl_vision_coco_load, "fl_vision_coco", ("/no/such/file", &coco), "/no/such/file");
    NO_FILE_AS(fl_vision_coco_load, "fl_vision_coco", (o.file, &coco), o.file, "offset");
    NO_FILE_AS(fl_vision_coco_results, "fl_vision_coco", ("/no/such/file", &coco, &coco), "/no/such/file");
    NO_FILE(fl_vision_coco_results, ("x", NULL, &coco), NULLS);
    FINE(fl_vision_coco_free, (fl_vision_coco_free(NULL), true));
    FINE(fl_vision_coco_find, fl_vision_coco_find(&coco, 1) == -1);
    NO_FILE(fl_vision_coco_mask, (&coco, &object, &rle), "object 7 has no segmentation");
    NO_FILE(fl_vision_evaluate, (&coco, NULL, false, &ap), NULLS);
    FINE(fl_vision_ap_free, (fl_vision_ap_free(NULL), true));
    FINE(fl_vision_ap_class, fl_vision_ap_class(&ap, 3) == -1);
    NO_FILE(fl_vision_ap_put, (NULL, &ap, NULL), NULLS);
    ROW(QUIET, "fl_vision_voc_opt",
        isnan(fl_vision_voc_opt(&coco, &coco, 3, 0.5, 11, (fl_vision_voc_opts){0})), "class 3");
    FINE(fl_vision_model_name, fl_vision_model_name(-1) == NULL);
    NO_AS(fl_vision_model_opt, "fl_vision_model", ("resnet51", (fl_vision_model_opts){.frozen = false}),
          "unknown network 'resnet51'");
    NO_AS(fl_vision_model_opt, "fl_vision_model", ("vit_b_16", (fl_vision_model_opts){.size = 100}),
          "size 100");
    NO_AS(fl_vision_detr_opt, "fl_vision_detr", (50, (fl_vision_detr_opts){.dim = 30}), "dim 30");
    NO_FILE(fl_vision_load, (NULL, "x", FL_VISION_TIMM), NULLS);
    ROW(QUIET, "fl_vision_classes", fl_vision_classes(NULL, "x", FL_VISION_TIMM) == -1, NULLS);
    const fl_vision_targets nothing = {.n = 0};
    fl_vision_losses losses;
    fl_tensor *four = fl_ones(FL_SHAPE(2, 4), FL_F32);
    NO(fl_vision_box_convert, (o.f23, FL_VISION_XYXY, FL_VISION_XYWH), "got boxes f32 [2, 3]");
    NO_AS(fv_vision_box_convert, "fl_vision_box_convert",
          (fv_const(four), FL_VISION_XYXY, (fl_vision_box_format)7), "to 7");
    NO(fl_vision_box_area, (o.f23), "got boxes f32 [2, 3]");
    NO(fl_vision_box_iou, (four, o.f23, true), "got boxes f32 [2, 3]");
    NO_AS(fv_vision_box_iou, "fl_vision_box_iou", (fv_const(four), fv_const(o.f23), true),
          "got boxes f32 [2, 3]");
    NO(fl_vision_nms, (four, o.f23, NULL, 0.5), "boxes [2, 4], scores [2, 3]");
    NO_FILE(fl_vision_linear_assignment, ((double[]){1, NAN}, 1, 2, (int64_t[1]){0}),
            "column 1 is not finite: nan");
    NO_FILE(fl_vision_linear_assignment, (NULL, 1, 2, (int64_t[1]){0}), "not NULL");
    const fl_vision_roi_opts roi = {.scale = 1}, many = {.sampling_ratio = 1 << 20}, below = {.scale = -1};
    fl_tensor *maps = fl_ones(FL_SHAPE(1, 2, 4, 4), FL_F32), *five = fl_ones(FL_SHAPE(2, 5), FL_F32);
    NO_AS(fl_vision_roi_align_opt, "fl_vision_roi_align", (NULL, five, 2, 2, roi), NULLS);
    NO_AS(fv_vision_roi_align_opt, "fv_vision_roi_align", (fv_const(maps), NULL, 2, 2, roi), NULLS);
    NO_AS(fl_vision_roi_align_opt, "fl_vision_roi_align", (maps, four, 2, 2, roi), "boxes are f32 [2, 4]");
    NO_AS(fl_vision_roi_align_opt, "fl_vision_roi_align", (maps, five, 0, 2, roi), "0 x 2 bins");
    NO_AS(fl_vision_roi_align_opt, "fl_vision_roi_align", (maps, five, 2, 2, many), "sampling_ratio 1048576");
    NO_AS(fl_vision_roi_align_opt, "fl_vision_roi_align", (maps, five, 2, 2, below), "scale -1");
    NO_AS(fl_vision_roi_align_opt, "fl_vision_roi_align", (maps, five, 2, 2, roi),
          "box 0 has image index 1, expected 0 to 0");
    NO_AS(fl_vision_roi_align_opt, "fl_vision_roi_align",
          (maps, fl_mul(five, fl_from_host((double[]){0, 0, 0, 1e9, 1e9}, FL_SHAPE(5), FL_F64)), 2, 2, roi),
          "5e+08 samples along a bin of box 0, expected at most 65536");
    const fl_vision_deform_opts plain_deform = {.pad = {1}};
    fl_tensor *w3 = fl_ones(FL_SHAPE(4, 2, 3, 3), FL_F32), *moves = fl_zeros(FL_SHAPE(1, 18, 4, 4), FL_F32);
    NO_AS(fl_vision_deform_conv2d_opt, "fl_vision_deform_conv2d",
          (maps, NULL, w3, NULL, NULL, plain_deform), NULLS);
    NO_AS(fv_vision_deform_conv2d_opt, "fl_vision_deform_conv2d",
          (fv_const(maps), fv_const(maps), fv_const(o.f23), NULL, NULL, plain_deform), "weight [2, 3]");
    NO_AS(fl_vision_deform_conv2d_opt, "fl_vision_deform_conv2d",
          (maps, maps, w3, NULL, NULL, plain_deform), "offset [1, 2, 4, 4]", "a result of 4 x 4");
    NO_AS(fl_vision_deform_conv2d_opt, "fl_vision_deform_conv2d",
          (maps, moves, w3, NULL, moves, plain_deform), "mask [1, 18, 4, 4]");
    NO_AS(fl_vision_deform_conv2d_opt, "fl_vision_deform_conv2d",
          (maps, moves, w3, o.f2, NULL, plain_deform), "bias [2]");
    NO_AS(fl_vision_deform_conv2d_opt, "fl_vision_deform_conv2d",
          (maps, moves, w3, NULL, NULL, (fl_vision_deform_opts){.stride = {-1}}), "stride -1");
    NO_AS(fl_vision_deform_conv2d_opt, "fl_vision_deform_conv2d",
          (maps, fl_cast(moves, FL_F64), w3, NULL, NULL, plain_deform), "expected one dtype");
    NO(fl_vision_match, (o.f23, o.f23, &nothing), NULLS);
    NO_AS(fl_vision_criterion_opt, "fl_vision_criterion",
          (FL_VARS(o.v23), &nothing, &losses,
           (fl_vision_criterion_opts){.last_only = true}), "got 1 network");
    fl_tensor *image = fl_vision_image(3, 4, 5, NULL);
    const double plane[6] = {1, 0, 0, 0, 1, 0};
    NO_FILE_AS(fl_vision_resize_image_opt, "fl_vision_pixels_of",
               (NULL, 2, 2, (fl_vision_resize_opts){.box = {0}}), NULLS);
    NO_FILE_AS(fl_vision_resize_image_opt, "fl_vision_resize_image",
               (image, 0, 2, (fl_vision_resize_opts){.box = {0}}), "0 x 2");
    NO_FILE_AS(fl_vision_resize_image_opt, "fl_vision_resize_image",
               (image, 2, 2, (fl_vision_resize_opts){.box = {0, 0, 9, 2}}),
               "box 0, 0, 9, 2 of an image [3, 4, 5]");
    NO_FILE_AS(fl_vision_adjust_opt, "fl_vision_adjust",
               (image, FL_VISION_BLUR, 1, (fl_vision_adjust_opts){.size = 2}), "size 2");
    NO_FILE_AS(fl_vision_adjust_opt, "fl_vision_pixels_of",
               (NULL, FL_VISION_HUE, 1, (fl_vision_adjust_opts){.size = 0}), NULLS);
    NO_FILE_AS(fl_vision_affine, "fl_vision_pixels_of", (NULL, plane, (fl_vision_adjust_opts){.size = 0}),
               NULLS);
    NO_FILE_AS(fl_vision_folder, "fl_data_folder", (NULL), NULLS);
    NO_FILE(fl_vision_apply, (NULL, 0, NULL, NULL), NULLS);
    NO_FILE_AS(fl_vision_batch_opt, "fl_vision_batch", (NULL, 1, batch), NULLS);
    NO_FILE_AS(fl_vision_batch_opt, "fl_vision_batch", (fl_data_tensors(&o.f23, 1), 0, batch),
               "got size 0");
    fl_vision_detections seen;
    fl_tensor *masks = fl_zeros(FL_SHAPE(1, 2, 2), FL_U8);
    const fl_vision_draw_opts draw = {.width = 0};
    const uint8_t black[3] = {0, 0, 0};
    uint8_t rgb[3];
    NO(fl_vision_box_clip, (o.f23, 2, 2), "got boxes f32 [2, 3]");
    NO(fl_vision_box_clip, (four, -1, 2), "h and w must be >= 0, got -1, 2");
    NO(fl_vision_masks_to_boxes, (o.f23), "got masks f32 [2, 3]");
    NO(fl_vision_detr_postprocess, (four, four, four, &seen), "logits [2, 4], boxes [2, 4]");
    FINE(fl_vision_colour, (fl_vision_colour(300, rgb), true));
    FINE(fl_vision_draw_text, (fl_vision_draw_text(NULL, 0, 0, "x", black, 1), true));
    NO_FILE_AS(fl_vision_draw_boxes_opt, "fl_vision_draw_boxes", (image, o.f23, draw),
               "got boxes f32 [2, 3]");
    NO_FILE_AS(fl_vision_draw_boxes_opt, "fl_vision_pixels_of", (NULL, four, draw), NULLS);
    NO_FILE_AS(fl_vision_draw_masks_opt, "fl_vision_draw_masks", (image, masks, draw),
               "got masks u8 [1, 2, 2]");
    NO_FILE_AS(fl_vision_objects_opt, "fl_vision_objects",
               (NULL, "x", (fl_vision_objects_opts){.masks = true}), NULLS);
    NO_FILE_AS(fl_vision_mixup_opt, "fl_vision_mixup", (NULL, 2, (fl_vision_mixup_opts){.p = 0}), NULLS);
    NO_FILE_AS(fl_vision_mixup_opt, "fl_vision_mixup",
               (fl_data_tensors(&o.f23, 1), 0, (fl_vision_mixup_opts){.p = 0}), "0 classes");
    NO_FILE(fl_vision_repeated_augmentation, (NULL, 3, 0, 0, 1), NULLS);
    NO_FILE(fl_vision_repeated_augmentation, (fl_data_tensors(&o.f23, 1), 3, 0, 1, 1), "rank 1 of 1");
    char name[40];
    NO_FILE_AS(fl_vision_imagenet, "fl_data_folder", (NULL, "x"), NULLS);
    NO_FILE_AS(fl_vision_list, "fl_data_list", ("/no/such/file", NULL), "/no/such/file");
    FINE(fl_vision_synset, !fl_vision_synset(NULL, 0));
    FINE(fl_vision_sample_name,
         (fl_vision_sample_name(NULL, 3, name, sizeof name), !strcmp(name, "sample 3")));
    FINE(fl_vision_skipped_samples, fl_vision_skipped_samples(NULL) == 0);
    NO_FILE(fl_vision_shards, (NULL, 1), "paths not NULL");
    NO_FILE(fl_vision_shards, ((const char *const[]){"/no/such/file"}, 1), "/no/such/file");
    ROW(QUIET, "fl_vision_pack", fl_vision_pack(NULL, "x", 1) == -1, NULLS);
}
/* MIT licence: see LICENSE. */
