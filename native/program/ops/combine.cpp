// Sums the results of a token's experts, each times its share (if it has one), in ascending order of the experts (+
// residual).
#include <algorithm>

#include "program/program.h"

namespace sterna {

namespace {

class CombineOp final : public RowOp {
  public:
    CombineOp(const OpFields& f, Workspace& work)
        : RowOp(f, work),
          x_(f.value("x")),
          shares_(f.value("shares")),
          residual_(f.value("residual")),
          output_(f.value("output")) {
        f.require(x_.chosen >= 1, "x", "must have rows of experts");
        f.require(!shares_ || x_.chosen <= shares_.ld(), "shares", "is too narrow");
        f.require(output_.width <= x_.ld() && output_.buffer != x_.buffer &&
                      output_.buffer != shares_.buffer,
                  "output", "must have the width of x, and a buffer of its own");
        f.require(!residual_ || output_.width <= residual_.ld(), "residual", "is too narrow");
    }
    const char* kind() const override { return "combine"; }

  protected:
    void row(Step&, int64_t n, int) override {
        constexpr int64_t kColumns = 64;
        const auto& rows = work.buffer(x_);
        const float* shares = shares_ ? work.buffer(shares_).row(n) : nullptr;
        const float* residual = residual_ ? work.buffer(residual_).row(n) : nullptr;
        const int32_t* row = work.routing.row.data() + n * x_.chosen;
        float* y = work.buffer(output_).row(n);
        for (int64_t from = 0; from < output_.width; from += kColumns) {
            const int64_t columns = std::min(kColumns, output_.width - from);
            float sum[kColumns] = {};
            for (int i = 0; i < x_.chosen; ++i) {
                const float* part = rows.row(row[i]) + from;
                const float share = shares ? shares[i] : 1;
                for (int64_t c = 0; c < columns; ++c) sum[c] += share * part[c];
            }
            for (int64_t c = 0; c < columns; ++c)
                y[from + c] = residual ? residual[from + c] + sum[c] : sum[c];
        }
    }

  private:
    Operand x_, shares_, residual_, output_;
};

const OpKind combine("combine", [](const OpFields& f, Program& p) { p.add<CombineOp>(f); });

}  // namespace

}  // namespace sterna
