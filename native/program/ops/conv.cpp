// A causal convolution of channels, each by itself, then SiLU or nothing, in place; or one between two gates of each
// channel. Units of channels, each over all tokens of one sequence.
#include <algorithm>

#include "program/channel_units.h"
#include "program/program.h"

namespace sterna {

namespace {

constexpr int64_t kConvChannels = 128;  // of a unit

// gated: a row [before | after | x] gives another, after * conv(before * x).
class ConvOp final : public Op {
  public:
    ConvOp(const OpFields& f, Workspace& work, bool gated)
        : Op(f, work), gated_(gated), x_(f.value("x")), output_(f.value("output")) {
        const BorrowedMatrix taps = f.matrix("taps");
        width_ = static_cast<int>(taps.rows), channels_ = taps.columns;
        units_ = {channels_, kConvChannels};
        f.require(taps.rows >= 1 && taps.rows <= kMaxConvWidth, "taps", "must be 1..16");
        column_ = gated ? 0 : f.whole("column");
        f.require(column_ >= 0 && channels_ >= 1 && column_ + channels_ <= output_.ld(), "output",
                  "is too narrow");
        f.require(!x_.chosen && !output_.chosen, "x", "must have rows of tokens");
        if (gated) {
            f.require(x_.width == 3 * channels_, "x", "must have two gates and an input a channel");
            f.require(x_.buffer != output_.buffer, "output", "must not take the place of x");
        } else {
            f.require(x_.buffer == output_.buffer, "output", "must take the place of x");
        }
        linear_ = !gated && f.flag("linear");
        bias_ = f.floats("bias", channels_, "must have a value for each channel");
        taps_.assign(taps.values, taps.values + width_ * channels_);
        state_ = work.needs.add_state((width_ - 1) * channels_);
    }
    const char* kind() const override { return gated_ ? "short_conv" : "conv"; }
    Division units(const Step& step) const override { return units_.all(step); }
    void run(Step& step, Turn& turn) override {
        for (int64_t unit = turn.begin; unit < turn.end; ++unit) convolve(step, units_.at(unit));
    }

  private:
    void convolve(const Step& step, const ChannelUnits::Unit& unit) const;

    bool gated_, linear_;
    Operand x_, output_;
    int width_;
    int64_t channels_, column_;  // and where in a row they begin
    ChannelUnits units_{};
    std::vector<float> taps_;  // [width][channels]
    std::vector<float> bias_;  // [channels] or empty
    int64_t state_;  // where in a State its floats begin
};

void ConvOp::convolve(const Step& step, const ChannelUnits::Unit& unit) const {
    const size_t s = unit.sequence;
    const int64_t from = unit.from;
    const auto& span = step.batch.sequences[s];
    const int64_t first = work.rows.first_of[s];
    ConvArgs a{};
    a.x = work.buffer(x_).row(first) + column_ + from;
    a.bias = bias_.empty() ? nullptr : bias_.data() + from;
    if (gated_) {
        a.before = a.x;
        a.after = a.before + channels_;
        a.x = a.after + channels_;
    }
    a.ldx = work.buffer(x_).ld;
    a.tokens = span.count - span.drafts;
    a.channels = unit.channels;
    a.weight = taps_.data() + from;
    a.ldw = channels_;
    a.width = width_;
    a.linear = linear_;
    a.state = span.state + state_ + from;
    a.fresh = span.start == 0;
    a.y = work.buffer(output_).row(first) + column_ + from;
    a.ldy = work.buffer(output_).ld;
    step.kernels.conv(a);
    if (!span.drafts) return;
    float* ahead = span.ahead + state_ + from;
    for (int64_t i = 0; i + 1 < a.width; ++i)
        std::copy_n(a.state + i * channels_, a.channels, ahead + i * channels_);
    a.x += a.tokens * a.ldx;
    a.y += a.tokens * a.ldy;
    if (gated_) {
        a.before += a.tokens * a.ldx;
        a.after += a.tokens * a.ldx;
    }
    a.tokens = span.drafts;
    a.state = ahead;
    a.fresh = false;
    step.kernels.conv(a);
}

template <bool kGated>
void add_conv(const OpFields& f, Program& p) {
    p.add(std::make_unique<ConvOp>(f, p.work(), kGated));
}
const OpKind conv("conv", add_conv<false>);
const OpKind short_conv("short_conv", add_conv<true>);

}  // namespace

}  // namespace sterna
