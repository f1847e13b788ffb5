// What happens to a row between two linear layers of a Program.
#include <algorithm>

#include "program/program_run.h"

namespace sterna {

void Program::rowwise(const Op& op, size_t index, Run& run, int64_t n, int worker) const {
    const auto& src = buffers_[static_cast<size_t>(op.src)];
    const auto& dst = buffers_[static_cast<size_t>(op.dst)];
    int64_t from = n;
    int x_block = run.x_block(op);
    if (op.chosen) {
        const auto i = static_cast<size_t>(n);
        n = routing_.row[i];
        from = op.spread ? from / op.chosen : n;
        x_block = run.x_block(op, routing_.count[static_cast<size_t>(routing_.expert[i])]);
    }
    RowwiseArgs a{};
    a.x = src.row(from);
    a.up_offset = op.up_offset;
    if (op.up != op.src) a.x = gate_and_up(op, from, worker, a.up_offset);
    a.width = op.width / op.parts;
    a.glu = op.glu;
    a.limit = op.limit;
    a.norm = op.norm.empty() ? nullptr : op.norm.data();
    a.eps = op.eps;
    a.hadamard_block = op.hadamard_block;
    a.signs = op.signs.empty() ? nullptr : op.signs.data();
    a.signs_last = op.signs_last;
    // A row that nobody reads as floats stays in the worker's cache.
    a.yf = op.keep_float || run.adapting ? dst.row(n) : reinterpret_cast<float*>(scratch(worker));
    if (op.rounding) dst.quantize_into(a, n, x_block, *op.rounding, op.code_planes);
    float* const y = a.yf;
    for (int64_t part = 0; part < op.parts; ++part, a.x += a.width, a.yf += a.width)
        if (!run.kernels.rowwise(a)) run.report(index);
    if (op.residual >= 0) {
        const float* residual = buffers_[static_cast<size_t>(op.residual)].row(n);
        for (int64_t i = 0; i < op.width; ++i) y[i] += residual[i];
    }
    if (op.factor != 1)
        for (int64_t i = 0; i < op.width; ++i) y[i] *= op.factor;
    if (op.lists && run.one()) list_active(op, run);
    if (const int count = planes(op, run))
        run.kernels.to_bf16_planes(dst.bf16_planes_args(n, count));
}

// A gate and what it multiplies, of two buffers, side by side behind what a worker's row takes.
const float* Program::gate_and_up(const Op& op, int64_t n, int worker, int64_t& up_offset) const {
    up_offset = padded_width(op.width);
    float* const row = reinterpret_cast<float*>(scratch(worker)) + up_offset;
    std::copy_n(buffers_[static_cast<size_t>(op.src)].row(n), op.width, row);
    std::copy_n(buffers_[static_cast<size_t>(op.up)].row(n) + op.up_offset, op.width,
                row + up_offset);
    return row;
}

// How many planes of bf16 the operation makes of its result; 0: none.
int Program::planes(const Op& op, const Run& run) const {
    if (op.planes_for_weight < 0) return 0;
    return run.kernels.formats[weights_[static_cast<size_t>(op.planes_for_weight)].format]
        .fast.x_planes;
}

}  // namespace sterna
