// Attention over pages of integers. Queries and softmax weights are rounded to integers as well, so scores
// and outputs are exact sums of integers. A unit may add these in any order: pair by pair or, split into
// bytes, in the tiles of a matrix unit.
//
// Keys and values have 13 bits (int16) or 8 (int8), and weights 16, so that at least 16 products of them stay in
// int32. Queries have 14 bits; with int16 pages and a head_dim of 128 or more, they have one bit less for each
// doubling.
//
//   score[j] = float(sum_d q[d] k[j][d]) * k_scale[j]                        exact in int32
//   w[j]     = round(x[j] * (32767 / max x)), x[j] = p[j] * v_scale[j]       p: the softmax, of a chunk
//   out[d]   = float(sum_j w[j] v[j][d]) * (max x / 32767)                   below 2^35, rounded once
//
// A weight below 1/65534 of its chunk's largest counts as zero, which loses at most 0.4 % of the largest
// weight. If the weights of a pair of positions are zero in all rows of a block, the pair's values are not read.
#pragma once
#include "attention/attention_rows.h"
#include "attention/integer_sums.h"
#include "attention/kv_pages.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

constexpr int vectors_of(int V) { return V * 16 / kLanes; }

// Working memory of the blocks of rows.
struct Integers {
    const sterna::AttentionArgs& a;
    Rows& rows;
    int16_t* q =
        nullptr;  // for each block of rows [padded head_dim / 2][rows][2]; for tiles [rows][padded head_dim]
    int16_t (*w)[kChunk] = nullptr;  // [rows]
    float* w_scale = nullptr;  // [rows]
    int32_t* sums =
        nullptr;  // sums of a block's outputs: [of a run, high, low][kAttentionRows][head_dim]

    int64_t padded() const { return padded_head_dim(a.head_dim); }
};

// Computes the scores of the rows with one page.
template <class Element>
struct IntegerKeys {
    const Integers& s;
    const uint8_t* page;
    const uint8_t* next;  // the page to be read after it
    int j0;  // the page's first position in the chunk

    template <int R>
    void block(int row0) {
        if (s.rows.from[row0] >= j0 + kPage) return;  // the page lies before the rows' windows
        key_blocks<R>(*this, row0, clamp(s.rows.keys[row0 + R - 1] - j0, kPage));
    }

    template <int R>
    void keys_of(int row0, int j) {
        constexpr int V = kAttentionVectors, N = vectors_of(V);
        VI acc[R][N];
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) STERNA_UNROLL(4)
        for (int v = 0; v < N; ++v) acc[r][v] = i_set1(0);
        const int64_t hd = s.a.head_dim;
        const int16_t* q = s.q + row0 * s.padded();
        const auto* keys = reinterpret_cast<const Element*>(page) + j * hd;
        const int64_t ahead = row0 == 0 ? next - page : 0;
        for (int64_t d = 0; d < hd; d += 2, q += 2 * R) {
            VP k[N];
            STERNA_UNROLL(4)
            for (int v = 0; v < N; ++v) {
                const auto* of = keys + kLanes * v / 16 * hd * 16 + d * 16 + kLanes * v % 16 * 2;
                k[v] = load_pairs(of);
                if (ahead) prefetch_l2(reinterpret_cast<const uint8_t*>(of) + ahead);
            }
            STERNA_UNROLL(8)
            for (int r = 0; r < R; ++r) {
                const VX pair = x_load(q + 2 * r);
                STERNA_UNROLL(4)
                for (int v = 0; v < N; ++v) acc[r][v] = pair_dot(acc[r][v], k[v], pair);
            }
        }
        const auto* scales = reinterpret_cast<const float*>(page + scales_at<Element>(hd)) + j;
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) STERNA_UNROLL(4)
        for (int v = 0; v < N; ++v) {
            f_store(s.rows.scores[row0 + r] + j0 + j + kLanes * v,
                    f_mul(f_from_i(acc[r][v]), f_load(scales + kLanes * v)));
        }
    }
};

