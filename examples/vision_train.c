/* examples/vision_train.c - training recipes: torchvision's ResNet-50, DeiT, DETR; on one or several ranks

   make vision-train TRAIN=imagenet/train VAL=imagenet/val [RECIPE=resnet50] [ARGS="--epochs 90 --bf16"] cc
   -O2 -I.. vision_train.c ../fl.c -o vision_train -lm -lpthread -DFL_USE_JPEG -ljpeg ./vision_train --recipe
   resnet50 --train imagenet/train --val imagenet/val ./vision_train --recipe deit_s --train imagenet/train
   --val imagenet/val --accumulate 4 --bf16 ./vision_train --recipe detr_resnet50 --train coco/train2017 --val
   coco/val2017 --backbone r50.safetensors ./vision_train ... --resume vision_train.checkpoint continues from
   the checkpoint, bit for bit examples/launch 4 ./vision_train ... four ranks, each with a part of every
   batch

   Data folders have a subfolder per class; for DETR, annotations/instances_NAME.json is next to the image
   folder. After each epoch the weights (their moving average, if the recipe has one) are evaluated at
   --test-size; the best are written to vision_train.safetensors, the class names to vision_train.txt. The
   last line is "Best accuracy: NN.NN %", for DETR "Best AP: NN.NN %". */
#include "fl_dist.h"
#include "vision.h"

typedef enum kind {
    CLASSIC, /* SGD; the learning rate drops to a tenth after each third of the epochs */
    DEIT,    /* AdamW, cosine schedule, DeiT's augmentation, mixup */
    DETR     /* AdamW; a tenth after two thirds; the backbone has a tenth of the rate; object detection */
} kind;

typedef struct recipe {
    const char *name, *model;
    kind kind;
    double lr, of, decay, clip, ema, drop_path; /* lr: for batches of `of` samples; clip, ema 0: off */
    int64_t batch, epochs, warmup, size, test_size;
} recipe;

static const recipe recipes[] = {
    {"resnet50", "resnet50", CLASSIC, 0.1, 256, 1e-4, 0, 0, 0, 256, 90, 0, 224, 224},
    {"resnet50-320", "resnet50", CLASSIC, 0.1, 256, 1e-4, 0, 0, 0, 256, 90, 0, 224,
     320}, /* evaluated at another size */
    {"resnet18", "resnet18", CLASSIC, 0.1, 256, 1e-4, 0, 0, 0, 256, 90, 0, 224, 224},
    {"deit_ti", "deit_ti", DEIT, 5e-4, 512, 0.05, 0, 0.99996, 0.1, 1024, 300, 5, 224, 224},
    {"deit_s", "deit_s", DEIT, 5e-4, 512, 0.05, 0, 0.99996, 0.1, 1024, 300, 5, 224, 224},
    {"deit_b", "deit_b", DEIT, 5e-4, 512, 0.05, 0, 0.99996, 0.1, 1024, 300, 5, 224, 224},
    {"detr_resnet50", "detr_resnet50", DETR, 1e-4, 16, 1e-4, 0.1, 0, 0, 16, 300, 0, 800, 800},
    {"detr_resnet101", "detr_resnet101", DETR, 1e-4, 16, 1e-4, 0.1, 0, 0, 16, 300, 0, 800, 800},
};

typedef struct options {
    const char *recipe, *train, *val, *resume, *load, *backbone;
    int64_t batch, epochs, accumulate, steps, seed, threads, size, test_size, divide;
    double lr, clip;
    bool bf16;
    recipe r;
    fl_vision_coco coco[2]; /* DETR: annotations for training and validation */
    fl_dist_group *d;
} options;

/* ---- data ---- */

/* DETR: reads folder/../annotations/instances_NAME.json. */
static bool read_objects(const char *folder, fl_vision_coco *out) {
    char path[1200];
    const char *slash = strrchr(folder, '/');
    snprintf(path, sizeof path, "%.*sannotations/instances_%s.json", slash ? (int)(slash - folder + 1) : 0,
             folder, slash ? slash + 1 : folder);
    return fl_vision_coco_load(path, out);
}

