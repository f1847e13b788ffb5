// Draws the tokens of a step: each row of logits has its own parameters, history and random
// numbers. Threads share the rows; which thread draws which changes no bit.
#pragma once
#include <limits>
#include <span>
#include <vector>

#include "runtime/pool.h"
#include "sampling/sampler.h"

namespace sterna {

// A token to draw: the one after `history`, at the position history.size().
struct Draw {
    const SampleParams* params;
    std::span<const int32_t> history;
    int64_t answer_begin;  // in history
    TokenMask allowed{};
    float* logits = nullptr;
    // Mirostat's state before the token; NaN where the answer begins. run() sets that of a draw which
    // follows another.
    double mu = std::numeric_limits<double>::quiet_NaN();
};

class Draws {
  public:
    // Collects the changes of each draw's logits from its history, before a step. Allocates only
    // if more memory is needed than ever before.
    void begin(std::span<const Draw> draws, int vocab);
    // Which logits decide the i-th draw.
    DecidingLogits deciding(size_t i, const Draw& draw, int64_t vocab) const;
    // Draws draws[i] to results[i]; changes the logits. Allocates only for log-probabilities, or if
    // more memory is needed than ever before.
    void run(std::span<Draw> draws, int vocab, const UnitKernels& unit, Pool& pool,
             std::span<SampleResult> results);

  private:
    std::vector<std::vector<ScoreChange>> changes_;  // of each draw
    ScoreMemory scores_;
    std::vector<SampleMemory> memory_;  // one for each thread
};

}  // namespace sterna
