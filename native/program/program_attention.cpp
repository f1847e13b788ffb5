// Attention within a Program: how a batch becomes units, rotation and storage of keys and values, and the units
// themselves.
#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "program/program_run.h"
#include "scalar_math.h"

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

int Program::add_heads(Heads heads) {
    attending_.push_back({heads});
    return heads_count() - 1;
}

// Tokens -> (sequence, position), the rows that want logits, and the attention units.
void Program::plan(const Batch& batch, int threads) {
    sequence_of_.clear(), position_of_.clear(), selected_.clear(), deciding_.clear();
    first_of_.clear();
    for (int s = 0, first = 0; const auto& span : batch.sequences) {
        first_of_.push_back(first);
        for (int i = 0; i < span.count; ++i) {
            sequence_of_.push_back(s);
            position_of_.push_back(span.start + i);
            const int row = i - (span.count - span.logits);
            if (row < 0) continue;
            selected_.push_back(first + i);
            deciding_.push_back(span.deciding ? span.deciding[row] : DecidingLogits{});
        }
        first += span.count;
        ++s;
    }
    for (Attending& a : attending_) plan_attention(a, batch, threads);
    plan_adapters(batch);
}

void Program::plan_attention(Attending& a, const Batch& batch, int threads) {
    const int queries_per_kv = a.heads.queries_per_kv();
    const int64_t query_rows = static_cast<int64_t>(batch.tokens.size()) * a.heads.n_heads;
    const int tokens_per_block =
        std::max(1, static_cast<int>(rows_per_block(query_rows, threads)) / queries_per_kv);
    a.blocks.clear(), a.units.clear();
    a.partial_floats = 0;
    planned_.assign(batch.sequences.size(), 0);
    join_prefixes(a, batch, tokens_per_block);
    const auto joined = a.blocks.size();
    for (int s = 0; s < std::ssize(batch.sequences); ++s)
        if (!planned_[static_cast<size_t>(s)]) add_blocks(a, batch, s, tokens_per_block);
    add_units(a, joined, threads, int64_t{tokens_per_block} * queries_per_kv);
    const auto bytes = static_cast<size_t>(a.partial_bytes());
    if (partials_.size() < bytes) partials_ = HugeBuffer(std::bit_ceil(bytes));
}

void Program::add_blocks(Attending& a, const Batch& batch, int sequence,
                         int tokens_per_block) const {
    const int count = batch.sequences[static_cast<size_t>(sequence)].count;
    const auto first = static_cast<int>(first_of_[static_cast<size_t>(sequence)]);
    // A head's keys and values stay in L2 while its tokens pass. The last tokens see the most keys:
    // hand them out first, so that no worker ends late.
    for (int h = 0; h < a.heads.n_kv_heads; ++h)
        for (int end = count; end > 0; end -= tokens_per_block) {
            const int begin = std::max(0, end - tokens_per_block);
            a.blocks.push_back({sequence, h, first + begin, end - begin});
        }
}

// Sequences of few tokens that go on from the same pages read these once for all of them.
void Program::join_prefixes(Attending& a, const Batch& batch, int tokens_per_block) {
    const auto n = static_cast<int>(batch.sequences.size());
    const auto span = [&](int s) -> const auto& { return batch.sequences[static_cast<size_t>(s)]; };
    const auto may_join = [&](int s) {
        return span(s).count <= tokens_per_block && !planned_[static_cast<size_t>(s)];
    };
    for (int s = 0; s < n; ++s) {
        if (!may_join(s)) continue;
        joined_.assign(1, {s, 0});
        int rows = span(s).count * a.heads.queries_per_kv();
        for (int other = s + 1; other < n; ++other) {
            const int more = span(other).count * a.heads.queries_per_kv();
            if (!may_join(other) || rows + more > kMaxAttentionRows) continue;
            const int chunks = common_chunks(span(s), span(other));
            if (!chunks) continue;
            joined_.push_back({other, chunks});
            joined_.front().chunks = std::max(joined_.front().chunks, chunks);
            rows += more;
        }
        if (joined_.size() > 1 && a.partial_bytes() <= kMostPartialBytes)
            add_joined(a, batch, rows);
    }
}

