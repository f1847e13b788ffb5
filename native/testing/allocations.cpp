#include "testing/allocations.h"

#include <atomic>

namespace sterna {
namespace {
std::atomic<bool> in_place{false};
std::atomic<int64_t> count{0};
}  // namespace

bool counts_allocations() { return in_place.load(std::memory_order_relaxed); }
int64_t allocations() { return count.load(std::memory_order_relaxed); }

void count_allocation(bool in_core) {
    in_place.store(true, std::memory_order_relaxed);
    if (in_core) count.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace sterna
