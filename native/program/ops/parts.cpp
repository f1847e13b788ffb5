// A row of a table added to each token's: the first one, or the second one in the second part of a pair of texts.
#include "program/program.h"

namespace sterna {

namespace {

class PartsOp final : public RowOp {
  public:
    PartsOp(const OpFields& f, Workspace& work)
        : RowOp(f, work), x_(f.value("x")), output_(f.value("output")), table_(f.matrix("table")) {
        f.require(table_.columns == x_.width && x_.width == output_.width && table_.rows >= 1,
                  "table", "must have the width of x, as the output has");
        f.require(!x_.chosen && !output_.chosen, "x", "must have rows of tokens");
    }
    const char* kind() const override { return "parts"; }

  protected:
    void row(Step& step, int64_t n, int) override {
        const float* x = work.buffer(x_).row(n);
        float* y = work.buffer(output_).row(n);
        const auto token = static_cast<size_t>(n);
        const auto sequence = static_cast<size_t>(work.rows.sequence_of[token]);
        const int begins = step.batch.sequences[sequence].second_part;
        const bool second = table_.rows > 1 && work.rows.position_of[token] >= begins;
        const float* added = table_.values + second * table_.columns;
        for (int64_t i = 0; i < table_.columns; ++i) y[i] = x[i] + added[i];
    }

  private:
    Operand x_, output_;
    BorrowedMatrix table_;
};

const OpKind parts("parts", [](const OpFields& f, Program& p) { p.add<PartsOp>(f); });

}  // namespace

}  // namespace sterna
