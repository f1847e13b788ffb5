#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "runtime/system/posix/advice.h"
#include "runtime/system/system.h"

namespace sterna {

size_t system::page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

uint8_t* system::map_memory(size_t bytes, bool reserved) {
    // Room to move the begin to a huge page's; the rest is unmapped again.
    const size_t room = bytes + kHuge;
    if (room < bytes) throw std::bad_alloc();
    void* memory = mmap(nullptr, room, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | (reserved ? 0 : kAddressesOnly), -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    const auto address = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t begin = (address + kHuge - 1) / kHuge * kHuge, page = page_bytes();
    const uintptr_t end = (begin + bytes + page - 1) / page * page;
    if (begin > address) munmap(memory, begin - address);
    if (end < address + room) munmap(reinterpret_cast<void*>(end), address + room - end);
    auto* const data = reinterpret_cast<uint8_t*>(begin);
    ask_for_huge_pages(data, bytes);
    return data;
}

void system::unmap_memory(uint8_t* memory, size_t bytes) { munmap(memory, bytes); }

}  // namespace sterna
