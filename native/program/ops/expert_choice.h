// How the logits of a token choose its experts and become their shares.
#pragma once
#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "program/fields.h"
#include "program/routing.h"
#include "scalar_math.h"

namespace sterna {

// Lists the `most` largest of the keys of 0..count-1, of equal ones the first, in descending order. A NaN is larger than
// nothing.
template <class Key>
void list_largest(int count, int most, Key key, int32_t* best) {
    int found = 0;
    for (int32_t i = 0; i < count; ++i) {
        const auto value = key(i);
        if (found == most && !(value > key(best[found - 1]))) continue;
        int at = found < most ? found++ : found - 1;
        for (; at > 0 && value > key(best[at - 1]); --at) best[at] = best[at - 1];
        best[at] = i;
    }
}

class ExpertChoice {
  public:
    ExpertChoice(const OpFields& f, int experts, int chosen)
        : experts_(experts),
          chosen_(chosen),
          of_all_(f.flag("of_all")),
          factors_(f.floats("factors", experts, "must have a value for each expert")),
          function_(function_of(f)),
          bias_(f.floats("scoring.bias", experts, "must have a value for each expert")),
          groups_(static_cast<int>(f.whole("scoring.groups"))),
          chosen_groups_(static_cast<int>(f.whole("scoring.chosen_groups"))),
          best_(static_cast<int>(f.whole("scoring.best"))),
          scale_(f.maybe_number("scoring.scale").value_or(0)),
          added_(f.maybe_number("scoring.added").value_or(0)),
          least_(f.maybe_number("scoring.least").value_or(0)),
          within_(f.maybe_number("scoring.within").value_or(0)) {
        f.require(experts >= 1 && experts <= kMaxExperts, "experts", "must lie in 1..4096");
        f.require(chosen >= 1 && chosen <= experts, "chosen", "must lie in 1..experts");
        f.require(groups_ >= 1 && experts % groups_ == 0, "scoring.groups",
                  "must be a divisor of experts");
        const int each = experts / groups_;
        f.require(
            chosen_groups_ >= 1 && chosen_groups_ <= groups_ && chosen <= chosen_groups_ * each,
            "scoring.chosen_groups", "must be groups with as many experts as are chosen");
        f.require((best_ == 1 || best_ == 2) && best_ <= each, "scoring.best",
                  "must be 1 or 2 experts of a group");
        f.require(std::isfinite(scale_) && scale_ != 0, "scoring.scale",
                  "must be finite and not 0");
        for (const char* field : {"scoring.added", "scoring.least", "scoring.within"}) {
            const double value = f.maybe_number(field).value_or(0);
            f.require(std::isfinite(value) && value >= 0, field, "must be finite and not negative");
        }
        f.require(function_ != Function::kSparseMixer || (bias_.empty() && groups_ == 1),
                  "scoring.function", "must not be sparsemixer with a bias or groups");
    }

    // The experts of one token in ascending order, and the share of each. Of logits that are not finite any experts.
    // work: `work_bytes`.
    void choose(const float* logits, int32_t* best, float* shares, double* work) const {
        const double most = *std::max_element(logits, logits + experts_);
        const double total = needs_total() ? sum_of_all(logits, most) : 1;
        if (by_logits()) {
            list_best([&](int32_t e) { return logits[e]; }, best, work);
        } else {
            double* const keys = work;
            for (int32_t e = 0; e < experts_; ++e) {
                keys[e] = score(logits[e], most) / total;
                if (!bias_.empty()) keys[e] += bias_[static_cast<size_t>(e)];
            }
            list_best([&](int32_t e) { return keys[e]; }, best, work + experts_);
        }
        std::sort(best, best + chosen_);
        double sum = 0;
        for (int i = 0; i < chosen_; ++i) sum += score(logits[best[i]], most);
        const double divisor = of_all_ ? total : std::max(sum + added_ * total, least_ * total);
        for (int i = 0; i < chosen_; ++i) {
            const double share = function_ == Function::kSparseMixer
                                     ? mixed(logits, best[i])
                                     : score(logits[best[i]], most) / divisor;
            shares[i] = static_cast<float>(share * scale_);
            if (!factors_.empty()) shares[i] *= factors_[static_cast<size_t>(best[i])];
        }
    }
    int64_t work_bytes() const { return 8 * (experts_ + 2 * groups_); }

