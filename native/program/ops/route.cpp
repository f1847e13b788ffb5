// Which experts each token goes to, in what shares, and the rows that the experts have.
#include <algorithm>
#include <cmath>

#include "program/ops/expert_choice.h"
#include "program/program.h"

namespace sterna {

namespace {

class RouteOp final : public Op {
  public:
    RouteOp(const OpFields& f, Workspace& work)
        : Op(f, work),
          logits_(f.value("x")),
          shares_(f.value("output")),
          experts_(static_cast<int>(f.whole("experts"))),
          chosen_(static_cast<int>(f.whole("chosen"))),
          choice_(f, experts_, chosen_) {
        f.require(experts_ <= logits_.ld(), "x", "is too narrow");
        f.require(chosen_ <= shares_.ld() && logits_.buffer != shares_.buffer, "output",
                  "is too narrow, or lies where x does");
    }
    const char* kind() const override { return "route"; }
    int64_t scratch_bytes(const Step&) const override { return choice_.work_bytes(); }
    void reserve(int64_t tokens) override { work.routing.reserve(tokens, experts_, chosen_); }
    // Tokens choose their experts; the thread that chooses for the last one gives experts their rows.
    void run(Step& step, Turn& turn) override {
        for (int64_t n = turn.begin; n < turn.end; ++n) {
            const float* logits = work.buffer(logits_).row(n);
            choice_.choose(logits, work.routing.expert.data() + n * chosen_,
                           work.buffer(shares_).row(n),
                           reinterpret_cast<double*>(work.scratch(turn.worker)));
            if (!std::all_of(logits, logits + experts_, [](float x) { return std::isfinite(x); }))
                report(step);
        }
        const int64_t tokens = rows(step);
        if ((work.routing.routed += turn.end - turn.begin) < tokens) return;
        group_by_expert(tokens);
        if (!matrices_.empty()) work.weight_cache->route(matrices_, work.routing.active);
        work.routing.routed = 0;
    }

    bool chooses_experts() const override { return true; }
    void choose_for(const std::vector<int>& matrices) override { matrices_ = matrices; }

  private:
    void group_by_expert(int64_t tokens);

    Operand logits_, shares_;
    int experts_, chosen_;
    ExpertChoice choice_;
    std::vector<int> matrices_;  // of the cache of experts, that read what is chosen
};

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
