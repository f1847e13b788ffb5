// The rows whose logits are wanted, one after the other.
#include <cstring>

#include "program/program.h"

namespace sterna {

namespace {

class SelectOp final : public RowOp {
  public:
    SelectOp(const OpFields& f, Workspace& work)
        : RowOp(f, work), x_(f.value("x")), output_(f.value("output")) {
        f.require(selected, "selected", "must be true");
        f.require(x_.ld() == output_.ld(), "output", "must have the width of x");
    }
    const char* kind() const override { return "select"; }

  protected:
    void row(Step&, int64_t n, int) override {
        const auto& from = work.buffer(x_);
        std::memcpy(work.buffer(output_).row(n),
                    from.row(work.rows.selected[static_cast<size_t>(n)]),
                    static_cast<size_t>(from.ld) * 4);
    }

  private:
    Operand x_, output_;
};

const OpKind select_rows("select", [](const OpFields& f, Program& p) { p.add<SelectOp>(f); });

}  // namespace

}  // namespace sterna
