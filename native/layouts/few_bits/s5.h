// s5: four ternary weights, one of which is 0, in five bits: 1.25 bits a weight, looked up in exact tables.
//
// The four lie 16 k apart: lane p of group i of a chunk of 64 k is k = i + 16 * p. They are as many bits as
// choices: z, which lane is 0, and the signs of the three others. Code 4 * z + 2 * b + c has level 1 in the lowest of
// these; b and c say that the next one and the highest differ from it. A sign turns all three.
//
// A block is the 8 groups of half a chunk, of 64 rows, in five 64-byte lines: byte 4*r + j is row 16*j + r;
//   line i, i = 0..3   bits 7..4: code of group 2*i + 1; bits 3..0: of group 2*i
//   line 4             bit i: sign of group i
#pragma once
#include "layouts/layout.h"
#include "layouts/packing.h"
#include "linear/lookup.h"
#include "linear/panel.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// The level of lane p of code c.
constexpr int sparse_level(int c, int p) {
    const int z = c / 4, place = p < z ? p : p - 1;  // among the three others
    if (p == z) return 0;
    return place > 0 && c >> (2 - place) & 1 ? -1 : 1;
}
// The weights of every code, by the sign of their levels; and levels in two bits each, as sum(level * 4^p).
struct SparseEntries {
    alignas(64) uint8_t plus[16][4], minus[16][4];
    uint8_t fields[16];
};
constexpr SparseEntries make_sparse_entries() {
    SparseEntries e{};
    for (int c = 0; c < 16; ++c) {
        int fields = 0;
        for (int p = 3; p >= 0; --p) {
            e.plus[c][p] = sparse_level(c, p) > 0;
            e.minus[c][p] = sparse_level(c, p) < 0;
            fields = 4 * fields + sparse_level(c, p);
        }
        e.fields[c] = static_cast<uint8_t>(fields);
    }
    return e;
}

struct SparseCode {
    static constexpr int kLevels = 3, kWeights = 4, kMaxSum = 3 * 127;
    static constexpr bool kMirrored = true;
    static constexpr SparseEntries kTable = make_sparse_entries();
    // The code of four levels + 1, and 16 where its sign is negative.
    static int encode(const int (&levels)[4]) {
        int z = 0;
        while (z < 3 && levels[z] != 1) ++z;
        const int first = levels[z == 0], next = levels[z < 2 ? 2 : 1],
                  last = levels[z < 3 ? 3 : 2];
        return 4 * z + 2 * (next != first) + (last != first) + 16 * (first == 0);
    }
};

struct SparseBlock {
    using Code = SparseCode;
    static constexpr int kPlanes = 1, kTables = 8, kK = 32, kBytes = 320;
    // Copies 64 activations, the four of a code side by side.
    static void arrange(int8_t* out, const int8_t* x) {
        for (int i = 0; i < 16; ++i)
            for (int p = 0; p < 4; ++p) out[4 * i + p] = x[i + 16 * p];
    }
};

struct s5_layout : IntegerDot {
    static constexpr bool kLookup = true, kLongGroups = true, kEvenOffset = true;
    static constexpr bool kRowScales = false, kGroupScales = false;
    static constexpr int kRowBlocks = 4, kStepK = SparseBlock::kK, kStepBytes = SparseBlock::kBytes;
    using Main = Lookup<SparseBlock, true>;
};

// The form for few tokens: sums of levels, a token at a time (scales/lookup_groups.h).
struct s5_lookup : s5_layout {
    static constexpr int kMaxByte = 1, kDecodedOffsetX2 = 2, kSums = kRowBlocks;
};

struct s5 : s5_layout {
    static constexpr const char* kName = "s5";
    static constexpr int kMaxByte = 2, kDirectTokens = 8;  // a token's lookups; then a panel
    using Direct = s5_lookup;

