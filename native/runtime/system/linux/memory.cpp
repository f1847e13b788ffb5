#include <sys/mman.h>

#include "runtime/system/posix/advice.h"
#include "runtime/system/system.h"

namespace sterna {

const int system::kAddressesOnly = MAP_NORESERVE;

void system::ask_for_huge_pages(void* memory, size_t bytes) {
    madvise(memory, bytes, MADV_HUGEPAGE);  // a wish: failure is fine
}

timespec system::time_of(const struct stat& state) { return state.st_mtim; }

bool system::give_back(uint8_t* pages, size_t bytes) {
    return madvise(pages, bytes, MADV_DONTNEED) == 0;
}

}  // namespace sterna
