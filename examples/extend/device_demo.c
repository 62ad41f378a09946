/* examples/extend/device_demo.c - trains the paper's MNIST network on the device of device.h, and on the cpu

   cc -O2 -I. examples/extend/device_demo.c fl.c -lm -lpthread
   ./a.out [steps]

   Same seed, same drawn digits. The device has kernels for copy, fill, add and mul; other ops run on the cpu,
   with a warning each. The last line says whether the losses agree. */
#include "device.h"

#include "training.h"

enum { BATCH = 4, MAX_STEPS = 1000 };

static bool train(const char *backend, int64_t steps, double *loss) {
    if (!fl_backend_set_default(backend)) return false;
    fl_scope s = fl_scope_begin();
    training_run run;
    bool ok = training_begin(&run, BATCH, 2);
    for (int64_t i = 0; ok && i < steps; i++) ok = training_step(&run, i, &loss[i]);
    training_end(&run);
    fl_scope_end(&s);
    if (ok) printf("%-6s loss %.6f -> %.6f\n", backend, loss[0], loss[steps - 1]);
    return ok;
}

int main(int argc, char **argv) {
    static double cpu[MAX_STEPS], own[MAX_STEPS];
    int64_t steps = training_steps(argc, argv, 3);
    if (steps > MAX_STEPS) steps = MAX_STEPS;
    bool ok = fl_backend_use(fl_backend_device(), NULL) && train("cpu", steps, cpu) &&
              train("device", steps, own);
    if (!ok) return fprintf(stderr, "device_demo: %s\n", fl_error()), 1;
    double worst = 0;
    for (int64_t i = 0; i < steps; i++) worst = fmax(worst, fabs(own[i] - cpu[i]) / cpu[i]);
    ok = worst < 1e-5 && device_bytes_in > 0 && fl_live_tensors() == 0 && fl_mem_live_buffers() == 0;
    printf("%s: losses within %.1e of the cpu's; %lld fallbacks; %.1f MB to the device, %.1f MB back\n",
           ok ? "same training" : "FAILED", worst, (long long)fl_backend_fallbacks(),
           (double)device_bytes_in / 1e6, (double)device_bytes_out / 1e6);
    return !ok;
}
/* MIT licence: see LICENSE. */
