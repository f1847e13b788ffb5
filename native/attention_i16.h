// Attention over pages of int16. Queries and softmax weights are rounded to integers too, so that scores
// and outputs are exact sums of integers: any unit may add them in any order, pair by pair or, cut
// into bytes, in the tiles of a matrix unit.
//
// Keys and values have 13 bits and weights 16, so that 16 products of them stay in int32; queries have 14 bits
// up to a head_dim of 64, and one less for each doubling.
//
//   score[j] = float(sum_d q[d] k[j][d]) * k_scale[j]                        exact in int32
//   w[j]     = round(x[j] * (32767 / max x)), x[j] = p[j] * v_scale[j]       p: the softmax, of a chunk
//   out[d]   = float(sum_j w[j] v[j][d]) * (max x / 32767)                   below 2^35, rounded once
//
// A weight below 1/65534 of its chunk's largest counts as zero: at most 0.4 % of that weight is lost so.
#pragma once
#include "attention_rows.h"
#include "attention_tiles.h"
#include "integer_sums.h"
#include "unroll.h"

namespace {

constexpr int vectors_of(int V) { return V * 16 / kLanes; }

// What the blocks of rows work on.
struct Integers {
    const sterna::AttentionArgs& a;
    Rows& rows;
    int16_t* q = nullptr;  // [rows][padded head_dim]
    int16_t (*w)[kChunk] = nullptr;  // [rows]
    float* w_scale = nullptr;  // [rows]

    int64_t padded() const { return padded_head_dim(a.head_dim); }
};

// Scores of the rows against one page.
struct IntegerKeys {
    const Integers& s;
    const uint8_t* page;
    int j0;  // of the page, in the chunk

    template <int R>
    void block(int row0) {
        key_blocks<R>(*this, row0, clamp(s.rows.keys[row0 + R - 1] - j0, kPage));
    }

    template <int R, int V>
    void keys_of(int row0, int j) {
        constexpr int N = vectors_of(V);
        VI acc[R][N];
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) STERNA_UNROLL(2)
        for (int v = 0; v < N; ++v) acc[r][v] = i_set1(0);
        const int64_t hd = s.a.head_dim, padded = s.padded();
        const int16_t* q = s.q + row0 * padded;
        const auto* keys = reinterpret_cast<const int16_t*>(page) + j * hd;
        for (int64_t d = 0; d < hd; d += 2) {
            VI k[N];
            STERNA_UNROLL(2)
            for (int v = 0; v < N; ++v)
                k[v] = i_load(keys + kLanes * v / 16 * hd * 16 + d * 16 + kLanes * v % 16 * 2);
            STERNA_UNROLL(8)
            for (int r = 0; r < R; ++r) {
                const VI pair = x_broadcast(q + r * padded + d);
                STERNA_UNROLL(2)
                for (int v = 0; v < N; ++v) acc[r][v] = pair_dot(acc[r][v], pair, k[v]);
            }
        }
        const auto* scales = reinterpret_cast<const float*>(page + scales_at(hd)) + j;
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) STERNA_UNROLL(2)
        for (int v = 0; v < N; ++v) {
            f_store(s.rows.scores[row0 + r] + j0 + j + kLanes * v,
                    f_mul(f_from_i(acc[r][v]), f_load(scales + kLanes * v)));
        }
    }
};

// chunk_out[row] = the weighted sum of a chunk's values. Weights beyond what a row sees are zero.
struct IntegerValues {
    const Integers& s;
    int64_t first;  // of the chunk

    template <int R>
    void block(int row0) {
        constexpr int V = kAttentionVectors;
        const int64_t hd = s.a.head_dim;
        int64_t d = 0;
        for (; d + 16 * V <= hd; d += 16 * V) values_of<R, vectors_of(V)>(row0, d);
        for (; d < hd; d += 16) values_of<R, vectors_of(1)>(row0, d);
    }

