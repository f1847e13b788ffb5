// iq2_s: levels 8, 25 and 43 of both signs; 1024 entries of eight (indexed.h).
#pragma once
#include "layouts/indexed.h"

namespace {

struct iq2_s_type {
    static constexpr const auto& grid() { return sterna::kIq2SGrid; }
    static constexpr int kSigns = 8, kShifts = 0, kGroup = 16, kZero = 43, kPlaceShift = 4;
};
struct iq2_s : Indexed<iq2_s_type> {
    static constexpr const char* kName = "iq2_s";
};

}  // namespace
