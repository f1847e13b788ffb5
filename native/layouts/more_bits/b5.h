// b5: five-bit codes 0..31, in the lines of planes.h: four low bits and a plane of one.
#pragma once
#include "layouts/planes.h"
#include "units/kernel_table.h"

namespace {

struct b5 : BitPlanes<4, 1, 32, 0> {
    static constexpr const char* kName = "b5";
    static constexpr bool kGroupScales = true, kMinima = true;
    static void pack(const sterna::PackArgs& a) { pack_planes<b5>(a); }
    static void row(const sterna::RowArgs& a) { row_of_planes<b5>(a); }
};

}  // namespace