// The pairs of positions of a chunk that have a nonzero weight in a block of rows. They are split into runs, so that
// the sums of a run stay in int32.
template <class Element>
struct CountedPairs {
    static constexpr int kPairs = kChunk / 2, kAhead = kPage / 2;
    // The limit for the sum of a row's weights in one run.
    static constexpr int32_t kMostWeight = INT32_MAX / sterna::kv_levels(sizeof(Element));
    static constexpr int kRuns = kPairs / (kMostWeight / (2 * sterna::kWeightLevels)) + 1;
    static_assert(kMostWeight >= 2 * sterna::kWeightLevels);

    const Element* values[kPairs + kAhead];  // followed by values to prefetch
    int32_t first[kPairs];  // first position, counted from the chunk's start
    int end[kRuns], runs = 0;

    template <int R>
    void find(const Integers& s, int64_t chunk, int row0) {
        int32_t most[kPairs];  // the largest of the rows' weights of a pair
        constexpr int16_t kOnes[2] = {1, 1};
        const VX ones = x_load(kOnes);
        const int begin = s.rows.first_page / 2;
        const int pairs = whole_pages(s.rows.keys[row0 + R - 1]) / 2;
        for (int i = begin; i < pairs; i += kLanes) {
            VI m = i_set1(0);
            STERNA_UNROLL(8)
            for (int r = 0; r < R; ++r)
                m = i_max(m, pair_dot(i_set1(0), i_pairs(i_load(s.w[row0 + r] + 2 * i)), ones));
            i_store(most + i, m);
        }
        int n = 0;
        int32_t weight = 0;
        for (int page = begin; page < pairs; page += kPage / 2) {
            const auto* of_page =
                reinterpret_cast<const Element*>(page_at(s.a, s.a.v_base, chunk + 2 * page));
            for (int i = page; i < page + kPage / 2; ++i, of_page += 2 * s.a.head_dim) {
                weight += most[i];
                if (weight > kMostWeight) end[runs++] = n, weight = most[i];
                values[n] = of_page;
                first[n] = 2 * i;
                n += most[i] > 0;
            }
        }
        end[runs++] = n;
        const auto* next = reinterpret_cast<const Element*>(page_after_chunk(s.a, chunk));
        for (int i = 0; i < kAhead; ++i) values[n + i] = next + i * 2 * s.a.head_dim;
    }
};

// Sets chunk_out[row] to the weighted sum of a chunk's values. Weights of positions that a row does not see are 0.
template <class Element>
struct IntegerValues {
    using Pairs = CountedPairs<Element>;
    const Integers& s;
    int64_t chunk;  // the chunk's first position

    template <int R>
    void block(int row0) {
        Pairs pairs;
        pairs.template find<R>(s, chunk, row0);
        for (int run = 0, from = 0; run < pairs.runs; ++run) {
            // As many pairs as a page has at a time: L1 holds them while parts of head_dim are added one by one.
            for (bool fresh = true; fresh || from < pairs.end[run]; fresh = false) {
                const int to = clamp(pairs.end[run], from + Pairs::kAhead);
                add<R>(pairs, row0, from, to, fresh);
                from = to;
            }
            finish<R>(row0, run == 0, run == pairs.runs - 1);
        }
    }

    // Prefetches the lines of later pairs in the order of memory, so that the hardware prefetcher follows.
    struct Lines {
        const Element* const* pair;
        int64_t elements;  // elements of a pair
        int64_t at = 0;
        void ask() {
            prefetch_l2(*pair + at);
            at += 64 / int64_t{sizeof(Element)};
            if (at >= elements) at = 0, ++pair;
        }
    };

