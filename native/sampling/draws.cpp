#include "sampling/draws.h"

#include <cstddef>

namespace sterna {

void Draws::run(std::span<const Draw> draws, int vocab, Pool& pool,
                std::span<SampleResult> results) {
    const auto at = [&](size_t i, SampleMemory& memory) {
        const Draw& d = draws[i];
        results[i] = sample(d.logits, vocab, d.params, d.history, d.history.size(), memory);
    };
    const bool alone = draws.size() < 2 || pool.size() == 1;
    const size_t threads = alone ? 1 : static_cast<size_t>(pool.size());
    if (memory_.size() < threads) memory_.resize(threads);
    // Every thread gets memory for every draw, since the next step may divide them otherwise.
    for (size_t t = 0; t < threads; ++t)
        for (const Draw& d : draws) memory_[t].reserve(d.params, vocab);
    if (alone) {
        for (size_t i = 0; i < draws.size(); ++i) at(i, memory_[0]);
        return;
    }
    ChunkCounter counter;
    pool.run([&](int worker) {
        for (int64_t i; (i = counter.next()) < std::ssize(draws);)
            at(static_cast<size_t>(i), memory_[static_cast<size_t>(worker)]);
    });
}

}  // namespace sterna
