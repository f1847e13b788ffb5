// Pieces of a value's rows, or of the previous hidden state of each token, as columns of other rows; or as rows of heads,
// which a linear layer multiplies like those of experts.
#include <algorithm>

#include "program/program.h"

namespace sterna {

namespace {

// Piece i begins at column from + i * from_stride of a row, or at `from` of head i's row; likewise where it goes.
class CopyOp final : public Op {
  public:
    CopyOp(const OpFields& f, Workspace& work)
        : Op(f, work),
          x_(f.value("x")),
          output_(f.value("output")),
          pieces_(static_cast<int>(f.whole("pieces"))),
          from_(f.whole("begin")),
          from_stride_(f.whole("stride")),
          to_(f.whole("column")),
          to_stride_(f.whole("to_stride")),
          width_(f.maybe_whole("width").value_or(x_ ? x_.width : output_.width)) {
        f.require(pieces_ >= 1 && pieces_ <= kMaxExperts, "pieces", "must lie in 1..4096");
        f.require(width_ >= 1 && fits(output_, to_, to_stride_), "output", "is too narrow");
        f.require(x_.buffer != output_.buffer, "output", "must have a buffer of its own");
        f.require(!(x_.chosen && output_.chosen) && (!output_.chosen || !selected), "x",
                  "must have rows of tokens where the output has rows of heads");
        if (x_) {
            f.require(fits(x_, from_, from_stride_), "x", "is too narrow");
            return;
        }
        f.require(pieces_ == 1 && !from_ && !output_.chosen, "x",
                  "must be there where it has several pieces");
        f.require(!work.needs.previous_width || work.needs.previous_width == width_, "output",
                  "must have the width of the other previous hidden states");
        work.needs.previous_width = width_;
    }
    const char* kind() const override { return "copy"; }
    void reserve(int64_t tokens) override {
        if (output_.chosen) work.routing.reserve(tokens, pieces_, pieces_);
    }
    void run(Step& step, Turn& turn) override {
        const int64_t tokens = rows(step);
        for (int64_t n = turn.begin; n < turn.end; ++n) {
            if (output_.chosen) work.routing.to_all(n, tokens, pieces_);
            row(step, n);
        }
        if (output_.chosen) work.routing.end_to_all(turn.end - turn.begin, tokens, pieces_);
    }

  private:
    bool fits(const Operand& of, int64_t at, int64_t stride) const {
        const int64_t last = of.chosen ? at : at + (pieces_ - 1) * stride;
        return at >= 0 && stride >= 0 && last + width_ <= of.width &&
               (!of.chosen || (of.chosen == pieces_ && of.experts == pieces_));
    }
    float* piece(const Operand& of, int64_t n, int i, int64_t at, int64_t stride) const {
        if (!of.chosen) return work.buffer(of).row(n) + at + i * stride;
        return work.buffer(of).row(work.routing.row[static_cast<size_t>(n * pieces_ + i)]) + at;
    }
    void row(const Step& step, int64_t n) const {
        for (int i = 0; i < pieces_; ++i) {
            const float* const from = x_ ? piece(x_, n, i, from_, from_stride_)
                                         : step.batch.previous_hidden_states + n * width_;
            std::copy_n(from, width_, piece(output_, n, i, to_, to_stride_));
        }
    }

    Operand x_, output_;
    int pieces_;
    int64_t from_, from_stride_, to_, to_stride_, width_;
};

const OpKind copy_row("copy", [](const OpFields& f, Program& p) { p.add<CopyOp>(f); });

}  // namespace

}  // namespace sterna
