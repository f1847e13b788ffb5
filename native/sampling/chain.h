// The sampler chain: llama.cpp's samplers, one after the other in any order, on tokens of a score above
// -inf. Each step sees the distribution that the steps before it left:
//   top-n-sigma  (Tang et al. 2024) keeps scores within n standard deviations of the largest,
//   top-k, top-p, min-p  as in sampler.h; equal scores rank by id,
//   typical-p    (Meister et al. 2022) keeps the tokens whose surprise is nearest to the entropy, until
//                their probabilities reach p,
//   XTC          ("exclude top choices") drops, with a probability, all tokens that reach the threshold
//                but the least likely of these,
//   temperature  divides the scores; with a range, it follows the entropy: (T - range) without any, (T +
//                range) for equal probabilities.
// Mirostat (Basu et al. 2021) takes the place of all steps but the temperature, and holds the
// surprise of tokens near tau. Its state mu begins with 2 tau and follows from the answer's tokens
// and their probabilities.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sampling/scores.h"

namespace sterna {

struct ChainToken {
    int32_t token;
    double score;
    double p = 0.0;
    double distance = 0.0;  // typical-p: of its surprise from the entropy
};

// Working memory, kept so that the next token allocates none.
struct ChainMemory {
    std::vector<ChainToken> tokens{};
    std::vector<ChainToken> bucket{};

    void reserve(size_t vocab);
};

// Returns the k of top-k if that is the first step which drops tokens or changes scores: others of
// them decide nothing. Else 0.
int first_top_k(const SampleParams& params);

// Draws at `position` from scores [vocab], one of which must be above -inf, at a temperature above 0.
// mu: the state of mirostat, which is changed.
int32_t draw_by_chain(const float* scores, int vocab, const SampleParams& params, uint64_t position,
                      double& mu, ChainMemory& memory);

}  // namespace sterna
