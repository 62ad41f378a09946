/* examples/vision_detect.c - trains a small DETR on synthetic shapes over noise, or on a few images of COCO

   make vision-detect [DATA=../shared/data/coco] [ARGS="--steps 2000 --seed 1"]
   cc -O2 -I.. vision_detect.c ../fl.c -o vision_detect -lm -lpthread  (COCO: -DFL_USE_JPEG -ljpeg)
   ./vision_detect               discs, squares and triangles; evaluated on 200 new images
   ./vision_detect --data dir    trains on the first 8 (--images) of dir/train, with the objects of
                                 dir/annotations/instances_train.json; evaluated on dir/val and
                                 instances_val.json, and on the training images, which so few overfit
   ./vision_detect --load detect.safetensors --eval

   Prints COCO's lines and the average precision of each class that has objects; writes the weights,
   detect.svg, detect_0.png ... (a box for each detection) and detections.html. */
#include "html.h"
#include "vision.h"

enum { QUERIES = 8, SIDE = 96, FRESH = 200, KINDS = 3, MOST = 4, SHOWN = 24, PICTURES = 4 };

typedef struct options {
    const char *data, *save, *load;
    double steps, batch, seed, lr, minutes;
    int64_t images, size;
    bool eval;
} options;

/* ---- synthetic shapes over noise; an image is a function of its index ---- */

static const char *const shape_name[] = {"disc", "square", "triangle"};

/* A sample like fl_vision_objects': an image with up to 4 shapes that hardly overlap. */
static bool shapes_get(int64_t i, fl_data_sample *out, void *user) {
    fl_rng rng = fl_data_rng(*(const uint64_t *)user, 0, i);
    fl_vision_pixels p;
    fl_tensor *image = fl_vision_image(3, SIDE, SIDE, &p);
    float box[MOST][4], area[MOST];
    int64_t label[MOST], n = 0;
    const int64_t wanted = 1 + (int64_t)(3 * fl_rng_uniform(&rng)), info[] = {i, SIDE, SIDE};
    if (!image) return false;
    for (int64_t k = 0; k < SIDE * SIDE * 3; k++) p.p[k] = (unsigned char)(160 * fl_rng_uniform(&rng));
    for (int t = 0; t < 50 && n < wanted; t++) {
        const double r = 10 + 12 * fl_rng_uniform(&rng), cy = r + (SIDE - 2 * r) * fl_rng_uniform(&rng),
                     cx = r + (SIDE - 2 * r) * fl_rng_uniform(&rng);
        const int kind = (int)(KINDS * fl_rng_uniform(&rng));
        bool apart = true;
        for (int64_t k = 0; k < n; k++)
            apart =
                apart &&
                (fabs(cx - (double)(box[k][0] + box[k][2]) / 2) > r + (double)(box[k][2] - box[k][0]) / 2 ||
                 fabs(cy - (double)(box[k][1] + box[k][3]) / 2) > r + (double)(box[k][3] - box[k][1]) / 2);
        if (!apart) continue;
        const double colour[] = {120 + 135 * fl_rng_uniform(&rng), 120 + 135 * fl_rng_uniform(&rng),
                                 120 + 135 * fl_rng_uniform(&rng)};
        int64_t low[2] = {SIDE, SIDE}, high[2] = {0, 0};
        for (int64_t y = 0; y < SIDE; y++)
            for (int64_t x = 0; x < SIDE; x++) {
                const double v = ((double)y + 0.5 - cy) / r, u = ((double)x + 0.5 - cx) / r;
                if (!(kind == 0   ? u * u + v * v < 1
                      : kind == 1 ? fabs(u) < 0.85 && fabs(v) < 0.85
                                  : v < 0.8 && v > 1.8 * fabs(u) - 1)) continue;
                for (int c = 0; c < 3; c++) p.p[y * p.row + 3 * x + c] = (unsigned char)colour[c];
                low[0] = x < low[0] ? x : low[0], low[1] = y < low[1] ? y : low[1];
                high[0] = x + 1 > high[0] ? x + 1 : high[0], high[1] = y + 1 > high[1] ? y + 1 : high[1];
            }
        for (int d = 0; d < 2; d++) box[n][d] = (float)low[d], box[n][d + 2] = (float)high[d];
        area[n] = (box[n][2] - box[n][0]) * (box[n][3] - box[n][1]), label[n++] = kind;
    }
    *out = (fl_data_sample){
        5,
        {image, fl_from_host(box, FL_SHAPE(n, 4), FL_F32), fl_from_host(label, FL_SHAPE(n), FL_I64),
         fl_from_host(area, FL_SHAPE(n), FL_F32), fl_from_host(info, FL_SHAPE(3), FL_I64)}};
    return out->t[1] && out->t[2] && out->t[3] && out->t[4];
}

