#include "sampling/chain.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "sampling/mass.h"
#include "sampling/philox.h"
#include "scalar_math.h"

namespace sterna {
namespace {

constexpr double kLn2 = 0x1.62e42fefa39efp-1;
// Tokens that mirostat 1 estimates the distribution's exponent from: the paper's m.
constexpr size_t kMirostatTokens = 100;

bool is_on(const SampleParams& params, Sampler step) {
    const ChainParams& chain = params.chain;
    switch (step) {
        case Sampler::TopNSigma:
            return chain.top_n_sigma > 0.0f;
        case Sampler::TopK:
            return params.top_k > 0;
        case Sampler::TypicalP:
            return chain.typical_p > 0.0f && chain.typical_p < 1.0f;
        case Sampler::TopP:
            return params.top_p < 1.0f;
        case Sampler::MinP:
            return params.min_p > 0.0f;
        case Sampler::Xtc:
            return chain.xtc_probability > 0.0f && chain.xtc_threshold <= 0.5f;
        case Sampler::Temperature:
            return true;
    }
    return true;
}

// Tokens in ascending order of ids between two steps, so that no sum depends on how they were found.
class Chain {
  public:
    Chain(const SampleParams& params, uint64_t position, ChainMemory& memory)
        : params_(params), position_(position), tokens_(memory.tokens), bucket_(memory.bucket) {}

    void begin(const float* scores, int vocab) {
        tokens_.clear();
        for (int32_t i = 0; i < vocab; ++i)
            if (scores[i] > -std::numeric_limits<float>::infinity())
                tokens_.push_back({i, static_cast<double>(scores[i])});
    }

    // As begin() and top_k(), without a pass over all tokens for each.
    void begin_with_best(const float* scores, int vocab, size_t k) {
        const size_t capacity = std::max<size_t>(2 * k, 1024);
        const auto keep_k = [&] {
            if (tokens_.size() <= k) return;
            const auto last = tokens_.begin() + static_cast<ptrdiff_t>(k - 1);
            std::nth_element(tokens_.begin(), last, tokens_.end(), likelier);
            tokens_.resize(k);
        };
        tokens_.clear();
        // A later id ranks behind an equal score, so it must exceed the worst of the k.
        double floor = -std::numeric_limits<double>::infinity();
        for (int32_t i = 0; i < vocab; ++i) {
            const auto score = static_cast<double>(scores[i]);
            if (!(score > floor)) continue;
            tokens_.push_back({i, score});
            if (tokens_.size() == capacity) {
                keep_k();
                floor = tokens_.back().score;
            }
        }
        keep_k();
        by_id();
    }

    void apply(Sampler step) {
        const ChainParams& chain = params_.chain;
        if (!is_on(params_, step)) return;
        switch (step) {
            case Sampler::TopNSigma:
                return top_n_sigma(chain.top_n_sigma);
            case Sampler::TopK:
                return top_k(static_cast<size_t>(params_.top_k));
            case Sampler::TypicalP:
                return typical_p(chain.typical_p);
            case Sampler::TopP:
                return top_p(params_.top_p);
            case Sampler::MinP:
                return min_p(params_.min_p);
            case Sampler::Xtc:
                return xtc();
            case Sampler::Temperature:
                return temperature();
        }
    }

    // Draws a token, and leaves its probability in `p`.
    int32_t draw(double& p) {
        softmax();
        const double uniform = philox_uniform(params_.seed, params_.sequence, position_);
        double total = 0.0, sum = 0.0;
        for (const ChainToken& one : tokens_) total += one.p;
        const double target = uniform * total;
        const ChainToken* drawn = nullptr;
        for (const ChainToken& one : tokens_) {
            if (!(one.p > 0.0)) continue;
            drawn = &one;  // and stays the last one if uniform * total was rounded up
            sum += one.p;
            if (sum > target) break;
        }
        p = drawn->p;
        return drawn->token;
    }

    int32_t mirostat(int vocab, double& mu) {
        const ChainParams& chain = params_.chain;
        temperature();
        if (chain.mirostat == 1)
            top_k(mirostat_k(vocab, mu));
        else
            at_most_surprising(mu);
        double p = 1.0;
        const int32_t token = draw(p);
        const double surprise = -math::log_d(p) / kLn2;
        mu -= static_cast<double>(chain.mirostat_eta) *
              (surprise - static_cast<double>(chain.mirostat_tau));
        return token;
    }

  private:
    static bool likelier(const ChainToken& a, const ChainToken& b) {
        return a.score != b.score ? a.score > b.score : a.token < b.token;
    }

    void by_id() { std::ranges::sort(tokens_, {}, &ChainToken::token); }

