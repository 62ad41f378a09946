/* conformance.c - every public op against reference loops, on any backend

   usage: conformance [backend[@default] [group ...]]     backend: cpu (default), naive, lazy, evictor,
   opencl, or one that is linked in; @default: operands are on the backend, but new tensors on the default

   For each op x dtype x layout it runs shapes from 0-d to 8-d, compares with host loops in f64
   (int64_t for integers) within the tolerance that it prints, and prints the matrix of cases passed
   / run. A combination that the op's class takes and that had no case is a hole, and a failure; `-`
   means that the op does not take the dtype (then an error is what was checked) or that the layout
   makes no sense for it. For ops with an optional slot the same cases run again without the slot,
   on the composition. With SEED in the environment a sample of the cases runs (sample.h), of each
   op x dtype x layout one at least. Groups run in forked processes: a crash costs the rest of its
   group only. The last line is "N passed, N failed". */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../fl_backend.h"
#include "backends.h"
#include "groups.h"
#include "conformance.h"
#include "conformance_elementwise.h"
#include "conformance_move.h"
#include "conformance_moves.h"
#include "conformance_reduce.h"
#include "conformance_order.h"
#include "conformance_reduction.h"
#include "conformance_index.h"
#include "conformance_nets.h"
#include "conformance_recurrent.h"
#include "steps.h"
#include "conformance_neural.h"
#include "conformance_image.h"
#include "conformance_linear.h"
#include "conformance_factor.h"
#include "conformance_fft.h"
#include "conformance_backend.h"
#include <time.h>
#include <unistd.h>
static void run_unary(int i) { unary_group(i); }
static void run_unary_grad(int i) { unary_grad_group(i); }
static void run_binary(int i) { binary_group(i); }
static void run_binary_grad(int i) { binary_grad_group(i); }

static const struct {
    const char *name;
    unsigned layouts;
    move_fn fn;
} moves[] = {
    {"permute", UNWEAK, permute_case}, {"transpose", UNWEAK, permute_case},
    {"reshape", UNWEAK, reshape_case}, {"flatten", UNWEAK, reshape_case},
    {"squeeze", UNWEAK, squeeze_case}, {"unsqueeze", UNWEAK, squeeze_case},
    {"expand", UNWEAK, expand_case},   {"slice", UNWEAK, slice_case},
    {"select", UNWEAK, select_case},   {"copy", UNWEAK, copy_case},
    {"contiguous", UNWEAK, copy_case}, {"to", UNWEAK, copy_case},
    {"cast", UNWEAK, cast_case},       {"assign", UNWEAK, assign_case},
    {"concat", UNWEAK, join_case},     {"stack", UNWEAK, join_case},
    {"set_host", UNWEAK, host_case},
};
enum { MOVES = sizeof moves / sizeof *moves };

static void run_move(int i) {
    each_move(moves[i].name, moves[i].layouts, moves[i].fn);
    if (moves[i].fn == assign_case)
        for (int k = 0; k < DTYPES; k++) write_through("assign", all_dtypes[k]);
}

static void run_create(int i) {
    (void)i;
    create_group();
    arange_group();
}
static void run_steps(int i) {
    (void)i;
    step_words();
    step_records();
    step_group(false);
    step_group(true);
    squares_group();
}

/* What has no argument. */
static const struct {
    const char *name;
    void (*run)(void);
} singles[] = {{"where", where_group},
               {"clip", clip_group},
               {"pairs", pairs_group},
               {"compositions", composition_group},
               {"promotion", promotion_group},
               {"move errors", move_errors},
               {"moves", moves_group},
               {"arg", arg_group},
               {"index", index_group},
               {"reduction", reduction_group},
               {"order", order_group},
               {"composed index", composed_index_group},
               {"nets", nets_group},
               {"cross_entropy", cross_entropy_group},
               {"layers", layers_group},
               {"matmul", matmul_group},
               {"products", linear_group},
               {"factor", factor_group},
               {"conv", conv_group},
               {"image", image_group},
               {"resampling", resampling_group},
               {"random", random_group},
               {"dropout", dropout_group},
               {"hook", hook_group},
               {"fallback", fallback_group},
               {"text", text_group},
               {"gradient overrides", gradient_overrides}};
enum { SINGLES = sizeof singles / sizeof *singles };
static void run_single(int i) { singles[i].run(); }

static group groups[MAX_ROWS];
static int n_groups;
static void add_group(const char *name, void (*run)(int), int arg) {
    groups[n_groups++] = (group){name, run, arg};
}

