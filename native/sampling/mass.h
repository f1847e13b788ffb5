// The tokens that reach a mass, likeliest first, found without sorting all: their probabilities are
// summed in buckets of the rank, and only the bucket in which the sum reaches the mass is sorted.
#pragma once

#include <cstddef>

namespace sterna {

constexpr size_t kBuckets = 4096;
// Two sums of the same probabilities, at most 1 in all, in two orders differ by less: each of at most
// 2^24 additions is off by 2^-54. Where a sum comes nearer to the mass, the tokens are sorted.
constexpr double kSumError = 0x1p-29;

}  // namespace sterna
