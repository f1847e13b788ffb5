// Attention over pages of integers. Queries and softmax weights are rounded to integers as well, so scores
// and outputs are exact sums of integers. A unit may add these in any order: pair by pair or, split into
// bytes, in the tiles of a matrix unit.
//
// Keys and values have 13 bits (int16) or 8 (int8, and levels), and weights 16, so that at least 16 products of them stay in
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
#include "attention/counted_pairs.h"
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
    int32_t* sums = nullptr;  // of a block's outputs: [low, high][kAttentionRows][head_dim]
    int16_t* wide = nullptr;  // a chunk's levels as a page of kI16 has integers
    int64_t used = a.head_dim;  // from here on all queries are 0, as padding is

    int64_t padded() const { return padded_head_dim(a.head_dim); }
};

// Whether a pair that many pairs from a line's begin is the first of a line.
template <KvType type>
constexpr bool begins_line(int64_t pair) {
    return pair * int64_t{sizeof(Pair<type>)} % 64 == 0;
}

// Computes the scores of the rows with one page.
template <KvType type>
struct IntegerKeys {
    const Integers& s;
    const uint8_t* page;
    const uint8_t* next;  // the page to prefetch meanwhile
    int j0;  // the page's first position in the chunk

    template <int R>
    void block(int row0) {
        if (s.rows.from[row0] >= j0 + kPage) return;  // the page lies before the rows' windows
        key_blocks<R>(*this, row0, clamp(s.rows.keys[row0 + R - 1] - j0, kPage));
    }

    template <int R>
    void keys_of(int row0, int j) {
        constexpr int N = vectors_of(kVectorsOf<R>);
        VI acc[R][N];
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) STERNA_UNROLL(4)
        for (int v = 0; v < N; ++v) acc[r][v] = i_set1(0);
        const int64_t hd = s.a.head_dim;
        const int16_t* q = s.q + row0 * s.padded();
        const auto* keys = reinterpret_cast<const Pair<type>*>(page) + j * hd / 2;
        const int64_t ahead = row0 == 0 ? next - page : 0, used = s.used;
        for (int64_t d = 0; d < used; d += 2, q += 2 * R) {
            VP k[N];
            STERNA_UNROLL(4)
            for (int v = 0; v < N; ++v) {
                const int lane = kLanes * v % 16;
                const auto* of = keys + kLanes * v / 16 * hd * 8 + d * 8;
                k[v] = load_pairs(of, lane);
                if (ahead && begins_line<type>(d * 8 + lane))
                    ask_ahead(reinterpret_cast<const uint8_t*>(of + lane) + ahead);
            }
            STERNA_UNROLL(8)
            for (int r = 0; r < R; ++r) {
                const VX pair = x_load(q + 2 * r);
                STERNA_UNROLL(4)
                for (int v = 0; v < N; ++v) acc[r][v] = pair_dot(acc[r][v], k[v], pair);
            }
        }
        const float* scales = scales_of(page, type, hd) + j;
        VF scale[N];
        STERNA_UNROLL(4)
        for (int v = 0; v < N; ++v) {
            scale[v] = f_load(scales + kLanes * v);
            if (ahead && kLanes * v % 16 == 0)
                ask_ahead(reinterpret_cast<const uint8_t*>(scales + kLanes * v) + ahead);
        }
        float* out = s.rows.scores[row0] + j0 + j;
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r, out += kChunk) STERNA_UNROLL(4)
        for (int v = 0; v < N; ++v) f_store(out + kLanes * v, f_mul(f_from_i(acc[r][v]), scale[v]));
    }
};

// Sets chunk_out[row] to the weighted sum of a chunk's values. Weights of positions that a row does not see are 0.
template <KvType type>
struct IntegerValues {
    using Pairs = CountedPairs<type>;
    using Part = typename Pairs::Part;
    // Parts that are added together: one, or whole ones that follow each other.
    struct Parts {
        const Part *begin, *end;
        int run;  // the first that they have a share in
    };

    const Integers& s;
    int64_t chunk;  // the chunk's first position
    const int16_t* wide = nullptr;  // its values, if they are not read from pages

    template <int R>
    void block(int row0) {
        Pairs pairs;
        pairs.template find<R>(s.rows, s.w, s.a.head_dim, row0,
                               [&](int position) { return page_of(position); });
        int run = 0;
        for (const Part *part = pairs.part, *all = part + pairs.parts; part < all;) {
            const Part* end = part + 1;
            while (end < all && part->whole && end->whole) ++end;
            add<R>(pairs, row0, {part, end, run});
            part = end;
            while (run < pairs.runs - 1 && pairs.end[run] <= end[-1].to) ++run;
        }
        finish<R>(row0, pairs.runs > 1);
    }

