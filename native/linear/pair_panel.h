// Many tokens of a format with scales in groups, where products of bytes are added in pairs of int16.
// There the work around a group's products decides the speed. So its scales are prepared once for a tile, its sums stay
// in registers until they are floats, and all its products are unrolled.
#pragma once
#include "layouts/layout.h"
#include "linear/linear.h"
#include "linear/panel.h"
#include "scales/groups.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

template <class F, class Groups>
struct PairBlocks : GroupedBlocks<F, Groups> {
    using Sweep = PairBlocks;
    static constexpr int kSpans = Groups::kSpans, kSpanK = kGroupK / kSpans;

    // Behind a panel: scales as Groups::ready() makes them, [row block][part][span], then a block's outputs.
    static constexpr int64_t ready_at(int64_t K, int row_block, int part) {
        return (row_block * kParts + part) * (K / kSpanK);
    }
    static VI* ready(const sterna::LinearArgs& a, const PanelTile& tile) {
        return reinterpret_cast<VI*>(tile.bytes + panel_bytes(a.K, tile.row_blocks));
    }
    static void prepare(const sterna::LinearArgs& a, const PanelTile& tile) {
        const Groups groups(a, tile.index, tile.row_blocks);
        VI* out = ready(a, tile);
        for (int g = 0; g < tile.row_blocks; ++g)
            for (int part = 0; part < kParts; ++part)
                for (int64_t k = 0; k < a.K; k += kSpanK)
                    *out++ = groups.ready(k, g * sterna::kRowBlock + kLanes * part);
    }

    // The places of a block's operands at a group of k, and the strides to the next row block and token.
    struct At {
        const int8_t* x;
        const uint8_t* codes;
        const VI* ready;
        TokenRows<const float> scale;
        TokenRows<const int32_t> taken;
        int64_t ldx, codes_stride, ready_stride;

        void advance(int64_t k) {
            x += k, codes += k * kLanes, ready += k / kSpanK;
            scale.at += k / kGroupK, taken.at += k / kSpanK;
        }
    };
    // Adds `count` groups of k of N tokens x GN row blocks to [n][g]. A function of its own, which has all
    // registers.
    template <int GN, int N>
    [[gnu::noinline]] static void add_groups(At at, int64_t count, float* to) {
        const auto each = [](auto f) {
            STERNA_UNROLL(16)
            for (int n = 0; n < N; ++n) STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g) f(n, g);
        };
        const int8_t* x = at.x;
        const uint8_t* codes = at.codes;
        const VI* ready = at.ready;
        for (int64_t i = 0; i < count; ++i) {
            STERNA_FENCE();  // else outputs are carried along in the registers that sums need
            VI sum[N][GN];
            STERNA_UNROLL(2)
            for (int span = 0; span < kSpans; ++span, ++ready) {
                VI run[N][GN];
                each([&](int n, int g) {
                    run[n][g] =
                        Groups::kStarts
                            ? F::in_place(x_broadcast(at.taken.row(n) + i * kSpans + span), g)
                            : F::zero();
                });
                STERNA_UNROLL(8)
                for (int k = 0; k < kSpanK; k += 4, x += 4, codes += 4 * kLanes) {
                    VI w[GN];
                    STERNA_UNROLL(8)
                    for (int g = 0; g < GN; ++g) w[g] = i_load(codes + g * at.codes_stride);
                    STERNA_UNROLL(16)
                    for (int n = 0; n < N; ++n) {
                        const VX four = x_load(x + n * at.ldx);
                        STERNA_UNROLL(8)
                        for (int g = 0; g < GN; ++g)
                            run[n][g] = i_now(F::dot(run[n][g], w[g], four));
                    }
                }
                each([&](int n, int g) {
                    VI end;
                    if constexpr (F::kPairs) {
                        end = F::end(run[n][g], Groups::factor(ready[g * at.ready_stride]), g);
                    } else {
                        end = F::settle(run[n][g], g);
                    }
                    sum[n][g] = span == 0 ? end : i_add(sum[n][g], end);
                });
            }
            each([&](int n, int g) {
                const VF s_x = f_set1(at.scale.row(n)[i]);
                float* y = to + (n * GN + g) * kLanes;
                f_store(y,
                        f_fma(f_from_i(sum[n][g]),
                              Groups::scaled(ready[g * at.ready_stride - kSpans], s_x), f_load(y)));
            });
        }
    }

    template <int GN, int N>
    static void panel(const sterna::LinearArgs& a, const PanelTile& tile, int g0, int part, int n0,
                      int done) {
        const Groups groups(a, tile.index, tile.row_blocks);
        VI* const all = ready(a, tile);
        auto* y = reinterpret_cast<float*>(all + ready_at(a.K, tile.row_blocks, 0));
        for (int i = 0; i < Groups::kFloats * N * GN; ++i) f_store(y + i * kLanes, f_set1(0.0f));
        At at{a.xq + n0 * a.ldx,
              tile.bytes + panel_at(a.K, g0, part, 0),
              all + ready_at(a.K, g0, part),
              {groups.terms.scale.row(n0), groups.terms.scale.width},
              {groups.terms.taken.row(n0), groups.terms.taken.width},
              a.ldx,
              panel_at(a.K, 1, 0, 0),
              ready_at(a.K, 1, 0)};
        const int64_t most = groups.end_k();
        for (int64_t k = 0; k < a.K; k += most, at.advance(most)) {
            add_groups<GN, N>(at, (a.K - k < most ? a.K - k : most) / kGroupK,
                              y + Groups::kInto * N * GN * kLanes);
            groups.template end_groups<GN, N>(k, n0, g0 * sterna::kRowBlock + kLanes * part, y);
        }
        store_outputs<GN, N>(a, tile.row(g0, part), n0, y, done);
    }
};

}  // namespace
