// Arguments of the kernels of attention. Plain data, as all of kernel_table.h, which includes it.
#pragma once
#include <cstdint>

namespace sterna {

constexpr int kPagePositions = 64;  // positions of one KV page
constexpr int kChunkPositions = 256;  // attention is summed over absolute chunks of this many

// How a page holds a key or a value: as floats, or as integers times a float of this position and head. kI4, of values
// alone: sixteen of the integers of kI8, each as an index of four bits.
enum class KvType : int { kF32, kF16, kI16, kI8, kI4 };
struct KvTypes {
    KvType keys, values;
    bool operator==(const KvTypes&) const = default;
};

[[gnu::always_inline]] constexpr int kv_bits(KvType type) {
    switch (type) {
        case KvType::kF32:
            return 32;
        case KvType::kI8:
            return 8;
        case KvType::kI4:
            return 4;
        default:
            return 16;
    }
}
[[gnu::always_inline]] constexpr bool kv_integers(KvType type) {
    return type != KvType::kF32 && type != KvType::kF16;
}
// Integers of so few bits are those of a Hadamard transform.
[[gnu::always_inline]] constexpr bool kv_rotated(KvType type) {
    return kv_integers(type) && kv_bits(type) <= 8;
}
// Keys and values are rounded to [-kv_levels, kv_levels], queries to what keeps int32 sums exact over head_dim. The
// weights of a softmax have as many levels as int16 holds, for one large weight should not make many small ones zero.
constexpr int kMaxQueryLevels = 8191, kWeightLevels = 32767;
[[gnu::always_inline]] constexpr int kv_levels(KvType type) {
    return kv_rotated(type) ? 127 : 4095;
}
[[gnu::always_inline]] constexpr int query_levels(KvType keys, int64_t head_dim) {
    const int64_t most = ((int64_t{1} << 31) - 1) / (kv_levels(keys) * head_dim);
    return static_cast<int>(most < kMaxQueryLevels ? most : kMaxQueryLevels);
}

// Bytes of a head's keys, or values, in a page, without the floats that multiply integers.
[[gnu::always_inline]] constexpr int64_t kv_elements_bytes(KvType type, int64_t head_dim) {
    return kPagePositions * head_dim * kv_bits(type) / 8;
}
// Bytes of one KV head's keys (or values) in a page. The layouts: kv_pages.h.
[[gnu::always_inline]] constexpr int64_t kv_head_bytes(KvType type, int64_t head_dim) {
    return kv_elements_bytes(type, head_dim) + (kv_integers(type) ? kPagePositions * 4 : 0);
}

// The keys and values of positions that follow each other into their page.
struct KvStoreArgs {
    float *k, *v;  // [count][n_kv_heads][head_dim]; kI8 and kI4 rotate them in place
    int64_t stride;  // floats from one position's to the next one's
    uint8_t *k_page, *v_page;  // [n_kv_heads][kv_head_bytes]; v_page null: keys alone
    int position_in_page,
        count;  // of the first; all are in one of the page's runs of kStoredTogether
    int n_kv_heads, head_dim;
    KvTypes type;
};

// Keys of chosen positions of one KV head, to be copied into pages that follow each other.
struct KeyGatherArgs {
    const uint8_t* k_base;  // as in AttentionArgs, with pages and page_stride
    const int32_t* pages;
    int64_t page_stride;
    const float* positions;  // [count] whole numbers
    int count, head_dim;
    KvType type;  // of keys
    uint8_t* to;  // [pages][kv_head_bytes]; what no position fills in the last page becomes 0
};

// Positions that have their keys in the same lines.
constexpr int kStoredTogether = 16;

constexpr int32_t kNoWindow = INT32_MAX;

// Pages of keys: where those of a KV head lie, and their numbers; and where its values lie.
struct KeyPages {
    const uint8_t *base, *values;
    const int32_t* pages;
    int count;
};

// A block of query rows of one KV head of one sequence.
struct AttentionArgs {
    const float* const* q;  // [rows] -> [head_dim]
    float* const* out;  // [rows] -> [head_dim]
    const int32_t* limit;  // [rows]: keys at positions < limit are seen; ascending
    const int32_t* next;  // [rows]: the position after the row's own, at most its limit; ascending
    int32_t window =
        kNoWindow;  // of the keys below `next` a row sees so many of the last; at least 1
    int rows;
    int head_dim;
    float scale;  // of a score, before it is capped
    float cap;  // scores become cap * tanh(score / cap); 0: they stay as they are
    // [rows, padded to a multiple of 16]: a base-2 logarithm that joins each row's softmax as a weight without a value
    // (attention sinks); null: none
    const float* sinks;
    // [rows]: what each position between a key and the row's own takes from a base-2 logarithm, which is not capped
    // (ALiBi); null: nothing
    const float* slopes;
    const int32_t* pages;  // page table of the sequence
    const uint8_t* k_base;  // this layer's, at this KV head: + page * page_stride
    const uint8_t* v_base;
    // Where pages hold keys alone, which are the values, too: memory for the pages of a chunk, into which its keys go as
    // values. Else null.
    uint8_t* turned;
    int64_t page_stride;  // bytes
    KvTypes type;  // of keys that are values, the same twice
    bool next_page;  // Reading
    KeyPages after;  // the keys that this thread reads after this call, if that is known
    bool cold = false;  // no call before has asked for this one's first chunk
    bool
        queries_ready;  // the scratch still holds the queries: this thread's last call had the same
    uint8_t* scratch;  // AttentionKernels::scratch(head_dim) bytes, aligned to 64
    // Where chunks are computed apart: AttentionKernels::chunk writes the results of one chunk at
    // chunk * partial_stride, attention_partial(rows) floats. attention_merge makes the outputs from all of them.
    float* partial;
    int64_t partial_stride;
};
constexpr int kMaxAttentionRows = 256;

// What an indexer makes of the scores of a call's rows, which are those of `heads` heads of each token.
struct IndexArgs {
    int heads;
    const float* const* weights;  // [tokens] -> [heads]
    float* const* scores;  // [tokens] -> [position], whole chunks; null: of a token that needs none
};
// The chunk of positions that the first row of a call, the one that sees the earliest positions, begins in.
[[gnu::always_inline]] constexpr int64_t first_attention_chunk(const AttentionArgs& a) {
    const int64_t begin = int64_t{a.next[0]} - a.window;
    return begin > 0 ? begin / kChunkPositions : 0;
}
[[gnu::always_inline]] constexpr int attention_chunks(int64_t positions) {
    return static_cast<int>((positions + kChunkPositions - 1) / kChunkPositions);
}
// The output, largest score and sum of each row.
[[gnu::always_inline]] constexpr int64_t attention_partial(int64_t rows, int64_t head_dim) {
    return rows * (head_dim + 2);
}

}  // namespace sterna
