// iq1_m: ternary levels in eighths, 1/8 up or down for each 8 k; 2048 entries of eight (indexed.h).
#pragma once
#include "layouts/indexed.h"

namespace {

struct iq1_m_type {
    static constexpr const auto& grid() { return sterna::kIq1Grid; }
    static constexpr int kSigns = 0, kShifts = 8, kGroup = 16, kZero = 9, kPlaceShift = 3;
};
struct iq1_m : Indexed<iq1_m_type> {
    static constexpr const char* kName = "iq1_m";
};

}  // namespace
