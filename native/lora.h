// Products with the two matrices of a LoRA adapter (program/adapter.h). A lane is a row, so neither the unit nor how tokens are
// brought together has a part in a bit.
#pragma once
#include "lanes.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

// Tokens that share the loads of a row, as many as registers hold the sums of.
constexpr int kLowRankTokens = kLanes / 2;

// Rows from `row` on, of a block, for tokens from `first` on.
template <int N>
void low_rank_block(const sterna::LowRankArgs& a, int64_t row, int64_t first) {
    const float* tile = a.tiles + row * a.columns;
    const float* x = a.x + first * a.ldx;
    F16x sums[N];
    for (int n = 0; n < N; ++n) sums[n] = l_set1(0.0f);
    for (int64_t k = 0; k < a.columns; ++k) {
        const F16x rows = l_load(tile + k * sterna::kRowBlock);
        for (int n = 0; n < N; ++n) sums[n] = l_add(sums[n], l_mul(rows, l_set1(x[n * a.ldx + k])));
    }
    const int64_t left = a.rows - row;
    for (int n = 0; n < N; ++n) {
        float* to = a.out + (first + n) * a.ldo + row;
        if (!a.adds)
            l_store(to, sums[n]);
        else
            sixteens(left < sterna::kRowBlock ? left : sterna::kRowBlock, [&](int64_t, auto part) {
                part.store(to, l_add(part.load(to), l_mul(l_set1(a.scale), sums[n])));
            });
    }
}

// Few tokens and many rows at a time: what is added to runs on in memory.
template <int N>
void low_rank_tokens(const sterna::LowRankArgs& a, int64_t first) {
    for (int64_t row = 0; row < a.rows; row += sterna::kRowBlock) low_rank_block<N>(a, row, first);
}

void low_rank(const sterna::LowRankArgs& a) {
    int64_t n = 0;
    for (; n + kLowRankTokens <= a.tokens; n += kLowRankTokens)
        low_rank_tokens<kLowRankTokens>(a, n);
    for (; n < a.tokens; ++n) low_rank_tokens<1>(a, n);
}

}  // namespace
