// How few tokens' weights are asked for from memory: which Reading a team of threads uses.
#pragma once
#include "kernel_table.h"

namespace sterna {

// What serves this CPU's maker where nothing was measured. Of the machines that were: on Xeons (Sapphire and
// Granite Rapids) four streams read a quarter to 29 % more than one, on AMD's Zen 4 and Zen 5 one that asks a
// page ahead reads 1.3 to 1.9 times what four do (docs/benchmarks.md).
Reading default_reading();

// Throws std::invalid_argument for what a kernel cannot take.
Reading checked_reading(int streams, int turn_bytes, int prefetch_bytes);

}  // namespace sterna
