// Attention within a Program: the cache's pages, how a batch becomes units, rotation and storage of keys and
// values, and the units themselves.
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
constexpr int64_t kFewestRows = 16;  // of a block that is not all of its tokens

// Query rows (tokens x heads of a group) of one attention unit: the more, the fewer times keys and values
// are read.
int64_t rows_per_block(int64_t query_rows, int threads) {
    int64_t rows = kMaxAttentionRows;
    while (rows > kFewestRows && query_rows < kUnitsPerThread * threads * rows) rows /= 2;
    return rows;
}

}  // namespace

KvCache::KvCache(int layers, int kv_heads, int head_dim, int pages, KvType type)
    : layers(layers),
      kv_heads(kv_heads),
      head_dim(padded_head(head_dim)),
      pages(pages),
      type(type) {
    page_bytes_ = kv_heads * head_bytes();
    layer_bytes_ = page_stride() * pages;
    base_ = HugeBuffer(static_cast<size_t>(layer_bytes_ * layers));
}

void KvCache::copy_page(int from, int to) {
    for (int layer = 0; layer < layers; ++layer)
        std::memcpy(keys(layer) + to * page_stride(), keys(layer) + from * page_stride(),
                    static_cast<size_t>(page_stride()));
}

// Tokens -> (sequence, position), the rows that want logits, and the attention units.
void Program::plan(const Batch& batch, int threads) {
    const int queries_per_kv = heads_.queries_per_kv();
    const int64_t query_rows = static_cast<int64_t>(batch.tokens.size()) * heads_.n_heads;
    const int tokens_per_block =
        std::max(1, static_cast<int>(rows_per_block(query_rows, threads)) / queries_per_kv);
    sequence_of_.clear(), position_of_.clear(), selected_.clear(), deciding_.clear();
    blocks_.clear(), first_of_.clear();
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
        // A head's keys and values stay in L2 while its tokens pass. The last tokens see the most keys:
        // hand them out first, so that no worker ends late.
        for (int h = 0; h < heads_.n_kv_heads; ++h)
            for (int end = span.count; end > 0; end -= tokens_per_block) {
                const int begin = std::max(0, end - tokens_per_block);
                blocks_.push_back({s, h, first + begin, end - begin});
            }
        first += span.count;
        ++s;
    }
    const int64_t rows = int64_t{tokens_per_block} * queries_per_kv;
    chunked_blocks_.clear();
    // Fewer than kMaxAttentionRows: a chunked block is one call, which attend() cuts there.
    if (threads > 1 && rows < kMaxAttentionRows && std::ssize(blocks_) < kUnitsPerThread * threads)
        divide_into_chunks();
}

