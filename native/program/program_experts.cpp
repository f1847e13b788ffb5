// Experts within a Program: which experts a token goes to and with what weights, the rows that experts have, their
// linear layers, and what a token gets back.
#include <algorithm>
#include <cmath>

#include "program/program_run.h"
#include "scalar_math.h"

namespace sterna {

namespace {

constexpr int64_t kExpertBlock = 16;  // rows of a block of activations of a matrix unit (x_offset)

constexpr int64_t whole_blocks(int64_t rows) {
    return (rows + kExpertBlock - 1) / kExpertBlock * kExpertBlock;
}

}  // namespace

void Program::reserve_routing(int64_t tokens) {
    for (const auto& op : ops_) {
        if (op.kind != OpKind::kRoute) continue;
        const auto experts = static_cast<size_t>(op.experts);
        const auto rows = static_cast<size_t>(tokens * op.chosen);
        for (auto* v : {&routing_.first, &routing_.count}) v->resize(std::max(v->size(), experts));
        for (auto* v : {&routing_.expert, &routing_.row}) v->resize(std::max(v->size(), rows));
        routing_.active.reserve(experts);
    }
}

// The rows that a buffer needs for so many tokens: those of experts, in whole blocks of each, where it has such.
int64_t Program::capacity_of(size_t buffer, int64_t tokens) const {
    int64_t most = tokens;
    for (const auto& op : ops_) {
        if (!Run::of_experts(op) || static_cast<size_t>(op.dst) != buffer) continue;
        const int64_t rows = tokens * op.chosen, active = std::min<int64_t>(op.experts, rows);
        most = std::max(most, rows + active * (kExpertBlock - 1));
    }
    return most;
}

// Tokens [begin, end) choose their experts; whoever chooses for the last one gives experts their rows.
void Program::route(const Op& op, size_t index, Run& run, int64_t begin, int64_t end) {
    bool finite = true;
    for (int64_t n = begin; n < end; ++n) finite = choose(op, n) && finite;
    if (!finite) run.report(index);
    const int64_t tokens = run.rows(op);
    if ((run.routed += end - begin) < tokens) return;
    group_by_expert(op, tokens);
    run.routed = 0;
}

// The experts of the largest logits, of equal ones the first, and the softmax of their logits, summed in ascending order
// over these or all. False: a logit is not finite; then any experts are chosen.
bool Program::choose(const Op& op, int64_t n) {
    const float* logits = buffers_[static_cast<size_t>(op.src)].row(n);
    float* weights = buffers_[static_cast<size_t>(op.dst)].row(n);
    int32_t* best = routing_.expert.data() + n * op.chosen;
    bool finite = true;
    int count = 0;
    for (int32_t e = 0; e < op.experts; ++e) {
        const float logit = logits[e];
        finite = finite && std::isfinite(logit);
        if (count == op.chosen && !(logit > logits[best[count - 1]])) continue;
        int at = count < op.chosen ? count++ : count - 1;
        for (; at > 0 && logit > logits[best[at - 1]]; --at) best[at] = best[at - 1];
        best[at] = e;
    }
    const double most = logits[best[0]];
    const auto power = [&](int32_t e) { return math::exp_d(logits[e] - most); };
    std::sort(best, best + op.chosen);
    double sum = 0;
    if (op.of_all) {
        for (int32_t e = 0; e < op.experts; ++e) sum += power(e);
    } else {
        for (int i = 0; i < op.chosen; ++i) sum += power(best[i]);
    }
    for (int i = 0; i < op.chosen; ++i) {
        weights[i] = static_cast<float>(power(best[i]) / sum);
        if (!op.expert_factors.empty())
            weights[i] *= op.expert_factors[static_cast<size_t>(best[i])];
    }
    return finite;
}

void Program::group_by_expert(const Op& op, int64_t tokens) {
    const int64_t rows = tokens * op.chosen;
    auto& [expert, row, first, count, active, most] = routing_;
    std::fill_n(count.begin(), op.experts, 0);
    for (int64_t i = 0; i < rows; ++i) ++count[static_cast<size_t>(expert[static_cast<size_t>(i)])];
    active.clear();
    most = 0;
    int64_t next = 0;
    for (int32_t e = 0; e < op.experts; ++e) {
        const auto i = static_cast<size_t>(e);
        first[i] = static_cast<int32_t>(next);
        if (count[i] == 0) continue;
        active.push_back(e);
        next += whole_blocks(count[i]);
        most = std::max(most, count[i]);
    }
    for (int64_t i = 0; i < rows; ++i) {
        const auto e = static_cast<size_t>(expert[static_cast<size_t>(i)]);
        row[static_cast<size_t>(i)] = first[e]++;
    }
    for (const int32_t e : active) first[static_cast<size_t>(e)] -= count[static_cast<size_t>(e)];
}

// Tiles of the active experts, one expert after the other; where a node has a part of each, those of a node after one
// another.
Division Program::expert_units(const Op& op, const Run& run) const {
    const int64_t tiles = weights_[static_cast<size_t>(op.weight)].tiles / op.experts;
    const int64_t active = std::ssize(routing_.active);
    Division all =
        divide_tiles(active * tiles, routing_.most * op.code_planes, run.threads, run.reading);
    if (run.team && near(op.weight).in_parts()) {
        all.team = run.team;
        all.repeats = active;
    }
    return all;
}

// Units [begin, end): tiles of the active experts, each for the expert's own rows. last: the expert whose call left its
// scratch with this thread.
void Program::linear_experts(const Op& op, const Run& run, int64_t begin, int64_t end, int worker,
                             int& last) const {
    const auto& w = weights_[static_cast<size_t>(op.weight)];
    const auto& x = buffers_[static_cast<size_t>(op.src)];
    const auto& format = run.kernels.formats[w.format];
    const int64_t tiles = w.tiles / op.experts;
    const Division all = expert_units(op, run);
    int node = 0;
    for (int64_t next; begin < end; begin = next) {
        // Tiles [low, high) of each active expert are units one expert after the other, from `base` on.
        int64_t base = 0, low = 0, high = tiles;
        if (all.team) {
            while (begin >= all.bound(node + 1)) ++node;
            base = all.bound(node);
            low = all.team->bound(tiles, node);
            high = all.team->bound(tiles, node + 1);
        }
        const int64_t of_expert = high - low, i = (begin - base) / of_expert;
        next = std::min(end, base + (i + 1) * of_expert);
        const int e = routing_.active[static_cast<size_t>(i)];
        const int64_t first = routing_.first[static_cast<size_t>(e)];
        const int rows = routing_.count[static_cast<size_t>(e)];
        const int64_t tile = low + (begin - base) % of_expert;
        int64_t until = e * tiles + tile + next - begin;
        const Weight own = near_part(op, run, worker, e * tiles + tile, until)
                               .part(e * tiles, tiles, op.expert_rows, format.tile_rows);
        next = begin + until - (e * tiles + tile);
        LinearArgs a = linear_args(own, x, rows, run.x_block(op, rows),
                                   buffers_[static_cast<size_t>(op.dst)], first, op.code_planes);
        if (run.fast(op, format)) a.xh += first * x.ld * format.fast.x_planes;
        a.y += op.column;
        a.scratch = scratch(worker);
        a.tile_begin = tile;
        a.tile_end = a.tile_begin + next - begin;
        a.scratch_ready = e == last;
        a.reading = run.reading;
        last = e;
        multiply(op, run, a, own);
        const float* bias = op.bias.empty() ? nullptr : op.bias.data() + e * op.expert_rows;
        finish(op, run, a, bias, a.tile_begin * format.tile_rows,
               std::min(a.tile_end * format.tile_rows, op.expert_rows));
    }
}

// What its experts made of a token, times their weights, summed in ascending order of the experts (+ residual).
void Program::combine(const Op& op, int64_t n) const {
    constexpr int64_t kColumns = 64;
    const auto& rows = buffers_[static_cast<size_t>(op.src)];
    const auto& to = buffers_[static_cast<size_t>(op.dst)];
    const float* weights = buffers_[static_cast<size_t>(op.shares)].row(n);
    const float* residual =
        op.residual >= 0 ? buffers_[static_cast<size_t>(op.residual)].row(n) : nullptr;
    const int32_t* row = routing_.row.data() + n * op.chosen;
    float* y = to.row(n);
    for (int64_t from = 0; from < op.width; from += kColumns) {
        const int64_t columns = std::min(kColumns, op.width - from);
        float sum[kColumns] = {};
        for (int i = 0; i < op.chosen; ++i) {
            const float* part = rows.row(row[i]) + from;
            const float weight = weights[i];
            for (int64_t c = 0; c < columns; ++c) sum[c] += weight * part[c];
        }
        for (int64_t c = 0; c < columns; ++c)
            y[from + c] = residual ? residual[from + c] + sum[c] : sum[c];
    }
}

}  // namespace sterna
