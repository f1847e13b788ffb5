#include "program.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "scalar_math.h"

namespace sterna {

namespace {
using Clock = std::chrono::steady_clock;

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

int Program::add_buffer(int64_t width) {
    buffers_.emplace_back(width);
    return static_cast<int>(buffers_.size()) - 1;
}

int Program::add_weight(const Weight& weight) {
    weights_.push_back(weight);
    return static_cast<int>(weights_.size()) - 1;
}

void Program::add_op(Op op) { ops_.push_back(std::move(op)); }

void Program::add_screen(const Weight& shadow, const ShadowBounds& bounds) {
    Op op = ops_.back();
    ops_.back().full = true;
    const Weight& fine = weights_[static_cast<size_t>(op.weight)];
    screen_ = std::make_unique<Screen>(fine, shadow, bounds);
    full_rows_ = fine.M;
    full_bytes_ = fine.tiles * fine.tile_bytes;
    // Codes, and for each row a scale and three bounds.
    shadow_bytes_ = shadow.tiles * shadow.tile_bytes + (fine.M + 15) / 16 * 16 * 16;
    op.kind = OpKind::kScreen;
    for (int stage = 0; stage < kScreenStages; ++stage) {
        op.stage = static_cast<ScreenStage>(stage);
        ops_.push_back(op);
    }
}

int64_t Program::rescored(int64_t n) const {
    return !screen_ ? 0 : screened_ ? screen_->rescored(n) : full_rows_;
}

int64_t Program::head_bytes() const {
    if (selected_.empty()) return 0;
    return screened_ ? shadow_bytes_ + screen_->bytes() : full_bytes_;
}

struct Program::Run {
    const Batch& batch;
    const KvCache& cache;
    const KernelTable& kernels;
    int64_t tokens, selected;
    int threads;
    bool screened;
    std::atomic<size_t> non_finite{std::numeric_limits<size_t>::max()};  // first op that met one

