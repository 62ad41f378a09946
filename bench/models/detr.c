/* detr.c - DETR (arXiv 2005.12872): a ResNet-50 with frozen norms, six encoder and six decoder
   layers of 256, 8 heads, 2048 hidden, 100 queries, 91 classes of objects: 41.52 M parameters.
   Four objects in an image. */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { OBJECTS = 4, MOST_QUERIES = 100 };

static int64_t kinds(const model_preset *p) { return p->tiny ? 8 : 91; }

static int64_t queries(const model_preset *p) { return p->tiny ? 6 : MOST_QUERIES; }

/* ---- layers: positions are added to queries and keys, not to values ---- */

/* Children, the tree's; the encoder has no second attention. */
typedef struct layer {
    fl_nn_module *self, *other, *norm[3], *up, *down, *dropout;
} layer;

static fl_var *norm_sum(const layer *l, int i, fl_var *x, fl_var *branch) {
    return fl_nn_forward(l->norm[i], fv_add(x, fl_nn_forward(l->dropout, branch)));
}

static fl_var *hidden(const layer *l, fl_var *x) {
    fl_var *y = fl_nn_forward(l->up, x);
    return fl_nn_forward(l->down, fl_nn_forward(l->dropout, y ? fv_relu(y) : NULL));
}

/* x, its positions; in the decoder also the image and the image's positions. Gives x. */
static fl_vars layer_forward(fl_nn_module *m, fl_vars in) {
    const layer *l = fl_nn_user(m);
    fl_var *x = in.v[0], *q = fv_add(x, in.v[1]);
    x = norm_sum(l, 0, x, fl_nn_forward_vars(l->self, FL_VARS(q, q, x)).v[0]);
    if (l->other) {
        const fl_vars across = FL_VARS(fv_add(x, in.v[1]), fv_add(in.v[2], in.v[3]), in.v[2]);
        x = norm_sum(l, 2, x, fl_nn_forward_vars(l->other, across).v[0]);
    }
    return FL_VARS(norm_sum(l, 1, x, hidden(l, x)));
}

static fl_nn_module *layer_of(const model_preset *p, int64_t dim, bool decoder) {
    const int64_t heads = 8, wide = p->tiny ? 64 : 2048;
    const double drop = model_drop(p, 0.1);
    layer *l = calloc(1, sizeof *l);
    fl_nn_module *m = fl_nn_function(
        decoder ? "TransformerDecoderLayer" : "TransformerEncoderLayer", layer_forward, l, free);
    l->self = fl_nn_add(m, "self_attn", fl_nn_attention(dim, heads, .dropout = drop));
    if (decoder)
        l->other = fl_nn_add(m, "multihead_attn", fl_nn_attention(dim, heads, .dropout = drop));
    l->up = fl_nn_add(m, "linear1", fl_nn_linear(dim, wide));
    l->down = fl_nn_add(m, "linear2", fl_nn_linear(wide, dim));
    l->dropout = fl_nn_add(m, "dropout", fl_nn_dropout(drop));
    for (int i = 0; i < (decoder ? 3 : 2); i++) {
        char name[16];
        /* the decoder's second norm follows its second attention, and is kept third here */
        snprintf(name, sizeof name, "norm%d", !decoder ? i + 1 : i == 0 ? 1 : i == 1 ? 3 : 2);
        l->norm[i] = fl_nn_add(m, name, fl_nn_layer_norm(FL_SHAPE(dim)));
    }
    return m;
}

/* ---- the network ---- */

typedef struct parts {
    fl_nn_module *body, *project, *encoder, *decoder, *norm, *kind, *box;
    fl_var *query; /* [queries, dim] */
    int64_t dim;
} parts;

/* Sines of the place in x and y, each from 0 to 2 pi over the image: [1, h w, dim], the first half
   of the numbers for y. */
