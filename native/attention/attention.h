// Softmax attention over a paged KV cache.
//
// Positions are summed in absolute chunks of 256. Each chunk gives (max, sum, partial output), and chunks
// are merged in ascending order, so the result does not depend on how a prompt was split into steps.
// Within a chunk the softmax sum runs in sixteen lanes. The order of sums in scores and outputs depends on
// the type of the pages: see attention_float.h and attention_integers.h.
#pragma once
#include "attention/attention_float.h"
#include "attention/attention_integers.h"
#include "attention/attention_rows.h"
#include "lanes.h"
#include "scalar_math.h"
#include "units/kernel_table.h"

namespace {

// Caps the scores of a row, and turns them into logarithms to base 2.
inline void cap_scores(const sterna::AttentionArgs& a, Rows& s, int r) {
    const float most = a.cap * kLog2E;
    const F16x cap = l_set1(most), inverse = l_set1(s.scale[r] / most);
    for (int j = s.from[r] / 16 * 16; j < s.keys[r]; j += 16)
        l_store(s.scores[r] + j, l_cap(l_load(s.scores[r] + j), cap, inverse));
}

// Takes the row's slope times a key's distance from the scores of a row, which become logarithms to base 2. unit: as
// below.
inline void add_distances(const sterna::AttentionArgs& a, Rows& s, int r, int64_t first,
                          float unit) {
    static constexpr float kAscending[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const F16x scale = l_set1(unit), minus_slope = l_set1(-a.slopes[r]);
    const F16x ascending = l_load(kAscending);
    const int64_t own = int64_t{a.next[r]} - 1;
    for (int j = s.from[r] / 16 * 16; j < s.keys[r]; j += 16) {
        const F16x after = l_add(l_set1(static_cast<float>(first + j - own)), ascending);
        const F16x bias = l_mul(minus_slope, l_abs(after));
        l_store(s.scores[r] + j, l_fma(l_load(s.scores[r] + j), scale, bias));
    }
}

// Returns the largest logarithm of a row; a logarithm is `scale` times a score. Sets the other scores of the row's
// first and last page to -inf.
inline float largest_log(Rows& s, int r, float scale) {
    float* scores = s.scores[r];
    const int begin = page_begin(s.from[r]), padded = whole_pages(s.keys[r]);
    for (int j = begin; j < s.from[r]; ++j) scores[j] = -__builtin_inff();
    for (int j = s.keys[r]; j < padded; ++j) scores[j] = -__builtin_inff();
    F16x m = l_load(scores + begin);
    for (int j = begin + 16; j < padded; j += 16) m = l_max(l_load(scores + j), m);
    return l_reduce_max(m) * scale;
}

// Turns scores into 2^(score * unit - max), times the position's scale if pages have scales. Returns the sum before
// scaling, and the largest value after it.
template <class Pages>
inline float softmax(Pages& pages, int64_t first, int r, float unit, float max, float* largest) {
    const int from = pages.rows.from[r], keys = pages.rows.keys[r];
    float* scores = pages.rows.scores[r];
    const F16x scale = l_set1(unit), minus_max = l_set1(-max);
    F16x sum = l_set1(0.0f), most = l_set1(1e-30f);
    for (int j0 = page_begin(from); j0 < keys; j0 += kPage) {
        const float* scales = pages.value_scales(first + j0);
        float seen[kPage];  // zeros for positions of the page's previous owner, and before a window
        if (Pages::kScaled && (from > j0 || keys - j0 < kPage)) {
            for (int j = 0; j < kPage; ++j)
                seen[j] = from <= j0 + j && j0 + j < keys ? scales[j] : 0.0f;
            scales = seen;
        }
        for (int j = 0; j < kPage; j += 16) {
            F16x p = l_exp2_softmax(l_fma(l_load(scores + j0 + j), scale, minus_max));
            sum = l_add(sum, p);
            if constexpr (Pages::kScaled) {
                p = l_mul(p, l_load(scales + j));
                most = l_max(p, most);
            }
            l_store(scores + j0 + j, p);
        }
    }
    if constexpr (Pages::kScaled) *largest = l_reduce_max(most);
    return l_sum(sum);
}

// Computes a chunk of positions. The results for each row are the largest logarithm of a weight, the sum of weights
// relative to it and, in rows.chunk_out, the outputs.
struct Chunk {
    static constexpr int kRows = sterna::kMaxAttentionRows;
    float max[kRows] = {}, sum[kRows];
    int begin = 0, end = 0;  // the rows that attend to a part of the chunk

    template <class Pages>
    void compute(const sterna::AttentionArgs& a, Pages& pages, int64_t first,
                 const sterna::KeyPages& after, bool cold) {
        Rows& s = pages.rows;
        see(a, s, first);
        s.set_order(a, first, after, cold);
        pages.scores(first);
        for (int i = s.pages(a) + 1; s.cold && i < 2 * s.pages(a); ++i) s.ask_for(a, i);
        if (a.turned) turn_keys<Pages>(a, s, first);
        float largest[kRows] = {};
        bool logs = a.cap > 0.0f;  // whether scores are logarithms already
        const auto unit = [&](int r) { return logs ? 1.0f : s.scale[r]; };
        // Each pass goes over all rows: the passes of one row are too short to hide their latencies.
        for (int r = begin; logs && r < end; ++r) cap_scores(a, s, r);
        for (int r = begin; a.slopes && r < end; ++r) add_distances(a, s, r, first, unit(r));
        logs = logs || a.slopes != nullptr;
        for (int r = begin; r < end; ++r) max[r] = largest_log(s, r, unit(r));
        for (int r = begin; r < end; ++r)
            sum[r] = softmax(pages, first, r, unit(r), max[r], largest + r);
        if constexpr (Pages::kScaled)
            for (int r = 0; r < a.rows; ++r) pages.weights(r, largest[r]);
        pages.values(first);
    }
    template <class Pages>
    static void turn_keys(const sterna::AttentionArgs& a, const Rows& s, int64_t first) {
        const int64_t bytes = sterna::kv_head_bytes(a.type.values, a.head_dim);
        for (int j = s.first_page; j < s.keys[a.rows - 1]; j += kPage)
            Pages::turn(page_at(a, a.k_base, first + j), a.head_dim, a.turned + j / kPage * bytes);
    }
    void see(const sterna::AttentionArgs& a, Rows& s, int64_t first) {
        for (int r = 0; r < a.rows; ++r) {
            s.keys[r] = clamp(a.limit[r] - first, kChunk);
            s.from[r] = clamp(a.next[r] - first - a.window, kChunk);
        }
        while (begin + 1 < a.rows && s.keys[begin] == 0) ++begin;
        for (end = a.rows; end > begin && s.from[end - 1] == kChunk;) --end;
        s.first_page = page_begin(s.from[begin]);
    }
    void store(const sterna::AttentionArgs& a, const Rows& s, float* partial) const {
        for (int r = begin; r < end; ++r) {
            float* row = partial + sterna::attention_partial(r, a.head_dim);
            __builtin_memcpy(row, s.chunk_out + r * a.head_dim, size_of(a));
            row[a.head_dim] = max[r];
            row[a.head_dim + 1] = sum[r];
        }
    }
    void load(const sterna::AttentionArgs& a, Rows& s, const float* partial) {
        for (int r = begin; r < end; ++r) {
            const float* row = partial + sterna::attention_partial(r, a.head_dim);
            __builtin_memcpy(s.chunk_out + r * a.head_dim, row, size_of(a));
            max[r] = row[a.head_dim];
            sum[r] = row[a.head_dim + 1];
        }
    }
    static size_t size_of(const sterna::AttentionArgs& a) {
        return static_cast<size_t>(a.head_dim) * sizeof(float);
    }
};

// Merges chunks in ascending order.
struct Merged {
    static constexpr int kRows = sterna::kMaxAttentionRows;
    static_assert(kRows % 16 == 0);

    const sterna::AttentionArgs& a;
    Rows& s;
    float max[kRows], sum[kRows];

    Merged(const sterna::AttentionArgs& a, Rows& s) : a(a), s(s) {
        for (int r = 0; r < kRows; ++r) max[r] = -__builtin_inff(), sum[r] = 0.0f;
        for (int64_t i = 0; i < int64_t{a.rows} * a.head_dim; ++i) s.out[i] = 0.0f;
    }
    void add(const Chunk& chunk) {
        float factor[kRows], chunk_factor[kRows];
        for (int r = 0; r < a.rows; r += 16) {
            const F16x m = l_load(max + r), cm = l_load(chunk.max + r), larger = l_max(m, cm);
            l_store(factor + r, l_exp2_softmax(l_sub(m, larger)));
            l_store(chunk_factor + r, l_exp2_softmax(l_sub(cm, larger)));
        }
        for (int r = chunk.begin; r < chunk.end; ++r) {
            float* o = s.out + r * a.head_dim;
            const float* co = s.chunk_out + r * a.head_dim;
            const F16x f = l_set1(factor[r]), cf = l_set1(chunk_factor[r]);
            max[r] = max[r] > chunk.max[r] ? max[r] : chunk.max[r];
            sum[r] = sterna::math::fma_f(sum[r], factor[r], chunk.sum[r] * chunk_factor[r]);
            for (int d = 0; d < a.head_dim; d += 16)
                l_store(o + d, l_fma(l_load(o + d), f, l_mul(l_load(co + d), cf)));
        }
    }
    // Sinks come last, when the largest score and the sum of all chunks are known, so they do not depend on chunks.
    void add_sinks() {
        float factor[kRows], own[kRows];
        for (int r = 0; r < a.rows; r += 16) {
            const F16x m = l_load(max + r), sink = l_load(a.sinks + r), larger = l_max(m, sink);
            l_store(factor + r, l_exp2_softmax(l_sub(m, larger)));
            l_store(own + r, l_exp2_softmax(l_sub(sink, larger)));
        }
        for (int r = 0; r < a.rows; ++r) {
            sum[r] = sterna::math::fma_f(sum[r], factor[r], own[r]);
            for (int d = 0; d < a.head_dim; ++d) s.out[r * a.head_dim + d] *= factor[r];
        }
    }
    void outputs() {
        if (a.sinks) add_sinks();
        for (int r = 0; r < a.rows; ++r) {
            for (int d = 0; d < a.head_dim; ++d) a.out[r][d] = s.out[r * a.head_dim + d] / sum[r];
            if (sterna::kv_rotated(a.type.values)) rotate(a.out[r], a.head_dim);
        }
    }
};

template <class Pages, class F>
inline void with(const sterna::AttentionArgs& a, F f) {
    Pages pages(a);
    f(pages);
    pages.end();  // not in a destructor, since a unit has no tables for exceptions (test_layers.py)
}

// The two kinds of attention. with_pages: f(pages) for pages of the call's type.
template <template <KvType, KvType> class Tiles>  // NoTiles, or the tiles of a matrix unit
struct IntegerAttention {
    template <class F>
    static void with_pages(const sterna::AttentionArgs& a, F f) {
        if (a.type.keys == KvType::kI16) {
            with<IntegerPages<KvType::kI16, KvType::kI16, Tiles>>(a, f);
        } else if (a.type.values == KvType::kI8) {
            with<IntegerPages<KvType::kI8, KvType::kI8, Tiles>>(a, f);
        } else {
            with<IntegerPages<KvType::kI8, KvType::kI4, Tiles>>(a, f);
        }
    }
    // Where values are not read.
    template <class F>
    static void with_keys(const sterna::AttentionArgs& a, F f) {
        if (a.type.keys == KvType::kI16) {
            with<IntegerPages<KvType::kI16, KvType::kI16, Tiles>>(a, f);
        } else {
            with<IntegerPages<KvType::kI8, KvType::kI8, Tiles>>(a, f);
        }
    }
    static int64_t scratch(int64_t head_dim) {
        return IntegerPages<KvType::kI16, KvType::kI16, Tiles>::scratch_bytes(head_dim);
    }
};
struct FloatAttention {
    template <class F>
    static void with_pages(const sterna::AttentionArgs& a, F f) {
        if (a.type.keys == KvType::kF16) {
            with<FloatPages<true>>(a, f);
        } else {
            with<FloatPages<false>>(a, f);
        }
    }
    template <class F>
    static void with_keys(const sterna::AttentionArgs& a, F f) {
        with_pages(a, f);
    }
    static int64_t scratch(int64_t head_dim) { return FloatPages<true>::scratch_bytes(head_dim); }
};

// The keys that are read after those of a chunk.
inline sterna::KeyPages keys_after(const sterna::AttentionArgs& a, int64_t first) {
    const int64_t next = first + kChunk, keys = a.limit[a.rows - 1] - next;
    if (keys <= 0) return a.after;
    return {a.k_base, a.v_base, a.pages + next / kPage, whole_pages(clamp(keys, kChunk)) / kPage};
}

template <class Kind>
void attention(const sterna::AttentionArgs& a) {
    Kind::with_pages(a, [&](auto& pages) {
        Merged merged(a, pages.rows);
        const int64_t begin = sterna::first_attention_chunk(a) * kChunk;
        for (int64_t first = begin; first < a.limit[a.rows - 1]; first += kChunk) {
            Chunk chunk;
            chunk.compute(a, pages, first, keys_after(a, first), a.cold && first == begin);
            merged.add(chunk);
        }
        merged.outputs();
    });
}

template <class Kind>
void attention_chunk(const sterna::AttentionArgs& a, int64_t index) {
    Kind::with_pages(a, [&](auto& pages) {
        Chunk chunk;
        chunk.compute(a, pages, index * kChunk, a.after, a.cold);
        chunk.store(a, pages.rows, a.partial + index * a.partial_stride);
    });
}

// The scores of an indexer: of each token with the positions of a chunk, sum_h weight[h] * relu(q[h] k), with the scale
// that rows have; one fused multiply-add for each head, in ascending order. The maximum keeps a NaN. Positions that a
// token does not see get any score.
template <class Kind>
void index_chunk(const sterna::AttentionArgs& a, const sterna::IndexArgs& index, int64_t chunk) {
    Kind::with_keys(a, [&](auto& pages) {
        Rows& s = pages.rows;
        Chunk().see(a, s, chunk * kChunk);
        s.set_order(a, chunk * kChunk, a.after, false);
        pages.scores(chunk * kChunk);
        const F16x zero = l_set1(0.0f);
        for (int r = 0; r < a.rows; r += index.heads) {
            const float* weights = index.weights[r / index.heads];
            float* scores = index.scores[r / index.heads];
            if (!scores) continue;
            float weight[sterna::kMaxAttentionRows];
            for (int h = 0; h < index.heads; ++h) weight[h] = weights[h] * s.scale[r + h];
            for (int j = 0; j < s.keys[r]; j += 16) {
                F16x sum = zero;
                for (int h = 0; h < index.heads; ++h)
                    sum = l_fma(l_max(zero, l_load(s.scores[r + h] + j)), l_set1(weight[h]), sum);
                l_store(scores + chunk * kChunk + j, sum);
            }
        }
    });
}

inline void attention_merge(const sterna::AttentionArgs& a) {
    Rows rows(a.scratch, a.head_dim);
    Merged merged(a, rows);
    const int chunks = sterna::attention_chunks(a.limit[a.rows - 1]);
    for (int64_t index = sterna::first_attention_chunk(a); index < chunks; ++index) {
        Chunk chunk;
        chunk.see(a, rows, index * kChunk);
        chunk.load(a, rows, a.partial + index * a.partial_stride);
        merged.add(chunk);
    }
    merged.outputs();
}

template <class Kind>
constexpr sterna::AttentionKernels attention_kernels() {
    return {attention<Kind>, attention_chunk<Kind>, index_chunk<Kind>, Kind::scratch};
}

}  // namespace
