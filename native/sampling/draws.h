// The tokens of one step: each row of logits with its own parameters, history and random numbers,
// the rows divided among the threads. Which thread draws which changes no bit.
#pragma once
#include <span>
#include <vector>

#include "runtime/pool.h"
#include "sampling/sampler.h"

namespace sterna {

// A token to draw: the one after `history`, whose length is its position.
struct Draw {
    SampleParams params;
    std::span<const int32_t> history;
    const float* logits;
};

class Draws {
  public:
    // Draws each token, draws[i] to results[i]. Takes no memory once as much was needed before, but for
    // log-probabilities.
    void run(std::span<const Draw> draws, int vocab, Pool& pool, std::span<SampleResult> results);

  private:
    std::vector<SampleMemory> memory_;  // one for each thread
};

}  // namespace sterna
