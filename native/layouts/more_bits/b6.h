// b6: six-bit codes 0..63, in the lines of planes.h: four low bits and a plane of two.
#pragma once
#include "layouts/planes.h"
#include "units/kernel_table.h"

namespace {

struct b6 : BitPlanes<4, 2, 16, 32> {
    static constexpr const char* kName = "b6";
    static void pack(const sterna::PackArgs& a) { pack_planes<b6>(a); }
    static void row(const sterna::RowArgs& a) { row_of_planes<b6>(a); }
};

}  // namespace
