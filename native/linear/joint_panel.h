// Ternary layers of many tokens by two kinds of instructions at once: dot products, and lookups of words in tables of
// sums. Where both have ports of their own (Zen 4), a core is past the peak of its dot products; the sums are the same
// whole numbers. Of each 28 k, a group, 16 are multiplied, and 12 are looked up, three at a time:
//
//   x of four tokens                           codes of four row blocks, in a panel (decode_panel)
//     | make_lines                               | index_codes, in place
//   [step][token] a line: the sums of three      [row block][group] seven lines: four as they were, and
//   x by all 27 codes, in int16, and behind      two of indices 0..26, of two row blocks side by side
//   them the four x that are multiplied            |
//     |______________________________ add_joint ___|  a step: 7 k of 4 tokens x 4 row blocks
//                                        |
//        sum[token][row block] += four products     int32, in registers
//        pairs[token][half]    += line[index]       int16, in registers: rows of two row blocks
//                                        |
//   [panel][four tokens][token][row block] int32: sums over blocks of k, which become outputs (finish)
//
// The order keeps in L2 what is read again: for some rows (kJointRows) and tokens, and for as many blocks of k as lines
// fit for, all lines are made, and each panel meets all of them.
#pragma once
#include "layouts/layout.h"
#include "linear/linear.h"
#include "linear/panel.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// Whether the unit has what joint layers take, and the format may hold ternary weights, whose codes are 0..2.
template <class F>
constexpr bool kJoint = [] {
    if constexpr (!F::kInteger)
        return false;
    else
        return requires(typename F::Acc v) { w_lookup(v, v); } && F::kTwoBits;
}();

constexpr int kFour = 4;  // tokens, and row blocks, whose sums stay in registers
constexpr int kSteps = 4, kGroupLines = 7;  // of a group: steps, and lines of codes
constexpr int64_t kJointGroup = 4 * kGroupLines, kJointBlock = 8 * kJointGroup;  // k
static_assert(kJointBlock / 7 * (3 * 2 * 127) <= 32767);  // a block's sums of pairs
constexpr int64_t kStepLines = kFour * kLine;
constexpr int64_t kBlockLines = kJointBlock / 7 * kStepLines;  // of four tokens
constexpr int64_t kPanelStride = kJointBlock * 16, kJointPanel = kFour * kPanelStride;
constexpr int64_t kLinesAhead = 2048;
constexpr int kXAt = 56;  // of a line: where the step's x are, behind the 27 sums
constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int kFourSums = kFour * kFour * 16;
// The most tokens whose lines are made together, and bytes of lines: a part of the core's own cache.
constexpr int kJointTokens = 128;
constexpr int64_t kLineBytes = int64_t{256} << 10;

// The codes that an entry of a line stands for, as the bytes of a dot product: entry 2 * lane, and the next.
struct EntryCodes {
    uint8_t even[16][4], odd[16][4];
};
constexpr EntryCodes make_entry_codes() {
    EntryCodes c{};
    for (int lane = 0; lane < 16; ++lane)
        for (int i = 0, rest = 2 * lane, next = rest + 1; i < 3; ++i, rest /= 3, next /= 3) {
            c.even[lane][i] = static_cast<uint8_t>(rest % 3);
            c.odd[lane][i] = static_cast<uint8_t>(next % 3);
        }
    return c;
}
constexpr EntryCodes kEntryCodes = make_entry_codes();

// Makes one token's lines of a group, kStepLines apart, from its 28 x.
inline void make_lines(const int8_t* x, uint8_t* out) {
    const int8_t fourth[4] = {x[19], x[23], x[27], 0};
    const VI even = i_load(kEntryCodes.even), odd = i_load(kEntryCodes.odd), zero = i_set1(0);
    STERNA_UNROLL(4)
    for (int s = 0; s < kSteps; ++s, out += kStepLines) {
        prefetch(out + kLinesAhead);  // they are written in order, but come from L2
        const VX three = x_load(s < 3 ? x + 16 + 4 * s : fourth);  // codes of the fourth byte are 0
        i_store(out,
                b_select(i_set1(0xFFFF), dot(zero, even, three), i_shl<16>(dot(zero, odd, three))));
        __builtin_memcpy(out + kXAt, x + 4 * s, 4);
    }
}
// Makes the lines of `count` tokens, in fours, for k in [k0, k1), block by block.
[[gnu::noinline]] inline void make_all_lines(const sterna::LinearArgs& a, int64_t n0, int count,
                                             int64_t k0, int64_t k1, uint8_t* out) {
    for (; k0 < k1; k0 += kJointBlock)
        for (int n = 0; n < count; n += kFour, out += kBlockLines) {
            const int64_t end = least(k1, k0 + kJointBlock);
            for (int i = 0; i < kFour; ++i) {
                const int8_t* const x = a.xq + (n0 + n + i) * a.ldx;
                for (int64_t k = k0; k < end; k += kLine) prefetch(x + kFour * a.ldx + k);
                uint8_t* to = out + i * kLine;
                for (int64_t k = k0; k < end; k += kJointGroup, to += kSteps * kStepLines) {
                    if (n + i < count && k + kJointGroup <= a.K) {
                        make_lines(x + k, to);
                        continue;
                    }
                    int8_t part[kJointGroup] = {};
                    for (int64_t j = 0; n + i < count && j < a.K - k; ++j) part[j] = x[k + j];
                    make_lines(part, to);
                }
            }
        }
}