static fl_tensor *places(int64_t h, int64_t w, int64_t dim) {
    const int64_t half = dim / 2;
    float *v = malloc((size_t)(h * w * dim) * sizeof *v);
    for (int64_t i = 0; v && i < h * w * dim; i++) {
        const int64_t k = i % dim, at = i / dim, j = k % half;
        const double place =
            k < half ? (double)(at / w + 1) / (double)h : (double)(at % w + 1) / (double)w;
        const double angle = 2 * acos(-1) * place / pow(10000, (double)(j / 2 * 2) / (double)half);
        v[i] = (float)(j % 2 ? cos(angle) : sin(angle));
    }
    fl_tensor *t = v ? fl_from_host(v, FL_SHAPE(1, h * w, dim), FL_F32) : NULL;
    free(v);
    return t;
}

/* Image -> logits of kinds [n, queries, kinds + 1] and boxes (centre, size) [n, queries, 4]. */
static fl_vars forward(fl_nn_module *m, fl_vars in) {
    static const int channels_last[] = {0, 2, 3, 1};
    const parts *d = fl_nn_user(m);
    fl_var *x = fl_nn_forward(d->project, fl_nn_forward(d->body, in.v[0]));
    x = fv_permute(x, 4, channels_last);
    if (!x) return (fl_vars){0};
    const int64_t n = fv_value(x)->shape[0], h = fv_value(x)->shape[1], w = fv_value(x)->shape[2];
    fl_var *place = fv_const(places(h, w, d->dim));
    x = fv_reshape(x, FL_SHAPE(n, h * w, d->dim));
    for (int64_t i = 0; i < d->encoder->n_child; i++)
        x = fl_nn_forward_vars(d->encoder->child[i], FL_VARS(x, place)).v[0];
    const fl_shape all = FL_SHAPE(n, fv_value(d->query)->shape[0], d->dim);
    fl_var *y = fv_const(fl_zeros(all, FL_F32)), *query = fv_expand(d->query, all);
    for (int64_t i = 0; i < d->decoder->n_child; i++)
        y = fl_nn_forward_vars(d->decoder->child[i], FL_VARS(y, query, x, place)).v[0];
    y = fl_nn_forward(d->norm, y);
    return FL_VARS(fl_nn_forward(d->kind, y), fv_sigmoid(fl_nn_forward(d->box, y)));
}

static fl_nn_module *build(const model_preset *p) {
    const int64_t dim = p->tiny ? 32 : 256;
    parts *d = calloc(1, sizeof *d);
    fl_nn_module *net = fl_nn_function("DETR", forward, d, free);
    fl_scope s = fl_scope_begin();
    d->dim = dim;
    d->query = fl_nn_add_param(net, "query_embed",
                               fv_param(fl_normal(FL_SHAPE(queries(p), dim), 0, 1, FL_F32, NULL)));
    fl_scope_end(&s);
    d->body = fl_nn_add(net, "backbone", model_resnet_body(p, true));
    d->project = fl_nn_add(net, "input_proj", fl_nn_conv2d(model_resnet_channels(p), dim, 1));
    d->encoder = fl_nn_add(net, "encoder", fl_nn_sequential_of(0, NULL));
    d->decoder = fl_nn_add(net, "decoder", fl_nn_sequential_of(0, NULL));
    for (int i = 0; i < (p->tiny ? 1 : 6); i++) {
        fl_nn_add(d->encoder, NULL, layer_of(p, dim, false));
        fl_nn_add(d->decoder, NULL, layer_of(p, dim, true));
    }
    d->norm = fl_nn_add(net, "norm", fl_nn_layer_norm(FL_SHAPE(dim)));
    d->kind = fl_nn_add(net, "class_embed", fl_nn_linear(dim, kinds(p) + 1));
    d->box =
        fl_nn_add(net, "bbox_embed",
                  fl_nn_sequential(fl_nn_linear(dim, dim), fl_nn_relu(), fl_nn_linear(dim, dim),
                                   fl_nn_relu(), fl_nn_linear(dim, 4)));
    return net;
}

