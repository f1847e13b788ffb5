// A rehearsal of how threads of unequal speed share a matrix.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/pool.h"

namespace sterna {

struct Share {
    int64_t tiles = 0;
    int64_t time = 0;  // when the worker was done; a worker that is not slowed takes 1 for a tile
    int64_t remote = 0;  // tiles that lie near threads of another memory node
};

// How the pool's workers share a matrix if worker i takes slowdown[i] >= 1 as long as the others
// for a tile. Real workers take real chunks, but time is a number: a worker advances its own clock
// by what its chunk costs, and takes the next when no other clock is behind. So the result depends
// on the division of the work alone, not on the machine. Where the pool's threads belong to memory nodes, so do the
// tiles, in parts or as replicas, as programs place them.
std::vector<Share> rehearse(Pool& pool, int64_t tiles, int64_t tokens,
                            std::span<const int64_t> slowdown, bool replicas = false);

}  // namespace sterna
