// Four-bit codes, two row blocks in every byte: the shared code of four-bit layouts.
//
// A step is 4 consecutive k of 64 rows, two 64-byte lines. Byte 4*r + j of line i, r = 0..15, j = 0..3:
//   bits 7..4          bits 3..0
//   row 32*i + 16 + r  row 32*i + r      at k + j
#pragma once
#include "layouts/layout.h"
#include "layouts/packing.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// `Codes` says what a nibble stands for: decode(bytes, of which the low nibbles count), decode_high(the high ones) and
// encode(four source codes, a byte each). Where it is itself, a high one may stay in place.
template <class Codes, bool kInPlace = false>
struct Nibbles : IntegerDot {
    static constexpr int kRowBlocks = 4, kStepK = 4, kStepBytes = 128;
    static constexpr bool kEvenOffset = true, kHasCodes = true;

    template <bool kStay>
    static void nibbles(const uint8_t* step, int part, VI* w) {
        STERNA_UNROLL(2)
        for (int i = 0; i < 2; ++i) {
            const VI v = i_load(step + 64 * i + 4 * kLanes * part);
            w[2 * i] = Codes::decode(v);
            w[2 * i + 1] =
                kStay ? i_and(v, i_set1(static_cast<int32_t>(0xF0F0F0F0u))) : Codes::decode_high(v);
        }
    }
    static void decode(const uint8_t* step, int part, int, VI* w) {
        nibbles<kInPlace>(step, part, w);
    }
    static void codes(const uint8_t* step, int part, int, VI* w) { nibbles<false>(step, part, w); }
    static VI settle(VI acc, int row_block) {
        return kInPlace && row_block % 2 ? i_sar<4>(acc) : acc;
    }
    static VI in_place(VI sum, int row_block) {
        return kInPlace && row_block % 2 ? i_shl<4>(sum) : sum;
    }

    template <class F>
    static void pack_nibbles(const sterna::PackArgs& a) {
        pack_steps<F>(a, [](uint8_t* out, const PackBlock<F>& block, int64_t k) {
            const uint32_t* codes = block.at(k);
            for (int i = 0; i < 2; ++i)
                for (int r = 0; r < 16; ++r) {
                    const uint32_t low = Codes::encode(codes[32 * i + r]);
                    const uint32_t high = Codes::encode(codes[32 * i + 16 + r]);
                    const uint32_t line = low | high << 4;
                    __builtin_memcpy(out + 64 * i + 4 * r, &line, 4);
                }
        });
    }
    template <class F>
    static void row_of_nibbles(const sterna::RowArgs& a) {
        const int in_tile = static_cast<int>(a.row % kTileRows<F>);
        for (int64_t k = 0; k < a.K; ++k) {
            const uint8_t byte = step_of<F>(a, k)[in_tile / 32 * 64 + 4 * (in_tile % 16) + k % 4];
            a.out[k] = static_cast<float>(Codes::value(byte >> in_tile % 32 / 16 * 4 & 15));
        }
    }
};

// A nibble is a code.
struct FourBits {
    static VI decode(VI low) { return i_and(low, i_set1(0x0F0F0F0F)); }
    static VI decode_high(VI v) { return b_shr<4>(v); }
    static uint32_t encode(uint32_t codes) { return codes & 0x0f0f0f0fu; }
    static int value(int nibble) { return nibble; }
};

// A table of 16 codes, each less an offset, modulo 256.
struct NibbleTable {
    uint8_t byte[16];
    constexpr NibbleTable(const uint8_t (&codes)[16], int offset) : byte() {
        for (int i = 0; i < 16; ++i) byte[i] = static_cast<uint8_t>(codes[i] - offset);
    }
};

// Layouts whose nibbles stand for bytes of a table that are too large for a run of 32 k in int16. Straight from
// the decoder, each of their products is summed in int32.
template <class Codes>
struct TableNibbles : Nibbles<Codes> {
    static constexpr bool kRuns = false;
    static constexpr int kDirectTokens = kFewTokens;
};

}  // namespace
