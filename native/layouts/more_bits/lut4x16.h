// lut4x16: lut4 for super-blocks whose groups have 16 k, and for nothing else: of ik_llama.cpp's IQ2_K, IQ3_K and IQ4_K.
#pragma once
#include "layouts/more_bits/lut4.h"
#include "units/kernel_table.h"

namespace {

struct lut4x16 : lut4 {
    static constexpr const char* kName = "lut4x16";
    static constexpr bool kRowScales = false, kGroupScales = false;
    static constexpr int kSuperGroup = 16;
    static void pack(const sterna::PackArgs& a) { pack_nibbles<lut4x16>(a); }
    static void row(const sterna::RowArgs& a) {
        row_of_nibbles<lut4x16>(a);
        look_levels_up(a, kLevelOffset);
    }
};

}  // namespace
