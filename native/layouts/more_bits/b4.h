// b4: four-bit codes 0..15, in the lines of nibbles.h. A nibble in place, up to 240, may be too great to be multiplied.
#pragma once
#include "layouts/nibbles.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

constexpr bool kNibbleInPlace = kMaxFactor >= 240;
struct b4 : Nibbles<FourBits, kNibbleInPlace> {
    static constexpr const char* kName = "b4";
    static constexpr bool kMinima = true;
    static constexpr int kSuperGroup = 32, kSuperOffset = 0, kSuperBits = 4;
    static constexpr int kMaxByte = kNibbleInPlace ? 240 : 15, kMaxCode = 15;
    static void pack(const sterna::PackArgs& a) { pack_nibbles<b4>(a); }
    static void row(const sterna::RowArgs& a) { row_of_nibbles<b4>(a); }
};

}  // namespace
