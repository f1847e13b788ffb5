// How few tokens' weights, and a context's keys and values, are asked for from memory: the Readings of a team of threads.
#pragma once
#include "units/kernel_table.h"

namespace sterna {

// The Readings for CPUs of this maker, where nothing was measured: four streams read 29 % more than one on a Xeon, one
// that asks a page ahead 1.1 to 1.8 times what four do on Zen 4, where `q4_0` and wider gain 1.2 to 1.5 times on one
// thread if they ask into L2 (docs/measurements/kernels.md).
Readings default_readings();

// Throws std::invalid_argument for values that kernels do not support.
Reading checked_reading(int streams, int turn_bytes, int prefetch_bytes, bool into_l2);

}  // namespace sterna
