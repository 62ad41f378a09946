/* examples/vision_eval.c - average precision of detections, as computed by pycocotools or PASCAL VOC

   make vision-eval GT=instances.json DT=results.json [TYPE=bbox|segm]
        [METRIC=voc IOU=0.5 POINTS=11|all ARGS=--inclusive]

   Prints COCO's twelve lines, then a line name<tab>value for each metric and class that has objects.
   --inclusive: boxes include their last pixel, as in VOC's files (w = xmax - xmin). --arrays FILE: also
   writes precision [10, 101, categories, 4, 3], scores of that shape and recall [10, categories, 4, 3], as
   doubles. */
#include "vision.h"

static bool voc(const fl_vision_coco *gt, const fl_vision_coco *dt, double iou, int points, bool inclusive) {
    double sum = 0;
    int n = 0;
    for (int64_t k = 0; k < gt->n_category; k++) {
        const double ap = fl_vision_voc(gt, dt, k, iou, points, .inclusive = inclusive);
        if (isnan(ap)) return false;
        if (ap < 0) continue; /* no objects */
        printf("AP %s\t%.9f\n", gt->category[k].name, ap);
        sum += ap, n++;
    }
    printf("mAP\t%.9f\n", n ? sum / n : -1);
    return true;
}

int main(int argc, char **argv) {
    const char *truth = NULL, *results = NULL, *type = "bbox", *metric = "coco", *points = "all",
               *arrays = NULL;
    double iou = 0.5;
    bool inclusive = false;
    const argument list[] = {
        {"gt", .text = &truth, .about = "ground truth in COCO's JSON"},
        {"dt", .text = &results, .about = "JSON list of detections"},
        {"type", .text = &type, .about = "bbox or segm"},
        {"metric", .text = &metric, .about = "coco or voc"},
        {"points", .text = &points, .about = "VOC: points of the curve, 11 or all"},
        {"arrays", .text = &arrays, .about = "output file for COCO's precision, scores and recall"},
        {"iou", .number = &iou, .low = 0, .high = 1, .about = "VOC: IoU threshold"},
        {"inclusive", .on = &inclusive, .about = "VOC: boxes include their last pixel, w = xmax - xmin"},
        {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    const bool masks = !strcmp(type, "segm"), is_voc = !strcmp(metric, "voc");
    if (!truth || !results || (!masks && strcmp(type, "bbox")) || (!is_voc && strcmp(metric, "coco")) ||
        (strcmp(points, "11") && strcmp(points, "all")))
        return fprintf(
                   stderr,
                   "usage: vision_eval --gt FILE --dt FILE --type bbox|segm --metric coco|voc --points 11|all"
                   "\n"),
               2;
    fl_vision_coco gt = {0}, dt = {0};
    fl_vision_ap ap = {.n_category = 0};
    fl_data_text text = {0};
    bool ok = fl_vision_coco_load(truth, &gt) && fl_vision_coco_results(results, &gt, &dt);
    if (ok && is_voc)
        ok = voc(&gt, &dt, iou, strcmp(points, "all") ? 11 : 0, inclusive);
    else if ((ok = ok && fl_vision_evaluate(&gt, &dt, masks, &ap) && fl_vision_ap_put(&text, &ap, &gt)))
        fputs(text.p, stdout);
    const size_t cells = (size_t)ap.n_category * FL_VISION_AREAS * FL_VISION_LIMITS * FL_VISION_IOUS;
    if (ok && arrays && ap.precision)
        ok = fl_data_replace("vision_eval", arrays, ap.precision,
                             cells * (2 * FL_VISION_RECALLS + 1) * sizeof(double));
    if (!ok) fprintf(stderr, "%s\n", fl_error());
    fl_heap_free(text.p);
    fl_vision_ap_free(&ap);
    fl_vision_coco_free(&gt), fl_vision_coco_free(&dt);
    return ok ? 0 : 1;
}
/* MIT licence: see LICENSE. */