static fl_data_set *training_set(const options *o, int64_t classes) {
    const recipe *r = &o->r;
    const bool small = r->size != 800; /* one square size, for trials, instead of DETR's sizes */
    const fl_vision_transform detr[] = {fl_vision_random_horizontal_flip(0.5),
                                        fl_vision_resize_to(r->size, r->size, FL_VISION_BILINEAR)},
                         full = fl_vision_detr_augment();
    const int rank = fl_dist_rank(o->d), ranks = fl_dist_size(o->d);
    const int64_t batch = r->batch / ranks / o->accumulate;
    const fl_vision_transform plain[] = {fl_vision_random_resized_crop(r->size, 0, 0, FL_VISION_BILINEAR),
                                         fl_vision_random_horizontal_flip(0.5)};
    const fl_vision_transform deit[] = {fl_vision_random_resized_crop(r->size, 0, 0, FL_VISION_BICUBIC),
                                        fl_vision_random_horizontal_flip(0.5), fl_vision_deit_augment(),
                                        fl_vision_random_erasing(0.25, -1)};
    const fl_vision_transform *steps = r->kind == DEIT ? deit : r->kind == CLASSIC ? plain : small ? detr : &full;
    fl_data_set *set =
        r->kind == DETR ? fl_vision_objects(&o->coco[0], o->train) : fl_vision_folder(o->train);
    set = r->kind == DEIT ? fl_vision_repeated_augmentation(set, 3, (uint64_t)o->seed, rank, ranks)
                  : fl_data_shard(fl_data_shuffle(set, (uint64_t)o->seed), rank, ranks);
    set = fl_vision_batch(set, batch > 0 ? batch : 1, .steps = steps, .objects = r->kind == DETR,
                          .n_steps = r->kind == DEIT             ? 4
                                     : r->kind == DETR && !small ? 1
                                                                 : 2,
                          .seed = (uint64_t)o->seed, .drop_last = true, .region = true, .skip_bad = true,
                          .mean = FL_VISION_IMAGENET_MEAN, .std = FL_VISION_IMAGENET_STD);
    if (r->kind == DEIT) set = fl_vision_mixup(set, classes, .seed = (uint64_t)o->seed + 1);
    return fl_data_prefetch(set, (int)o->threads, 2 * (int)o->threads);
}

/* Validation set: the central 224 / 256 of the image, sharded over ranks; for DETR whole images, not
   sharded. */
static fl_data_set *test_set(const options *o) {
    const int64_t size = o->r.test_size;
    const fl_vision_filter filter = o->r.kind == DEIT ? FL_VISION_BICUBIC : FL_VISION_BILINEAR;
    const fl_vision_transform steps[] = {fl_vision_resize(size * 256 / 224, 0, filter),
                                         fl_vision_center_crop(size)};
    const fl_vision_transform whole =
        size == 800 ? fl_vision_resize(800, 1333, filter) : fl_vision_resize_to(size, size, filter);
    if (o->r.kind == DETR)
        return fl_data_prefetch(
            fl_vision_batch(fl_vision_objects(&o->coco[1], o->val), 2, .steps = &whole, .n_steps = 1,
                            .objects = true, .mean = FL_VISION_IMAGENET_MEAN, .std = FL_VISION_IMAGENET_STD),
            (int)o->threads, 2 * (int)o->threads);
    fl_data_set *set = fl_data_shard(fl_vision_folder(o->val), fl_dist_rank(o->d), fl_dist_size(o->d));
    set = fl_vision_batch(set, 32, .steps = steps, .n_steps = 2, .mean = FL_VISION_IMAGENET_MEAN,
                          .std = FL_VISION_IMAGENET_STD, .skip_bad = true);
    return fl_data_prefetch(set, (int)o->threads, 2 * (int)o->threads);
}

/* ---- evaluation ---- */

static double accuracy(fl_nn_module *net, fl_data_set *set, fl_dist_group *d) {
    double count[2] = {0}; /* correct, total */
    bool ok = true;
    fl_nn_train(net, false);
    for (int64_t i = 0; ok && i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        const bool before = fl_no_grad(true);
        fl_data_sample b;
        fl_var *y = fl_data_get(set, i, &b) ? fl_nn_forward(net, fv_const(b.t[0])) : NULL;
        fl_tensor *hit = y ? fl_eq(fl_argmax(fv_value(y), 1, false), b.t[1]) : NULL;
        fl_tensor *sum = hit ? fl_sum(hit, FL_ALL_AXES) : NULL;
        ok = sum != NULL;
        if (ok) count[0] += fl_item(sum), count[1] += (double)fl_numel(hit);
        fl_no_grad(before);
        fl_scope_end(&s);
    }
    fl_nn_train(net, true);
    fl_scope s = fl_scope_begin();
    fl_tensor *t = ok ? fl_from_host(count, FL_SHAPE(2), FL_F64) : NULL;
    ok = t && fl_dist_all_reduce(d, t, .op = FL_DIST_SUM) &&
         fl_to_host(t, count, sizeof count);
    fl_scope_end(&s);
    return ok && count[1] > 0 ? 100 * count[0] / count[1] : (double)NAN;
}