    template <int R>
    void add(const Pairs& pairs, int row0, int from, int to, bool fresh) {
        constexpr int V = kAttentionVectors;
        Lines next{pairs.values + from + (s.a.next_page ? Pairs::kAhead : 0), 2 * s.a.head_dim};
        int64_t d = 0;
        for (; d + 16 * V <= s.a.head_dim; d += 16 * V)
            values_of<R, vectors_of(V)>(pairs, row0, d, from, to, fresh, next);
        for (; d < s.a.head_dim; d += 16)
            values_of<R, vectors_of(1)>(pairs, row0, d, from, to, fresh, next);
    }

    template <int R, int N>
    void values_of(const Pairs& pairs, int row0, int64_t d, int from, int to, bool fresh,
                   Lines& ahead) {
        Lines next = ahead;
        VI acc[R][N];
        int32_t* sums = s.sums + d;
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) STERNA_UNROLL(4)
        for (int v = 0; v < N; ++v)
            acc[r][v] = fresh ? i_set1(0) : i_load(sums + r * s.a.head_dim + kLanes * v);
        for (int i = from; i < to; ++i) {
            VP x[N];
            STERNA_UNROLL(4)
            for (int v = 0; v < N; ++v) x[v] = load_pairs(pairs.values[i] + 2 * (d + kLanes * v));
            if (row0 == 0) next.ask();
            const int16_t* w = s.w[row0] + pairs.first[i];
            STERNA_UNROLL(8)
            for (int r = 0; r < R; ++r) {
                const VX pair = x_load(w + r * kChunk);
                STERNA_UNROLL(4)
                for (int v = 0; v < N; ++v) acc[r][v] = pair_dot(acc[r][v], x[v], pair);
            }
        }
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) STERNA_UNROLL(4)
        for (int v = 0; v < N; ++v) i_store(sums + r * s.a.head_dim + kLanes * v, acc[r][v]);
        ahead = next;
    }

    // Adds a run's sums to those of earlier runs and, after the last run, writes the outputs.
    template <int R>
    void finish(int row0, bool first, bool last) {
        const int64_t hd = s.a.head_dim, part = kAttentionRows * hd;
        for (int r = 0; r < R; ++r) {
            int32_t* sums = s.sums + r * hd;
            float* out = s.rows.chunk_out + (row0 + r) * hd;
            for (int64_t d = 0; d < hd; d += kLanes, sums += kLanes) {
                VI high = first ? i_set1(0) : i_load(sums + part);
                VI low = first ? i_set1(0) : i_load(sums + 2 * part);
                add_parts(&high, &low, i_load(sums));
                if (last) {
                    f_store(out + d, scaled_parts(high, low, s.w_scale[row0 + r]));
                } else {
                    i_store(sums + part, high);
                    i_store(sums + 2 * part, low);
                }
            }
        }
    }
};

// A vector unit's placeholder for a matrix unit's tiles (matrix/attention_tiles.h).
template <class Element>
struct NoTiles {
    static constexpr bool kUsed = false;
    NoTiles(const sterna::AttentionArgs&, Rows&, uint8_t*) {}
    static constexpr int64_t bytes(int64_t) { return 0; }
};

// Element: int16_t or int8_t. With int8_t keys, values and queries are rotated (kv_pages.h).
template <class Element, template <class> class Tiles>
struct IntegerPages {
    static constexpr bool kScaled = true, kTiles = Tiles<Element>::kUsed;

    const sterna::AttentionArgs& a;
    Rows rows;
    Integers s;
    Tiles<Element> tiles;

    static constexpr int kRows = sterna::kMaxAttentionRows;
    static constexpr int64_t scratch_bytes(int64_t head_dim) {
        return own_bytes(head_dim) + Tiles<Element>::bytes(head_dim);
    }
    static constexpr int64_t own_bytes(int64_t head_dim) {
        return Rows::bytes(head_dim) + kRows * (2 * padded_head_dim(head_dim) + 2 * kChunk + 4) +
               3 * kAttentionRows * head_dim * int64_t{sizeof(int32_t)};
    }