    struct PageAndNext {
        const uint8_t *page, *next;
    };
    PageAndNext page_of(int position) const {
        if (wide) {
            const auto* page = reinterpret_cast<const uint8_t*>(wide + position * s.a.head_dim);
            return {page, page};
        }
        return {value_page(s.a, chunk + position), page_ahead_of_values(s.a, s.rows, position)};
    }

    template <int R>
    void add(const Pairs& pairs, int row0, const Parts& parts) {
        constexpr int V = kVectorsOf<R>;
        int64_t d = 0;
        for (; d + 16 * V <= s.a.head_dim; d += 16 * V) {
            if constexpr (R == kAttentionRows && R * vectors_of(V + 1) <= kAccumulators)
                if (d + 16 * (V + 1) == s.a.head_dim) {  // one vector alone would wait for loads
                    values_of<R, vectors_of(V + 1)>(pairs, row0, d, parts);
                    return;
                }
            values_of<R, vectors_of(V)>(pairs, row0, d, parts);
        }
        for (; d < s.a.head_dim; d += 16) values_of<R, vectors_of(1)>(pairs, row0, d, parts);
    }

    template <int R, int N>
    void values_of(const Pairs& pairs, int row0, int64_t d, const Parts& parts) {
        if (parts.begin->whole) {
            // Later blocks of rows find in L2 what the first have read. Of levels there are few blocks (kMostDirect).
            constexpr bool kLater = R == kAttentionRows && type != KvType::kI4;
            if (kLater && (wide || row0 > 0)) {
                whole_values<R, N, false>(pairs, row0, d, parts);
            } else {
                whole_values<R, N, true>(pairs, row0, d, parts);
            }
            return;
        }
        const Part& part = *parts.begin;
        const int64_t hd = s.a.head_dim;
        const bool asks = row0 == 0 && !wide;
        int32_t* sums = s.sums + d;
        VI acc[R][N];
        begin_sums(acc, sums, part);
        int run = parts.run;
        for (int i = part.from;; ++run) {
            for (const int end = clamp(pairs.end[run], part.to); i < end; ++i) {
                const Pair<type>* values = pairs.values[i] + d;
                if (asks) prefetch_next<N>(values, pairs.ahead[pairs.first[i] / kPage], d);
                add_pair(acc, values, s.w[row0] + pairs.first[i]);
            }
            if (run == pairs.runs - 1 || pairs.end[run] > part.to) break;
            end_run(acc, sums + kAttentionRows * hd, run == 0);
        }
        store_sums(acc, sums);
    }

    // A function of its own, which has all registers. kAhead: whether it asks for the page that is read after each.
    template <int R, int N, bool kAhead>
    [[gnu::noinline]] void whole_values(const Pairs& pairs, int row0, int64_t d,
                                        const Parts& parts) {
        const int64_t hd = s.a.head_dim;
        int32_t* sums = s.sums + d;
        VI acc[R][N];
        begin_sums(acc, sums, *parts.begin);
        int run = parts.run;
        for (const Part* part = parts.begin; part < parts.end; ++part) {
            const Pair<type>* values = pairs.values[part->from] + d;
            const int first = pairs.first[part->from];
            const int16_t* w = s.w[row0] + first;
            const int64_t ahead = pairs.ahead[first / kPage];
            for (int i = part->from;; ++run) {
                for (const int end = clamp(pairs.end[run], part->to); i < end; ++i) {
                    if constexpr (kAhead) prefetch_next<N>(values, ahead, d);
                    add_pair(acc, values, w);
                    values += hd, w += 2;
                }
                if (run == pairs.runs - 1 || pairs.end[run] > part->to) break;
                end_run(acc, sums + kAttentionRows * hd, run == 0);
            }
        }
        store_sums(acc, sums);
    }

    // The lines `ahead` bytes behind N vectors of values.
    template <int N>
    [[gnu::always_inline]] static void prefetch_next(const Pair<type>* values, int64_t ahead,
                                                     int64_t d) {
        const auto* next = reinterpret_cast<const uint8_t*>(values) + ahead;
        STERNA_UNROLL(4)
        for (int v = 0; v < N; ++v)
            if (begins_line<type>(d + kLanes * v))
                ask_ahead(next + kLanes * v * int64_t{sizeof(Pair<type>)});
    }

