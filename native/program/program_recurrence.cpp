// Recurrent layers within a Program: how a batch becomes units of channels, or of columns of a head's state, each over
// all tokens of one sequence; the gates of a token; and heads times their gates.
#include <algorithm>

#include "program/program_run.h"

namespace sterna {

namespace {

constexpr int64_t kConvChannels = 128;  // of a unit

int64_t conv_units(const RecurrentHeads& heads) {
    return (heads.channels() + kConvChannels - 1) / kConvChannels;
}
int64_t head_units(const RecurrentHeads& heads) { return state_blocks(heads.v_dim); }

}  // namespace

Division Program::recurrent_units(const Op& op, const Run& run) const {
    const auto sequences = static_cast<int64_t>(run.batch.sequences.size());
    if (op.kind == OpKind::kConv) return {sequences * conv_units(op.heads)};
    // The columns of a head read the same queries and keys.
    const int64_t units = head_units(op.heads);
    return {sequences * op.heads.v_heads * units, run.threads, units};
}

void Program::convolve(const Op& op, const Run& run, int64_t unit) const {
    const int64_t units = conv_units(op.heads), channels = op.heads.channels();
    const auto s = static_cast<size_t>(unit / units);
    const auto& span = run.batch.sequences[s];
    const auto& row = buffers_[static_cast<size_t>(op.src)];
    const int64_t from = unit % units * kConvChannels;
    ConvArgs a{};
    a.x = row.row(first_of_[s]) + from;
    a.ldx = row.ld;
    a.tokens = span.count;
    a.channels = std::min(kConvChannels, channels - from);
    a.weight = op.taps.data() + from;
    a.ldw = channels;
    a.width = static_cast<int>(std::ssize(op.taps) / channels);
    a.state = span.state + op.state + from;
    a.fresh = span.start == 0;
    a.tokens -= span.drafts;
    run.kernels.conv(a);
    if (!span.drafts) return;
    float* ahead = span.ahead + op.state + from;
    for (int64_t i = 0; i + 1 < a.width; ++i)
        std::copy_n(a.state + i * channels, a.channels, ahead + i * channels);
    a.x += a.tokens * a.ldx;
    a.tokens = span.drafts;
    a.state = ahead;
    a.fresh = false;
    run.kernels.conv(a);
}

void Program::make_gates(const Op& op, size_t index, Run& run, int64_t n) const {
    float* x = buffers_[static_cast<size_t>(op.src)].row(n);
    const auto& h = op.heads;
    const GatesArgs a{x,         x + h.k_width(), x + op.a,
                      x + op.b,  op.rate.data(),  op.bias.data(),
                      h.k_heads, h.v_heads,       h.k_dim};
    if (!run.kernels.gates(a)) run.report(index);
}

// Units [begin, end): blocks of columns of the heads of all sequences.
void Program::recur(const Op& op, const Run& run, int64_t begin, int64_t end) const {
    const auto& h = op.heads;
    const auto& row = buffers_[static_cast<size_t>(op.src)];
    const auto& dst = buffers_[static_cast<size_t>(op.dst)];
    const int64_t units = head_units(h);
    for (int64_t next; begin < end; begin = next) {
        next = std::min(end, (begin / units + 1) * units);
        const auto s = static_cast<size_t>(begin / units / h.v_heads);
        const auto head = static_cast<int>(begin / units % h.v_heads);
        const auto& span = run.batch.sequences[s];
        const int64_t from = begin % units * kStateColumns;
        const float* x = row.row(first_of_[s]);
        RecurrenceArgs a{};
        a.q = x + h.k_head(head) * h.k_dim;
        a.k = a.q + h.k_width();
        a.v = x + 2 * h.k_width() + head * h.v_dim + from;
        a.decay = x + op.a + head;
        a.beta = x + op.b + head;
        a.ldx = row.ld;
        a.tokens = span.count;
        a.k_dim = h.k_dim;
        a.columns = std::min((next - begin) * kStateColumns, h.v_dim - from);
        a.state = span.state + op.state + head * h.head_floats() + from * h.k_dim;
        a.fresh = span.start == 0;
        a.out = dst.row(first_of_[s]) + head * h.v_dim + from;
        a.ldo = dst.ld;
        a.tokens -= span.drafts;
        run.kernels.recurrence(a);
        if (!span.drafts) continue;
        float* ahead = span.ahead + (a.state - span.state);
        std::copy_n(a.state, (next - begin) * kStateColumns * h.k_dim, ahead);
        for (const float** at : {&a.k, &a.v, &a.decay, &a.beta}) *at += a.tokens * a.ldx;
        a.q += a.tokens * a.ldx;
        a.out += a.tokens * a.ldo;
        a.tokens = span.drafts;
        a.state = ahead;
        a.fresh = false;
        run.kernels.recurrence(a);
    }
}

void Program::gate_heads(const Op& op, size_t index, Run& run, int64_t n) const {
    const auto& h = op.heads;
    const int64_t turns = h.v_heads / h.k_heads;
    GatedArgs a{};
    a.x = buffers_[static_cast<size_t>(op.src)].row(n);
    a.gate = buffers_[static_cast<size_t>(op.gate)].row(n) + op.column;
    a.heads = h.k_heads;
    a.head_dim = h.v_dim;
    a.gate_stride = op.gate_stride;
    a.silu = op.silu;
    a.single = op.single;
    a.norm = op.norm.empty() ? nullptr : op.norm.data();
    a.eps = op.eps;
    a.y = buffers_[static_cast<size_t>(op.dst)].row(n);
    a.y_stride = turns * h.v_dim;
    // One value head of each key head at a time, which stand together in x and apart in y.
    for (int64_t turn = 0; turn < turns; ++turn) {
        if (!run.kernels.gated(a)) run.report(index);
        a.x += a.heads * h.v_dim;
        a.gate += a.heads * a.gate_stride;
        a.y += h.v_dim;
    }
}

}  // namespace sterna
