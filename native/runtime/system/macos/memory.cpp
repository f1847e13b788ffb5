#include <sys/mman.h>
#include <sys/stat.h>

#include "runtime/system/posix/advice.h"
#include "runtime/system/system.h"

namespace sterna {

const int system::kAddressesOnly = MAP_NORESERVE;

// Pages have 16 KiB on ARM; larger ones cannot be asked for there.
void system::ask_for_huge_pages(void*, size_t) {}

timespec system::time_of(const struct stat& state) { return state.st_mtimespec; }

// MADV_DONTNEED leaves what is there: a new mapping in its place has zeros.
bool system::give_back(uint8_t* pages, size_t bytes) {
    return mmap(pages, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1,
                0) != MAP_FAILED;
}

}  // namespace sterna
