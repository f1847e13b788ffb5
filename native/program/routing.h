// Which tokens go to which experts in a step, as the last Route has chosen.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "program/operand.h"

namespace sterna {

constexpr int kMaxExperts = 4096;
constexpr int64_t kExpertBlock = 16;  // rows of a block of activations of a matrix unit (x_offset)
constexpr int64_t whole_blocks(int64_t rows) {
    return (rows + kExpertBlock - 1) / kExpertBlock * kExpertBlock;
}

// For each token its experts, ascending, and the rows that these have in buffers of rows of experts. An expert's rows
// are those of its tokens in order, and begin at a whole block of 16.
struct Routing {
    std::vector<int32_t> expert, row;  // [tokens][chosen]
    std::vector<int32_t> first, count;  // [experts]: an expert's first row, and how many it has
    std::vector<int32_t> active;  // the experts that have any
    int32_t most = 0;  // rows of one
    std::atomic<int64_t> routed{0};  // tokens whose experts are chosen

    void reserve(int64_t tokens, int experts, int chosen) {
        const auto rows = static_cast<size_t>(tokens * chosen);
        for (auto* v : {&first, &count})
            v->resize(std::max(v->size(), static_cast<size_t>(experts)));
        for (auto* v : {&expert, &row}) v->resize(std::max(v->size(), rows));
        active.reserve(static_cast<size_t>(experts));
    }
    // Each of this many tokens goes to all experts, which are the heads of a layer.
    void to_all(int64_t n, int64_t tokens, int experts) {
        for (int e = 0; e < experts; ++e) {
            const auto i = static_cast<size_t>(n * experts + e);
            expert[i] = e;
            row[i] = static_cast<int32_t>(e * whole_blocks(tokens) + n);
        }
    }
    // After `done` tokens of a thread; the last thread gives the experts their rows.
    void end_to_all(int64_t done, int64_t tokens, int experts) {
        if ((routed += done) < tokens) return;
        active.clear();
        for (int e = 0; e < experts; ++e) {
            active.push_back(e);
            first[static_cast<size_t>(e)] = static_cast<int32_t>(e * whole_blocks(tokens));
            count[static_cast<size_t>(e)] = static_cast<int32_t>(tokens);
        }
        most = static_cast<int32_t>(tokens);
        routed = 0;
    }
    // Rows that a buffer of a value needs for this many tokens; rows of experts are padded to whole blocks.
    static int64_t capacity(const Operand& x, int64_t tokens) {
        if (!x.chosen) return tokens;
        const int64_t rows = tokens * x.chosen, active = std::min<int64_t>(x.experts, rows);
        return rows + active * (kExpertBlock - 1);
    }
};

}  // namespace sterna