/* The annotations of the synthetic set, as a COCO file would hold them; image ids count from 0. */
static bool truth_of_shapes(int64_t n, uint64_t seed, fl_vision_coco *out) {
    static fl_vision_category category[KINDS];
    static fl_vision_coco_image image[FRESH];
    static fl_vision_object object[FRESH * MOST];
    *out = (fl_vision_coco){
        .image = image, .category = category, .object = object, .n_image = n, .n_category = KINDS};
    for (int64_t k = 0; k < KINDS; k++) category[k] = (fl_vision_category){k, shape_name[k]};
    for (int64_t i = 0; i < n; i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample one;
        image[i] = (fl_vision_coco_image){i, SIDE, SIDE, ""};
        const bool ok = shapes_get(i, &one, &seed);
        for (int64_t k = 0; ok && k < one.t[2]->shape[0]; k++) {
            const float *b = (float *)fl_data(one.t[1]) + 4 * k;
            object[out->n_object] = (fl_vision_object){
                .id = out->n_object + 1,
                .image = i,
                .category = ((int64_t *)fl_data(one.t[2]))[k],
                .score = 1,
                .box = {(double)b[0], (double)b[1], (double)(b[2] - b[0]), (double)(b[3] - b[1])},
                .area = (double)((float *)fl_data(one.t[3]))[k]};
            out->n_object++;
        }
        fl_scope_end(&s);
        if (!ok) return false;
    }
    return true;
}

/* ---- data sets ---- */

/* An evaluation set: batches of images, and the ground truth. */
typedef struct image_set {
    char name[80], folder[1024];
    fl_data_set *set;
    fl_vision_coco truth;
} image_set;

typedef struct task {
    fl_data_set *train;
    image_set test, seen; /* seen: the training images; only with --data */
    int64_t classes, queries;
    bool drawn;
} task;

/* Reads the annotations of dir/name: the first `images` images and their objects. */
static bool read_part(const options *o, const char *name, int64_t images, image_set *p) {
    char path[1100];
    int64_t n = 0;
    snprintf(path, sizeof path, "%s/annotations/instances_%s.json", o->data, name);
    snprintf(p->folder, sizeof p->folder, "%s/%s", o->data, name);
    if (!fl_vision_coco_load(path, &p->truth)) return false;
    if (images < p->truth.n_image) p->truth.n_image = images;
    for (int64_t i = 0; i < p->truth.n_object; i++)
        if (fl_vision_coco_find(&p->truth, p->truth.object[i].image) >= 0)
            p->truth.object[n++] = p->truth.object[i];
    p->truth.n_object = n;
    snprintf(p->name, sizeof p->name, "%.20s, %lld images", name, (long long)p->truth.n_image);
    return p->truth.n_image && p->truth.n_category ? true : fl_fail("%s: no images or no categories", path);
}

