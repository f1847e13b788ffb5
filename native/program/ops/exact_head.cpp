// The exact head: a float head, or the stages of the screen that takes its place in a step (head.h).
#include "program/ops/linear.h"

namespace sterna {

namespace {

// Before the head: what decides of each row of logits. Where one row wants all logits, the float head is read anyway and
// serves every row. Masks that are late are waited for, by an operation of its own.
class BeginScreenOp final : public Op {
  public:
    using Op::Op;
    const char* kind() const override { return "screen"; }
    void begin(const Step& step) override {
        ExactHead& head = *work.head;
        head.screen.reserve(step.selected);
        head.screened = false;
        head.late = step.batch.masks;
        if (!head.late) begin_screen(step);
    }
    Division units(const Step&) const override { return {work.head->late ? 1 : 0}; }
    void run(Step& step, Turn&) override {
        step.batch.masks->pass();
        begin_screen(step);
    }

  private:
    void begin_screen(const Step& step) {
        ExactHead& head = *work.head;
        head.screened = head.screen.begin(work.rows.deciding, step.kernels, step.readings);
    }
};

// The float head itself, where the step is not screened. Behind a screen it is read where it lies: a few rows of it.
class FloatHeadOp final : public LinearOp {
  public:
    FloatHeadOp(const OpFields& f, Workspace& work) : LinearOp(f, work) {}
    Division units(const Step& step) const override {
        return work.head->screened ? Division{0} : LinearOp::units(step);
    }
    std::vector<TilesRead> tiles_read() const override { return {}; }
    bool is_linear(const Step& step) const override {
        return !work.head->screened && !work.head->late && LinearOp::is_linear(step);
    }
};

class ScreenOp final : public Op {
  public:
    ScreenOp(const OpFields& f, Workspace& work, ScreenStage stage)
        : Op(f, work), x_(f.value("x")), logits_(f.value("output")), stage_(stage) {}
    const char* kind() const override { return "screen"; }
    int64_t scratch_bytes(const Step& step) const override {
        const Screen& screen = work.head->screen;
        return step.selected > 0 ? screen.scratch_bytes(step.kernels, step.selected) : 0;
    }
    Division units(const Step& step) const override {
        const ExactHead& head = *work.head;
        if (!head.screened || !rows(step)) return {0};
        return head.screen.units(stage_, step.threads, step.team);
    }
    void run(Step& step, Turn& turn) override {
        if (!work.head->screen.step(stage_, turn.begin, turn.end, work.buffer(x_),
                                    work.buffer(logits_), work.scratch(turn.worker),
                                    step.node_of(turn.worker)))
            report(step);
    }

  private:
    Operand x_, logits_;
    ScreenStage stage_;
};

const OpKind exact_head("exact_head", [](const OpFields& f, Program& p) {
    Workspace& work = p.work();
    const Weight& fine = work.weights[f.required("weight")];
    const Weight& shadow = work.weights[f.required("screen.rows")];
    const BorrowedMatrix bounds = f.matrix("screen.bounds");
    f.require(fine.M == work.needs.vocab, "weight", "must have a row for each token");
    f.require(f.flag("selected"), "selected", "must be true");
    ShadowBounds checked;
    try {
        checked = shadow_bounds(fine, shadow, bounds.values, bounds.rows, bounds.columns);
    } catch (const std::invalid_argument& e) {
        f.require(false, "screen", e.what());
    }
    // Codes, and for each row a scale and three bounds.
    const int64_t shadow_bytes = shadow.tiles * shadow.tile_bytes + (fine.M + 15) / 16 * 16 * 16;
    work.head.reset(new ExactHead{Screen(fine, shadow, checked), fine.M,
                                  fine.tiles * fine.tile_bytes, shadow_bytes});
    p.add<BeginScreenOp>(f);
    p.add<FloatHeadOp>(f);
    for (int stage = 0; stage < kScreenStages; ++stage)
        p.add(std::make_unique<ScreenOp>(f, work, static_cast<ScreenStage>(stage)));
});

}  // namespace

}  // namespace sterna