    template <int R, int N>
    [[gnu::always_inline]] void begin_sums(VI (&acc)[R][N], const int32_t* sums, const Part& part) {
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) STERNA_UNROLL(4)
        for (int v = 0; v < N; ++v)
            acc[r][v] = part.from == 0 ? i_set1(0) : i_load(sums + r * s.a.head_dim + kLanes * v);
    }
    template <int R, int N>
    [[gnu::always_inline]] static void add_pair(VI (&acc)[R][N], const Pair<type>* values,
                                                const int16_t* w) {
        VP x[N];
        STERNA_UNROLL(4)
        for (int v = 0; v < N; ++v)
            x[v] = load_pairs(values + kLanes * v / 16 * 16, kLanes * v % 16);
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) {
            const VX pair = x_load(w + r * kChunk);
            STERNA_UNROLL(4)
            for (int v = 0; v < N; ++v) acc[r][v] = pair_dot(acc[r][v], x[v], pair);
        }
    }
    template <int R, int N>
    [[gnu::always_inline]] void end_run(VI (&acc)[R][N], int32_t* high, bool first) {
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) STERNA_UNROLL(4)
        for (int v = 0; v < N; ++v) carry(high + r * s.a.head_dim + kLanes * v, &acc[r][v], first);
    }
    template <int R, int N>
    [[gnu::always_inline]] void store_sums(const VI (&acc)[R][N], int32_t* sums) {
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) STERNA_UNROLL(4)
        for (int v = 0; v < N; ++v) i_store(sums + r * s.a.head_dim + kLanes * v, acc[r][v]);
    }

    // Adds what is above the low bits of a sum to its high part, or begins this with it.
    static void carry(int32_t* high, VI* sum, bool first) {
        const VI more = i_sar<kLowBits>(*sum);
        i_store(high, first ? more : i_add(i_load(high), more));
        *sum = i_and(*sum, i_set1(kLow));
    }

    template <int R>
    void finish(int row0, bool carried) {
        const int64_t hd = s.a.head_dim;
        for (int r = 0; r < R; ++r) {
            const int32_t* sums = s.sums + r * hd;
            float* out = s.rows.chunk_out + (row0 + r) * hd;
            for (int64_t d = 0; d < hd; d += kLanes, sums += kLanes) {
                const VI high = carried ? i_load(sums + kAttentionRows * hd) : i_set1(0);
                f_store(out + d, scaled_parts(high, i_load(sums), s.w_scale[row0 + r]));
            }
        }
    }
};

// A vector unit's placeholder for a matrix unit's tiles (matrix/attention_tiles.h).
template <KvType keys, KvType values>
struct NoTiles {
    static constexpr bool kUsed = false;
    NoTiles(const sterna::AttentionArgs&, Rows&, uint8_t*) {}
    static constexpr int64_t bytes(int64_t) { return 0; }
};

// Levels are decoded where they are multiplied, in blocks of so many rows; for more than kMostDirect rows once for all of
// them. On Zen 3 (AVX2, head_dim 64) a block decodes in 1.1 ns a position, and once for all of them takes 3.8.
constexpr int kDirectRows = kAttentionRows < 4 ? kAttentionRows : 4;
constexpr int kMostDirect = kLanes == 8 ? 2 * kDirectRows : kDirectRows;

template <KvType keys_type, KvType values_type, template <KvType, KvType> class Tiles>
struct IntegerPages {
    static constexpr bool kScaled = true, kTiles = Tiles<keys_type, values_type>::kUsed;
    static constexpr auto turn = turn_integers<keys_type>;

    const sterna::AttentionArgs& a;
    Rows rows;
    Integers s;
    Tiles<keys_type, values_type> tiles;

    static constexpr int kRows = sterna::kMaxAttentionRows;
    static constexpr int64_t scratch_bytes(int64_t head_dim) {
        return own_bytes(head_dim) + Tiles<keys_type, values_type>::bytes(head_dim);
    }
    static constexpr int64_t own_bytes(int64_t head_dim) {
        return Rows::bytes(head_dim) + kRows * (2 * padded_head_dim(head_dim) + 2 * kChunk + 4) +
               2 * kAttentionRows * head_dim * int64_t{sizeof(int32_t)} +
               kChunk * head_dim * int64_t{sizeof(int16_t)};
    }

