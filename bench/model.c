/* bench/model.c - trains one model of bench/models on a random batch and prints one line of figures

   The figures are in the order of `columns` (make bench-model ARGS="vit --threads 2 --iterations 5").

     model NAME [--preset cpu] [--batch N] [--size N] [--threads N] [--warmup N] [--iterations N]
           [--dtype f32] [--device cpu] [--nchw] [--plain] [--early] [--graph] [--digest] [--profile]
           [--mode train] [--save FILE]
       --list   names and presets, --columns  the names of the figures
       --dtype  bf16: parameters, activations and gradients are bf16, with f32 masters in the optimizer;
                rounded: f32, whose products may round their operands to bf16 (fl_set_matmul_precision). The
                peak is still that of f32
       --early  parameters are updated within the backward pass (fl_optim_step_in_backward)
       --graph  steps are recorded until they can be replayed (fl_graph.h), in a warm-up of at least 4; only
                whole steps have seconds. The status is 1 if they cannot be
       --digest  also a line `digest`, the model, losses of the steps behind the warm-up, and a hash of the
                parameters after them
       --device cuda: parameters, batch and steps on that backend; every timer waits for it. There f32 is
                strict and tf32 lets products round; percent_of_fma is empty, memory is the device's. Also a
                line `counts`: plans that each step makes anew, since too many shapes share a place, and
                attention that cuDNN does not support
       --loading DIR  images of a folder of classes, read, decoded, cropped, mirrored and normalised by two
                threads while steps run; a step's seconds include the waiting for its batch
       --nchw   row-major images; by default networks for images run channels-last
       --plain  without dropout and layer drop
       --mode inference  only the forward pass, with frozen weights, nothing recorded; batch norms have
                statistics by a formula
       --save FILE  weights, input and result of such a pass (safetensors), for peers to compute the same
       --profile  also the tables of fl_profile_begin for as many further steps, and its overhead: CPU seconds
                of a step without and with it, alternating

   A step is forward and loss, backward, and SGD with momentum. GFLOP counts two for each multiply-add of
   linear layers, convolutions, attention and capsules in the forward pass, three times: the gradients of
   inputs and of weights cost as much each. Memory is the allocator's peak above parameters, optimizer state
   and batch: activations, gradients, workspace. */
#include "../fl_backend.h"
#include "../kernels/cuda/dnn.h"
#include "../kernels/cuda/plan.h"
#include "models/model.h"
#include "../examples/extend/training.h"
#include "peaks.h"

#include <math.h>
#include <sys/resource.h>
#include <time.h>

#pragma weak fl__cuda_plan_evictions
#pragma weak fl__cuda_dnn_declined

typedef struct settings {
    const model *m;
    model_preset preset;
    int threads, warmup, iterations;
    fl_dtype dtype; /* of tensors */
    const char *device, *dtype_name, *loading, *save; /* a folder of classes, a file, or NULL */
    bool nchw, profile, early, digest, inference;
    fl_graph *graph; /* NULL: eager steps */
} settings;

static const char columns[] =
    "model\tframework\tbatch\tdevice\tdtype\tthreads\tmode\tmedian_s\tmin_s\tforward_s\tbackward_"
    "s\t"
    "step_s\tgflops\tpercent_of_fma\tmemory_bytes\trss_bytes\tcommit\tgflop\tlayout_conversions\tfirst_s\t"
    "difference";

/* ---- floating-point operations: each type of layer gets a forward that counts ---- */

enum { COUNTED = 7 };
static const fl_nn_type *counted_type[COUNTED];
static fl_nn_type counting_type[COUNTED];
static double forward_flop;

static double numel_of(const fl_var *x) { return (double)fl_numel(fv_value(x)); }

/* Of a layer whose weight [out, ...] is used once for each out numbers of the result. */
static double flop_of_weight(fl_nn_module *m, fl_var *y) {
    fl_var *w = fl_nn_get_param(m, "weight");
    return 2 * numel_of(y) * numel_of(w) / (double)fv_value(w)->shape[0];
}

