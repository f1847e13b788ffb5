// Repeats that the next token would continue, and their DRY penalty ("don't repeat yourself", the
// sampler of that name in text-generation-webui and llama.cpp).
//
// The text's end is a repeat of length n where the same n tokens came before; the token that followed
// them then would continue the repeat. From `allowed_length` on, such a token's penalty is
// multiplier * base^(n - allowed_length) with its longest repeat. Repeats do not reach back across a
// sequence breaker.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sampling/scores.h"
#include "scalar_math.h"

namespace sterna {

// Penalties stay below this, so that a score with one is finite.
constexpr double kMostDry = 1e30;

inline float dry_penalty(const DryParams& dry, int32_t length) {
    const double power = math::pow_d(dry.base, static_cast<double>(length - dry.allowed_length));
    return static_cast<float>(std::min(dry.multiplier * power, kMostDry));
}

// Returns how many tokens follow the last sequence breaker of the text.
int32_t after_last_breaker(const DryParams& dry, std::span<const int32_t> text);

// Leaves in matches[i], for i >= 1, how many tokens before the text's i-th token from its end equal the
// last ones of the text, that token included: matches[0] is the text's length.
void match_ends(std::span<const int32_t> text, std::vector<int32_t>& matches);

// Calls at(token, length) for each token that would continue a repeat of at least allowed_length tokens;
// a token may come several times.
template <class At>
void each_repeat(const DryParams& dry, std::span<const int32_t> history,
                 std::vector<int32_t>& matches, At at) {
    if (!dry.on()) return;
    if (dry.penalty_last_n > 0 && history.size() > static_cast<size_t>(dry.penalty_last_n))
        history = history.last(static_cast<size_t>(dry.penalty_last_n));
    const int32_t most = after_last_breaker(dry, history);
    if (most < dry.allowed_length) return;
    match_ends(history, matches);
    for (size_t i = 1; i < history.size(); ++i)
        if (const int32_t length = std::min(matches[i], most); length >= dry.allowed_length)
            at(history[history.size() - i], length);
}

}  // namespace sterna