    explicit IntegerPages(const sterna::AttentionArgs& a)
        : a(a),
          rows(a.scratch, a.head_dim),
          s{a, rows},
          tiles(a, rows, a.scratch + own_bytes(a.head_dim)) {
        s.sums = reinterpret_cast<int32_t*>(a.scratch + Rows::bytes(a.head_dim));
        s.q = reinterpret_cast<int16_t*>(s.sums + 2 * kAttentionRows * a.head_dim);
        s.w = reinterpret_cast<int16_t (*)[kChunk]>(s.q + kRows * s.padded());
        s.w_scale = reinterpret_cast<float*>(s.w[kRows]);
        s.wide = reinterpret_cast<int16_t*>(s.w_scale + kRows);
        if (!a.queries_ready) put_queries();
        if constexpr (kTiles) tiles.begin(s.q);
    }
    void end() {
        if constexpr (kTiles) tiles.end();
    }
    void put_queries() {
        const int levels = sterna::query_levels(keys_type, a.head_dim);
        s.used = 0;
        for (int r = 0; r < a.rows; ++r) {
            const float* x = a.q[r];
            if constexpr (sterna::kv_rotated(keys_type)) {
                __builtin_memcpy(rows.chunk_out, x, static_cast<size_t>(a.head_dim) * sizeof *x);
                rotate(rows.chunk_out, a.head_dim);
                x = rows.chunk_out;
            }
            const Rounding rounding(x, a.head_dim, levels);
            put_query(r, x, rounding);
            rows.scale[r] = rounding.scale * (a.scale * kLog2E);
        }
    }
    // The rows of a block pass over the keys together, so their pairs of elements are adjacent.
    void put_query(int r, const float* x, const Rounding& rounding) {
        const int in_block = kTiles ? 0 : r % kAttentionRows, row0 = r - in_block;
        const int together = kTiles ? 1 : clamp(a.rows - row0, kAttentionRows);
        int16_t* to = s.q + row0 * s.padded() + 2 * in_block;
        for (int64_t d = 0; d < s.padded(); d += 16) {
            int16_t q[16] = {};
            if (d < a.head_dim) rounding.round16(x + d, q);
            for (int i = 0; i < 16; i += 2, to += 2 * together) {
                __builtin_memcpy(to, q + i, 4);
                if ((q[i] | q[i + 1]) && s.used < d + i + 2) s.used = d + i + 2;
            }
        }
    }

    void scores(int64_t first) {
        for (int j = rows.first_page; j < rows.keys[a.rows - 1]; j += kPage) {
            const uint8_t* page = page_at(a, a.k_base, first + j);
            if constexpr (kTiles) {
                tiles.scores(page, j);
            } else {
                if (!a.turned) prefetch_scales(first + j);
                IntegerKeys<keys_type> blocks{s, page, page_ahead_of_keys(a, rows, j), j};
                row_blocks(a.rows, blocks);
            }
        }
    }

    // Those of the values, which the softmax reads.
    void prefetch_scales(int64_t position) const {
        const auto* scales = reinterpret_cast<const uint8_t*>(value_scales(position));
        for (int i = 0; i < kPage * 4; i += 64) prefetch_l2_surely(scales + i);
    }
    const float* value_scales(int64_t position) const {
        return scales_of(value_page(a, position), values_type, a.head_dim);
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
            return;
        }
        if constexpr (values_type == KvType::kI4) {
            if (a.rows <= kMostDirect) {
                IntegerValues<values_type> blocks{s, first};
                row_blocks<kDirectRows>(a.rows, blocks);
            } else {
                widen(first);
                IntegerValues<KvType::kI16> blocks{s, first, s.wide};
                row_blocks(a.rows, blocks);
            }
        } else {
            IntegerValues<values_type> blocks{s, first};
            row_blocks(a.rows, blocks);
        }
    }
    void widen(int64_t first) {
        for (int j = rows.first_page; j < rows.keys[a.rows - 1]; j += kPage) {
            const uint8_t* page = value_page(a, first + j);
            const int64_t ahead = page_ahead_of_values(a, rows, j) - page;
            const auto* from = reinterpret_cast<const Pair<values_type>*>(page);
            auto* to = reinterpret_cast<Pair<KvType::kI16>*>(s.wide + j * a.head_dim);
            for (int64_t i = 0; i < kPage / 2 * a.head_dim; i += 16) {
                if (ahead) ask_ahead<1>(page + ahead + i);
                for (int lane = 0; lane < 16; lane += kLanes)
                    i_store(to + i + lane, w_load_levels(kValueLevels, &from[i].byte, lane));
            }
        }
    }
};

}  // namespace
