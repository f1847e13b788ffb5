// The yardstick for decoding: what the memory bus gives to plain reads on this machine, now.
#pragma once

#include <cstddef>

namespace sterna {

// GB/s (10^9 bytes): best of five reads of an nbytes buffer in huge pages, each of `threads`
// threads reading its own contiguous part, which it also touched first. Meaningful well above the
// last-level cache: 1 GiB. The buffer is freed before returning. Throws std::bad_alloc if it cannot
// be had and std::invalid_argument for threads or nbytes out of range (nbytes: at least 4 KiB a
// thread).
double bandwidth_gb_s(int threads, size_t nbytes);

}  // namespace sterna
