// iq2_xxs: levels 8, 25 and 43 of both signs; 256 entries of eight (indexed.h).
#pragma once
#include "layouts/indexed.h"

namespace {

struct iq2_xxs_type {
    static constexpr const auto& grid() { return sterna::kIq2XxsGrid; }
    static constexpr int kSigns = 7, kShifts = 0, kGroup = 32, kZero = 43, kPlaceShift = 4;
};
struct iq2_xxs : Indexed<iq2_xxs_type> {
    static constexpr const char* kName = "iq2_xxs";
};

}  // namespace
