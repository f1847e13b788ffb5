// Gathers the rows whose logits are needed; or, instead of each, the mean of its sequence's new rows.
#include <algorithm>
#include <cstring>

#include "program/program.h"

namespace sterna {

namespace {

class SelectOp final : public RowOp {
  public:
    SelectOp(const OpFields& f, Workspace& work)
        : RowOp(f, work), x_(f.value("x")), output_(f.value("output")), mean_(f.flag("mean")) {
        f.require(selected, "selected", "must be true");
        f.require(x_.ld() == output_.ld(), "output", "must have the width of x");
    }
    const char* kind() const override { return "select"; }

  protected:
    void row(Step& step, int64_t n, int) override {
        const auto& from = work.buffer(x_);
        const int32_t token = work.rows.selected[static_cast<size_t>(n)];
        float* const to = work.buffer(output_).row(n);
        if (mean_)
            mean(step, work.rows.sequence_of[static_cast<size_t>(token)], to);
        else
            std::memcpy(to, from.row(token), static_cast<size_t>(from.ld) * 4);
    }

  private:
    // Adds in the order of tokens, and rounds once.
    void mean(const Step& step, int32_t sequence, float* to) const {
        const auto& from = work.buffer(x_);
        const auto s = static_cast<size_t>(sequence);
        const int64_t first = work.rows.first_of[s], count = step.batch.sequences[s].count;
        constexpr int64_t kAtOnce = 64;
        for (int64_t i0 = 0; i0 < from.ld; i0 += kAtOnce) {
            double sums[kAtOnce] = {};
            const int64_t columns = std::min(kAtOnce, from.ld - i0);
            for (int64_t t = first; t < first + count; ++t)
                for (int64_t i = 0; i < columns; ++i)
                    sums[i] += static_cast<double>(from.row(t)[i0 + i]);
            for (int64_t i = 0; i < columns; ++i)
                to[i0 + i] = static_cast<float>(sums[i] / static_cast<double>(count));
        }
    }

    Operand x_, output_;
    bool mean_;
};

const OpKind select_rows("select", [](const OpFields& f, Program& p) { p.add<SelectOp>(f); });

}  // namespace

}  // namespace sterna
