// The RG-LRU of Griffin. Units of channels, each over all tokens of one sequence.
#include <algorithm>

#include "program/channel_units.h"
#include "program/drafts.h"
#include "program/program.h"

namespace sterna {

namespace {

constexpr int64_t kLruChannels = 16 * kStateColumns;  // of a unit

class RgLruOp final : public Op {
  public:
    RgLruOp(const OpFields& f, Workspace& work)
        : Op(f, work),
          x_(f.value("x")),
          gates_(f.value("gates")),
          output_(f.value("output")),
          channels_(output_.width),
          units_{channels_, kLruChannels},
          decay_(f.floats("decay", channels_, "must have a value for each channel")) {
        f.require(!decay_.empty(), "decay", "must be there");
        f.require(channels_ <= x_.width, "x", "is too narrow");
        f.require(2 * channels_ <= gates_.width, "gates", "must have two for each channel");
        for (const Operand* in : {&x_, &gates_})
            f.require(!in->chosen && in->buffer != output_.buffer, "output",
                      "must have a buffer of its own, and rows of tokens");
        state_ = work.needs.add_state(state_blocks(channels_) * kStateColumns);
    }
    const char* kind() const override { return "rg_lru"; }
    Division units(const Step& step) const override { return units_.all(step); }
    void run(Step& step, Turn& turn) override {
        for (int64_t unit = turn.begin; unit < turn.end; ++unit) recur(step, units_.at(unit));
    }

  private:
    void recur(Step& step, const ChannelUnits::Unit& unit) const;

    Operand x_, gates_, output_;
    int64_t channels_;
    ChannelUnits units_;
    std::vector<float> decay_;  // [channels]
    int64_t state_;  // where in a State its floats begin
};

void RgLruOp::recur(Step& step, const ChannelUnits::Unit& unit) const {
    const size_t s = unit.sequence;
    const int64_t from = unit.from;
    LruArgs a{};
    a.channels = unit.channels;
    a.decay = decay_.data() + from;
    const auto run = [&](int64_t first, int64_t tokens, float* state, bool fresh) {
        const int64_t n = work.rows.first_of[s] + first;
        const auto &x = work.buffer(x_), &gates = work.buffer(gates_), &out = work.buffer(output_);
        a.x = x.row(n) + from;
        a.ldx = x.ld;
        a.i = gates.row(n) + from;
        a.r = a.i + channels_;
        a.ldg = gates.ld;
        a.out = out.row(n) + from;
        a.ldo = out.ld;
        a.tokens = tokens;
        a.state = state;
        a.fresh = fresh;
        if (!step.kernels.rg_lru(a)) report(step);
    };
    over_new_tokens(step.batch.sequences[s], state_ + from,
                    state_blocks(a.channels) * kStateColumns, run);
}

const OpKind rg_lru("rg_lru", [](const OpFields& f, Program& p) { p.add<RgLruOp>(f); });

}  // namespace

}  // namespace sterna
