/* llama_loop.c - the plain loop that bench/generate.c compares with: one token at a time through llama2.c's
   file, compiled with -O3 -march=native -ffast-math, on one thread */
#include "llama_loop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct llama_loop {
    int dim, hidden, layers, heads, kv, vocabulary, length;
    float *all, *embed, *norm1, *wq, *wk, *wv, *wo, *norm2, *gate, *down, *up, *norm, *head;
    float *x, *h, *q, *att, *y, *u, *g, *scores, *k, *v;
};

void llama_loop_close(llama_loop *m) {
    if (!m) return;
    free(m->all);
    free(m->x);
    free(m);
}

llama_loop *llama_loop_open(const char *path) {
    int h[7];
    FILE *f = fopen(path, "rb");
    llama_loop *m = calloc(1, sizeof *m);
    if (!f || !m || fread(h, sizeof h, 1, f) != 1) return free(m), NULL;
    m->dim = h[0], m->hidden = h[1], m->layers = h[2], m->heads = h[3], m->kv = h[4],
    m->vocabulary = abs(h[5]);
    m->length = h[6];
    fseek(f, 0, SEEK_END);
    const size_t n = (size_t)ftell(f) / 4 - 7;
    fseek(f, 28, SEEK_SET);
    m->all = malloc(n * 4);
    if (!m->all || fread(m->all, 4, n, f) != n) return fclose(f), llama_loop_close(m), NULL;
    fclose(f);
    const size_t d = (size_t)m->dim, l = (size_t)m->layers, c = d / (size_t)m->heads,
                 rows = c * (size_t)m->kv;
    const size_t hid = (size_t)m->hidden, voc = (size_t)m->vocabulary, len = (size_t)m->length;
    float *p = m->all;
    m->embed = p, p += voc * d;
    m->norm1 = p, p += l * d;
    m->wq = p, p += l * d * d;
    m->wk = p, p += l * rows * d;
    m->wv = p, p += l * rows * d;
    m->wo = p, p += l * d * d;
    m->norm2 = p, p += l * d;
    m->gate = p, p += l * hid * d;
    m->down = p, p += l * d * hid;
    m->up = p, p += l * hid * d;
    m->norm = p, p += d + len * c;
    m->head = h[5] > 0 ? m->embed : p;
    float *w = m->x = calloc(5 * d + 2 * hid + voc + len + 2 * l * len * rows, sizeof *w);
    if (!w) return llama_loop_close(m), NULL;
    m->h = w + d, m->q = w + 2 * d, m->y = w + 3 * d, m->u = w + 5 * d, m->g = m->u + hid;
    m->scores = m->g + hid, m->att = m->scores + voc, m->k = m->att + len, m->v = m->k + l * len * rows;
    return m;
}

int llama_loop_length(const llama_loop *m) { return m->length; }
int llama_loop_vocabulary(const llama_loop *m) { return m->vocabulary; }

static void norm(float *y, const float *x, const float *w, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    const float by = 1 / sqrtf(sum / (float)n + 1e-5f);
    for (int i = 0; i < n; i++) y[i] = x[i] * by * w[i];
}

static void product(float *y, const float *w, const float *x, int rows, int n) {
    for (int r = 0; r < rows; r++) {
        float sum = 0;
        for (int i = 0; i < n; i++) sum += w[(size_t)r * (size_t)n + (size_t)i] * x[i];
        y[r] = sum;
    }
}

static void turn(float *x, int n, int columns, int at) {
    for (int i = 0; i < n; i += 2) {
        const float w = (float)at * powf(10000, -(float)(i % columns) / (float)columns);
        const float c = cosf(w), s = sinf(w), a = x[i], b = x[i + 1];
        x[i] = a * c - b * s, x[i + 1] = a * s + b * c;
    }
}

static void attend(llama_loop *m, int layer, int at) {
    const int c = m->dim / m->heads, rows = c * m->kv;
    const float *k = m->k + (size_t)layer * (size_t)m->length * (size_t)rows;
    const float *v = m->v + (size_t)layer * (size_t)m->length * (size_t)rows, scale = 1 / sqrtf((float)c);
    for (int h = 0; h < m->heads; h++) {
        const int first = h / (m->heads / m->kv) * c;
        float top = -INFINITY, sum = 0, *y = m->h + h * c;
        for (int t = 0; t <= at; t++) {
            float s = 0;
            for (int i = 0; i < c; i++) s += m->q[h * c + i] * k[t * rows + first + i];
            m->att[t] = s * scale;
            if (m->att[t] > top) top = m->att[t];
        }
        for (int t = 0; t <= at; t++) sum += m->att[t] = expf(m->att[t] - top);
        memset(y, 0, (size_t)c * sizeof *y);
        for (int t = 0; t <= at; t++)
            for (int i = 0; i < c; i++) y[i] += m->att[t] / sum * v[t * rows + first + i];
    }
}

const float *llama_loop_step(llama_loop *m, int token, int at) {
    const int d = m->dim, hid = m->hidden, c = d / m->heads, rows = c * m->kv;
    memcpy(m->x, m->embed + (size_t)token * (size_t)d, (size_t)d * sizeof(float));
    for (int l = 0; l < m->layers; l++) {
        const size_t n = (size_t)l;
        float *k = m->k + (n * (size_t)m->length + (size_t)at) * (size_t)rows;
        float *v = m->v + (n * (size_t)m->length + (size_t)at) * (size_t)rows;
        norm(m->h, m->x, m->norm1 + n * (size_t)d, d);
        product(m->q, m->wq + n * (size_t)(d * d), m->h, d, d);
        product(k, m->wk + n * (size_t)(rows * d), m->h, rows, d);
        product(v, m->wv + n * (size_t)(rows * d), m->h, rows, d);
        turn(m->q, d, c, at);
        turn(k, rows, c, at);
        attend(m, l, at);
        product(m->y, m->wo + n * (size_t)(d * d), m->h, d, d);
        for (int i = 0; i < d; i++) m->x[i] += m->y[i];
        norm(m->h, m->x, m->norm2 + n * (size_t)d, d);
        product(m->g, m->gate + n * (size_t)(hid * d), m->h, hid, d);
        product(m->u, m->up + n * (size_t)(hid * d), m->h, hid, d);
        for (int i = 0; i < hid; i++) m->u[i] *= m->g[i] / (1 + expf(-m->g[i]));
        product(m->y, m->down + n * (size_t)(hid * d), m->u, d, hid);
        for (int i = 0; i < d; i++) m->x[i] += m->y[i];
    }
    norm(m->h, m->x, m->norm, d);
    product(m->scores, m->head, m->h, m->vocabulary, d);
    return m->scores;
}
/* MIT licence: see LICENSE. */
