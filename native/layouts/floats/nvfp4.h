// nvfp4: E2M1 floats of NVIDIA's NVFP4, half a byte each, and a float32 scale for each row and 16 k. Of two k of a row the
// first is in the low half. What is decoded is twice the value (a whole number) times 2^24, so that stored scales are
// multiplied with 2^-25.
#pragma once
#include "layouts/scaled_floats.h"
#include "vocabulary.h"

namespace {

constexpr int8_t kE2M1Twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct NvFp4Table {
    uint8_t byte[16];
    constexpr NvFp4Table() : byte() {
        for (int i = 0; i < 16; ++i) byte[i] = static_cast<uint8_t>(kE2M1Twice[i]);
    }
};

struct NvFp4Codes {
    static constexpr int kBytes = 16 * 16 / 2;
    static constexpr NvFp4Table kTable{};

    // The code in the low half of a double word's highest byte; the lower bytes' halves are 0, which stands for 0.
    static VF decode(const uint8_t* codes, int part, int j) {
        const VI pair = i_load_u8(codes + 16 * (j / 2) + kLanes * part);
        return f_from_i(b_lookup(kTable.byte, j % 2 ? i_shl<20>(pair) : i_shl<24>(pair)));
    }
    static void put(uint8_t* codes, int row, int j, uint8_t code) {
        uint8_t& pair = codes[16 * (j / 2) + row];
        pair = static_cast<uint8_t>(pair | (code & 15) << 4 * (j % 2));
    }
    static float value(const uint8_t* codes, int row, int j) {
        const int code = codes[16 * (j / 2) + row] >> 4 * (j % 2) & 15;
        return static_cast<float>(kE2M1Twice[code] * (1 << 24));
    }
};

struct nvfp4 : ScaledFloats<nvfp4, NvFp4Codes, 16> {
    static constexpr const char* kName = "nvfp4";
};

}  // namespace
