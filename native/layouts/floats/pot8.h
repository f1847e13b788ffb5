// pot8: powers of two for float activations, a byte each: sign << 7 | e with e = 0..31 (E5:P1 of Golzar et
// al., Table 1). A step is one k of 64 rows, one 64-byte line. What is decoded is the float
// sign * 2^(e - 31): its exponent field is 96 + e, put together by one shift and one selection of bits. The
// product with it is exact, with all that IEEE 754 says of infinities, NaN, zeros and denormals.
#pragma once
#include "layouts/layout.h"
#include "layouts/packing.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

// The order that puts the bytes of 16 rows of two steps twice each, the second step's behind the first's.
struct PairTable {
    alignas(64) uint8_t index[kFloatRowBlocks][64];
    constexpr PairTable() : index() {
        for (int f = 0; f < kFloatRowBlocks; ++f)
            for (int i = 0; i < 64; ++i)
                index[f][i] = static_cast<uint8_t>(i % 4 / 2 * 64 + 16 * f + i / 4);
    }
};

struct pot8 : FloatDot<pot8> {
    static constexpr const char* kName = "pot8";
    static constexpr int kPlanes = 1;
    static constexpr bool kBf16Steps = true;
    static constexpr int kStepK = 1, kStepBytes = 64, kSourceBytes = 1;

    static VF decode_row_block(const uint8_t* bytes, int part, int) {
        const VI from_code = i_set1(static_cast<int32_t>(0x8F800000u)), bias = i_set1(96 << 23);
        const VI code = i_load_i8(bytes + kLanes * part);  // the sign fills bits 31..7
        return f_bits(b_select(from_code, i_shl<23>(code), bias));
    }
    // Two steps as bf16, where a float's upper half has all there is: a double word has the first k in its
    // low half. Each code comes twice, so that one shift brings sign and exponent into their places.
    // A template over VI, since b_gather and h_sar are words of a matrix unit: others make no function of it.
    template <class V>
    static void decode_bf16(const uint8_t* step, V* w) {
        static constexpr PairTable kPairs;
        const VI from_code = i_set1(static_cast<int32_t>(0x8F808F80u)), bias = i_set1(0x30003000);
        const V first = i_load(step), second = i_load(step + kStepBytes);
        for (int f = 0; f < kRowBlocks; ++f) {
            const V codes = b_gather(first, second, kPairs.index[f]);
            w[f] = b_select(from_code, h_sar<1>(codes), bias);
        }
    }
    static void pack(const sterna::PackArgs& a) {
        pack_steps<pot8>(a, [](uint8_t* out, const PackBlock<pot8>& block, int64_t k) {
            const uint32_t* fours = block.at(k);
            for (int r = 0; r < kTileRows<pot8>; ++r)
                out[r] = static_cast<uint8_t>(fours[r] >> (8 * (k % 4)));
        });
    }
    static void row(const sterna::RowArgs& a) {
        for (int64_t k = 0; k < a.K; ++k) {
            const uint32_t code = step_of<pot8>(a, k)[a.row % kTileRows<pot8>];
            const uint32_t bits = (code & 128) << 24 | (96 + (code & 31)) << 23;
            __builtin_memcpy(a.out + k, &bits, 4);
        }
    }
};

}  // namespace
