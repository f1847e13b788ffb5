// Levels that a decoder looks up: what layouts share whose weights bring a table of them (LevelTable).
#pragma once
#include "layouts/layout.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

// The bytes of a table for b_lookup: levels plus kOffset.
template <int kOffset>
struct LevelBytes {
    alignas(16) uint8_t byte[sterna::kMostLevels];
    explicit LevelBytes(const sterna::LevelTable& table) {
        for (int i = 0; i < sterna::kMostLevels; ++i)
            byte[i] = static_cast<uint8_t>(table.of[i] + kOffset);
    }
};

// From the codes of a row to what is decoded for them, levels plus an offset.
inline void look_levels_up(const sterna::RowArgs& a, int offset) {
    for (int64_t k = 0; k < a.K; ++k)
        a.out[k] = static_cast<float>(a.levels.of[static_cast<int>(a.out[k])] + offset);
}

}  // namespace
