// fp8: E4M3 floats (sign, four bits of exponent, three of mantissa), a byte each, and a float32 scale for each row and 32 k.
// Shifted to the place of a float32's exponent and mantissa, with its bias of 127, a code is 2^-120 times its value: a
// denormal too. Stored scales are multiplied with 2^120.
#pragma once
#include "layouts/scaled_floats.h"
#include "vocabulary.h"

namespace {

struct Fp8Codes {
    static constexpr int kBytes = 16 * 32;
    static VF decode(const uint8_t* codes, int part, int j) {
        const VI code = i_load_i8(codes + 16 * j + kLanes * part);  // the sign fills bits 31..7
        return f_bits(i_and(i_shl<20>(code), i_set1(static_cast<int32_t>(0x87F00000u))));
    }
    static void put(uint8_t* codes, int row, int j, uint8_t code) { codes[16 * j + row] = code; }
    static float value(const uint8_t* codes, int row, int j) {
        const uint32_t code = codes[16 * j + row];
        const uint32_t bits = (code & 127) << 20 | (code & 128) << 24;
        float value;
        __builtin_memcpy(&value, &bits, 4);
        return value;
    }
};

struct fp8 : ScaledFloats<fp8, Fp8Codes, 32> {
    static constexpr const char* kName = "fp8";
};

}  // namespace
