// Mamba's selective scan. Units of channels, each over all tokens of one sequence.
#include <algorithm>

#include "program/channel_units.h"
#include "program/drafts.h"
#include "program/program.h"

namespace sterna {

namespace {

constexpr int64_t kScanChannels = 4 * kStateColumns;  // of a unit

class SelectiveScanOp final : public Op {
  public:
    SelectiveScanOp(const OpFields& f, Workspace& work)
        : Op(f, work),
          x_(f.value("x")),
          step_(f.value("step")),
          k_(f.value("k")),
          q_(f.value("q")),
          output_(f.value("output")),
          k_column_(f.whole("k_column")),
          q_column_(f.whole("q_column")),
          channels_(output_.width),
          units_{channels_, kScanChannels} {
        const BorrowedMatrix rate = f.matrix("rate");
        k_dim_ = rate.rows;
        f.require(rate.columns == channels_ && k_dim_ >= 1 && k_dim_ <= kMaxHeadDim, "rate",
                  "must have 1..65,536 values for each channel");
        skip_ = f.floats("skip", channels_, "must have a value for each channel");
        f.require(!skip_.empty(), "skip", "must be there");
        f.require(channels_ <= x_.width && channels_ <= step_.width, "x",
                  "is too narrow, or the steps are");
        const auto fits = [&](const Operand& of, int64_t column) {
            return column >= 0 && column + k_dim_ <= of.width;
        };
        f.require(fits(k_, k_column_) && fits(q_, q_column_), "k", "is too narrow, or q is");
        for (const Operand* in : {&x_, &step_, &k_, &q_})
            f.require(!in->chosen && in->buffer != output_.buffer, "output",
                      "must have a buffer of its own, and rows of tokens");
        const int64_t floats = state_blocks(channels_) * kStateColumns * k_dim_;
        rate_.assign(static_cast<size_t>(floats), 0.0f);
        for (int64_t i = 0; i < k_dim_; ++i)
            for (int64_t c = 0; c < channels_; ++c)
                rate_[static_cast<size_t>(c / kStateColumns * kStateColumns * k_dim_ +
                                          i * kStateColumns + c % kStateColumns)] =
                    rate.values[i * channels_ + c];
        state_ = work.needs.add_state(floats);
    }
    const char* kind() const override { return "selective_scan"; }
    Division units(const Step& step) const override { return units_.all(step); }
    void run(Step& step, Turn& turn) override {
        for (int64_t unit = turn.begin; unit < turn.end; ++unit) scan(step, units_.at(unit));
    }

  private:
    void scan(Step& step, const ChannelUnits::Unit& unit) const;

    Operand x_, step_, k_, q_, output_;
    int64_t k_column_, q_column_;  // where k and q begin in their rows
    int64_t channels_, k_dim_ = 0;
    ChannelUnits units_;
    std::vector<float> skip_;  // [channels]
    std::vector<float> rate_;  // as the state
    int64_t state_;  // where in a State its floats begin
};

void SelectiveScanOp::scan(Step& step, const ChannelUnits::Unit& unit) const {
    const size_t s = unit.sequence;
    const int64_t from = unit.from;
    ScanArgs a{};
    a.channels = unit.channels;
    a.k_dim = k_dim_;
    a.rate = rate_.data() + from * k_dim_;
    a.skip = skip_.data() + from;
    const int64_t floats = state_blocks(a.channels) * kStateColumns * k_dim_;
    const auto run = [&](int64_t first, int64_t tokens, float* state, bool fresh) {
        const auto row = [&](const Operand& of, int64_t column, int64_t& ld) {
            const auto& buffer = work.buffer(of);
            ld = buffer.ld;
            return buffer.row(work.rows.first_of[s] + first) + column;
        };
        a.x = row(x_, from, a.ldx);
        a.step = row(step_, from, a.lds);
        a.k = row(k_, k_column_, a.ldk);
        a.q = row(q_, q_column_, a.ldq);
        a.out = row(output_, from, a.ldo);
        a.tokens = tokens;
        a.state = state;
        a.fresh = fresh;
        if (!step.kernels.selective_scan(a)) report(step);
    };
    over_new_tokens(step.batch.sequences[s], state_ + from * k_dim_, floats, run);
}

const OpKind selective_scan("selective_scan",
                            [](const OpFields& f, Program& p) { p.add<SelectiveScanOp>(f); });

}  // namespace

}  // namespace sterna
