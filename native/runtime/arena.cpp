#include "runtime/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>

namespace sterna {

namespace {

constexpr size_t kHuge = size_t{2} << 20;
constexpr size_t kPage = 4096;
constexpr size_t kLeast = size_t{64} << 10;
constexpr size_t kMapping = size_t{64} << 20;  // of address space; memory is taken as it is touched

constexpr uintptr_t up(uintptr_t n, size_t to) { return (n + to - 1) / to * to; }
constexpr uintptr_t down(uintptr_t n, size_t to) { return n / to * to; }
uint8_t* pointer(uintptr_t at) { return reinterpret_cast<uint8_t*>(at); }

// Ranges of whole pages. Free memory is zeros.
class Arena {
  public:
    uintptr_t take(size_t bytes) {
        const std::lock_guard lock(mutex_);
        auto best = free_.end();
        for (auto at = free_.begin(); at != free_.end(); ++at)
            if (at->second >= bytes && (best == free_.end() || at->second < best->second))
                best = at;
        if (best == free_.end()) best = map(bytes);
        const auto [begin, size] = *best;
        free_.erase(best);
        if (size > bytes) free_.emplace(begin + bytes, size - bytes);
        return begin;
    }
    void give(uintptr_t begin, size_t bytes) {
        const std::lock_guard lock(mutex_);
        const auto mapping = std::prev(mappings_.upper_bound(begin));
        uintptr_t first = begin, last = begin + bytes;
        auto after = free_.lower_bound(begin);
        if (after != free_.begin()) {
            const auto before = std::prev(after);
            if (before->first >= mapping->first && before->first + before->second == begin) {
                first = before->first;
                free_.erase(before);
            }
        }
        if (after != free_.end() && after->first == last && last != end_of(*mapping)) {
            last += after->second;
            free_.erase(after);
        }
        if (first == mapping->first && last == end_of(*mapping)) {
            munmap(pointer(first), mapping->second);
            mappings_.erase(mapping);
            return;
        }
        clear(begin, begin + bytes, first, last);
        free_.emplace(first, last - first);
    }

  private:
    using Ranges = std::map<uintptr_t, size_t>;

    static uintptr_t end_of(const Ranges::value_type& range) { return range.first + range.second; }
    // Makes zeros of [begin, end), which lies in the free range [first, last): huge pages that nothing uses any more
    // go back to the system.
    static void clear(uintptr_t begin, uintptr_t end, uintptr_t first, uintptr_t last) {
        uintptr_t from = std::max(up(first, kHuge), down(begin, kHuge));
        uintptr_t to = std::min(down(last, kHuge), up(end, kHuge));
        if (from >= to || madvise(pointer(from), to - from, MADV_DONTNEED) != 0) from = to = end;
        if (begin < from) std::memset(pointer(begin), 0, from - begin);
        if (to < end) std::memset(pointer(to), 0, end - to);
    }
    Ranges::iterator map(size_t bytes) {
        const size_t size = std::max(kMapping, up(bytes, kHuge));
        // Room to move the begin to a huge page's; the rest is unmapped again.
        void* room =
            mmap(nullptr, size + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room == MAP_FAILED) throw std::bad_alloc();
        const auto address = reinterpret_cast<uintptr_t>(room), begin = up(address, kHuge);
        if (begin > address) munmap(room, begin - address);
        munmap(pointer(begin + size), address + kHuge - begin);
#ifdef MADV_HUGEPAGE
        madvise(pointer(begin), size, MADV_HUGEPAGE);  // a wish: failure is fine
#endif
        mappings_.emplace(begin, size);
        return free_.emplace(begin, size).first;
    }

    std::mutex mutex_;
    Ranges free_, mappings_;  // begin and bytes
};

Arena& arena() {
    static auto& one = *new Arena;  // arrays may outlive static objects when a process ends
    return one;
}

}  // namespace

ArenaBuffer::ArenaBuffer(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    if (bytes < kLeast) {
        data_ = static_cast<uint8_t*>(std::aligned_alloc(64, up(bytes, 64)));
        if (!data_) throw std::bad_alloc();
        std::memset(data_, 0, bytes);
        return;
    }
    if (bytes > SIZE_MAX - 2 * kHuge) throw std::bad_alloc();
    data_ = pointer(arena().take(up(bytes, kPage)));
}

ArenaBuffer::~ArenaBuffer() {
    if (bytes_ < kLeast) {
        std::free(data_);
    } else {
        arena().give(reinterpret_cast<uintptr_t>(data_), up(bytes_, kPage));
    }
}

}  // namespace sterna