/* AP of boxes in percent; every rank evaluates the whole set. */
static double precision(fl_nn_module *net, fl_data_set *set, const fl_vision_coco *truth) {
    enum { QUERIES = 100 };
    fl_vision_coco found = {0};
    fl_vision_ap ap = {.n_category = 0};
    const bool ok = vision_find_all(net, set, truth->n_image, QUERIES, &found) &&
                    fl_vision_evaluate(truth, &found, false, &ap);
    fl_nn_train(net, true);
    fl_heap_free(found.object), fl_vision_ap_free(&ap);
    return ok ? 100 * ap.figure[0] : (double)NAN;
}

/* ---- training ---- */

typedef struct run {
    fl_nn_module *net;
    fl_dist_model *model;
    fl_optim *optim;
    fl_optim_ema *ema; /* or NULL */
    fl_data_set *train, *test;
    fl_optim_progress at; /* position: micro-batches */
    double best;
} run;

static bool checkpoint(run *t, const char *path, bool save) {
    fl_optim_checkpoint c = {.at = &t->at};
    fl_nn_state *s = &c.state;
    const bool ok = fl_nn_state_add_module(s, "model.", t->net) &&
                    fl_optim_checkpoint_add(&c, "optim.", t->optim) &&
                    (!t->ema || fl_optim_ema_state(t->ema, "ema.", s)) &&
                    fl_nn_state_add_number(s, "", "best", &t->best) &&
                    (save ? fl_optim_checkpoint_save(&c, path) : fl_optim_checkpoint_load(&c, path));
    fl_optim_checkpoint_free(&c);
    return ok;
}

static double rate(const options *o, int64_t step, int64_t per_epoch) {
    const recipe *r = &o->r;
    const double lr = o->lr ? o->lr : r->lr * (double)r->batch / r->of;
    const int64_t third = r->epochs > 2 ? r->epochs / 3 : 1;
    if (r->kind != DEIT)
        return fl_optim_lr_step(lr, step, per_epoch * (r->kind == DETR ? 2 : 1) * third, 0.1);
    const int64_t warm = r->warmup * per_epoch;
    return step < warm ? lr * (double)(step + 1) / (double)warm
                       : fl_optim_lr_cosine(lr, 1e-5, step - warm, r->epochs * per_epoch - warm);
}

/* The loss; DETR's is divided by the mean number of objects over ranks. */
static fl_var *loss_of(run *t, const options *o, const fl_data_sample *b) {
    if (o->r.kind != DETR) {
        fl_var *y = fl_nn_forward(t->net, fv_const(b->t[0]));
        return y ? fv_cross_entropy(y, b->t[1]) : NULL;
    }
    fl_vision_losses l;
    double objects = (double)fl_numel(b->t[3]);
    fl_tensor *mean = fl_from_host(&objects, FL_SHAPE(1), FL_F64);
    const bool ok = mean && fl_dist_all_reduce(o->d, mean, .op = FL_DIST_AVG) &&
                    fl_to_host(mean, &objects, sizeof objects) &&
                    vision_losses(t->net, b, objects > 1 ? objects : 1, &l);
    return ok ? l.total : NULL;
}

/* One step with gradients accumulated over micro-batches; *loss: their mean loss. */
static bool step(run *t, const options *o, double *loss) {
    fl_optim_zero_grad(t->optim);
    *loss = 0;
    for (int64_t k = 0; k < o->accumulate; k++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        fl_dist_no_sync(t->model, k + 1 < o->accumulate);
        bool ok = fl_data_next(t->train, &t->at.epoch, &t->at.position, &b);
        if (o->bf16) fl_autocast(FL_BF16);
        fl_var *whole = ok ? loss_of(t, o, &b) : NULL;
        fl_var *part = whole ? fv_div(whole, fv_num((double)o->accumulate)) : NULL;
        fl_autocast(FL_F32);
        ok = part && fl_backward(part);
        if (ok) *loss += fl_item(fv_value(part));
        fl_scope_end(&s);
        if (!ok) return false;
    }
    return fl_dist_step(t->model, t->optim, o->clip ? o->clip : o->r.clip) &&
           (!t->ema || fl_optim_ema_update(t->ema));
}

static const char *measure(const options *o) { return o->r.kind == DETR ? "AP" : "accuracy"; }

