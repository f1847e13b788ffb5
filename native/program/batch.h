// The input of a step: sequences with any number of new tokens each.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "program/adapter.h"
#include "runtime/gate.h"
#include "runtime/memory.h"
#include "sampling/scores.h"

namespace sterna {

// The memory of all recurrent layers for one sequence, and how many positions it covers; -1: none, since a step that
// changed it did not come to its end.
struct State {
    explicit State(int64_t bytes) : memory(static_cast<size_t>(bytes)) {}
    float* floats() const { return reinterpret_cast<float*>(memory.data()); }

    HugeBuffer memory;
    int64_t position = 0;
};

// One sequence's share of a batch.
struct SequenceSpan {
    int start;  // position of its first new token
    int count;  // new tokens
    const int32_t* pages;  // page table covering start + count positions
    int logits;  // the number of last new tokens whose logits are needed
    // For each of those, which of its logits decide; null: all of them.
    const DecidingLogits* deciding = nullptr;
    float* state = nullptr;  // State; of a sequence that starts at 0 it is not read
    // The last `drafts` of the new tokens are drafts, with at least one token before them: `state` stays at the position
    // before them, and they continue in `ahead`.
    int drafts = 0;
    float* ahead = nullptr;
    // The position where the second part of a pair of texts begins.
    int second_part = std::numeric_limits<int>::max();

    int end() const { return start + count; }
};

// New positions of a sequence, [begin, end), that attend to each other, such as those of an image.
struct TogetherSpan {
    int sequence, begin, end;
};

// Axes of the positions by which rotations tell an image's rows and columns apart.
constexpr int kAxes = 3;

// Consecutive sequences of a batch that have one adapter.
struct AdapterSpan {
    int first, count;
    const Adapter* adapter;
};

struct Batch {
    std::span<const int32_t> tokens;
    std::span<const SequenceSpan> sequences;
    std::span<const AdapterSpan> adapters;  // of sequences that have one, in their order
    Gate* masks = nullptr;  // opens when the masks of `deciding` are ready; null: they are ready
    // A row for each token, which a Copy without a source reads.
    const float* previous_hidden_states = nullptr;
    // Where HiddenStates writes a row for each token; null: nowhere.
    float* hidden_states = nullptr;
    // Rows that replace the embeddings of tokens: a token of -1 - n is row n.
    const float* features = nullptr;
    int64_t feature_width = 0;
    std::span<const TogetherSpan> together{};
    // [tokens][kAxes], for rotations that have axes; null: all are a token's position in its sequence.
    const int32_t* coordinates = nullptr;
    // [tokens][kept_width], which Keep writes and reads; null: the program has none.
    float* kept = nullptr;
    int64_t kept_width = 0;

    // The features of a token, or null.
    const float* features_of(int64_t n) const {
        const int64_t token = tokens[static_cast<size_t>(n)];
        return token < 0 ? features + (-1 - token) * feature_width : nullptr;
    }
};

// The rows of a batch.
struct BatchRows {
    std::vector<int32_t> sequence_of, position_of;  // of each token
    std::vector<int32_t> limit_of;  // the position after the last one that each token attends to
    std::vector<int32_t> selected;  // tokens whose logits are needed
    std::vector<DecidingLogits> deciding;  // of each of those
    std::vector<int64_t> first_of;  // of each sequence, its first row

    void reserve(int64_t tokens) {
        const auto n = static_cast<size_t>(tokens);
        for (auto* v : {&sequence_of, &position_of, &limit_of, &selected}) v->reserve(n);
        deciding.reserve(n);
        first_of.reserve(n);
    }
    void plan(const Batch& batch) {
        sequence_of.clear(), position_of.clear(), selected.clear(), deciding.clear();
        limit_of.clear(), first_of.clear();
        for (int s = 0, first = 0; const auto& span : batch.sequences) {
            first_of.push_back(first);
            for (int i = 0; i < span.count; ++i) {
                sequence_of.push_back(s);
                position_of.push_back(span.start + i);
                limit_of.push_back(span.start + i + 1);
                const int row = i - (span.count - span.logits);
                if (row < 0) continue;
                selected.push_back(first + i);
                deciding.push_back(span.deciding ? span.deciding[row] : DecidingLogits{});
            }
            first += span.count;
            ++s;
        }
        for (const auto& [sequence, begin, end] : batch.together) {
            const auto s = static_cast<size_t>(sequence);
            const auto first = limit_of.begin() + first_of[s] - batch.sequences[s].start;
            std::fill(first + begin, first + end, end);
        }
    }
};

}  // namespace sterna