/* The three products with in_proj_weight, q k^T and the product with v. */
static double flop_of_attention(fl_vars in) {
    const fl_vars all = in.n < 3 ? FL_VARS(in.v[0], in.v[0], in.v[0]) : in;
    const double dim = (double)fv_value(all.v[0])->shape[2],
                 keys = (double)fv_value(all.v[1])->shape[1];
    double flop = 4 * numel_of(all.v[0]) * keys;
    for (int i = 0; i < 3; i++) flop += 2 * numel_of(all.v[i]) * dim;
    return flop;
}

/* The products with the weights of all layers and directions, at each step. */
static double flop_of_recurrence(fl_nn_module *m, fl_var *x) {
    double weights = 0;
    for (int64_t i = 0; i < m->n_param; i++)
        if (fv_value(m->param[i].var)->ndim == 2) weights += numel_of(m->param[i].var);
    return 2 * numel_of(x) / (double)fv_value(x)->shape[2] * weights;
}

static fl_vars counting_forward(fl_nn_module *m, fl_vars in) {
    int i = 0;
    while (m->type != &counting_type[i]) i++;
    const fl_vars out = counted_type[i]->forward(m, in);
    const char *name = m->type->name;
    if (!out.n || !out.v[0]) return out;
    if (!strcmp(name, "MultiheadAttention"))
        forward_flop += flop_of_attention(in);
    else if (!strcmp(name, "LSTM"))
        forward_flop += flop_of_recurrence(m, in.v[0]);
    else if (!strcmp(name, "ConvTranspose2d"))
        forward_flop += flop_of_weight(m, in.v[0]);
    else if (!strcmp(name, "Capsules"))
        forward_flop +=
            2 * (double)fv_value(in.v[0])->shape[0] * numel_of(fl_nn_get_param(m, "weight"));
    else
        forward_flop += flop_of_weight(m, out.v[0]);
    return out;
}

/* Puts counting_forward in front of the forward of each layer that counts; containers then take them for
   layers of a program's own, which go one by one. */
static void count_in(fl_nn_module *m) {
    static const char *const names[COUNTED] = {"Linear", "Conv2d", "Conv1d", "MultiheadAttention",
                                               "Capsules", "ConvTranspose2d", "LSTM"};
    for (int i = 0; i < COUNTED; i++) {
        if (strcmp(m->type->name, names[i])) continue;
        counted_type[i] = m->type;
        counting_type[i] = *m->type;
        counting_type[i].forward = counting_forward;
        m->type = &counting_type[i];
        break;
    }
    for (int64_t i = 0; i < m->n_child; i++) count_in(m->child[i]);
}

/* ---- layout: copies of images from one order of axes to the other ---- */

static fl_slot plain_copy;
static int64_t conversions;

static bool channels_first_of(const fl_tensor *t, bool *first) {
    if (t->ndim != 4 || t->shape[1] == 1 || t->shape[2] * t->shape[3] == 1) return false;
    if (!t->stride[1] || !t->stride[3]) return false; /* broadcast: in no layout yet */
    *first = t->stride[1] > t->stride[3];
    return true;
}

static bool counting_copy(const fl_backend *self, const fl_call *c) {
    bool from, to;
    if (channels_first_of(c->in[0], &from) && channels_first_of(c->out[0], &to) && from != to)
        conversions++;
    return plain_copy(self, c);
}

static void count_conversions(void) {
    fl_backend b = *fl_backend_at(fl_backend_default());
    plain_copy = b.op[FL_OP_copy];
    b.op[FL_OP_copy] = counting_copy;
    fl_backend_use(&b, NULL);
}

/* ---- training, or inference, which has no optimizer ---- */

typedef struct figures {
    double seconds[4][100]; /* whole steps; forward, backward, optimizer */
    double first, flop, memory;
    int64_t conversions; /* in one step */
    long long rss;       /* most bytes of the process */
    double loss[100];
    uint64_t hash; /* of the parameters */
} figures;

/* What the clock says once the device is through with all that it was given, and deferred calls have run. */
static double now(void) {
    const fl_backend *b = fl_backend_at(fl_backend_default());
    if (!fl_sync(NULL)) fprintf(stderr, "%s\n", fl_error()), exit(1);
    if (b->sync && !b->sync(b)) fprintf(stderr, "%s\n", fl_error()), exit(1);
    return fl_data_now();
}

/* While a graph records: a wait would run its calls. */
static double no_time(void) {
    return 0;
}

static bool on_device(const settings *s) { return strcmp(s->device, "cpu") != 0; }

