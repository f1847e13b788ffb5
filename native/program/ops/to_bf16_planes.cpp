// Planes of bf16 of a value that something else than a rowwise operation has made.
#include "program/program.h"

namespace sterna {

namespace {

class ToBf16PlanesOp final : public RowOp {
  public:
    ToBf16PlanesOp(const OpFields& f, Workspace& work) : RowOp(f, work), x_(f.value("x")) {
        f.require(x_.planes_for >= 0 && work.weights[x_.planes_for].padded_k <= x_.ld(), "x",
                  "does not fit a weight that reads it in bf16 planes");
    }
    const char* kind() const override { return "to_bf16_planes"; }

  protected:
    void row(Step& step, int64_t n, int) override {
        const Weight& reader = work.weights[x_.planes_for];
        if (const auto& fast = step.kernels.formats[reader.format].fast; fast.linear)
            step.kernels.to_bf16_planes(work.buffer(x_).bf16_planes_args(n, fast));
    }

  private:
    Operand x_;
};

const OpKind to_bf16_planes("to_bf16_planes",
                            [](const OpFields& f, Program& p) { p.add<ToBf16PlanesOp>(f); });

}  // namespace

}  // namespace sterna
