// Zeroed memory: weights, KV pages, activation buffers. From 2 MiB on it is mapped, in huge pages where
// the system has them, and takes no room until touched; below it comes from malloc.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sterna {

class HugeBuffer {
  public:
    HugeBuffer() = default;
    // Throws std::bad_alloc. Aligned to 64 bytes, or 2 MiB from that size on.
    explicit HugeBuffer(size_t bytes);
    ~HugeBuffer();
    HugeBuffer(HugeBuffer&& other) noexcept;
    HugeBuffer& operator=(HugeBuffer&& other) noexcept;

    uint8_t* data() const { return data_; }
    size_t size() const { return size_; }

  private:
    uint8_t* data_ = nullptr;
    size_t size_ = 0;
    void* mapping_ = nullptr;
    size_t mapped_ = 0;
};

}  // namespace sterna
