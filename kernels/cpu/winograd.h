/* winograd.h - a part of conv.h: 3 x 3 convolutions of stride 1 by Winograd's F(4 x 4, 3 x 3)

   A tile of 4 x 4 results is A' [(G w G') . (B' x B)] A of a patch of 6 x 6 pixels x: 36 products for
   each pair of channels instead of 144. The 36 elements of all patches are 36 matrix products over
   the channels, [tile][c] by [c][o], which conv_tile.h computes. The data gradient is the same with
   the kernel turned by 180 degrees; the weight gradient is G' [sum over tiles (B' x B) . (A dy A')] G.

   The transforms are for channels-last images, f32, whole registers of channels. They round more than
   sums do. Of normal numbers, 28 x 28 pixels: the root mean square of the errors is 1.3e-6 (32
   channels) to 4.5e-6 (512) of that of the results, four times the direct way's 3e-7 to 1.2e-6;
   2.1e-6 in the weight gradient, eight times 2.7e-7. A NaN or an infinity reaches all 16 results of its tile
   and of those beside it whose patches hold it, not only those whose windows do.

   Tiles go through in groups whose transforms stay in the last-level cache. */

/* One convolution by tiles: out[n][r][q][o] = sum over i, j < 3, d of in[n][r + at_h + i]
   [q + at_w + j][d] w(o, d, i, j). */
typedef struct fl__winograd {
    const fl__conv *v;
    fl__image in, out, w;       /* w: channels last */
    int64_t in_h, in_w, rows, cols, depth, o, at_h, at_w;
    bool turned;                /* w(o, d, i, j) is w[d][2 - i][2 - j][o]: the data gradient */
    const char *bias;
    const fl__winograd_fn *transform;
    int64_t across, down, tiles;        /* of an image, in all */
    int64_t group, first, count;        /* tiles of a group; the one at work */
    int64_t image_step, result_step;    /* between the elements of a patch */
    float *kernel, *image, *result, *zero, *part; /* part: of the weight gradient */
    fl__rooms rooms;
} fl__winograd;

/* Tiles of a group: its transforms are of so many bytes, but for so many tiles at least the transforms
   of the kernels are read. Few channels go through the second-level cache, many through the last. */
#define FL__WINO_FEW 256 /* channels of both images */
#define FL__WINO_FEW_BYTES (1 << 20)
#define FL__WINO_FEW_TILES 28
#define FL__WINO_BYTES (8 << 20)
#define FL__WINO_TILES 196

/* True for a convolution between images with `depth` and `o` channels that Winograd's way can do. */
static bool fl__winograd_can(const fl__conv *v, const fl__image *in, const fl__image *out, int64_t depth,
                             int64_t o) {
    return v->size == 4 && v->kh == 3 && v->kw == 3 && v->groups == 1 && v->stride[0] == 1 &&
           v->stride[1] == 1 && v->dilation[0] == 1 && v->dilation[1] == 1 && in->c == 1 &&
           out->c == 1 && depth % v->ks->lanes == 0 && o % (2 * v->ks->lanes) == 0;
}

/* Measured: it pays from 64 channels on if the tiles do not stick out too far, and are many beside
   the channels, whose kernels are transformed at each call. */
static bool fl__winograd_pays(const fl__conv *v, int64_t rows, int64_t cols, int64_t depth, int64_t o) {
    int64_t tiles = v->images * fl__conv_div_up(rows, 4) * fl__conv_div_up(cols, 4);
    bool waste = 10 * tiles > v->images * rows * cols;
    return !waste && depth >= 64 && o >= 64 && tiles >= 64 && 8 * tiles >= fl__conv_max(depth, o);
}

/* Whether to go this way, for a result of rows x cols. */
static bool fl__winograd_wants(const fl__conv *v, const fl__image *in, const fl__image *out,
                               int64_t rows, int64_t cols, int64_t depth, int64_t o) {
    bool wanted = fl__conv_algorithm == FL__CONV_WINOGRAD ||
                  (fl__conv_algorithm == FL__CONV_AUTO && fl__winograd_pays(v, rows, cols, depth, o));
    return wanted && fl__winograd_can(v, in, out, depth, o);
}