// The blocks of sequences that were joined, of so many rows for each KV head, and their units.
void Program::add_joined(Attending& a, const Batch& batch, int rows) {
    // Then those that share a chunk come before those that do not.
    std::ranges::sort(joined_, [](const Joined& a, const Joined& b) {
        return a.chunks != b.chunks ? a.chunks > b.chunks : a.sequence < b.sequence;
    });
    const int64_t stride = attention_partial(rows, a.heads.padded());
    for (int h = 0; h < a.heads.n_kv_heads; ++h) {
        const auto first = static_cast<int>(a.blocks.size());
        int64_t partial = a.partial_floats;
        int chunks = 0;
        for (const auto& [sequence, _] : joined_) {
            const auto s = static_cast<size_t>(sequence);
            planned_[s] = 1;
            QueryBlock block{sequence, h, static_cast<int>(first_of_[s]), batch.sequences[s].count};
            block.chunks = block.left = chunks_of(block);
            block.partial = partial;
            block.stride = stride;
            partial += attention_partial(block.count * a.heads.queries_per_kv(), a.heads.padded());
            chunks = std::max(chunks, block.chunks);
            a.blocks.push_back(block);
        }
        a.partial_floats += chunks * stride;
        for (int chunk = 0, count = static_cast<int>(joined_.size()); count > 0; ++chunk) {
            while (count > 0 && joined_[static_cast<size_t>(count - 1)].chunks <= chunk) --count;
            if (count > 0) a.units.push_back({first, count, chunk});
        }
        for (int i = 0; const auto& [_, shared] : joined_) {
            a.add_chunks(first + i, shared);
            ++i;
        }
    }
}

void Program::Attending::add_chunks(int block, int from) {
    for (int chunk = from; chunk < blocks[static_cast<size_t>(block)].chunks; ++chunk)
        units.push_back({block, 1, chunk});
}

// Units of the blocks from `begin` on: where these are few, each chunk of positions, as a few tokens far into a context
// need it.
void Program::add_units(Attending& a, size_t begin, int threads, int64_t rows_per_block) const {
    // Fewer than kMaxAttentionRows: a block in chunks is one call, which AttentionCall cuts there.
    const bool few = threads > 1 && rows_per_block < kMaxAttentionRows &&
                     std::ssize(a.units) + std::ssize(a.blocks) - static_cast<int64_t>(begin) <
                         kUnitsPerThread * threads;
    for (size_t i = begin; i < a.blocks.size(); ++i) {
        QueryBlock& block = a.blocks[i];
        const int chunks = chunks_of(block);
        if (!few || chunks == 1 || a.partial_bytes() > kMostPartialBytes) {
            a.units.push_back({static_cast<int>(i)});
            continue;
        }
        block.chunks = block.left = chunks;
        block.partial = a.partial_floats;
        block.stride = attention_partial(block.count * a.heads.queries_per_kv(), a.heads.padded());
        a.partial_floats += chunks * block.stride;
        a.add_chunks(static_cast<int>(i), 0);
    }
}

// Chunks of positions that the last token of a block sees.
int Program::chunks_of(const QueryBlock& block) const {
    return attention_chunks(position_of_[static_cast<size_t>(block.first + block.count - 1)] + 1);
}

int Program::add_rotary(std::vector<float> inverse_frequencies, bool interleaved, float factor) {
    rotaries_.push_back({std::move(inverse_frequencies), interleaved, factor, angles_});
    angles_ += rotaries_.back().dim() / 2;
    return rotaries() - 1;
}

// Of a token, for all rotations.
void Program::angles(int64_t n) {
    const auto position = static_cast<float>(position_of_[static_cast<size_t>(n)]);
    auto at = static_cast<size_t>(n * angles_);
    for (const auto& rotary : rotaries_)
        for (const float frequency : rotary.inverse_frequencies) {
            // The angle is rounded to float first, as every reference implementation does.
            const float angle = position * frequency;
            const auto [sine, cosine] = math::sincos_d(angle);
            cos_[at] = static_cast<float>(cosine) * rotary.factor;
            sin_[at++] = static_cast<float>(sine) * rotary.factor;
        }
}

