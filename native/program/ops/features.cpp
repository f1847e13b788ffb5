// Features of an image added to the rows of its tokens; other rows stay as they are.
#include "program/program.h"

namespace sterna {

namespace {

class FeaturesOp final : public RowOp {
  public:
    FeaturesOp(const OpFields& f, Workspace& work)
        : RowOp(f, work), x_(f.value("x")), output_(f.value("output")), column_(f.whole("column")) {
        f.require(x_.width == output_.width, "output", "must have the width of x");
        f.require(!x_.chosen && !output_.chosen && !selected, "x", "must have rows of all tokens");
        f.require(column_ >= 0, "column", "must not be negative");
        work.needs.feature_width = std::max(work.needs.feature_width, column_ + x_.width);
    }
    const char* kind() const override { return "features"; }

  protected:
    void row(Step& step, int64_t n, int) override {
        const float* x = work.buffer(x_).row(n);
        float* y = work.buffer(output_).row(n);
        const float* added = step.batch.features_of(n);
        for (int64_t i = 0; i < x_.width; ++i) y[i] = added ? x[i] + added[column_ + i] : x[i];
    }

  private:
    Operand x_, output_;
    int64_t column_;  // of the features, where those begin that are added
};

const OpKind features("features", [](const OpFields& f, Program& p) { p.add<FeaturesOp>(f); });

}  // namespace

}  // namespace sterna
