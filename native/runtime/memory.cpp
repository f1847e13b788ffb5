#include "runtime/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace sterna {

namespace {

constexpr size_t kHuge = size_t{2} << 20;

}  // namespace

HugeBuffer::HugeBuffer(size_t bytes, bool reserved) : size_(bytes) {
    if (bytes == 0) return;
    if (bytes < kHuge) {  // malloc keeps small blocks warm; a mapping would fault in each page anew
        mapping_ = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!mapping_) throw std::bad_alloc();
        data_ = static_cast<uint8_t*>(std::memset(mapping_, 0, bytes));
        return;
    }
    // Room to move the start to a huge-page boundary; what lies before and after is never touched.
    // One that will be used to its end has its last part in a huge page, too.
    const size_t advised = reserved ? (bytes + kHuge - 1) / kHuge * kHuge : bytes;
    mapped_ = advised + kHuge;
    if (mapped_ < bytes) throw std::bad_alloc();
    mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | (reserved ? 0 : MAP_NORESERVE), -1, 0);
    if (mapping_ == MAP_FAILED) {
        mapping_ = nullptr;
        throw std::bad_alloc();
    }
    const auto address = (reinterpret_cast<uintptr_t>(mapping_) + kHuge - 1) / kHuge * kHuge;
    data_ = reinterpret_cast<uint8_t*>(address);
#ifdef MADV_HUGEPAGE
    madvise(data_, advised, MADV_HUGEPAGE);  // a wish: failure is fine
#endif
}

HugeBuffer::~HugeBuffer() {
    if (mapped_) {
        munmap(mapping_, mapped_);
    } else {
        std::free(mapping_);
    }
}

void HugeBuffer::release(int64_t begin, int64_t bytes) {
#ifdef MADV_DONTNEED
    if (!mapped_) return;
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto address = reinterpret_cast<uintptr_t>(data_) + static_cast<uintptr_t>(begin);
    const uintptr_t first = (address + page - 1) / page * page;
    const uintptr_t end = (address + static_cast<uintptr_t>(bytes)) / page * page;
    // A wish: where it fails the memory stays.
    if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
#endif
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept { *this = std::move(other); }

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_, other.mapped_);
    return *this;
}

HugeBuffer SpareBuffers::take(size_t bytes) {
    {
        const std::lock_guard lock(mutex_);
        auto best = spare_.end();
        for (auto at = spare_.begin(); at != spare_.end(); ++at)
            if (at->size() >= bytes && at->size() / 2 <= bytes &&
                (best == spare_.end() || at->size() < best->size()))
                best = at;
        if (best != spare_.end()) {
            HugeBuffer found = std::move(*best);
            spare_.erase(best);
            bytes_ -= found.size();
            return found;
        }
    }
    return HugeBuffer(bytes, true);
}

void SpareBuffers::give(HugeBuffer buffer) {
    if (buffer.size() < kHuge) return;  // malloc keeps it warm
    const std::lock_guard lock(mutex_);
    if (closed_ || bytes_ + buffer.size() > kMostBytes) return;
    bytes_ += buffer.size();
    spare_.push_back(std::move(buffer));
}

void SpareBuffers::close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    bytes_ = 0;
    spare_.clear();
}

}  // namespace sterna