/* Of the device's memory, or the host's. */
static fl_mem_manager *manager_of(const model_batch *batch) {
    return batch->t[0]->buffer ? batch->t[0]->buffer->device->manager : NULL;
}

/* In a scope of its own: results that backward does not read, as scores, die with it. */
static fl_var *loss_of(const settings *s, fl_nn_module *net, const model_batch *batch) {
    fl_scope scope = fl_scope_begin();
    return fv_scope_return(&scope, s->m->loss(net, &s->preset, batch));
}

/* Batches of --loading, in endless epochs. */
static struct {
    fl_data_set *set;
    int64_t epoch, index;
} loading;

static bool load_from(const settings *s) {
    const fl_vision_transform steps[] = {
        fl_vision_random_resized_crop(s->preset.size, 0, 0, FL_VISION_BILINEAR),
        fl_vision_random_horizontal_flip(0.5)};
    fl_data_set *set = fl_data_shuffle(fl_data_repeat(fl_vision_folder(s->loading), 10), 1);
    set = fl_vision_batch(set, s->preset.batch, .steps = steps, .n_steps = 2, .drop_last = true,
                          .mean = FL_VISION_IMAGENET_MEAN, .std = FL_VISION_IMAGENET_STD);
    loading.set = fl_data_prefetch(set, 2, 4);
    return loading.set && fl_data_size(loading.set) > 0;
}

static void answer(fl_nn_module *net, const model_batch *batch, double seconds[4]) {
    fl_scope scope = fl_scope_begin();
    const double start = now();
    fl_nn_forward(net, fv_const(batch->t[0]));
    seconds[0] = seconds[1] = now() - start;
    fl_scope_end(&scope);
}

static fl_tensor *last_loss; /* with --digest */

static void eager_step(const settings *s, fl_nn_module *net, fl_optim *optim, const model_batch *batch,
                       double (*time)(void), double seconds[4]) {
    fl_scope scope = fl_scope_begin();
    fl_optim_zero_grad(optim);
    const double start = time();
    fl_data_sample loaded;
    model_batch next = *batch;
    if (loading.set) {
        if (!fl_data_next(loading.set, &loading.epoch, &loading.index, &loaded))
            fprintf(stderr, "%s\n", fl_error()), exit(1);
        next.t[0] = loaded.t[0], next.t[1] = loaded.t[1];
        batch = &next;
    }
    fl_var *loss = loss_of(s, net, batch);
    const double forward = time();
    fl_backward(loss);
    const double backward = time();
    fl_optim_step(optim);
    if (s->digest) fl_drop(last_loss), last_loss = fl_keep(fv_value(loss));
    fl_scope_end(&scope);
    const double end = time();
    const double parts[] = {end - start, forward - start, backward - forward, end - backward};
    memcpy(seconds, parts, sizeof parts);
}

static void step(const settings *s, fl_nn_module *net, fl_optim *optim, const model_batch *batch,
                 double seconds[4]) {
    if (!optim) {
        answer(net, batch, seconds);
    } else if (!s->graph) {
        eager_step(s, net, optim, batch, now, seconds);
    } else {
        const double start = now();
        if (fl_graph_ready(s->graph)) {
            fl_graph_replay(s->graph);
        } else {
            fl_graph_begin(s->graph);
            eager_step(s, net, optim, batch, no_time, seconds);
            fl_graph_end(s->graph);
        }
        seconds[0] = now() - start;
    }
}

/* Most bytes of a step that starts without gradients, above parameters, state and batch. */
static double memory_of(const settings *s, fl_nn_module *net, fl_optim *optim,
                        const model_batch *batch) {
    if (optim) fl_optim_zero_grad(optim);
    now();
    fl_mem_manager *m = manager_of(batch);
    fl_mem_stats_reset_peak(m);
    const int64_t before = fl_mem_stats_of(m).in_use;
    fl_scope scope = fl_scope_begin();
    if (optim) fl_backward(loss_of(s, net, batch));
    else fl_nn_forward(net, fv_const(batch->t[0]));
    fl_scope_end(&scope);
    now();
    return (double)(fl_mem_stats_of(m).peak_in_use - before);
}

