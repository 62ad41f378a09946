/* test_dlpack.c - memory that is shared by DLPack, both ways: who owns it, what is refused */
#include "../fl_all.h"
#include "test.h"

/* Somebody else's array, over 16 floats; `deleted` counts. */
typedef struct foreign {
    fl_dlpack now;
    float data[16];
    int64_t shape[9], stride[9];
} foreign;
static int deleted;

static void foreign_delete(fl_dlpack *self) {
    (void)self;
    deleted++;
}

static fl_dlpack *foreign_of(foreign *f, int ndim, int64_t n, int64_t stride) {
    *f = (foreign){.now = {.major = 1, .deleter = foreign_delete}};
    for (int i = 0; i < 16; i++) f->data[i] = (float)i;
    for (int i = 0; i < ndim; i++) f->shape[i] = n, f->stride[i] = stride;
    f->now.tensor = (fl_dlpack_tensor){.data = f->data, .device = {1, 0}, .ndim = ndim, .type = {2, 32, 1},
                                       .shape = f->shape, .strides = f->stride};
    deleted = 0;
    return &f->now;
}

TEST(there_and_back_is_the_same_memory) {
    fl_tensor *t;
    {
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_reshape(fl_arange(0, 12, 1, FL_F32), FL_SHAPE(3, 4));
        fl_dlpack *d = fl_to_dlpack(fl_transpose(x, 0, 1));
        CHECK(d && d->major == 1 && !d->flags && d->tensor.ndim == 2 && d->tensor.shape[0] == 4);
        CHECK(d->tensor.strides[0] == 1 && d->tensor.strides[1] == 4 && d->tensor.byte_offset == 0);
        const uint32_t version = fl_version_of(x);
        ((float *)d->tensor.data)[4] = 50;
        CHECK_NEAR(fl_item(fl_select(fl_select(x, 0, 1), 0, 0)), 50, 0);
        CHECK(fl_version_of(x) == version);
        t = fl_keep(fl_from_dlpack(d));
        fl_scope_end(&s); /* x goes first */
    }
    fl_scope s = fl_scope_begin();
    CHECK_NEAR(fl_item(fl_sum(t, FL_ALL_AXES)), 66 + 46, 0);
    CHECK(fl_from_dlpack_old(fl_to_dlpack_old(t))->stride[0] == 1);
    fl_scope_end(&s);
    fl_drop(t);
    CHECK(fl_live_tensors() == 0 && test_live_buffers() == 0);
}

TEST(numbers_and_empty_ones) {
    fl_scope s = fl_scope_begin();
    fl_dlpack *d = fl_to_dlpack(fl_num(3));
    CHECK(d->tensor.ndim == 0 && *(float *)d->tensor.data == 3);
    d->deleter(d);
    d = fl_to_dlpack(fl_zeros(FL_SHAPE(2, 0), FL_I64));
    fl_tensor *t = fl_from_dlpack(d);
    CHECK(t && t->dtype == FL_I64 && fl_numel(t) == 0);
    fl_scope_end(&s);
    CHECK(fl_live_tensors() == 0 && test_live_buffers() == 0);
}

TEST(the_deleter_is_called_once) {
    foreign f;
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_from_dlpack(foreign_of(&f, 1, 3, -2));
    CHECK(t == NULL || t->offset == 4); /* the lowest element is where the buffer starts */
    fl_tensor *part = t ? fl_keep(fl_slice(t, 0, 0, 1, 1)) : NULL;
    fl_scope_end(&s);
    CHECK_EQ_INT(deleted, 0);
    fl_drop(part);
    CHECK_EQ_INT(deleted, 1);
    s = fl_scope_begin();
    f.now.deleter = NULL; /* nothing to do */
    CHECK(fl_from_dlpack(&f.now) != NULL);
    fl_scope_end(&s);
}

#define REFUSED(change, text) \
    do { \
        foreign f; \
        fl_dlpack *d = foreign_of(&f, 2, 3, 1); \
        change; \
        CHECK(fl_from_dlpack(d) == NULL); \
        CHECK_ERROR(text); \
        fl_error_clear(); \
        CHECK_EQ_INT(deleted, 0); \
    } while (0)
TEST(what_is_refused_stays_the_callers) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    REFUSED(d->major = 2, "fl_from_dlpack: got DLPack version 2.0, expected 1");
    REFUSED(d->flags = FL_DLPACK_READ_ONLY, "read-only: copy it first");
    REFUSED(d->tensor.device.type = 2, "device 2:0, expected host memory");
    REFUSED(d->tensor.type.code = 5, "no dtype of code 5, 32 bits, 1 lanes");
    REFUSED(d->tensor.type.bits = 24, "no dtype of code 2, 24 bits");
    REFUSED(d->tensor.type.lanes = 2, "32 bits, 2 lanes");
    REFUSED(d->tensor.ndim = 9, "expected 0 to 8 dims with a shape, got 9");
    REFUSED(d->tensor.ndim = -1, "got -1");
    REFUSED(d->tensor.shape = NULL, "expected 0 to 8 dims with a shape, got 2");
    REFUSED(f.shape[1] = -3, "shape [3, -3] is not valid");
    REFUSED(f.shape[0] = f.shape[1] = INT64_C(1) << 40, "is not valid");
    REFUSED(d->tensor.data = NULL, "data is NULL");
    REFUSED(f.stride[0] = INT64_MAX, "the strides are too large");
    REFUSED(f.stride[0] = INT64_MIN / 2, "the strides are too large");
    REFUSED(d->tensor.byte_offset = 2, "not aligned to 4 bytes");
    CHECK(fl_from_dlpack(NULL) == NULL && fl_to_dlpack(NULL) == NULL);
    fl_error_clear();
    CHECK(fl_to_dlpack(fl_cast(fl_zeros(FL_SHAPE(2, 32), FL_F32), fl_q8())) == NULL);
    CHECK_ERROR("fl_to_dlpack: DLPack has no dtype q8");
    fl_error_clear();
    fl_scope_end(&s);
    CHECK(fl_live_tensors() == 0 && test_live_buffers() == 0);
}

/* What is lent out keeps its place: loading weights, which exchanges storage, copies into it. */
TEST(what_is_lent_is_not_exchanged) {
    fl_scope s = fl_scope_begin();
    fl_tensor *a = fl_full(FL_SHAPE(1 << 20), 1, FL_F32), *b = fl_full(FL_SHAPE(1 << 20), 2, FL_F32);
    const void *place = a->buffer->ptr;
    fl_dlpack *loan = fl_to_dlpack(a);
    REQUIRE(loan);
    CHECK(!fl_buffer_swap(a->buffer, b->buffer) && a->buffer->ptr == place);
    loan->deleter(loan);
    CHECK(fl_buffer_swap(a->buffer, b->buffer) && b->buffer->ptr == place);
    CHECK(fl_item(fl_select(a, 0, 5)) == 2 && fl_item(fl_select(b, 0, 5)) == 1);
    fl_scope_end(&s);
    CHECK_EQ_INT(test_live_buffers(), 0);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
