// The gated delta rule: the gates of a token, then blocks of columns of a head's state, each over all tokens of one
// sequence.
#include <algorithm>

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
          rate_(f.floats("rate", heads_.v_heads, "must have v_heads values")),
          bias_(f.floats("bias", heads_.v_heads, "must have v_heads values")) {
        f.require(!rate_.empty() && !bias_.empty(), "rate", "must be there, as must bias");
    }
    const char* kind() const override { return "gates"; }

  protected:
    void row(Step& step, int64_t n, int) override {
        float* x = work.buffer(x_).row(n);
        const GatesArgs a{x,
                          x + heads_.k_width(),
                          x + a_,
                          x + b_,
                          rate_.data(),
                          bias_.data(),
                          heads_.k_heads,
                          heads_.v_heads,
                          heads_.k_dim};
        if (!step.kernels.gates(a)) report(step);
    }

  private:
    Operand x_;
    RecurrentHeads heads_;
    int64_t a_, b_;  // the columns of both gates
    std::vector<float> rate_, bias_;  // [v_heads]
};

class RecurrenceOp final : public Op {
  public:
    RecurrenceOp(const OpFields& f, Workspace& work)
        : Op(f, work),
          x_(f.value("x")),
          output_(f.value("output")),
          heads_(RecurrentHeads::of(f)),
          a_(f.whole("a")),
          b_(f.whole("b")) {
        const int64_t channels = heads_.channels(), last = x_.ld() - heads_.v_heads;
        f.require(channels <= a_ && channels <= b_ && a_ <= last && b_ <= last, "x",
                  "is too narrow for q, k, v and both gates");
        f.require(a_ + heads_.v_heads <= b_ || b_ + heads_.v_heads <= a_, "a",
                  "must not lie where b does");
        f.require(heads_.v_width() <= output_.ld() && x_.buffer != output_.buffer, "output",
                  "is too narrow, or lies where x does");
        state_ = work.needs.add_state(heads_.v_heads * heads_.head_floats());
    }
    const char* kind() const override { return "recurrence"; }
    Division units(const Step& step) const override {
        // The columns of a head read the same queries and keys.
        const int64_t units = state_blocks(heads_.v_dim);
        return {std::ssize(step.batch.sequences) * heads_.v_heads * units, step.threads, units};
    }
    void run(Step& step, Turn& turn) override;

  private:
    void recur(const Step& step, int64_t begin, int64_t end) const;

    Operand x_, output_;
    RecurrentHeads heads_;
    int64_t a_, b_;
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
void RecurrenceOp::recur(const Step& step, int64_t begin, int64_t end) const {
    const RecurrentHeads& h = heads_;
    const int64_t units = state_blocks(h.v_dim);
    const auto& row = work.buffer(x_);
    const auto& dst = work.buffer(output_);
    const auto s = static_cast<size_t>(begin / units / h.v_heads);
    const auto head = static_cast<int>(begin / units % h.v_heads);
    const auto& span = step.batch.sequences[s];
    const int64_t from = begin % units * kStateColumns;
    const float* x = row.row(work.rows.first_of[s]);
    RecurrenceArgs a{};
    a.q = x + h.k_head(head) * h.k_dim;
    a.k = a.q + h.k_width();
    a.v = x + 2 * h.k_width() + head * h.v_dim + from;
    a.decay = x + a_ + head;
    a.beta = x + b_ + head;
    a.ldx = row.ld;
    a.tokens = span.count - span.drafts;
    a.k_dim = h.k_dim;
    a.columns = std::min((end - begin) * kStateColumns, h.v_dim - from);
    a.state = span.state + state_ + head * h.head_floats() + from * h.k_dim;
    a.fresh = span.start == 0;
    a.out = dst.row(work.rows.first_of[s]) + head * h.v_dim + from;
    a.ldo = dst.ld;
    step.kernels.recurrence(a);
    if (!span.drafts) return;
    float* ahead = span.ahead + (a.state - span.state);
    std::copy_n(a.state, (end - begin) * kStateColumns * h.k_dim, ahead);
    for (const float** at : {&a.k, &a.v, &a.decay, &a.beta}) *at += a.tokens * a.ldx;
    a.q += a.tokens * a.ldx;
    a.out += a.tokens * a.ldo;
    a.tokens = span.drafts;
    a.state = ahead;
    a.fresh = false;
    step.kernels.recurrence(a);
}

const OpKind recurrence("recurrence", [](const OpFields& f, Program& p) {
    p.add<GatesOp>(f);
    p.add<RecurrenceOp>(f);
});

}  // namespace

}  // namespace sterna
