/* examples/research/paged_memory.h - keys and values whose memory comes as sequences grow, in two ways

   1. By virtual memory: a memory manager. A buffer of the shape [slots, heads, length, columns], such as a
   decoder's keys or values, is reserved as addresses alone. When a slot grows, pages of one pool (a file in
   memory) are mapped over the first rows of each of its heads, in all such buffers; when it is released they
   return to the pool. Other requests are delegated to the caching manager. Addresses without a page read as
   zeros and cannot be written, but those of a new buffer are the pool, over and over, until its slots are
   released: a decoder fills it. Linux only. One thread grows and releases.

     virtual_memory *v = virtual_memory_new(FL_SHAPE(64, 2, 2048, 64), FL_F32, 48 << 20, 4096);
     fl_mem_set_current(&v->table);
     ... // makes the buffers, for example a decoder of 64 sequences
     fl_mem_set_current(NULL);
     for (int64_t i = 0; i < 64; i++) virtual_memory_release(v, i);
     virtual_memory_grow(v, slot, rows); // before rows of a slot are written; false: the pool is empty
     fl_mem_close(&v->table); // after the last buffer

   2. By blocks of 16 tokens of all layers, a table of them for each slot, and an attention that reads them,
   or that of fl on copies of them. */
#ifndef RESEARCH_PAGED_MEMORY_H
#define RESEARCH_PAGED_MEMORY_H
#ifndef __linux__
#error "paged_memory.h: this system has no memfd_create, expected Linux"
#endif
#include "fl_text.h"
#include "fl.h"
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { VIRTUAL_BUFFERS = 256 };

typedef struct virtual_memory {
    fl_mem_manager table; /* first: the manager is the virtual_memory */
    int file;             /* the pool */
    fl_shape shape;       /* of the buffers */
    int64_t row, head;    /* bytes */
    int64_t page, n_pages, n_free;
    int32_t *next, free;    /* lists of pages, ended by -1 */
    int32_t *first;         /* those of each slot */
    int64_t *n_head;        /* pages of each of a slot's heads */
    int64_t n_buffers;
    char *buffer[VIRTUAL_BUFFERS];
} virtual_memory;

static inline bool virtual_map(virtual_memory *v, char *at, int64_t bytes, int64_t page, bool commits) {
    const int flags = commits ? MAP_SHARED | MAP_POPULATE : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    return mmap(at, (size_t)bytes, commits ? PROT_READ | PROT_WRITE : PROT_READ, flags | MAP_FIXED,
                commits ? v->file : -1, commits ? page * v->page : 0) != MAP_FAILED ||
           fl_fail("virtual_memory: cannot map %lld bytes: more than vm.max_map_count pieces?",
                   (long long)bytes);
}

static inline bool virtual_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    virtual_memory *v = (virtual_memory *)(void *)self;
    const int64_t bytes = (int64_t)b->bytes, pool = v->n_pages * v->page;
    if (!info || info->ndim != 4 || memcmp(info->shape, v->shape.dim, 4 * sizeof *info->shape) ||
        bytes != v->shape.dim[0] * v->shape.dim[1] * v->head)
        return fl_mem_delegate(self, fl_mem_caching(), b, info);
    if (v->n_buffers == VIRTUAL_BUFFERS)
        return fl_fail("virtual_memory: got more than %d buffers", VIRTUAL_BUFFERS);
    char *p = mmap(NULL, b->bytes + FL_ALIGN, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    for (int64_t at = 0; at < bytes; at += pool)
        if (!virtual_map(v, p + at, bytes - at < pool ? bytes - at : pool, 0, true))
            return munmap(p, b->bytes + FL_ALIGN), false;
    b->ptr = v->buffer[v->n_buffers++] = p;
    return true;
}

static inline void virtual_put(fl_mem_manager *self, fl_buffer *b) {
    virtual_memory *v = (virtual_memory *)(void *)self;
    int64_t i = 0;
    while (v->buffer[i] != b->ptr) i++;
    v->buffer[i] = v->buffer[--v->n_buffers];
    munmap(b->ptr, b->bytes + FL_ALIGN);
}

static inline void virtual_close(fl_mem_manager *self) {
    virtual_memory *v = (virtual_memory *)(void *)self;
    close(v->file);
    fl_heap_free(v->next), fl_heap_free(v->first), fl_heap_free(v->n_head), fl_heap_free(v);
}

