// A guess of the experts that the next router will choose, whose weights the cache then reads ahead. It changes no value.
#include <algorithm>
#include <atomic>

#include "program/ops/expert_choice.h"
#include "program/program.h"

namespace sterna {

namespace {

class GuessOp final : public Op {
  public:
    GuessOp(const OpFields& f, Workspace& work)
        : Op(f, work),
          logits_(f.value("x")),
          experts_(static_cast<int>(f.whole("experts"))),
          chosen_(static_cast<int>(f.whole("chosen"))),
          choice_(f, experts_, chosen_) {
        f.require(experts_ <= logits_.ld(), "x", "is too narrow");
    }
    const char* kind() const override { return "guess"; }
    Division units(const Step& step) const override {
        return {matrices_.empty() ? 0 : rows(step), step.threads};
    }
    int64_t scratch_bytes(const Step&) const override {
        return choice_.work_bytes() + 4 * int64_t{chosen_};
    }
    void reserve(int64_t tokens) override {
        of_tokens_.resize(static_cast<size_t>(tokens * chosen_));
        experts_guessed_.reserve(of_tokens_.size());
    }
    // The thread that guesses for the last token tells the cache.
    void run(Step& step, Turn& turn) override {
        auto* const keys = reinterpret_cast<double*>(work.scratch(turn.worker));
        auto* const shares =
            reinterpret_cast<float*>(work.scratch(turn.worker) + choice_.work_bytes());
        for (int64_t n = turn.begin; n < turn.end; ++n)
            choice_.choose(work.buffer(logits_).row(n), of_tokens_.data() + n * chosen_, shares,
                           keys);
        const int64_t tokens = rows(step);
        if ((done_ += turn.end - turn.begin) < tokens) return;
        done_ = 0;
        experts_guessed_.assign(of_tokens_.begin(), of_tokens_.begin() + tokens * chosen_);
        std::ranges::sort(experts_guessed_);
        const auto repeated = std::ranges::unique(experts_guessed_);
        experts_guessed_.erase(repeated.begin(), repeated.end());
        work.weight_cache->guess(matrices_, experts_guessed_);
    }

    bool guesses_experts() const override { return true; }
    void choose_for(const std::vector<int>& matrices) override { matrices_ = matrices; }

  private:
    Operand logits_;
    int experts_, chosen_;
    ExpertChoice choice_;
    std::vector<int> matrices_;  // of the cache, that the next router chooses experts of
    std::vector<int32_t> of_tokens_, experts_guessed_;
    std::atomic<int64_t> done_{0};  // tokens
};

const OpKind guess("guess", [](const OpFields& f, Program& p) { p.add<GuessOp>(f); });

}  // namespace

}  // namespace sterna
