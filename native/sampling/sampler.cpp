#include "sampling/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <functional>
#include <limits>

#include "runtime/fpenv.h"
#include "sampling/mass.h"
#include "sampling/philox.h"
#include "scalar_math.h"

namespace sterna {
namespace {

constexpr float kMaxFinite = std::numeric_limits<float>::max();
constexpr float kNoLogit = -std::numeric_limits<float>::infinity();

struct Best {
    int32_t token = -1;
    float logit = kNoLogit;
    bool finite = false;
};

// Finds the largest logit, of the lowest id among equals, in one pass: lanes find the maximum of a
// block, and only a block that beats all before it is searched for the id.
Best find_best(const float* logits, int vocab) {
    constexpr int kBlock = 512, kLanes = 16;
    Best best;
    int32_t bad = 0;
    for (int begin = 0; begin < vocab; begin += kBlock) {
        const int end = std::min(begin + kBlock, vocab);
        const float* block = logits + begin;
        const int size = end - begin;
        float lane[kLanes];
        int32_t lane_bad[kLanes] = {};
        for (int j = 0; j < kLanes; ++j) lane[j] = kNoLogit;
        int i = 0;
        for (; i + kLanes <= size; i += kLanes) {
            for (int j = 0; j < kLanes; ++j) {
                const float v = block[i + j];
                lane_bad[j] |= !(v <= kMaxFinite);  // NaN and +inf
                lane[j] = v > lane[j] ? v : lane[j];
            }
        }
        for (; i < size; ++i) {
            bad |= !(block[i] <= kMaxFinite);
            lane[0] = block[i] > lane[0] ? block[i] : lane[0];
        }
        float block_max = kNoLogit;
        for (int j = 0; j < kLanes; ++j) {
            bad |= lane_bad[j];
            block_max = lane[j] > block_max ? lane[j] : block_max;
        }
        if (block_max > best.logit) {
            best.logit = block_max;
            best.token =
                begin + static_cast<int>(std::find(block, block + size, block_max) - block);
        }
    }
    best.finite = bad == 0 && best.token >= 0;
    return best;
}

// Scores under one temperature.
struct Weights {
    const UnitKernels& unit;
    const float* logits;
    int vocab;
    float max;
    double temperature;

    // A token's weight in the softmax; exactly 1 for the best token.
    double weight(int32_t token) const {
        return math::exp_d((static_cast<double>(logits[token]) - max) / temperature);
    }

    // The weights of kBlock tokens from `begin` on. Those below `least` are 0.
    static constexpr int kBlock = 256;
    int block(int begin, double least, double (&weight)[kBlock]) const {
        const int size = std::min(kBlock, vocab - begin);
        unit.softmax_weights({logits + begin, size, max, temperature, least, weight});
        return size;
    }
    // Sums all weights in ascending order of ids, and calls at_block with the sum before each block.
    template <class AtBlock>
    double sum(double least, AtBlock at_block) const {
        double sum = 0.0, weight[kBlock];
        for (int begin = 0; begin < vocab; begin += kBlock) {
            at_block(sum);
            const int size = block(begin, least, weight);
            for (int i = 0; i < size; ++i) sum += weight[i];
        }
        return sum;
    }
    double sum() const {
        return sum(0.0, [](double) {});
    }

