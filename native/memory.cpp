#include "memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "allocations.h"

namespace sterna {

HugeBuffer::HugeBuffer(size_t bytes) : size_(bytes) {
    constexpr size_t kHuge = size_t{2} << 20;
    if (bytes == 0) return;
    count_allocation();
    if (bytes < kHuge) {  // malloc keeps small blocks warm; a mapping would fault in each page anew
        mapping_ = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!mapping_) throw std::bad_alloc();
        data_ = static_cast<uint8_t*>(std::memset(mapping_, 0, bytes));
        return;
    }
    // Room to move the start to a huge-page boundary; what lies before and after is never touched.
    mapped_ = bytes + kHuge;
    if (mapped_ < bytes) throw std::bad_alloc();
    mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping_ == MAP_FAILED) {
        mapping_ = nullptr;
        throw std::bad_alloc();
    }
    const auto address = (reinterpret_cast<uintptr_t>(mapping_) + kHuge - 1) / kHuge * kHuge;
    data_ = reinterpret_cast<uint8_t*>(address);
#ifdef MADV_HUGEPAGE
    madvise(data_, bytes, MADV_HUGEPAGE);  // a wish: failure is fine
#endif
}

HugeBuffer::~HugeBuffer() {
    if (mapped_) {
        munmap(mapping_, mapped_);
    } else {
        std::free(mapping_);
    }
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept { *this = std::move(other); }

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_, other.mapped_);
    return *this;
}

}  // namespace sterna