/* Evaluates the averaged weights, saves the best, and writes a checkpoint. */
static bool end_of_epoch(run *t, const options *o) {
    const bool first = fl_dist_rank(o->d) == 0;
    bool ok = !t->ema || fl_optim_ema_swap(t->ema);
    const double percent = !ok                    ? (double)NAN
                           : o->r.kind == DETR ? precision(t->net, t->test, &o->coco[1])
                                               : accuracy(t->net, t->test, o->d);
    const bool better = percent > t->best;
    if (better) t->best = percent;
    if (first) printf("Epoch %lld: %s %.2f %%, %lld bad files\n", (long long)t->at.epoch, measure(o), percent,
                      (long long)fl_vision_skipped_samples(t->train));
    if (better && first) ok = ok && fl_nn_save(t->net, "vision_train.safetensors");
    ok = ok && percent == percent && (!t->ema || fl_optim_ema_swap(t->ema));
    return ok && (!first || checkpoint(t, "vision_train.checkpoint", true));
}

static bool train(run *t, const options *o) {
    const int64_t per_epoch = fl_data_size(t->train) / o->accumulate;
    const bool first = fl_dist_rank(o->d) == 0;
    bool ok = per_epoch > 0 || (fprintf(stderr, "vision_train: fewer images than a batch has\n"), false);
    while (ok && t->at.epoch < o->r.epochs && !(o->steps && t->at.step >= o->steps)) {
        const int64_t epoch = t->at.epoch;
        double loss;
        ok = fl_optim_set_lr(t->optim, rate(o, t->at.step, per_epoch)) && step(t, o, &loss);
        t->at.step++;
        if (ok && first && t->at.step % 20 == 0)
            printf("Step %lld: loss %.4f\n", (long long)t->at.step, loss), fflush(stdout);
        if (ok && (t->at.epoch > epoch || t->at.step == o->steps)) ok = end_of_epoch(t, o);
    }
    if (ok && first) printf("Best %s: %.2f %%\n", measure(o), t->best);
    return ok;
}

static int64_t count_classes(const char *folder) {
    fl_data_set *set = fl_vision_folder(folder);
    int64_t n = 0;
    while (fl_data_class_name(set, n)) n++;
    fl_data_free(set);
    return n;
}

/* The network; DETR's classes are category ids, as in its pretrained weights. */
static fl_nn_module *new_net(const options *o, int64_t *classes) {
    const recipe *r = &o->r;
    const fl_vision_coco *c = &o->coco[0];
    *classes = r->kind != DETR ? count_classes(o->train)
               : c->n_category ? c->category[c->n_category - 1].id + 1
                               : 0;
    if (!*classes) return NULL;
    if (r->kind != DETR)
        return fl_vision_model(r->model, .classes = *classes, .size = r->size, .drop_path = r->drop_path,
                               .divide = o->divide);
    return fl_vision_detr(strstr(r->model, "101") ? 101 : 50, .classes = *classes, .divide = o->divide,
                          .live = !o->backbone && !o->load);
}

/* Writes vision_train.txt: class names, one per line, for vision_predict. */
static bool write_labels(const options *o, int64_t classes) {
    fl_data_text text = {0};
    fl_data_set *set = o->r.kind == DETR ? NULL : fl_vision_folder(o->train);
    const vision_labels objects = {.coco = o->coco[0]};
    bool ok = true;
    for (int64_t k = 0; ok && k < classes; k++) {
        char name[80];
        if (!set) vision_label(&objects, k, name, sizeof name);
        ok = fl_data_text_print(&text, "%s\n", set ? fl_data_class_name(set, k) : name);
    }
    ok = ok && fl_data_replace("vision_train", "vision_train.txt", text.p, (size_t)text.n);
    fl_data_free(set);
    fl_heap_free(text.p);
    return ok;
}

