/* test_paged.c - functions of speech and vision whose operands and results are out of memory between ops */
#include "../fl_all.h"
#include "paged.h"
#include "pictures.h"

enum { RATE = 16000 };

/* ---- speech: sounds ---- */

static fl_tensor *noise(fl_shape shape, uint64_t seed) {
    fl_rng rng = fl_data_rng(seed, 0, 0);
    return away(fl_normal(shape, 0, 0.3, FL_F32, &rng));
}

static fl_tensor *sound(int64_t n) { return noise(FL_SHAPE(2, n), 1); }

PAGED(effects) {
    fl_rng rng = fl_data_rng(5, 0, 0);
    put_tensor(fl_speech_add_noise(sound(2000), noise(FL_SHAPE(1500), 2), 700, 3));
    put_tensor(fl_speech_convolve(sound(500), noise(FL_SHAPE(31), 3), 5));
    put_tensor(fl_speech_reverb(sound(500), noise(FL_SHAPE(99), 4)));
    put_tensor(fl_speech_echo(sound(3000), RATE, &rng,
                       (fl_speech_echo_opts){.initial = 0.3, .rt60 = 0.5, .first_delay = 0.02, .repeat = 2}));
    put_tensor(
        fl_speech_wave_augment(sound(3000), &rng, .band_width = 9, .bands = 3, .width = 200, .masks = 4));
    put_tensor(fl_speech_speed(sound(2000), 1.2));
    put_tensor(fl_speech_tempo(sound(4000), RATE, 0.8));
    put_tensor(fl_speech_telephone(sound(2000), 11025, FL_SPEECH_MULAW));
    put_tensor(fl_speech_telephone(sound(2000), 8000, FL_SPEECH_ALAW));
    put_tensor(fl_speech_resample(sound(2000), RATE, 11025));
    put_tensor(fl_speech_spec_augment(noise(FL_SHAPE(120, 30), 5), &rng, .warp = 7, .mean = true));
}

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "wb");
    if (CHECK(f && fputs(text, f) >= 0)) fclose(f);
}

PAGED(chains) {
    char json[1024];
    fl_rng rng = fl_data_rng(6, 0, 0);
    CHECK(fl_speech_save_audio(test_file("a.wav"), noise(FL_SHAPE(900), 2), RATE, FL_SPEECH_S16));
    write_text(test_file("list"), "a.wav\n");
    snprintf(json, sizeof json,
             "{\"soundEffectChain\": [{\"type\": \"Reverb\", \"reverbConfig\": {\"listFilePath\": \"%s\"}},\n"
             "{\"type\": \"AdditiveNoise\", \"additiveNoiseConfig\": {\"listFilePath\": \"%s\"}},\n"
             "{\"type\": \"Amplify\", \"amplifyConfig\": {\"ratioMin\": 2, \"ratioMax\": 3}},\n"
             "{\"type\": \"Clip\"}, {\"type\": \"Normalize\"}, {\"type\": \"ClampAmplitude\"},\n"
             "{\"type\": \"Normalize\", \"normalizeConfig\": {\"onlyIfTooHigh\": false}}]}\n",
             test_file("list"), test_file("list"));
    write_text(test_file("json"), json);
    char *folder = strdup(test_file(""));
    fl_speech_chain *c = fl_speech_chain_load(test_file("json"), .root = folder, .rate = RATE);
    free(folder);
    if (!CHECK(c != NULL)) return;
    put_tensor(fl_speech_chain_apply(c, sound(2000), &rng));
    fl_speech_chain_free(c);
}

PAGED(audio_files) {
    fl_speech_sound info;
    CHECK(fl_speech_save_audio(test_file("b.wav"), sound(700), 8000, FL_SPEECH_S16));
    put_tensor(fl_speech_load_audio(test_file("b.wav"), .info = &info));
    put_tensor(fl_speech_load_audio(test_file("b.wav"), .channel = 2, .rate = RATE));
    CHECK_EQ_INT(info.frames, 700);
}

/* ---- speech: features ---- */

static void put_features(const fl_speech_conf *c) {
    fl_speech_features *f = fl_speech_features_new(c);
    if (!CHECK(f != NULL)) return;
    put_tensor(fl_speech_features_compute(f, sound(3000)));
    fl_speech_features_free(f);
}

