// Softmax attention over a paged KV cache.
//
// Positions are summed in absolute chunks of 256: each gives (max, sum, partial output), merged in
// ascending order, so the result does not depend on how a prompt was split into steps. Within a
// chunk a score adds over head_dim in ascending order (keys are lanes), the softmax sum runs in
// sixteen lanes, and the output adds over positions in ascending order (head_dim is lanes).
#pragma once
#include "lanes.h"

namespace {

constexpr int kChunk = sterna::kChunkPositions, kPage = sterna::kPagePositions;
static_assert(kAttentionRows <= sterna::kMaxAttentionRows);

template <bool kF16>
inline F16x load_kv(const uint8_t* base, int64_t element) {
    if constexpr (kF16) {
        return l_load_f16(reinterpret_cast<const uint16_t*>(base) + element);
    } else {
        return l_load(reinterpret_cast<const float*>(base) + element);
    }
}

// Vectors of 16 keys, or of 16 of head_dim, that R rows take at a time: all accumulators in registers.
constexpr int kAttentionVectors = kLanes == 16 ? 2 : 1;
static_assert(kPage / 16 % kAttentionVectors == 0, "a block of keys lies in one page");

// scores[r][j] for V blocks of 16 keys, of which `block` is the first of a page.
template <bool kF16, int R, int V>
inline void key_block(const sterna::AttentionArgs& a, int row0, const uint8_t* page, int64_t block,
                      float (*scores)[kChunk], int j) {
    F16x acc[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) acc[r][v] = l_set1(0.0f);
    for (int64_t d = 0; d < a.head_dim; ++d) {
        F16x k[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) k[v] = load_kv<kF16>(page, ((block + v) * a.head_dim + d) * 16);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const F16x q = l_set1(a.q[row0 + r][d]);
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) acc[r][v] = l_fma(q, k[v], acc[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v)
            l_store(scores[r] + j + 16 * v, l_mul(acc[r][v], l_set1(a.scale)));
}

// scores[r][j] of keys [0, keys) of a chunk, 16 at a time; the rest of a block of 16 is masked later.
template <bool kF16, int R>
inline void chunk_scores(const sterna::AttentionArgs& a, int row0, int64_t first, int keys,
                         float (*scores)[kChunk]) {
    constexpr int V = kAttentionVectors;
    for (int j = 0; j < keys; j += 16 * V) {
        const int64_t position = first + j;
        const uint8_t* page = a.k_base + a.pages[position / kPage] * a.page_stride;
        const int64_t block = position % kPage / 16;
        if (keys - j > 16 * (V - 1)) {
            key_block<kF16, R, V>(a, row0, page, block, scores, j);
        } else {
            key_block<kF16, R, 1>(a, row0, page, block, scores, j);
        }
    }
}

// scores -> exp(score - max) with zeros beyond `keys`; returns max and sum.
inline void chunk_softmax(float* scores, int keys, float* max_out, float* sum_out) {
    const int padded = (keys + 15) / 16 * 16;
    for (int j = keys; j < padded; ++j) scores[j] = -__builtin_inff();
    F16x m = l_load(scores);
    for (int j = 16; j < padded; j += 16) m = l_max(l_load(scores + j), m);
    const float max = l_reduce_max(m);
    F16x sum = l_set1(0.0f);
    for (int j = 0; j < padded; j += 16) {
        F16x p = l_exp_softmax(l_sub(l_load(scores + j), l_set1(max)));
        if (j + 16 > keys) {
            l_store(scores + j, p);
            for (int i = keys; i < j + 16; ++i) scores[i] = 0.0f;  // -inf - -inf would be NaN
            p = l_load(scores + j);
        } else {
            l_store(scores + j, p);
        }
        sum = l_add(sum, p);
    }
    *max_out = max;
    *sum_out = l_sum(sum);
}

// out[r][d .. d + 16 V) += sum_j p[r][j] * v[j][d ..] for keys [j0, j1) of a chunk.
template <bool kF16, int R, int V>
inline void value_block(const sterna::AttentionArgs& a, int64_t first, int j0, int j1,
                        const float (*p)[kChunk], float* out, int64_t d) {
    F16x acc[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) acc[r][v] = l_load(out + r * a.head_dim + d + 16 * v);
    for (int j = j0; j < j1;) {
        const int64_t position = first + j;
        const uint8_t* page = a.v_base + a.pages[position / kPage] * a.page_stride;
        const int in_page = static_cast<int>(position % kPage);
        const int end = j1 - j < kPage - in_page ? j1 : j + kPage - in_page;
        for (int64_t element = in_page * a.head_dim + d; j < end; ++j, element += a.head_dim) {
            F16x x[V];
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) x[v] = load_kv<kF16>(page, element + 16 * v);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const F16x weight = l_set1(p[r][j]);
#pragma GCC unroll 2
                for (int v = 0; v < V; ++v) acc[r][v] = l_fma(weight, x[v], acc[r][v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) l_store(out + r * a.head_dim + d + 16 * v, acc[r][v]);
}

template <bool kF16, int R>
inline void chunk_values(const sterna::AttentionArgs& a, int64_t first, int j0, int j1,
                         const float (*p)[kChunk], float* out) {
    constexpr int V = kAttentionVectors;
    int64_t d = 0;
    for (; d + 16 * V <= a.head_dim; d += 16 * V)
        value_block<kF16, R, V>(a, first, j0, j1, p, out, d);
    for (; d < a.head_dim; d += 16) value_block<kF16, R, 1>(a, first, j0, j1, p, out, d);
}

// (m, l, o) := merge of (m, l, o) and one more chunk's (cm, cl, co).
inline void merge(float* m, float* l, float* o, float cm, float cl, const float* co, int head_dim) {
    const float max = *m > cm ? *m : cm;
    float lanes[16];
    const float pair[16] = {*m - max, cm - max};
    l_store(lanes, l_exp_softmax(l_load(pair)));
    *m = max;
    *l = __builtin_fmaf(*l, lanes[0], cl * lanes[1]);
    for (int d = 0; d < head_dim; d += 16)
        l_store(o + d,
                l_fma(l_load(o + d), l_set1(lanes[0]), l_mul(l_load(co + d), l_set1(lanes[1]))));
}

// R query rows at once. Rows see different numbers of keys: what all see is shared, the rest is not.
template <bool kF16, int R>
inline void attention_rows(const sterna::AttentionArgs& a, int row0) {
    auto* scores = reinterpret_cast<float (*)[kChunk]>(a.scratch);
    float* chunk_out = a.scratch + sterna::kMaxAttentionRows * kChunk;
    float* out = chunk_out + R * a.head_dim;
    float max[R], sum[R];
    const int last = a.limit[row0 + R - 1];  // limits ascend
    for (int64_t first = 0; first < last; first += kChunk) {
        int keys[R];
        for (int r = 0; r < R; ++r) {
            const int64_t seen = a.limit[row0 + r] - first;
            keys[r] = static_cast<int>(seen < 0 ? 0 : seen < kChunk ? seen : kChunk);
        }
        chunk_scores<kF16, R>(a, row0, first, keys[R - 1], scores);
        float chunk_max[R] = {}, chunk_sum[R] = {};
        for (int r = 0; r < R; ++r)
            if (keys[r]) chunk_softmax(scores[r], keys[r], chunk_max + r, chunk_sum + r);
        for (int i = 0; i < R * a.head_dim; ++i) chunk_out[i] = 0.0f;
        chunk_values<kF16, R>(a, first, 0, keys[0], scores, chunk_out);
        for (int r = 1; r < R; ++r)
            chunk_values<kF16, 1>(a, first, keys[0], keys[r], scores + r,
                                  chunk_out + r * a.head_dim);
        for (int r = 0; r < R; ++r) {
            float* o = out + r * a.head_dim;
            const float* co = chunk_out + r * a.head_dim;
            if (first == 0) {
                max[r] = chunk_max[r], sum[r] = chunk_sum[r];
                __builtin_memcpy(o, co, static_cast<size_t>(a.head_dim) * 4);
            } else if (keys[r]) {
                merge(max + r, sum + r, o, chunk_max[r], chunk_sum[r], co, a.head_dim);
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int d = 0; d < a.head_dim; ++d) a.out[row0 + r][d] = out[r * a.head_dim + d] / sum[r];
}

template <bool kF16, int R>
inline void attention_block(const sterna::AttentionArgs& a, int row0, int rows) {
    if (rows == R) {
        attention_rows<kF16, R>(a, row0);
    } else if constexpr (R > 1) {
        attention_block<kF16, R - 1>(a, row0, rows);
    }
}

void attention(const sterna::AttentionArgs& a) {
    for (int row = 0; row < a.rows; row += kAttentionRows) {
        const int rows = a.rows - row < kAttentionRows ? a.rows - row : kAttentionRows;
        a.f16 ? attention_block<true, kAttentionRows>(a, row, rows)
              : attention_block<false, kAttentionRows>(a, row, rows);
    }
}

}  // namespace
