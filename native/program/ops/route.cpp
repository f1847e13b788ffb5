// Which experts each token goes to, in what shares, and the rows that the experts have.
#include <algorithm>
#include <cmath>

#include "program/program.h"
#include "scalar_math.h"

namespace sterna {

namespace {

constexpr int kMaxExperts = 4096;

constexpr int64_t whole_blocks(int64_t rows) {
    return (rows + kExpertBlock - 1) / kExpertBlock * kExpertBlock;
}

class RouteOp final : public Op {
  public:
    RouteOp(const OpFields& f, Workspace& work)
        : Op(f, work),
          logits_(f.value("x")),
          shares_(f.value("output")),
          experts_(static_cast<int>(f.whole("experts"))),
          chosen_(static_cast<int>(f.whole("chosen"))),
          of_all_(f.flag("of_all")),
          factors_(f.floats("factors", experts_, "must have a value for each expert")) {
        f.require(experts_ >= 1 && experts_ <= kMaxExperts, "experts", "must lie in 1..4096");
        f.require(chosen_ >= 1 && chosen_ <= experts_, "chosen", "must lie in 1..experts");
        f.require(experts_ <= logits_.ld(), "x", "is too narrow");
        f.require(chosen_ <= shares_.ld() && logits_.buffer != shares_.buffer, "output",
                  "is too narrow, or lies where x does");
    }
    const char* kind() const override { return "route"; }
    void reserve(int64_t tokens) override { work.routing.reserve(tokens, experts_, chosen_); }
    // Tokens choose their experts; the thread that chooses for the last one gives experts their rows.
    void run(Step& step, Turn& turn) override {
        bool finite = true;
        for (int64_t n = turn.begin; n < turn.end; ++n) finite = choose(n) && finite;
        if (!finite) report(step);
        const int64_t tokens = rows(step);
        if ((work.routing.routed += turn.end - turn.begin) < tokens) return;
        group_by_expert(tokens);
        work.routing.routed = 0;
    }

  private:
    bool choose(int64_t n);
    void group_by_expert(int64_t tokens);

    Operand logits_, shares_;
    int experts_, chosen_;
    bool of_all_;  // shares sum up to 1 over all experts, not over the chosen ones
    std::vector<float> factors_;  // of each expert's share, or empty
};

// The experts of the largest logits, of equal ones the first, and the softmax of their logits, summed in ascending order
// over these or all. False: a logit is not finite; then any experts are chosen.
bool RouteOp::choose(int64_t n) {
    const float* logits = work.buffer(logits_).row(n);
    float* shares = work.buffer(shares_).row(n);
    int32_t* best = work.routing.expert.data() + n * chosen_;
    bool finite = true;
    int count = 0;
    for (int32_t e = 0; e < experts_; ++e) {
        const float logit = logits[e];
        finite = finite && std::isfinite(logit);
        if (count == chosen_ && !(logit > logits[best[count - 1]])) continue;
        int at = count < chosen_ ? count++ : count - 1;
        for (; at > 0 && logit > logits[best[at - 1]]; --at) best[at] = best[at - 1];
        best[at] = e;
    }
    const double most = logits[best[0]];
    const auto power = [&](int32_t e) { return math::exp_d(logits[e] - most); };
    std::sort(best, best + chosen_);
    double sum = 0;
    if (of_all_) {
        for (int32_t e = 0; e < experts_; ++e) sum += power(e);
    } else {
        for (int i = 0; i < chosen_; ++i) sum += power(best[i]);
    }
    for (int i = 0; i < chosen_; ++i) {
        shares[i] = static_cast<float>(power(best[i]) / sum);
        if (!factors_.empty()) shares[i] *= factors_[static_cast<size_t>(best[i])];
    }
    return finite;
}

void RouteOp::group_by_expert(int64_t tokens) {
    const int64_t rows = tokens * chosen_;
    Routing& r = work.routing;
    std::fill_n(r.count.begin(), experts_, 0);
    for (int64_t i = 0; i < rows; ++i)
        ++r.count[static_cast<size_t>(r.expert[static_cast<size_t>(i)])];
    r.active.clear();
    r.most = 0;
    int64_t next = 0;
    for (int32_t e = 0; e < experts_; ++e) {
        const auto i = static_cast<size_t>(e);
        r.first[i] = static_cast<int32_t>(next);
        if (r.count[i] == 0) continue;
        r.active.push_back(e);
        next += whole_blocks(r.count[i]);
        r.most = std::max(r.most, r.count[i]);
    }
    for (int64_t i = 0; i < rows; ++i) {
        const auto e = static_cast<size_t>(r.expert[static_cast<size_t>(i)]);
        r.row[static_cast<size_t>(i)] = r.first[e]++;
    }
    for (const int32_t e : r.active)
        r.first[static_cast<size_t>(e)] -= r.count[static_cast<size_t>(e)];
}

const OpKind route("route", [](const OpFields& f, Program& p) { p.add<RouteOp>(f); });

}  // namespace

}  // namespace sterna
