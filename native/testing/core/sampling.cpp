#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "sampling/draws.h"
#include "sampling/philox.h"
#include "selfcheck/findings.h"
#include "testing/core/checks.h"
#include "units/dispatch.h"

namespace sterna::testing {
namespace {

constexpr int kVocab = 5000;
// Of all tokens, log-probabilities and states below: the same on every machine.
constexpr uint64_t kDigest = 0x09132e895bf99703;

std::vector<SampleParams> settings() {
    std::vector<SampleParams> all(7);
    all[1].temperature = 1.0f;
    all[2].temperature = 0.8f, all[2].top_k = 40, all[2].top_p = 0.9f;
    all[3].temperature = 1.3f, all[3].min_p = 0.02f, all[3].repetition_penalty = 1.1f;
    all[4].temperature = 1.0f,
    all[4].chain.order = {Sampler::TypicalP, Sampler::Xtc, Sampler::Temperature};
    all[4].chain.typical_p = 0.9f, all[4].chain.xtc_probability = 0.5f;
    all[5].temperature = 1.0f, all[5].chain.mirostat = 2;
    all[6].temperature = 1.0f, all[6].n_logprobs = 3, all[6].frequency_penalty = 0.5f;
    for (auto& params : all) params.seed = 42;
    return all;
}

}  // namespace

std::string check_sampling() {
    const Philox4x32 known = philox4x32_10({{0, 0, 0, 0}}, 0, 0);
    require(known.word[0] == 0x6627e8d5 && known.word[3] == 0x9b00dbd8, "Philox's known answer");
    const std::vector<SampleParams> params = settings();
    uint64_t digest = 0;
    const auto& units = runnable_tables();
    for (size_t i = 0; i < std::max<size_t>(units.size(), 2);
         ++i) {  // once with one thread and with more
        const KernelTable& unit = *units[i % units.size()];
        const int threads = i == 0 ? 1 : 3;
        selfcheck::Random random;
        Pool pool(threads);
        Draws draws;
        uint64_t sum = selfcheck::kDigestStart;
        const auto add = [&](uint64_t word) {
            sum = selfcheck::digest_of(sum, &word, sizeof word);
        };
        std::vector<int32_t> history(20);
        for (int step = 0; step < 40; ++step) {
            std::vector<std::vector<float>> rows;
            std::vector<Draw> wanted;
            for (auto& token : history) token = static_cast<int32_t>(random.below(kVocab));
            for (size_t i = 0; i < params.size(); ++i) rows.push_back(random.floats(kVocab, 2.0f));
            for (size_t i = 0; i < params.size(); ++i)
                wanted.push_back({.params = &params[i],
                                  .history = history,
                                  .answer_begin = 5,
                                  .logits = rows[i].data()});
            std::vector<SampleResult> results(params.size());
            draws.begin(wanted, kVocab);
            draws.run(wanted, kVocab, unit, pool, results);
            for (const auto& result : results) {
                require(result.finite && result.token >= 0, "a token is drawn");
                add(static_cast<uint64_t>(result.token));
                add(std::bit_cast<uint32_t>(result.logprob) * uint64_t{result.top.size()});
                add(std::bit_cast<uint64_t>(result.mu) * uint64_t{result.mu == result.mu});
            }
        }
        require(i == 0 || sum == digest, "neither threads nor the unit change a token");
        digest = sum;
    }
    char text[17];
    snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(digest));
    require(digest == kDigest, "digest " + std::string(text));
    return "digest " + std::string(text);
}

}  // namespace sterna::testing