    explicit IntegerPages(const sterna::AttentionArgs& a)
        : a(a),
          rows(a.scratch, a.head_dim),
          s{a, rows},
          tiles(a, rows, a.scratch + own_bytes(a.head_dim)) {
        s.sums = reinterpret_cast<int32_t*>(a.scratch + Rows::bytes(a.head_dim));
        s.q = reinterpret_cast<int16_t*>(s.sums + 3 * kAttentionRows * a.head_dim);
        s.w = reinterpret_cast<int16_t (*)[kChunk]>(s.q + kRows * s.padded());
        s.w_scale = reinterpret_cast<float*>(s.w[kRows]);
        const int levels = sterna::query_levels(sizeof(Element), a.head_dim);
        for (int r = 0; r < a.rows; ++r) {
            const float* x = a.q[r];
            if constexpr (kRotated<Element>) {
                __builtin_memcpy(rows.chunk_out, x, static_cast<size_t>(a.head_dim) * sizeof *x);
                rotate(rows.chunk_out, a.head_dim);
                x = rows.chunk_out;
            }
            const Rounding rounding(x, a.head_dim, levels);
            put_query(r, x, rounding);
            rows.scale[r] = rounding.scale * (a.scale * kLog2E);
        }
        if constexpr (kTiles) tiles.begin(s.q);
    }
    void end() {
        if constexpr (kTiles) tiles.end();
    }
    // The rows of a block pass over the keys together, so their pairs of elements are adjacent.
    void put_query(int r, const float* x, const Rounding& rounding) {
        const int in_block = kTiles ? 0 : r % kAttentionRows, row0 = r - in_block;
        const int together = kTiles ? 1 : clamp(a.rows - row0, kAttentionRows);
        int16_t* to = s.q + row0 * s.padded() + 2 * in_block;
        for (int64_t d = 0; d < s.padded(); d += 16) {
            int16_t q[16] = {};
            if (d < a.head_dim) rounding.round16(x + d, q);
            for (int i = 0; i < 16; i += 2, to += 2 * together) to[0] = q[i], to[1] = q[i + 1];
        }
    }

    void scores(int64_t first) {
        for (int j = rows.first_page; j < rows.keys[a.rows - 1]; j += kPage) {
            const uint8_t* page = page_at(a, a.k_base, first + j);
            if constexpr (kTiles) {
                tiles.scores(page, j);
            } else {
                IntegerKeys<Element> blocks{s, page, page_after_keys(a, rows, first, j), j};
                row_blocks(a.rows, blocks);
            }
        }
    }

    const float* value_scales(int64_t position) const {
        return reinterpret_cast<const float*>(page_at(a, a.v_base, position) +
                                              scales_at<Element>(a.head_dim));
    }
    // Rounds a row's weights to integers; the largest of them is `most`. They are zeros where the row sees no keys. A
    // NaN is lost here, but not in the softmax's sum, which divides the output.
    void weights(int r, float most) {
        const bool seen = rows.from[r] < rows.keys[r];
        const int begin = page_begin(rows.from[r]), keys = whole_pages(rows.keys[r]);
        const VF inverse = f_set1(sterna::kWeightLevels / (seen ? most : 1.0f));
        const float* x = rows.scores[r];
        int16_t* w = s.w[r];
        int j = 0;
        for (; j < begin; j += kLanes) i_store_i16(w + j, i_set1(0));
        STERNA_UNROLL(4)
        for (; j < keys; j += kLanes) i_store_i16(w + j, i_round(f_mul(f_load(x + j), inverse)));
        for (; j < kChunk; j += kLanes) i_store_i16(w + j, i_set1(0));
        s.w_scale[r] = most / sterna::kWeightLevels;
    }

    void values(int64_t first) {
        if constexpr (kTiles) {
            tiles.values(first, s.w, s.w_scale);
        } else {
            IntegerValues<Element> blocks{s, first};
            row_blocks(a.rows, blocks);
        }
    }
};

}  // namespace
