// Counts the memory that this module takes, so that a test can show that a step takes none.
#pragma once

#include <cstdint>

namespace sterna {

// Blocks from operator new and HugeBuffers since the start, of all threads. Where operator new is
// not ours (other systems than Linux, sanitizers) only HugeBuffers count.
int64_t allocations();

void count_allocation();

}  // namespace sterna
