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

// Sixteen independent accumulators keep the dot product's latency hidden.
int64_t peak(int64_t ops) {
    constexpr int kChains = kLanes == 16 ? 16 : 8;
    VI acc[kChains];
    for (auto& a : acc) a = i_set1(0);
    const int8_t bytes[4] = {1, 2, 3, 4};
    VI u = i_set1(0x01020102);
    const VI x = x_broadcast(bytes);
    const int64_t per_round = int64_t{2} * 4 * kLanes * kChains;
    const int64_t rounds = ops / per_round + 1;
    for (int64_t i = 0; i < rounds; ++i) {
        asm volatile("" ::: "memory");
#pragma GCC unroll 16
        for (int c = 0; c < kChains; ++c) acc[c] = dot(acc[c], u, x);
    }
    VI sum = i_set1(0);
    for (auto& a : acc) sum = i_add(sum, a);
    int32_t lanes[kLanes];
    i_store(lanes, sum);
    asm volatile("" ::"r"(lanes[0]) : "memory");
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
