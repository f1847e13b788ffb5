// Which tokens go to which experts in a step, as the last Route has chosen.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "program/operand.h"

namespace sterna {

constexpr int64_t kExpertBlock = 16;  // rows of a block of activations of a matrix unit (x_offset)

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
    // Rows that a buffer of a value needs for so many tokens: those of experts in whole blocks of each.
    static int64_t capacity(const Operand& x, int64_t tokens) {
        if (!x.chosen) return tokens;
        const int64_t rows = tokens * x.chosen, active = std::min<int64_t>(x.experts, rows);
        return rows + active * (kExpertBlock - 1);
    }
};

}  // namespace sterna