static bool open_task(const options *o, task *t) {
    static uint64_t train_seed, fresh_seed = 2;
    fl_data_set *train, *set[2] = {NULL};
    image_set *tested[] = {&t->test, &t->seen};
    fl_vision_transform shape = fl_vision_random_horizontal_flip(0.5);
    if (o->data) {
        if (!read_part(o, "val", INT64_MAX, &t->test) || !read_part(o, "train", o->images, &t->seen))
            return false;
        shape = fl_vision_resize(o->size, o->size, FL_VISION_BILINEAR);
        train = fl_vision_objects(&t->seen.truth, t->seen.folder);
        for (int i = 0; i < 2; i++) set[i] = fl_vision_objects(&tested[i]->truth, tested[i]->folder);
        t->classes = t->seen.truth.category[t->seen.truth.n_category - 1].id + 1, t->queries = 60;
    } else {
        puts("No --data given: training on synthetic shapes.");
        train_seed = 1000 + (uint64_t)o->seed;
        train = fl_data_callback(1 << 20, shapes_get, &train_seed);
        set[0] = fl_data_callback(FRESH, shapes_get, &fresh_seed);
        t->drawn = true, t->classes = KINDS, t->queries = QUERIES;
        snprintf(t->test.name, sizeof t->test.name, "%d fresh images", FRESH);
        if (!truth_of_shapes(FRESH, fresh_seed, &t->test.truth)) return false;
    }
    const int64_t batch = (int64_t)o->batch;
    train =
        fl_vision_batch(fl_data_shuffle(train, (uint64_t)o->seed), batch, .objects = true, .steps = &shape,
                        .n_steps = 1, .seed = (uint64_t)o->seed, .mean = FL_VISION_IMAGENET_MEAN,
                        .std = FL_VISION_IMAGENET_STD, .drop_last = t->drawn);
    t->train = fl_data_prefetch(train, 1, 4);
    for (int i = 0; i < 2 && set[i]; i++)
        tested[i]->set =
            fl_vision_batch(set[i], 8, .objects = true, .steps = &shape, .n_steps = t->drawn ? 0 : 1,
                            .mean = FL_VISION_IMAGENET_MEAN, .std = FL_VISION_IMAGENET_STD);
    return t->train && t->test.set && (t->drawn || t->seen.set);
}

static void close_task(task *t) {
    fl_data_free(t->train), fl_data_free(t->test.set), fl_data_free(t->seen.set);
    if (!t->drawn) fl_vision_coco_free(&t->test.truth), fl_vision_coco_free(&t->seen.truth);
}

/* ---- training ---- */

static bool step(fl_nn_module *net, fl_optim *optim, const fl_data_sample *b, fl_vision_losses *l) {
    fl_optim_zero_grad(optim);
    return vision_losses(net, b, 0, l) && fl_backward(l->total) &&
           fl_optim_clip_grad_norm(fl_nn_parameters(net), 0.1) && fl_optim_step(optim);
}

static bool train(fl_nn_module *net, const options *o, task *t) {
    static fl_data_curve loss_curve = {.name = "training loss"};
    fl_optim *optim = fl_optim_adamw(fl_nn_parameters(net), .lr = o->lr, .weight_decay = 1e-4);
    const double begin = fl_data_now();
    const int64_t total = (int64_t)o->steps;
    int64_t epoch = 0, index = 0;
    fl_data_average mean = {0}, giou = {0}, wrong = {0};
    bool ok = optim != NULL;
    fl_nn_train(net, true);
    double part = 0; /* progress of the schedule (warm-up, then half a cosine): of steps or minutes */
    for (int64_t i = 0; ok && part < 1; i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        fl_vision_losses l;
        const double now = (fl_data_now() - begin) / (60 * o->minutes), done = (double)i / (double)total;
        part = now > done ? now : done;
        const double lr =
            o->lr * fmin(1, (double)(i + 1) / 100) * 0.5 * (1 + cos(3.14159265 * fmin(part, 1)));
        ok = fl_optim_set_lr(optim, lr + 1e-9) && fl_data_next(t->train, &epoch, &index, &b) &&
             step(net, optim, &b, &l);
        if (ok) {
            fl_data_average_add(&mean, fl_item(fv_value(l.total)), 1);
            fl_data_average_add(&giou, l.giou, 1), fl_data_average_add(&wrong, l.class_error, 1);
        }
        fl_scope_end(&s);
        if (!ok || (i % 100 != 99 && part < 1)) continue;
        fl_data_curve_add(&loss_curve, (double)i, mean.mean);
        printf("Step %lld: loss %.4f, class error %.1f %%, 1 - giou %.4f, %.0f s\n", (long long)i + 1,
               mean.mean, wrong.mean, giou.mean, fl_data_now() - begin);
        fflush(stdout);
        mean = giou = wrong = (fl_data_average){0};
    }
    fl_optim_free(optim);
    return ok && fl_data_plot_print(stdout, FL_DATA_CURVES(&loss_curve), .x_label = "step") &&
           fl_data_plot_svg("detect.svg", FL_DATA_CURVES(&loss_curve), .x_label = "step") &&
           fl_nn_save(net, o->save);
}