PAGED(features) {
    fl_speech_conf c;
    CHECK(fl_speech_preset(&c, "kaldi", RATE));
    put_features(&c);
    put_tensor(fl_speech_window_new(FL_SPEECH_POVEY, 50)), put_tensor(fl_speech_filter_bank(&c));
    c.dither = 0.1;
    put_features(&c);
    CHECK(fl_speech_preset(&c, "htk", RATE));
    put_tensor(fl_speech_dct_matrix(&c));
    c.energy = FL_SPEECH_ENERGY_LAST, c.subtract_mean = c.energy_normalize = true;
    put_features(&c);
    c.kind = FL_SPEECH_PLP;
    put_features(&c);
    CHECK(fl_speech_preset(&c, "whisper", RATE));
    put_features(&c);
    put_tensor(fl_speech_normalize(noise(FL_SHAPE(50, 12), 7), .left = 9, .right = 3, .by_column = true));
    put_tensor(fl_speech_deltas(noise(FL_SHAPE(50, 12), 7), 2, 2));
}

PAGED(features_of_variables_and_streams) {
    fl_speech_conf c;
    CHECK(fl_speech_preset(&c, "kaldi", RATE));
    c.dither = 0;
    fl_speech_features *f = fl_speech_features_new(&c);
    fl_speech_stream *p = fl_speech_stream_new(f);
    if (!CHECK(f && p)) return;
    fl_var *x = fv_param(sound(2000)), *y = fv_speech_features_compute(f, x);
    put_tensor(y ? fv_value(y) : NULL);
    CHECK(y && fl_backward(fv_sum(y, FL_ALL_AXES)));
    put_tensor(fv_grad(x));
    float samples[2000];
    CHECK(fl_to_host(noise(FL_SHAPE(2000), 8), samples, sizeof samples));
    for (int k = 0; k < 2; k++) put_tensor(fl_speech_stream_push(p, samples + 1000 * k, 1000, k == 1));
    fl_speech_stream_free(p);
    fl_speech_features_free(f);
}

/* ---- speech: criteria ---- */

static fl_tensor *integers(const int64_t *v, fl_shape shape) { return away(fl_from_host(v, shape, FL_I64)); }

PAGED(criteria) {
    static const struct {
        const char *kind;
        fl_speech_criterion_opts o;
    } table[] = {{"ctc", {.scale = FL_SPEECH_SCALE_TARGET}},
                 {"asg", {.diagonal = 0.1}},
                 {"asg", {.linseg_by_frames = true}},
                 {"transducer", {.hidden = 6}},
                 {"transducer", {.hidden = 6, .context = 2}},
                 {"seq2seq", {.attend = {.window = "soft"}}},
                 {"transformer", {.attend = {.heads = 2}}},
                 {"joint", {.attend = {.heads = 2}}}};
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = fl_data_rng(7, 0, (int64_t)k);
        fl_speech_criterion_opts o = table[k].o;
        o.rng = &rng;
        fl_nn_module *m = fl_speech_criterion_opt(table[k].kind, 6, 6, o);
        if (!CHECK(m != NULL)) continue;
        if (o.linseg_by_frames) CHECK(fl_speech_criterion_warmup(m, 1));
        fl_tensor *x = noise(FL_SHAPE(2, 9, 6), k + 1), *one = noise(FL_SHAPE(9, 6), 20);
        fl_var *loss = fl_speech_criterion_loss(m, fv_const(x), integers((int64_t[]){9, 7}, FL_SHAPE(2)),
                                                integers((int64_t[]){1, 2, 3, 1, 0, 0}, FL_SHAPE(2, 3)),
                                                integers((int64_t[]){3, 1}, FL_SHAPE(2)));
        put_tensor(loss ? fv_value(loss) : NULL);
        int64_t token[20];
        fl_speech_span span[3];
        const int64_t n = fl_speech_criterion_best(m, away(one), token, 20);
        put_number((double)n), put_bytes(token, (size_t)(n < 0 ? 0 : n) * sizeof *token);
        put_number(fl_speech_criterion_align(m, away(one), (int64_t[]){1, 2, 1}, 3, span));
        put_bytes(span, sizeof span);
        fl_nn_free(m);
        fl_scope_end(&s);
    }
}

