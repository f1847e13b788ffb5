// Linear layers of weights in micro-blocks of 16 k, as NVFP4 has them: a weight is d s_g level, with a float32 d for each
// row and an E4M3 s_g for each 16 k. Activations have a scale s_x for every 32 k, as in plain_groups.h:
//
//   T = fma(t1, s1, t0 s0)     of two blocks: t = sum(level x) has 15 bits, s 4, so that both products are exact
//   y = fma(T, s_x, y)         in ascending order
//   y d                        at the end of a row (scaled_groups)
#pragma once
#include "layouts/layout.h"
#include "linear/linear.h"
#include "linear/panel.h"
#include "scales/plain_groups.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

using sterna::kMicroK;

// One tile's scales; `row` counts from the tile's first.
template <int kRows = 0>
struct MicroScales {
    const uint8_t* tile;  // the first line of E4M3
    int given_rows;

    MicroScales(const sterna::GroupScales& s, int64_t K, int64_t index, int row_blocks)
        : given_rows(row_blocks * sterna::kRowBlock) {
        tile = s.data + index * s.tile_bytes(K, rows()) + sterna::kRowFloatBytes * rows();
    }
    MicroScales(const sterna::LinearArgs& a, int64_t index, int row_blocks)
        : MicroScales(a.groups, a.K, index, row_blocks) {}

    int rows() const { return kRows ? kRows : given_rows; }
    const uint8_t* at(int64_t k) const { return tile + k / kMicroK * rows(); }
    // In the place of a float32's exponent and mantissa, with its bias of 127, a code is 2^-120 times its value: a
    // denormal too.
    VF scale(int64_t k, int row) const {
        return f_mul(f_bits(i_shl<20>(i_load_u8(at(k) + row))), f_set1(0x1p120f));
    }
};

// A row's weights: level * (d s_g), each rounded.
template <class F>
void micro_values(const sterna::RowArgs& a, const sterna::GroupScales& s, int zero_x2) {
    F::row(a);
    constexpr int kRows = F::kRowBlocks * sterna::kRowBlock;
    const int in_tile = static_cast<int>(a.row % kRows), lane = in_tile % kLanes;
    const int64_t padded = (a.K + 63) / 64 * 64;
    const MicroScales<kRows> scales(s, padded, a.row / kRows, F::kRowBlocks);
    const float d = *s.row_floats(a.row, padded, kRows);
    float scale[kLanes];
    for (int64_t k = 0; k < a.K; ++k) {
        if (k % kMicroK == 0) f_store(scale, f_mul(scales.scale(k, in_tile - lane), f_set1(d)));
        a.out[k] = (a.out[k] - static_cast<float>(zero_x2 / 2)) * scale[lane];
    }
}

// The format of few tokens, and the bytes of a panel.
template <class F>
using MicroSums = std::conditional_t<pairs_fit<F>(kMostLevel<F>, kMicroK),
                                     PairSums<Direct<F>, kMicroK>, Direct<F>>;
template <class F>
using MicroPanel = std::conditional_t<pairs_fit<F>(kMostLevel<F>, kMicroK),
                                      PairSums<Even<AnyCodes>, kMicroK>, GroupPanel<F>>;

// Turns the sums of two micro-blocks into outputs, as PlainGroups does.
template <class F>
struct MicroGroups {
    static constexpr int kX = kGroupK, kSpans = kGroupK / kMicroK, kFloats = 1;
    static constexpr bool kStarts = true;
    static_assert(F::kEvenOffset && kSpans == 2);
    using Terms = TokenTerms<kMicroK, kMicroK, kX>;
    const sterna::LinearArgs& a;
    MicroScales<kTileRowsOf<F>> scales;
    Terms terms;

    MicroGroups(const sterna::LinearArgs& args, int64_t tile, int row_blocks)
        : a(args), scales(args, tile, row_blocks), terms(args) {}
    static void begin(const sterna::LinearArgs& a) {
        Terms(a).template fill<F::kPairs>(a, -offset_x2<F>(a.zero_x2) / 2);
    }
    VI start(int n, int64_t k) const { return x_broadcast(terms.taken.row(n) + k / kMicroK); }

    // The part for a panel (grouped_panel.h): the scales of both blocks are prepared.
    static constexpr int kReady = kSpans, kInto = 0, kEnds = 0, kEndK = kX;
    static constexpr bool kGroupMinima = false;
    using Total = VF;
    void finish_codes(const PanelTile&) const {}
    void ready(int64_t k, int row, float* out) const {
        for (int i = 0; i < kSpans; ++i)
            f_store(out + i * kLanes, scales.scale(k + i * kMicroK, row));
    }
    static VF add_span(int span, VF total, VI sum, const float* scale, int row_block) {
        return joined(span, total, sum, f_load(scale), row_block);
    }
    static VF add_to(VF y, VF total, VF, VF s_x) { return f_fma(total, s_x, y); }
    template <int GN, int N>
    static void end_groups(int64_t, int, const float*, int64_t, float*) {}

    template <int GN>
    struct Kept {};  // each group has scales of its own

    static constexpr int kScalesAhead = 1024;  // bytes: of 8 groups of 32 k
    void ask_ahead(int64_t k) const {
        prefetch_l2(scales.at(k) + kScalesAhead);
        prefetch_l2(scales.at(k) + kScalesAhead + kLine);
    }

    template <int GN, int N>
    [[gnu::always_inline]] void add(int64_t k, int n0, int row0, const VI (&sums)[kSpans][N][GN],
                                    float* y, Kept<GN>* = nullptr) const {
        VF s[kSpans][GN];
        STERNA_UNROLL(2)
        for (int i = 0; i < kSpans; ++i) {
            STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g)
                s[i][g] = scales.scale(k + i * kMicroK, row0 + g * sterna::kRowBlock);
        }
        const auto scale = terms.scale;  // stores to y might change what `this` refers to
        STERNA_UNROLL(16)
        for (int n = 0; n < N; ++n) {
            const VF s_x = f_set1(scale.row(n0 + n)[k / kX]);
            STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g) {
                const VF total = joined(0, s[0][g], sums[0][n][g], s[0][g], g);
                float* to = y + (n * GN + g) * kLanes;
                f_store(to, f_fma(joined(1, total, sums[1][n][g], s[1][g], g), s_x, f_load(to)));
            }
        }
    }

  private:
    // Adds the sum of a block times its scale to that of the block before.
    static VF joined(int span, VF total, VI sum, VF scale, int row_block) {
        VF levels;
        if constexpr (F::kPairs) {
            levels = f_from_i(F::end(sum, i_set1(0x10001), row_block));
        } else {
            levels = f_from_i(F::settle(sum, row_block));
        }
        return span == 0 ? f_mul(levels, scale) : f_fma(levels, scale, total);
    }
};

}  // namespace
