// Zeroed memory: KV pages, activation buffers, results. From 2 MiB on it is mapped, in huge pages where
// the system has them, and takes no room until touched; below it comes from malloc.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace sterna {

class HugeBuffer {
  public:
    HugeBuffer() = default;
    // Throws std::bad_alloc. Aligned to 64 bytes, or 2 MiB from that size on. `reserved`: all of it will be used, so
    // the system is asked for as much, and what it obviously does not have is refused; else it is address space.
    explicit HugeBuffer(size_t bytes, bool reserved = false);
    ~HugeBuffer();
    HugeBuffer(HugeBuffer&& other) noexcept;
    HugeBuffer& operator=(HugeBuffer&& other) noexcept;

    uint8_t* data() const { return data_; }
    size_t size() const { return size_; }
    // Gives the whole pages of the system in a part of a mapping back to it; they are zeroed, or as they are, and take
    // room again when they are touched. Nothing where the memory comes from malloc.
    void release(int64_t begin, int64_t bytes);

  private:
    uint8_t* data_ = nullptr;
    size_t size_ = 0;
    size_t mapped_ = 0;  // bytes of its mapping; 0: it comes from malloc
};

// Buffers that are reused by the next request of about their size. The system clears fresh memory first, which takes
// as long as reading a file into it, or several times that in a virtual machine whose host lends the memory.
class SpareBuffers {
  public:
    // A buffer of any content. Throws std::bad_alloc.
    HugeBuffer take(size_t bytes);
    void give(HugeBuffer buffer);
    // Frees memory that is spare now or returned later.
    void close();

  private:
    // Enough for the largest layers at a time; an embedding is read once and would only lie there.
    static constexpr size_t kMostBytes = size_t{256} << 20;

    std::mutex mutex_;
    std::vector<HugeBuffer> spare_;
    size_t bytes_ = 0;  // bytes of `spare_`
    bool closed_ = false;
};

}  // namespace sterna