PAGED(searches) {
    static const char *const kinds[] = {"transducer", "seq2seq", "transformer"};
    for (int k = 0; k < 3; k++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = fl_data_rng(7, 0, k);
        fl_nn_module *m = fl_speech_criterion(kinds[k], 6, 5, .attend = {.heads = 2}, .rng = &rng);
        if (!CHECK(m != NULL)) continue;
        fl_nn_train(m, false);
        fl_speech_predictor *p = fl_speech_criterion_predictor(m, noise(FL_SHAPE(5, 6), 9), 3, 6);
        fl_speech_search *d = fl_speech_search_new(p, NULL, .beam = 3, .most = 6, .threshold = 1e3);
        fl_speech_result r;
        CHECK(d && fl_speech_search_step(d, k ? 7 : 5) && fl_speech_search_end(d));
        CHECK_EQ_INT(fl_speech_search_best(d, 1, &r), 1);
        put_number(r.score);
        fl_speech_search_free(d), fl_speech_predictor_free(p), fl_nn_free(m);
        fl_scope_end(&s);
    }
}

PAGED(attention_windows) {
    static const char *const windows[] = {"soft", "step", "median"};
    for (int k = 0; k < 3; k++) {
        fl_rng rng = fl_data_rng(9, 0, k);
        fl_nn_module *m = fl_speech_attend(8, 5, .window = windows[k], .left = 2, .right = 3,
                                           .window_always = true, .max_rate = 2, .rng = &rng);
        if (!CHECK(m != NULL)) continue;
        fl_nn_train(m, false);
        fl_var *y = fl_speech_attend_scores(m, fv_const(noise(FL_SHAPE(2, 9, 8), 3)),
                                            integers((int64_t[]){9, 6}, FL_SHAPE(2)),
                                            integers((int64_t[]){1, 3, 3, 0, 2, 2}, FL_SHAPE(2, 3)), NULL);
        put_tensor(y ? fv_value(y) : NULL);
        fl_speech_decoder_state *d = fl_speech_decoder_state_new(m, noise(FL_SHAPE(9, 8), 4), 2, 5);
        put_tensor(fl_speech_decoder_state_next(d, NULL));
        put_tensor(fl_speech_decoder_state_next(d, integers((int64_t[]){1, 2}, FL_SHAPE(2))));
        fl_speech_decoder_state_free(d);
        fl_nn_free(m);
    }
}

/* ---- vision: images ---- */

static fl_tensor *picture(int64_t h, int64_t w) { return away(patterned(3, h, w, FL_U8)); }

PAGED(images) {
    fl_data_text png = {0};
    fl_vision_pixels p, q;
    CHECK(fl_vision_encode_png(&png, picture(9, 7)));
    put_bytes(png.p, (size_t)png.n);
    if (reads(png.p, (size_t)png.n)) put_tensor(fl_vision_decode(png.p, (size_t)png.n));
    fl_heap_free(png.p);
    const unsigned char ppm[] = "P5 2 2 255\nabcd";
    put_tensor(fl_vision_decode(ppm, sizeof ppm - 1)); /* grey to RGB: rows of their own */
    put_tensor(fl_vision_decode(ppm, sizeof ppm - 1, .mode = FL_VISION_GREY));
    write_text(test_file("a.ppm"), "P5 2 2 255\nabcd");
    put_tensor(fl_vision_read(test_file("a.ppm")));
    fl_tensor *image = picture(6, 5), *copy = fl_vision_image(3, 6, 5, &q);
    if (!CHECK(copy && fl_vision_pixels_of(&image, &p))) return;
    page_out_all();
    for (int64_t y = 0; y < 6; y++) memcpy(q.p + y * q.row, p.p + y * p.row, (size_t)q.row);
    put_tensor(copy);
    const float corner[] = {1, 2, 4, 5};
    fl_tensor *box = away(fl_from_host(corner, FL_SHAPE(1, 4), FL_F32));
    put_tensor(fl_vision_draw_boxes(picture(20, 30), box));
    fl_tensor *masks = away(fl_cast(patterned(3, 8, 9, FL_U8), FL_B8));
    put_tensor(fl_vision_masks_to_boxes(masks));
}

