// One token's attention over a long context by itself: what is measured where reading.h is to be decided.
#pragma once
#include <cstdint>
#include <vector>

#include "program/program.h"
#include "runtime/pool.h"
#include "units/kernel_table.h"

namespace sterna {

// Keys and values of `positions`, a multiple of kPagePositions, of one layer.
class AttentionTimer {
  public:
    AttentionTimer(int kv_heads, int head_dim, int positions, KvType type);

    // Seconds in which the pool reads them all, as it is told to read, for so many query heads of each KV head.
    double seconds(const KernelTable& unit, Pool& pool, int queries_per_kv) const;
    int64_t bytes() const { return cache_.pages * cache_.page_stride(0); }

  private:
    KvCache cache_;
    std::vector<int32_t> pages_;
};

}  // namespace sterna