  private:
    enum class Function { kSoftmax, kSigmoid, kSparseMixer };

    static Function function_of(const OpFields& f) {
        static const char* const kNames[] = {"softmax", "sigmoid", "sparsemixer"};  // by Function
        const auto* known =
            std::find(std::begin(kNames), std::end(kNames), f.text("scoring.function"));
        f.require(known != std::end(kNames), "scoring.function",
                  "must be softmax, sigmoid or sparsemixer");
        return static_cast<Function>(known - std::begin(kNames));
    }
    // Scores ascend as logits do, so logits choose where nothing is added to scores.
    bool by_logits() const { return bias_.empty() && (groups_ == 1 || best_ == 1); }
    bool needs_total() const {
        return function_ == Function::kSoftmax &&
               (of_all_ || !by_logits() || added_ > 0 || least_ > 0);
    }
    // A sigmoid; or of a softmax e^(logit - most), to be divided by the sum of all.
    double score(float logit, double most) const {
        return function_ == Function::kSigmoid ? 1 / (1 + math::exp_d(-static_cast<double>(logit)))
                                               : math::exp_d(logit - most);
    }
    double sum_of_all(const float* logits, double most) const {
        double sum = 0;
        for (int32_t e = 0; e < experts_; ++e) sum += score(logits[e], most);
        return sum;
    }
    // The experts with the largest keys of the groups whose `best_` largest keys have the largest sums.
    template <class Key>
    void list_best(Key key, int32_t* best, double* work) const {
        if (groups_ == 1) return list_largest(experts_, chosen_, key, best);
        const int32_t each = experts_ / groups_;
        double* const sums = work;
        int32_t* const kept = reinterpret_cast<int32_t*>(work + groups_);
        for (int32_t g = 0; g < groups_; ++g) {
            const auto of_group = [&](int32_t i) { return key(g * each + i); };
            int32_t top[2];
            list_largest(each, best_, of_group, top);
            sums[g] = of_group(top[0]);
            if (best_ == 2) sums[g] += of_group(top[1]);
        }
        list_largest(groups_, chosen_groups_, [&](int32_t g) { return sums[g]; }, kept);
        std::sort(kept, kept + chosen_groups_);
        const auto expert = [&](int32_t i) { return kept[i / each] * each + i % each; };
        list_largest(
            chosen_groups_ * each, chosen_, [&](int32_t i) { return key(expert(i)); }, best);
        for (int i = 0; i < chosen_; ++i) best[i] = expert(best[i]);
    }
    // SparseMixer's share of an expert: its part of a softmax over the experts that do not come before it, and whose logits
    // are near its own.
    double mixed(const float* logits, int32_t chosen) const {
        const double most = logits[chosen];
        double sum = 0;
        for (int32_t e = 0; e < experts_; ++e) {
            const double logit = logits[e];
            if (logit > most || (logit == most && e < chosen)) continue;
            if ((most - logit) / std::max(std::abs(logit), most) > within_) continue;
            sum += math::exp_d(logit - most);
        }
        return 1 / sum;
    }

    int experts_, chosen_;
    bool of_all_;  // shares are the scores, else the scores divided by the sum of the chosen ones
    std::vector<float> factors_;  // of each expert's share, or empty
    Function function_;
    std::vector<float> bias_;  // of scores where they choose, or empty
    int groups_, chosen_groups_, best_;
    double scale_, added_, least_, within_;
};

}  // namespace sterna
