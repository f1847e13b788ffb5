// Linear layers of a Program: a thread's tiles, of one plane of codes or two, and what is done to their results.
#include <algorithm>

#include "program/program_run.h"

namespace sterna {

namespace {

// With two planes of codes, the most tokens that are multiplied together, and about how many bytes of their sums a
// thread keeps before it adds up those of a token: both are read again from L2.
constexpr int64_t kPairTokens = 256, kPairBytes = int64_t{256} << 10;

// Bytes of the sums of both planes: those of a tile at least.
constexpr int64_t pair_bytes(int64_t tokens, int64_t tile_rows) {
    return std::max(kPairBytes, 2 * std::min(tokens, kPairTokens) * tile_rows * 4);
}

// y = (high + low) (+ residual) of rows [0, count) of a tile.
void add_pair(const float* high, const float* low, const float* residual, float* y, int64_t count) {
    if (residual) {
        for (int64_t i = 0; i < count; ++i) y[i] = residual[i] + (high[i] + low[i]);
    } else {
        for (int64_t i = 0; i < count; ++i) y[i] = high[i] + low[i];
    }
}

}  // namespace

// Bytes that `multiply` needs behind LinearArgs::scratch.
int64_t Program::multiply_scratch(const Op& op, const Run& run) const {
    const auto& w = weights_[static_cast<size_t>(op.weight)];
    const auto& format = run.kernels.formats[w.format];
    const auto scratch = run.fast(op, format) ? format.fast.scratch_bytes : format.scratch_bytes;
    // An expert has no more rows than there are tokens.
    const int64_t tokens = op.chosen ? run.tokens : run.rows(op);
    const bool two = op.code_planes == 2;
    const auto rows = static_cast<int>(two ? 2 * std::min(tokens, kPairTokens) : tokens);
    int64_t bytes = scratch(w.padded_k, rows);
    if (op.chosen) bytes = std::max(bytes, scratch(w.padded_k, std::min(rows, kFewTokens)));
    return bytes + (two ? pair_bytes(tokens, format.tile_rows) : 0);
}

// The tiles of `a`, which are those of w, or of an expert in it.
void Program::multiply(const Op& op, const Run& run, const LinearArgs& a, const Weight& w) const {
    const auto& format = run.kernels.formats[w.format];
    const auto kernel = run.fast(op, format) ? format.fast.linear : format.linear;
    if (op.code_planes == 1) return kernel(a);
    // Blocks of tokens of one size, in whole blocks of a matrix unit: none is left with a few.
    const int64_t blocks = (a.n + kPairTokens - 1) / kPairTokens;
    const int64_t size = ((a.n + blocks - 1) / blocks + 7) / 8 * 8;
    const int64_t tile_rows = format.tile_rows;
    const int64_t x_groups = w.x_group_k() ? a.ldx / w.x_group_k() : 1;
    const int64_t x_sums = w.x_group_k() ? a.ldx / kSumK : 1;
    auto* const sums = reinterpret_cast<float*>(a.scratch);
    LinearArgs pair = a;
    pair.residual = nullptr;
    pair.y = sums;
    pair.scratch = a.scratch + pair_bytes(a.n, tile_rows);
    pair.scratch_ready = a.scratch_ready && blocks == 1;
    for (int64_t n0 = 0; n0 < a.n; n0 += size, pair.scratch_ready = false) {
        const int64_t tokens = std::min(size, a.n - n0);
        const int64_t most = std::max<int64_t>(1, kPairBytes / (2 * tokens * tile_rows * 4));
        pair.n = static_cast<int>(2 * tokens);
        pair.xq = a.xq + 2 * n0 * a.ldx;
        pair.x_scale = a.x_scale + 2 * n0 * x_groups;
        pair.x_sum = a.x_sum + 2 * n0 * x_sums;
        for (int64_t tile = a.tile_begin, count; tile < a.tile_end; tile += count) {
            count = std::min(most, a.tile_end - tile);
            const int64_t from = tile * tile_rows;
            const int64_t rows = std::min(count * tile_rows, a.M - from);
            pair.codes = a.codes + tile * a.tile_bytes;
            pair.scale = a.scale ? a.scale + from : nullptr;
            if (a.groups.data)
                pair.groups.data = a.groups.data + tile * a.groups.tile_bytes(a.K, tile_rows);
            pair.M = rows;
            pair.ldy = count * tile_rows;
            pair.tile_begin = 0;
            pair.tile_end = count;
            kernel(pair);
            pair.scratch_ready = true;
            const int64_t written = (rows + kRowBlock - 1) / kRowBlock * kRowBlock;
            for (int64_t n = 0; n < tokens; ++n) {
                const float* const high = sums + 2 * n * pair.ldy;
                const int64_t at = (n0 + n) * a.ldy + from;
                add_pair(high, high + pair.ldy, a.residual ? a.residual + at : nullptr, a.y + at,
                         written);
            }
        }
    }
}

void Program::linear(const Op& op, Run& run, int64_t begin, int64_t end, int worker,
                     bool scratch_ready) const {
    const auto& w = weights_[static_cast<size_t>(op.weight)];
    LinearArgs a =
        linear_args(w, buffers_[static_cast<size_t>(op.src)], static_cast<int>(run.rows(op)),
                    run.x_block(op), buffers_[static_cast<size_t>(op.dst)], 0, op.code_planes);
    a.y += op.column;
    // A kernel adds a residual to what it sums, which a factor must meet before.
    if (op.residual >= 0 && op.factor == 1)
        a.residual = buffers_[static_cast<size_t>(op.residual)].row(0) + op.column;
    a.scratch = scratch(worker);
    if (active_parts(op, run) && active_part(op, run, a, begin, begin, end)) return;
    a.scratch_ready = scratch_ready;
    a.reading = run.reading;
    const auto& format = run.kernels.formats[w.format];
    for (a.tile_end = begin; a.tile_end < end; a.scratch_ready = true) {
        a.tile_begin = a.tile_end;
        a.tile_end = end;
        const Weight near = near_part(op, run, worker, a.tile_begin, a.tile_end);
        a.codes = near.codes;
        a.groups = near.groups;
        multiply(op, run, a, w);
    }
    finish(op, run, a, op.bias.empty() ? nullptr : op.bias.data(), begin * format.tile_rows,
           std::min(end * format.tile_rows, w.M));
}

// Rows [from, to) of a linear layer's result: ((x W^T (+ residual) + bias) * factor (+ residual)), capped. Here and not
// in the kernels: one rounding each, the same in all of them, on tiles that this thread has just written. bias: of all
// rows, or null.
void Program::finish(const Op& op, const Run& run, const LinearArgs& a, const float* bias,
                     int64_t from, int64_t to) const {
    if (!bias && op.factor == 1 && op.cap == 0) return;
    const Activations* residual =
        op.factor != 1 && op.residual >= 0 ? &buffers_[static_cast<size_t>(op.residual)] : nullptr;
    for (int64_t n = 0; n < a.n; ++n) {
        float* y = a.y + n * a.ldy;
        if (bias)
            for (int64_t m = from; m < to; ++m) y[m] += bias[m];
        if (op.factor != 1)
            for (int64_t m = from; m < to; ++m) y[m] *= op.factor;
        if (residual) {
            const float* x = residual->row(n) + op.column;
            for (int64_t m = from; m < to; ++m) y[m] += x[m];
        }
        if (op.cap > 0) run.kernels.cap({y + from, to - from, op.cap});
    }
}

}  // namespace sterna
