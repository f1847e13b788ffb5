#include "sampling/draws.h"

#include <atomic>
#include <cstddef>

#include "runtime/fpenv.h"

namespace sterna {

namespace {

// Whether d is a draw of the same sequence, one token after `before`.
bool follows(const Draw& d, const Draw& before) {
    return d.params == before.params && d.history.data() == before.history.data() &&
           d.answer_begin == before.answer_begin && d.history.size() == before.history.size() + 1;
}

}  // namespace

void Draws::begin(std::span<const Draw> draws, int vocab) {
    if (changes_.size() < draws.size()) changes_.resize(draws.size());
    for (size_t i = 0; i < draws.size(); ++i) {
        const Draw& d = draws[i];
        if (i > 0 && follows(d, draws[i - 1]) && grows(*d.params)) {
            changes_[i] = changes_[i - 1];
            add_last_change(*d.params, d.history, d.answer_begin, vocab, changes_[i]);
        } else {
            collect_changes(*d.params, d.history, d.answer_begin, vocab, scores_, changes_[i]);
        }
    }
}

DecidingLogits Draws::deciding(size_t i, const Draw& draw, int64_t vocab) const {
    const FpEnvScope environment;
    DecidingLogits deciding = deciding_logits(*draw.params);
    if (deciding.count > vocab) deciding.count = 0;
    deciding.allowed = draw.allowed;
    deciding.params = draw.params;
    deciding.changes = changes_[i];
    return deciding;
}

void Draws::run(std::span<Draw> draws, int vocab, const UnitKernels& unit, Pool& pool,
                std::span<SampleResult> results) {
    // Mirostat's draw needs the state that the draw before it leaves.
    const auto waits = [&](size_t i) {
        return i > 0 && draws[i].params->chain.mirostat > 0 && follows(draws[i], draws[i - 1]);
    };
    const auto at = [&](size_t i, SampleMemory& memory) {
        if (waits(i)) return;
        do {
            if (waits(i)) draws[i].mu = results[i - 1].mu;
            const Draw& d = draws[i];
            results[i] = sample(unit, {d.logits, vocab, d.allowed, changes_[i], d.mu}, *d.params,
                                d.history.size(), memory);
        } while (++i < draws.size() && waits(i));
    };
    const bool alone = draws.size() < 2 || pool.size() == 1;
    const size_t threads = alone ? 1 : static_cast<size_t>(pool.size());
    if (memory_.size() < threads) memory_.resize(threads);
    // Every thread gets memory for every draw, since the next step may divide them differently.
    for (size_t t = 0; t < threads; ++t)
        for (size_t i = 0; i < draws.size(); ++i)
            memory_[t].reserve(*draws[i].params, changes_[i].size(), vocab);
    if (alone) {
        for (size_t i = 0; i < draws.size(); ++i) at(i, memory_[0]);
        return;
    }
    std::atomic<int64_t> next{0};
    pool.run([&](int worker) {
        for (int64_t i; (i = next++) < std::ssize(draws);)
            at(static_cast<size_t>(i), memory_[static_cast<size_t>(worker)]);
    });
}

}  // namespace sterna