// Makes each chunk of positions a unit, as a few tokens far into a context need it.
void Program::divide_into_chunks() {
    const auto chunks_of = [&](const QueryBlock& block) {
        return attention_chunks(position_of_[static_cast<size_t>(block.first + block.count - 1)] +
                                1);
    };
    if (std::ranges::none_of(blocks_, [&](const auto& block) { return chunks_of(block) > 1; }))
        return;
    whole_blocks_.assign(blocks_.begin(), blocks_.end());
    blocks_.clear();
    int64_t floats = 0;
    for (QueryBlock block : whole_blocks_) {
        const int chunks = chunks_of(block);
        if (floats * int64_t{sizeof(float)} > kMostPartialBytes) {
            blocks_.push_back(block);
            continue;
        }
        block.chunked = static_cast<int>(chunked_blocks_.size());
        chunked_blocks_.push_back({chunks, chunks, floats});
        const int64_t block_rows = int64_t{block.count} * heads_.queries_per_kv();
        floats += chunks * attention_partial(block_rows, heads_.padded());
        for (block.chunk = 0; block.chunk < chunks; ++block.chunk) blocks_.push_back(block);
    }
    const auto bytes = static_cast<size_t>(floats) * sizeof(float);
    if (partials_.size() < bytes) partials_ = HugeBuffer(std::bit_ceil(bytes));
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

// RMSNorm of q and of k, each as a whole or every head of them by itself; false: a value is not finite.
bool Program::normalise(const Op& op, const Run& run, float* qkv) const {
    const bool whole = norms_whole(op);
    const int q = whole ? 1 : heads_.n_heads, k = whole ? 1 : heads_.n_kv_heads;
    const auto stride = whole ? static_cast<int64_t>(op.norm.size()) : heads_.padded();
    bool finite = true;
    for (int i = 0; i < q + k; ++i) {
        const std::vector<float>& norm = i < q ? op.norm : op.k_norm;
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
    const int d = heads_.head_dim, padded = heads_.padded();
    for (int h = 0; h < heads_.n_heads + 2 * heads_.n_kv_heads; ++h) {
        const int gates = !op.gated ? 0 : h < heads_.n_heads ? h : heads_.n_heads;  // before it
        float* end = std::copy_n(qkv + int64_t{h + gates} * d, d, row + int64_t{h} * padded);
        std::fill_n(end, padded - d, 0.0f);
    }
    return row;
}

void Program::rope_and_store(const Op& op, size_t index, Run& run, int64_t n) const {
    const auto at = static_cast<size_t>(n);
    float* qkv = buffers_[static_cast<size_t>(op.src)].row(n);
    bool finite = true;
    const bool whole = norms_whole(op);
    if (whole) finite = normalise(op, run, qkv);  // before padding parts the heads
    if (op.dst != op.src) qkv = copy_heads(op, qkv, n);
    RopeArgs rotation{qkv, nullptr, nullptr, heads_.n_heads + heads_.n_kv_heads, heads_.padded(),
                      0,   false};
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
    const int head_dim = heads_.padded();
    const int position = position_of_[at];
    const auto& span = run.batch.sequences[static_cast<size_t>(sequence_of_[at])];
    const int64_t page = span.pages[position / kPagePositions];
    float* k = qkv + heads_.n_heads * head_dim;
    const KvStoreArgs store{k,
                            k + heads_.n_kv_heads * head_dim,
                            run.cache.keys(op.layer) + page * run.cache.page_stride(),
                            run.cache.values(op.layer) + page * run.cache.page_stride(),
                            position % kPagePositions,
                            heads_.n_kv_heads,
                            head_dim,
                            run.cache.type};
    finite = run.kernels.kv_store(store) && finite;
    if (!finite) run.report(index);
}

// Outputs without the padding of their heads; there are no rows left then.
void Program::unpad(AttentionArgs& a, float* const* to) const {
    for (int i = 0; i < a.rows; ++i)
        if (a.out[i] != to[i]) std::copy_n(a.out[i], heads_.head_dim, to[i]);
    a.rows = 0;
}

void Program::attend(const Op& op, const Run& run, int64_t index, int worker) {
    const auto& block = blocks_[static_cast<size_t>(index)];
    const auto& src = buffers_[static_cast<size_t>(op.src)];
    const auto& dst = buffers_[static_cast<size_t>(op.dst)];
    const int queries_per_kv = heads_.queries_per_kv();
    constexpr int kMaxRows = kMaxAttentionRows;
    const float* q[kMaxRows];
    float *out[kMaxRows], *to[kMaxRows];  // where outputs go, with their padding and without
    int32_t limit[kMaxRows];
    float sinks[kMaxRows] = {};
    AttentionArgs a{};
    a.q = q;
    a.out = out;
    a.limit = limit;
    a.head_dim = heads_.padded();
    a.window = op.window;
    a.scale = op.scale;
    a.cap = op.cap;
    a.sinks = op.sinks.empty() ? nullptr : sinks;
    a.pages = run.batch.sequences[static_cast<size_t>(block.sequence)].pages;
    a.k_base = run.cache.keys(op.layer) + block.kv_head * run.cache.head_bytes();
    a.v_base = run.cache.values(op.layer) + block.kv_head * run.cache.head_bytes();
    a.page_stride = run.cache.page_stride();
    a.type = run.cache.type;
    a.next_page = run.reading.next_page;
    const AttentionKernels& kernels = run.kernels.attention(a.type);
    a.scratch = scratch(worker);
    const int64_t scratch_bytes = (kernels.scratch(a.head_dim) + 63) / 64 * 64;
    auto* const padded_out = reinterpret_cast<float*>(a.scratch + scratch_bytes);
    for (int t = 0; t < block.count; ++t) {
        const int64_t n = block.first + t;
        for (int h = 0; h < queries_per_kv; ++h) {
            const int head = block.kv_head * queries_per_kv + h;
            q[a.rows] = src.row(n) + head * a.head_dim;
            to[a.rows] = dst.row(n) + head * heads_.head_dim;
            out[a.rows] =
                a.head_dim == heads_.head_dim ? to[a.rows] : padded_out + a.rows * a.head_dim;
            limit[a.rows] = position_of_[static_cast<size_t>(n)] + 1;
            if (a.sinks) sinks[a.rows] = op.sinks[static_cast<size_t>(head)];
            if (++a.rows == kMaxRows) {  // a group wider than the arrays is done in pieces
                kernels.all(a);
                unpad(a, to);
            }
        }
    }
    if (block.chunked < 0) {
        if (a.rows) kernels.all(a);
        unpad(a, to);
        return;
    }
    ChunkedBlock& chunked = chunked_blocks_[static_cast<size_t>(block.chunked)];
    a.partial = reinterpret_cast<float*>(partials_.data()) + chunked.partial;
    // Chunks are those of a layer without a window: of others some lie before it.
    if (block.chunk >= first_attention_chunk(a)) kernels.chunk(a, block.chunk);
    // Whoever comes last sees what the others wrote, and arms the counter for the next layer.
    const std::atomic_ref left(chunked.left);
    if (left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    left.store(chunked.chunks, std::memory_order_relaxed);
    run.kernels.attention_merge(a);
    unpad(a, to);
}

}  // namespace sterna
