#include "runtime/allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace sterna {
namespace {
std::atomic<int64_t> count{0};
}  // namespace

int64_t allocations() { return count.load(std::memory_order_relaxed); }

void count_allocation() { count.fetch_add(1, std::memory_order_relaxed); }

}  // namespace sterna

// This module's own operator new (the linker binds it inside the module, CMakeLists.txt): malloc, as
// the library's, so that memory may cross the border in both directions. Only Linux promises that.
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {

void* take(std::size_t size, std::size_t alignment) noexcept {
    sterna::count_allocation();
    if (size == 0) size = 1;
    if (alignment <= alignof(std::max_align_t)) return std::malloc(size);
    void* block = nullptr;
    return posix_memalign(&block, alignment, size) == 0 ? block : nullptr;
}

void* take_or_throw(std::size_t size, std::size_t alignment) {
    if (void* block = take(size, alignment)) return block;
    throw std::bad_alloc();
}

constexpr std::size_t value(std::align_val_t a) { return static_cast<std::size_t>(a); }

}  // namespace

void* operator new(std::size_t n) { return take_or_throw(n, 1); }
void* operator new[](std::size_t n) { return take_or_throw(n, 1); }
void* operator new(std::size_t n, std::align_val_t a) { return take_or_throw(n, value(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return take_or_throw(n, value(a)); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return take(n, 1); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return take(n, 1); }

void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }

#endif
