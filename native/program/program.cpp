#include "program/program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace sterna {

namespace {

using Clock = std::chrono::steady_clock;

std::map<std::string, OpMaker>& op_makers() {
    static std::map<std::string, OpMaker> all;
    return all;
}

}  // namespace

OpKind::OpKind(const char* name, OpMaker maker) { op_makers()[name] = maker; }

OpMaker OpKind::maker(const std::string& name) {
    const auto found = op_makers().find(name);
    return found == op_makers().end() ? nullptr : found->second;
}

int Program::add_buffer(int64_t width) {
    work_.buffers.emplace_back(width);
    buffer_needs_.emplace_back();
    return buffers() - 1;
}

void Program::add_value(const Operand& value) {
    BufferNeeds& needs = buffer_needs_[static_cast<size_t>(value.buffer)];
    if (value.chosen) needs.of_experts.push_back(value);
    needs.bf16_planes = needs.bf16_planes || value.planes_for >= 0;
    needs.code_planes = std::max(needs.code_planes, value.code_planes);
}

int Program::add_heads(AttentionHeads heads) {
    work_.attention.emplace_back(heads);
    return static_cast<int>(work_.attention.size()) - 1;
}

void Program::add(std::unique_ptr<Op> op) {
    op->index = ops_.size();
    ops_.push_back(std::move(op));
    seconds_.push_back(0);
}

void Program::place(Pool& pool, bool replicas, const KernelTable& kernels) {
    std::vector<TilesRead> read;
    for (const auto& op : ops_)
        for (const TilesRead& tiles : op->tiles_read()) read.push_back(tiles);
    work_.weights.place(read, work_.head ? &work_.head->screen : nullptr, pool, replicas, kernels);
}

void Program::stream(WeightCache& cache) {
    work_.weight_cache = &cache;
    Op *router = nullptr, *guess = nullptr, *next_guess = nullptr;
    std::vector<int> matrices;
    for (const auto& op : ops_) {
        if (op->guesses_experts()) next_guess = op.get();
        if (op->chooses_experts()) {
            router = op.get();
            guess = std::exchange(next_guess, nullptr);
            matrices.clear();
        }
        const int matrix = op->stream_from(cache);
        if (matrix < 0) continue;
        if (cache.every_token(matrix)) {
            on_disk_.emplace_back(op.get(), matrix);
        } else if (router) {
            matrices.push_back(matrix);
            router->choose_for(matrices);
            if (guess) guess->choose_for(matrices);
        }
    }
}

std::map<std::string, double> Program::seconds() const {
    std::map<std::string, double> all;
    for (const auto& op : ops_) all[op->kind()] += seconds_[op->index];
    return all;
}

double Program::head_seconds() const {
    const bool linear = !ops_.empty() && std::strcmp(ops_.back()->kind(), "linear") == 0;
    return linear ? seconds_.back() : 0;
}

int64_t Program::rescored(int64_t n) const {
    const auto& head = work_.head;
    return !head ? 0 : head->screened ? head->screen.rescored(n) : head->float_rows;
}

int64_t Program::head_bytes() const {
    const auto& head = work_.head;
    if (!head || work_.rows.selected.empty()) return 0;
    if (!head->screened) return head->float_bytes;
    return head->screen.bytes() + (head->screen.read_shadow() ? head->shadow_bytes : 0);
}

void Program::reserve(int64_t tokens) {
    if (tokens <= capacity_) return;
    for (size_t i = 0; i < work_.buffers.size(); ++i) {
        const BufferNeeds& needs = buffer_needs_[i];
        int64_t rows = tokens;
        for (const Operand& value : needs.of_experts)
            rows = std::max(rows, Routing::capacity(value, tokens));
        work_.buffers[i].reserve(rows, needs.bf16_planes ? kMaxPlanes : 0, needs.code_planes);
    }
    work_.rotations.reserve(tokens);
    work_.rows.reserve(tokens);
    for (AttentionPlan& plan : work_.attention) plan.reserve(tokens);
    for (const auto& op : ops_) op->reserve(tokens);
    capacity_ = tokens;
}

void Program::plan(const Batch& batch, int threads) {
    work_.rows.plan(batch);
    for (AttentionPlan& plan : work_.attention) {
        plan.plan(batch, work_.rows, threads);
        const auto bytes = static_cast<size_t>(plan.partial_bytes());
        if (work_.partials.size() < bytes) work_.partials = HugeBuffer(std::bit_ceil(bytes));
    }
    work_.index.plan(work_.rows);
    work_.adapters.plan(batch, work_.rows);
}

