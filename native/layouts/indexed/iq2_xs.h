// iq2_xs: levels 8, 25 and 43 of both signs; 512 entries of eight (indexed.h).
#pragma once
#include "layouts/indexed.h"

namespace {

struct iq2_xs_type {
    static constexpr const auto& grid() { return sterna::kIq2XsGrid; }
    static constexpr int kSigns = 7, kShifts = 0, kGroup = 16, kZero = 43, kPlaceShift = 4;
};
struct iq2_xs : Indexed<iq2_xs_type> {
    static constexpr const char* kName = "iq2_xs";
};

}  // namespace
