// Columns of a row, each times a factor of its own, in place.
#include "program/program.h"

namespace sterna {

namespace {

class ScaleOp final : public RowOp {
  public:
    ScaleOp(const OpFields& f, Workspace& work)
        : RowOp(f, work),
          x_(f.value("x")),
          output_(f.value("output")),
          factors_(f.floats("factors", x_.width, "must have a value for each column of x")) {
        f.require(!factors_.empty(), "factors", "must be there");
        f.require(x_.buffer == output_.buffer, "output", "must take the place of x");
        f.require(!x_.chosen && !output_.chosen, "x", "must have rows of tokens");
    }
    const char* kind() const override { return "scale"; }

  protected:
    void row(Step&, int64_t n, int) override {
        float* x = work.buffer(x_).row(n);
        for (int64_t i = 0; i < x_.width; ++i) x[i] *= factors_[static_cast<size_t>(i)];
    }

  private:
    Operand x_, output_;
    std::vector<float> factors_;
};

const OpKind scale("scale", [](const OpFields& f, Program& p) { p.add<ScaleOp>(f); });

}  // namespace

}  // namespace sterna