    void report(size_t index) {
        for (size_t seen = non_finite; index < seen;)
            if (non_finite.compare_exchange_weak(seen, index)) break;
    }
    int64_t rows(const Op& op) const {
        if (op.kind == OpKind::kScreen ? !screened : op.full && screened) return 0;
        return op.selected ? selected : tokens;
    }
    static bool fast(const Op& op, const FormatKernels& format) {
        return op.fast && format.fast.linear;
    }
    // How the operation's rows are laid out as int8.
    int x_block(const Op& op) const { return kernels.x_block(static_cast<int>(rows(op))); }
};

void Program::reserve(int64_t tokens) {
    if (tokens <= capacity_) return;
    for (size_t i = 0; i < buffers_.size(); ++i) {
        const auto splits = [&](const Op& op) {
            return op.split >= 0 && static_cast<size_t>(op.dst) == i;
        };
        buffers_[i].reserve(tokens, std::ranges::any_of(ops_, splits) ? kMaxPlanes : 0);
    }
    const size_t angles = static_cast<size_t>(tokens * rope_.head_dim / 2);
    cos_.resize(angles);
    sin_.resize(angles);
    for (auto* v : {&sequence_of_, &position_of_, &selected_})
        v->reserve(static_cast<size_t>(tokens));
    top_.reserve(static_cast<size_t>(tokens));
    blocks_.reserve(static_cast<size_t>(tokens * rope_.n_kv_heads));
    capacity_ = tokens;
}

// The most that any operation of this run needs.
void Program::reserve_scratch(const Run& run, int workers) {
    int64_t bytes = run.kernels.attention_scratch(rope_.padded());
    if (rope_.padded() != rope_.head_dim)  // and outputs that attend() takes the padding off
        bytes = (bytes + 63) / 64 * 64 + int64_t{kMaxAttentionRows} * rope_.padded() * 4;
    for (const auto& op : ops_) {
        if (op.kind == OpKind::kRowwise) bytes = std::max(bytes, padded_width(op.width) * 4);
        if (op.kind != OpKind::kLinear) continue;
        const auto& w = weights_[static_cast<size_t>(op.weight)];
        const auto& format = run.kernels.formats[w.format];
        const auto scratch =
            run.fast(op, format) ? format.fast.scratch_bytes : format.scratch_bytes;
        bytes = std::max(bytes, scratch(w.padded_k, static_cast<int>(run.rows(op))));
    }
    if (screened_) bytes = std::max(bytes, screen_->scratch_bytes());
    // A page apart, so that two workers' ends and starts share no line.
    scratch_stride_ = std::max(scratch_stride_, (bytes + 4095) / 4096 * 4096 + 4096);
    const auto total = static_cast<size_t>(scratch_stride_ * workers);
    if (scratch_.size() < total) scratch_ = HugeBuffer(total);
}

// Tokens -> (sequence, position), the rows that want logits, and the attention units.
void Program::plan(const Batch& batch, int tokens_per_block, int threads) {
    sequence_of_.clear(), position_of_.clear(), selected_.clear(), top_.clear();
    blocks_.clear();
    for (int s = 0, first = 0; const auto& span : batch.sequences) {
        for (int i = 0; i < span.count; ++i) {
            sequence_of_.push_back(s);
            position_of_.push_back(span.start + i);
            if (i < span.count - span.logits) continue;
            selected_.push_back(first + i);
            top_.push_back(span.top);
        }
        // A head's keys and values stay in L2 while its tokens pass. The last tokens see the most keys:
        // hand them out first, so that no worker ends late.
        for (int h = 0; h < rope_.n_kv_heads; ++h)
            for (int end = span.count; end > 0; end -= tokens_per_block) {
                const int begin = std::max(0, end - tokens_per_block);
                blocks_.push_back({s, h, first + begin, end - begin});
            }
        first += span.count;
        ++s;
    }
    const int64_t rows = int64_t{tokens_per_block} * rope_.n_heads / rope_.n_kv_heads;
    splits_.clear();
    // Fewer than kMaxAttentionRows: a split block is one call, which attend() cuts there.
    if (threads > 1 && rows < kMaxAttentionRows && std::ssize(blocks_) < kUnitsPerThread * threads)
        split_blocks();
}

// Makes each chunk of positions a unit, as a few tokens far into a context need it.
void Program::split_blocks() {
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
        block.split = static_cast<int>(splits_.size());
        splits_.push_back({chunks, chunks, floats});
        const int64_t block_rows = int64_t{block.count} * rope_.n_heads / rope_.n_kv_heads;
        floats += chunks * attention_partial(block_rows, rope_.padded());
        for (block.chunk = 0; block.chunk < chunks; ++block.chunk) blocks_.push_back(block);
    }
    const auto bytes = static_cast<size_t>(floats) * sizeof(float);
    if (partials_.size() < bytes) partials_ = HugeBuffer(std::bit_ceil(bytes));
}

const float* Program::run(const Batch& batch, const KvCache& cache, const KernelTable& kernels,
                          Pool& pool) {
    reserve(static_cast<int64_t>(batch.tokens.size()));
    const int group = rope_.n_heads / rope_.n_kv_heads;
    const int64_t query_rows = static_cast<int64_t>(batch.tokens.size()) * rope_.n_heads;
    plan(batch, std::max(1, static_cast<int>(rows_per_block(query_rows, pool.size())) / group),
         pool.size());
    if (n_counters_ != ops_.size() + 1) {
        n_counters_ = ops_.size() + 1;
        counters_ = std::make_unique<ChunkCounter[]>(n_counters_);
    }
    for (size_t i = 0; i < n_counters_; ++i) counters_[i].reset();
    // Where one row wants all logits, the float head is read anyway and serves every row.
    screened_ = screen_ && std::ranges::all_of(top_, [](const Top& t) { return t.count > 0; });
    Run run{batch,
            cache,
            kernels,
            static_cast<int64_t>(batch.tokens.size()),
            static_cast<int64_t>(selected_.size()),
            pool.size(),
            screened_};
    if (screened_) screen_->begin(top_, kernels);
    reserve_scratch(run, pool.size());
    Barrier& barrier = pool.barrier();
    pool.run([&](int worker) {
        // The rotations' angles: needed some operations later, so the first barrier is enough.
        for (int64_t n; (n = counters_[ops_.size()].next()) < run.tokens;) angles(n);
        auto last = Clock::now();
        for (size_t i = 0; i < ops_.size(); ++i) {
            if (run.rows(ops_[i]) > 0) step(ops_[i], i, run, worker);
            barrier.arrive_and_wait();
            if (worker != 0) continue;
            const auto now = Clock::now();
            const double took = std::chrono::duration<double>(now - last).count();
            seconds_[static_cast<size_t>(ops_[i].kind)] += took;
            if (i + 1 == ops_.size() && ops_[i].kind == OpKind::kLinear) head_seconds_ += took;
            last = now;
        }
    });
    if (run.non_finite < ops_.size()) {
        capacity_ = 0;  // padding may hold NaN now: the next run starts from fresh, zeroed buffers
        throw std::domain_error(ops_[run.non_finite].name);
    }
    return buffers_.back().row(0);
}

Division Program::units(const Op& op, const Run& run) const {
    switch (op.kind) {
        case OpKind::kLinear:
            return divide_tiles(weights_[static_cast<size_t>(op.weight)].tiles, run.rows(op),
                                run.threads);
        case OpKind::kAttention:
            return {static_cast<int64_t>(blocks_.size())};
        case OpKind::kScreen:
            return screen_->units(op.stage, run.threads);
        default:
            return {run.rows(op), run.threads};
    }
}

void Program::step(const Op& op, size_t index, Run& run, int worker) {
    const Division all = units(op, run);
    bool again = false;
    for (int64_t begin, end; counters_[index].next(all, begin, end); again = true) {
        if (op.kind == OpKind::kLinear) {
            linear(op, run, begin, end, worker, again);
            continue;
        }
        if (op.kind == OpKind::kScreen) {
            screen(op, index, run, begin, end, worker);
            continue;
        }
        for (int64_t i = begin; i < end; ++i) switch (op.kind) {
                case OpKind::kEmbed:
                    embed(op, run, i);
                    break;
                case OpKind::kSelect: {
                    const auto& from = buffers_[static_cast<size_t>(op.src)];
                    std::memcpy(buffers_[static_cast<size_t>(op.dst)].row(i),
                                from.row(selected_[static_cast<size_t>(i)]),
                                static_cast<size_t>(from.ld) * 4);
                    break;
                }
                case OpKind::kRowwise:
                    rowwise(op, index, run, i, worker);
                    break;
                case OpKind::kSplit:
                    if (const int n = planes(op, run))
                        run.kernels.split(buffers_[static_cast<size_t>(op.dst)].split_args(i, n));
                    break;
                case OpKind::kRope:
                    rope_and_store(op, index, run, i);
                    break;
                case OpKind::kAttention:
                    attend(op, run, i, worker);
                    break;
                case OpKind::kLinear:
                case OpKind::kScreen:
                    break;
            }
    }
}

void Program::angles(int64_t n) {
    const auto& f = rope_.inverse_frequencies;
    const auto position = static_cast<float>(position_of_[static_cast<size_t>(n)]);
    for (size_t i = 0; i < f.size(); ++i) {
        // The angle is rounded to float first, as every reference implementation does.
        const float angle = position * f[i];
        const auto at = static_cast<size_t>(n) * f.size() + i;
        const auto [sine, cosine] = math::sincos_d(angle);
        cos_[at] = static_cast<float>(cosine);
        sin_[at] = static_cast<float>(sine);
    }
}

void Program::embed(const Op& op, const Run& run, int64_t n) const {
    const auto& w = weights_[static_cast<size_t>(op.weight)];
    float* x = buffers_[static_cast<size_t>(op.dst)].row(n);
    const int64_t row = run.batch.tokens[static_cast<size_t>(n)];
    const auto& format = run.kernels.formats[w.format];
    const RowArgs args{w.codes, w.tile_bytes, row, w.K, x};
    if (w.groups.group) return format.values(args, w.groups, w.z2);
    format.row(args);
    if (format.integer)  // 2 * code - z2 is exact; one rounding
        for (int64_t k = 0; k < w.K; ++k)
            x[k] = (2 * x[k] - static_cast<float>(w.z2)) * w.scale[row];
    else if (w.scale)
        for (int64_t k = 0; k < w.K; ++k) x[k] *= w.scale[row];
}

void Program::rowwise(const Op& op, size_t index, Run& run, int64_t n, int worker) const {
    const auto& src = buffers_[static_cast<size_t>(op.src)];
    const auto& dst = buffers_[static_cast<size_t>(op.dst)];
    RowwiseArgs a{};
    a.x = src.row(n);
    a.up_offset = op.up_offset;
    a.width = op.width;
    a.glu = op.glu;
    a.norm = op.norm.empty() ? nullptr : op.norm.data();
    a.eps = op.eps;
    // A row that nobody reads as floats stays in the worker's cache.
    a.yf = op.keep_float ? dst.row(n) : reinterpret_cast<float*>(scratch(worker));
    if (op.rounding) dst.quantize_into(a, n, run.x_block(op), *op.rounding);
    if (!run.kernels.rowwise(a)) run.report(index);
    if (const int count = planes(op, run)) run.kernels.split(dst.split_args(n, count));
}

// How many planes of bf16 the operation makes of its result; 0: none.
int Program::planes(const Op& op, const Run& run) const {
    if (op.split < 0) return 0;
    return run.kernels.formats[weights_[static_cast<size_t>(op.split)].format].fast.x_planes;
}

void Program::linear(const Op& op, const Run& run, int64_t begin, int64_t end, int worker,
                     bool again) const {
    const auto& w = weights_[static_cast<size_t>(op.weight)];
    LinearArgs a =
        linear_args(w, buffers_[static_cast<size_t>(op.src)], static_cast<int>(run.rows(op)),
                    run.x_block(op), buffers_[static_cast<size_t>(op.dst)]);
    a.y += op.column;
    if (op.residual >= 0)
        a.residual = buffers_[static_cast<size_t>(op.residual)].row(0) + op.column;
    a.scratch = scratch(worker);
    a.tile_begin = begin;
    a.tile_end = end;
    a.again = again;
    const auto& format = run.kernels.formats[w.format];
    (run.fast(op, format) ? format.fast.linear : format.linear)(a);
    if (op.bias.empty()) return;
    // Here and not in the kernels: one addition, the same in all of them, on tiles that this thread has
    // just written.
    const int64_t from = begin * format.tile_rows, to = std::min(end * format.tile_rows, w.M);
    for (int64_t n = 0; n < a.n; ++n)
        for (int64_t m = from; m < to; ++m) a.y[n * a.ldy + m] += op.bias[static_cast<size_t>(m)];
}

void Program::screen(const Op& op, size_t index, Run& run, int64_t begin, int64_t end, int worker) {
    const auto& x = buffers_[static_cast<size_t>(op.src)];
    const auto& logits = buffers_[static_cast<size_t>(op.dst)];
    if (!screen_->step(op.stage, begin, end, x, logits, scratch(worker))) run.report(index);
}

// RMSNorm of every head of q and of k by itself; false: a value is not finite.
bool Program::normalise_heads(const Op& op, const Run& run, float* qkv) const {
    bool finite = true;
    for (int h = 0; h < rope_.n_heads + rope_.n_kv_heads; ++h) {
        RowwiseArgs a{};
        a.x = a.yf = qkv + int64_t{h} * rope_.head_dim;
        a.width = rope_.head_dim;
        a.norm = (h < rope_.n_heads ? op.norm : op.k_norm).data();
        a.eps = op.eps;
        finite = run.kernels.rowwise(a) && finite;
    }
    return finite;
}

// The row's heads, each padded with zeros, in the operation's own buffer.
float* Program::pad_heads(const Op& op, const float* qkv, int64_t n) const {
    float* const row = buffers_[static_cast<size_t>(op.dst)].row(n);
    const int d = rope_.head_dim, padded = rope_.padded();
    for (int h = 0; h < rope_.n_heads + 2 * rope_.n_kv_heads; ++h) {
        float* end = std::copy_n(qkv + int64_t{h} * d, d, row + int64_t{h} * padded);
        std::fill_n(end, padded - d, 0.0f);
    }
    return row;
}

void Program::rope_and_store(const Op& op, size_t index, Run& run, int64_t n) const {
    const auto at = static_cast<size_t>(n);
    const int half = rope_.head_dim / 2;
    float* qkv = buffers_[static_cast<size_t>(op.src)].row(n);
    const RopeArgs rotation{qkv,
                            cos_.data() + n * half,
                            sin_.data() + n * half,
                            rope_.n_heads + rope_.n_kv_heads,
                            rope_.head_dim,
                            rope_.interleaved};
    bool finite = op.norm.empty() || normalise_heads(op, run, qkv);
    finite = run.kernels.rope(rotation) && finite;
    if (op.dst != op.src) qkv = pad_heads(op, qkv, n);
    const int head_dim = rope_.padded();
    const int position = position_of_[at];
    const auto& span = run.batch.sequences[static_cast<size_t>(sequence_of_[at])];
    const int64_t page = span.pages[position / kPagePositions];
    const float* k = qkv + rope_.n_heads * head_dim;
    const KvStoreArgs store{k,
                            k + rope_.n_kv_heads * head_dim,
                            run.cache.keys(op.layer) + page * run.cache.page_stride(),
                            run.cache.values(op.layer) + page * run.cache.page_stride(),
                            position % kPagePositions,
                            rope_.n_kv_heads,
                            head_dim,
                            run.cache.type};
    finite = run.kernels.kv_store(store) && finite;
    if (!finite) run.report(index);
}

// Outputs without the padding of their heads; there are no rows left then.
void Program::unpad(AttentionArgs& a, float* const* to) const {
    for (int i = 0; i < a.rows; ++i)
        if (a.out[i] != to[i]) std::copy_n(a.out[i], rope_.head_dim, to[i]);
    a.rows = 0;
}

void Program::attend(const Op& op, const Run& run, int64_t index, int worker) {
    const auto& block = blocks_[static_cast<size_t>(index)];
    const auto& src = buffers_[static_cast<size_t>(op.src)];
    const auto& dst = buffers_[static_cast<size_t>(op.dst)];
    const int group = rope_.n_heads / rope_.n_kv_heads;
    constexpr int kMaxRows = kMaxAttentionRows;
    const float* q[kMaxRows];
    float *out[kMaxRows], *to[kMaxRows];  // where outputs go, with their padding and without
    int32_t limit[kMaxRows];
    AttentionArgs a{};
    a.q = q;
    a.out = out;
    a.limit = limit;
    a.head_dim = rope_.padded();
    a.scale = 1.0f / __builtin_sqrtf(static_cast<float>(rope_.head_dim));
    a.pages = run.batch.sequences[static_cast<size_t>(block.sequence)].pages;
    a.k_base = run.cache.keys(op.layer) + block.kv_head * run.cache.head_bytes();
    a.v_base = run.cache.values(op.layer) + block.kv_head * run.cache.head_bytes();
    a.page_stride = run.cache.page_stride();
    a.type = run.cache.type;
    a.scratch = scratch(worker);
    const int64_t scratch_bytes = (run.kernels.attention_scratch(a.head_dim) + 63) / 64 * 64;
    auto* const padded_out = reinterpret_cast<float*>(a.scratch + scratch_bytes);
    for (int t = 0; t < block.count; ++t) {
        const int64_t n = block.first + t;
        for (int h = 0; h < group; ++h) {
            const int head = block.kv_head * group + h;
            q[a.rows] = src.row(n) + head * a.head_dim;
            to[a.rows] = dst.row(n) + head * rope_.head_dim;
            out[a.rows] =
                a.head_dim == rope_.head_dim ? to[a.rows] : padded_out + a.rows * a.head_dim;
            limit[a.rows] = position_of_[static_cast<size_t>(n)] + 1;
            if (++a.rows == kMaxRows) {  // a group wider than the arrays is done in pieces
                run.kernels.attention(a);
                unpad(a, to);
            }
        }
    }
    if (block.split < 0) {
        if (a.rows) run.kernels.attention(a);
        unpad(a, to);
        return;
    }
    Split& split = splits_[static_cast<size_t>(block.split)];
    a.partial = reinterpret_cast<float*>(partials_.data()) + split.partial;
    run.kernels.attention_chunk(a, block.chunk);
    // Whoever comes last sees what the others wrote, and arms the counter for the next layer.
    const std::atomic_ref left(split.left);
    if (left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    left.store(split.chunks, std::memory_order_relaxed);
    run.kernels.attention_merge(a);
    unpad(a, to);
}

}  // namespace sterna
