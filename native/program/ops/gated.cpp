// Heads times their gates: norm(x) act(gate) of each, or norm(x act(gate)).
#include <algorithm>

#include "program/program.h"
#include "program/recurrent_heads.h"

namespace sterna {

namespace {

class GatedOp final : public RowOp {
  public:
    GatedOp(const OpFields& f, Workspace& work)
        : RowOp(f, work),
          x_(f.value("x")),
          gates_(f.value("gates")),
          output_(f.value("output")),
          heads_(RecurrentHeads::of(f)),
          column_(f.whole("column")),
          stride_(f.whole("stride")),
          silu_(f.text("activation") == "silu"),
          single_(f.flag("single")),
          first_(f.flag("first")),
          norm_(f.floats("norm")),
          eps_(f.number("eps")) {
        f.require(silu_ || f.text("activation") == "sigmoid", "activation",
                  "must be silu or sigmoid");
        const auto size = std::ssize(norm_);
        norm_stride_ = size == heads_.v_dim ? 0 : heads_.v_dim;
        f.require(size == 0 || size == heads_.v_dim || size == heads_.v_width(), "norm",
                  "must have a value for each feature of a head, or of all heads");
        f.require(heads_.v_width() <= std::min(x_.ld(), output_.ld()), "x",
                  "is too narrow, or the output is");
        const int64_t last = single_ ? 1 : heads_.v_dim;
        f.require(stride_ >= heads_.v_dim && stride_ <= 2 * kMaxHeadDim && column_ >= 0 &&
                      column_ + (heads_.v_heads - 1) * stride_ + last <= gates_.ld(),
                  "gates", "is too narrow");
        f.require(gates_.buffer != output_.buffer &&
                      (x_.buffer != output_.buffer || heads_.k_heads == heads_.v_heads),
                  "output", "must have a buffer of its own");
    }
    const char* kind() const override { return "gated"; }

  protected:
    void row(Step& step, int64_t n, int) override {
        const int64_t turns = heads_.v_heads / heads_.k_heads;
        GatedArgs a{};
        a.x = work.buffer(x_).row(n);
        a.gate = work.buffer(gates_).row(n) + column_;
        a.heads = heads_.k_heads;
        a.head_dim = heads_.v_dim;
        a.gate_stride = stride_;
        a.silu = silu_;
        a.single = single_;
        a.first = first_;
        a.norm = norm_.empty() ? nullptr : norm_.data();
        a.norm_stride = norm_.empty() ? 0 : norm_stride_;
        a.eps = eps_;
        a.y = work.buffer(output_).row(n);
        a.y_stride = turns * heads_.v_dim;
        // One value head of each key head at a time, which stand together in x and apart in y.
        for (int64_t turn = 0; turn < turns; ++turn) {
            if (!step.kernels.gated(a)) report(step);
            a.x += a.heads * heads_.v_dim;
            a.gate += a.heads * a.gate_stride;
            if (a.norm) a.norm += a.heads * a.norm_stride;
            a.y += heads_.v_dim;
        }
    }

  private:
    Operand x_, gates_, output_;
    RecurrentHeads heads_;
    int64_t column_, stride_;  // of the first head's gate, and from one head's to the next
    bool silu_, single_, first_;
    std::vector<float> norm_;
    int64_t norm_stride_;  // 0: all heads have the same weights
    float eps_;
};

const OpKind gated("gated", [](const OpFields& f, Program& p) { p.add<GatedOp>(f); });

}  // namespace

}  // namespace sterna
