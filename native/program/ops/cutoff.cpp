// The first columns of a row, less a threshold: what is below it becomes 0, in place.
#include <algorithm>
#include <cmath>

#include "program/ops/sum_of.h"
#include "program/program.h"

namespace sterna {

namespace {

class CutoffOp final : public RowOp {
  public:
    CutoffOp(const OpFields& f, Workspace& work)
        : RowOp(f, work),
          x_(f.value("x")),
          output_(f.value("output")),
          width_(f.whole("width")),
          deviations_(f.number("deviations")) {
        f.require(width_ >= 1 && width_ <= x_.width, "width", "must lie in 1..the width of x");
        f.require(std::isfinite(deviations_), "deviations", "must be finite");
        f.require(x_.buffer == output_.buffer, "output", "must take the place of x");
        f.require(!x_.chosen && !output_.chosen, "x", "must have rows of tokens");
    }
    const char* kind() const override { return "cutoff"; }

  protected:
    void row(Step& step, int64_t n, int) override {
        float* x = work.buffer(x_).row(n);
        const double mean = mean_of(x, width_);
        const double cut = mean + deviations_ * std::sqrt(mean_square(x, width_, mean));
        if (!std::isfinite(cut)) return report(step);  // a comparison would hide a NaN
        for (int64_t i = 0; i < width_; ++i) x[i] = static_cast<float>(std::max(0.0, x[i] - cut));
    }

  private:
    Operand x_, output_;
    int64_t width_;
    double deviations_;  // of the threshold, above the mean
};

const OpKind cutoff("cutoff", [](const OpFields& f, Program& p) { p.add<CutoffOp>(f); });

}  // namespace

}  // namespace sterna
