#include "memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace sterna {

HugeBuffer::HugeBuffer(size_t bytes) : size_(bytes) {
    constexpr size_t kHuge = size_t{2} << 20;
    if (bytes == 0) return;
    // Room to move the start to a huge-page boundary; what lies before and after is never touched.
    mapped_ = bytes + (bytes >= kHuge ? kHuge : 0);
    if (mapped_ < bytes) throw std::bad_alloc();
    mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping_ == MAP_FAILED) {
        mapping_ = nullptr;
        throw std::bad_alloc();
    }
    auto address = reinterpret_cast<uintptr_t>(mapping_);
    if (bytes >= kHuge) {
        address = (address + kHuge - 1) / kHuge * kHuge;
#ifdef MADV_HUGEPAGE
        madvise(reinterpret_cast<void*>(address), bytes, MADV_HUGEPAGE);  // a wish: failure is fine
#endif
    }
    data_ = reinterpret_cast<uint8_t*>(address);
}

HugeBuffer::~HugeBuffer() {
    if (mapping_) munmap(mapping_, mapped_);
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
