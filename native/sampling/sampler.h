// From logits to a token. Everything that decides is exact arithmetic in a fixed order: own exp and
// log (scalar_math.h), sums in double over ascending ids, ties to the lowest id, random numbers
// from (seed, sequence, position). The same logits give the same token on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sampling/scores.h"

namespace sterna {

struct SampleResult {
    int32_t token = -1;
    float logprob = 0.0f;  // log-probability of `token`; NaN where n_logprobs is 0
    std::vector<std::pair<int32_t, float>> top{};  // the n_logprobs likeliest tokens, best first
    // false: a NaN or +inf among the logits of tokens that are allowed, or none of these above -inf; no token
    bool finite = false;
};

// What one thread works with while it samples, kept so that the next token takes no memory.
struct SampleMemory {
    struct Candidate {
        int32_t token;
        double weight;
    };
    std::vector<float> raw{};
    std::vector<uint64_t> keys{};
    std::vector<int32_t> ranked{};
    std::vector<Candidate> candidates{};

    // Room for whatever sample() needs with these parameters and so many changes; only what is used costs
    // memory.
    void reserve(const SampleParams& params, size_t changes, int vocab);
};

// What one token is drawn from.
struct Scores {
    float* logits;  // [vocab], raw; sample() changes them in place
    int vocab;
    TokenMask allowed;
    std::span<const ScoreChange> changes;
};

// Order as in Hugging Face's generate: changes of logits (scores.h), temperature, top-k,
// top-p, min-p, then one draw at `position`. Differences: top-k keeps exactly k where scores tie,
// and equal scores rank by id. -inf marks a token that cannot be drawn.
//
// Log-probabilities are those of the raw logits: of all tokens, without changes, temperature 1, nothing cut
// off. NaN parameters count as off.
SampleResult sample(const Scores& scores, const SampleParams& params, uint64_t position,
                    SampleMemory& memory);

// log softmax(logits)[token]; the same bits as SampleResult::logprob. NaN for a token outside
// [0, vocab) or logits that are not finite.
float log_softmax_at(const float* logits, int vocab, int32_t token);

}  // namespace sterna