/* An image with two objects. */
static fl_vision_item item_of(int64_t h, int64_t w) {
    static const float boxes[] = {2, 3, 6, 9, 0, 0, 2, 2}, area[] = {20, 4};
    fl_vision_item x = {.boxes = fl_from_host(boxes, FL_SHAPE(2, 4), FL_F32),
                        .labels = fl_arange(5, 7, 1, FL_I64),
                        .area = fl_from_host(area, FL_SHAPE(2), FL_F32)};
    x.masks = fl_contiguous(fl_cast(fl_gt(patterned(2, h, w, FL_U8), fl_num(99)), FL_U8));
    x.image = picture(h, w);
    return x;
}

PAGED(transforms) {
    const fl_vision_transform steps[] = {fl_vision_random_horizontal_flip(1),
                                         fl_vision_random_vertical_flip(1),
                                         fl_vision_resize_to(6, 20, FL_VISION_BILINEAR),
                                         fl_vision_resize(20, 22, FL_VISION_BICUBIC),
                                         fl_vision_center_crop(6),
                                         fl_vision_random_crop(8, 2),
                                         fl_vision_pad(1, 2, 3, 4, 9),
                                         fl_vision_random_size_crop(5, 9),
                                         fl_vision_detr_augment()};
    for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = fl_data_rng(3, 0, (int64_t)k);
        fl_vision_item x = item_of(12, 10);
        CHECK(fl_vision_apply(&steps[k], 1, &x, &rng));
        fl_tensor *const all[] = {x.image, x.boxes, x.labels, x.masks, x.area};
        for (int i = 0; i < 5; i++) put_tensor(all[i]);
        fl_scope_end(&s);
    }
    const fl_vision_transform all[] = {fl_vision_random_resized_crop(9, 0, 0, FL_VISION_BICUBIC),
                                       fl_vision_rand_augment(3, 20),
                                       fl_vision_trivial_augment_wide(),
                                       fl_vision_color_jitter(0.4, 0.4, 0.4, 0.1),
                                       fl_vision_random_affine(20, 0.1, 0.1, 0.8, 1.2),
                                       fl_vision_random_erasing(1, -1),
                                       fl_vision_random_adjust(FL_VISION_BLUR, 0.1, 2, 1)};
    for (int64_t i = 0; i < 20; i++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = fl_data_rng(7, 0, i);
        fl_vision_item x = {.image = picture(12 + i, 10)};
        CHECK(fl_vision_apply(all, sizeof all / sizeof *all, &x, &rng));
        put_tensor(x.image);
        fl_scope_end(&s);
    }
}

/* ---- vision: data sets ---- */

/* Takes the set: all fields of all its samples. */
static void put_set(fl_data_set *set) {
    for (int64_t i = 0; CHECK(set != NULL) && i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        if (!CHECK(fl_data_get(set, i, &b))) printf("  %s\n", fl_error()), b.n = 0;
        for (int k = 0; k < b.n; k++) put_tensor(b.t[k]);
        fl_scope_end(&s);
    }
    fl_data_free(set);
}

PAGED(batches) {
    fl_tensor *x[] = {fl_reshape(fl_contiguous(patterned(6 * 3, 7, 8, FL_U8)), FL_SHAPE(6, 3, 7, 8)),
                      away(fl_arange(0, 6, 1, FL_I64))};
    const fl_vision_transform flip = fl_vision_random_horizontal_flip(0.5);
    put_set(fl_vision_batch(fl_data_tensors(x, 2), 4, .steps = &flip, .n_steps = 1));
    put_set(fl_data_prefetch(fl_vision_batch(fl_data_tensors(x, 2), 1, .steps = &flip, .n_steps = 1), 3, 4));
    fl_data_set *set = fl_vision_batch(fl_data_tensors(x, 2), 3);
    put_set(fl_vision_mixup(set, 6, .seed = 3));
    set = fl_vision_batch(fl_data_tensors(x, 2), 3);
    put_set(fl_vision_mixup(set, 6, .mixup = FL_ZERO, .seed = 3));
}

static void put_ppm(const char *path, char first) {
    char bytes[] = "P5 2 2 255\nabcd";
    bytes[11] = first;
    disk_write(path, bytes, sizeof bytes - 1);
}