// RMSNorm of q and of k, each as a whole or every head of them by itself, and of those of v; false: a value is not finite.
bool Program::normalise(const Op& op, const Run& run, float* qkv) const {
    const Heads& heads = this->heads(op.attends);
    const bool whole = norms_whole(op);
    const int q = whole ? 1 : heads.n_heads, k = !op.stores ? 0 : whole ? 1 : heads.n_kv_heads;
    const int v = op.v_norm.empty() ? 0 : k;
    const auto stride = whole ? static_cast<int64_t>(op.norm.size()) : heads.padded();
    bool finite = true;
    for (int i = 0; i < q + k + v; ++i) {
        const std::vector<float>& norm = i < q ? op.norm : i < q + k ? op.k_norm : op.v_norm;
        RowwiseArgs a{};
        a.x = a.yf = qkv + i * stride;
        a.width = static_cast<int64_t>(norm.size());
        a.norm = norm.data();
        a.eps = op.eps;
        finite = run.kernels.rowwise(a) && finite;
    }
    return finite;
}

// The row's heads of q, k and v side by side in the operation's own buffer, each padded with zeros.
float* Program::copy_heads(const Op& op, const float* qkv, int64_t n) const {
    float* const row = buffers_[static_cast<size_t>(op.dst)].row(n);
    const Heads& heads = this->heads(op.attends);
    const int d = heads.head_dim, padded = heads.padded(), q = heads.n_heads;
    for (int h = 0; h < q + (op.stores ? 2 * heads.n_kv_heads : 0); ++h) {
        const int gates = !op.gated ? 0 : std::min(h, q);  // before it
        const bool again = op.keys_are_values && h >= q + heads.n_kv_heads;
        const int from = h + gates - (again ? heads.n_kv_heads : 0);
        float* end = std::copy_n(qkv + int64_t{from} * d, d, row + int64_t{h} * padded);
        std::fill_n(end, padded - d, 0.0f);
    }
    return row;
}

void Program::rope_and_store(const Op& op, size_t index, Run& run, int64_t n) const {
    const Heads& heads = this->heads(op.attends);
    float* qkv = buffers_[static_cast<size_t>(op.src)].row(n);
    bool finite = true;
    const bool whole = norms_whole(op);
    if (whole) finite = normalise(op, run, qkv);  // before padding parts the heads
    if (op.dst != op.src) qkv = copy_heads(op, qkv, n);
    const int rotated = heads.n_heads + (op.stores ? heads.n_kv_heads : 0);
    RopeArgs rotation{qkv, nullptr, nullptr, rotated, heads.padded(), 0, false};
    if (op.rotary >= 0) {
        const auto& rotary = rotaries_[static_cast<size_t>(op.rotary)];
        const int64_t angle = n * angles_ + rotary.first_angle;
        rotation.cos = cos_.data() + angle;
        rotation.sin = sin_.data() + angle;
        rotation.rotary_dim = rotary.dim();
        rotation.interleaved = rotary.interleaved;
    }
    const bool of_heads = !op.norm.empty() && !whole;
    if (of_heads && !op.norms_last) finite = normalise(op, run, qkv);
    finite = run.kernels.rope(rotation) && finite;
    if (of_heads && op.norms_last) finite = normalise(op, run, qkv) && finite;
    if (op.stores) finite = store(op, run, qkv + heads.n_heads * heads.padded(), n) && finite;
    if (!finite) run.report(index);
}

// A token's keys, and the values behind them, to the cache; false: a value is not finite.
bool Program::store(const Op& op, const Run& run, float* keys, int64_t n) const {
    const auto& [kv_heads, head_dim] = run.cache.heads(op.layer);
    const int position = position_of_[static_cast<size_t>(n)];
    const auto& span =
        run.batch.sequences[static_cast<size_t>(sequence_of_[static_cast<size_t>(n)])];
    const int64_t at = span.pages[position / kPagePositions] * run.cache.page_stride(op.layer);
    return run.kernels.kv_store({keys, keys + kv_heads * head_dim, run.cache.keys(op.layer) + at,
                                 run.cache.values(op.layer) + at, position % kPagePositions,
                                 kv_heads, head_dim, run.cache.type});
}

// Query rows of one KV head on their way to a kernel.
struct Program::AttentionCall {
    AttentionCall(const Program& program, const Op& op, const Run& run, uint8_t* scratch)
        : heads(program.heads(op.attends)),
          op(op),
          run(run),
          kernels(run.kernels.attention(run.cache.type)),
          src(program.buffers_[static_cast<size_t>(op.src)]),
          dst(program.buffers_[static_cast<size_t>(op.dst)]),
          position_of(program.position_of_) {
        a.q = q;
        a.out = out;
        a.limit = limit;
        a.head_dim = heads.padded();
        a.window = op.window;
        a.scale = op.scale;
        a.cap = op.cap;
        a.sinks = op.sinks.empty() ? nullptr : sinks;
        a.page_stride = run.cache.page_stride(op.layer);
        a.type = run.cache.type;
        a.next_page = run.reading.next_page;
        a.scratch = scratch;
        padded_out =
            reinterpret_cast<float*>(scratch + (kernels.scratch(a.head_dim) + 63) / 64 * 64);
    }

