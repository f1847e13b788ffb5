// The lookup-table layouts for one kernel unit of the core: CMake compiles this file once for each native/isa/*.h
// but matrix units. As in the core's units, everything but the one exported function lives in an anonymous namespace.
#include <cstdint>

#include "lookup/layouts.h"
#include "units/kernel_table.h"

namespace {

template <class F>
constexpr sterna::FormatKernels format_kernels(const char* name) {
    sterna::FormatKernels k = {};
    k.name = name;
    k.integer = true;
    k.read_loop = sterna::ReadLoop::kFewBits;
    k.tile_rows = kTileRows<F>;
    k.source_bytes = F::kSourceBytes;
    k.rows = true;
    k.step_k = F::kStepK;
    k.tile_bytes = [](int64_t K) { return MainAndRest<F>(K).tile_bytes(); };
    k.linear = linear_lookup<F>;
    k.scratch_bytes = lookup_scratch<F>;
    k.pack = pack_lookup<F>;
    k.row = row_lookup<F>;
    if constexpr (F::Main::kPlanes == 2) k.valid = planes_valid;
    return k;
}

constexpr sterna::FormatKernels kFormats[] = {
    format_kernels<tl1<false>>("tl1_0"),     format_kernels<tl1<true>>("tl1_1"),
    format_kernels<tl2<false>>("tl2_0"),     format_kernels<tl2<true>>("tl2_1"),
    format_kernels<tmac2<false>>("tmac2_0"), format_kernels<tmac2<true>>("tmac2_1"),
    format_kernels<elut4>("elut4"),          format_kernels<elut5>("elut5"),
};

}  // namespace

extern "C" sterna::FormatFamily STERNA_JOIN(sterna_lookup, STERNA_ISA_SYMBOL)() {
    return {kFormats, sizeof kFormats / sizeof *kFormats};
}
