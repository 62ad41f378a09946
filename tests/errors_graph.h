/* tests/errors_graph.h - rows of test_errors.c for fl_graph.h and for takers of calls */

static void rows_of_graphs(void) {
    char text[100];
    fl_graph *g = NULL;
    NO(fl_graph_begin, (NULL), "the graph is NULL");
    NO(fl_graph_end, (NULL), "the graph is NULL");
    NO(fl_graph_replay, (NULL), "the graph is NULL");
    NO(fl_graph_use, (NULL, NULL, 9), "got 9 passes, expected 0 to 8");
    NO(fl_graph_host, (NULL, NULL), "the function is NULL");
    NO(fl_call_run_taken, (NULL, 0), NULLS);
    NO_FILE(fl_graph_list_print, (NULL, stdout), "the list is NULL");
    NO_FILE_AS(fl_graph_print, "fl_graph_list_print", (NULL, NULL), "the file is NULL");
    NO_FILE(fl_graph_call_text, (NULL, text, sizeof text), "the call is NULL");
    ROW(QUIET, "fl_plan_memory", fl_plan_memory(NULL, 1) < 0, "the list of values is NULL");
    FINE(fl_lazy, !fl_lazy(false));
    FINE(fl_eval, fl_eval());
    NO(fl_compile, ((fl_compile_mode)7), "the mode is 7, expected 0 to 2");
    FINE(fl_compile, !fl_compile(FL_COMPILE_NEVER));
    FINE(fl_compile_wait, fl_compile_wait());
    FINE(fl_compile_stats, fl_compile_stats().failed == 0);
    NO_FILE(fl_compile_print, (NULL), "the file is NULL");
    FINE(fl_lazy_calls, fl_lazy_calls().n == 0);
    FINE(fl_take_calls, (fl_take_calls(fl_take_calls(NULL)), true));
    FINE(fl_call_state, (fl_call_state(), true));
    FINE(fl_graph_new, ((g = fl_graph_new()), fl_graph_free(g), g != NULL));
    FINE(fl_graph_free, (fl_graph_free(NULL), true));
    FINE(fl_graph_ready, !fl_graph_ready(NULL));
    FINE(fl_graph_reason, !strcmp(fl_graph_reason(NULL), "the graph is NULL"));
    NO(fl_graph_open, (NULL, NULL), "the graph is NULL");
    NO(fl_graph_save_dot, (NULL, "step.dot"), "the graph is NULL");
    NO(fl_graph_save_c_opt, (NULL, "step.h", (fl_export_opts){.guard_ = {0}}),
       "got the path step.h, expected one that");
    NO(fl_graph_save_onnx_opt, (NULL, "net.onnx", (fl_export_opts){.guard_ = {0}}), "the graph is NULL");
    NO(fl_graph_save_stablehlo_opt, (NULL, "step.mlir", (fl_export_opts){.guard_ = {0}}), "the graph is NULL");
    FINE(fl_graph_calls, fl_graph_calls(NULL).n == 0);
}
/* MIT licence: see LICENSE. */