    // Rows of a block: the pages are those of the first one in a call.
    void add(const QueryBlock& block, float* partials) {
        if (!a.rows) {
            a.pages = run.batch.sequences[static_cast<size_t>(block.sequence)].pages;
            a.k_base = run.cache.keys(op.layer) + block.kv_head * run.cache.head_bytes(op.layer);
            a.v_base = run.cache.values(op.layer) + block.kv_head * run.cache.head_bytes(op.layer);
            a.partial = partials + block.partial;
            a.partial_stride = block.stride;
        }
        const int queries_per_kv = heads.queries_per_kv();
        for (int t = 0; t < block.count; ++t) {
            const int64_t n = block.first + t;
            for (int h = 0; h < queries_per_kv; ++h) {
                const int head = block.kv_head * queries_per_kv + h;
                if (a.rows == kMaxRows) all();  // a block wider than the arrays is done in pieces
                q[a.rows] = src.row(n) + head * a.head_dim;
                to[a.rows] = dst.row(n) + head * heads.head_dim;
                out[a.rows] =
                    a.head_dim == heads.head_dim ? to[a.rows] : padded_out + a.rows * a.head_dim;
                limit[a.rows] = position_of[static_cast<size_t>(n)] + 1;
                if (a.sinks) sinks[a.rows] = op.sinks[static_cast<size_t>(head)];
                ++a.rows;
            }
        }
    }
    // Outputs over all positions.
    void all() {
        kernels.all(a);
        take_outputs();
    }
    void merge() {
        run.kernels.attention_merge(a);
        take_outputs();
    }
    // Results over a chunk of positions, all of which rows of several blocks see.
    void chunk(int index, bool of_several) {
        if (of_several) std::fill_n(limit, a.rows, (index + 1) * kChunkPositions);
        // Chunks are those of a layer without a window: of others some lie before it.
        if (index >= first_attention_chunk(a)) kernels.chunk(a, index);
        a.rows = 0;
    }

  private:
    static constexpr int kMaxRows = kMaxAttentionRows;

    void take_outputs() {
        for (int i = 0; i < a.rows; ++i)
            if (a.out[i] != to[i]) std::copy_n(a.out[i], heads.head_dim, to[i]);
        a.rows = 0;
    }

    const Heads& heads;
    const Op& op;
    const Run& run;
    const AttentionKernels& kernels;
    const Activations &src, &dst;
    const std::vector<int32_t>& position_of;
    AttentionArgs a{};
    const float* q[kMaxRows];
    float *out[kMaxRows], *to[kMaxRows];  // where outputs go, with their padding and without
    float* padded_out;
    int32_t limit[kMaxRows];
    float sinks[kMaxRows] = {};
};

void Program::attend(const Op& op, const Run& run, int64_t index, int worker) {
    Attending& a = attending_[static_cast<size_t>(op.attends)];
    const AttentionUnit& unit = a.units[static_cast<size_t>(index)];
    const std::span blocks(a.blocks.data() + unit.block, static_cast<size_t>(unit.count));
    auto* const partials = reinterpret_cast<float*>(partials_.data());
    AttentionCall call(*this, op, run, scratch(worker));
    if (unit.chunk < 0) {
        call.add(blocks.front(), partials);
        call.all();
        return;
    }
    // Behind a window rows of different positions do not see the same: there each block is a call.
    const bool one_call = op.window == kNoWindow;
    for (const auto& block : blocks) {
        call.add(block, partials);
        if (!one_call) call.chunk(unit.chunk, false);
    }
    if (one_call) call.chunk(unit.chunk, unit.count > 1);
    for (auto& block : blocks) {
        // Whoever comes last sees what the others wrote, and arms the counter for the next layer.
        const std::atomic_ref left(block.left);
        if (left.fetch_sub(1, std::memory_order_acq_rel) > 1) continue;
        left.store(block.chunks, std::memory_order_relaxed);
        call.add(block, partials);
        call.merge();
    }
}

}  // namespace sterna
