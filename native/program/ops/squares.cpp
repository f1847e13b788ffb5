// Sums of the squares of a value's columns, from which a calibration learns what linear layers read.
#include <algorithm>

#include "program/program.h"

namespace sterna {

namespace {

class SquaresOp final : public Op {
  public:
    SquaresOp(const OpFields& f, Workspace& work)
        : Op(f, work), x_(f.value("x")), sums_(work.squares.size()) {
        work.squares.push_back({0, std::vector<double>(static_cast<size_t>(x_.width))});
    }
    const char* kind() const override { return "squares"; }
    // A unit is kPad columns: each sum is one thread's, and takes the rows in their order, whatever the threads are.
    Division units(const Step& step) const override { return {rows(step) ? x_.ld() / kPad : 0}; }
    void run(Step& step, Turn& turn) override {
        SquareSums& sums = work.squares[sums_];
        const auto& x = work.buffer(x_);
        const int64_t count = rows(step) * std::max(x_.chosen, 1);
        const int64_t begin = turn.begin * kPad, end = std::min(turn.end * kPad, x_.width);
        for (int64_t n = 0; n < count; ++n) {
            const float* row = x.row(x_.chosen ? work.routing.row[static_cast<size_t>(n)] : n);
            for (int64_t k = begin; k < end; ++k)  // squares of floats are exact in double
                sums.columns[static_cast<size_t>(k)] += double{row[k]} * double{row[k]};
        }
        if (turn.begin == 0) sums.rows += count;
    }

  private:
    Operand x_;
    size_t sums_;
};

const OpKind squares("squares", [](const OpFields& f, Program& p) { p.add<SquaresOp>(f); });

}  // namespace

}  // namespace sterna
