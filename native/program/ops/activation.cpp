// Activations of a row that a rowwise operation does not have: those of poolers and of few FFNs without a gate.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "program/program.h"
#include "scalar_math.h"

namespace sterna {

namespace {

// In double, for the few rows of a pooler: the units have none.
float tanh_of(float x) {
    const double magnitude = std::fabs(double{x});
    if (magnitude < 1e-4) return x;  // the next term is below half an ulp of x
    const double e = math::exp_d(-2 * magnitude);  // a NaN stays one
    return static_cast<float>(std::copysign((1 - e) / (1 + e), double{x}));
}

class ActivationOp final : public RowOp {
  public:
    ActivationOp(const OpFields& f, Workspace& work)
        : RowOp(f, work),
          x_(f.value("x")),
          output_(f.value("output")),
          function_(function_of(f.text("activation"))),
          parameters_(f.floats("parameters")) {
        const size_t count = function_ == Function::kClip    ? 2
                             : function_ == Function::kXielu ? 4
                                                             : 0;
        f.require(
            parameters_.size() == count && std::all_of(parameters_.begin(), parameters_.end(),
                                                       [](float p) { return std::isfinite(p); }),
            "parameters", "must be the limits of clip, the four of xielu, else none");
        f.require(function_ != Function::kUnknown, "activation",
                  "must be relu, tanh, quick_gelu, clip or xielu");
        f.require(function_ != Function::kClip || parameters_[0] <= parameters_[1], "parameters",
                  "must ascend");
        f.require(x_.width == output_.width, "output", "must have the width of x");
        f.require(!x_.chosen && !output_.chosen, "x", "must have rows of tokens");
    }
    const char* kind() const override { return "activation"; }

  protected:
    void row(Step& step, int64_t n, int) override {
        const float* x = work.buffer(x_).row(n);
        float* y = work.buffer(output_).row(n);
        switch (function_) {
            case Function::kRelu:
                for (int64_t i = 0; i < x_.width; ++i)
                    y[i] = x[i] < 0 ? 0 : x[i];  // a NaN stays one
                return;
            case Function::kTanh:
                for (int64_t i = 0; i < x_.width; ++i) y[i] = tanh_of(x[i]);
                return;
            case Function::kClip:
                return clip(step, x, y);
            case Function::kXielu:
                return xielu(x, y);
            default:
                return quick_gelu(step, x, y);
        }
    }

  private:
    enum class Function { kRelu, kTanh, kClip, kXielu, kQuickGelu, kUnknown };

    static Function function_of(const std::string& name) {
        static const char* const kNames[] = {"relu", "tanh", "clip", "xielu", "quick_gelu"};
        const auto* known = std::find(std::begin(kNames), std::end(kNames), name);
        return static_cast<Function>(known - std::begin(kNames));
    }
    // x sigmoid(1.702 x)
    void quick_gelu(const Step& step, const float* x, float* y) const {
        RowwiseArgs a{};
        a.x = x;
        a.ungated = true;
        a.width = x_.width;
        a.glu = Glu::kClamped;
        a.yf = y;
        step.kernels.rowwise(a);
    }
    void clip(Step& step, const float* x, float* y) const {
        const float least = parameters_[0], most = parameters_[1];
        bool finite = true;
        for (int64_t i = 0; i < x_.width; ++i) {
            finite = std::isfinite(x[i]) && finite;
            y[i] = std::clamp(x[i], least, most);
        }
        if (!finite) report(step);
    }
    // a x^2 + b x above 0, else (e^min(x, eps) - 1 - x) n + b x, in double (arXiv 2411.13010).
    void xielu(const float* x, float* y) const {
        const double a = parameters_[0], n = parameters_[1], b = parameters_[2],
                     eps = parameters_[3];
        for (int64_t i = 0; i < x_.width; ++i) {
            const double v = x[i];
            const double grown = v > 0 ? a * v * v : (math::exp_d(std::min(v, eps)) - 1 - v) * n;
            y[i] = static_cast<float>(grown + b * v);
        }
    }

    Operand x_, output_;
    Function function_;
    std::vector<float> parameters_;
};

const OpKind activation("activation",
                        [](const OpFields& f, Program& p) { p.add<ActivationOp>(f); });

}  // namespace

}  // namespace sterna
