// Several streams of a token, of which a layer works on one (AltUp, arXiv 2301.13310), and streams of another's size.
#include <algorithm>
#include <cmath>

#include "program/ops/sum_of.h"
#include "program/program.h"

namespace sterna {

namespace {

// Before a layer, each stream and a sum of all; behind it, each and a part of what the layer changed.
class AltUpOp final : public RowOp {
  public:
    AltUpOp(const OpFields& f, Workspace& work)
        : RowOp(f, work),
          x_(f.value("x")),
          made_(f.value("made")),
          factors_(f.value("factors")),
          output_(f.value("output")),
          streams_(f.whole("streams")),
          active_(f.whole("active")) {
        f.require(streams_ >= 1 && x_.width % streams_ == 0, "streams", "must divide the row");
        f.require(active_ >= 0 && active_ < streams_, "active", "must be one of the streams");
        f.require(!made_ || made_.width == x_.width / streams_, "made", "must be a stream wide");
        f.require(factors_.width == (made_ ? streams_ : streams_ * streams_), "factors",
                  "must be one for each stream, before a layer for each of each");
        f.require(output_.width == x_.width && output_.buffer != x_.buffer, "output",
                  "must have the width of x, and a buffer of its own");
        for (const Operand& o : {x_, made_, factors_, output_})
            f.require(!o.chosen, "x", "must have rows of tokens");
    }
    const char* kind() const override { return "altup"; }

  protected:
    void row(Step&, int64_t n, int) override {
        const float *x = work.buffer(x_).row(n), *factors = work.buffer(factors_).row(n);
        const int64_t width = x_.width / streams_;
        float* y = work.buffer(output_).row(n);
        std::copy_n(x, x_.width, y);
        for (int64_t j = 0; j < streams_; ++j, y += width) {
            if (made_) {
                const float *made = work.buffer(made_).row(n), *before = x + active_ * width;
                const float by = 1 + factors[j];
                for (int64_t i = 0; i < width; ++i) y[i] += by * (made[i] - before[i]);
                continue;
            }
            for (int64_t from = 0; from < streams_; ++from) {
                const float *other = x + from * width, by = factors[j * streams_ + from];
                for (int64_t i = 0; i < width; ++i) y[i] += by * other[i];
            }
        }
    }

  private:
    Operand x_, made_, factors_, output_;  // made_: or none, before a layer
    int64_t streams_, active_;
};

// Columns of a row, times what gives them the root mean square of another row (+ residual).
class RescaleOp final : public RowOp {
  public:
    RescaleOp(const OpFields& f, Workspace& work)
        : RowOp(f, work),
          x_(f.value("x")),
          size_of_(f.value("size_of")),
          residual_(f.value("residual")),
          output_(f.value("output")),
          column_(f.whole("column")),
          least_(f.number("least")) {
        f.require(column_ >= 0 && column_ + output_.width <= x_.width, "column",
                  "must be where as many columns begin as the output has");
        f.require(least_ > 0 && std::isfinite(least_), "least", "must be positive");
        f.require(!residual_ || residual_.width == output_.width, "residual",
                  "must have the width of the output");
        f.require(output_.buffer != x_.buffer && output_.buffer != size_of_.buffer, "output",
                  "must have a buffer of its own");
        for (const Operand& o : {x_, size_of_, residual_, output_})
            f.require(!o.chosen, "x", "must have rows of tokens");
    }
    const char* kind() const override { return "rescale"; }

  protected:
    void row(Step& step, int64_t n, int) override {
        const float* x = work.buffer(x_).row(n) + column_;
        const double wanted = mean_square(work.buffer(size_of_).row(n), size_of_.width);
        const double mine = mean_square(x, output_.width);
        // A comparison would hide a NaN, and a root of infinity divides to 0.
        if (!std::isfinite(mine) || !std::isfinite(wanted)) return report(step);
        const auto by = static_cast<float>(std::sqrt(wanted / std::max(mine, double{least_})));
        const float* residual = residual_ ? work.buffer(residual_).row(n) : nullptr;
        float* y = work.buffer(output_).row(n);
        for (int64_t i = 0; i < output_.width; ++i)
            y[i] = residual ? residual[i] + by * x[i] : by * x[i];
    }

  private:
    Operand x_, size_of_, residual_, output_;
    int64_t column_;
    float least_;  // mean square that x is taken to have
};

const OpKind altup("altup", [](const OpFields& f, Program& p) { p.add<AltUpOp>(f); });
const OpKind rescale("rescale", [](const OpFields& f, Program& p) { p.add<RescaleOp>(f); });

}  // namespace

}  // namespace sterna
