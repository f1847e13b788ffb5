// How the queries of a batch become units of attention, for the layers that have the same heads.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "program/batch.h"
#include "program/kv_cache.h"
#include "units/kernel_table.h"

namespace sterna {

// The heads of a layer, as the KV cache has them.
struct AttentionHeads {
    int n_heads, n_kv_heads, head_dim;
    int value_dim = 0;  // so many last features of a key are its value; 0: values are separate

    int outputs() const { return value_dim ? value_dim : head_dim; }
    int padded() const { return padded_head(head_dim); }
    int queries_per_kv() const { return n_heads / n_kv_heads; }
    KvCache::Heads cached() const { return {n_kv_heads, padded(), value_dim > 0}; }
};

// Query rows of one KV head of a sequence.
struct QueryBlock {
    int sequence, kv_head, first, count;  // tokens of the batch
    // Where chunks of positions are units: how many there are, and how many are left, which workers count down
    // atomically. The worker of the last one merges them.
    int chunks = 0, left = 0;
    // Floats: where the results of its rows begin, and from one chunk's to the next one's.
    int64_t partial = 0, stride = 0;
};

// A whole block, or a chunk of positions of blocks that have the same pages there.
struct AttentionUnit {
    int block, count = 1;
    int chunk = -1;  // -1: all
};

constexpr int32_t kNoTopK = INT32_MAX;

class AttentionPlan {
  public:
    explicit AttentionPlan(AttentionHeads heads) : heads(heads) {}
    void reserve(int64_t tokens);
    void plan(const Batch& batch, const BatchRows& rows, int threads);
    // Bytes of the results of chunks, before they are merged.
    int64_t partial_bytes() const { return partial_floats_ * int64_t{sizeof(float)}; }

    const AttentionHeads heads;
    std::vector<QueryBlock> blocks{};
    std::vector<AttentionUnit> units{};
    // Whether each query sees its whole sequence, as an encoder's does, and not only the positions up to its own. The same in
    // all layers of these heads.
    std::optional<bool> bidirectional{};
    // Whether tokens of images see the positions up to their own alone, although they see each other elsewhere. The same in
    // all layers of these heads.
    std::optional<bool> causal{};
    // The most positions that a query attends to, which an indexer chooses where it sees more; kNoTopK: all. The same in all
    // layers of these heads.
    std::optional<int32_t> top_k{};
    bool chunks_only = false;  // no unit has more than one chunk, so that units take about as long

    // Whether token n of the batch attends to positions that an indexer chooses, not to all that it sees.
    bool chooses(const Batch& batch, const BatchRows& rows, int64_t n) const {
        return seen(batch, rows, n, kNoWindow) > top_k.value_or(kNoTopK);
    }
    // The position after the last one that token n attends to, where chosen ones are counted from 0. window: of a layer; so
    // many positions a bidirectional query sees from its own on.
    int32_t limit(const Batch& batch, const BatchRows& rows, int64_t n,
                  int32_t window = kNoWindow) const {
        return std::min(seen(batch, rows, n, window), top_k.value_or(kNoTopK));
    }

  private:
    // A sequence whose first chunks of positions have the same pages as another's.
    struct Joined {
        int sequence, chunks;
    };

    int32_t seen(const Batch& batch, const BatchRows& rows, int64_t n, int32_t window) const {
        const auto i = static_cast<size_t>(n);
        if (causal.value_or(false)) return rows.position_of[i] + 1;
        if (!bidirectional.value_or(false)) return rows.limit_of[i];
        const int64_t end = batch.sequences[static_cast<size_t>(rows.sequence_of[i])].end();
        return static_cast<int32_t>(std::min(end, int64_t{rows.position_of[i]} + window));
    }

    void add_blocks(const Batch& batch, const BatchRows& rows, int sequence, int tokens_per_block);
    void join_prefixes(const Batch& batch, const BatchRows& rows, int tokens_per_block);
    void add_joined(const Batch& batch, const BatchRows& rows, int query_rows);
    void add_units(const Batch& batch, const BatchRows& rows, size_t begin, int threads,
                   int64_t rows_per_block);
    int chunks_of(const Batch& batch, const BatchRows& rows, const QueryBlock& block) const;
    void add_chunks(int block, int from);

    int64_t partial_floats_ = 0;
    std::vector<Joined> joined_{};  // with one of them, which is the first
    std::vector<char> planned_{};  // of each sequence: whether it has its blocks
};

}  // namespace sterna
