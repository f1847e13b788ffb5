#include "sampling/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sampling/chain.h"
#include "sampling/repeats.h"
#include "scalar_math.h"

namespace sterna {
namespace {

constexpr float kMaxScore = std::numeric_limits<float>::max();

// The factor of the repetition penalty; 1 if it is off.
float repetition(const SampleParams& params) {
    const float penalty = params.repetition_penalty;
    return penalty > 0.0f && penalty <= kMaxScore ? penalty : 1.0f;
}

float finite_or_0(float penalty) { return std::isfinite(penalty) ? penalty : 0.0f; }

bool repeats(const SampleParams& params) { return repetition(params) != 1.0f; }

bool counts(const SampleParams& params) {
    return finite_or_0(params.frequency_penalty) != 0.0f ||
           finite_or_0(params.presence_penalty) != 0.0f;
}

// The positions of a history from which on tokens are penalised.
struct Penalised {
    int64_t first;  // by any penalty
    int64_t counted;  // by frequency and presence penalty
};

Penalised penalised(const SampleParams& params, int64_t size, int64_t answer_begin) {
    if (!repeats(params) && !counts(params)) return {size, size};
    if (const auto last = params.repeat_last_n) {
        const int64_t begin = *last < 0 ? 0 : std::max<int64_t>(size - *last, 0);
        return {begin, begin};
    }
    return {repeats(params) ? 0 : answer_begin, answer_begin};
}

}  // namespace

float changed(float logit, const ScoreChange& change, const SampleParams& params) {
    float score = logit + change.bias;
    if (const float factor = repetition(params); change.seen && factor != 1.0f)
        score = score > 0.0f ? score / factor : score * factor;
    if (change.count > 0) {
        score -= finite_or_0(params.frequency_penalty) * static_cast<float>(change.count);
        score -= finite_or_0(params.presence_penalty);
    }
    score -= change.dry;
    return score > kMaxScore ? kMaxScore : score;
}

void collect_changes(const SampleParams& params, std::span<const int32_t> history,
                     int64_t answer_begin, int vocab, ScoreMemory& memory,
                     std::vector<ScoreChange>& changes) {
    changes.clear();
    auto& place = memory.place;
    const auto size = static_cast<int64_t>(history.size());
    const auto [first, counted] = penalised(params, size, answer_begin);
    if (first >= size && params.bias.empty() && !params.dry.on()) return;
    if (place.size() < static_cast<size_t>(vocab)) place.resize(static_cast<size_t>(vocab), -1);
    const auto change_of = [&](int32_t token) -> ScoreChange& {
        int32_t& at = place[static_cast<size_t>(token)];
        if (at < 0) {
            at = static_cast<int32_t>(changes.size());
            changes.push_back({token, 0.0f, 0, false});
        }
        return changes[static_cast<size_t>(at)];
    };
    const auto valid = [&](int32_t token) { return token >= 0 && token < vocab; };
    for (const auto& [token, bias] : params.bias)
        if (valid(token)) change_of(token).bias = bias;
    for (int64_t i = first; i < size; ++i) {
        const int32_t token = history[static_cast<size_t>(i)];
        if (!valid(token)) continue;
        ScoreChange& change = change_of(token);
        change.seen = true;
        change.count += i >= counted;
    }
    each_repeat(params.dry, history, memory.matches, [&](int32_t token, int32_t length) {
        if (!valid(token)) return;
        float& penalty = change_of(token).dry;
        penalty = std::max(penalty, dry_penalty(params.dry, length));
    });
    for (const ScoreChange& change : changes) place[static_cast<size_t>(change.token)] = -1;
}

bool grows(const SampleParams& params) {
    // A window drops a token for each that it takes.
    return !params.dry.on() && !(params.repeat_last_n && *params.repeat_last_n >= 0);
}

void add_last_change(const SampleParams& params, std::span<const int32_t> history,
                     int64_t answer_begin, int vocab, std::vector<ScoreChange>& changes) {
    const int64_t last = static_cast<int64_t>(history.size()) - 1;
    const int32_t token = history.back();
    const auto [first, counted] = penalised(params, last + 1, answer_begin);
    if (last < first || token < 0 || token >= vocab) return;
    auto change = std::ranges::find(changes, token, &ScoreChange::token);
    if (change == changes.end()) change = changes.insert(change, {token, 0.0f, 0, false});
    change->seen = true;
    change->count += last >= counted;
}

DecidingLogits deciding_logits(const SampleParams& params) {
    DecidingLogits deciding;
    deciding.raw = params.n_logprobs > 0;
    const bool chained = params.temperature > 0.0f && params.chain.on();
    deciding.count = chained                     ? first_top_k(params)
                     : params.temperature > 0.0f ? std::max(params.top_k, 0)
                                                 : 1;
    if (!chained && deciding.count == 0 && !(params.top_p < 1.0f) && params.min_p > 0.0f) {
        // Min-p alone drops tokens of less than min_p times the weight of the likeliest, that is,
        // -temperature ln(min_p) below its score. Scores are floats, so the gap is a little wider.
        const double least = std::min(1.0, static_cast<double>(params.min_p));
        deciding.count = 1;
        deciding.gap = params.temperature * (1e-5 - math::log_d(least)) * (1 + 1e-5) + 1e-3;
    }
    if (deciding.count > kMostDeciding || !(deciding.gap <= kWidestGap))
        deciding.count = 0, deciding.gap = 0;
    return deciding;
}

}  // namespace sterna
