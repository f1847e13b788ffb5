// The normalised row of every token, for a caller that asks for it.
#include <algorithm>

#include "program/program.h"

namespace sterna {

namespace {

class HiddenStatesOp final : public RowOp {
  public:
    HiddenStatesOp(const OpFields& f, Workspace& work)
        : RowOp(f, work),
          x_(f.value("x")),
          output_(f.value("output")),
          norm_(f.floats("norm", x_.width, "must have a value for each column of x")),
          eps_(f.number("eps")) {
        f.require(!norm_.empty(), "norm", "must be there");
        f.require(x_.width == output_.width, "output", "must have the width of x");
        f.require(!work.needs.hidden_width, "x", "must be the only hidden states of a program");
        work.needs.hidden_width = x_.width;
    }
    const char* kind() const override { return "hidden_states"; }
    Division units(const Step& step) const override {
        return {step.batch.hidden_states ? rows(step) : 0, step.threads};
    }

  protected:
    void row(Step& step, int64_t n, int) override {
        RowwiseArgs a{};
        a.x = work.buffer(x_).row(n);
        a.yf = work.buffer(output_).row(n);
        a.width = x_.width;
        a.norm = norm_.data();
        a.eps = eps_;
        if (!step.kernels.rowwise(a)) report(step);
        std::copy_n(a.yf, a.width, step.batch.hidden_states + n * a.width);
    }

  private:
    Operand x_, output_;
    std::vector<float> norm_;
    float eps_;
};

const OpKind hidden_states("hidden_states",
                           [](const OpFields& f, Program& p) { p.add<HiddenStatesOp>(f); });

}  // namespace

}  // namespace sterna
