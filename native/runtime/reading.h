// How few tokens' weights, and a context's keys and values, are asked for from memory: which Reading a team of threads uses.
#pragma once
#include "units/kernel_table.h"

namespace sterna {

// The Reading for CPUs of this maker, where nothing was measured: four streams read 29 % more than one on a Xeon, one
// that asks a page ahead 1.1 to 1.8 times what four do on Zen 4 (docs/measurements/kernels.md).
Reading default_reading();

// Throws std::invalid_argument for what a kernel cannot take.
Reading checked_reading(int streams, int turn_bytes, int prefetch_bytes, bool next_page);

}  // namespace sterna
