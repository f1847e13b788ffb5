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

// scores[r][j] of the first `keys` positions of a page, 16 at a time; the rest of a block of 16 is
// masked later.
template <bool kF16, int R>
inline void page_scores(const sterna::AttentionArgs& a, int row0, const uint8_t* page, int keys,
                        float (*scores)[kChunk], int j0) {
    constexpr int V = kAttentionVectors;
    for (int j = 0; j < keys; j += 16 * V) {
        if (keys - j > 16 * (V - 1)) {
            key_block<kF16, R, V>(a, row0, page, j / 16, scores, j0 + j);
        } else {
            key_block<kF16, R, 1>(a, row0, page, j / 16, scores, j0 + j);
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

// out[r][d .. d + 16 V) += sum_j p[r][j] * v[j][d ..] for positions [j0, j1) of a page.
template <bool kF16, int R, int V>
inline void value_block(const sterna::AttentionArgs& a, const uint8_t* page, int j0, int j1,
                        const float (*p)[kChunk], float* out, int64_t d) {
    F16x acc[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) acc[r][v] = l_load(out + r * a.head_dim + d + 16 * v);
    int64_t element = j0 * int64_t{a.head_dim} + d;
    for (int j = j0; j < j1; ++j, element += a.head_dim) {
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
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) l_store(out + r * a.head_dim + d + 16 * v, acc[r][v]);
}

// p and out start at the page's first position and the block's first row.
template <bool kF16, int R>
inline void page_values(const sterna::AttentionArgs& a, const uint8_t* page, int j0, int j1,
                        const float (*p)[kChunk], float* out) {
    constexpr int V = kAttentionVectors;
    if (j0 >= j1) return;
    int64_t d = 0;
    for (; d + 16 * V <= a.head_dim; d += 16 * V)
        value_block<kF16, R, V>(a, page, j0, j1, p, out, d);
    for (; d < a.head_dim; d += 16) value_block<kF16, R, 1>(a, page, j0, j1, p, out, d);
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

// What the rows of one call share while they pass over the keys together.
struct AttentionState {
    float (*scores)[kChunk];  // [rows]
    float *chunk_out, *out;  // [rows][head_dim], of this chunk and of all so far
    float* page;  // [kPage * head_dim]
    float max[sterna::kMaxAttentionRows], sum[sterna::kMaxAttentionRows];
    int keys[sterna::kMaxAttentionRows];  // of this chunk that a row sees; ascending
};

inline int clamp(int64_t value, int most) {
    return static_cast<int>(value < 0 ? 0 : value < most ? value : most);
}

// Rows [row0, row0 + R) against one page, which starts at position j0 of the chunk.
template <bool kF16, int R>
inline void block_scores(const sterna::AttentionArgs& a, AttentionState& s, int row0, int j0,
                         const uint8_t* page) {
    page_scores<kF16, R>(a, row0, page, clamp(s.keys[row0 + R - 1] - j0, kPage), s.scores + row0,
                         j0);
}

// Rows see different numbers of keys: what all see is shared, the rest is not.
template <bool kF16, int R>
inline void block_values(const sterna::AttentionArgs& a, AttentionState& s, int row0, int j0,
                         const uint8_t* page) {
    const int shared = clamp(s.keys[row0] - j0, kPage);
    const auto* p = reinterpret_cast<const float (*)[kChunk]>(s.scores[row0] + j0);
    float* out = s.chunk_out + row0 * a.head_dim;
    page_values<kF16, R>(a, page, 0, shared, p, out);
    for (int r = 1; r < R; ++r)
        page_values<kF16, 1>(a, page, shared, clamp(s.keys[row0 + r] - j0, kPage), p + r,
                             out + r * a.head_dim);
}

// Calls Block<R> for blocks of kAttentionRows rows and for what is left.
template <bool kF16, bool kValues, int R = kAttentionRows>
inline void row_blocks(const sterna::AttentionArgs& a, AttentionState& s, int row0, int j0,
                       const uint8_t* page) {
    for (; a.rows - row0 >= R; row0 += R) {
        if constexpr (kValues) {
            block_values<kF16, R>(a, s, row0, j0, page);
        } else {
            block_scores<kF16, R>(a, s, row0, j0, page);
        }
    }
    if constexpr (R > 1)
        if (row0 < a.rows) row_blocks<kF16, kValues, R - 1>(a, s, row0, j0, page);
}

// The page that holds position `position`, for all rows. Where several blocks of rows read it, f16 is
// widened once, not by each of them.
template <bool kF16, bool kValues>
inline void page_rows(const sterna::AttentionArgs& a, AttentionState& s, int64_t position, int j) {
    const uint8_t* page =
        (kValues ? a.v_base : a.k_base) + a.pages[position / kPage] * a.page_stride;
    if (kF16 && a.rows > kAttentionRows) {
        for (int64_t i = 0; i < int64_t{kPage} * a.head_dim; i += 16)
            l_store(s.page + i, load_kv<true>(page, i));
        row_blocks<false, kValues>(a, s, 0, j, reinterpret_cast<const uint8_t*>(s.page));
    } else {
        row_blocks<kF16, kValues>(a, s, 0, j, page);
    }
}

// All rows against one chunk, a page at a time, so that a page is read from L1 by all of them.
template <bool kF16>
inline void attention_chunk(const sterna::AttentionArgs& a, AttentionState& s, int64_t first) {
    const int most = s.keys[a.rows - 1];
    for (int j = 0; j < most; j += kPage) page_rows<kF16, false>(a, s, first + j, j);
    float chunk_max[sterna::kMaxAttentionRows] = {}, chunk_sum[sterna::kMaxAttentionRows] = {};
    for (int r = 0; r < a.rows; ++r)
        if (s.keys[r]) chunk_softmax(s.scores[r], s.keys[r], chunk_max + r, chunk_sum + r);
    for (int i = 0; i < a.rows * a.head_dim; ++i) s.chunk_out[i] = 0.0f;
    for (int j = 0; j < most; j += kPage) page_rows<kF16, true>(a, s, first + j, j);
    for (int r = 0; r < a.rows; ++r) {
        float* o = s.out + r * a.head_dim;
        const float* co = s.chunk_out + r * a.head_dim;
        if (first == 0) {
            s.max[r] = chunk_max[r], s.sum[r] = chunk_sum[r];
            __builtin_memcpy(o, co, static_cast<size_t>(a.head_dim) * 4);
        } else if (s.keys[r]) {
            merge(s.max + r, s.sum + r, o, chunk_max[r], chunk_sum[r], co, a.head_dim);
        }
    }
}

void attention(const sterna::AttentionArgs& a) {
    AttentionState s;
    s.scores = reinterpret_cast<float (*)[kChunk]>(a.scratch);
    s.chunk_out = a.scratch + sterna::kMaxAttentionRows * kChunk;
    s.out = s.chunk_out + sterna::kMaxAttentionRows * a.head_dim;
    s.page = s.out + sterna::kMaxAttentionRows * a.head_dim;
    for (int64_t first = 0; first < a.limit[a.rows - 1]; first += kChunk) {
        for (int r = 0; r < a.rows; ++r) s.keys[r] = clamp(a.limit[r] - first, kChunk);
        a.f16 ? attention_chunk<true>(a, s, first) : attention_chunk<false>(a, s, first);
    }
    for (int r = 0; r < a.rows; ++r)
        for (int d = 0; d < a.head_dim; ++d) a.out[r][d] = s.out[r * a.head_dim + d] / s.sum[r];
}

}  // namespace
