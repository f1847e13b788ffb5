#include <new>

#include "runtime/system/system.h"
#include "runtime/system/windows/api.h"

namespace sterna {

size_t system::page_bytes() {
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwPageSize;
}

// Large pages need a privilege that no user has by default. Memory is committed at once: the system counts it against
// memory and page file, and takes a page when it is touched.
uint8_t* system::map_memory(size_t bytes, bool) {
    const size_t room = bytes + kHuge;
    if (room < bytes) throw std::bad_alloc();
    // A part of a mapping cannot be given back, so a larger one tells where there is room. Another thread may take it
    // meanwhile.
    for (int attempt = 0; attempt < 16; ++attempt) {
        void* const found = VirtualAlloc(nullptr, room, MEM_RESERVE, PAGE_NOACCESS);
        if (!found) break;
        VirtualFree(found, 0, MEM_RELEASE);
        const uintptr_t begin = (reinterpret_cast<uintptr_t>(found) + kHuge - 1) / kHuge * kHuge;
        void* const data = VirtualAlloc(reinterpret_cast<void*>(begin), bytes,
                                        MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
        if (data) return static_cast<uint8_t*>(data);
        if (GetLastError() == ERROR_COMMITMENT_LIMIT || GetLastError() == ERROR_NOT_ENOUGH_MEMORY)
            break;
    }
    throw std::bad_alloc();
}

void system::unmap_memory(uint8_t* memory, size_t) { VirtualFree(memory, 0, MEM_RELEASE); }

// The pages stay committed, so that none can be missing later, and keep what they have until the system needs them.
bool system::give_back(uint8_t* pages, size_t bytes) {
    VirtualAlloc(pages, bytes, MEM_RESET, PAGE_READWRITE);
    return false;
}

}  // namespace sterna
