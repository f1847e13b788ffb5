// Columns of a value to the rows that a caller keeps between runs of parts of a program, or back from these.
#include <algorithm>

#include "program/program.h"

namespace sterna {

namespace {

class KeepOp final : public RowOp {
  public:
    KeepOp(const OpFields& f, Workspace& work)
        : RowOp(f, work),
          value_(f.value("output")),
          saves_(f.value("x")),
          column_(f.whole("column")),
          width_(f.whole("width")) {
        f.require(!value_.chosen && !selected, "output", "must have a row for each token");
        f.require(width_ >= 1 && width_ <= value_.width, "width", "must be columns of the value");
        f.require(column_ >= 0 && column_ < kMostColumns && width_ < kMostColumns, "column",
                  "must lie in 0..2^31");
        work.needs.kept_width = std::max(work.needs.kept_width, column_ + width_);
    }
    const char* kind() const override { return "keep"; }

  protected:
    void row(Step& step, int64_t n, int) override {
        float* const row = work.buffer(value_).row(n);
        float* const kept = step.batch.kept + n * step.batch.kept_width + column_;
        std::copy_n(saves_ ? row : kept, width_, saves_ ? kept : row);
    }

  private:
    static constexpr int64_t kMostColumns = int64_t{1} << 31;

    Operand value_;
    bool saves_;  // else it restores
    int64_t column_, width_;
};

const OpKind keep("keep", [](const OpFields& f, Program& p) { p.add<KeepOp>(f); });

}  // namespace

}  // namespace sterna