static void make_groups(void) {
    static const char *const soft[] = {"softmax", "log_softmax", "softmax_grad",
                                       "log_softmax_grad"};
    static const char *const pools[] = {"max_pool2d", "max_pool2d_grad", "avg_pool2d",
                                        "avg_pool2d_grad"};
    for (int i = 0; i < UNARY_FNS; i++) {
        if (!unary_refs[i].op) continue;
        add_group(unary_refs[i].op, run_unary, i);
        add_group(unary_refs[i].op, run_unary_grad, i);
    }
    for (int i = 0; i < BINARY_FNS; i++) {
        if (!binary_refs[i].op) continue;
        add_group(binary_refs[i].op, run_binary, i);
        add_group(binary_refs[i].op, run_binary_grad, i);
    }
    for (int i = 0; i < MOVES; i++) add_group(moves[i].name, run_move, i);
    for (int i = 0; i < MOVINGS; i++) add_group(movings[i].name, run_moving, i);
    add_group("create", run_create, 0);
    for (int i = 0; i < REDUCTIONS; i++) add_group(reductions[i].name, reduce_group, i);
    for (int i = 0; i < 4; i++) add_group(pools[i], pool_group, i);
    for (int i = 0; i < 4; i++) add_group(soft[i], softmax_group, i);
    add_group("layer_norm", norm_group, 0);
    add_group("layer_norm_grad", norm_group, 1);
    add_group("add_layer_norm", add_norm_group, 0);
    add_group("linear", linear_act_group, 0);
    add_group("linear_grad", linear_grad_group, 0);
    add_group("linear_packed", linear_stored_group, 0);
    add_group("rnn", recurrent_group, 0);
    add_group("rnn_grad", recurrent_group, 1);
    add_group("fft", fft_group, 0);
    add_group("step", run_steps, 0);
    for (int i = 0; i < SINGLES; i++) add_group(singles[i].name, run_single, i);
    for (int i = 0; i < N_OWN_OPS; i++) add_group(own_ops[i].name, own_op_group, i);
}

/* >>contains: the compositions at work, and what they run that their `contains` does not name */

static struct {
    fl_op running[32];
    int n;
    char missing[2000];
} compositions;

static void part_begins(const fl_call *c, void *user) {
    const char *name = fl_op_get_info(c->op)->name;
    /* A backend that copies views scatters where others write through one. */
    const bool copies_views = backend_in_use()->make && !backend_in_use()->view;
    const bool scatters = copies_views && (c->op == FL_OP_iota || c->op == FL_OP_scatter_add);
    const bool moves_bits = c->op == FL_OP_copy || c->op == FL_OP_fill || scatters;
    char text[100];
    (void)user;
    for (int i = 0; i < compositions.n && !moves_bits; i++) {
        const fl_op whole = compositions.running[i];
        snprintf(text, sizeof text, " %s of %s;", name, fl_op_get_info(whole)->name);
        const size_t n = strlen(compositions.missing);
        if (whole != c->op && !fl_op_uses(whole, c->op) && !strstr(compositions.missing, text))
            snprintf(compositions.missing + n, sizeof compositions.missing - n, "%s", text);
    }
    const bool composed = fl_op_get_info(c->op)->compose != NULL;
    if (composed && compositions.n < 32) compositions.running[compositions.n++] = c->op;
}

static void part_ends(const fl_call *c, void *user) {
    (void)user;
    compositions.n -= fl_op_get_info(c->op)->compose && compositions.n > 0;
}

/* Groups of several registered ops. */
static bool has_compositions(const group *g) {
    static void (*const of[])(void) = {nets_group, layers_group, conv_group, image_group, resampling_group,
                                       linear_group};
    for (size_t i = 0; g->run == run_single && i < sizeof of / sizeof *of; i++)
        if (singles[g->arg].run == of[i]) return true;
    return false;
}

/* The same cases on the composition, and through replaced parts. */
static void run_without_slot(const group *g) {
    fl_op op = fl_op_by_name(g->name);
    fl_backend mine = *backend_in_use();
    const bool gradient = g->run == run_unary_grad || g->run == run_binary_grad;
    if (gradient || (op != FL_OP_NONE && fl_op_get_info(op)->required)) return;
    for (int part = 1; part < fl_op_count() && op != FL_OP_NONE; part++)
        if (fl_op_uses(op, (fl_op)part) && fl_op_get_info((fl_op)part)->required)
            override_value((fl_op)part, op, g->run, g->arg);
    const int first = op != FL_OP_NONE ? op : FL_TABLE_OPS, end = op != FL_OP_NONE ? op + 1 : fl_op_count();
    if (op != FL_OP_NONE ? !mine.op[op] : !has_compositions(g)) return;
    for (int i = first; i < end; i++) mine.op[i] = NULL;
    fl_backend_use(&mine, NULL);
    composed_run = true;
    g->run(g->arg);
    composed_run = false;
}

static void run_group(const group *g) {
    char text[2100];
    const bool checked = strcmp(g->name, "hook") && strcmp(g->name, "snake");
    if (checked) fl_call_hook(part_begins, part_ends, NULL);
    g->run(g->arg);
    run_without_slot(g);
    if (checked) fl_call_hook(NULL, NULL, NULL);
    snprintf(text, sizeof text, "contains names all that compositions run, but:%s", compositions.missing);
    check(!compositions.missing[0], text);
}

static void run_forked(const group *g) {
    shared->shown = 0;
    snprintf(shared->now, sizeof shared->now, "(start)");
    if (!group_forked(g, run_group, shared->now)) shared->checks.total++;
}

/* >>the matrix */