/* >>kernels */

/* The kernel transforms of a panel of 2 registers of o: [36][panel][d][width]. Turned, they are
   computed along o; else along d, in blocks of a register that are turned then. */
static void fl__winograd_kernel_task(void *arg, int64_t begin, int64_t end) {
    fl__winograd *p = arg;
    const int64_t lanes = p->v->ks->lanes, width = 2 * lanes, blocks = p->depth / lanes;
    const int64_t step = p->o * p->depth;
    const float *w = (const float *)p->w.data, *from[9];
    float *to[36];
    char *room = fl__room_enter(&p->rooms);
    float *part = (float *)(void *)room; /* [36][width][lanes] */
    for (int64_t task = begin; task < end; task++) {
        int64_t o = task / blocks * width, d = task % blocks * lanes;
        float *kernel = p->kernel + (o * p->depth + d * width);
        for (int64_t r = 0; r < (p->turned ? lanes : width); r++) {
            const float *at = p->turned ? w + (d + r) * p->w.n + o : w + (o + r) * p->w.n + d;
            for (int t = 0; t < 9; t++) {
                int tap = p->turned ? 8 - t : t;
                from[t] = at + tap / 3 * p->w.h + tap % 3 * p->w.w;
            }
            for (int e = 0; e < 36; e++)
                to[e] = p->turned ? kernel + e * step + r * width : part + (e * width + r) * lanes;
            p->transform[FL__WINO_KERNEL](from, to, p->turned ? width : lanes, NULL);
        }
        for (int e = 0; e < 36 && !p->turned; e++)
            p->v->ks->turn(kernel + e * step, width, width, lanes, part + e * width * lanes, lanes, 1);
    }
    fl__room_leave(&p->rooms, room);
}

/* >>images */

/* Where tile t starts: image, row, column of its results. */
static void fl__winograd_tile(const fl__winograd *p, int64_t t, int64_t *n, int64_t *r, int64_t *q) {
    *n = t / (p->across * p->down);
    *r = t / p->across % p->down * 4;
    *q = t % p->across * 4;
}

/* Points at the side x side pixels from row r, column q of an image; outside stands `none`. */
static void fl__winograd_pixels(const fl__image *x, int64_t n, int64_t r, int64_t q, int64_t h,
                                int64_t w, int side, float *none, float **at) {
    float *image = (float *)x->data + n * x->n;
    for (int i = 0; i < side; i++)
        for (int j = 0; j < side; j++) {
            bool inside = r + i >= 0 && r + i < h && q + j >= 0 && q + j < w;
            at[i * side + j] = inside ? image + (r + i) * x->h + (q + j) * x->w : none;
        }
}

/* image[36][tile][d] of a range of the group's tiles. */
static void fl__winograd_image_task(void *arg, int64_t begin, int64_t end) {
    const fl__winograd *p = arg;
    float *from[36], *to[36];
    for (int64_t t = begin; t < end; t++) {
        int64_t n, r, q;
        fl__winograd_tile(p, p->first + t, &n, &r, &q);
        fl__winograd_pixels(&p->in, n, r + p->at_h, q + p->at_w, p->in_h, p->in_w, 6, p->zero, from);
        for (int e = 0; e < 36; e++) to[e] = p->image + e * p->image_step + t * p->depth;
        p->transform[FL__WINO_IMAGE]((const float *const *)from, to, p->depth, NULL);
    }
}

/* out of a range of the group's tiles, from result[36][tile][o]. */
static void fl__winograd_result_task(void *arg, int64_t begin, int64_t end) {
    fl__winograd *p = arg;
    const float *from[36];
    float *to[16];
    char *room = fl__room_enter(&p->rooms);
    float *none = (float *)(void *)room;
    for (int64_t t = begin; t < end; t++) {
        int64_t n, r, q;
        fl__winograd_tile(p, p->first + t, &n, &r, &q);
        fl__winograd_pixels(&p->out, n, r, q, p->rows, p->cols, 4, none, to);
        for (int e = 0; e < 36; e++) from[e] = p->result + e * p->result_step + t * p->o;
        p->transform[FL__WINO_RESULT](from, to, p->o, (const float *)p->bias);
    }
    fl__room_leave(&p->rooms, room);
}