/* ---- evaluation ---- */

static const char *category_name(const fl_vision_coco *c, int64_t id) {
    for (int64_t k = 0; k < c->n_category; k++)
        if (c->category[k].id == id) return c->category[k].name;
    return "?";
}

/* Image i with the boxes of `from`: detections with a score of at least one half, or the ground truth. */
static fl_tensor *draw_image(const task *t, int64_t i, const fl_vision_coco *from) {
    vision_frames frames = {.n = 0};
    char path[2200];
    uint64_t fresh_seed = 2;
    fl_data_sample one = {0};
    if (t->drawn) shapes_get(i, &one, &fresh_seed);
    else {
        snprintf(path, sizeof path, "%s/%s", t->test.folder, t->test.truth.image[i].file);
        one.t[0] = fl_vision_read(path, .depth = 8);
    }
    if (!one.t[0]) return NULL;
    const int64_t large = t->drawn ? 2 : 1;
    for (int64_t k = 0; k < from->n_object; k++) {
        const fl_vision_object *f = &from->object[k];
        float box[4];
        if (f->image != t->test.truth.image[i].id || !(f->score >= 0.5) || f->crowd) continue;
        for (int d = 0; d < 4; d++)
            box[d] = (float)((double)large * (f->box[d % 2] + (d < 2 ? 0 : f->box[d] - 1)));
        vision_frame(&frames, category_name(&t->test.truth, f->category), f->category + 1, f->score, box);
    }
    if (t->drawn)
        one.t[0] = fl_vision_resize_image(one.t[0], large * SIDE, large * SIDE, .filter = FL_VISION_BOX);
    return vision_draw_frames(one.t[0], &frames);
}

static bool write_pictures(const task *t, const fl_vision_coco *found, const char *lines) {
    fl_data_text page = {0};
    bool ok = html_begin(&page, "Detections", "figure{display:inline-block;margin:4px}") &&
              fl_data_text_print(&page,
                                 "<h1>Detections and ground truth: %s</h1>"
                                 "<pre>%s</pre>\n",
                                 t->test.name, lines);
    for (int64_t i = 0; ok && i < t->test.truth.n_image && i < SHOWN; i++) {
        fl_scope s = fl_scope_begin();
        char name[40];
        fl_tensor *guess = draw_image(t, i, found), *is = draw_image(t, i, &t->test.truth);
        snprintf(name, sizeof name, "detect_%d.png", (int)i);
        ok = guess && is && fl_data_text_print(&page, "<figure>") && html_image(&page, guess, "") &&
             fl_data_text_print(&page, " ") && html_image(&page, is, "") &&
             fl_data_text_print(&page, "<figcaption>image %lld</figcaption></figure>\n",
                                (long long)t->test.truth.image[i].id) &&
             (i >= PICTURES || fl_vision_write_png(name, guess));
        fl_scope_end(&s);
    }
    ok = ok && fl_data_replace("vision_detect", "detections.html", page.p, (size_t)page.n);
    fl_heap_free(page.p);
    return ok;
}

