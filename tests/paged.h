/* tests/paged.h - a memory manager that pages out whatever is not mapped, at every request and after every op

   Between two ops no tensor has memory then, as where a backend defers it: a function that uses a raw address
   without fl_map reads NULL or freed memory. Ops page in the thread of paged_begin, requests in every one. */
#ifndef TESTS_PAGED_H
#define TESTS_PAGED_H
#include "../examples/extend/evictor.h"
#include "../fl_backend.h"
#include "test.h"

static evictor *paged; /* NULL: an ordinary manager */

static inline void page_out_all(void) {
    if (!paged) return;
    pthread_mutex_lock(&paged->lock);
    while (evictor_page_out(paged)) {}
    pthread_mutex_unlock(&paged->lock);
}

static inline bool paged_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    page_out_all();
    return evictor_get(self, b, info);
}

static inline void paged_after(const fl_call *c, void *user) {
    (void)c, (void)user;
    page_out_all();
}

static inline bool paged_begin(void) {
    fl_mem_manager *m = evictor_new(0, test_file("pages"));
    if (!CHECK(m != NULL)) return false;
    m->get = paged_get;
    paged = m->user;
    fl_mem_set_current(m);
    fl_call_hook(NULL, paged_after, NULL);
    return true;
}

static inline void paged_end(void) {
    fl_mem_manager *m = &paged->table;
    fl_call_hook(NULL, NULL, NULL);
    fl_mem_set_current(NULL);
    CHECK(paged->read > 0);
    CHECK_EQ_INT(fl_mem_stats_of(m).in_use, 0);
    fl_mem_close(m);
    paged = NULL;
}

/* t, which is not in memory if the manager pages. */
static inline fl_tensor *away(fl_tensor *t) {
    if (!CHECK(t != NULL)) return NULL;
    fl_sync(NULL); /* deferred calls have made it */
    page_out_all();
    CHECK(!paged || t->buffer->state == FL_EVICTED);
    return t;
}

/* ---- results, compared bit by bit ---- */

typedef struct paged_bytes {
    unsigned char *p;
    size_t n;
} paged_bytes;
static paged_bytes paged_result;

static inline void put_bytes(const void *p, size_t n) {
    paged_result.p = realloc(paged_result.p, paged_result.n + n + 1);
    memcpy(paged_result.p + paged_result.n, p, n);
    paged_result.n += n;
}

static inline void put_number(double v) { put_bytes(&v, sizeof v); }

static inline void put_tensor(fl_tensor *t) {
    page_out_all();
    const size_t n = t ? (size_t)fl_numel(t) * fl_dtype_size(t->dtype) : 0;
    void *p = malloc(n + 1);
    if (!CHECK(t && fl_to_host(t, p, n))) printf("  %s\n", fl_error() ? fl_error() : "no error");
    else put_bytes(p, n);
    fl_error_clear();
    free(p);
}

/* run puts the same bits with the ordinary manager and with this one. */
static inline void same_when_paged(void (*run)(void)) {
    test_errors_return();
    paged_bytes of[2];
    for (int k = 0; k < 2; k++) {
        if (k && !paged_begin()) return;
        paged_result = (paged_bytes){0};
        fl_scope s = fl_scope_begin();
        run();
        fl_scope_end(&s);
        of[k] = paged_result;
        if (k) paged_end();
        CHECK_NO_ERROR();
    }
    CHECK(of[0].n > 0);
    CHECK_EQ_INT(of[0].n, of[1].n);
    CHECK(of[0].n == of[1].n && !memcmp(of[0].p, of[1].p, of[0].n));
    free(of[0].p), free(of[1].p);
}
/* A test whose body runs with both managers. */
#define PAGED(name) \
    static void paged_##name(void); \
    TEST(name) { same_when_paged(paged_##name); } \
    static void paged_##name(void)

#endif /* MIT licence: see LICENSE. */