/* CPU seconds of a step: other work on the machine shows less in them. */
static double cpu_of_step(const settings *s, fl_nn_module *net, fl_optim *optim, const model_batch *batch) {
    double part[4];
    const clock_t begin = clock();
    step(s, net, optim, batch, part);
    return (double)(clock() - begin) / CLOCKS_PER_SEC;
}

/* The tables are those of the last step. */
static void profile(const settings *s, fl_nn_module *net, fl_optim *optim, const model_batch *batch) {
    double off[100], on[100];
    const double peak = peak_fma(s->threads) * 1e9, copy = peak_copy(s->threads) * 1e9;
    for (int i = 0; i < s->iterations; i++) {
        off[i] = cpu_of_step(s, net, optim, batch);
        fl_profile_begin(0, .peak_flops = peak, .peak_bytes = copy);
        on[i] = cpu_of_step(s, net, optim, batch);
        if (i == s->iterations - 1) fl_profile_print();
        fl_profile_end();
    }
    const double a = bench_median(off, s->iterations), b = bench_median(on, s->iterations);
    bench_line("profile_off", a, "s", "CPU seconds of a step, median; in turns with");
    bench_line("profile_on", b, "s", "the same under fl_profile_begin");
    bench_line("profile_cost", 100 * (b / a - 1), "%", "of medians; budget 5");
    bench_line("profile_cost_min", 100 * (on[0] / off[0] - 1), "%", "of minima");
}

static void measure(const settings *s, fl_nn_module *net, const model_batch *batch, figures *f) {
    double part[4] = {0};
    fl_optim *optim =
        s->inference ? NULL : fl_optim_sgd(fl_nn_parameters(net), .lr = 1e-4, .momentum = 0.9);
    if (s->dtype == FL_BF16 && optim && !fl_optim_use_masters(optim)) exit(1);
    if (s->early && optim) fl_optim_step_in_backward(optim, true);
    for (int i = -s->warmup; i < s->iterations; i++) {
        if (i == 0) conversions = 0;
        step(s, net, optim, batch, part);
        if (i == -s->warmup) f->first = part[0];
        for (int k = 0; i >= 0 && k < 4; k++) f->seconds[k][i] = part[k];
        if (i >= 0 && last_loss) f->loss[i] = fl_item(last_loss);
    }
    training_run trained = {.net = net};
    if (s->digest && !training_hash(&trained, &f->hash)) exit(1);
    f->conversions = conversions / s->iterations;
    f->memory = memory_of(s, net, optim, batch);
    if (s->profile) profile(s, net, optim, batch);
    struct rusage usage = {0};
    getrusage(RUSAGE_SELF, &usage);
    f->rss = (long long)usage.ru_maxrss * 1024;
    count_in(net);
    forward_flop = 0;
    settings eager = *s;
    eager.graph = NULL;
    step(&eager, net, optim, batch, part);
    f->flop = (optim ? 3 : 1) * forward_flop;
    fl_optim_free(optim);
}

/* Statistics of batch norms as if they had learnt some. */
static bool give_statistics(fl_nn_module *m, const char *prefix, void *user) {
    (void)prefix, (void)user;
    for (int64_t i = 0; i < m->n_buffer; i++) {
        fl_tensor *t = m->buffer[i].tensor;
        const bool var = !strcmp(m->buffer[i].name, "running_var");
        if (!var && strcmp(m->buffer[i].name, "running_mean")) continue;
        fl_tensor *numbers = model_numbers(m->buffer[i].name, fl_shape_of(t));
        if (!fl_assign(t, fl_add(fl_mul(numbers, fl_num(0.1)), fl_num(var)))) return false;
    }
    return true;
}

static bool save(const settings *s, fl_nn_module *net, const model_batch *batch) {
    fl_nn_state state = {0};
    fl_tensor *output = fv_value(fl_nn_forward(net, fv_const(batch->t[0])));
    const bool ok = fl_nn_state_add_module(&state, "", net) &&
                    fl_nn_state_add(&state, "", "input", batch->t[0]) &&
                    fl_nn_state_add(&state, "", "output", output) &&
                    fl_nn_state_save(&state, s->save, NULL, 0);
    fl_nn_state_free(&state);
    return ok;
}

