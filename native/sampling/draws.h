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
    const SampleParams* params;
    std::span<const int32_t> history;
    int64_t answer_begin;  // in history
    TokenMask allowed{};
    float* logits = nullptr;
};

class Draws {
  public:
    // Before a step: what changes the logits of each draw, from its history. It takes no memory once as
    // much was needed before.
    void begin(std::span<const Draw> draws, int vocab);
    // Which logits of `vocab` decide the i-th of these draws.
    DecidingLogits deciding(size_t i, const Draw& draw, int64_t vocab) const;
    // Draws each token, draws[i] to results[i], and changes the logits. Takes no memory once as much was
    // needed before, but for log-probabilities.
    void run(std::span<const Draw> draws, int vocab, Pool& pool, std::span<SampleResult> results);

  private:
    std::vector<std::vector<ScoreChange>> changes_;  // of each draw
    std::vector<int32_t> place_;
    std::vector<SampleMemory> memory_;  // one for each thread
};

}  // namespace sterna