/* ---- the loss: each object is matched with a query of its own ---- */

/* Columns of [n, m] costs, n <= m, one for each row, whose sum is least: rows are added one after
   the other along a shortest augmenting path (Kuhn and Munkres, by potentials u and v). */
static void assign(int n, int m, const double *cost, int *column_of) {
    double u[OBJECTS + 1] = {0}, v[MOST_QUERIES + 1] = {0};
    int owner[MOST_QUERIES + 1] = {0}, way[MOST_QUERIES + 1] = {0}; /* columns count from 1 */
    for (int row = 1; row <= n; row++) {
        double least[MOST_QUERIES + 1];
        bool used[MOST_QUERIES + 1] = {false};
        int at = 0;
        for (int j = 0; j <= m; j++) least[j] = INFINITY;
        owner[0] = row;
        while (owner[at]) {
            used[at] = true;
            int next = 0;
            for (int j = 1; j <= m; j++) {
                if (used[j]) continue;
                const double d = cost[(owner[at] - 1) * m + j - 1] - u[owner[at]] - v[j];
                if (d < least[j]) least[j] = d, way[j] = at;
                if (!next || least[j] < least[next]) next = j;
            }
            const double step = least[next];
            for (int j = 0; j <= m; j++) {
                if (used[j])
                    u[owner[j]] += step, v[j] -= step;
                else
                    least[j] -= step;
            }
            at = next;
        }
        for (; at; at = way[at]) owner[at] = owner[way[at]];
    }
    for (int j = 1; j <= m; j++)
        if (owner[j]) column_of[owner[j] - 1] = j - 1;
}

/* Of boxes [..., 4] (centre, size), pair by pair: the generalised intersection over union
   (arXiv 1902.09630). */
static fl_var *giou(fl_var *a, fl_var *b) {
    fl_var *half = fv_num(0.5), *lo[2], *hi[2], *area[2], *box[] = {a, b};
    for (int i = 0; i < 2; i++) {
        fl_var *centre = fv_slice(box[i], -1, 0, 2, 1), *size = fv_slice(box[i], -1, 2, 4, 1);
        lo[i] = fv_sub(centre, fv_mul(size, half));
        hi[i] = fv_add(centre, fv_mul(size, half));
        area[i] = fv_prod(size, FL_AXES(-1));
    }
    fl_var *inner =
        fv_prod(fv_relu(fv_sub(fv_minimum(hi[0], hi[1]), fv_maximum(lo[0], lo[1]))), FL_AXES(-1));
    fl_var *hull = fv_prod(fv_sub(fv_maximum(hi[0], hi[1]), fv_minimum(lo[0], lo[1])), FL_AXES(-1));
    fl_var *both = fv_sub(fv_add(area[0], area[1]), inner);
    return fv_sub(fv_div(inner, both), fv_div(fv_sub(hull, both), hull));
}

/* Costs [n, objects, queries]: 1 for the class, 5 for |box|, 2 for giou. Then the queries of each
   image's objects, i64 [n, objects]. */
