// How queries become units of attention: blocks of query rows, joined where sequences share pages, cut into chunks of
// positions where there would be few units.
#include "program/attention_plan.h"

#include <algorithm>
#include <iterator>

#include "units/kernel_table.h"

namespace sterna {

namespace {

// Attention units that a thread should have at least, so that threads end together.
constexpr int64_t kUnitsPerThread = 4;
constexpr int64_t kMostPartialBytes = int64_t{64} << 20;  // about: of results apart
constexpr int kPagesPerChunk = kChunkPositions / kPagePositions;
constexpr int64_t kFewestRows = 16;  // of a block that is not all of its tokens

// Query rows (tokens x heads of a group) of one attention unit: the more, the fewer times keys and values
// are read.
int64_t rows_per_block(int64_t query_rows, int threads) {
    int64_t rows = kMaxAttentionRows;
    while (rows > kFewestRows && query_rows < kUnitsPerThread * threads * rows) rows /= 2;
    return rows;
}

// The first chunks of positions that two sequences have in the same pages, before what either adds.
int common_chunks(const SequenceSpan& a, const SequenceSpan& b) {
    const int most = std::min(a.start, b.start) / kChunkPositions * kPagesPerChunk;
    const auto differ = std::mismatch(a.pages, a.pages + most, b.pages);
    return static_cast<int>(differ.first - a.pages) / kPagesPerChunk;
}

}  // namespace

// Chunks of positions that the last token of a block attends to.
int AttentionPlan::chunks_of(const Batch& batch, const BatchRows& rows,
                             const QueryBlock& block) const {
    return attention_chunks(limit(batch, rows, block.first + block.count - 1));
}

void AttentionPlan::reserve(int64_t tokens) {
    const auto n = static_cast<size_t>(tokens);
    blocks.reserve(n * static_cast<size_t>(heads.n_kv_heads));
    units.reserve(n * static_cast<size_t>(heads.n_kv_heads));
    planned_.reserve(n);
    joined_.reserve(n);
}

void AttentionPlan::plan(const Batch& batch, const BatchRows& rows, int threads) {
    const int queries_per_kv = heads.queries_per_kv();
    const int64_t query_rows = static_cast<int64_t>(batch.tokens.size()) * heads.n_heads;
    const int tokens_per_block =
        std::max(1, static_cast<int>(rows_per_block(query_rows, threads)) / queries_per_kv);
    blocks.clear(), units.clear();
    partial_floats_ = 0;
    planned_.assign(batch.sequences.size(), 0);
    join_prefixes(batch, rows, tokens_per_block);
    const auto joined = blocks.size();
    for (int s = 0; s < std::ssize(batch.sequences); ++s)
        if (!planned_[static_cast<size_t>(s)]) add_blocks(batch, rows, s, tokens_per_block);
    add_units(batch, rows, joined, threads, int64_t{tokens_per_block} * queries_per_kv);
}

void AttentionPlan::add_blocks(const Batch& batch, const BatchRows& rows, int sequence,
                               int tokens_per_block) {
    const int count = batch.sequences[static_cast<size_t>(sequence)].count;
    const auto first = static_cast<int>(rows.first_of[static_cast<size_t>(sequence)]);
    // A head's keys and values stay in L2 for all of its tokens. The last tokens attend to the most keys: hand them out
    // first, so that no worker ends late.
    for (int h = 0; h < heads.n_kv_heads; ++h)
        for (int begin, end = count; end > 0; end = begin) {
            const bool alone = chooses(batch, rows, first + end - 1);  // with keys of its own
            begin = std::max(0, end - (alone ? 1 : tokens_per_block));
            blocks.push_back({sequence, h, first + begin, end - begin});
        }
}

// Sequences of few tokens that go on from the same pages read these once for all of them.
void AttentionPlan::join_prefixes(const Batch& batch, const BatchRows& rows, int tokens_per_block) {
    const auto n = static_cast<int>(batch.sequences.size());
    const auto span = [&](int s) -> const auto& { return batch.sequences[static_cast<size_t>(s)]; };
    const auto may_join = [&](int s) {
        const int64_t last = rows.first_of[static_cast<size_t>(s)] + span(s).count - 1;
        return span(s).count <= tokens_per_block && !planned_[static_cast<size_t>(s)] &&
               !chooses(batch, rows, last);
    };
    for (int s = 0; s < n; ++s) {
        if (!may_join(s)) continue;
        joined_.assign(1, {s, 0});
        int query_rows = span(s).count * heads.queries_per_kv();
        for (int other = s + 1; other < n; ++other) {
            const int more = span(other).count * heads.queries_per_kv();
            if (!may_join(other) || query_rows + more > kMaxAttentionRows) continue;
            const int chunks = common_chunks(span(s), span(other));
            if (!chunks) continue;
            joined_.push_back({other, chunks});
            joined_.front().chunks = std::max(joined_.front().chunks, chunks);
            query_rows += more;
        }
        if (joined_.size() > 1 && partial_bytes() <= kMostPartialBytes)
            add_joined(batch, rows, query_rows);
    }
}

// The blocks of joined sequences, with this many rows for each KV head, and their units.
void AttentionPlan::add_joined(const Batch& batch, const BatchRows& rows, int query_rows) {
    // Then those that share a chunk come before those that do not.
    std::ranges::sort(joined_, [](const Joined& a, const Joined& b) {
        return a.chunks != b.chunks ? a.chunks > b.chunks : a.sequence < b.sequence;
    });
    const int64_t stride = attention_partial(query_rows, heads.padded());
    for (int h = 0; h < heads.n_kv_heads; ++h) {
        const auto first = static_cast<int>(blocks.size());
        int64_t partial = partial_floats_;
        int chunks = 0;
        for (const auto& [sequence, _] : joined_) {
            const auto s = static_cast<size_t>(sequence);
            planned_[s] = 1;
            QueryBlock block{sequence, h, static_cast<int>(rows.first_of[s]),
                             batch.sequences[s].count};
            block.chunks = block.left = chunks_of(batch, rows, block);
            block.partial = partial;
            block.stride = stride;
            partial += attention_partial(block.count * heads.queries_per_kv(), heads.padded());
            chunks = std::max(chunks, block.chunks);
            blocks.push_back(block);
        }
        partial_floats_ += chunks * stride;
        for (int chunk = 0, count = static_cast<int>(joined_.size()); count > 0; ++chunk) {
            while (count > 0 && joined_[static_cast<size_t>(count - 1)].chunks <= chunk) --count;
            if (count > 0) units.push_back({first, count, chunk});
        }
        for (int i = 0; const auto& [_, shared] : joined_) {
            add_chunks(first + i, shared);
            ++i;
        }
    }
}

void AttentionPlan::add_chunks(int block, int from) {
    for (int chunk = from; chunk < blocks[static_cast<size_t>(block)].chunks; ++chunk)
        units.push_back({block, 1, chunk});
}

// Units of the blocks from `begin` on: where these are few, each chunk of positions, as a few tokens far into a context
// need it.
void AttentionPlan::add_units(const Batch& batch, const BatchRows& rows, size_t begin, int threads,
                              int64_t rows_per_block) {
    // Fewer than kMaxAttentionRows: a block in chunks is one call, which AttentionCall cuts there.
    const bool few = threads > 1 && rows_per_block < kMaxAttentionRows &&
                     std::ssize(units) + std::ssize(blocks) - static_cast<int64_t>(begin) <
                         kUnitsPerThread * threads;
    chunks_only = few;
    for (size_t i = begin; i < blocks.size(); ++i) {
        QueryBlock& block = blocks[i];
        const int chunks = chunks_of(batch, rows, block);
        if (!few || chunks == 1 || partial_bytes() > kMostPartialBytes) {
            chunks_only = chunks_only && chunks == 1;
            units.push_back({static_cast<int>(i)});
            continue;
        }
        block.chunks = block.left = chunks;
        block.partial = partial_floats_;
        block.stride = attention_partial(block.count * heads.queries_per_kv(), heads.padded());
        partial_floats_ += chunks * block.stride;
        add_chunks(static_cast<int>(i), 0);
    }
}

}  // namespace sterna