// Turns the last three lines of each group of a panel into indices of its four steps.
[[gnu::noinline]] inline void index_codes(uint8_t* at, int64_t groups) {
    for (; groups > 0; --groups, at += kGroupLines * kLine) {
        VI index[kFour][kSteps];
        STERNA_UNROLL(4)
        for (int g = 0; g < kFour; ++g) {
            VI fourth = i_set1(0);
            STERNA_UNROLL(4)
            for (int s = 0; s < 3; ++s) {
                const VI codes = i_load(at + g * kPanelStride + (4 + s) * kLine);
                constexpr int kPlaces[3] = {1, 3, 9};
                index[g][s] = dot(i_set1(0), codes, i_set1(0x090301));
                fourth = dot(fourth, codes, i_set1(kPlaces[s] << 24));
            }
            index[g][3] = fourth;
        }
        STERNA_UNROLL(4)
        for (int s = 0; s < kSteps; ++s) {
            STERNA_UNROLL(2)
            for (int half = 0; half < 2; ++half)
                i_store(at + (2 * half + s % 2) * kPanelStride + (4 + s / 2) * kLine,
                        i_or(index[2 * half][s], i_shl<16>(index[2 * half + 1][s])));
        }
    }
}

// Adds `groups` of a panel and of the lines of four tokens to their sums.
template <class V>
[[gnu::noinline]] void add_joint(const uint8_t* at, const uint8_t* lines, int64_t groups,
                                 int32_t* sums) {
    V sum[kFour][kFour], pairs[kFour][2];
    STERNA_UNROLL(4)
    for (int n = 0; n < kFour; ++n) {
        STERNA_UNROLL(4)
        for (int g = 0; g < kFour; ++g) sum[n][g] = i_load(sums + (kFour * n + g) * 16);
        pairs[n][0] = pairs[n][1] = i_set1(0);
    }
    for (; groups > 0; --groups, at += kGroupLines * kLine) {
        STERNA_UNROLL(4)
        for (int s = 0; s < kSteps; ++s, lines += kStepLines) {
            V w[kFour], index[2];
            STERNA_UNROLL(4)
            for (int g = 0; g < kFour; ++g) w[g] = i_load(at + g * kPanelStride + s * kLine);
            STERNA_UNROLL(2)
            for (int half = 0; half < 2; ++half)
                index[half] = i_load(at + (2 * half + s % 2) * kPanelStride + (4 + s / 2) * kLine);
            STERNA_UNROLL(4)
            for (int n = 0; n < kFour; ++n)
                dot_and_lookup(lines + n * kLine, lines + n * kLine + kXAt, w, index, sum[n],
                               pairs[n]);
        }
    }
    STERNA_UNROLL(4)
    for (int n = 0; n < kFour; ++n) {
        STERNA_UNROLL(4)
        for (int g = 0; g < kFour; ++g) {
            const V pair = pairs[n][g / 2];
            prefetch(sums + kFourSums + (kFour * n + g) * 16);
            i_store(sums + (kFour * n + g) * 16,
                    i_add(sum[n][g], i_sar<16>(g % 2 ? pair : i_shl<16>(pair))));
        }
    }
}

// The tiles whose row blocks are whole fours.
template <class F>
constexpr int kTilesOfPanels = F::kRowBlocks % kFour == 0 ? 1 : kFour;
template <class F>
constexpr int kJointPanels = kTilesOfPanels<F> * F::kRowBlocks / kFour;
template <class F>
constexpr int kJointTiles = sterna::kJointRows / kTileRows<F>;

// A part of a layer: some tiles and tokens.
template <class F>
struct JointPart {
    const sterna::LinearArgs& a;
    int64_t tile;
    int tiles;
    int64_t n0;
    int count;

    int fours() const { return (count + 3) / 4; }
    int row_blocks() const { return tiles * F::kRowBlocks; }
    int panels() const { return (row_blocks() + kFour - 1) / kFour; }
    uint8_t* lines() const { return a.scratch; }
    int32_t* sums() const { return reinterpret_cast<int32_t*>(a.scratch + kLineBytes); }
    int32_t* sums(int64_t panel, int four) const {
        return sums() + (panel * fours() + four) * kFourSums;
    }

