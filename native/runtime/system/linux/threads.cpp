#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "runtime/system/system.h"

namespace sterna {

// The futex itself: std::atomic::wait yields four times before it sleeps.
void system::sleep_while_equal(std::atomic<uint32_t>& word, uint32_t old) {
    static_assert(sizeof(word) == sizeof(uint32_t));
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, old, nullptr,
            nullptr, 0);
}

void system::wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
            nullptr, 0);
}

void system::begin_worker() {}

}  // namespace sterna