PAGED(folders_and_shards) {
    static const char table[] = "n9\tnine\nn3\tthree\nn1\r\n";
    static unsigned char cifar[2 * 3073] = {1, 9, 200};
    cifar[3073] = 4;
    fl_data_io_use(&disk_io);
    put_ppm("root/n3/b.ppm", 'b'), put_ppm("root/n1/c.ppm", 'c');
    disk_write("table", table, sizeof table - 1);
    disk_write("list", "n3/b.ppm\t5\nn1/c.ppm\t6\n", 22);
    disk_write("c/data_batch_1.bin", cifar, sizeof cifar);
    put_set(fl_vision_imagenet("root", "table"));
    put_set(fl_vision_list("list", "root"));
    put_set(fl_vision_batch(fl_vision_folder("root"), 2));
    const fl_vision_transform crop = fl_vision_random_resized_crop(8, 0, 0, FL_VISION_BILINEAR);
    put_set(fl_vision_batch(fl_vision_folder("root"), 2, .steps = &crop, .n_steps = 1, .region = true));
    fl_data_set *list = fl_vision_list("list", "root");
    CHECK_EQ_INT(fl_vision_pack(list, "t", 2), 1);
    fl_data_free(list);
    put_set(fl_vision_shards((const char *[]){"t-000000.tar"}, 1));
    fl_vision_arrays a = {0};
    CHECK(fl_vision_cifar("c", "train", &a));
    put_tensor(a.image), put_tensor(a.label);
    fl_data_io_use(NULL);
}

PAGED(objects) {
    static const char json[] =
        "{\"images\":[{\"id\":7,\"height\":10,\"width\":20,\"file_name\":\"a.ppm\"},{\"id\":9,\"height\":6,"
        "\"width\":8,\"file_name\":\"b.ppm\"}],\"categories\":[{\"id\":3,\"name\":\"x\"}],\"annotations\":["
        "{\"id\":1,\"image_id\":7,\"category_id\":3,\"bbox\":[2,1,30,4],\"area\":8,\"iscrowd\":0,"
        "\"segmentation\":[[2,1,2,5,6,5,6,1]]},{\"id\":4,\"image_id\":9,\"category_id\":3,"
        "\"bbox\":[1,1,2,2],\"segmentation\":{\"size\":[6,8],\"counts\":[8,4,36]}}]}";
    fl_vision_coco coco;
    char ppm[300] = "P5 20 10 255\n";
    memset(ppm + 13, 100, 200);
    fl_data_io_use(&disk_io);
    disk_write("o.json", json, sizeof json - 1);
    disk_write("./a.ppm", ppm, 213);
    memcpy(ppm, "P5 8 6 255\n", 11);
    disk_write("./b.ppm", ppm, 11 + 48);
    if (!CHECK(fl_vision_coco_load("o.json", &coco))) return;
    const fl_vision_transform flip = fl_vision_random_horizontal_flip(1);
    for (int masks = 0; masks < 2; masks++) {
        put_set(fl_vision_objects(&coco, ".", .masks = masks));
        put_set(fl_vision_batch(fl_vision_objects(&coco, ".", .masks = masks), 2, .objects = true,
                                .steps = &flip, .n_steps = 1));
    }
    fl_vision_coco_free(&coco);
    fl_data_io_use(NULL);
}

PAGED(a_detector_with_a_mask) {
    fl_seed(1);
    fl_nn_module *net = fl_vision_detr(18, .classes = 3, .queries = 5, .dim = 32, .heads = 2, .hidden = 64,
                                       .layers = 2, .dropout = FL_ZERO, .divide = 8, .blocks = 1);
    if (!CHECK(net != NULL)) return;
    fl_nn_train(net, false);
    fl_tensor *mask = away(fl_contiguous(fl_cast(fl_gt(patterned(2, 64, 96, FL_U8), fl_num(150)), FL_B8)));
    const fl_vars y =
        fl_nn_forward_vars(net, FL_VARS(fv_const(noise(FL_SHAPE(2, 3, 64, 96), 2)), fv_const(mask)));
    for (int k = 0; k < 2; k++) put_tensor(y.n ? fv_value(y.v[k]) : NULL);
    fl_nn_free(net);
}

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
