// The lookup-table layouts as a capsule, which sterna._native.add_layouts takes.
#include <nanobind/nanobind.h>

#include "generated/lookup_units.inc"
#include "units/kernel_table.h"

#define STERNA_UNIT(isa) extern "C" sterna::FormatFamily sterna_lookup_##isa();
STERNA_LOOKUP_UNITS
#undef STERNA_UNIT

namespace nb = nanobind;

NB_MODULE(_lookup, m) {
    m.doc() =
        "Kernels of the lookup-table layouts. Private: sterna_papers.lookup is the interface.";
    static const sterna::UnitLayouts units[] = {
#define STERNA_UNIT(isa) {#isa, sterna_lookup_##isa()},
        STERNA_LOOKUP_UNITS
#undef STERNA_UNIT
    };
    static const sterna::AddedLayouts all = {units, sizeof units / sizeof *units};
    m.attr("layouts") = nb::capsule(&all, STERNA_LAYOUTS_CAPSULE);
}
