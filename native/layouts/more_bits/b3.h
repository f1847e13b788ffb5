// b3: three-bit codes 0..7, in the lines of planes.h: two low bits and a plane of one.
#pragma once
#include "layouts/planes.h"
#include "units/kernel_table.h"

namespace {

struct b3 : BitPlanes<2, 1, 16, 4> {
    static constexpr const char* kName = "b3";
    static void pack(const sterna::PackArgs& a) { pack_planes<b3>(a); }
    static void row(const sterna::RowArgs& a) { row_of_planes<b3>(a); }
};

}  // namespace
