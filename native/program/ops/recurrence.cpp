// The gated delta rule: the gates of a token, then blocks of columns of a head's state, each over all tokens of one
// sequence. A state space (Mamba-2) is such blocks, too.
#include <algorithm>

#include "program/drafts.h"
#include "program/program.h"
#include "program/recurrent_heads.h"

namespace sterna {

namespace {

class GatesOp final : public RowOp {
  public:
    GatesOp(const OpFields& f, Workspace& work)
        : RowOp(f, work),
          x_(f.value("x")),
          heads_(RecurrentHeads::of(f)),
          a_(f.whole("a")),
          b_(f.whole("b")),
          rate_(f.floats("rate")),
          bias_(f.floats("bias")),
          strength_(f.factor("strength")) {
        f.require(rate_.size() == bias_.size() && heads_.decays(rate_.size()), "rate",
                  "must have v_heads values, or k_dim for each, as must bias");
    }
    const char* kind() const override { return "gates"; }

  protected:
    void row(Step& step, int64_t n, int) override {
        float* x = work.buffer(x_).row(n);
        GatesArgs a{};
        a.q = x;
        a.k = x + heads_.k_width();
        a.a = x + a_;
        a.b = x + b_;
        a.rate = rate_.data();
        a.bias = bias_.data();
        a.k_heads = heads_.k_heads;
        a.v_heads = heads_.v_heads;
        a.k_dim = heads_.k_dim;
        a.decays = std::ssize(rate_);
        a.strength = strength_;
        if (!step.kernels.gates(a)) report(step);
    }

  private:
    Operand x_;
    RecurrentHeads heads_;
    int64_t a_, b_;  // the columns of both gates
    std::vector<float> rate_, bias_;  // of each head, or of each row of its state
    float strength_;  // of beta
};

// The parameters of a state space for each head.
struct Spaces {
    std::vector<float> bias, rate, skip;  // [v_heads]
    float least = 0, most = 0;  // of a step

    Spaces() = default;
    Spaces(const OpFields& f, int64_t heads)
        : bias(f.floats("bias", heads, "must have v_heads values")),
          rate(f.floats("rate", heads, "must have v_heads values")),
          skip(f.floats("skip", heads, "must have v_heads values")),
          least(f.number("least")),
          most(f.number("most")) {
        f.require(!bias.empty() && !rate.empty() && !skip.empty(), "rate",
                  "must be there, as must bias and skip");
        f.require(least >= 0 && least <= most, "least", "must lie in 0..most");
    }
    StateSpace of(int head, const float* step) const {
        return {step, bias[head], rate[head], least, most, skip[head]};
    }
};

// A row [q | k | v] and two gates of each value head; or of a state space [v | k | q] and a step of each.
class RecurrenceOp final : public Op {
  public:
    RecurrenceOp(const OpFields& f, Workspace& work, bool space)
        : Op(f, work),
          space_(space),
          x_(f.value("x")),
          output_(f.value("output")),
          heads_(RecurrentHeads::of(f)),
          a_(f.whole(space ? "step" : "a")),
          b_(space ? a_ : f.whole("b")) {
        const int64_t heads = heads_.v_heads, v = heads_.v_width();
        decays_ = space ? 1 : std::ssize(f.floats("rate")) / heads;
        q_ = space ? f.whole("column") + v + heads_.k_width() : 0;
        k_ = space ? q_ - heads_.k_width() : heads_.k_width();
        v_ = space ? k_ - v : 2 * heads_.k_width();
        const int64_t begin = std::min(q_, v_), end = begin + heads_.channels();
        const int64_t decays = heads * decays_;
        const auto outside = [&](int64_t at, int64_t width) {
            return at >= 0 && at + width <= x_.ld() && (at >= end || at + width <= begin);
        };
        f.require(begin >= 0 && end <= x_.ld() && outside(a_, decays) && outside(b_, heads), "x",
                  "is too narrow for q, k, v and what gates them");
        f.require(space || a_ + decays <= b_ || b_ + heads <= a_, "a", "must not lie where b does");
        f.require(v <= output_.ld() && x_.buffer != output_.buffer, "output",
                  "is too narrow, or lies where x does");
        if (space) spaces_ = Spaces(f, heads);
        state_ = work.needs.add_state(heads_.v_heads * heads_.head_floats());
    }
    const char* kind() const override { return space_ ? "state_space" : "recurrence"; }
    Division units(const Step& step) const override {
        // The columns of a head read the same queries and keys.
        const int64_t units = state_blocks(heads_.v_dim);
        return {std::ssize(step.batch.sequences) * heads_.v_heads * units, step.threads, units};
    }
    void run(Step& step, Turn& turn) override;

  private:
    void recur(Step& step, int64_t begin, int64_t end) const;

    bool space_;
    Operand x_, output_;
    RecurrentHeads heads_;
    int64_t a_, b_;  // the columns of what gates the heads
    int64_t decays_ = 1;  // of a head: one, or k_dim
    int64_t q_, k_, v_;  // and of the first of these
    Spaces spaces_;
    int64_t state_;  // where in a State its floats begin
};

void RecurrenceOp::run(Step& step, Turn& turn) {
    const int64_t units = state_blocks(heads_.v_dim);
    for (int64_t begin = turn.begin, next; begin < turn.end; begin = next) {
        next = std::min(turn.end, (begin / units + 1) * units);
        recur(step, begin, next);
    }
}

// Units [begin, end) of one head of a sequence.
void RecurrenceOp::recur(Step& step, int64_t begin, int64_t end) const {
    const RecurrentHeads& h = heads_;
    const int64_t units = state_blocks(h.v_dim);
    const auto& row = work.buffer(x_);
    const auto& dst = work.buffer(output_);
    const auto s = static_cast<size_t>(begin / units / h.v_heads);
    const auto head = static_cast<int>(begin / units % h.v_heads);
    const int64_t from = begin % units * kStateColumns;
    const auto run = [&](int64_t first, int64_t tokens, float* state, bool fresh) {
        const float* x = row.row(work.rows.first_of[s] + first);
        RecurrenceArgs a{};
        a.q = x + q_ + h.k_head(head) * h.k_dim;
        a.k = x + k_ + h.k_head(head) * h.k_dim;
        a.v = x + v_ + head * h.v_dim + from;
        a.decay = x + a_ + head * decays_;
        a.decays_rows = decays_ > 1;
        a.beta = x + b_ + head;
        if (space_) a.space = spaces_.of(head, x + a_ + head);
        a.ldx = row.ld;
        a.tokens = tokens;
        a.k_dim = h.k_dim;
        a.columns = std::min((end - begin) * kStateColumns, h.v_dim - from);
        a.state = state;
        a.fresh = fresh;
        a.out = dst.row(work.rows.first_of[s] + first) + head * h.v_dim + from;
        a.ldo = dst.ld;
        if (!step.kernels.recurrence(a)) report(step);
    };
    const int64_t at = state_ + head * h.head_floats() + from * h.k_dim;
    over_new_tokens(step.batch.sequences[s], at, (end - begin) * kStateColumns * h.k_dim, run);
}

const OpKind recurrence("recurrence", [](const OpFields& f, Program& p) {
    p.add<GatesOp>(f);
    p.add(std::make_unique<RecurrenceOp>(f, p.work(), false));
});
const OpKind state_space("state_space", [](const OpFields& f, Program& p) {
    p.add(std::make_unique<RecurrenceOp>(f, p.work(), true));
});

}  // namespace

}  // namespace sterna
