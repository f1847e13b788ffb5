// One kernel unit. CMake compiles this file once per isa/*.h, with the flags named in its first
// line; everything but the one exported function lives in an anonymous namespace.
#include <cstdint>

#include STERNA_ISA_HEADER

#include "attention.h"
#include "kernel_table.h"
#include "linear.h"
#include "rowwise.h"
#include STERNA_FORMATS  // generated: #include "formats/*.h"

namespace {

template <class F>
constexpr sterna::FormatKernels format_kernels() {
    return {F::kName, F::kInteger, F::kStepK, F::kStepBytes, F::linear, F::pack, F::row, F::valid};
}

constexpr sterna::FormatKernels kFormats[] = {
#define STERNA_FORMAT(name) format_kernels<name>(),
    STERNA_FORMAT_LIST
#undef STERNA_FORMAT
};

// Dot products of every pair of kU weights and kX activations, each into its own accumulator, as a
// GEMM does it: enough chains to hide the latency, and no two products alike, or the compiler
// would compute them once.
int64_t peak(int64_t ops) {
    constexpr int kU = 4, kX = kLanes == 16 ? 4 : 2;
    VI acc[kU][kX], u[kU], x[kX];
    const int8_t bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
#pragma GCC unroll 8
    for (int j = 0; j < kX; ++j) x[j] = x_broadcast(bytes + j);
#pragma GCC unroll 8
    for (int i = 0; i < kU; ++i) {
        u[i] = i_set1(0x01020102 << i);
#pragma GCC unroll 8
        for (int j = 0; j < kX; ++j) acc[i][j] = i_set1(0);
    }
    const int64_t per_round = int64_t{2} * 4 * kLanes * kU * kX;
    const int64_t rounds = ops / per_round + 1;
    for (int64_t round = 0; round < rounds; ++round) {
        asm volatile("" : "+m"(u));  // else a round's sum could be multiplied by their number
#pragma GCC unroll 8
        for (int i = 0; i < kU; ++i)
#pragma GCC unroll 8
            for (int j = 0; j < kX; ++j) acc[i][j] = dot(acc[i][j], u[i], x[j]);
    }
    int32_t lanes[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kU; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < kX; ++j) {
            i_store(lanes, acc[i][j]);
            asm volatile("" ::"m"(lanes));
        }
    return rounds * per_round;
}

constexpr sterna::KernelTable kTable = {
    STERNA_ISA_NAME,
    STERNA_ISA_NEEDS,
    STERNA_ISA_RANK,
    kFormats,
    sizeof kFormats / sizeof *kFormats,
    rowwise,
    rope,
    kv_store,
    attention,
    peak,
};

}  // namespace

#define STERNA_JOIN_(a, b) a##b
#define STERNA_JOIN(a, b) STERNA_JOIN_(a, b)
extern "C" const sterna::KernelTable* STERNA_JOIN(sterna_kernels_, STERNA_ISA_SYMBOL)() {
    return &kTable;
}