    const ChainToken& best() const { return *std::ranges::min_element(tokens_, likelier); }

    void softmax() {
        most_ = best().score;
        double total = 0.0;
        for (ChainToken& one : tokens_) one.p = math::exp_d(one.score - most_);
        for (const ChainToken& one : tokens_) total += one.p;
        for (ChainToken& one : tokens_) one.p /= total;
        log_total_ = math::log_d(total);
    }

    // -log p, by the latest softmax.
    double surprise(const ChainToken& one) const { return log_total_ - (one.score - most_); }

    double entropy() const {
        double sum = 0.0;
        for (const ChainToken& one : tokens_) sum += one.p * surprise(one);
        return sum;
    }

    // Keeps the tokens that come first, until their probabilities reach `mass`. key: does not
    // decrease from a token to one behind it, and is 0 or more.
    template <class Key, class Before>
    void keep_mass(double mass, Key key, Before before) {
        if (!keep_mass_by_buckets(mass, key, before)) keep_mass_by_sorting(mass, before);
    }

    // Sums probabilities in buckets of the key and sorts the bucket alone in which they reach `mass`.
    // Returns false, and changes nothing, where another order of the sum might keep other tokens.
    template <class Key, class Before>
    bool keep_mass_by_buckets(double mass, Key key, Before before) {
        double most = 0.0;
        for (const ChainToken& one : tokens_) most = std::max(most, key(one));
        const double scale = static_cast<double>(kBuckets - 1) / most;
        if (!(most > 0.0) || !(scale < std::numeric_limits<double>::infinity())) return false;
        const auto bucket = [&](const ChainToken& one) {
            return std::min(static_cast<size_t>(key(one) * scale), kBuckets - 1);
        };
        std::array<double, kBuckets> sums{};
        for (const ChainToken& one : tokens_) sums[bucket(one)] += one.p;
        double above = 0.0;
        size_t reached = 0;
        while (reached < kBuckets && above + sums[reached] < mass) above += sums[reached++];
        if (reached == kBuckets) return false;
        bucket_.clear();
        for (const ChainToken& one : tokens_)
            if (bucket(one) == reached) bucket_.push_back(one);
        std::sort(bucket_.begin(), bucket_.end(), before);
        size_t kept = 0;
        double before_last = above;
        while (kept < bucket_.size() && above < mass)
            before_last = above, above += bucket_[kept++].p;
        if (kept == 0 || !(before_last < mass - kSumError) || !(above >= mass + kSumError))
            return false;
        const ChainToken last = bucket_[kept - 1];
        std::erase_if(tokens_, [&](const ChainToken& one) {
            const size_t at = bucket(one);
            return at > reached || (at == reached && before(last, one));
        });
        return true;
    }

    template <class Before>
    void keep_mass_by_sorting(double mass, Before before) {
        const size_t all = tokens_.size();
        double above = 0.0;
        size_t kept = 0;
        // Usually a few tokens carry the mass: sort more only if they do not.
        for (size_t sorted = 0; kept < all && (kept == 0 || above < mass);) {
            const size_t next = std::min(all, sorted == 0 ? 256 : sorted * 8);
            const auto at = [&](size_t i) { return tokens_.begin() + static_cast<ptrdiff_t>(i); };
            if (next < all) std::nth_element(at(sorted), at(next), tokens_.end(), before);
            std::sort(at(sorted), at(next), before);
            sorted = next;
            while (kept < sorted && (kept == 0 || above < mass)) above += tokens_[kept++].p;
        }
        tokens_.resize(kept);
        by_id();
    }

    void top_n_sigma(double n) {
        const double count = static_cast<double>(tokens_.size()), most = best().score;
        double sum = 0.0, squares = 0.0;
        for (const ChainToken& one : tokens_) sum += one.score;
        const double mean = sum / count;
        for (const ChainToken& one : tokens_) squares += (one.score - mean) * (one.score - mean);
        const double least = most - n * std::sqrt(squares / count);  // IEEE rounds square roots
        std::erase_if(tokens_, [&](const ChainToken& one) { return one.score < least; });
    }

    void top_k(size_t k) {
        if (k >= tokens_.size()) return;
        std::nth_element(tokens_.begin(), tokens_.begin() + static_cast<ptrdiff_t>(k),
                         tokens_.end(), likelier);
        tokens_.resize(k);
        by_id();
    }

    void typical_p(double p) {
        softmax();
        const double expected = entropy();
        for (ChainToken& one : tokens_) one.distance = std::fabs(surprise(one) - expected);
        keep_mass(
            p, [](const ChainToken& one) { return one.distance; },
            [](const ChainToken& a, const ChainToken& b) {
                return a.distance != b.distance ? a.distance < b.distance : a.token < b.token;
            });
    }