static bool set_up(run *t, options *o) {
    const recipe *r = &o->r;
    int64_t classes = 0;
    const bool read =
        r->kind != DETR || (read_objects(o->train, &o->coco[0]) && read_objects(o->val, &o->coco[1]));
    t->net = read ? new_net(o, &classes) : NULL;
    if (!t->net || !fl_nn_channels_last(t->net) ||
        (o->load && !fl_vision_load(t->net, o->load, FL_VISION_TORCHVISION)) ||
        (o->backbone &&
         !fl_vision_load(fl_nn_find(t->net, "backbone.0.body"), o->backbone, FL_VISION_TORCHVISION)))
        return false;
    t->model = fl_dist_data_parallel(o->d, t->net);
    const fv_list p = fl_dist_parameters(t->model);
    t->optim = r->kind != CLASSIC ? fl_optim_adamw(p, .lr = 1e-3, .weight_decay = r->decay)
                       : fl_optim_sgd(p, .lr = 0.1, .momentum = 0.9, .weight_decay = r->decay);
    /* DeiT: no weight decay for biases, norms and the position embedding */
    bool ok = t->model && t->optim;
    if (ok && r->kind == DETR) ok = fl_optim_group_of(t->optim, t->net, "backbone.*", .lr = 1e-4) >= 0;
    if (ok && r->kind == DEIT)
        ok = fl_optim_group_of(t->optim, t->net, "*bias", .weight_decay = FL_ZERO) >= 0 &&
             fl_optim_group_of(t->optim, t->net, "*ln*weight", .weight_decay = FL_ZERO) >= 0 &&
             fl_optim_group_of(t->optim, t->net, "*pos_embedding", .weight_decay = FL_ZERO) >= 0;
    if (ok && r->ema) ok = (t->ema = fl_optim_ema_new(fl_nn_parameters(t->net), r->ema)) != NULL;
    if (ok && fl_dist_rank(o->d) == 0) ok = write_labels(o, classes);
    return ok && (t->train = training_set(o, classes)) && (t->test = test_set(o)) &&
           (!o->resume || checkpoint(t, o->resume, false));
}

int main(int argc, char **argv) {
    options o = {.recipe = "resnet50", .accumulate = 1, .seed = 1, .threads = 2, .divide = 1};
    const argument list[] = {
        {"recipe", .text = &o.recipe, .about = "resnet50, resnet18, deit_s, detr_resnet50 ..."},
        {"train", .text = &o.train, .about = "training images: a folder per class, or COCO's"},
        {"val", .text = &o.val, .about = "validation images"},
        {"resume", .text = &o.resume, .about = "checkpoint to continue from"},
        {"load", .text = &o.load, .about = "initial weights, with torchvision's names"},
        {"backbone", .text = &o.backbone, .about = "initial weights of DETR's ResNet"},
        {"batch", .whole = &o.batch, .low = 1, .high = 1e6, .about = "per step; default: the recipe's"},
        {"epochs", .whole = &o.epochs, .low = 1, .high = 1e6, .about = "default: the recipe's"},
        {"accumulate", .whole = &o.accumulate, .low = 1, .high = 1e4,
         .about = "micro-batches per step (gradient accumulation)"},
        {"steps", .whole = &o.steps, .low = 1, .high = 1e12, .about = "stop after this many steps"},
        {"seed", .whole = &o.seed, .low = 0, .high = 1e9},
        {"threads", .whole = &o.threads, .low = 1, .high = 64, .about = "data loading threads"},
        {"size", .whole = &o.size, .low = 32, .high = 1024, .about = "image size; default: the recipe's"},
        {"test-size", .whole = &o.test_size, .low = 32, .high = 1024, .about = "image size for evaluation"},
        {"divide", .whole = &o.divide, .low = 1, .high = 64, .about = "divisor of the widths, for trials"},
        {"lr", .number = &o.lr, .low = 1e-9, .high = 100, .about = "learning rate; default: the recipe's"},
        {"clip", .number = &o.clip, .low = 1e-9, .high = 1e9,
         .about = "gradient clipping norm; default: the recipe's"},
        {"bf16", .on = &o.bf16, .about = "matrix products in bf16"},
        {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        if (!strcmp(recipes[i].name, o.recipe)) o.r = recipes[i];
    if (!o.r.name || !o.train || !o.val) {
        fprintf(stderr, "usage: vision_train --train DIR --val DIR --recipe");
        for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) fprintf(stderr, " %s", recipes[i].name);
        return fputc('\n', stderr), 2;
    }
    if (o.batch) o.r.batch = o.batch;
    if (o.epochs) o.r.epochs = o.epochs;
    if (o.size) o.r.size = o.r.test_size = o.size;
    if (o.test_size) o.r.test_size = o.test_size;
    fl_seed((uint64_t)o.seed);
    fl_scope s = fl_scope_begin();
    o.d = fl_dist_init();
    run t = {.best = -1};
    const bool ok = o.d && set_up(&t, &o) && train(&t, &o);
    if (!ok) fprintf(stderr, "vision_train: %s\n", fl_error() ? fl_error() : "failed");
    fl_data_free(t.train), fl_data_free(t.test);
    for (int i = 0; i < 2; i++) fl_vision_coco_free(&o.coco[i]);
    fl_optim_ema_free(t.ema);
    fl_optim_free(t.optim);
    fl_dist_model_free(t.model);
    fl_dist_close(o.d);
    fl_nn_free(t.net);
    fl_scope_end(&s);
    return ok ? 0 : 1;
}
/* MIT licence: see LICENSE. */
