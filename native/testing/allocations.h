// Counts the memory that the native core takes, so that a test can show that a step takes none.
#pragma once

#include <cstdint>

namespace sterna {

// Whether this module's functions stand in the place of the system's: it was loaded before all other
// libraries (LD_PRELOAD), on a system whose C library is glibc.
bool counts_allocations();

// Blocks that threads took while they did not hold the GIL, which is when the core computes: of malloc
// and its relations, which operator new calls, and mappings.
int64_t allocations();

// For those functions: whether the block was taken while the core computes.
void count_allocation(bool in_core);

}  // namespace sterna
