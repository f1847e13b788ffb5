#include "runtime/arena.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>

#include "runtime/system/system.h"

namespace sterna {

namespace {

using system::kHuge;
constexpr std::align_val_t kLine{64};
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
            system::unmap_memory(pointer(first), mapping->second);
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
        if (from >= to || !system::give_back(pointer(from), to - from)) from = to = end;
        if (begin < from) std::memset(pointer(begin), 0, from - begin);
        if (to < end) std::memset(pointer(to), 0, end - to);
    }
    Ranges::iterator map(size_t bytes) {
        const size_t size = std::max(kMapping, up(bytes, kHuge));
        const auto begin = reinterpret_cast<uintptr_t>(system::map_memory(size, true));
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
        data_ = static_cast<uint8_t*>(::operator new(bytes, kLine));
        std::memset(data_, 0, bytes);
        return;
    }
    if (bytes > SIZE_MAX - 2 * kHuge) throw std::bad_alloc();
    data_ = pointer(arena().take(up(bytes, kPage)));
}

ArenaBuffer::~ArenaBuffer() {
    if (bytes_ < kLeast) {
        ::operator delete(data_, kLine);
    } else {
        arena().give(reinterpret_cast<uintptr_t>(data_), up(bytes_, kPage));
    }
}

}  // namespace sterna
