// An activation of a row by itself, as an FFN without a gate has it.
#include <algorithm>

#include "program/ops/glu.h"
#include "program/program.h"

namespace sterna {

namespace {

class ActivationOp final : public RowOp {
  public:
    ActivationOp(const OpFields& f, Workspace& work)
        : RowOp(f, work),
          x_(f.value("x")),
          output_(f.value("output")),
          relu_(f.text("activation") == "relu"),
          glu_(relu_ ? Glu::kNone : glu_of(f, "activation")) {
        f.require(relu_ || (glu_ != Glu::kNone && glu_ != Glu::kClamped), "activation",
                  "must be relu, relu2, silu, gelu or gelu_pytorch_tanh");
        f.require(x_.width == output_.width, "output", "must have the width of x");
        f.require(!x_.chosen && !output_.chosen, "x", "must have rows of tokens");
    }
    const char* kind() const override { return "activation"; }
    int64_t scratch_bytes(const Step&) const override { return 2 * x_.ld() * 4; }

  protected:
    void row(Step& step, int64_t n, int worker) override {
        const float* x = work.buffer(x_).row(n);
        float* y = work.buffer(output_).row(n);
        if (relu_) {
            for (int64_t i = 0; i < x_.width; ++i) y[i] = x[i] < 0 ? 0 : x[i];  // a NaN stays one
            return;
        }
        // The units' activations multiply a second half: by one, which is exact.
        float* pair = reinterpret_cast<float*>(work.scratch(worker));
        std::copy_n(x, x_.width, pair);
        std::fill_n(pair + x_.ld(), x_.width, 1.0f);
        RowwiseArgs a{};
        a.x = pair;
        a.up_offset = x_.ld();
        a.width = x_.width;
        a.glu = glu_;
        a.yf = y;
        step.kernels.rowwise(a);
    }

  private:
    Operand x_, output_;
    bool relu_;
    Glu glu_;
};

const OpKind activation("activation",
                        [](const OpFields& f, Program& p) { p.add<ActivationOp>(f); });

}  // namespace

}  // namespace sterna
