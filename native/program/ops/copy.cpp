// A value, or the previous hidden state of each token, as columns of a wider row.
#include <algorithm>

#include "program/program.h"

namespace sterna {

namespace {

class CopyOp final : public RowOp {
  public:
    CopyOp(const OpFields& f, Workspace& work)
        : RowOp(f, work),
          x_(f.value("x")),
          output_(f.value("output")),
          column_(f.whole("column")),
          width_(x_ ? x_.width : output_.width) {
        f.require(column_ >= 0 && column_ + width_ <= output_.width, "output", "is too narrow");
        f.require(x_.buffer != output_.buffer, "output", "must have a buffer of its own");
        if (x_) return;
        f.require(!work.needs.previous_width || work.needs.previous_width == width_, "output",
                  "must have the width of the other previous hidden states");
        work.needs.previous_width = width_;
    }
    const char* kind() const override { return "copy"; }

  protected:
    void row(Step& step, int64_t n, int) override {
        const float* from =
            x_ ? work.buffer(x_).row(n) : step.batch.previous_hidden_states + n * width_;
        std::copy_n(from, width_, work.buffer(output_).row(n) + column_);
    }

  private:
    Operand x_, output_;
    int64_t column_, width_;
};

const OpKind copy_row("copy", [](const OpFields& f, Program& p) { p.add<CopyOp>(f); });

}  // namespace

}  // namespace sterna
