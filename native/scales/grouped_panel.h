// Many tokens of a format with scales in groups. The work around a group's products decides the speed there. So scales
// are prepared once for a tile, and a group's sums stay in registers until they are floats.
#pragma once
#include "layouts/layout.h"
#include "linear/linear.h"
#include "linear/panel.h"
#include "linear/row_pairs.h"
#include "scales/groups.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// A panel's bytes where groups have plain scales: codes, or twice the codes where levels are halves (PlainGroups
// doubles them), 15 at most. So the offset is even, and sums may start at it.
template <class F>
using LongGroupPanel = Even<std::conditional_t<F::kEvenOffset, Panel<F>, CodesUpTo<15>>>;
// The same where groups are short: codes are of one kind, or of two where pair sums are int16.
template <class F>
using ShortGroupPanel = std::conditional_t<
    pairs_fit<LongGroupPanel<F>>(kMostLevel<F, LongGroupPanel<F>>, kGroupK),
    PairSums<Even<AnyCodes>, kGroupK>,
    Even<std::conditional_t<
        std::is_same_v<LongGroupPanel<F>, Even<CodesUpTo<LongGroupPanel<F>::kMaxByte>>>, AnyCodes,
        LongGroupPanel<F>>>>;

// The steps of a short group that are unrolled. All of them are up to 1.07 times as fast, but on 512-bit vectors whose
// pair sums are int16, where a step has 72 instructions, a loop of them is 1.02 to 1.3 times as fast.
constexpr int kUnrolledSteps = kPairSums16 && kLanes == 16 ? 1 : kGroupK / 4;

// Adds the products of kCount k of N tokens x GN row blocks. Always inlined: a call would pass the sums in memory.
template <class F, int GN, int N, int kCount>
[[gnu::always_inline]] inline void panel_products(const PanelX<F>* x, int64_t ldx,
                                                  const uint8_t* codes, int64_t stride,
                                                  VI (&sum)[N][GN]) {
    if constexpr (kRowPairs<F>) {
        row_pair_sums<typename F::Acc, GN, N>(x, ldx, codes, stride, kCount, sum);
        return;
    }
    if constexpr (F::kWords) {
        STERNA_UNROLL(kUnrolledSteps)
        for (int64_t k = 0; k < kCount; k += 4)
            add_words<GN, N>(x + k, ldx, codes + k * kLanes, stride, sum);
        return;
    }
    int64_t count = kCount;
    if (kUnrolledSteps == 1) STERNA_HIDDEN(count);
    STERNA_UNROLL(kUnrolledSteps)
    for (int64_t k = 0; k < count; k += 4) {
        VI w[GN];
        STERNA_UNROLL(8)
        for (int g = 0; g < GN; ++g) w[g] = i_load(codes + k * kLanes + g * stride);
        STERNA_UNROLL(16)
        for (int n = 0; n < N; ++n) {
            const VX four = x_load(x + n * ldx + k);
            STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g) sum[n][g] = i_now(F::dot(sum[n][g], w[g], four));
        }
    }
}

// The blocks of tokens that panel.h calls, of a panel of the bytes F. Groups (PlainGroups, SuperGroups) says what becomes
// of a group's sums; its part for panels is
//
//   finish_codes         what it makes of a panel's codes
//   kReady, ready        the vectors that it prepares of the scales of a group, and how
//   Total, add_span      a group's sum so far, and how the sum of one of its kSpans is added
//   kInto, add_to        the outputs that a group is added to, y (0) or what lies behind it (1), and how
//   kGroupMinima         whether each group's minimum is added, too
//   kEndK, end_groups    what follows every kEndK k, where kEnds is not 0
//   kEnds, ends          the vectors that it prepares for that, and how
template <class F, class Groups>
struct GroupedPanel {
    using Sweep = GroupedPanel;
    using Bytes = F;
    static constexpr int kX = Groups::kX, kSpans = Groups::kSpans, kSpanK = kX / kSpans;

    static void begin(const sterna::LinearArgs& a) { Groups::begin(a); }
    static uint8_t* scratch(const sterna::LinearArgs& a) { return Groups::Terms::behind(a); }

    // Behind a panel: [row block][part][group][Groups::kReady], as much for the ends of groups, then a block's outputs.
    static constexpr int64_t ready_at(int64_t K, int row_block, int part) {
        return (row_block * kParts + part) * (K / kX) * Groups::kReady * kLanes;
    }
    static constexpr int64_t ends_at(int64_t K, int row_block, int part) {
        return (row_block * kParts + part) * (K / Groups::kEndK) * Groups::kEnds * kLanes;
    }
    static float* ready(const sterna::LinearArgs& a, const PanelTile& tile) {
        return reinterpret_cast<float*>(tile.bytes + panel_bytes(a.K, tile.row_blocks));
    }
    [[gnu::noinline]] static void prepare(const sterna::LinearArgs& a, const PanelTile& tile) {
        const Groups groups(a, tile.index, tile.row_blocks);
        groups.finish_codes(tile);
        float* out = ready(a, tile);
        for (int g = 0; g < tile.row_blocks; ++g)
            for (int part = 0; part < kParts; ++part)
                for (int64_t k = 0; k < a.K; k += kX, out += Groups::kReady * kLanes)
                    groups.ready(k, g * sterna::kRowBlock + kLanes * part, out);
        if constexpr (Groups::kEnds > 0)
            for (int g = 0; g < tile.row_blocks; ++g)
                for (int part = 0; part < kParts; ++part)
                    for (int64_t k = 0; k < a.K; k += Groups::kEndK, out += Groups::kEnds * kLanes)
                        groups.ends(k, g * sterna::kRowBlock + kLanes * part, out);
    }