    // Adds the blocks [k0, k1), for which there are lines.
    void add(int64_t k0, int64_t k1) const {
        uint8_t* const panel =
            reinterpret_cast<uint8_t*>(sums(kJointTiles<F> * F::kRowBlocks / kFour, 0));
        for (int i = 0; i < tiles; i += kTilesOfPanels<F>) {
            const uint8_t* line = lines();
            const int here = static_cast<int>(least(kTilesOfPanels<F>, tiles - i));
            const int first = i * F::kRowBlocks / kFour;
            for (int64_t k = k0; k < k1; k += kJointBlock) {
                const int64_t groups = decode(tile + i, here, k, panel);
                const bool last = k + kJointBlock >= k1;
                const NextBlock next(*this, last ? tile + i + kTilesOfPanels<F> : tile + i,
                                     last ? k0 : k + kJointBlock);
                const int blocks =
                    static_cast<int>(least(kJointPanels<F>, panels() - first)) * fours();
                for (int at = 0; at < blocks; ++at) {
                    const int p = at / fours(), four = at % fours();
                    next.ask(at, blocks);
                    add_joint<VI>(panel + p * kJointPanel, line + four * kBlockLines, groups,
                                  sums(first + p, four));
                }
                line += fours() * kBlockLines;
            }
        }
    }
    // The codes that are decoded next. They are asked for in parts, between the products of this block: all at once they
    // would take a core's buffers for misses, and it would wait.
    struct NextBlock {
        const uint8_t* codes;
        int64_t lines, tiles, stride;

        NextBlock(const JointPart& part, int64_t from, int64_t k)
            : codes(part.a.codes + from * part.a.tile_bytes + bytes_before<F>(k)),
              tiles(least(part.tile + part.tiles - from, kTilesOfPanels<F>)),
              stride(part.a.tile_bytes) {
            const int64_t end = least(part.a.K, k + kJointBlock);
            const int64_t bytes = bytes_before<F>(end) - bytes_before<F>(k);
            lines = (bytes + kLine - 1) / kLine;
        }
        void ask(int part, int parts) const {
            for (int64_t t = 0; t < tiles; ++t)
                for (int64_t i = lines * part / parts; i < lines * (part + 1) / parts; ++i)
                    prefetch_l2(codes + t * stride + i * kLine);
        }
    };
    // Decodes a block of a few tiles; returns its groups. What is no code meets x that are 0.
    int64_t decode(int64_t from, int here, int64_t k, uint8_t* panel) const {
        const int64_t kc = least(kJointBlock, a.K - k);
        const int64_t groups = (kc + kJointGroup - 1) / kJointGroup;
        for (int i = 0; i < here; ++i)
            decode_panel<F, 0, F::kRowBlocks, false, kJointBlock>(
                a.levels, a.codes + (from + i) * a.tile_bytes + bytes_before<F>(k), kc,
                panel + i * F::kRowBlocks * kPanelStride);
        const int blocks = here * F::kRowBlocks, all = (blocks + kFour - 1) / kFour * kFour;
        for (int g = 0; g < all; ++g) {
            const int64_t whole = g < blocks ? kc : 0;
            __builtin_memset(panel + g * kPanelStride + whole * 16, 0,
                             static_cast<size_t>((groups * kJointGroup - whole) * 16));
        }
        for (int g = 0; g < all; g += kFour) index_codes(panel + g * kPanelStride, groups);
        return groups;
    }
    void finish_all() const {
        for (int n = 0; n < count; ++n)
            for (int g = 0; g < row_blocks(); ++g) {
                const int32_t* at =
                    sums(g / kFour, n / kFour) + (n % kFour * kFour + g % kFour) * 16;
                finish<Panel<F>>(a, i_load(at), n0 + n, g,
                                 (tile * F::kRowBlocks + g) * sterna::kRowBlock);
            }
    }
};

// A layer of ternary weights. Lines that serve all of it are made once for the calls that share x.
template <class F>
void linear_joint(const sterna::LinearArgs& a) {
    bool ready = a.scratch_ready;
    even_blocks(
        static_cast<int>(a.tile_end - a.tile_begin), kJointTiles<F>, [&](int first, int tiles) {
            const int chunks = (a.n + kJointTokens - 1) / kJointTokens;
            const int size = (a.n + kFour * chunks - 1) / (kFour * chunks) * kFour;
            for (int n0 = 0; n0 < a.n; n0 += size) {
                const JointPart<F> part{a, a.tile_begin + first, tiles, n0,
                                        static_cast<int>(least(size, a.n - n0))};
                const int64_t blocks = kLineBytes / (part.fours() * kBlockLines),
                              most = blocks * kJointBlock;
                const bool all = a.n <= kJointTokens && a.K <= most;
                __builtin_memset(part.sums(), 0,
                                 part.panels() * part.fours() * kFourSums * sizeof(int32_t));
                for (int64_t k = 0; k < a.K; k += most) {
                    const int64_t end = least(a.K, k + most);
                    if (!all || !ready) make_all_lines(a, n0, part.count, k, end, part.lines());
                    ready = true;
                    part.add(k, end);
                }
                part.finish_all();
            }
        });
}
template <class F>
constexpr int64_t joint_scratch(int n) {
    const int64_t fours = (least(n, kJointTokens) + 3) / kFour;
    return kLineBytes + kJointTiles<F> * F::kRowBlocks / kFour * fours * kFourSums * 4 +
           kJointPanels<F> * kJointPanel;
}

}  // namespace
