// A causal convolution of each channel by itself, then SiLU, in place: units of channels, each over all tokens of one
// sequence.
#include <algorithm>

#include "program/program.h"

namespace sterna {

namespace {

constexpr int64_t kConvChannels = 128;  // of a unit

class ConvOp final : public Op {
  public:
    ConvOp(const OpFields& f, Workspace& work) : Op(f, work), row_(f.value("output")) {
        const BorrowedMatrix taps = f.matrix("taps");
        width_ = static_cast<int>(taps.rows), channels_ = taps.columns;
        f.require(taps.rows >= 1 && taps.rows <= kMaxConvWidth, "taps", "must be 1..16");
        f.require(channels_ >= 1 && channels_ <= row_.ld(), "output", "is too narrow");
        f.require(f.value("x").buffer == row_.buffer, "output", "must take the place of x");
        taps_.assign(taps.values, taps.values + width_ * channels_);
        state_ = work.needs.add_state((width_ - 1) * channels_);
    }
    const char* kind() const override { return "conv"; }
    Division units(const Step& step) const override {
        return {std::ssize(step.batch.sequences) * units_of_sequence()};
    }
    void run(Step& step, Turn& turn) override {
        for (int64_t unit = turn.begin; unit < turn.end; ++unit) convolve(step, unit);
    }

  private:
    int64_t units_of_sequence() const { return (channels_ + kConvChannels - 1) / kConvChannels; }
    void convolve(const Step& step, int64_t unit) const;

    Operand row_;
    int width_;
    int64_t channels_;
    std::vector<float> taps_;  // [width][channels]
    int64_t state_;  // where in a State its floats begin
};

void ConvOp::convolve(const Step& step, int64_t unit) const {
    const auto s = static_cast<size_t>(unit / units_of_sequence());
    const auto& span = step.batch.sequences[s];
    const auto& row = work.buffer(row_);
    const int64_t from = unit % units_of_sequence() * kConvChannels;
    ConvArgs a{};
    a.x = row.row(work.rows.first_of[s]) + from;
    a.ldx = row.ld;
    a.tokens = span.count - span.drafts;
    a.channels = std::min(kConvChannels, channels_ - from);
    a.weight = taps_.data() + from;
    a.ldw = channels_;
    a.width = width_;
    a.state = span.state + state_ + from;
    a.fresh = span.start == 0;
    step.kernels.conv(a);
    if (!span.drafts) return;
    float* ahead = span.ahead + state_ + from;
    for (int64_t i = 0; i + 1 < a.width; ++i)
        std::copy_n(a.state + i * channels_, a.channels, ahead + i * channels_);
    a.x += a.tokens * a.ldx;
    a.tokens = span.drafts;
    a.state = ahead;
    a.fresh = false;
    step.kernels.conv(a);
}

const OpKind conv("conv", [](const OpFields& f, Program& p) { p.add<ConvOp>(f); });

}  // namespace

}  // namespace sterna
