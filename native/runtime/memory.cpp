#include "runtime/memory.h"

#include <cstring>
#include <new>
#include <utility>

#include "runtime/system/system.h"

namespace sterna {

namespace {

using system::kHuge;
constexpr std::align_val_t kLine{64};

}  // namespace

HugeBuffer::HugeBuffer(size_t bytes, bool reserved) : size_(bytes) {
    if (bytes == 0) return;
    if (bytes < kHuge) {  // malloc keeps small blocks warm; a mapping would fault in each page anew
        data_ = static_cast<uint8_t*>(::operator new(bytes, kLine));
        std::memset(data_, 0, bytes);
        return;
    }
    // One that will be used to its end has its last part in a huge page, too.
    mapped_ = reserved ? (bytes + kHuge - 1) / kHuge * kHuge : bytes;
    if (mapped_ < bytes) throw std::bad_alloc();
    data_ = system::map_memory(mapped_, reserved);
}

HugeBuffer::~HugeBuffer() {
    if (mapped_) {
        system::unmap_memory(data_, mapped_);
    } else {
        ::operator delete(data_, kLine);
    }
}

void HugeBuffer::release(int64_t begin, int64_t bytes) {
    if (!mapped_) return;
    const size_t page = system::page_bytes();
    const auto address = reinterpret_cast<uintptr_t>(data_) + static_cast<uintptr_t>(begin);
    const uintptr_t first = (address + page - 1) / page * page;
    const uintptr_t end = (address + static_cast<uintptr_t>(bytes)) / page * page;
    if (first < end) system::give_back(reinterpret_cast<uint8_t*>(first), end - first);
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept { *this = std::move(other); }

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
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
