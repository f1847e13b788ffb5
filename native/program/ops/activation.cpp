// An activation of a row, for an FFN without a gate.
#include <algorithm>
#include <cmath>

#include "program/ops/glu.h"
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
          simple_(simple_of(f.text("activation"))),
          quick_(f.text("activation") == "quick_gelu"),
          glu_(simple_ != Simple::kNone ? Glu::kNone
               : quick_                 ? Glu::kClamped
                                        : glu_of(f, "activation")),
          parameters_(f.floats("parameters")) {
        f.require(
            simple_ != Simple::kNone || quick_ || (glu_ != Glu::kNone && glu_ != Glu::kClamped),
            "activation",
            "must be relu, relu2, silu, gelu, gelu_pytorch_tanh, quick_gelu, tanh, clip or xielu");
        const size_t count = simple_ == Simple::kClip ? 2 : simple_ == Simple::kXielu ? 4 : 0;
        f.require(
            parameters_.size() == count && std::all_of(parameters_.begin(), parameters_.end(),
                                                       [](float p) { return std::isfinite(p); }),
            "parameters", "must be the limits of clip, the four of xielu, else none");
        f.require(simple_ != Simple::kClip || parameters_[0] <= parameters_[1], "parameters",
                  "must ascend");
        f.require(x_.width == output_.width, "output", "must have the width of x");
        f.require(!x_.chosen && !output_.chosen, "x", "must have rows of tokens");
    }
    const char* kind() const override { return "activation"; }
    int64_t scratch_bytes(const Step&) const override { return 2 * x_.ld() * 4; }

  protected:
    void row(Step& step, int64_t n, int worker) override {
        const float* x = work.buffer(x_).row(n);
        float* y = work.buffer(output_).row(n);
        switch (simple_) {
            case Simple::kRelu:
                for (int64_t i = 0; i < x_.width; ++i)
                    y[i] = x[i] < 0 ? 0 : x[i];  // a NaN stays one
                return;
            case Simple::kTanh:
                for (int64_t i = 0; i < x_.width; ++i) y[i] = tanh_of(x[i]);
                return;
            case Simple::kClip:
                return clip(step, x, y);
            case Simple::kXielu:
                return xielu(x, y);
            case Simple::kNone:
                break;
        }
        // The units' activations multiply a second half: by one, which is exact; kClamped adds it to zero.
        float* pair = reinterpret_cast<float*>(work.scratch(worker));
        std::copy_n(x, x_.width, pair);
        std::fill_n(pair + x_.ld(), x_.width, quick_ ? 0.0f : 1.0f);
        RowwiseArgs a{};
        a.x = pair;
        a.up_offset = x_.ld();
        a.width = x_.width;
        a.glu = glu_;
        a.yf = y;
        step.kernels.rowwise(a);
    }

  private:
    // What needs no kernel of a unit.
    enum class Simple { kNone, kRelu, kTanh, kClip, kXielu };

    static Simple simple_of(const std::string& name) {
        return name == "relu"    ? Simple::kRelu
               : name == "tanh"  ? Simple::kTanh
               : name == "clip"  ? Simple::kClip
               : name == "xielu" ? Simple::kXielu
                                 : Simple::kNone;
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
    Simple simple_;
    bool quick_;  // x sigmoid(1.702 x)
    Glu glu_;
    std::vector<float> parameters_;
};

const OpKind activation("activation",
                        [](const OpFields& f, Program& p) { p.add<ActivationOp>(f); });

}  // namespace

}  // namespace sterna
