// Attention over pages of floats, in fused multiply-adds. A score sums over head_dim in ascending order, with
// keys as lanes. An output sums over positions in ascending order, with head_dim as lanes.
#pragma once
#include "attention/attention_rows.h"
#include "lanes.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

template <bool kF16>
inline F16x load_kv(const uint8_t* base, int64_t element) {
    if constexpr (kF16) {
        return l_load_f16(reinterpret_cast<const uint16_t*>(base) + element);
    } else {
        return l_load(reinterpret_cast<const float*>(base) + element);
    }
}

template <bool kF16>
inline void prefetch_kv(const uint8_t* base, int64_t element) {
    ask_ahead<kF16 ? 2 : 3>(base + element * (kF16 ? 2 : 4));  // sixteen f16 are half a line
}

// Computes the scores of the rows with the keys of one page, 16 keys at a time. Scores of positions that a row does
// not see are masked later.
template <bool kF16>
struct FloatKeys {
    const sterna::AttentionArgs& a;
    Rows& s;
    const uint8_t *page, *next;  // next: the page to prefetch meanwhile
    int j0;  // the page's first position in the chunk

    template <int R>
    void block(int row0) {
        if (s.from[row0] >= j0 + kPage) return;  // the page lies before the rows' windows
        key_blocks<R>(*this, row0, clamp(s.keys[row0 + R - 1] - j0, kPage));
    }

    template <int R>
    void keys_of(int row0, int j) {
        constexpr int V = kVectorsOf<R>;
        F16x acc[R][V];
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) STERNA_UNROLL(4)
        for (int v = 0; v < V; ++v) acc[r][v] = l_set1(0.0f);
        const bool ahead = row0 == 0 && next != page;
        for (int64_t d = 0; d < a.head_dim; ++d) {
            F16x k[V];
            STERNA_UNROLL(4)
            for (int v = 0; v < V; ++v) {
                const int64_t element = ((j / 16 + v) * a.head_dim + d) * 16;
                k[v] = load_kv<kF16>(page, element);
                if (ahead) prefetch_kv<kF16>(next, element);
            }
            STERNA_UNROLL(8)
            for (int r = 0; r < R; ++r) {
                const F16x q = l_set1(a.q[row0 + r][d]);
                STERNA_UNROLL(4)
                for (int v = 0; v < V; ++v) acc[r][v] = l_fma(q, k[v], acc[r][v]);
            }
        }
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) STERNA_UNROLL(4)
        for (int v = 0; v < V; ++v) l_store(s.scores[row0 + r] + j0 + j + 16 * v, acc[r][v]);
    }
};

// chunk_out[row] += sum_j p[row][j] * v[j] over one page.
template <bool kF16>
struct FloatValues {
    const sterna::AttentionArgs& a;
    Rows& s;
    const uint8_t *page, *next;
    int j0;

    // Rows attend to different keys. All rows share the keys in the middle, but not those before and after.
    template <int R>
    void block(int row0) {
        int from[R], to[R];
        for (int r = 0; r < R; ++r) {
            from[r] = clamp(s.from[row0 + r] - j0, kPage);
            to[r] = clamp(s.keys[row0 + r] - j0, kPage);
        }
        const int begin = from[R - 1], end = to[0] > begin ? to[0] : begin;
        for (int r = 0; r + 1 < R; ++r) positions<1>(row0 + r, from[r], clamp(to[r], begin));
        positions<R>(row0, begin, end);
        for (int r = 1; r < R; ++r) positions<1>(row0 + r, end, to[r]);
    }

    template <int R>
    void positions(int row0, int from, int to) {
        constexpr int V = kVectorsOf<R>;
        if (from >= to) return;
        int64_t d = 0;
        for (; d + 16 * V <= a.head_dim; d += 16 * V) values_of<R, V>(row0, from, to, d);
        for (; d < a.head_dim; d += 16) values_of<R, 1>(row0, from, to, d);
    }

