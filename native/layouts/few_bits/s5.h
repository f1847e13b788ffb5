// s5: four ternary weights, one of which is 0, in five bits: 1.25 bits a weight.
//
// The four lie 16 k apart: lane p of group i of a chunk of 64 k is k = i + 16 * p. They are as many bits as
// choices: z, which lane is 0, and the signs of the three others. The lowest lane of these takes a, and
//            z = 0         z = 1         z = 2         z = 3
//   a b h    lanes 1 3 2   lanes 0 3 2   lanes 0 1 3   lanes 0 1 2
// so that lanes 0 and 1 follow from the index 4 * z + 2 * a + b, lanes 2 and 3 from 4 * z + 2 * h + b. A table of 16
// entries each gives t + 1. The first index is stored, and a ^ h, which makes it the second.
//
// A step is 8 groups of 64 rows, half of a chunk, in five 64-byte lines; byte 4*r + j belongs to row r of the row
// blocks and to groups j (first) and 4 + j (second) of the step:
//   line g, g = 0..3   bits 7..4: index of the second group of row 16*g + r; bits 3..0: of the first
//   line 4             bit g: a ^ h of the first group of row 16*g + r; bit 4 + g: of the second
#pragma once
#include "layouts/layout.h"
#include "layouts/packing.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

struct SparseTable {
    uint8_t entry[4][16];
};
// entry[p][c]: lane p, plus 1, of index c.
constexpr SparseTable make_sparse_table() {
    SparseTable t{};
    for (int c = 0; c < 16; ++c) {
        const int z = c / 4;
        const auto level = [](bool negative) { return static_cast<uint8_t>(negative ? 0 : 2); };
        const uint8_t upper = level(c & 2), lower = level(c & 1);
        t.entry[0][c] = z == 0 ? 1 : upper;
        t.entry[1][c] = z == 1 ? 1 : z == 0 ? upper : lower;
        t.entry[2][c] = z == 2 ? 1 : upper;
        t.entry[3][c] = z == 3 ? 1 : z == 2 ? upper : lower;
    }
    return t;
}
constexpr SparseTable kSparse = make_sparse_table();

struct s5 : IntegerDot {
    static constexpr const char* kName = "s5";
    static constexpr bool kRowScales = false, kGroupScales = false, kLongGroups = true;
    static constexpr int kRowBlocks = 4, kStepK = 32, kStepBytes = 320;
    static constexpr int kMaxByte = 2, kRunBytes = 2560;
    static constexpr bool kEvenOffset = true;

    // Where the four k of word i of a step begin, for the step that holds k.
    static constexpr int64_t place(int64_t k, int i) {
        return k / 64 * 64 + k % 64 / 4 + 4 * (i / 4) + 16 * (i % 4);
    }
    // The words of row block g of a step, with codes of four k each.
    static void decode_row_block(const uint8_t* step, int part, int g, VI (&w)[8]) {
        const VI line = i_load(step + 64 * g + 4 * kLanes * part);
        const VI others = i_load(step + 256 + 4 * kLanes * part);
        const VI first = b_index(line), second = b_index(i_shr<4>(line));
        const VI bit = i_set1(0x02020202);
        const VI third = i_xor(first, i_and(at_bit_1(others, g), bit));
        const VI fourth = i_xor(second, i_and(at_bit_1(others, 4 + g), bit));
        STERNA_UNROLL(8)
        for (int p = 0; p < 4; ++p) {
            w[p] = b_lookup_at(kSparse.entry[p], p < 2 ? first : third);
            w[4 + p] = b_lookup_at(kSparse.entry[p], p < 2 ? second : fourth);
        }
    }
    static void decode(const uint8_t* step, int part, int j, VI* w) {
        STERNA_UNROLL(8)
        for (int g = 0; g < kRowBlocks; ++g) {
            VI words[8];
            decode_row_block(step, part, g, words);
            w[g] = words[j / 4];
        }
    }
    static void pack(const sterna::PackArgs& a) {
        pack_steps<s5>(a, [](uint8_t* out, const PackBlock<s5>& block, int64_t k) {
            __builtin_memset(out, 0, kStepBytes);
            for (int i = 0; i < 8; ++i)  // group i of the step
                for (int row = 0; row < 64; ++row) {
                    int codes[4];
                    for (int p = 0; p < 4; ++p) {
                        const int64_t at = place(k, 4 * (i / 4) + p);
                        codes[p] = block.at(at)[row] >> 8 * (i % 4) & 255;
                    }
                    const int five = encode(codes), r = row % 16, g = row / 16;
                    out[64 * g + 4 * r + i % 4] |= static_cast<uint8_t>((five & 15) << i / 4 * 4);
                    out[256 + 4 * r + i % 4] |=
                        static_cast<uint8_t>((five >> 4) << (i / 4 * 4 + g));
                }
        });
    }
    // The index of lanes 0 and 1 in four bits, and a ^ h in the fifth.
    static int encode(const int (&codes)[4]) {
        int z = 0;
        while (z < 3 && codes[z] != 1) ++z;
        const auto negative = [&](int lane) { return codes[lane] == 0 ? 1 : 0; };
        const int a = negative(z == 0 ? 1 : 0), b = negative(z < 2 ? 3 : 1);
        const int h = negative(z == 2 ? 3 : 2);
        return 4 * z + 2 * a + b + 16 * (a ^ h);
    }
    static void row(const sterna::RowArgs& a) {
        const int in_tile = static_cast<int>(a.row % kTileRows<s5>), r = in_tile % 16;
        for (int64_t k = 0; k < a.K; ++k) {
            const int i = static_cast<int>(k % 16), p = static_cast<int>(k % 64 / 16);
            const uint8_t* step = step_of<s5>(a, k / 64 * 64) + i / 8 * kStepBytes;
            const int shift = i % 8 / 4 * 4, at = 4 * r + i % 4, g = in_tile / 16;
            int index = step[64 * g + at] >> shift & 15;
            if (p > 1) index ^= (step[256 + at] >> (shift + g) & 1) << 1;
            a.out[k] = kSparse.entry[p][index];
        }
    }

  private:
    // Bit n of every byte, in bit 1; the others are noise.
    static VI at_bit_1(VI v, int n) {
        switch (n) {
            case 0:
                return i_shl<1>(v);
            case 1:
                return v;
            case 2:
                return i_shr<1>(v);
            case 3:
                return i_shr<2>(v);
            case 4:
                return i_shr<3>(v);
            case 5:
                return i_shr<4>(v);
            case 6:
                return i_shr<5>(v);
            default:
                return i_shr<6>(v);
        }
    }
};

}  // namespace
