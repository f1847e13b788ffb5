// Many tokens of a float format on vector units: outer products of kPanelVectors vectors of rows and
// kPanelTokens tokens, whose sums stay in registers (llamafile's tiles: one load of a weight serves all
// tokens, one of an activation all rows).
//
// A tile's weights are decoded to f32 once for a block of k. This panel stays in L2 while the tokens pass, and
// moves to L1 at about a line a cycle. Sums that wait for the next block of k stay floats: each output adds over k
// in ascending order, with one fused multiply-add each, as in linear.h.
#pragma once
#include "layouts/layout.h"
#include "linear/panel.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

constexpr int64_t kFloatPanelK = 512;  // 64 rows: 128 KB
constexpr int64_t kFloatPanelTokens = 512;  // tokens whose sums (128 KB) wait between blocks of k

template <class F>
struct FloatPanel {
    static constexpr int kRows = F::kRowBlocks * sterna::kRowBlock;
    static constexpr int kBlockRows = kPanelVectors * kLanes;  // rows that share their tokens
    static constexpr int kBlocks = kRows / kBlockRows;
    static_assert(kBlocks * kBlockRows == kRows);
    static constexpr int64_t kWeights = kRows * kFloatPanelK, kSums = kRows * kFloatPanelTokens;

    const sterna::LinearArgs& a;
    float* weights;  // [block][k][kBlockRows]
    float* sums;  // sums of earlier blocks of k: [token][kRows]
    int64_t tile = 0, k0 = 0, kc = 0;  // what the panel holds
    int64_t n0 = 0;  // first token of the sums
    const uint8_t *next, *end;  // weights to ask for, while tokens pass

    FloatPanel(const sterna::LinearArgs& a, uint8_t* scratch)
        : a(a),
          weights(reinterpret_cast<float*>(scratch)),
          sums(weights + kWeights),
          next(nullptr),
          end(a.codes + a.tile_end * a.tile_bytes) {}
    static constexpr int64_t bytes() { return (kWeights + kSums) * int64_t{sizeof(float)}; }

    void decode() {
        const uint8_t* step = a.codes + tile * a.tile_bytes + k0 / F::kStepK * F::kStepBytes;
        for (int64_t k = 0; k < kc; k += F::kStepK, step += F::kStepBytes) {
            STERNA_UNROLL(8)
            for (int line = 0; line < F::kStepBytes; line += 64)
                prefetch(step + kPanelPrefetchBytes + line);
            STERNA_UNROLL(8)
            for (int j = 0; j < F::kStepK; ++j) {
                STERNA_UNROLL(8)
                for (int part = 0; part < kParts; ++part) {
                    VF w[F::kRowBlocks];
                    F::decode(step, part, j, w);
                    STERNA_UNROLL(8)
                    for (int g = 0; g < F::kRowBlocks; ++g) {
                        const int row = sterna::kRowBlock * g + kLanes * part;
                        f_store(weights + row / kBlockRows * kc * kBlockRows +
                                    (k + j) * kBlockRows + row % kBlockRows,
                                w[g]);
                    }
                }
            }
        }
        next = step;
    }

    // Adds tokens [n, n + N) x one block of rows.
    template <int N>
    inline void outer_products(int64_t n, int block) {
        VF acc[N][kPanelVectors];
        float* kept = sums + (n - n0) * kRows + block * kBlockRows;
        STERNA_UNROLL(16)
        for (int i = 0; i < N; ++i) {
            STERNA_UNROLL(8)
            for (int v = 0; v < kPanelVectors; ++v)
                acc[i][v] = k0 == 0 ? F::zero() : f_load(kept + i * kRows + v * kLanes);
        }
        const float *x = a.xf + n * a.ldx + k0, *line = weights + block * kc * kBlockRows;
        for (int64_t k = 0; k < kc; ++k, line += kBlockRows) {
            VF w[kPanelVectors];
            STERNA_UNROLL(8)
            for (int v = 0; v < kPanelVectors; ++v) w[v] = f_load(line + v * kLanes);
            STERNA_UNROLL(16)
            for (int i = 0; i < N; ++i) {
                const VF one = f_set1(x[i * a.ldx + k]);
                STERNA_UNROLL(8)
                for (int v = 0; v < kPanelVectors; ++v) acc[i][v] = F::dot(acc[i][v], w[v], one);
            }
        }
        const bool last = k0 + kc >= a.K;
        STERNA_UNROLL(16)
        for (int i = 0; i < N; ++i) {
            STERNA_UNROLL(8)
            for (int v = 0; v < kPanelVectors; ++v) {
                if (!last) {
                    f_store(kept + i * kRows + v * kLanes, acc[i][v]);
                } else {
                    const int row = block * kBlockRows + v * kLanes;
                    finish<F>(a, acc[i][v], n + i, row / sterna::kRowBlock, tile * kRows + row);
                }
            }
        }
    }

    template <int N>
    inline void tokens(int64_t n, int64_t count) {
        if (count >= N) {
            for (int block = 0; block < kBlocks; ++block) outer_products<N>(n, block);
        } else if constexpr (N > 1) {
            tokens<N - 1>(n, count);
        }
    }

    // Multiplies the panel with tokens [n0, n1), while the weights of the next one are asked for.
    void sweep(int64_t n1) {
        const int64_t blocks = (n1 - n0 + kPanelTokens - 1) / kPanelTokens;
        const int64_t bytes = kc / F::kStepK * F::kStepBytes;
        const int64_t lines = (bytes / 64 + blocks - 1) / blocks;
        const uint8_t* stop = end - next < bytes ? end : next + bytes;
        for (int64_t n = n0; n < n1; n += kPanelTokens) {
            for (int64_t i = 0; i < lines && next < stop; ++i, next += 64) prefetch(next);
            tokens<kPanelTokens>(n, n1 - n);
        }
    }
};

template <class F>
void linear_float_panel(const sterna::LinearArgs& a) {
    FloatPanel<F> panel(a, a.scratch);
    static_assert(kFloatPanelK % F::kStepK == 0);
    for (panel.tile = a.tile_begin; panel.tile < a.tile_end; ++panel.tile) {
        for (int64_t n = 0; n < a.n; n += kFloatPanelTokens) {
            panel.n0 = n;
            for (panel.k0 = 0; panel.k0 < a.K; panel.k0 += kFloatPanelK) {
                const int64_t left = a.K - panel.k0;
                panel.kc = left < kFloatPanelK ? left : kFloatPanelK;
                panel.decode();
                panel.sweep(a.n - n < kFloatPanelTokens ? a.n : n + kFloatPanelTokens);
            }
        }
    }
}

}  // namespace
