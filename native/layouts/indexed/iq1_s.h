// iq1_s: ternary levels in eighths, 1/8 up or down for each 32 k; 2048 entries of eight (indexed.h).
#pragma once
#include "layouts/indexed.h"

namespace {

struct iq1_s_type {
    static constexpr const auto& grid() { return sterna::kIq1Grid; }
    static constexpr int kSigns = 0, kShifts = 32, kGroup = 32, kZero = 9, kPlaceShift = 3;
};
struct iq1_s : Indexed<iq1_s_type> {
    static constexpr const char* kName = "iq1_s";
};

}  // namespace
