/* test_step_remote.c - records of optimizer steps, run in another process

   A hook writes each record of `step` as bytes: the op's name, its arguments as they lie in memory, and the
   operands. A child, which is this program executed anew and so shares no address with its parent, reads
   them from a pipe, runs the record and sends back what was written: the bits of the step here. */
#include "../fl_all.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *program;

typedef struct head {
    char op[32];
    int32_t n_in, n_out, args;
} head;
typedef struct operand {
    int32_t weak, dtype, ndim, same; /* same: of an output, the input that it is; -1: none */
    int64_t shape[FL_MAX_DIMS], bytes;
    double number; /* of a weak one */
} operand;

/* ---- the child ---- */

static bool read_all(int from, void *p, size_t n) {
    for (size_t at = 0; at < n;) {
        const ssize_t got = read(from, (char *)p + at, n - at);
        if (got <= 0) return false;
        at += (size_t)got;
    }
    return true;
}

static bool write_all(int to, const void *p, size_t n) {
    for (size_t at = 0; at < n;) {
        const ssize_t put = write(to, (const char *)p + at, n - at);
        if (put <= 0) return false;
        at += (size_t)put;
    }
    return true;
}

static fl_tensor *read_operand(fl_tensor *const *in) {
    operand o;
    if (!read_all(0, &o, sizeof o)) return NULL;
    if (o.same >= 0) return in[o.same];
    if (o.weak) return fl_num(o.number);
    fl_shape shape = {.ndim = o.ndim};
    memcpy(shape.dim, o.shape, sizeof o.shape);
    char *bytes = malloc((size_t)o.bytes + 1);
    fl_tensor *t = bytes && read_all(0, bytes, (size_t)o.bytes) ? fl_from_host(bytes, shape, o.dtype) : NULL;
    free(bytes);
    return t;
}

/* Runs the records of standard input; the outputs' bytes go to standard output. */
static int run_records(void) {
    head h;
    _Alignas(16) char args[1 << 12];
    fl_scope s = fl_scope_begin();
    while (read_all(0, &h, sizeof h)) {
        fl_call c;
        if ((size_t)h.args > sizeof args || !read_all(0, args, (size_t)h.args)) return 2;
        fl_call_begin(&c, fl_op_by_name(h.op), h.n_out, h.n_in, args);
        for (int i = 0; i < h.n_in; i++)
            if (!(c.in[i] = read_operand(NULL))) return 3;
        for (int i = 0; i < h.n_out; i++)
            if (!(c.out[i] = read_operand(c.in))) return 4;
        if (!fl_call_run(&c)) return fprintf(stderr, "%s\n", fl_error()), 5;
        for (int i = 0; i < h.n_out; i++) {
            const size_t n = (size_t)fl_numel(c.out[i]) * fl_dtype_size(c.out[i]->dtype);
            char *bytes = malloc(n + 1);
            if (!bytes || !fl_to_host(c.out[i], bytes, n) || !write_all(1, bytes, n)) return 6;
            free(bytes);
        }
    }
    fl_scope_end(&s);
    return 0;
}

/* ---- the parent ---- */

static struct {
    char sent[1 << 16], want[1 << 14];
    size_t n_sent, n_want;
    int records, narrow;
} log_;

static void put(char *to, size_t size, size_t *n, const void *p, size_t bytes) {
    if (bytes > size - *n) test__fail(__FILE__, __LINE__, "room for the records", "");
    else memcpy(to + *n, p, bytes), *n += bytes;
}
static void send(const void *p, size_t bytes) { put(log_.sent, sizeof log_.sent, &log_.n_sent, p, bytes); }

static void send_operand(fl_tensor *t, int same) {
    operand o = {.weak = t->weak, .dtype = (int32_t)t->dtype, .ndim = t->ndim, .same = same};
    if (t->weak) o.number = t->f64;
    else o.bytes = fl_numel(t) * (int64_t)fl_dtype_size(t->dtype);
    for (int i = 0; i < t->ndim; i++) o.shape[i] = t->shape[i];
    send(&o, sizeof o);
    if (same >= 0 || t->weak) return;
    CHECK(fl_is_contiguous(t));
    send(fl_map(t, FL_READ), (size_t)o.bytes);
    fl_unmap(t, FL_READ);
}