/* A manager of buffers of that shape, whose pool has `budget` bytes. NULL after fl_fail. */
static inline virtual_memory *virtual_memory_new(fl_shape shape, fl_dtype dtype, int64_t budget,
                                                 int64_t page) {
    const int64_t row = shape.dim[3] * (int64_t)fl_dtype_size(dtype), head = shape.dim[2] * row;
    const size_t slots = (size_t)shape.dim[0], pages = (size_t)(budget / page);
    if (page % sysconf(_SC_PAGESIZE) || head % page || pages < 1 || pages > INT32_MAX)
        return fl_fail("virtual_memory_new: a head of %lld bytes is not of whole pages: got pages of %lld, "
                       "of the system's %ld", (long long)head, (long long)page, sysconf(_SC_PAGESIZE)), NULL;
    virtual_memory *v = fl_heap_alloc(sizeof *v);
    if (!v) return NULL;
    *v = (virtual_memory){.table = {.name = "virtual", .get = virtual_get, .put = virtual_put,
                                    .close = virtual_close},
                          .file = memfd_create("pool", MFD_CLOEXEC), .shape = shape, .row = row,
                          .head = head, .page = page, .n_pages = (int64_t)pages, .n_free = (int64_t)pages};
    v->next = fl_heap_alloc(pages * sizeof *v->next), v->first = fl_heap_alloc(slots * sizeof *v->first);
    v->n_head = fl_heap_alloc(slots * sizeof *v->n_head);
    if (v->next && v->first && v->n_head && v->file >= 0 && !ftruncate(v->file, (off_t)pages * page)) {
        for (int32_t i = 0; i < (int32_t)pages; i++) v->next[i] = i + 1 < (int32_t)pages ? i + 1 : -1;
        for (size_t i = 0; i < slots; i++) v->first[i] = -1;
        return v;
    }
    virtual_close(&v->table);
    return fl_fail("virtual_memory_new: cannot make a pool of %lld bytes", (long long)budget), NULL;
}

/* Pages for the first `rows` rows of all heads of a slot. False, and nothing changes, if the pool has too
   few; false after fl_fail. Pages that are neighbours in the pool are mapped by one call. */
static inline bool virtual_memory_grow(virtual_memory *v, int64_t slot, int64_t rows) {
    const int64_t had = v->n_head[slot], need = (rows * v->row + v->page - 1) / v->page;
    const int64_t heads = v->shape.dim[1];
    if (need <= had) return true;
    if ((need - had) * heads * v->n_buffers > v->n_free) return false;
    v->n_head[slot] = need;
    v->n_free -= (need - had) * heads * v->n_buffers;
    for (int64_t i = 0; i < v->n_buffers * heads; i++) {
        char *head = v->buffer[i / heads] + (slot * heads + i % heads) * v->head;
        for (int64_t k = had, n; k < need; k += n) {
            const int32_t begin = v->free;
            int32_t end = begin;
            for (n = 1; k + n < need && v->next[end] == end + 1; n++) end++;
            v->free = v->next[end], v->next[end] = v->first[slot], v->first[slot] = begin;
            if (!virtual_map(v, head + k * v->page, n * v->page, begin, true)) return false;
        }
    }
    return true;
}

/* Returns a slot's pages to the pool. False after fl_fail. */
static inline bool virtual_memory_release(virtual_memory *v, int64_t slot) {
    const int64_t heads = v->shape.dim[1];
    bool ok = true;
    for (int64_t i = 0; i < v->n_buffers; i++)
        ok &= virtual_map(v, v->buffer[i] + slot * heads * v->head, heads * v->head, 0, false);
    for (int32_t page = v->first[slot], next; page >= 0; page = next, v->n_free++)
        next = v->next[page], v->next[page] = v->free, v->free = page;
    v->first[slot] = -1, v->n_head[slot] = 0;
    return ok;
}

/* ---- blocks ---- */

/* The model's heads of queries and of keys, and what fits its kernel. */
enum { HEADS = 6, KV_HEADS = 2, GROUP = HEADS / KV_HEADS, COLUMNS = 64, BLOCK = 16, LANES = 8 };
enum { WIDTH = (HEADS + 2 * KV_HEADS) * COLUMNS, BLOCK_FLOATS = BLOCK * COLUMNS };

typedef struct blocks {
    fl_nn_module *net; /* of fl_text_lm, as GPT-2 but for the heads */
    int64_t layers, most, bytes; /* most: blocks of a slot; bytes: of a block */
    bool copies;
    fl_tensor *pool;           /* [blocks, layers, 2 KV_HEADS, BLOCK, COLUMNS] */
    int64_t n_blocks, n_free;
    int32_t *free, *table;     /* table: [slots, most] */
    int64_t *n_table, *length; /* of each slot: blocks, tokens */
    double seconds;            /* of attention */
} blocks;

