// The kernels in one shared object, for builds with other compilers; single-threaded, and nothing else of
// Sterna is needed. The vocabulary follows from the target's flags. For instance
//
//   g++ -std=c++20 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -fno-tree-pre -shared -fPIC
//       -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
//       -fno-tree-vectorize -fno-tree-slp-vectorize -o kernels.so standalone.cpp
//
// (clang++: -fno-vectorize -fno-slp-vectorize, and no -fno-tree-pre). The baselines that are vectorised by
// the compiler are a second build, with -fopenmp-simd and -DSTERNA_POT_SUFFIX='"-auto"' in place of the
// flags against vectorising. -DSTERNA_POT_ONLY compiles the unrolling factors of a list alone, such as
// '-DSTERNA_POT_ONLY(U)=U(1,4,2) U(4,4,1)'.
//
// -ffp-contract=off belongs to the results: a fused sum would not see a product overflow.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "avx512.h"
#define STERNA_POT_ISA "avx512"
#elif defined(__AVX2__) && defined(__FMA__)
#include "avx2.h"
#define STERNA_POT_ISA "avx2"
#elif defined(__aarch64__)
#include "neon.h"
#define STERNA_POT_ISA "neon"
#elif defined(__riscv_v_intrinsic)
#include "rvv.h"
#define STERNA_POT_ISA "rvv"
#else
#include "scalar.h"
#define STERNA_POT_ISA "scalar"
#endif
#include "plain.h"
#ifdef STERNA_POT_UNROLLS
#include "unit.h"  // rvv.h has loops of its own: its vectors have no size
#endif

namespace {

int kernel_count() { return kTable.count + plain::kTable.count; }

const sterna::pot::Kernel& kernel_at(int index) {
    return index < kTable.count ? kTable.kernels[index]
                                : plain::kTable.kernels[index - kTable.count];
}

bool same(const char* a, const char* b) {
    for (; *a && *a == *b; ++a, ++b) {
    }
    return *a == *b;
}

}  // namespace

extern "C" {

#pragma GCC visibility push(default)

// "avx512", "avx2", "neon", "rvv" or "scalar".
const char* sterna_pot_isa() { return STERNA_POT_ISA; }

// The name of kernel `index`, and its unroll factors; null behind the last.
const char* sterna_pot_kernel(int index, int* unroll) {
    if (index < 0 || index >= kernel_count()) return nullptr;
    for (int i = 0; i < 3; ++i) unroll[i] = kernel_at(index).unroll[i];
    return kernel_at(index).name;
}

// c [N][M] = a [N][K] * b^T as in table.h; b has M rows of the kernel's words. 0, or -1 where there is no
// such kernel. Sizes are not checked: the caller knows its arrays.
int sterna_pot_matmul(const char* kernel, const void* a, const void* b, void* c, int64_t N,
                      int64_t M, int64_t K, int rows_of_a, int rows_of_b, int vectors,
                      int special) {
    for (int index = 0; index < kernel_count(); ++index) {
        const auto& k = kernel_at(index);
        if (!same(kernel, k.name) || k.unroll[0] != rows_of_a || k.unroll[1] != rows_of_b ||
            k.unroll[2] != vectors)
            continue;
        const int64_t words = k.words == Words::kNibbles ? (K + 1) / 2 : K;
        k.run({a, b, c, N, M, K, words, special != 0}, 0, N, 0, M);
        return 0;
    }
    return -1;
}

#pragma GCC visibility pop
}