static void print_line(const settings *s, figures *f, double peak) {
    double median[4];
    for (int k = 0; k < 4; k++) median[k] = bench_median(f->seconds[k], s->iterations);
    const double rate = f->flop / median[0] * 1e-9;
    const char *commit = getenv("COMMIT");
    printf(
        "%s\tfl/%s\t%lld\t%s\t%s\t%d\t%s\t%.6g\t%.6g\t%.6g\t%.6g\t%.6g\t%.4g\t%.3g\t%.0f\t%lld"
        "\t%s\t%.5g\t%lld\t%.6g\t-\n",
        s->m->name, s->nchw ? "nchw" : "channels-last", (long long)s->preset.batch, s->device,
        s->dtype_name, s->threads, s->inference ? "inference" : "train", median[0], f->seconds[0][0],
        median[1], median[2], median[3], rate, peak > 0 ? 100 * rate / peak : 0.0,
        f->memory, f->rss, commit ? commit : "-", f->flop * 1e-9,
        (long long)f->conversions, f->first);
    if (on_device(s) && fl__cuda_plan_evictions && fl__cuda_dnn_declined)
        printf("counts\t%s\t%lld plans were evicted\t%lld attentions were left to own kernels\n", s->m->name,
               (long long)fl__cuda_plan_evictions(), (long long)fl__cuda_dnn_declined());
    if (!s->digest) return;
    printf("digest\t%s\t", s->m->name);
    for (int i = 0; i < s->iterations; i++) printf("%s%.9g", i ? " " : "", f->loss[i]);
    printf("\t%016llx\n", (unsigned long long)f->hash);
}

/* What a program that asks for layout conversions gets: an image batch in the network's layout. */
static void lay_out(const settings *s, fl_nn_module *net, model_batch *batch) {
    if (s->nchw || batch->t[0]->ndim != 4) return;
    fl_nn_channels_last(net);
    for (int i = 0; i < MODEL_TENSORS; i++)
        if (batch->t[i] && batch->t[i]->ndim == 4) batch->t[i] = fl_channels_last(batch->t[i]);
}

static int run(const settings *s) {
    static figures f;
    fl_set_threads(s->threads);
    if (!fl_backend_set_default(s->device)) return fprintf(stderr, "skipped: %s\n", fl_error()), 1;
    fl_set_matmul_precision(!strcmp(s->dtype_name, "f32") ? FL_F32 : FL_BF16);
    fl_scope scope = fl_scope_begin();
    const double peak_before = on_device(s) ? 0 : peak_fma(s->threads);
    fl_seed(1);
    fl_nn_module *net = s->m->build(&s->preset);
    model_batch batch = s->m->batch(&s->preset);
    if (s->dtype != FL_F32 && !fl_nn_cast(net, s->dtype)) return 1;
    for (int i = 0; i < MODEL_TENSORS; i++)
        if (batch.t[i] && fl_dtype_is_float(batch.t[i]->dtype)) batch.t[i] = fl_cast(batch.t[i], s->dtype);
    if (!s->preset.tiny && fl_nn_count(net) != s->m->parameters) {
        fprintf(stderr, "%s: %lld parameters instead of %lld\n", s->m->name,
                (long long)fl_nn_count(net), (long long)s->m->parameters);
        return 1;
    }
    if (s->inference && !fl_nn_visit_modules(net, give_statistics, NULL)) return 1;
    fl_no_grad(s->inference);
    lay_out(s, net, &batch);
    if (s->inference && !fl_nn_freeze(net, true)) return 1;
    if (s->save) return !save(s, net, &batch);
    if (s->loading && !load_from(s)) return fprintf(stderr, "skipped: %s\n", fl_error()), 1;
    count_conversions();
    measure(s, net, &batch, &f);
    print_line(s, &f, on_device(s) ? 0 : fmax(peak_before, peak_fma(s->threads)));
    const bool graph_failed = s->graph && !fl_graph_ready(s->graph);
    if (graph_failed) printf("skipped: %s: no replay: %s\n", s->m->name, fl_graph_reason(s->graph));
    fl_graph_free(s->graph);
    fl_drop(last_loss);
    fl_data_free(loading.set);
    fl_nn_free(net);
    fl_scope_end(&scope);
    if (graph_failed) return 1;
    if (f.conversions <= s->m->conversions || s->nchw) return 0;
    fprintf(stderr, "%s: %lld conversions of layout in a step\n", s->m->name,
            (long long)f.conversions);
    return 1;
}