static fl_tensor *matched(const model_preset *p, fl_vars y, const model_batch *b) {
    const int64_t n = p->batch, m = queries(p);
    static double cost[OBJECTS * MOST_QUERIES];
    int columns[OBJECTS];
    fl_var *box = fv_unsqueeze(fv_detach(y.v[1]), 1), *want = fv_unsqueeze(fv_const(b->t[2]), 2);
    fl_tensor *share = fl_softmax(fv_value(y.v[0]), -1);
    fl_tensor *kind = fl_expand(fl_unsqueeze(b->t[1], 1), FL_SHAPE(n, m, OBJECTS));
    fl_tensor *of_kind = fl_transpose(fl_gather(share, 2, kind), 1, 2);
    fl_tensor *far = fv_value(fv_sum(fv_abs(fv_sub(box, want)), FL_AXES(-1)));
    fl_tensor *over = fv_value(giou(box, want));
    fl_tensor *all = fl_sub(fl_sub(fl_mul(far, fl_num(5)), fl_mul(over, fl_num(2))), of_kind);
    int64_t *query = malloc((size_t)(n * OBJECTS) * sizeof *query);
    for (int64_t i = 0; query && i < n; i++) {
        fl_tensor *one = fl_cast(fl_contiguous(fl_select(all, 0, i)), FL_F64);
        fl_to_host(one, cost, sizeof *cost * (size_t)(OBJECTS * m));
        assign(OBJECTS, (int)m, cost, columns);
        for (int k = 0; k < OBJECTS; k++) query[i * OBJECTS + k] = columns[k];
    }
    fl_tensor *t = query ? fl_from_host(query, FL_SHAPE(n, OBJECTS), FL_I64) : NULL;
    free(query);
    return t;
}

/* Weighted cross-entropy of the kinds: a query without an object should say so, and counts a
   tenth. */
static fl_var *kind_loss(const model_preset *p, fl_var *logits, fl_tensor *query,
                         const model_batch *b) {
    const int64_t n = p->batch, none = kinds(p);
    fl_tensor *empty = fl_full(FL_SHAPE(n, queries(p)), (double)none, FL_I64);
    fl_tensor *want = fl_reshape(fl_scatter(empty, 1, query, b->t[1]), FL_SHAPE(n * queries(p)));
    fl_tensor *weight = fl_where(fl_eq(want, fl_int(none)), fl_num(0.1), fl_num(1));
    fl_var *each = fv_cross_entropy(fv_reshape(logits, FL_SHAPE(n * queries(p), none + 1)), want,
                                       .reduction = FL_NONE);
    return fv_div(fv_sum(fv_mul(each, fv_const(weight)), FL_ALL_AXES),
                  fv_const(fl_sum(weight, FL_ALL_AXES)));
}

/* The kinds' loss, 5 |box| and 2 (1 - giou) of the matched queries, for each object. */
static fl_var *loss(fl_nn_module *net, const model_preset *p, const model_batch *b) {
    const fl_vars y = fl_nn_forward_vars(net, FL_VARS(fv_const(b->t[0])));
    fl_tensor *query = y.n ? matched(p, y, b) : NULL;
    if (!query) return NULL;
    const fl_shape four = FL_SHAPE(p->batch, OBJECTS, 4);
    fl_var *mine = fv_gather(y.v[1], 1, fl_expand(fl_unsqueeze(query, 2), four));
    fl_var *want = fv_const(b->t[2]), *one = fv_num(1);
    fl_var *far = fv_sum(fv_abs(fv_sub(mine, want)), FL_ALL_AXES);
    fl_var *apart = fv_sum(fv_sub(one, giou(mine, want)), FL_ALL_AXES);
    fl_var *boxes = fv_add(fv_mul(far, fv_num(5)), fv_mul(apart, fv_num(2)));
    return fv_add(kind_loss(p, y.v[0], query, b),
                  fv_div(boxes, fv_num((double)(p->batch * OBJECTS))));
}

static model_batch batch(const model_preset *p) {
    fl_tensor *boxes = model_numbers("boxes", FL_SHAPE(p->batch, OBJECTS, 4));
    return (model_batch){{model_numbers("images", FL_SHAPE(p->batch, 3, p->size, p->size)),
                          model_integers("kinds", FL_SHAPE(p->batch, OBJECTS), 0, kinds(p)),
                          fl_add(fl_mul(boxes, fl_num(0.1)), fl_num(0.4))}};
}

const model model_detr = {
    .name = "detr",
    .parameters = 41524768,
    .preset = {{"cpu", 1, 800, false, false},
               {"paper", 12, 800, false, false},
               {"tiny", 2, 96, true, false}},
    .build = build,
    .batch = batch,
    .loss = loss,
};
