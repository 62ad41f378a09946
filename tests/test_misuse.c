/* tests/test_misuse.c - every public function with arguments that are all NULL, 0 or zeroed structs

   misuse_calls.h has the calls: make writes it from the headers (tests/misuse.awk). Each runs in a child
   process and must return within two seconds of CPU time, twenty under a sanitizer. A result that reports a
   failure (NULL, false, a negative number, NaN) must come with the text of an error, except from the
   functions of `answers`.

   program [filter]: the functions whose name contains it. The last line counts functions. */
#define _GNU_SOURCE
#include "../fl_all.h"
#include "../kernels/cpu/bf16.h"
#include "../kernels/cpu/force.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Whether the result of a call reports a failure. */
#define FAILED_POINTER(call) return !(call)
#define FAILED_TRUTH(call) return !(call)
#define FAILED_NUMBER(call) \
    const double result = (double)(call); \
    return isnan(result) || result < 0
#define FAILED_NONE(call) return (void)(call), false
#define MISUSE_CALL(name, kind, call) \
    static bool call_##name(void) { FAILED_##kind(call); }
#pragma GCC diagnostic ignored "-Wformat-extra-args" /* a va_list is there, as it should be */
#include "misuse_calls.h"
#undef MISUSE_CALL

static const struct {
    const char *name;
    bool (*failed)(void);
} functions[] = {
#define MISUSE_CALL(name, kind, call) {#name, call_##name},
#include "misuse_calls.h"
};
enum { N_FUNCTIONS = sizeof functions / sizeof *functions };

/* Their NULL, false or negative number is the answer, not a failure. */
/* tests/test_errors.c has most of them as FINE. */
static const char *const answers[] = {
    /* NULL passes, so that nested calls need one check at the end; or the function returns its argument */
    "fl_keep", "fl_buffer_keep", "fl_scope_escape", "fl_scope_return", "fl_call_into", "fl_out_layout_like",
    "fl_out_order_as", "fl_shape_text", "fl_site_pop", "fl_raise", "fv_keep", "fv_scope_return", "fv_value",
    "fv_grad", "fv_own_grad", "fv_const", "fv_param", "fv_detach", "fv_record", "fv_record_args",
    "fv_record_opt", "fv_record_op", "fl_formula_value", "fl_nn_finish", "fl_nn_finish_with_weights",
    "fl_text_dictionary_or_free", "fl_text_tree_at", "fl_text_tree_string",
    /* no error is pending; no note, op, dtype, module, class ... of that name or number */
    "fl_error", "fl_cpu_bf16_used", "fl_provenance_here", "fl_op_get_info", "fl_op_rng", "fl_dtype_registered",
    "fl_data_inner", "fl_data_class_name", "fl_data_listed_path", "fl_data_find", "fl_data_meta",
    "fl_data_csv_next", "fl_buffer_cache_get", "fl_text_char_byte", "fl_nn_find", "fl_nn_get_param",
    "fl_nn_get_buffer", "fl_nn_user", "fl_nn_dropout_of", "fl_optim_lr", "fl_vision_synset",
    /* it is not so */
    "fl_dtype_is_float", "fl_in_parallel", "fl_is_contiguous", "fl_is_channels_last", "fl_is_dense", "fl_is_async",
    "fl_buffer_is_frozen",
    "fl_buffer_swap", "fl_buffer_claim", "fl_op_uses", "fl_op_grad_uses", "fl_backend_has",
    "fl_is_dropped", "fl_is_freed", "fl_graph_ready", "fv_recomputed", "fv_formula_reads_x",
    "fl_nn_is_sequential",
    "fl_text_tree_true", "fl_text_pipeline_bytes",
    /* the setting before, or a sample */
    "fl_persistent", "fl_backend_strict", "fl_no_grad", "fl_set_recompute", "fl_lazy", "fl_take_calls",
    "fl_speech_mulaw_decode",
    "fl_speech_alaw_decode"};

static bool is_answer(const char *name) {
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (!strcmp(answers[i], name)) return true;
    return false;
}

static void let_return(const char *text, void *user) { (void)text, (void)user; }

enum { RETURNED, SAID_WHY, SAID_NOTHING };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LIMIT = 20 };
#else
enum { LIMIT = 2 }; /* CPU seconds */
#endif

/* The child's status. */
static int run(int i) {
    fflush(NULL);
    const pid_t pid = fork();
    if (!pid) {
        alarm(30 * LIMIT); /* a busy machine may take so long */
        setrlimit(RLIMIT_CPU, &(struct rlimit){LIMIT, LIMIT + 1});
        if (!freopen("/dev/null", "w", stdout)) _exit(99);
        const bool failed = functions[i].failed();
        _exit(!failed ? RETURNED : fl_error() ? SAID_WHY : SAID_NOTHING);
    }
    int status = 0;
    return pid < 0 || waitpid(pid, &status, 0) != pid ? -1 : status;
}

/* What is wrong with it; NULL: nothing. */
static const char *verdict(const char *name, int status) {
    if (WIFSIGNALED(status))
        return WTERMSIG(status) == SIGALRM || WTERMSIG(status) == SIGXCPU ? "did not return in time"
                                                                         : strsignal(WTERMSIG(status));
    switch (WEXITSTATUS(status)) {
    case RETURNED: return NULL;
    case SAID_WHY: return is_answer(name) ? "has an error's text, but is in the list of answers" : NULL;
    case SAID_NOTHING: return is_answer(name) ? NULL : "failed without the text of an error";
    default: return "ended the process";
    }
}

int main(int argc, char **argv) {
    int passed = 0, failed = 0;
    fl_set_error_handler(let_return, NULL);
    for (int i = 0; i < N_FUNCTIONS; i++) {
        if (argc > 1 && !strstr(functions[i].name, argv[1])) continue;
        const char *wrong = verdict(functions[i].name, run(i));
        if (wrong) printf("FAILED %s: %s\n", functions[i].name, wrong), failed++;
        else passed++;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed || !passed;
}
/* MIT licence: see LICENSE. */
