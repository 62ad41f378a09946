/* test_bf16.c - the tests of bf16.h on any processor with AVX-512: FL_EMULATE_BF16 computes what
   its instructions do

   The files that know them are compiled here once more, and linked instead of the library's. */
#define FL_EMULATE_BF16
#include "../fl.h"

#define FL_IMPL_ONLY
#define FL_IMPL_ONLY_CPU_LEVELS
#define FL_IMPL_ONLY_CPU_GEMM
#define FL_IMPL_ONLY_CPU_GEMM_BF16
#include "../kernels/cpu/gemm.h"
#include "../kernels/cpu/gemm_bf16.h"

#include "bf16.h"

TEST(bf16_level_is_capped) {
    int top = fl__level_cap(FL__AVX512_BF16);
    CHECK(fl__level_has_bf16() == (top == FL__AVX512_BF16));
    CHECK(fl__level() <= FL__AVX512);
    CHECK(fl__level_cap(FL__AVX512) <= FL__AVX512);
    CHECK(!fl__level_has_bf16());
    if (!getenv("FL_CPU_LEVEL")) CHECK((top == FL__AVX512_BF16) == (fl__level() == FL__AVX512));
}

int main(int argc, char **argv) { return test_main(argc, argv); }