static void before(const fl_call *c, void *user) {
    const fl_op_info *info = fl_op_get_info(c->op);
    (void)user;
    if (c->op != fl_op_step) return;
    head h = {.n_in = c->n_in, .n_out = c->n_out, .args = (int32_t)info->args_size};
    snprintf(h.op, sizeof h.op, "%s", info->name);
    send(&h, sizeof h), send(c->args, info->args_size);
    for (int i = 0; i < c->n_in; i++) send_operand(c->in[i], -1);
    for (int i = 0; i < c->n_out; i++) {
        int same = 0;
        while (same < c->n_in && c->in[same] != c->out[i]) same++;
        log_.narrow += same == c->n_in;
        send_operand(c->out[i], same < c->n_in ? same : -1);
    }
    log_.records++;
}

static void after(const fl_call *c, void *user) {
    (void)user;
    for (int i = 0; c->op == fl_op_step && i < c->n_out; i++) {
        fl_tensor *t = c->out[i];
        const size_t n = (size_t)fl_numel(t) * fl_dtype_size(t->dtype);
        put(log_.want, sizeof log_.want, &log_.n_want, fl_map(t, FL_READ), n);
        fl_unmap(t, FL_READ);
    }
}

/* The child's answer to all that was sent, compared with what the steps here wrote. */
static void check_child(void) {
    static char got[sizeof log_.want];
    int in[2], out[2], status = -1;
    REQUIRE(!pipe(in) && !pipe(out));
    fflush(stdout);
    const pid_t child = fork();
    if (!child) {
        dup2(in[0], 0), dup2(out[1], 1);
        for (int i = 0; i < 2; i++) close(in[i]), close(out[i]);
        execl(program, program, "--run-records", (char *)NULL);
        _exit(9);
    }
    REQUIRE(child > 0);
    close(in[0]), close(out[1]);
    /* fewer bytes come back than a pipe holds, so that neither end waits for the other */
    CHECK(write_all(in[1], log_.sent, log_.n_sent));
    close(in[1]);
    CHECK(read_all(out[0], got, log_.n_want) && !memcmp(got, log_.want, log_.n_want));
    CHECK_EQ_INT(read(out[0], got, 1), 0);
    close(out[0]);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK_EQ_INT(WEXITSTATUS(status), 0);
}

/* Steps of a parameter of that dtype by each of these optimizers. */
static void train(int which, fl_dtype dtype) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {7, (uint64_t)which};
    fl_var *p = fv_param(fl_cast(fl_normal(FL_SHAPE(5, 7), 0, 1, FL_F32, &rng), dtype));
    fv_list list = {.v = &p, .n = 1};
    fl_optim *o = which == 0   ? fl_optim_sgd(list, .lr = 0.1, .momentum = 0.9, .nesterov = true)
                  : which == 1 ? fl_optim_adamw(list, .lr = 0.01, .master = dtype == FL_BF16)
                               : fl_optim_rmsprop(list, .lr = 0.02);
    REQUIRE(p && o);
    for (int i = 0; i < 3; i++) {
        CHECK(fv_set_grad(p, fv_const(fl_cast(fl_normal(FL_SHAPE(5, 7), 0, 1, FL_F32, &rng), dtype))));
        fl_call_hook(before, after, NULL);
        CHECK(fl_optim_step(o));
        fl_call_hook(NULL, NULL, NULL);
    }
    fl_optim_free(o);
    fl_scope_end(&s);
}

TEST(a_step_runs_in_another_process) {
    test_errors_return();
    memset(&log_, 0, sizeof log_);
    for (int which = 0; which < 3; which++) train(which, FL_F32), train(which, FL_F64);
    train(1, FL_BF16); /* with an f32 master, and the parameter as its narrow output */
    CHECK(log_.records == 21 && log_.narrow == 3);
    printf("%d records of %d bytes\n", log_.records, (int)log_.n_sent);
    check_child();
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) {
    program = argv[0];
    if (argc == 2 && !strcmp(argv[1], "--run-records")) return run_records();
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