    template <int R, int V>
    void values_of(int row0, int from, int to, int64_t d) {
        float* out = s.chunk_out + row0 * a.head_dim + d;
        F16x acc[R][V];
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) STERNA_UNROLL(4)
        for (int v = 0; v < V; ++v) acc[r][v] = l_load(out + r * a.head_dim + 16 * v);
        int64_t element = from * int64_t{a.head_dim} + d;
        const bool ahead = row0 == 0 && next != page;
        for (int j = from; j < to; ++j, element += a.head_dim) {
            F16x x[V];
            STERNA_UNROLL(4)
            for (int v = 0; v < V; ++v) {
                x[v] = load_kv<kF16>(page, element + 16 * v);
                if (ahead) prefetch_kv<kF16>(next, element + 16 * v);
            }
            STERNA_UNROLL(8)
            for (int r = 0; r < R; ++r) {
                const F16x weight = l_set1(s.scores[row0 + r][j0 + j]);
                STERNA_UNROLL(4)
                for (int v = 0; v < V; ++v) acc[r][v] = l_fma(weight, x[v], acc[r][v]);
            }
        }
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) STERNA_UNROLL(4)
        for (int v = 0; v < V; ++v) l_store(out + r * a.head_dim + 16 * v, acc[r][v]);
    }
};

template <bool kF16>
struct FloatPages {
    static constexpr bool kScaled = false;  // whether each position of a page has a scale
    static constexpr auto turn = turn_floats<kF16>;

    const sterna::AttentionArgs& a;
    Rows rows;
    float* wide;  // [kPage * head_dim]: a page widened

    explicit FloatPages(const sterna::AttentionArgs& a)
        : a(a),
          rows(a.scratch, a.head_dim),
          wide(reinterpret_cast<float*>(a.scratch + Rows::bytes(a.head_dim))) {
        for (int r = 0; r < a.rows; ++r) rows.scale[r] = a.scale * kLog2E;
    }
    static constexpr int64_t scratch_bytes(int64_t head_dim) {
        return Rows::bytes(head_dim) + kPage * head_dim * int64_t{sizeof(float)};
    }

    void end() {}
    const float* value_scales(int64_t) const { return nullptr; }
    void scores(int64_t first) {
        const auto keys = [this](int64_t position) { return page_at(a, a.k_base, position); };
        const auto ahead = [this](int j) { return page_ahead_of_keys(a, rows, j); };
        all_pages<FloatKeys>(first, keys, ahead);
    }
    void values(int64_t first) {
        for (int64_t i = 0; i < a.rows * a.head_dim; ++i) rows.chunk_out[i] = 0.0f;
        const auto values = [this](int64_t position) { return value_page(a, position); };
        const auto ahead = [this](int j) { return page_ahead_of_values(a, rows, j); };
        all_pages<FloatValues>(first, values, ahead);
    }

    // Works a page at a time, so that all rows read it from L1. If several blocks of rows read it, f16 is widened once
    // for all of them.
    template <template <bool> class Blocks, class PageOf, class Ahead>
    void all_pages(int64_t first, PageOf page_of, Ahead ahead) {
        for (int j = rows.first_page; j < rows.keys[a.rows - 1]; j += kPage) {
            const uint8_t* page = page_of(first + j);
            if (kF16 && a.rows > kAttentionRows) {
                const uint8_t* next = ahead(j);
                for (int64_t i = 0; i < int64_t{kPage} * a.head_dim; i += 16) {
                    l_store(wide + i, load_kv<true>(page, i));
                    if (next != page) prefetch_kv<true>(next, i);
                }
                const auto* widened = reinterpret_cast<const uint8_t*>(wide);
                Blocks<false> blocks{a, rows, widened, widened, j};
                row_blocks(a.rows, blocks);
            } else {
                Blocks<kF16> blocks{a, rows, page, ahead(j), j};
                row_blocks(a.rows, blocks);
            }
        }
    }
};

}  // namespace
