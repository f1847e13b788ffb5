#include "runtime/system/system.h"
#include "runtime/system/windows/api.h"

namespace sterna {

void system::sleep_while_equal(std::atomic<uint32_t>& word, uint32_t old) {
    static_assert(sizeof(word) == sizeof(uint32_t));
    WaitOnAddress(&word, &old, sizeof old, INFINITE);
}

void system::wake_all(std::atomic<uint32_t>& word) { WakeByAddressAll(&word); }

void system::begin_worker() {}

// Ctrl-C comes in a thread of its own.
system::SignalsBlocked::SignalsBlocked() : saved_{} {}

system::SignalsBlocked::~SignalsBlocked() {}

int64_t system::process_id() { return GetCurrentProcessId(); }

std::optional<system::Apart> system::run_apart(std::string (*)(const void*), const void*) {
    return {};
}

}  // namespace sterna