/* >>products */

/* result[e][tile][o] = sum over d of image[e][tile][d] kernel[e][d][o], for a range of (e, panel). */
static void fl__winograd_product_task(void *arg, int64_t begin, int64_t end) {
    const fl__winograd *p = arg;
    const int64_t width = 2 * p->v->ks->lanes, panels = p->o / width, half = p->v->ck.half;
    const int64_t zero = 0;
    for (int64_t task = begin; task < end; task++) {
        int64_t e = task / panels, panel = task % panels;
        const float *image = p->image + e * p->image_step;
        float *result = p->result + e * p->result_step + panel * width;
        fl__conv_tile t = {.segment = &zero, .segments = 1, .k = p->depth, .pixel = p->depth,
                           .w = p->kernel + (e * p->o + panel * width) * p->depth,
                           .ldc = {p->o, p->o}};
        for (int64_t i = 0; i < p->count; i += 2 * half) {
            for (int h = 0; h < 2; h++) {
                t.a[h] = image + (i + h * half) * p->depth;
                t.c[h] = result + (i + h * half) * p->o;
            }
            p->v->ck.tile(&t);
        }
    }
}

/* >>weight gradient: in is x, out is dy; kernel[36][d][o] sums over all tiles */

/* result[36][panel][tile][width]: the transforms of dy. */
static void fl__winograd_grad_task(void *arg, int64_t begin, int64_t end) {
    const fl__winograd *p = arg;
    const int64_t width = 2 * p->v->ks->lanes;
    float *from[16], *to[36];
    for (int64_t t = begin; t < end; t++) {
        int64_t n, r, q;
        fl__winograd_tile(p, p->first + t, &n, &r, &q);
        fl__winograd_pixels(&p->out, n, r, q, p->rows, p->cols, 4, p->zero, from);
        for (int64_t o = 0; o < p->o; o += width) {
            for (int e = 0; e < 36; e++)
                to[e] = p->result + e * p->result_step + o * p->group + t * width;
            p->transform[FL__WINO_GRAD]((const float *const *)from, to, width, NULL);
            for (int i = 0; i < 16; i++) from[i] += width;
        }
    }
}

/* kernel[e][d][o] (+)= sum over tiles of image[e][tile][d] result[e][tile][o], for a range of (e,
   panel). */
static void fl__winograd_sum_task(void *arg, int64_t begin, int64_t end) {
    const fl__winograd *p = arg;
    const fl__kernels *ks = p->v->ks;
    const int64_t width = 2 * ks->lanes, panels = p->o / width;
    const int64_t tiles = fl__conv_div_up(p->depth, ks->rows);
    for (int64_t task = begin; task < end; task++) {
        int64_t e = task / panels, o = task % panels * width;
        const float *image = p->image + e * p->image_step;
        fl__segment segment = {.b = p->result + e * p->result_step + o * p->group};
        fl__tile tile = {.segments = 1, .segment = &segment, .k = p->count, .rsa = 1,
                         .csa = p->depth, .ldb = width, .ldc = p->o, .add = p->first > 0};
        for (int64_t t = 0, i = 0, m; t < tiles; t++, i += m) {
            m = p->depth / tiles + (t < p->depth % tiles);
            segment.a = image + i;
            tile.c = p->kernel + (e * p->depth + i) * p->o + o;
            fl__gemm_tile(ks, (int)m, (int)width, &tile);
        }
    }
}

