// Scores: logits after masks, biases and penalties, and which logits decide. The sampler and an exact
// head's screen use the same functions.
//
// The order is vLLM's; transformers has steps 1 and 3:
//   1. a forbidden token gets -inf,
//   2. the bias is added,
//   3. repetition penalty (Keskar et al. 2019), for each distinct token of prompt and answer:
//      divides a positive logit, multiplies a negative one,
//   4. frequency penalty: subtracted for each time that the answer has the token,
//   5. presence penalty: subtracted once if the answer has the token,
//   6. DRY penalty (repeats.h): subtracted from a token that would continue a repeat.
// With a window, llama.cpp's, steps 3 to 5 all count the last tokens of prompt and answer instead.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace sterna {

// A step of the sampler chain (chain.h).
enum class Sampler : uint8_t { TopNSigma, TopK, TypicalP, TopP, MinP, Xtc, Temperature };

struct DryParams {
    float multiplier = 0.0f;  // <= 0: off
    float base = 1.75f;
    int32_t allowed_length = 2;
    int32_t penalty_last_n = -1;  // < 0: the whole history; 0: off
    std::vector<std::vector<int32_t>> breakers{};  // sequences of tokens, none empty, sorted

    bool on() const { return multiplier > 0.0f && base >= 1.0f && penalty_last_n != 0; }
};

// Parameters of the sampler chain. Without a chain and mirostat, tokens are drawn by sampler.h's order.
struct ChainParams {
    std::vector<Sampler> order{};  // of the steps; empty: no chain
    float typical_p = 1.0f;  // >= 1: off
    float top_n_sigma = -1.0f;  // <= 0: off
    float xtc_probability = 0.0f;  // <= 0: off
    float xtc_threshold = 0.1f;  // > 0.5: off
    float dynatemp_range = 0.0f;  // <= 0: off
    float dynatemp_exponent = 1.0f;
    int mirostat = 0;  // the version, 1 or 2, which replaces the steps other than the temperature
    float mirostat_tau = 5.0f;
    float mirostat_eta = 0.1f;

    bool on() const { return !order.empty() || mirostat > 0; }
};

struct SampleParams {
    float temperature = 0.0f;  // <= 0: greedy
    int top_k = 0;  // <= 0 or >= vocab: off
    float top_p = 1.0f;  // >= 1: off
    float min_p = 0.0f;  // <= 0: off
    float repetition_penalty = 1.0f;  // 1: off; must be > 0
    float frequency_penalty = 0.0f;  // 0: off
    float presence_penalty = 0.0f;  // 0: off
    // How many last tokens of prompt and answer the three penalties count; < 0: all. None: repetition
    // counts all, frequency and presence count the answer's.
    std::optional<int32_t> repeat_last_n{};
    std::vector<std::pair<int32_t, float>> bias{};  // of distinct tokens
    uint64_t seed = 0;
    uint64_t sequence = 0;  // index of the sequence within the request
    int n_logprobs = 0;  // 0: none, which saves a pass of `vocab` exponentials
    ChainParams chain{};
    DryParams dry{};
};

// One bit a token, from the lowest of the first word: whether it may be drawn. Tokens beyond the words
// may not; without any words all may.
class TokenMask {
  public:
    TokenMask() = default;
    explicit TokenMask(std::span<const int32_t> words) : words_(words) {}
    bool all() const { return words_.data() == nullptr; }
    bool allows(int64_t token) const { return all() || (word(token / 32) >> (token % 32) & 1); }
    // The bits of 32 tokens from 32 i on; 0 beyond the words.
    uint32_t word(int64_t i) const {
        const bool there = i < static_cast<int64_t>(words_.size());
        return there ? static_cast<uint32_t>(words_[static_cast<size_t>(i)]) : 0;
    }

  private:
    std::span<const int32_t> words_{};
};

// A token whose score differs from its logit.
struct ScoreChange {
    int32_t token;
    float bias;
    int32_t count;  // how often frequency and presence penalty count it
    bool seen;  // whether the repetition penalty counts it
    float dry = 0.0f;  // its DRY penalty
};

// Working memory of collect_changes, kept so that the next token allocates none.
struct ScoreMemory {
    std::vector<int32_t> place{};  // [vocab], all -1 between two uses
    std::vector<int32_t> matches{};  // of repeats.h
};

// Returns the token's score. It never decreases as the logit grows, roundings included, so the scores
// of an interval's ends enclose it. +inf becomes the largest float, -inf stays.
float changed(float logit, const ScoreChange& change, const SampleParams& params);

// Collects each token with a change once; `history` has the answer from `answer_begin` on. Ids outside
// [0, vocab) are ignored; penalties that are not finite count as off.
void collect_changes(const SampleParams& params, std::span<const int32_t> history,
                     int64_t answer_begin, int vocab, ScoreMemory& memory,
                     std::vector<ScoreChange>& changes);

// Whether changes for one more token follow from those before it: nothing else changes than this
// token's.
bool grows(const SampleParams& params);

// Updates changes for one more token, the last of `history`, if they grow.
void add_last_change(const SampleParams& params, std::span<const int32_t> history,
                     int64_t answer_begin, int vocab, std::vector<ScoreChange>& changes);

// Which logits of a row decide: those of the `count` largest scores (0: all) among allowed tokens, and of
// scores at most `gap` below these.
struct DecidingLogits {
    int32_t count = 0;
    double gap = 0;
    bool raw = false;  // all logits are needed unchanged, those of forbidden tokens included
    TokenMask allowed{};
    const SampleParams* params = nullptr;  // of the changes
    std::span<const ScoreChange> changes{};
};

// Limits of `count`, and of `gap` in nats. Beyond, so much of the vocabulary may stay open that
// screening a head would not pay (docs/explanation/exact-head.md).
constexpr int kMostDeciding = 256;
constexpr double kWidestGap = 4.0;

// Returns count, gap and raw for these parameters, without mask and changes.
DecidingLogits deciding_logits(const SampleParams& params);

}  // namespace sterna
