// Columns [q | k | v] of each head in turn, as [q of all | k of all | v of all]. A first part may be as wide as several
// others: the queries of a group that shares its keys and values.
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
          parts_(f.whole("parts")),
          first_(f.whole("first")) {
        f.require(heads_ >= 1 && parts_ >= 1 && first_ >= 1 &&
                      x_.width % (heads_ * (parts_ - 1 + first_)) == 0,
                  "n_heads", "must divide the width of x, together with parts");
        f.require(x_.width == output_.width && x_.buffer != output_.buffer, "output",
                  "must have the width of x, and a buffer of its own");
    }
    const char* kind() const override { return "split_heads"; }

  protected:
    void row(Step&, int64_t n, int) override {
        const float* x = work.buffer(x_).row(n);
        float* y = work.buffer(output_).row(n);
        const int64_t d = x_.width / (heads_ * (parts_ - 1 + first_));
        for (int64_t head = 0; head < heads_; ++head) {
            std::copy_n(x, first_ * d, y + head * first_ * d);
            x += first_ * d;
            for (int64_t part = 0; part < parts_ - 1; ++part, x += d)
                std::copy_n(x, d, y + ((first_ + part) * heads_ + head) * d);
        }
    }

  private:
    Operand x_, output_;
    int64_t heads_, parts_;
    int64_t first_;  // parts that the first one is as wide as
};

const OpKind split_heads("split_heads",
                         [](const OpFields& f, Program& p) { p.add<SplitHeadsOp>(f); });

}  // namespace

}  // namespace sterna
