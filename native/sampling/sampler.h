// From logits to a token. Everything that decides is exact arithmetic in a fixed order: own exp and
// log (scalar_math.h), sums in double over ascending ids, ties to the lowest id, random numbers
// from (seed, sequence, position). The same logits give the same token on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace sterna {

struct SampleParams {
    float temperature = 0.0f;  // <= 0: greedy
    int top_k = 0;  // <= 0 or >= vocab: off
    float top_p = 1.0f;  // >= 1: off
    float min_p = 0.0f;  // <= 0: off
    float repetition_penalty = 1.0f;  // 1: off; must be > 0
    uint64_t seed = 0;
    uint64_t sequence = 0;  // index of the sequence within the request
    int n_logprobs = 0;  // 0: none, which saves a pass of `vocab` exponentials
};

// A logit under a repetition penalty > 0: never decreases with the logit, and is never +inf.
float penalised(float logit, float penalty);

struct SampleResult {
    int32_t token = -1;
    float logprob = 0.0f;  // log-probability of `token`; NaN where n_logprobs is 0
    std::vector<std::pair<int32_t, float>> top{};  // the n_logprobs likeliest tokens, best first
    bool finite = false;  // false: a NaN or +inf among the logits, or no logit above -inf; no token
};

// What one thread works with while it samples, kept so that the next token takes no memory.
struct SampleMemory {
    struct Candidate {
        int32_t token;
        double weight;
    };
    std::vector<float> penalised{};
    std::vector<uint64_t> keys{};
    std::vector<int32_t> ranked{};
    std::vector<Candidate> candidates{};

    // Room for whatever sample() needs with these parameters; only what is used costs memory.
    void reserve(const SampleParams& params, int vocab);
};

// Order as in Hugging Face's generate: repetition penalty (Keskar et al. 2019: positive logits are
// divided, negative multiplied, once for each distinct token of history), temperature, top-k,
// top-p, min-p, then one draw at `position`. Differences: top-k keeps exactly k where logits tie,
// and equal logits rank by id. -inf marks a token that cannot be drawn.
//
// Log-probabilities are those of the raw logits: no penalty, temperature 1, nothing cut off.
// Ids of history outside [0, vocab) are ignored. NaN parameters count as off.
SampleResult sample(const float* logits, int vocab, const SampleParams& params,
                    std::span<const int32_t> history, uint64_t position, SampleMemory& memory);

// log softmax(logits)[token]; the same bits as SampleResult::logprob. NaN for a token outside
// [0, vocab) or logits that are not finite in the sense above.
float log_softmax_at(const float* logits, int vocab, int32_t token);

}  // namespace sterna
