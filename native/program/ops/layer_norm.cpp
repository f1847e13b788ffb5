// LayerNorm of a row: (x - mean) / sqrt(variance + eps) * weight (+ bias).
//
// It is compiled once, for all units, with sums in double in a fixed order, so that it has the same bits everywhere.
#include <cmath>

#include "program/ops/sum_of.h"
#include "program/program.h"

namespace sterna {

namespace {

class LayerNormOp final : public RowOp {
  public:
    LayerNormOp(const OpFields& f, Workspace& work)
        : RowOp(f, work),
          x_(f.value("x")),
          output_(f.value("output")),
          weight_(f.floats("weight", x_.width, "must have a value for each column of x")),
          bias_(f.floats("bias", x_.width, "must have a value for each column of x")),
          eps_(f.number("eps")) {
        f.require(!weight_.empty(), "weight", "must be there");
        f.require(x_.width == output_.width, "output", "must have the width of x");
        f.require(!x_.chosen && !output_.chosen, "x", "must have rows of tokens");
    }
    const char* kind() const override { return "layer_norm"; }

  protected:
    void row(Step& step, int64_t n, int) override {
        const float* x = work.buffer(x_).row(n);
        float* y = work.buffer(output_).row(n);
        const double mean = mean_of(x, x_.width);
        const double inverse = 1 / std::sqrt(mean_square(x, x_.width, mean) + eps_);
        if (!(inverse > 0)) report(step);  // 1 / sqrt(inf) is 0, and NaN compares false
        const bool biased = !bias_.empty();
        for (int64_t i = 0; i < x_.width; ++i) {
            const auto normed = static_cast<float>((x[i] - mean) * inverse);
            const float scaled = normed * weight_[static_cast<size_t>(i)];
            y[i] = biased ? scaled + bias_[static_cast<size_t>(i)] : scaled;
        }
    }

  private:
    Operand x_, output_;
    std::vector<float> weight_, bias_;  // bias: or empty
    double eps_;
};

const OpKind layer_norm("layer_norm", [](const OpFields& f, Program& p) { p.add<LayerNormOp>(f); });

}  // namespace

}  // namespace sterna
