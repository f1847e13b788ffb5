// Which kernel units exist, which of them this machine can run, and which one is meant.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "units/kernel_table.h"

namespace sterna {

// Every unit of this build, lowest rank first.
std::span<const KernelTable* const> all_tables();
// The units that this CPU and operating system can run, lowest rank first; never empty (scalar).
const std::vector<const KernelTable*>& runnable_tables();
// From now on a unit counts as one that cannot run: it computes wrong results here. Not scalar, which always runs.
void exclude_table(std::string_view isa);
// A unit by name; null if it is unknown or cannot run here.
const KernelTable* find_table(std::string_view isa);
// Adds the layouts of another module, which stays loaded; names that are there already are left as they are. Not while
// another thread calls it, or asks for a layout by its name. std::invalid_argument if a unit would be without them.
void add_layouts(const AddedLayouts& added);
// Index of a code layout in every table's `formats`; -1 if unknown.
int format_index(std::string_view layout);

}  // namespace sterna
