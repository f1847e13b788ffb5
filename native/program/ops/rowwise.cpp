// Operations on a row between two linear layers, in one pass: gate times up, a norm, a rotation, a residual, a factor,
// and rounding to int8.
#include <algorithm>
#include <bit>

#include "program/ops/glu.h"
#include "program/ops/rounded_rows.h"
#include "program/program.h"

namespace sterna {

namespace {

class RowwiseOp final : public RowOp {
  public:
    RowwiseOp(const OpFields& f, Workspace& work)
        : RowOp(f, work),
          x_(f.value("x")),
          up_(f.value("up")),
          residual_(f.value("residual")),
          shares_(f.value("shares")),
          output_(f.value("output")),
          width_(output_.width),
          up_column_(f.whole("up_column")),
          parts_(f.whole("parts")),
          glu_(glu_of(f, "glu")),
          ungated_(f.flag("ungated")),
          limit_(f.number("limit")),
          norm_(f.floats("norm", parts_ ? width_ / parts_ : 0, "must have `width` values")),
          eps_(f.number("eps")),
          block_(f.whole("rotation.block")),
          signs_(f.floats("rotation.signs", width_, "must have `width` values")),
          inverse_(f.flag("inverse")),
          rounding_(f, output_),
          factor_(f.number("factor")),
          spread_(f.flag("spread")) {
        check_columns(f);
        check_rounding(f);
        check_rows(f);
    }
    const char* kind() const override { return "rowwise"; }
    int64_t scratch_bytes(const Step&) const override {
        return padded_width(width_) * (up_ ? 12 : shares_ ? 8 : 4);
    }
    Division units(const Step& step) const override {
        return {rows(step) * std::max(output_.chosen, 1), step.threads};
    }

  protected:
    void row(Step& step, int64_t n, int worker) override;

  private:
    void check_columns(const OpFields& f) const {
        f.require(width_ >= 1 && width_ <= x_.ld(), "x", "is too narrow");
        const Operand& second = up_ ? up_ : x_;
        f.require(up_column_ >= 0 && up_column_ + width_ <= second.ld(), "up_column",
                  "must leave a width of columns");
        f.require(!ungated_ || (!up_ && up_column_ == 0 && glu_ != Glu::kNone), "ungated",
                  "must have an activation, and nothing to multiply");
        const bool limited = limit_ > 0 && std::isfinite(limit_);
        f.require(limited ? glu_ == Glu::kClamped || glu_ == Glu::kSilu
                          : limit_ == 0 && glu_ != Glu::kClamped,
                  "limit", "must be positive where the glu is clamped, may be of silu, else is 0");
        f.require(parts_ == 1 ||
                      (parts_ > 1 && width_ % parts_ == 0 && width_ / parts_ % kRowBlock == 0 &&
                       glu_ == Glu::kNone && !norm_.empty() && !rounding_ && !block_),
                  "parts", "must be of a multiple of 16 values each, normalised and no more");
        f.require(block_ == 0 || (block_ > 0 && width_ % 16 == 0 && width_ % block_ == 0 &&
                                  std::has_single_bit(static_cast<uint64_t>(block_))),
                  "rotation.block",
                  "must be a power of two that divides the width, a multiple of 16");
    }
    void check_rounding(const OpFields& f) const {
        f.require(std::isfinite(factor_) && (factor_ == 1 || !rounding_), "factor",
                  "must be finite, and 1 for what is rounded");
        f.require(!residual_ || (!rounding_ && residual_.buffer != output_.buffer &&
                                 residual_.ld() == output_.ld()),
                  "residual", "must have a buffer of its own, and is not for what is rounded");
        f.require(output_.planes_for < 0 ||
                      (work.weights[output_.planes_for].padded_k <= output_.ld() && output_.floats),
                  "output", "does not fit the weight that reads it in bf16 planes");
        f.require(!output_.nonzeros || rounding_.one_scale(), "output",
                  "must be rounded with one scale a row where its places are listed");
    }
    void check_rows(const OpFields& f) const {
        if (!output_.chosen)
            return f.require(!x_.chosen && !spread_ && !shares_, "x", "has rows of experts");
        f.require(!selected && !residual_, "output",
                  "has rows of experts, none of which is selected or has a residual");
        f.require(spread_ == !x_.chosen, "x", "must have rows of tokens where it is spread");
        f.require(!spread_ || x_.buffer != output_.buffer, "output",
                  "must have a buffer of its own where x is spread");
        f.require(!shares_ || (spread_ && glu_ == Glu::kNone && shares_.width == output_.chosen),
                  "shares", "must be of the experts that x is spread to, without a glu");
    }
    const float* gate_and_up(int64_t n, int worker, int64_t& up_offset) const;
    const float* shared_row(int64_t unit, int worker) const;