// The most that any operation of this step needs: asked anew for another shape of steps alone.
void Program::reserve_scratch(const Step& step) {
    const ScratchShape shape{step.tokens,           step.selected, step.threads,
                             work_.adapters.rank(), &step.kernels, step.cache.type};
    if (shape == scratch_for_) return;
    scratch_for_ = shape;
    int64_t bytes = 0;
    for (const auto& op : ops_) bytes = std::max(bytes, op->scratch_bytes(step));
    // A page apart, so that two workers' ends and starts share no line.
    work_.scratch_stride = std::max(work_.scratch_stride, (bytes + 4095) / 4096 * 4096 + 4096);
    const auto total = static_cast<size_t>(work_.scratch_stride * step.threads);
    if (work_.scratch_memory.size() < total) work_.scratch_memory = HugeBuffer(total);
}

float* Program::run(const Batch& batch, const KvCache& cache, const KernelTable& kernels,
                    Pool& pool, const OpRange& part) {
    WeightCache* const on_disk = work_.weight_cache;
    const auto turn = on_disk ? on_disk->begin_step() : std::unique_lock<std::mutex>();
    reserve(static_cast<int64_t>(batch.tokens.size()));
    plan(batch, pool.size());
    for (auto& hand_out : hand_outs_) {
        if (hand_out.threads() != pool.size()) hand_out = HandOut(pool.size());
        hand_out.reset();
    }
    Step step{batch,
              cache,
              kernels,
              static_cast<int64_t>(batch.tokens.size()),
              std::ssize(work_.rows.selected),
              pool.size(),
              pool.readings(),
              work_.weights.team(pool),
              !work_.adapters.empty()};
    for (const auto& op : ops_) op->begin(step);
    reserve_scratch(step);
    read_ahead(step, part);
    Barrier& barrier = pool.barrier();
    pool.run([&](int worker) { run_worker(step, barrier, worker, part); });
    if (step.non_finite < ops_.size()) {
        capacity_ = 0;  // padding may hold NaN now: the next run starts from fresh, zeroed buffers
        throw std::domain_error(ops_[step.non_finite]->name);
    }
    left_out_ = step.left_out;
    return work_.buffers.back().row(0);
}

// The matrices on disk that all tokens of this step read.
void Program::read_ahead(const Step& step, const OpRange& part) const {
    std::vector<int> matrices;
    for (const auto& [op, matrix] : on_disk_)
        if (op->index >= part.begin && op->index < part.end && op->units(step).total)
            matrices.push_back(matrix);
    if (!matrices.empty()) work_.weight_cache->route(matrices, {});
}

void Program::run_worker(Step& step, Barrier& barrier, int worker, const OpRange& part) {
    // The rotations' angles: needed some operations later, so the first barrier is enough.
    const int32_t* coordinates = step.batch.coordinates;
    for (int64_t n = worker; n < step.tokens; n += step.threads)
        work_.rotations.make(n, work_.rows.position_of[static_cast<size_t>(n)],
                             coordinates ? coordinates + n * kAxes : nullptr);
    auto last = Clock::now();
    size_t layer = part.begin;  // whose beginning is read ahead
    size_t turns = 0;
    ReadAhead ahead;
    const size_t end = std::min(part.end, ops_.size());
    for (size_t i = part.begin; i < end; ++i) {
        Op& op = *ops_[i];
        const Division units = op.units(step);
        if (units.total == 0) continue;
        HandOut& hand_out = hand_outs_[turns++ % 2];
        hand_outs_[turns % 2].reset(worker);
        for (Turn turn{worker}; hand_out.next(units, worker, turn.begin, turn.end);
             turn.again = true)
            op.run(step, turn);
        if (layer <= i) {
            layer = next_linear(i + 1, end, step);
            ahead = layer < end ? ops_[layer]->beginning(step, worker) : ReadAhead{};
        }
        barrier.arrive_and_wait(&ahead);
        if (worker != 0) continue;
        const auto now = Clock::now();
        seconds_[i] += std::chrono::duration<double>(now - last).count();
        last = now;
    }
}

size_t Program::next_linear(size_t index, size_t end, const Step& step) const {
    while (index < end && !ops_[index]->is_linear(step)) ++index;
    return index;
}

}  // namespace sterna
