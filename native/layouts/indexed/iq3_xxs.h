// iq3_xxs: levels 2 to 31 of both signs, the halves of ggml's; 256 entries of four (indexed.h).
#pragma once
#include "layouts/indexed.h"

namespace {

struct iq3_xxs_type {
    static constexpr const auto& grid() { return sterna::kIq3XxsGrid; }
    static constexpr int kSigns = 7, kShifts = 0, kGroup = 32, kZero = 31, kPlaceShift = 2;
};
struct iq3_xxs : Indexed<iq3_xxs_type> {
    static constexpr const char* kName = "iq3_xxs";
};

}  // namespace
