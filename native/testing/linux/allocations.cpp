// Functions that stand in the place of glibc's, and count.
#include "testing/allocations.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>

// Sanitizers have such functions of their own.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#define STERNA_IN_PLACE extern "C" [[gnu::visibility("default")]]

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
// Python's; null in a program that is not Python.
[[gnu::weak]] int PyGILState_Check();
}

namespace {

void count_one() { sterna::count_allocation(PyGILState_Check && !PyGILState_Check()); }

}  // namespace

STERNA_IN_PLACE void* malloc(size_t size) {
    count_one();
    return __libc_malloc(size);
}
STERNA_IN_PLACE void* calloc(size_t n, size_t size) {
    count_one();
    return __libc_calloc(n, size);
}
STERNA_IN_PLACE void* realloc(void* block, size_t size) {
    count_one();
    return __libc_realloc(block, size);
}
STERNA_IN_PLACE void* aligned_alloc(size_t alignment, size_t size) {
    count_one();
    return __libc_memalign(alignment, size);
}
STERNA_IN_PLACE int posix_memalign(void** block, size_t alignment, size_t size) {
    count_one();
    void* taken = __libc_memalign(alignment, size);
    if (!taken) return ENOMEM;
    *block = taken;
    return 0;
}
STERNA_IN_PLACE void* mmap(void* at, size_t size, int protection, int flags, int file,
                           off_t offset) {
    count_one();
    return reinterpret_cast<void*>(syscall(SYS_mmap, at, size, protection, flags, file, offset));
}

#endif
