// A unit that extends another by products of floats, but for its code layouts (float_layouts.cpp): the other's table has
// all that is left out here (dispatch.cpp). CMake compiles this file as it does kernels.cpp.
#include <cstdint>

#include "linear/bf16_planes.h"
#include "units/kernel_table.h"
#include "units/peak.h"

namespace {

int64_t peak_bf16(int64_t ops) {
    const auto pair = [](int32_t bits) { return f_bits(i_set1(bits)); };
    const VF x[4] = {pair(0x3F003E80), pair(0x3E803E00), pair(0x3E003D80), pair(0x3D803D00)};
    VF w[4] = {pair(0x3F803F80), pair(0x40004000), pair(0x40404040), pair(0x40804080)};
    return peak_of<2 * 2 * kLanes>(ops, w, x, f_set1(0.0f),
                                   [](VF a, VF b, VF c) { return bf16_dot(a, b, c); });
}

constexpr sterna::KernelTable float_table() {
    sterna::KernelTable t = {};
    t.isa = STERNA_ISA_NAME;
    t.extends = STERNA_EXTENDS_NAME;
    t.needs = STERNA_ISA_NEEDS;
    t.rank = STERNA_ISA_RANK;
    t.peak_bf16 = peak_bf16;
    t.to_bf16_planes = to_bf16_planes;
    return t;
}
constexpr sterna::KernelTable kTable = float_table();

}  // namespace

extern "C" const sterna::KernelTable* STERNA_JOIN(sterna_kernels, STERNA_ISA_SYMBOL)() {
    return &kTable;
}