/* part[tap][d][o] of a range of d. */
static void fl__winograd_part_task(void *arg, int64_t begin, int64_t end) {
    const fl__winograd *p = arg;
    const float *from[36];
    float *to[9];
    for (int64_t d = begin; d < end; d++) {
        for (int e = 0; e < 36; e++) from[e] = p->kernel + (e * p->depth + d) * p->o;
        for (int t = 0; t < 9; t++) to[t] = p->part + (t * p->depth + d) * p->o;
        p->transform[FL__WINO_KERNEL_GRAD](from, to, p->o, NULL);
    }
}

/* >>the whole */

static void fl__winograd_plan(fl__winograd *p) {
    p->transform = fl__winograd_of();
    p->across = fl__conv_div_up(p->cols, 4);
    p->down = fl__conv_div_up(p->rows, 4);
    p->tiles = p->v->images * p->across * p->down;
    const bool few = p->depth + p->o <= FL__WINO_FEW;
    int64_t group = (few ? FL__WINO_FEW_BYTES : FL__WINO_BYTES) / (36 * p->v->size * (p->depth + p->o));
    group = fl__conv_max(few ? FL__WINO_FEW_TILES : FL__WINO_TILES, group);
    int64_t groups = fl__conv_div_up(p->tiles, group);
    int64_t pair = 2 * p->v->ck.half;
    p->group = fl__conv_div_up(fl__conv_div_up(p->tiles, groups), pair) * pair;
    p->image_step = p->group * p->depth + 16; /* not a multiple of a page */
    p->result_step = p->group * p->o + 16;
}

static bool fl__winograd_run(fl__winograd *p, const char *op) {
    const int64_t lanes = p->v->ks->lanes, channels = fl__conv_max(p->depth, p->o);
    fl__winograd_plan(p);
    int64_t kernel = 36 * p->o * p->depth, turned = fl__conv_turned_size(p->v, &p->w);
    int64_t shared = kernel + 36 * (p->image_step + p->result_step) + channels;
    if (!fl__rooms_open(&p->rooms, INT32_MAX, fl__conv_max(72 * lanes * lanes, channels) * p->v->size,
                        (shared + turned) * p->v->size, op))
        return false;
    p->kernel = (float *)p->rooms.more;
    p->image = p->kernel + kernel;
    p->result = p->image + 36 * p->image_step;
    p->zero = p->result + 36 * p->result_step;
    memset(p->zero, 0, (size_t)(channels * 4));
    p->w = fl__conv_turn(p->v, p->w, (char *)(p->zero + channels));
    fl_parallel(p->o / (2 * lanes) * (p->depth / lanes), 4, fl__winograd_kernel_task, p);
    for (p->first = 0; p->first < p->tiles; p->first += p->group) {
        p->count = fl__conv_min(p->group, p->tiles - p->first);
        fl_parallel(p->count, fl__conv_div_up(1 << 10, p->depth), fl__winograd_image_task, p);
        fl_parallel(36 * p->o / (2 * lanes), fl__conv_div_up(1 << 20, p->count * p->depth * lanes),
                    fl__winograd_product_task, p);
        fl_parallel(p->count, fl__conv_div_up(1 << 10, p->o), fl__winograd_result_task, p);
    }
    fl__rooms_close(&p->rooms);
    return true;
}

/* part[tap][d][o] = the weight gradient; the caller made the plan and the rooms. */
static void fl__winograd_weights(fl__winograd *p) {
    const int64_t width = 2 * p->v->ks->lanes;
    for (p->first = 0; p->first < p->tiles; p->first += p->group) {
        p->count = fl__conv_min(p->group, p->tiles - p->first);
        fl_parallel(p->count, fl__conv_div_up(1 << 10, p->depth), fl__winograd_image_task, p);
        fl_parallel(p->count, fl__conv_div_up(1 << 10, p->o), fl__winograd_grad_task, p);
        fl_parallel(36 * p->o / width, fl__conv_div_up(1 << 20, p->count * p->depth * width),
                    fl__winograd_sum_task, p);
    }
    fl_parallel(p->depth, fl__conv_div_up(1 << 12, p->o), fl__winograd_part_task, p);
}
/* MIT licence: see LICENSE. */