static bool must_have(const matrix_row *r, fl_dtype d, int l) {
    if (l == REFUSED) return takes(r->refused, d);
    if ((l == WEAK || l == WEAK_RIGHT) && !takes(r->weak, d)) return false;
    return takes(r->dtypes, d) && r->layouts >> l & 1;
}

static int print_row(const matrix_row *r) {
    int holes = 0;
    for (int k = 0; k < DTYPES; k++) {
        fl_dtype d = all_dtypes[k];
        if (!takes(r->dtypes | r->refused, d)) continue;
        printf("%-18s %-4s", r->name, fl_dtype_name(d));
        for (int l = 0; l < LAYOUTS; l++) {
            counts c = r->cell[d][l];
            char text[32] = "-";
            bool hole = must_have(r, d, l) && c.total == 0;
            if (c.total)
                snprintf(text, sizeof text, "%d/%d%s", c.passed, c.total,
                         c.passed < c.total ? "!" : "");
            printf(" %8s", hole ? "HOLE" : text);
            holes += hole;
        }
        printf("\n");
    }
    return holes;
}

static int print_matrix(void) {
    int holes = 0;
    printf("\ncases passed / run on %s\n%-23s", backend_name, "op, dtype");
    for (int l = 0; l < LAYOUTS; l++) printf(" %8s", layout_names[l]);
    printf("\n");
    for (int i = 0; i < shared->n_rows; i++) holes += print_row(&shared->rows[i]);
    printf("\ntolerances (none named: exact)\n");
    for (int i = 0; i < shared->n_rows; i++)
        if (shared->rows[i].tolerance[0])
            printf("%-18s %s\n", shared->rows[i].name, shared->rows[i].tolerance);
    printf("\nthe same cases on the composition, without the op's slot\n");
    for (int i = 0; i < shared->n_rows; i++) {
        const matrix_row *r = &shared->rows[i];
        if (r->composed.total)
            printf("%-18s %d/%d\n", r->name, r->composed.passed, r->composed.total);
    }
    return holes;
}

/* Ops of the tables that have no row, or a class other than the suite thinks. */
static void check_tables(void) {
    char text[100];
    for (int i = 1; i < fl_op_count(); i++) {
        const fl_op_info *info = fl_op_get_info((fl_op)i);
        if (info->arity) continue; /* find_references has said so */
        bool found = i == FL_OP_grad1 || i == FL_OP_grad2; /* rows "<op> dx", "<op> da db" */
        for (int k = 0; k < shared->n_rows; k++) found |= !strcmp(shared->rows[k].name, info->name);
        snprintf(text, sizeof text, "op %s is in the matrix", info->name);
        check(found, text);
    }
    bool same = true;
    for (int i = 0; i < UNARY_OPS; i++)
        same &= !unary_refs[i].op ||
                unary_refs[i].cls == class_letter(fl_op_get_info(fl_op_by_name(unary_fns[i].op))->cls);
    for (int i = 0; i < BINARY_OPS; i++)
        same &= !binary_refs[i].op ||
                binary_refs[i].cls == class_letter(fl_op_get_info(fl_op_by_name(binary_fns[i].op))->cls);
    check(same, "the tables' lines have the classes of the references");
}

int main(int argc, char **argv) {
    time_t start = time(NULL);
    backend_name = argc > 1 ? argv[1] : "cpu";
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 2;
    fl_set_error_handler(quiet_errors, NULL);
    if (!strcmp(backend_name, "--groups")) { /* what may be named behind the backend */
        make_groups();
        for (int i = 0; i < n_groups; i++) puts(groups[i].name);
        return 0;
    }
    if (backend_is_absent(backend_name)) return 0;
    if (!choose_backend(backend_name)) {
        printf("conformance: no backend '%s': %s\n0 passed, 1 failed\n", backend_name, fl_error());
        return 1;
    }
    int ran = 0, absent = find_references(); /* first: what follows is of the ops that have one */
    make_groups();
    for (int i = 0; i < n_groups; i++)
        if (group_wanted(groups[i].name, argc, argv)) run_forked(&groups[i]), ran++;
    bool all = argc <= 2;
    if (all) check_tables();
    int holes = print_matrix();
    int64_t passed = shared->checks.passed,
            failed = shared->checks.total - passed + holes + absent + (ran == 0);
    for (int i = 0; i < shared->n_rows; i++) {
        const matrix_row *r = &shared->rows[i];
        const counts *c = &r->cell[0][0];
        passed += r->composed.passed;
        failed += r->composed.total - r->composed.passed;
        for (int k = 0; k < FL_DTYPE_COUNT * LAYOUTS; k++)
            passed += c[k].passed, failed += c[k].total - c[k].passed;
    }
    if (shared->left_out > 0)
        printf("skipped: cases outside of the sample: SEED=%s\n", getenv("SEED"));
    for (int i = 0; i < shared->n_skipped; i++) printf("skipped: %s\n", shared->skipped[i]);
    printf("%d holes, %d s\n", holes, (int)(time(NULL) - start));
    printf("%lld passed, %lld failed", (long long)passed, (long long)failed);
    if (shared->left_out > 0) printf(", %lld skipped", (long long)shared->left_out);
    printf("\n");
    return failed != 0;
}
/* MIT licence: see LICENSE. */
