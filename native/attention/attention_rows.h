// The state of the query rows of one attention call. The rows pass over the keys together.
#pragma once
#include "attention/kv_pages.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

constexpr int kChunk = sterna::kChunkPositions;
static_assert(kChunk % kPage == 0 && kAttentionRows <= sterna::kMaxAttentionRows);

// How many vectors of 16 keys, or of 16 elements of head_dim, a block of kAttentionRows takes at a time, so that all
// accumulators stay in registers.
constexpr int kAttentionVectors = kLanes == 16 ? 2 : 1;
// Few rows leave registers for twice as many: of the 16 with vectors of 256 bits, three rows would leave none for keys.
constexpr int kRowsOfTwice = kLanes < 8 ? 0 : kLanes == 8 ? 2 : kAttentionRows / 2;
template <int R>
constexpr int kVectorsOf = kAttentionVectors * (R <= kRowsOfTwice ? 2 : 1);
static_assert(kPage / 16 % kVectorsOf<1> == 0, "a block of keys lies in one page");

inline int clamp(int64_t value, int most) {
    return static_cast<int>(value < 0 ? 0 : value < most ? value : most);
}

// The matrix unit takes 64 elements of head_dim at a time.
constexpr int64_t padded_head_dim(int64_t head_dim) { return (head_dim + 63) / 64 * 64; }
constexpr int whole_pages(int keys) { return (keys + kPage - 1) / kPage * kPage; }
constexpr int page_begin(int position) { return position / kPage * kPage; }

constexpr float kLog2E = 1.44269504f;

// Of a chunk's keys and values, up to which those of the next one are prefetched meanwhile: both fit L2. Else it is the next
// page alone.
constexpr int64_t kMostAhead = int64_t{288} << 10;

// Returns the page of a position: its keys or its values in this layer and KV head.
inline const uint8_t* page_at(const sterna::AttentionArgs& a, const uint8_t* base,
                              int64_t position) {
    return base + a.pages[position / kPage] * a.page_stride;
}

// Returns the page of a position's values; of keys that are values, where its chunk has put it.
inline const uint8_t* value_page(const sterna::AttentionArgs& a, int64_t position) {
    if (a.turned)
        return a.turned +
               position % kChunk / kPage * sterna::kv_head_bytes(a.type.values, a.head_dim);
    return page_at(a, a.v_base, position);
}

// Bytes of the keys and values that a page has of this KV head.
inline int64_t page_bytes(const sterna::AttentionArgs& a) {
    return sterna::kv_head_bytes(a.type.keys, a.head_dim) +
           sterna::kv_head_bytes(a.type.values, a.head_dim);
}

// Asks for a line of a page that is read later. Zen 4 drops prefetches into L2 while it waits for memory: a row of i16
// reads 19 GB/s of the 30 there are if each line is asked for once, 25 if twice, and 28 to 31 if three times.
template <int n = 3>
inline void ask_ahead(const void* line) {
    STERNA_UNROLL(3)
    for (int i = 0; i < n; ++i) prefetch_l2_surely(line);
}

struct Rows {
    float (*scores)[kChunk];  // [rows], in units of the row's `scale`
    float* scale;  // [rows]: scale * score is the logarithm of a weight, to base 2
    float *chunk_out, *out;  // [rows][head_dim], of this chunk and of all chunks so far
    // A row attends to positions [from, keys) of this chunk; both ascend with the rows.
    int from[sterna::kMaxAttentionRows], keys[sterna::kMaxAttentionRows];
    int first_page = 0;  // the first position of the first page that any row needs
    // The pages of a chunk in the order in which they are read, its keys and then its values, and the one after them.
    const uint8_t* order[2 * kChunk / kPage + 1];
    const uint8_t* ahead[2 * kChunk / kPage];  // what is prefetched into L2 while one is read
    bool cold = false;  // whether a page is also asked for just before it is read

