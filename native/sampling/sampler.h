// Draws a token from logits. The same logits give the same token on every machine: all arithmetic
// has a fixed order, with our own exp and log (scalar_math.h), sums in double over ascending ids,
// ties to the lowest id, and random numbers from (seed, sequence, position).
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "sampling/chain.h"
#include "sampling/scores.h"
#include "units/kernel_table.h"

namespace sterna {

struct SampleResult {
    int32_t token = -1;
    float logprob = 0.0f;  // log-probability of `token`; NaN if n_logprobs is 0
    std::vector<std::pair<int32_t, float>> top{};  // the n_logprobs likeliest tokens, best first
    // false: no token, since an allowed token's logit is NaN or +inf, or all of them are -inf
    bool finite = false;
    double mu = std::numeric_limits<double>::quiet_NaN();  // mirostat's state after the token
};

// Memory of one thread for sampling, kept so that the next token allocates none.
struct SampleMemory {
    struct Candidate {
        int32_t token;
        double weight;
    };
    std::vector<float> raw{};
    std::vector<uint64_t> keys{};
    std::vector<int32_t> ranked{};
    std::vector<Candidate> candidates{};
    std::vector<double> sums{};  // of the weights before each block of tokens
    ChainMemory chain{};

    // Reserves the memory of sample() for these parameters and this many changes.
    void reserve(const SampleParams& params, size_t changes, int vocab);
};

// The scores that one token is drawn from.
struct Scores {
    float* logits;  // [vocab], raw; sample() changes them in place
    int vocab;
    TokenMask allowed;
    std::span<const ScoreChange> changes;
    double mu =
        std::numeric_limits<double>::quiet_NaN();  // mirostat's state; NaN: an answer begins
};

// Samples in the order of Hugging Face's generate: changes of logits (scores.h), temperature, top-k,
// top-p, min-p, then one draw at `position`. Unlike there, top-k keeps exactly k tokens if scores
// tie, and equal scores rank by id. A token of score -inf cannot be drawn. With a sampler chain or
// mirostat, chain.h's steps take the place of those after the changes; temperature 0 stays greedy.
//
// Log-probabilities are of the raw logits: all tokens, no changes, temperature 1. NaN parameters
// count as off. The unit changes no bit.
SampleResult sample(const UnitKernels& unit, const Scores& scores, const SampleParams& params,
                    uint64_t position, SampleMemory& memory);

// Returns log softmax(logits)[token], with the bits of SampleResult::logprob. NaN for a token outside
// [0, vocab) or logits that are not finite.
float log_softmax_at(const UnitKernels& unit, const float* logits, int vocab, int32_t token);

}  // namespace sterna
