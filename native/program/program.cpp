#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "program/program_run.h"

namespace sterna {

namespace {

// Of the next weight, which a thread asks for while it waits: a part of the cache that a core has for itself.
constexpr int64_t kReadAheadBytes = int64_t{192} << 10;
using Clock = std::chrono::steady_clock;
}  // namespace

int Program::add_buffer(int64_t width) {
    buffers_.emplace_back(width);
    return static_cast<int>(buffers_.size()) - 1;
}

int Program::add_weight(const Weight& weight) {
    weights_.push_back(weight);
    return static_cast<int>(weights_.size()) - 1;
}

void Program::add_op(Op op) { ops_.push_back(std::move(op)); }

void Program::add_recurrent(Op op, int64_t floats) {
    op.state = state_floats_;
    state_floats_ += (floats + 15) / 16 * 16;  // each begins at a line
    ops_.push_back(std::move(op));
}

void Program::add_screen(const Weight& shadow, const ShadowBounds& bounds) {
    Op op = ops_.back();
    Op begin{OpKind::kScreen, op.name};
    begin.begins = true;
    ops_.insert(ops_.end() - 1, std::move(begin));
    ops_.back().unscreened = true;
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
    if (!screened_) return full_bytes_;
    return screen_->bytes() + (screen_->read_shadow() ? shadow_bytes_ : 0);
}

void Program::reserve(int64_t tokens) {
    if (tokens <= capacity_) return;
    for (size_t i = 0; i < buffers_.size(); ++i) {
        const auto read_as_planes = [&](const Op& op) {
            return op.planes_for_weight >= 0 && static_cast<size_t>(op.dst) == i;
        };
        const auto in_two = [&](const Op& op) {
            return op.code_planes == 2 && static_cast<size_t>(op.dst) == i;
        };
        buffers_[i].reserve(capacity_of(i, tokens),
                            std::ranges::any_of(ops_, read_as_planes) ? kMaxPlanes : 0,
                            std::ranges::any_of(ops_, in_two) ? 2 : 1);
    }
    reserve_routing(tokens);
    const size_t angles = static_cast<size_t>(tokens * angles_);
    cos_.resize(angles);
    sin_.resize(angles);
    for (auto* v : {&sequence_of_, &position_of_, &selected_})
        v->reserve(static_cast<size_t>(tokens));
    deciding_.reserve(static_cast<size_t>(tokens));
    first_of_.reserve(static_cast<size_t>(tokens));
    for (Attending& a : attending_) {
        a.blocks.reserve(static_cast<size_t>(tokens * a.heads.n_kv_heads));
        a.units.reserve(static_cast<size_t>(tokens * a.heads.n_kv_heads));
    }
    planned_.reserve(static_cast<size_t>(tokens));
    joined_.reserve(static_cast<size_t>(tokens));
    capacity_ = tokens;
}

// The most that any operation of this run needs.
void Program::reserve_scratch(const Run& run, int workers) {
    int64_t bytes = 0;
    for (const auto& [heads, _, __, ___] : attending_) {
        int64_t needed = run.kernels.attention(run.cache.type).scratch(heads.padded());
        if (heads.padded() != heads.head_dim)  // and outputs that attend() takes the padding off
            needed = (needed + 63) / 64 * 64 + int64_t{kMaxAttentionRows} * heads.padded() * 4;
        bytes = std::max(bytes, needed);
    }
    for (const auto& op : ops_) {
        if (op.kind == OpKind::kRowwise || op.kind == OpKind::kTell)
            bytes = std::max(bytes, padded_width(op.width) * (op.up == op.src ? 4 : 12));
        if (op.kind != OpKind::kLinear) continue;
        const auto& w = weights_[static_cast<size_t>(op.weight)];
        bytes = std::max(bytes, multiply_scratch(op, run));
        if (op.copy >= 0 && run.one()) bytes = std::max(bytes, active_scratch(w.padded_k, w.M));
    }
    bytes = std::max(bytes, adapter_rank_ * kAdapterTokens * 4);
    if (run.screened || run.late)
        bytes = std::max(bytes, screen_->scratch_bytes(run.kernels, run.selected));
    // A page apart, so that two workers' ends and starts share no line.
    scratch_stride_ = std::max(scratch_stride_, (bytes + 4095) / 4096 * 4096 + 4096);
    const auto total = static_cast<size_t>(scratch_stride_ * workers);
    if (scratch_.size() < total) scratch_ = HugeBuffer(total);
}

float* Program::run(const Batch& batch, const KvCache& cache, const KernelTable& kernels,
                    Pool& pool) {
    reserve(static_cast<int64_t>(batch.tokens.size()));
    plan(batch, pool.size());
    for (auto& hand_out : hand_outs_) {
        if (hand_out.threads() != pool.size()) hand_out = HandOut(pool.size());
        hand_out.reset();
    }
    if (screen_) screen_->reserve(std::ssize(selected_));
    const bool late = screen_ && batch.masks;
    Run run{batch,
            cache,
            kernels,
            static_cast<int64_t>(batch.tokens.size()),
            static_cast<int64_t>(selected_.size()),
            pool.size(),
            pool.reading(),
            !near_.empty() && pool.team() == team_ ? &team_ : nullptr,
            late,
            false,
            !adapting_.empty()};
    if (screen_ && !late) begin_screen(run);
    reserve_scratch(run, pool.size());
    Barrier& barrier = pool.barrier();
    pool.run([&](int worker) {
        // The rotations' angles: needed some operations later, so the first barrier is enough.
        for (int64_t n = worker; n < run.tokens; n += run.threads) angles(n);
        auto last = Clock::now();
        size_t layer = 0;  // whose beginning is read ahead
        size_t turn = 0;
        ReadAhead ahead;
        for (size_t i = 0; i < ops_.size(); ++i) {
            if (ops_[i].kind == OpKind::kAdapt && !adapter_units(ops_[i])) continue;
            HandOut& hand_out = hand_outs_[turn++ % 2];
            hand_outs_[turn % 2].reset(worker);
            if (run.rows(ops_[i]) > 0) step(ops_[i], i, run, worker, hand_out);
            if (layer <= i) {
                layer = next_linear(i + 1, run);
                ahead = beginning(layer, run, worker);
            }
            barrier.arrive_and_wait(&ahead);
            if (worker != 0) continue;
            const auto now = Clock::now();
            const double took = std::chrono::duration<double>(now - last).count();
            seconds_[static_cast<size_t>(ops_[i].kind)] += took;
            if (i + 1 == ops_.size() && ops_[i].kind == OpKind::kLinear) head_seconds_ += took;
            last = now;
        }
    });
    screened_ = run.screened;
    if (run.non_finite < ops_.size()) {
        capacity_ = 0;  // padding may hold NaN now: the next run starts from fresh, zeroed buffers
        throw std::domain_error(ops_[run.non_finite].name);
    }
    left_out_ = run.left_out;
    return buffers_.back().row(0);
}

size_t Program::next_linear(size_t index, const Run& run) const {
    const auto is_one = [&](const Op& op) {
        const bool unknown = op.unscreened && run.late;
        return op.kind == OpKind::kLinear && !unknown && run.rows(op);
    };
    while (index < ops_.size() && !is_one(ops_[index])) ++index;
    return index;
}

// What a thread reads first of a linear layer of few tokens, of which nothing is known but its weight.
ReadAhead Program::beginning(size_t index, const Run& run, int worker) const {
    if (index == ops_.size() || run.tokens > kFewTokens) return {};
    const Op& op = ops_[index];
    const bool known = op.active == Active::kAll || op.active == Active::kGates;
    if (op.chosen || !known) return {};
    const auto& w = weights_[static_cast<size_t>(op.weight)];
    const Division tiles = units(op, run);
    const int64_t first = tiles.first(worker);
    int64_t end = tiles.end(worker);
    if (first == end) return {};
    const uint8_t* begin = near_part(op, run, worker, first, end).codes + first * w.tile_bytes;
    return {begin, begin + std::min((end - first) * w.tile_bytes, kReadAheadBytes)};
}

Division Program::units(const Op& op, const Run& run) const {
    switch (op.kind) {
        case OpKind::kLinear: {
            if (op.chosen) return expert_units(op, run);
            if (const int64_t parts = active_parts(op, run)) return {parts};
            int64_t tiles = weights_[static_cast<size_t>(op.weight)].tiles;
            if (run.one() && op.active == Active::kGates)
                tiles = copies_[static_cast<size_t>(op.copy)].first_tile;
            Division all =
                divide_tiles(tiles, run.rows(op) * op.code_planes, run.threads, run.reading);
            if (near(op.weight).in_parts()) all.team = run.team;
            return all;
        }
        case OpKind::kAttention:
            return {static_cast<int64_t>(attending(op.attends).units.size())};
        case OpKind::kScreen:
            return op.begins ? Division{1} : screen_->units(op.stage, run.threads, run.team);
        case OpKind::kConv:
        case OpKind::kRecurrence:
            return recurrent_units(op, run);
        case OpKind::kSquares:
            return {padded_width(op.width) / kPad};
        case OpKind::kAdapt:
            return {adapter_units(op), run.threads};
        default:
            return {run.rows(op), run.threads};
    }
}

void Program::step(const Op& op, size_t index, Run& run, int worker, HandOut& hand_out) {
    const Division all = units(op, run);
    bool scratch_ready = false;
    int last_expert = -1;
    for (int64_t begin, end; hand_out.next(all, worker, begin, end); scratch_ready = true) {
        if (op.kind == OpKind::kLinear) {
            if (op.chosen)
                linear_experts(op, run, begin, end, worker, last_expert);
            else
                linear(op, run, begin, end, worker, scratch_ready);
            continue;
        }
        if (op.kind == OpKind::kRoute) {
            route(op, index, run, begin, end);
            continue;
        }
        if (op.kind == OpKind::kScreen) {
            screen(op, index, run, begin, end, worker);
            continue;
        }
        if (op.kind == OpKind::kRecurrence) {
            recur(op, run, begin, end);
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
                case OpKind::kToBf16Planes:
                    if (const int n = planes(op, run))
                        run.kernels.to_bf16_planes(
                            buffers_[static_cast<size_t>(op.dst)].bf16_planes_args(i, n));
                    break;
                case OpKind::kRope:
                    rope_and_store(op, index, run, i);
                    break;
                case OpKind::kAttention:
                    attend(op, run, i, worker);
                    break;
                case OpKind::kConv:
                    convolve(op, run, i);
                    break;
                case OpKind::kGates:
                    make_gates(op, index, run, i);
                    break;
                case OpKind::kGated:
                    gate_heads(op, index, run, i);
                    break;
                case OpKind::kCombine:
                    combine(op, i);
                    break;
                case OpKind::kSquares:
                    add_up_squares(op, run, i);
                    break;
                case OpKind::kAdapt:
                    adapt(op, run, i, worker);
                    break;
                case OpKind::kCopy: {
                    const float* from = op.src < 0 ? run.batch.given + i * op.width
                                                   : buffers_[static_cast<size_t>(op.src)].row(i);
                    std::copy_n(from, op.width,
                                buffers_[static_cast<size_t>(op.dst)].row(i) + op.column);
                    break;
                }
                case OpKind::kTell:
                    rowwise(op, index, run, i, worker);
                    std::copy_n(buffers_[static_cast<size_t>(op.dst)].row(i), op.width,
                                run.batch.told + i * op.width);
                    break;
                case OpKind::kRoute:
                case OpKind::kLinear:
                case OpKind::kScreen:
                case OpKind::kRecurrence:
                    break;
            }
    }
}

void Program::embed(const Op& op, const Run& run, int64_t n) const {
    const auto& w = weights_[static_cast<size_t>(op.weight)];
    float* x = buffers_[static_cast<size_t>(op.dst)].row(n);
    const int64_t row = run.batch.tokens[static_cast<size_t>(n)];
    const auto& format = run.kernels.formats[w.format];
    const RowArgs args{w.codes, w.tile_bytes, row, w.K, x};
    if (w.groups.group_k) {
        format.values(args, w.groups, w.zero_x2);
    } else {
        format.row(args);
        if (format.integer)  // 2 * code - zero_x2 is exact; one rounding
            for (int64_t k = 0; k < w.K; ++k)
                x[k] = (2 * x[k] - static_cast<float>(w.zero_x2)) * w.scale[row];
        else if (w.scale)
            for (int64_t k = 0; k < w.K; ++k) x[k] *= w.scale[row];
    }
    if (op.factor != 1)
        for (int64_t k = 0; k < w.K; ++k) x[k] *= op.factor;
}

// Where one row wants all logits, the float head is read anyway and serves every row.
void Program::begin_screen(Run& run) {
    run.screened = screen_->begin(deciding_, run.kernels, run.reading);
}

void Program::screen(const Op& op, size_t index, Run& run, int64_t begin, int64_t end, int worker) {
    if (op.begins) {
        run.batch.masks->pass();
        begin_screen(run);
        return;
    }
    const auto& x = buffers_[static_cast<size_t>(op.src)];
    const auto& logits = buffers_[static_cast<size_t>(op.dst)];
    const int node = run.node_of(worker);
    if (!screen_->step(op.stage, begin, end, x, logits, scratch(worker), node)) run.report(index);
}

}  // namespace sterna