    // Leaves the best tokens in memory.candidates.
    void best(int count, SampleMemory& memory) const;
};

// The constant that, with the maximum, turns a logit into a log-probability.
double log_sum_exp(const UnitKernels& unit, const float* logits, int vocab, float max) {
    return math::log_d(Weights{unit, logits, vocab, max, 1.0}.sum());
}

float log_probability(float logit, float max, double log_sum) {
    return static_cast<float>((static_cast<double>(logit) - max) - log_sum);
}

// A key whose descending order is (logit descending, id ascending).
uint64_t rank_key(float logit, int32_t token) {
    const float positive_zero = logit + 0.0f;  // -0 == +0 must tie
    const uint32_t bits = std::bit_cast<uint32_t>(positive_zero);
    const uint32_t ordered = (bits >> 31) ? ~bits : bits | 0x80000000u;
    return (static_cast<uint64_t>(ordered) << 32) | (~static_cast<uint32_t>(token));
}

int32_t token_of(uint64_t key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }

// Keys that best_tokens collects before it halves them.
size_t key_capacity(int count, int vocab) {
    return std::min(std::max<size_t>(2 * static_cast<size_t>(count), 1024),
                    static_cast<size_t>(vocab));
}

// Leaves in memory.ranked the `count` best tokens with a logit above -inf, or all of these, best
// first. Collects candidates and halves them when full, which is O(vocab) in all.
void best_tokens(const float* logits, int vocab, int count, SampleMemory& memory) {
    count = std::min(count, vocab);
    auto& keys = memory.keys;
    keys.clear();
    memory.ranked.clear();
    if (count <= 0) return;
    const size_t wanted = static_cast<size_t>(count);
    const size_t capacity = std::max<size_t>(2 * wanted, 1024);
    keys.reserve(key_capacity(count, vocab));
    const std::greater<uint64_t> descending;
    float floor = kNoLogit;  // a later id, which is higher, must exceed it
    for (int32_t i = 0; i < vocab; ++i) {
        if (!(logits[i] > floor)) continue;
        keys.push_back(rank_key(logits[i], i));
        if (keys.size() == capacity) {
            std::nth_element(keys.begin(), keys.begin() + (count - 1), keys.end(), descending);
            keys.resize(wanted);
            floor = logits[token_of(keys.back())];
        }
    }
    const auto middle = keys.begin() + static_cast<ptrdiff_t>(std::min(wanted, keys.size()));
    std::partial_sort(keys.begin(), middle, keys.end(), descending);
    memory.ranked.reserve(wanted);
    for (auto key = keys.begin(); key != middle; ++key) memory.ranked.push_back(token_of(*key));
}

using Candidate = SampleMemory::Candidate;
using Candidates = std::vector<Candidate>;

double total_weight(const Candidates& candidates) {
    double total = 0.0;
    for (const Candidate& c : candidates) total += c.weight;
    return total;
}

void Weights::best(int count, SampleMemory& memory) const {
    best_tokens(logits, vocab, count, memory);
    memory.candidates.clear();
    memory.candidates.reserve(memory.ranked.size());
    for (const int32_t token : memory.ranked) memory.candidates.push_back({token, weight(token)});
}

// Cuts a descending list where the weights before reach `mass`; the best token always stays. Returns
// false if the list ends before that.
bool cut_at_mass(Candidates& candidates, double mass) {
    double above = 0.0;
    size_t kept = 0;
    while (kept < candidates.size() && (kept == 0 || above < mass))
        above += candidates[kept++].weight;
    candidates.resize(kept);
    return above >= mass;
}

// Leaves in memory.candidates, by ids, the tokens that reach the mass of all weights' sum. Returns
// false where another order of their sum might keep others.
bool cut_by_buckets(const Weights& scores, double mass, double total, SampleMemory& memory) {
    constexpr double kPerNat = 64.0;  // of a token's distance from the best
    const auto bucket = [&](float logit) {
        const double nats = (static_cast<double>(scores.max) - logit) / scores.temperature;
        const double at = nats * kPerNat;
        return at < static_cast<double>(kBuckets - 1) ? static_cast<size_t>(at) : kBuckets - 1;
    };
    std::array<double, kBuckets> sums{};
    double weight[Weights::kBlock];
    for (int begin = 0; begin < scores.vocab; begin += Weights::kBlock) {
        const int size = scores.block(begin, 0.0, weight);
        for (int i = 0; i < size; ++i) sums[bucket(scores.logits[begin + i])] += weight[i];
    }
    double above = 0.0;
    size_t reached = 0;
    while (reached < kBuckets - 1 && above + sums[reached] < mass) above += sums[reached++];
    if (reached == kBuckets - 1) return false;
    auto& keys = memory.keys;
    keys.clear();
    for (int32_t i = 0; i < scores.vocab; ++i)
        if (bucket(scores.logits[i]) == reached) keys.push_back(rank_key(scores.logits[i], i));
    std::sort(keys.begin(), keys.end(), std::greater<uint64_t>());
    size_t kept = 0;
    double before_last = above;
    while (kept < keys.size() && above < mass) {
        before_last = above;
        above += scores.weight(token_of(keys[kept++]));
    }
    const double error = kSumError * total;
    if (kept == 0 || !(before_last < mass - error) || !(above >= mass + error)) return false;
    const uint64_t last = keys[kept - 1];
    memory.candidates.clear();
    for (int32_t i = 0; i < scores.vocab; ++i)
        if (rank_key(scores.logits[i], i) >= last)
            memory.candidates.push_back({i, scores.weight(i)});
    return true;
}

void cut_at_top_p(const Weights& scores, double top_p, SampleMemory& memory) {
    const double total = scores.sum(), mass = top_p * total;
    // Usually a few tokens carry the mass: rank more only if they do not.
    int count = std::min(scores.vocab, 256);
    while (true) {
        scores.best(count, memory);
        const bool all =
            static_cast<int>(memory.candidates.size()) < count || count == scores.vocab;
        if (cut_at_mass(memory.candidates, mass) || all) return;
        if (count <= 256 && cut_by_buckets(scores, mass, total, memory)) return;
        count = count > scores.vocab / 8 ? scores.vocab : count * 8;
    }
}

bool uses_top_k(const SampleParams& params, int vocab) {
    return params.top_k > 0 && params.top_k < vocab;
}

bool uses_top_p(const SampleParams& params) { return params.top_p < 1.0f; }

// The least weight that min-p keeps. It is relative to the best token's weight, 1.
double least_weight(const SampleParams& params) {
    return params.min_p > 0.0f ? std::min(1.0, static_cast<double>(params.min_p)) : 0.0;
}

// Leaves in memory.candidates the tokens that pass top-k or top-p, and min-p, in ascending order of
// ids, so that the draw does not depend on how they were found. A weight of 0 cannot be drawn.
void keep_candidates(const Weights& scores, const SampleParams& params, SampleMemory& memory) {
    const bool use_p = uses_top_p(params);
    const double least = least_weight(params);
    const auto drawable = [&](double weight) { return weight > 0.0 && weight >= least; };
    Candidates& kept = memory.candidates;
    if (uses_top_k(params, scores.vocab)) {
        scores.best(params.top_k, memory);
        // Top-p applies to the distribution after top-k.
        if (use_p) cut_at_mass(kept, static_cast<double>(params.top_p) * total_weight(kept));
    } else {
        cut_at_top_p(scores, static_cast<double>(params.top_p), memory);
    }
    std::erase_if(kept, [&](const Candidate& c) { return !drawable(c.weight); });
    std::sort(kept.begin(), kept.end(),
              [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
}

int32_t draw(const Candidates& candidates, double uniform) {
    const double target = uniform * total_weight(candidates);
    double sum = 0.0;
    for (const Candidate& c : candidates) {
        sum += c.weight;
        if (sum > target) return c.token;
    }
    return candidates.back().token;  // uniform * total was rounded up to total
}

// Draws from all tokens that pass min-p. Their weights are not kept: the sums before blocks find the block of the
// drawn token, whose weights are then computed again.
int32_t draw_from_all(const Weights& scores, double least, double uniform, SampleMemory& memory) {
    auto& before = memory.sums;
    before.clear();
    const double total = scores.sum(least, [&](double sum) { before.push_back(sum); });
    const double target = uniform * total;
    // The first block that begins above the target follows the token's; if there is none, it is the last one.
    const auto next = std::upper_bound(before.begin() + 1, before.end(), target);
    const auto drawn = [&](size_t at) {
        double sum = before[at], weight[Weights::kBlock];
        const int begin = static_cast<int>(at) * Weights::kBlock;
        const int size = scores.block(begin, least, weight);
        int32_t last = -1;
        for (int i = 0; i < size; ++i) {
            sum += weight[i];
            if (weight[i] > 0.0) last = begin + i;
            if (sum > target) break;
        }
        return last;
    };
    size_t at = static_cast<size_t>(next - before.begin()) - 1;
    int32_t token = drawn(at);
    while (token < 0) token = drawn(--at);  // uniform * total was rounded up to total
    return token;
}

// Replaces the logits of forbidden tokens by -inf.
void forbid(float* logits, int vocab, const TokenMask& allowed) {
    for (int begin = 0; begin < vocab; begin += 32) {
        const uint32_t word = allowed.word(begin / 32);
        const int size = std::min(32, vocab - begin);
        if (word == ~0u) continue;
        for (int i = 0; i < size; ++i)
            logits[begin + i] = word >> i & 1 ? logits[begin + i] : kNoLogit;
    }
}

// Replaces logits by scores, and keeps the logits in memory.raw.
void change(const Scores& scores, const SampleParams& params, SampleMemory& memory) {
    memory.raw.clear();
    for (const ScoreChange& c : scores.changes) {
        float& logit = scores.logits[c.token];
        memory.raw.push_back(logit);
        logit = changed(logit, c, params);
    }
}

// Returns a drawn token's logit from before change().
float raw_logit(const Scores& scores, int32_t token, const SampleMemory& memory) {
    for (size_t i = 0; i < scores.changes.size(); ++i)
        if (scores.changes[i].token == token) return memory.raw[i];
    return scores.logits[token];
}

// mu: mirostat's state, which is changed.
int32_t draw_token(const UnitKernels& unit, const Scores& scores, const Best& best,
                   const SampleParams& params, uint64_t position, double& mu,
                   SampleMemory& memory) {
    if (!(params.temperature > 0.0f) || best.token < 0) return best.token;
    if (params.chain.on())
        return draw_by_chain(scores.logits, scores.vocab, params, position, mu, memory.chain);
    // Keep the temperature finite, as -inf / inf is NaN; at the largest float all finite logits have
    // the same weight anyway.
    const double temperature = std::min(params.temperature, kMaxFinite);
    const double uniform = philox_uniform(params.seed, params.sequence, position);
    const Weights weights{unit, scores.logits, scores.vocab, best.logit, temperature};
    if (!uses_top_k(params, scores.vocab) && !uses_top_p(params))
        return draw_from_all(weights, least_weight(params), uniform, memory);
    keep_candidates(weights, params, memory);
    return draw(memory.candidates, uniform);
}

// Not inlined: the compiler may move arithmetic across a change of the control state, but not across
// a call.
__attribute__((noinline)) SampleResult sample_in_env(const UnitKernels& unit, const Scores& scores,
                                                     const SampleParams& params, uint64_t position,
                                                     SampleMemory& memory) {
    float* logits = scores.logits;
    const int vocab = scores.vocab;
    SampleResult result;
    result.logprob = math::kNanF;
    const bool reports = params.n_logprobs > 0;
    double log_sum = 0.0;
    float most = 0.0f;
    if (reports) {  // before anything changes the raw logits
        const Best best = find_best(logits, vocab);
        if (!best.finite) return result;
        most = best.logit;
        log_sum = log_sum_exp(unit, logits, vocab, most);
        best_tokens(logits, vocab, params.n_logprobs, memory);
        for (const int32_t token : memory.ranked)
            result.top.emplace_back(token, log_probability(logits[token], most, log_sum));
    }
    if (!scores.allowed.all()) forbid(logits, vocab, scores.allowed);
    const Best best = find_best(logits, vocab);
    result.finite = best.finite;
    if (!best.finite) return result;
    change(scores, params, memory);
    const Best first = scores.changes.empty() ? best : find_best(logits, vocab);
    if (params.chain.mirostat > 0)
        result.mu = scores.mu == scores.mu ? scores.mu : 2.0 * params.chain.mirostat_tau;
    result.token = draw_token(unit, scores, first, params, position, result.mu, memory);
    // Changes that drive every score to -inf leave nothing to rank: fall back to the raw logits.
    if (result.token < 0) result.token = best.token;
    if (reports)
        result.logprob = log_probability(raw_logit(scores, result.token, memory), most, log_sum);
    return result;
}

__attribute__((noinline)) float log_softmax_in_env(const UnitKernels& unit, const float* logits,
                                                   int vocab, int32_t token) {
    const Best best = find_best(logits, vocab);
    if (!best.finite || token < 0 || token >= vocab) return math::kNanF;
    return log_probability(logits[token], best.logit, log_sum_exp(unit, logits, vocab, best.logit));
}

}  // namespace

void SampleMemory::reserve(const SampleParams& params, size_t changes, int vocab) {
    const auto all = static_cast<size_t>(vocab);
    const bool chained = params.chain.on() && params.temperature > 0.0f;
    if (chained) chain.reserve(all);
    const bool draws = params.temperature > 0.0f && !chained, by_k = uses_top_k(params, vocab);
    // Top-p ranks as many tokens as reach its mass, in the worst case all.
    const bool by_p = draws && !by_k && uses_top_p(params);
    const int count =
        std::max(draws && by_k ? params.top_k : 0, std::min(std::max(params.n_logprobs, 0), vocab));
    raw.reserve(changes);
    if (draws && (by_k || by_p)) candidates.reserve(by_k ? static_cast<size_t>(count) : all);
    if (draws && !by_k && !by_p) sums.reserve(all / Weights::kBlock + 1);
    if (by_p || count > 0) {
        keys.reserve(by_p ? all : key_capacity(count, vocab));
        ranked.reserve(by_p ? all : static_cast<size_t>(count));
    }
}

SampleResult sample(const UnitKernels& unit, const Scores& scores, const SampleParams& params,
                    uint64_t position, SampleMemory& memory) {
    const FpEnvScope fp_env;
    return sample_in_env(unit, scores, params, position, memory);
}

float log_softmax_at(const UnitKernels& unit, const float* logits, int vocab, int32_t token) {
    const FpEnvScope fp_env;
    return log_softmax_in_env(unit, logits, vocab, token);
}

}  // namespace sterna
