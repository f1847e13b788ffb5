// Learned positions: a row of a table added to each token's.
#include "program/program.h"

namespace sterna {

namespace {

class PositionsOp final : public RowOp {
  public:
    PositionsOp(const OpFields& f, Workspace& work)
        : RowOp(f, work),
          x_(f.value("x")),
          output_(f.value("output")),
          table_(f.matrix("table")),
          first_(f.whole("first")) {
        f.require(table_.columns == x_.width && x_.width == output_.width, "table",
                  "must have the width of x, as the output has");
        f.require(!x_.chosen && !output_.chosen, "x", "must have rows of tokens");
        f.require(first_ >= 0 && first_ < table_.rows, "first", "must be a row of the table");
        const int64_t positions = table_.rows - first_;
        auto& most = work.needs.positions;
        most = most ? std::min(most, positions) : positions;
    }
    const char* kind() const override { return "positions"; }

  protected:
    void row(Step&, int64_t n, int) override {
        const float* x = work.buffer(x_).row(n);
        float* y = work.buffer(output_).row(n);
        const int64_t position = first_ + work.rows.position_of[static_cast<size_t>(n)];
        const float* added = table_.values + position * table_.columns;
        for (int64_t i = 0; i < x_.width; ++i) y[i] = x[i] + added[i];
    }

  private:
    Operand x_, output_;
    BorrowedMatrix table_;
    int64_t first_;  // row of position 0
};

const OpKind positions("positions", [](const OpFields& f, Program& p) { p.add<PositionsOp>(f); });

}  // namespace

}  // namespace sterna
