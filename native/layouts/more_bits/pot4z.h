// pot4z: powers of two and zero, in the lines of nibbles.h: sign << 3 | m stands for 0 where m is 0, else
// for sign * 2^(m - 1), so that levels reach 64. What is decoded is that plus 64.
#pragma once
#include "layouts/nibbles.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

struct Pot4zCodes {
    static constexpr uint8_t kTable[16] = {64, 65, 66, 68, 72, 80, 96, 128,
                                           64, 63, 62, 60, 56, 48, 32, 0};
    static VI decode(VI low) { return b_lookup(kTable, low); }
    static uint32_t encode(uint32_t nibbles) { return nibbles & 0x0f0f0f0fu; }
    static int value(int nibble) { return kTable[nibble]; }
};

struct pot4z : TableNibbles<Pot4zCodes> {
    static constexpr const char* kName = "pot4z";
    static constexpr int kMaxByte = 128;
    static void pack(const sterna::PackArgs& a) { pack_nibbles<pot4z>(a); }
    static void row(const sterna::RowArgs& a) { row_of_nibbles<pot4z>(a); }
};

}  // namespace