    // The places of a block's operands at a group of k, and the strides to the next row block and token.
    struct At {
        const PanelX<F>* x;
        const uint8_t* codes;
        const float* ready;
        TokenRows<const float> scale;
        TokenRows<const int32_t> taken;
        TokenRows<const float> factor;
        int64_t ldx, codes_stride, ready_stride;

        void advance(int64_t k) {
            x += k, codes += k * kLanes, ready += k / kX * Groups::kReady * kLanes;
            scale.at += k / kX, taken.at += k / kSpanK;
            if (Groups::kGroupMinima) factor.at += k / kX;
        }
    };
    // Adds `count` groups of k of N tokens x GN row blocks to [n][g]. A function of its own, which has all registers.
    template <int GN, int N>
    [[gnu::noinline]] static void add_groups(At at, int64_t count, float* to, NextTile& next) {
        const auto each = [](auto f) {
            STERNA_UNROLL(16)
            for (int n = 0; n < N; ++n) {
                STERNA_UNROLL(8)
                for (int g = 0; g < GN; ++g) f(n, g);
            }
        };
        const PanelX<F>* x = at.x;
        const uint8_t* codes = at.codes;
        const float* ready = at.ready;
        for (int64_t i = 0; i < count; ++i, ready += Groups::kReady * kLanes) {
            if constexpr (Groups::kEnds == 0)
                if (i * kX % kAskK == 0) next.ask();
            STERNA_FENCE();  // else outputs are carried along in the registers that sums need
            typename Groups::Total total[N][GN];
            STERNA_UNROLL(2)
            for (int span = 0; span < kSpans; ++span) {  // constant distances need no addresses
                const PanelX<F>* const span_x = x + span * kSpanK;
                const uint8_t* const span_codes = codes + span * kSpanK * kLanes;
                VI sum[N][GN];
                each([&](int n, int g) {
                    sum[n][g] =
                        Groups::kStarts
                            ? F::in_place(x_broadcast(at.taken.row(n) + i * kSpans + span), g)
                            : F::zero();
                });
                if constexpr (kSpanK <= kGroupK) {
                    panel_products<F, GN, N, kSpanK>(span_x, at.ldx, span_codes, at.codes_stride,
                                                     sum);
                } else {
                    int64_t span_k = kSpanK;
                    STERNA_HIDDEN(span_k);
                    panel_sums<F, GN, N>(span_x, at.ldx, span_codes, at.codes_stride, span_k, sum);
                }
                each([&](int n, int g) {
                    const float* scale = ready + g * at.ready_stride + span * kLanes;
                    total[n][g] = Groups::add_span(span, total[n][g], sum[n][g], scale, g);
                });
            }
            x += kX, codes += kX * kLanes;
            VF scale[GN];  // stores to y might change what is read, so it is read once
            STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g) scale[g] = f_load(ready + g * at.ready_stride);
            STERNA_UNROLL(16)
            for (int n = 0; n < N; ++n) {
                const VF s_x = f_set1(at.scale.row(n)[i]);
                STERNA_UNROLL(8)
                for (int g = 0; g < GN; ++g) {
                    float* y = to + (n * GN + g) * kLanes;
                    VF out = Groups::add_to(f_load(y), total[n][g], scale[g], s_x);
                    if constexpr (Groups::kGroupMinima)
                        out = f_fma(f_load(ready + g * at.ready_stride + kLanes),
                                    f_set1(at.factor.row(n)[i]), out);
                    f_store(y, out);
                }
            }
        }
    }

    // Tokens [n0, n0 + N), of which the first `done` have their outputs already, and row blocks from g0 on.
    template <int GN, int N>
    static void panel(const sterna::LinearArgs& a, const PanelTile& tile, int g0, int part, int n0,
                      int done) {
        static_assert(Groups::kFloats <= kMostFloats);
        const Groups groups(a, tile.index, tile.row_blocks);
        const auto& terms = groups.terms;
        float* const all = ready(a, tile);
        const float* ends = all + ready_at(a.K, tile.row_blocks, 0);
        float* const y = all + ready_at(a.K, tile.row_blocks, 0) + ends_at(a.K, tile.row_blocks, 0);
        ends += ends_at(a.K, g0, part);
        for (int i = 0; i < Groups::kFloats * N * GN; ++i) f_store(y + i * kLanes, f_set1(0.0f));
        At at{panel_x<F>(a, tile, n0),
              tile.bytes + panel_at(a.K, g0, part, 0),
              all + ready_at(a.K, g0, part),
              {terms.scale.row(n0), terms.scale.width},
              {terms.taken.row(n0), terms.taken.width},
              {terms.factor.row(n0), terms.factor.width},
              panel_ldx<F>(a),
              panel_at(a.K, 1, 0, 0),
              ready_at(a.K, 1, 0)};
        const int64_t most = Groups::kEnds > 0 ? Groups::kEndK : a.K;
        for (int64_t k = 0; k < a.K; k += most, at.advance(most)) {
            if constexpr (Groups::kEnds > 0) tile.next.ask();
            const int64_t count = a.K - k < most ? a.K - k : most;
            add_groups<GN, N>(at, count / kX, y + Groups::kInto * N * GN * kLanes, tile.next);
            groups.template end_groups<GN, N>(k, n0, ends, ends_at(a.K, 1, 0), y);
            ends += Groups::kEnds * kLanes;
        }
        store_outputs(a, tile.row(g0, part), tile.row_blocks * sterna::kRowBlock, GN, n0, N, y,
                      done);
    }
};

}  // namespace