    template <int R, int N>
    void values_of(int row0, int64_t d) {
        const int keys = s.rows.keys[row0 + R - 1];
        VI high[R][N], low[R][N];
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < N; ++v) high[r][v] = low[r][v] = i_set1(0);
        constexpr int kRun = sterna::kExactPositions;
        for (int j0 = 0; j0 < keys; j0 += kRun) {
            const auto* values =
                reinterpret_cast<const int16_t*>(page_at(s.a, s.a.v_base, first + j0)) +
                j0 % kPage * s.a.head_dim + 2 * d;
            VI acc[R][N];
            STERNA_UNROLL(8)
            for (int r = 0; r < R; ++r) STERNA_UNROLL(2)
            for (int v = 0; v < N; ++v) acc[r][v] = i_set1(0);
            for (int j = 0; j < kRun; j += 2, values += 2 * s.a.head_dim) {
                VI x[N];
                STERNA_UNROLL(2)
                for (int v = 0; v < N; ++v) x[v] = i_load(values + 2 * kLanes * v);
                STERNA_UNROLL(8)
                for (int r = 0; r < R; ++r) {
                    const VI pair = x_broadcast(s.w[row0 + r] + j0 + j);
                    STERNA_UNROLL(2)
                    for (int v = 0; v < N; ++v) acc[r][v] = pair_dot(acc[r][v], pair, x[v]);
                }
            }
            STERNA_UNROLL(8)
            for (int r = 0; r < R; ++r) STERNA_UNROLL(2)
            for (int v = 0; v < N; ++v) add_parts(&high[r][v], &low[r][v], acc[r][v]);
        }
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < N; ++v)
                f_store(s.rows.chunk_out + (row0 + r) * s.a.head_dim + d + kLanes * v,
                        scaled_parts(high[r][v], low[r][v], s.w_scale[row0 + r]));
    }
};

struct IntegerPages {
    static constexpr bool kScaled = true;

    const sterna::AttentionArgs& a;
    Rows rows;
    Integers s;
    AttentionTiles tiles;

    static constexpr int kRows = sterna::kMaxAttentionRows;
    static constexpr int64_t scratch_bytes(int64_t head_dim) {
        return own_bytes(head_dim) + AttentionTiles::bytes(head_dim);
    }
    static constexpr int64_t own_bytes(int64_t head_dim) {
        return Rows::bytes(head_dim) + kRows * (2 * padded_head_dim(head_dim) + 2 * kChunk + 4);
    }

    explicit IntegerPages(const sterna::AttentionArgs& a)
        : a(a),
          rows(a.scratch, a.head_dim),
          s{a, rows},
          tiles(a, rows, a.scratch + own_bytes(a.head_dim)) {
        const int64_t padded = padded_head_dim(a.head_dim);
        s.q = reinterpret_cast<int16_t*>(a.scratch + Rows::bytes(a.head_dim));
        s.w = reinterpret_cast<int16_t (*)[kChunk]>(s.q + kRows * padded);
        s.w_scale = reinterpret_cast<float*>(s.w[kRows]);
        const int levels = sterna::query_levels(a.head_dim);
        for (int r = 0; r < a.rows; ++r) {
            const Rounding rounding(a.q[r], a.head_dim, levels);
            int16_t* q = s.q + r * padded;
            for (int64_t d = 0; d < a.head_dim; d += 16) rounding.round16(a.q[r] + d, q + d);
            for (int64_t d = a.head_dim; d < padded; ++d) q[d] = 0;
            rows.scale[r] = rounding.scale * (a.scale * kLog2E);
        }
        if (tiles.used()) tiles.begin(s.q);
    }
    void end() {
        if (tiles.used()) tiles.end();
    }

    void scores(int64_t first) {
        for (int j = 0; j < rows.keys[a.rows - 1]; j += kPage) {
            const uint8_t* page = page_at(a, a.k_base, first + j);
            if (tiles.used()) {
                tiles.scores(page, j);
            } else {
                IntegerKeys blocks{s, page, j};
                row_blocks(a.rows, blocks);
            }
        }
    }

    const float* value_scales(int64_t position) const {
        return reinterpret_cast<const float*>(page_at(a, a.v_base, position) +
                                              scales_at(a.head_dim));
    }
    // A row's weights, whose largest is `most`, as integers; zeros where it sees no keys. A NaN is lost here,
    // but not in the softmax's sum, which divides the output.
    void weights(int r, float most) {
        const int keys = whole_pages(rows.keys[r]);
        const VF inverse = f_set1(sterna::kWeightLevels / (keys ? most : 1.0f));
        const float* x = rows.scores[r];
        int16_t* w = s.w[r];
        int j = 0;
        STERNA_UNROLL(4)
        for (; j < keys; j += kLanes) i_store_i16(w + j, i_round(f_mul(f_load(x + j), inverse)));
        for (; j < kChunk; j += kLanes) i_store_i16(w + j, i_set1(0));
        s.w_scale[r] = most / sterna::kWeightLevels;
    }

    void values(int64_t first) {
        if (tiles.used()) {
            tiles.values(first, s.w, s.w_scale);
        } else {
            IntegerValues blocks{s, first};
            row_blocks(a.rows, blocks);
        }
    }
};

}  // namespace
