/* examples/vision_predict.c - classifies an image or detects objects with a pretrained network

   make vision-predict MODEL=resnet50 WEIGHTS=w.safetensors [NAMES=torchvision|timm|hf] IMAGE=photo.jpg
        [LABELS=synsets.tsv|instances.json]
   make vision-predict MODEL=detr_resnet50 WEIGHTS=w.safetensors INPUT=x.safetensors OUT=y.safetensors

   INPUT holds x [n, 3, h, w], and for DETR optionally mask b8 [n, h, w]; y, or logits and boxes, are written
   to OUT. For an image it prints the five best classes, or the boxes, which are also drawn to predict.png:
   class, probability, (corners,) name. LABELS: class names, one per line, or COCO's JSON; default: the .txt
   file next to the weights, as written by vision_train. The number of classes is taken from the weights. */
#include "vision.h"

typedef struct options {
    const char *model, *weights, *names, *image, *input, *out, *labels;
    double size;
} options;

static vision_labels labels;

static bool from_tensor(fl_nn_module *net, const options *o, bool boxes) {
    fl_data_file *f = fl_data_open_safetensors(o->input);
    fl_tensor *x = f ? fl_data_read(f, "x") : NULL;
    fl_tensor *mask = x && fl_data_find(f, "mask") >= 0 ? fl_data_read(f, "mask") : NULL;
    fl_vars in = {mask ? 2 : 1, {fv_const(x), mask ? fv_const(fl_cast(mask, FL_B8)) : NULL}};
    const fl_vars y = x ? fl_nn_forward_vars(net, in) : (fl_vars){0};
    fl_tensor *first = y.n ? fl_contiguous(fv_value(y.v[0])) : NULL,
              *second = y.n > 1 ? fl_contiguous(fv_value(y.v[1])) : NULL;
    const fl_data_named_tensor named[] = {{boxes ? "logits" : "y", first}, {"boxes", second}};
    fl_data_close(f);
    return first && fl_data_save_safetensors(o->out, named, boxes ? 2 : 1, NULL, 0);
}

/* Prints the five best classes with their probabilities and names. */
static bool print_best(fl_tensor *logits) {
    fl_tensor *class = NULL, *p = fl_softmax(logits, -1);
    const int64_t n = p && fl_numel(p) < 5 ? fl_numel(p) : 5;
    fl_tensor *best = p ? fl_topk(p, n, -1, false, &class) : NULL;
    const int64_t *kind = best ? fl_map(class, FL_READ) : NULL;
    const float *score = best ? fl_map(best, FL_READ) : NULL;
    for (int64_t i = 0; kind && score && i < n; i++) {
        char name[80];
        vision_label(&labels, kind[i], name, sizeof name);
        printf("%lld\t%.6f\t%s\n", (long long)kind[i], (double)score[i], name);
    }
    if (kind) fl_unmap(class, FL_READ);
    if (score) fl_unmap(best, FL_READ);
    return kind && score;
}

/* Prints and draws the detections with a probability above one half, in pixels of the image. */
static bool print_boxes(fl_tensor *image, fl_tensor *logits, fl_tensor *boxes) {
    static vision_frames frames;
    const int64_t size[] = {image->shape[1], image->shape[2]};
    fl_vision_detections d;
    if (!fl_vision_detr_postprocess(logits, boxes, fl_from_host(size, FL_SHAPE(1, 2), FL_I64),
                                    &d)) return false;
    fl_tensor *score = fl_contiguous(d.scores), *label = fl_contiguous(d.labels),
              *corners = fl_contiguous(d.boxes);
    const float *scores = score ? fl_map(score, FL_READ) : NULL;
    const int64_t *kind = label ? fl_map(label, FL_READ) : NULL;
    const float *box = corners ? fl_map(corners, FL_READ) : NULL;
    for (int64_t i = 0; scores && kind && box && i < fl_numel(score); i++) {
        const float p = scores[i], *b = box + 4 * i;
        const int64_t k = kind[i];
        char name[80];
        if (!(p > 0.5f)) continue;
        vision_label(&labels, k, name, sizeof name);
        printf("%lld\t%.6f\t%.2f\t%.2f\t%.2f\t%.2f\t%s\n", (long long)k, (double)p, (double)b[0],
               (double)b[1], (double)b[2], (double)b[3], name);
        vision_frame(&frames, name, k, (double)p, b);
    }
    if (scores) fl_unmap(score, FL_READ);
    if (kind) fl_unmap(label, FL_READ);
    if (box) fl_unmap(corners, FL_READ);
    if (!scores || !kind || !box) return false;
    fl_tensor *drawn = vision_draw_frames(image, &frames);
    return drawn && fl_vision_write_png("predict.png", drawn);
}