    Operand x_, up_, residual_, shares_, output_;
    int64_t width_, up_column_, parts_;
    Glu glu_;
    bool ungated_;
    float limit_;
    std::vector<float> norm_;
    float eps_;
    int64_t block_;
    std::vector<float> signs_;
    bool inverse_;
    RoundedRows rounding_;
    float factor_;
    bool spread_;
};

void RowwiseOp::row(Step& step, int64_t n, int worker) {
    const auto& dst = work.buffer(output_);
    int64_t from = n, count = rows(step);
    const int64_t unit = n;
    if (output_.chosen) {
        const auto i = static_cast<size_t>(n);
        const Routing& routing = work.routing;
        n = routing.row[i];
        from = spread_ ? from / output_.chosen : n;
        count = routing.count[static_cast<size_t>(routing.expert[i])];
    }
    RowwiseArgs a{};
    a.x = output_.chosen ? work.buffer(x_).row(from) : work.buffer(x_).streamed(from, count);
    a.up_offset = up_column_;
    if (up_) a.x = gate_and_up(from, worker, a.up_offset);
    a.ungated = ungated_;
    if (shares_) a.x = shared_row(unit, worker);
    a.width = width_ / parts_;
    a.glu = glu_;
    if (limit_ > 0) a.limit = limit_;
    a.norm = norm_.empty() ? nullptr : norm_.data();
    a.eps = eps_;
    a.hadamard_block = block_;
    a.signs = signs_.empty() ? nullptr : signs_.data();
    a.signs_last = inverse_;
    a.yf = rounding_.floats(work, step, n, worker);
    if (rounding_) rounding_.codes(a, work, step, n, count);
    float* const y = a.yf;
    for (int64_t part = 0; part < parts_; ++part, a.x += a.width, a.yf += a.width)
        if (!step.kernels.rowwise(a)) report(step);
    if (residual_) {
        const float* residual = work.buffer(residual_).row(n);
        for (int64_t i = 0; i < width_; ++i) y[i] += residual[i];
    }
    if (factor_ != 1)
        for (int64_t i = 0; i < width_; ++i) y[i] *= factor_;
    if (output_.nonzeros && step.one()) work.nonzeros.list(dst, width_, step.kernels);
    if (output_.planes_for < 0) return;
    const Weight& reader = work.weights[output_.planes_for];
    if (const auto& fast = step.kernels.formats[reader.format].fast; fast.linear)
        step.kernels.to_bf16_planes(dst.bf16_planes_args(n, fast));
}

// A gate and what it multiplies, of two buffers, side by side in the scratch, behind the room for a row.
const float* RowwiseOp::gate_and_up(int64_t n, int worker, int64_t& up_offset) const {
    up_offset = padded_width(width_);
    float* const row = reinterpret_cast<float*>(work.scratch(worker)) + up_offset;
    std::copy_n(work.buffer(x_).row(n), width_, row);
    std::copy_n(work.buffer(up_).row(n) + up_column_, width_, row + up_offset);
    return row;
}

// A token's row times the share of one of its experts, in the scratch, behind the room for a row.
const float* RowwiseOp::shared_row(int64_t unit, int worker) const {
    const int64_t token = unit / output_.chosen;
    const float share = work.buffer(shares_).row(token)[unit % output_.chosen];
    const float* x = work.buffer(x_).row(token);
    float* const row = reinterpret_cast<float*>(work.scratch(worker)) + padded_width(width_);
    for (int64_t i = 0; i < width_; ++i) row[i] = share * x[i];
    return row;
}

const OpKind rowwise("rowwise", [](const OpFields& f, Program& p) { p.add<RowwiseOp>(f); });

}  // namespace

}  // namespace sterna