    // Where lane p of four groups from `group` on begins, for the step that holds k.
    static constexpr int64_t place(int64_t k, int group, int p) {
        return k / 64 * 64 + k % 64 / 4 + group + 16 * p;
    }
    static void decode_tile(const uint8_t* tile, int64_t k0, int64_t kc, uint8_t* out) {
        const uint8_t* step = tile + k0 / kStepK * kStepBytes;
        for (int64_t k = 0; k < kc; k += kStepK, step += kStepBytes) {
            STERNA_UNROLL(8)
            for (int line = 0; line < kStepBytes; line += kLine)
                prefetch(step + kPanelPrefetchBytes + line);
            for (int part = 0; part < kParts; ++part) {
                const uint8_t* from = step + 4 * kLanes * part;
                uint8_t* to = out + panel_at(kc, 0, part, 0);
                const VI signs = i_load(from + 256);
                decode_groups<0>(from, signs, kc, k, to);
                decode_groups<4>(from, signs, kc, k, to);
            }
        }
    }
    static void pack(const sterna::PackArgs& a) {
        pack_steps<s5>(a, [](uint8_t* out, const PackBlock<s5>& block, int64_t k) {
            __builtin_memset(out, 0, kStepBytes);
            for (int i = 0; i < 8; ++i)
                for (int row = 0; row < 64; ++row) {
                    int levels[4];
                    for (int p = 0; p < 4; ++p)
                        levels[p] = block.at(place(k, i / 4 * 4, p))[row] >> 8 * (i % 4) & 255;
                    const int code = SparseCode::encode(levels), at = byte_of(row);
                    out[64 * (i / 2) + at] |= static_cast<uint8_t>((code & 15) << i % 2 * 4);
                    out[256 + at] |= static_cast<uint8_t>((code >> 4) << i);
                }
        });
    }
    static void row(const sterna::RowArgs& a) {
        const int at = byte_of(static_cast<int>(a.row % kTileRows<s5>));
        for (int64_t k = 0; k < a.K; ++k) {
            const int group = static_cast<int>(k % 16), i = group % 8;
            const uint8_t* step = step_of<s5>(a, k / 64 * 64) + group / 8 * kStepBytes;
            const int level = sparse_level(step[64 * (i / 2) + at] >> i % 2 * 4 & 15,
                                           static_cast<int>(k % 64 / 16));
            a.out[k] = static_cast<float>(step[256 + at] >> i & 1 ? 1 - level : 1 + level);
        }
    }

  private:
    static int byte_of(int row) { return 4 * (row % 16) + row / 16; }

    // The levels + 1 of group i, in two bits each; a byte is a row.
    template <int i>
    static VI fields(const uint8_t* step, VI signs) {
        const VI line = i_load(step + 64 * (i / 2)), code = i % 2 ? i_shr<4>(line) : line;
        return b_add(b_negate<i>(b_lookup(SparseCode::kTable.fields, code), signs),
                     i_set1(0x55555555));
    }
    template <int i>
    static void decode_groups(const uint8_t* step, VI signs, int64_t kc, int64_t k, uint8_t* out) {
        VI rows[4];
        turn_bytes({fields<i>(step, signs), fields<i + 1>(step, signs), fields<i + 2>(step, signs),
                    fields<i + 3>(step, signs)},
                   rows);
        const VI low = i_set1(0x03030303);
        STERNA_UNROLL(4)
        for (int g = 0; g < 4; ++g) {
            uint8_t* to = out + panel_at(kc, g, 0, 0);
            i_store(to + panel_at(kc, 0, 0, place(k, i, 0)), i_and(rows[g], low));
            i_store(to + panel_at(kc, 0, 0, place(k, i, 1)), i_and(i_shr<2>(rows[g]), low));
            i_store(to + panel_at(kc, 0, 0, place(k, i, 2)), i_and(i_shr<4>(rows[g]), low));
            i_store(to + panel_at(kc, 0, 0, place(k, i, 3)), i_and(i_shr<6>(rows[g]), low));
        }
    }
};

}  // namespace