static bool from_image(fl_nn_module *net, const options *o, bool boxes) {
    const int64_t size = o->size ? (int64_t)o->size : 224;
    const fl_vision_transform classify[] = {fl_vision_resize(size * 256 / 224, 0, FL_VISION_BILINEAR),
                                            fl_vision_center_crop(size)};
    const fl_vision_transform detect[] = {fl_vision_resize(800, 1333, FL_VISION_BILINEAR)};
    fl_tensor *bytes = fl_vision_read_bytes(o->image), *image = fl_vision_read(o->image, .depth = 8);
    fl_data_set *set = bytes && image ? fl_data_tensors((fl_tensor *[]){fl_unsqueeze(bytes, 0)}, 1) : NULL;
    if (set)
        set = fl_vision_batch(set, 1, .steps = boxes ? detect : classify, .n_steps = boxes ? 1 : 2,
                              .mean = FL_VISION_IMAGENET_MEAN, .std = FL_VISION_IMAGENET_STD);
    fl_data_sample b;
    const bool ok = set && fl_data_get(set, 0, &b);
    const fl_vars y = ok ? fl_nn_forward_vars(net, FL_VARS(fv_const(b.t[0]))) : (fl_vars){0};
    fl_data_free(set);
    if (!y.n) return false;
    return boxes ? print_boxes(image, fv_value(y.v[0]), fv_value(y.v[1])) : print_best(fv_value(y.v[0]));
}

/* The network, with the number of classes of the weights. */
static fl_nn_module *new_net(const options *o, fl_vision_names names) {
    fl_nn_module *small = fl_vision_model(o->model, .divide = 8, .blocks = 1);
    const int64_t classes = small ? fl_vision_classes(small, o->weights, names) : -1;
    fl_nn_free(small);
    return classes > 0 ? fl_vision_model(o->model, .classes = classes, .size = (int64_t)o->size) : NULL;
}

/* Reads the labels of --labels, else of the file next to the weights, if it exists. */
static bool read_labels(const options *o) {
    char label_path[1024];
    const char *end = strrchr(o->weights, '.');
    snprintf(label_path, sizeof label_path, "%.*s.txt", end ? (int)(end - o->weights) : 1000, o->weights);
    FILE *f = o->labels ? NULL : fopen(label_path, "r");
    if (f) fclose(f);
    return vision_labels_read("vision_predict", f ? label_path : o->labels, &labels);
}

int main(int argc, char **argv) {
    options o = {.names = "torchvision"};
    const argument list[] = {
        {"model", .text = &o.model, .about = "resnet50, vit_b_16, detr_resnet50 ... (without it: the list)"},
        {"weights", .text = &o.weights, .about = "safetensors, or the index of a sharded checkpoint"},
        {"names", .text = &o.names, .about = "naming scheme of the weights: torchvision, timm or hf"},
        {"image", .text = &o.image, .about = "JPEG, PNG or PPM"},
        {"input", .text = &o.input, .about = "safetensors with x [n, 3, h, w] instead of an image"},
        {"out", .text = &o.out, .about = "safetensors for the results of --input"},
        {"labels", .text = &o.labels, .about = "class names, one per line, or COCO's JSON"},
        {"size", .number = &o.size, .low = 1, .high = 10000, .about = "input size in pixels; default: 224"},
        {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    static const char *const kinds[] = {"torchvision", "timm", "hf"};
    int kind = 0;
    while (kind < 3 && strcmp(o.names, kinds[kind])) kind++;
    if (!o.model || !o.weights || kind == 3 || (!o.image && !(o.input && o.out))) {
        fprintf(stderr, "usage: vision_predict --model NAME --weights FILE --names torchvision|timm|hf, then "
                        "--image FILE or --input FILE --out FILE; the models are:");
        for (int i = 0; fl_vision_model_name(i); i++) fprintf(stderr, " %s", fl_vision_model_name(i));
        return fputc('\n', stderr), 2;
    }
    const bool boxes = !strncmp(o.model, "detr", 4);
    fl_log_set_sink(NULL, NULL, FL_LOG_INFO);
    fl_scope s = fl_scope_begin();
    fl_quiet(+1);
    fl_no_grad(true);
    fl_nn_module *net = new_net(&o, (fl_vision_names)kind);
    bool ok = net && read_labels(&o) && fl_vision_load(net, o.weights, (fl_vision_names)kind) &&
              fl_nn_channels_last(net);
    if (ok) fl_nn_train(net, false);
    ok = ok && (o.image ? from_image(net, &o, boxes) : from_tensor(net, &o, boxes));
    if (!ok) fprintf(stderr, "%s\n", fl_error() ? fl_error() : "vision_predict: failed");
    vision_labels_free(&labels);
    fl_nn_free(net);
    fl_scope_end(&s);
    return ok ? 0 : 1;
}
/* MIT licence: see LICENSE. */