static inline void blocks_free(blocks *b) {
    fl_drop(b->pool);
    fl_heap_free(b->free), fl_heap_free(b->table), fl_heap_free(b->n_table), fl_heap_free(b);
}

/* NULL after fl_fail. */
static inline blocks *blocks_new(fl_nn_module *net, int64_t slots, int64_t budget, bool copies) {
    const fl_text_lm_opts *o = fl_text_lm_info(net, NULL);
    blocks *b = fl_heap_alloc(sizeof *b);
    if (!b) return NULL;
    *b = (blocks){.net = net, .layers = o->layers, .most = (o->context - 1) / BLOCK + 1, .copies = copies};
    b->bytes = b->layers * 2 * KV_HEADS * BLOCK_FLOATS * (int64_t)sizeof(float);
    b->n_blocks = b->n_free = budget / b->bytes;
    b->pool = fl_keep(fl_empty(FL_SHAPE(b->n_blocks, b->layers, 2 * KV_HEADS, BLOCK, COLUMNS), FL_F32));
    b->free = fl_heap_alloc((size_t)b->n_blocks * sizeof *b->free);
    b->table = fl_heap_alloc((size_t)(slots * b->most) * sizeof *b->table);
    b->n_table = fl_heap_alloc((size_t)(2 * slots) * sizeof *b->n_table), b->length = b->n_table + slots;
    for (int32_t i = 0; b->free && i < b->n_blocks; i++) b->free[i] = i;
    if (b->pool && b->free && b->table && b->n_table) return b;
    return blocks_free(b), NULL;
}

/* Blocks for the first `rows` tokens of a slot; false, and nothing changes, if too few are left. */
static inline bool blocks_grow(blocks *b, int64_t slot, int64_t rows) {
    const int64_t need = (rows + BLOCK - 1) / BLOCK;
    if (need - b->n_table[slot] > b->n_free) return false;
    while (b->n_table[slot] < need) b->table[slot * b->most + b->n_table[slot]++] = b->free[--b->n_free];
    return true;
}

static inline void blocks_release(blocks *b, int64_t slot) {
    while (b->n_table[slot]) b->free[b->n_free++] = b->table[slot * b->most + --b->n_table[slot]];
    b->length[slot] = 0;
}

typedef struct block_rows { /* tokens of a step in a layer; those of a slot are neighbours */
    blocks *b;
    int64_t n, layer;
    const int64_t *of;
    int64_t *position;
    const float *qkv; /* [n, HEADS + 2 KV_HEADS, COLUMNS] */
    float *y;         /* [n, HEADS, COLUMNS] */
} block_rows;

/* Keys of a head in block i of a slot, [BLOCK, COLUMNS]; its values: of head KV_HEADS + head. */
static inline float *block_at(const block_rows *r, int64_t slot, int64_t i, int64_t head) {
    const blocks *b = r->b;
    const int64_t at = b->table[slot * b->most + i] * b->layers + r->layer;
    return (float *)fl_data(b->pool) + (at * 2 * KV_HEADS + head) * BLOCK_FLOATS;
}

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));

/* A kernel: tasks are rows and heads of keys; softmax as the blocks come: y = sum exp(score - top) value. */
static inline void block_attend(void *arg, int64_t begin, int64_t end) {
    const block_rows *r = arg;
    for (int64_t task = begin; task < end; task++) {
        const int64_t i = task / KV_HEADS, h = task % KV_HEADS, keys = r->position[i] + 1;
        lanes y[GROUP][COLUMNS / LANES] = {{{0}}};
        float top[GROUP], sum[GROUP] = {0};
        for (int64_t g = 0; g < GROUP; g++) top[g] = -INFINITY;
        for (int64_t at = 0; at < keys; at += BLOCK) {
            const float *k = block_at(r, r->of[i], at / BLOCK, h), *v = k + KV_HEADS * BLOCK_FLOATS;
            const int64_t n = keys - at < BLOCK ? keys - at : BLOCK;
            for (int64_t g = 0; g < GROUP; g++) {
                const lanes *q = (const lanes *)(r->qkv + i * WIDTH + (h * GROUP + g) * COLUMNS);
                float s[BLOCK], most = top[g];
                for (int64_t t = 0; t < n; t++) {
                    const lanes *key = (const lanes *)(k + t * COLUMNS);
                    lanes dot = {0};
                    for (int c = 0; c < COLUMNS / LANES; c++) dot += q[c] * key[c];
                    s[t] = 0;
                    for (int c = 0; c < LANES; c++) s[t] += dot[c];
                    s[t] /= sqrtf(COLUMNS), most = fmaxf(most, s[t]);
                }
                const float before = expf(top[g] - most);
                top[g] = most, sum[g] *= before;
                for (int c = 0; c < COLUMNS / LANES; c++) y[g][c] *= before;
                for (int64_t t = 0; t < n; t++) {
                    const float p = expf(s[t] - most);
                    sum[g] += p;
                    for (int c = 0; c < COLUMNS / LANES; c++)
                        y[g][c] += p * ((const lanes *)(v + t * COLUMNS))[c];
                }
            }
        }
        for (int64_t g = 0; g < GROUP; g++)
            for (int c = 0; c < COLUMNS; c++)
                r->y[(i * HEADS + h * GROUP + g) * COLUMNS + c] = y[g][c / LANES][c % LANES] / sum[g];
    }
}

