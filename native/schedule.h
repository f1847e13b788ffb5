// How a matrix is divided among the threads of a pool: dynamically, in chunks of tiles from one
// counter, so that threads of different speed finish together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "pool.h"

namespace sterna {

// How many tiles a worker takes at a time. Few tokens: about 128 KiB of weights, large enough that
// the counter and the prefetcher's start do not matter, but a quarter of a worker's even share at
// most: the last chunk of the slowest worker is what the others wait for. Many: the tiles that a
// matrix unit takes in turn while a block of the activations is in L2 (tiles.h), an eighth at most:
// such chunks are few and long.
constexpr int64_t tiles_per_chunk(int64_t tiles, int64_t tile_bytes, int64_t tokens, int threads) {
    constexpr int64_t kChunkBytes = 128 << 10, kManyTokensTiles = 4;
    const int64_t by_size =
        tokens > 8 ? kManyTokensTiles : kChunkBytes / std::max<int64_t>(1, tile_bytes);
    const int share = tokens > 8 ? 8 : 4;
    return std::max<int64_t>(1, std::min(by_size, tiles / (share * threads)));
}

struct Share {
    int64_t tiles = 0;
    int64_t time = 0;  // when the worker was done; a worker that is not slowed takes 1 for a tile
};

// How the pool's workers share a matrix if worker i takes slowdown[i] >= 1 as long as the others
// for a tile. Real workers take real chunks, but time is a number: a worker advances its own clock
// by what its chunk costs, and takes the next when no other clock is behind. So the result depends
// on the division of the work alone, not on the machine.
std::vector<Share> rehearse(Pool& pool, int64_t tiles, int64_t tile_bytes, int64_t tokens,
                            std::span<const int64_t> slowdown);

}  // namespace sterna
