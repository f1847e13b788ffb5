// Times one token's attention over a long context, to choose a Reading (reading.h).
#pragma once
#include <cstdint>
#include <vector>

#include "program/program.h"
#include "runtime/pool.h"
#include "units/kernel_table.h"

namespace sterna {

// Holds the keys and values of one layer for `positions`, a multiple of kPagePositions.
class AttentionTimer {
  public:
    AttentionTimer(int kv_heads, int head_dim, int positions, KvTypes type);

    // Returns the seconds that the pool takes to attend to all positions, with this Reading and this many query heads
    // for each KV head.
    double seconds(const KernelTable& unit, Pool& pool, int queries_per_kv) const;
    int64_t bytes() const { return cache_.pages * cache_.page_stride(0); }

  private:
    KvCache cache_;
    std::vector<int32_t> pages_;
};

}  // namespace sterna
