// Columns [q | k | v] of each head in turn, as [q of all | k of all | v of all].
#include <algorithm>

#include "program/program.h"

namespace sterna {

namespace {

class SplitHeadsOp final : public RowOp {
  public:
    SplitHeadsOp(const OpFields& f, Workspace& work)
        : RowOp(f, work),
          x_(f.value("x")),
          output_(f.value("output")),
          heads_(f.whole("n_heads")),
          parts_(f.whole("parts")) {
        f.require(heads_ >= 1 && parts_ >= 1 && x_.width % (heads_ * parts_) == 0, "n_heads",
                  "must divide the width of x, together with parts");
        f.require(x_.width == output_.width && x_.buffer != output_.buffer, "output",
                  "must have the width of x, and a buffer of its own");
    }
    const char* kind() const override { return "split_heads"; }

  protected:
    void row(Step&, int64_t n, int) override {
        const float* x = work.buffer(x_).row(n);
        float* y = work.buffer(output_).row(n);
        const int64_t d = x_.width / (heads_ * parts_);
        for (int64_t head = 0; head < heads_; ++head)
            for (int64_t part = 0; part < parts_; ++part)
                std::copy_n(x + (head * parts_ + part) * d, d, y + (part * heads_ + head) * d);
    }

  private:
    Operand x_, output_;
    int64_t heads_, parts_;
};

const OpKind split_heads("split_heads",
                         [](const OpFields& f, Program& p) { p.add<SplitHeadsOp>(f); });

}  // namespace

}  // namespace sterna
