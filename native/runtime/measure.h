// The limits for benchmarks: the bandwidth of plain reads on this machine, now, and how long a cycle is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/pool.h"

namespace sterna {

// GB/s (10^9 bytes): median of five reads of an nbytes buffer in huge pages, each of the pool's
// threads reading its own contiguous part, which it also touched first, in the fastest of three patterns: one
// stream, one that is asked for a page ahead, four streams side by side.
// Meaningful well above the last-level cache: 1 GiB. The buffer is freed before returning. Throws std::bad_alloc if it cannot
// be had and std::invalid_argument for nbytes out of range (at least 4 KiB a thread).
double bandwidth_gb_s(Pool& pool, size_t nbytes);

// GB/s of one pass over these bytes, each thread reading a part of each array: four streams or one that is asked for a
// page ahead, as readings are where nothing was measured. Throws std::invalid_argument where there is nothing to read.
double read_gb_s(Pool& pool, std::span<const std::span<const uint8_t>> arrays);

// Nanoseconds from one of the pool's barriers to the next, with nothing in between: the mean of
// `rounds` in one run, the best of five runs. Throws std::invalid_argument unless rounds >= 1.
double barrier_ns(Pool& pool, int64_t rounds);

// Cycles per second of a core while all of the pool's threads run: the mean over the threads of
// each one's best of 16 chains of dependent additions, a cycle each. Measured and not read: cpuid
// and sysfs give the base frequency, a virtual machine often none.
double cycles_per_second(Pool& pool);

}  // namespace sterna
