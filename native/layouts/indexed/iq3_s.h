// iq3_s: odd levels 1 to 15 of both signs; 512 entries of four (indexed.h).
#pragma once
#include "layouts/indexed.h"

namespace {

struct iq3_s_type {
    static constexpr const auto& grid() { return sterna::kIq3SGrid; }
    static constexpr int kSigns = 8, kShifts = 0, kGroup = 32, kZero = 15, kPlaceShift = 1;
};
struct iq3_s : Indexed<iq3_s_type> {
    static constexpr const char* kName = "iq3_s";
};

}  // namespace
