/* mkl512.c - preloaded, lets MKL use AVX-512 on processors of other makers, where it stops at AVX2 by itself
   */
int mkl_serv_intel_cpu_true(void);

int mkl_serv_intel_cpu_true(void) {
    return 1;
}
/* MIT licence: see LICENSE. */