    void top_p(double p) {
        softmax();
        keep_mass(p, [&](const ChainToken& one) { return most_ - one.score; }, likelier);
    }

    void min_p(double p) {
        const double most = best().score, least = std::min(p, 1.0);
        std::erase_if(tokens_,
                      [&](const ChainToken& one) { return math::exp_d(one.score - most) < least; });
    }

    void xtc() {
        const ChainParams& chain = params_.chain;
        const double uniform =
            philox_uniform(params_.seed, params_.sequence, position_, Purpose::Xtc);
        if (!(uniform < static_cast<double>(chain.xtc_probability))) return;
        softmax();
        const auto is_top = [&](const ChainToken& one) {
            return one.p >= static_cast<double>(chain.xtc_threshold);
        };
        const ChainToken* last = nullptr;
        for (const ChainToken& one : tokens_)
            if (is_top(one) && (!last || likelier(*last, one))) last = &one;
        if (!last) return;
        const int32_t kept = last->token;
        std::erase_if(tokens_,
                      [&](const ChainToken& one) { return is_top(one) && one.token != kept; });
    }

    void temperature() {
        const ChainParams& chain = params_.chain;
        double t = std::min(params_.temperature, std::numeric_limits<float>::max());
        if (const double range = chain.dynatemp_range; range > 0.0 && tokens_.size() > 1) {
            softmax();
            const double share = entropy() / math::log_d(static_cast<double>(tokens_.size()));
            const double low = std::max(t - range, 0.0), high = t + range;
            t = low + (high - low) * math::pow_d(std::min(std::max(share, 0.0), 1.0),
                                                 static_cast<double>(chain.dynatemp_exponent));
        }
        const double most = best().score;
        if (!(t > 0.0)) return top_k(1);
        for (ChainToken& one : tokens_) one.score = (one.score - most) / t;
    }

    // Drops tokens of a surprise above mu, in bits; the likeliest stays.
    void at_most_surprising(double mu) {
        softmax();
        const int32_t likeliest = best().token;
        std::erase_if(tokens_, [&](const ChainToken& one) {
            return surprise(one) > mu * kLn2 && one.token != likeliest;
        });
    }

    // How many tokens mirostat 1 keeps: their probabilities are taken for a Zipf law, whose exponent
    // is estimated from the likeliest ones (the paper's algorithm 1).
    size_t mirostat_k(int vocab, double mu) {
        const size_t m = std::min(kMirostatTokens, tokens_.size());
        std::partial_sort(tokens_.begin(), tokens_.begin() + static_cast<ptrdiff_t>(m),
                          tokens_.end(), likelier);
        double products = 0.0, squares = 0.0;
        for (size_t i = 0; i + 1 < m; ++i) {
            const double rank = static_cast<double>(i);
            const double t = math::log_d((rank + 2.0) / (rank + 1.0));
            products += t * (tokens_[i].score - tokens_[i + 1].score);
            squares += t * t;
        }
        by_id();
        const double s = products / squares, excess = s - 1.0;
        const double k = math::pow_d(excess * math::pow_d(2.0, mu) /
                                         (1.0 - math::pow_d(static_cast<double>(vocab), -excess)),
                                     1.0 / s);
        if (!(k >= 1.0)) return 1;
        return k < static_cast<double>(tokens_.size()) ? static_cast<size_t>(k) : tokens_.size();
    }

    const SampleParams& params_;
    uint64_t position_;
    std::vector<ChainToken>& tokens_;
    std::vector<ChainToken>& bucket_;
    double most_ = 0.0, log_total_ = 0.0;  // of the latest softmax
};

}  // namespace

void ChainMemory::reserve(size_t vocab) {
    tokens.reserve(vocab);
    bucket.reserve(vocab);
}

int first_top_k(const SampleParams& params) {
    if (params.chain.mirostat > 0) return 0;
    for (const Sampler step : params.chain.order)
        if (is_on(params, step)) return step == Sampler::TopK ? params.top_k : 0;
    return 0;
}

int32_t draw_by_chain(const float* scores, int vocab, const SampleParams& params, uint64_t position,
                      double& mu, ChainMemory& memory) {
    Chain chain(params, position, memory);
    const int k = first_top_k(params);
    if (k > 0 && k < vocab)  // applied again in its place, it changes nothing
        chain.begin_with_best(scores, vocab, static_cast<size_t>(k));
    else
        chain.begin(scores, vocab);
    if (params.chain.mirostat > 0) return chain.mirostat(vocab, mu);
    for (const Sampler step : params.chain.order) chain.apply(step);
    double p = 1.0;
    return chain.draw(p);
}

}  // namespace sterna