/* All lines except those of object sizes without objects, whose value is -1. */
static bool put_lines(fl_data_text *t, const fl_vision_ap *ap, const fl_vision_coco *truth) {
    fl_data_text all = {0};
    bool ok = fl_vision_ap_put(&all, ap, truth);
    for (const char *line = all.p; ok && *line;) {
        const size_t n = strcspn(line, "\n") + 1;
        if (n < 7 || strncmp(line + n - 7, "-1.000", 6)) ok = fl_data_text_put(t, line, n);
        line += n;
    }
    fl_heap_free(all.p);
    return ok;
}

/* Evaluates on p and prints AP and AP50. with_pictures: also all metrics, and writes the pictures and the
   page. */
static bool evaluate(fl_nn_module *net, const task *t, const image_set *p, bool with_pictures) {
    fl_vision_coco found = {0};
    fl_vision_ap ap = {.n_category = 0};
    fl_data_text text = {0};
    const bool ok =
        vision_find_all(net, p->set, p->truth.n_image, t->queries, &found) &&
        fl_vision_evaluate(&p->truth, &found, false, &ap) &&
        (!with_pictures || (put_lines(&text, &ap, &p->truth) && write_pictures(t, &found, text.p)));
    if (ok) printf("%s%s: AP %.4f, AP50 %.4f\n", text.p ? text.p : "", p->name, ap.figure[0], ap.figure[1]);
    fl_heap_free(text.p), fl_heap_free(found.object);
    fl_vision_ap_free(&ap);
    return ok;
}

int main(int argc, char **argv) {
    options o = {.save = "detect.safetensors", .steps = 0, .seed = 1, .images = 8, .size = 256};
    const argument list[] = {
        {"data", .text = &o.data,
         .about = "folder with train, val and annotations; default: synthetic shapes"},
        {"save", .text = &o.save, .about = "output file for the weights"},
        {"load", .text = &o.load, .about = "initial weights"},
        {"eval", .on = &o.eval, .about = "evaluate only"},
        {"steps", .number = &o.steps, .low = 1, .high = 1e9,
         .about = "default: 2500 with --data, else 4000"},
        {"batch", .number = &o.batch, .low = 1, .high = 1024, .about = "default: 8 with --data, else 16"},
        {"seed", .number = &o.seed, .low = 0, .high = 1e9},
        {"lr", .number = &o.lr, .low = 1e-7, .high = 1, .about = "learning rate; default: 0.001"},
        {"minutes", .number = &o.minutes, .low = 0.1, .high = 1e6,
         .about = "time limit; default: 14 with --data, else 9"},
        {"images", .whole = &o.images, .low = 1, .high = 1e6, .about = "number of training images"},
        {"size", .whole = &o.size, .low = 32, .high = 1333, .about = "size of the images' longer side"},
        {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    o.steps = o.steps ? o.steps : o.data ? 2500 : 4000, o.batch = o.batch ? o.batch : o.data ? 8 : 16;
    o.lr = o.lr ? o.lr : 1e-3, o.minutes = o.minutes ? o.minutes : o.data ? 14 : 9;
    fl_scope s = fl_scope_begin();
    fl_quiet(+1);
    fl_seed((uint64_t)o.seed);
    task t = {.drawn = false};
    bool ok = open_task(&o, &t);
    fl_nn_module *net =
        ok ? fl_vision_detr(18, .classes = t.classes, .queries = t.queries, .dim = 64, .heads = 4,
                            .hidden = 256, .layers = o.data ? 2 : 3, .dropout = FL_ZERO, .divide = 4,
                            .blocks = 1, .dilated = true, .live = true)
           : NULL;
    ok = net && fl_nn_channels_last(net) && (!o.load || fl_nn_load(net, o.load));
    ok = ok && (o.eval || train(net, &o, &t));
    if (ok && t.seen.set && t.seen.truth.n_image <= FRESH) ok = evaluate(net, &t, &t.seen, false);
    ok = ok && evaluate(net, &t, &t.test, true);
    if (!ok) fprintf(stderr, "%s\n", fl_error() ? fl_error() : "vision_detect: failed");
    fl_nn_free(net);
    close_task(&t);
    fl_scope_end(&s);
    return ok ? 0 : 1;
}
/* MIT licence: see LICENSE. */
