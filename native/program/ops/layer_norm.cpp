// LayerNorm of a row (native/layer_norm.h), and rounding to int8.
#include "program/ops/rounded_rows.h"
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
          eps_(f.number("eps")),
          rounding_(f, output_) {
        f.require(!weight_.empty(), "weight", "must be there");
        f.require(x_.width == output_.width, "output", "must have the width of x");
        f.require(!x_.chosen && !output_.chosen, "x", "must have rows of tokens");
    }
    const char* kind() const override { return "layer_norm"; }
    int64_t scratch_bytes(const Step&) const override { return rounding_.scratch_bytes(); }

  protected:
    void row(Step& step, int64_t n, int worker) override {
        RowwiseArgs a{};
        a.x = a.yf = rounding_.floats(work, step, n, worker);
        a.width = x_.width;
        const float* bias = bias_.empty() ? nullptr : bias_.data();
        if (!step.kernels.layer_norm({work.buffer(x_).streamed(n, rows(step)), weight_.data(), bias,
                                      x_.width, eps_, a.yf}))
            return report(step);
        if (!rounding_) return;
        rounding_.codes(a, work, step, n, rows(step));
        if (!step.kernels.rowwise(a)) report(step);
    }

  private:
    Operand x_, output_;
    std::vector<float> weight_, bias_;  // bias: or empty
    double eps_;
    RoundedRows rounding_;
};

const OpKind layer_norm("layer_norm", [](const OpFields& f, Program& p) { p.add<LayerNormOp>(f); });

}  // namespace

}  // namespace sterna