    Rows(uint8_t* scratch, int64_t head_dim)
        : scores(reinterpret_cast<float (*)[kChunk]>(scratch)),
          scale(scores[sterna::kMaxAttentionRows]),
          chunk_out(scale + sterna::kMaxAttentionRows),
          out(chunk_out + sterna::kMaxAttentionRows * head_dim) {}
    // Before a chunk, behind which the keys `after` are read. unasked: nothing has asked for its pages.
    void set_order(const sterna::AttentionArgs& a, int64_t first, const sterna::KeyPages& after,
                   bool unasked) {
        const uint8_t** to = order;
        for (int j = first_page; j < keys[a.rows - 1]; j += kPage)
            *to++ = page_at(a, a.k_base, first + j);
        for (int j = first_page; j < keys[a.rows - 1]; j += kPage) *to++ = value_page(a, first + j);
        *to = after.count ? after.base + after.pages[0] * a.page_stride : to[-1];
        const int n = pages(a);
        const bool far =
            a.next_page && after.count > 0 && !a.turned && n * page_bytes(a) <= kMostAhead;
        cold = far && unasked;
        for (int i = 0; i < 2 * n; ++i) {
            ahead[i] = order[a.next_page ? i + 1 : i];
            if (!far) continue;
            const int page = i % n;
            const uint8_t* base = i < n ? after.base : after.values;
            ahead[i] = page < after.count ? base + after.pages[page] * a.page_stride : order[i];
        }
    }
    // Asks for the lines of a page that hold positions, the i-th of the order.
    void ask_for(const sterna::AttentionArgs& a, int i) const {
        const KvType type = i < pages(a) ? a.type.keys : a.type.values;
        const int64_t all = sterna::kv_elements_bytes(type, a.head_dim);
        const int last = keys[a.rows - 1] - first_page - i % pages(a) * kPage;
        const int count = (clamp(last, kPage) + 15) / 16 * 16;
        for (int64_t at = 0; at < all * count / kPage; at += 64) ask_ahead(order[i] + at);
        if (!sterna::kv_integers(type)) return;
        for (int at = 0; at < count * 4; at += 64) ask_ahead(order[i] + all + at);
    }
    // The number of pages that hold the chunk's keys, or its values.
    int pages(const sterna::AttentionArgs& a) const {
        return (whole_pages(keys[a.rows - 1]) - first_page) / kPage;
    }
    static constexpr int64_t bytes(int64_t head_dim) {
        return sterna::kMaxAttentionRows * (kChunk + 1 + 2 * head_dim) * int64_t{sizeof(float)};
    }
};

// Returns the page to prefetch into L2 while another is read, if that is faster (Reading). Pages of a head are not
// adjacent, so the hardware prefetcher does not find them, and L1 has too few buffers to wait for so many lines. At the
// end, the page itself is returned.
inline const uint8_t* page_ahead_of_keys(const sterna::AttentionArgs& a, const Rows& s, int j) {
    const int i = (j - s.first_page) / kPage;
    if (s.cold) s.ask_for(a, i + 1);
    return s.ahead[i];
}
inline const uint8_t* page_ahead_of_values(const sterna::AttentionArgs& a, const Rows& s, int j) {
    return s.ahead[(j - s.first_page) / kPage + s.pages(a)];
}

// Calls f.template block<R>(row) for blocks of kAttentionRows rows, and for the remainder.
template <int R = kAttentionRows, class F>
inline void row_blocks(int rows, F& f, int row = 0) {
    for (; rows - row >= R; row += R) f.template block<R>(row);
    if constexpr (R > 1)
        if (row < rows) row_blocks<R - 1>(rows, f, row);
}

// Calls f.template keys_of<R>(row, j) for each kVectorsOf<R> * 16 keys of a page. The last call may include keys
// that the rows do not see; their scores are set to -inf later (largest_log).
template <int R, class F>
inline void key_blocks(F& f, int row, int keys) {
    for (int j = 0; j < keys; j += 16 * kVectorsOf<R>) f.template keys_of<R>(row, j);
}

}  // namespace
