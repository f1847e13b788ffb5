// What a calibration learns of the inputs of linear layers.
#include <algorithm>

#include "program/program_run.h"

namespace sterna {

void Program::add_squares(Op op) {
    op.sums = static_cast<int>(squares_.size());
    squares_.push_back({0, std::vector<double>(static_cast<size_t>(op.width))});
    ops_.push_back(std::move(op));
}

// A unit is kPad columns: each sum is one thread's, and takes the rows in their order, whatever the threads are. Squares
// of floats are exact in double.
void Program::add_up_squares(const Op& op, const Run& run, int64_t unit) {
    SquareSums& sums = squares_[static_cast<size_t>(op.sums)];
    const auto& x = buffers_[static_cast<size_t>(op.src)];
    const int64_t rows = run.rows(op) * std::max(op.chosen, 1);
    const int64_t begin = unit * kPad, end = std::min(begin + kPad, op.width);
    for (int64_t n = 0; n < rows; ++n) {
        const float* row = x.row(op.chosen ? routing_.row[static_cast<size_t>(n)] : n);
        for (int64_t k = begin; k < end; ++k)
            sums.columns[static_cast<size_t>(k)] += double{row[k]} * double{row[k]};
    }
    if (unit == 0) sums.rows += rows;
}

}  // namespace sterna