/* Rows [first, last) of one slot by fl_attention, of copies of its blocks. */
static inline bool block_attend_copies(const block_rows *r, fl_tensor *qkv, int64_t first, int64_t last) {
    const int64_t n = last - first, keys = r->position[last - 1] + 1;
    const int64_t most = (keys + BLOCK - 1) / BLOCK * BLOCK;
    const int64_t q_step[] = {COLUMNS, WIDTH, 1}, k_step[] = {most * COLUMNS, COLUMNS, 1};
    fl_scope s = fl_scope_begin();
    fl_tensor *copy = fl_empty(FL_SHAPE(2 * KV_HEADS, most, COLUMNS), FL_F32);
    for (int64_t h = 0; copy && h < 2 * KV_HEADS; h++)
        for (int64_t at = 0; at < keys; at += BLOCK)
            memcpy((float *)fl_data(copy) + (h * most + at) * COLUMNS,
                   block_at(r, r->of[first], at / BLOCK, h), BLOCK_FLOATS * sizeof(float));
    const fl_shape shape = FL_SHAPE(KV_HEADS, keys, COLUMNS);
    fl_tensor *q = fl_as_strided(qkv, FL_SHAPE(HEADS, n, COLUMNS), q_step, first * WIDTH);
    fl_tensor *k = copy ? fl_as_strided(copy, shape, k_step, 0) : NULL;
    fl_tensor *v = copy ? fl_as_strided(copy, shape, k_step, KV_HEADS * most * COLUMNS) : NULL;
    fl_tensor *y = fl_attention(q, k, v, .causal = true, .offset = keys - n);
    y = fl_contiguous(fl_transpose(y, 0, 1));
    const size_t row = sizeof(float[HEADS * COLUMNS]);
    const bool ok = y && fl_to_host(y, r->y + first * HEADS * COLUMNS, (size_t)n * row);
    fl_scope_end(&s);
    return ok;
}

/* One layer on x [n, dim]; last: of the rows of each slot. NULL after an error. */
static inline fl_var *block_layer(block_rows *r, fl_nn_module *layer, fl_var *x, const int64_t *last,
                                  int64_t n_last) {
    fl_var *qkv = fv_linear(fl_nn_forward(fl_nn_find(layer, "norm1"), x),
                            fl_nn_get_param(layer, "self_attn.in_proj_weight"),
                            fl_nn_get_param(layer, "self_attn.in_proj_bias"));
    fl_tensor *y = fl_empty(FL_SHAPE(r->n, HEADS * COLUMNS), FL_F32);
    if (!qkv || !y) return NULL;
    r->qkv = fl_data(fv_value(qkv)), r->y = fl_data(y);
    for (int64_t i = 0; i < r->n; i++)
        for (int64_t h = 0; h < 2 * KV_HEADS; h++)
            memcpy(block_at(r, r->of[i], r->position[i] / BLOCK, h) + r->position[i] % BLOCK * COLUMNS,
                   r->qkv + i * WIDTH + (HEADS + h) * COLUMNS, COLUMNS * sizeof(float));
    const double begun = fl_data_now();
    if (!r->b->copies) fl_parallel(r->n * KV_HEADS, 1, block_attend, r);
    for (int64_t i = 0; r->b->copies && i < n_last; i++)
        if (!block_attend_copies(r, fv_value(qkv), i ? last[i - 1] + 1 : 0, last[i] + 1)) return NULL;
    r->b->seconds += fl_data_now() - begun;
    x = fv_add(x, fl_nn_forward(fl_nn_find(layer, "self_attn.out_proj"), fv_const(y)));
    fl_var *up = fl_nn_forward(fl_nn_find(layer, "linear1"), fl_nn_forward(fl_nn_find(layer, "norm2"), x));
    return fv_add(x, fl_nn_forward(fl_nn_find(layer, "linear2"), up));
}

#endif /* MIT licence: see LICENSE. */