/* ---- arguments ---- */

static int list(void) {
    for (int i = 0; models[i]; i++) {
        printf("%s", models[i]->name);
        for (int k = 0; k < MODEL_PRESETS && models[i]->preset[k].name; k++)
            printf("\t%s", models[i]->preset[k].name);
        printf("\n");
    }
    return 0;
}

/* The number after the argument at i of that name; false if it is another. */
static bool number_option(char **argv, int *i, const char *name, int64_t *value) {
    if (strcmp(argv[*i], name) || !argv[*i + 1]) return false;
    *value = strtoll(argv[++*i], NULL, 10);
    return true;
}

static bool read_arguments(settings *s, int argc, char **argv) {
    const char *preset = "cpu", *dtype = "f32", *mode = "train";
    int64_t batch = 0, size = 0, threads = fl_threads(), warmup = 2, iterations = 5;
    bool plain = false, graph = false;
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "--preset") && argv[i + 1])
            preset = argv[++i];
        else if (!strcmp(argv[i], "--dtype") && argv[i + 1])
            dtype = argv[++i];
        else if (!strcmp(argv[i], "--device") && argv[i + 1])
            s->device = argv[++i];
        else if (!strcmp(argv[i], "--loading") && argv[i + 1])
            s->loading = argv[++i];
        else if (!strcmp(argv[i], "--mode") && argv[i + 1])
            mode = argv[++i];
        else if (!strcmp(argv[i], "--save") && argv[i + 1])
            s->save = argv[++i];
        else if (!strcmp(argv[i], "--nchw"))
            s->nchw = true;
        else if (!strcmp(argv[i], "--plain"))
            plain = true;
        else if (!strcmp(argv[i], "--early"))
            s->early = true;
        else if (!strcmp(argv[i], "--profile"))
            s->profile = true;
        else if (!strcmp(argv[i], "--digest"))
            s->digest = true;
        else if (!strcmp(argv[i], "--graph"))
            graph = true;
        else if (!number_option(argv, &i, "--batch", &batch) &&
                 !number_option(argv, &i, "--size", &size) &&
                 !number_option(argv, &i, "--threads", &threads) &&
                 !number_option(argv, &i, "--warmup", &warmup) &&
                 !number_option(argv, &i, "--iterations", &iterations))
            return false;
    }
    s->m = argc > 1 ? model_find(argv[1]) : NULL;
    const model_preset *p = s->m ? model_preset_find(s->m, preset) : NULL;
    s->dtype_name = dtype;
    s->dtype = !strcmp(dtype, "tf32") || !strcmp(dtype, "rounded") ? FL_F32 : fl_dtype_by_name(dtype);
    s->inference = !strcmp(mode, "inference");
    if (!p || iterations < 1 || iterations > 100 || (!s->inference && (s->save || strcmp(mode, "train"))))
        return false;
    if (s->dtype != FL_F32 && s->dtype != FL_BF16) return false;
    if (s->loading && s->m->batch != model_images) return false;
    if ((graph || s->digest) && (s->inference || s->loading)) return false;
    if (graph && !(s->graph = fl_graph_new())) return false;
    s->preset = *p;
    s->preset.plain = plain;
    if (batch) s->preset.batch = batch;
    if (size) s->preset.size = size;
    s->threads = (int)threads;
    s->warmup = (int)(graph && warmup < 4 ? 4 : warmup);
    s->iterations = (int)iterations;
    return true;
}

int main(int argc, char **argv) {
    settings s = {.device = "cpu"};
    if (argc == 2 && !strcmp(argv[1], "--list")) return list();
    if (argc == 2 && !strcmp(argv[1], "--columns")) return puts(columns) < 0;
    if (read_arguments(&s, argc, argv)) return run(&s);
    fprintf(stderr, "usage: model NAME [--preset cpu] [--batch N] [--size N] [--threads N] [--warmup N]"
                    " [--iterations N] [--dtype f32] [--device cpu] [--nchw] [--plain] [--early] [--graph] "
                    "[--digest] [--profile] [--loading DIR] [--mode train|inference] [--save FILE] | --list "
                    "| --columns\n");
    return 2;
}
/* MIT licence: see LICENSE. */
