#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>

#include "runtime/system/posix/advice.h"
#include "runtime/system/system.h"

namespace sterna {
namespace {

[[noreturn]] void fail(const char* call) {
    throw std::system_error(errno, std::generic_category(), call);
}

std::atomic<system::FaultHandler> fault_handler{nullptr};
bool installed = false;
struct sigaction previous{};

void pass_on(int signal, siginfo_t* info, void* context) {
    if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(signal, info, context);
    const bool sent = info->si_code <= 0;  // else it comes again, on return
    if (previous.sa_handler == SIG_IGN && sent) return;
    if (previous.sa_handler != SIG_IGN && previous.sa_handler != SIG_DFL)
        return previous.sa_handler(signal);
    std::signal(SIGBUS, SIG_DFL);
    if (sent) std::raise(SIGBUS);
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
    const int error = errno;
    const system::FaultHandler handler = fault_handler.load(std::memory_order_acquire);
    const bool faulted = info->si_code > 0;  // else the signal was sent
    if (!faulted || !handler || !handler(reinterpret_cast<uintptr_t>(info->si_addr)))
        pass_on(signal, info, context);
    errno = error;
}

bool on_top() {
    struct sigaction now{};
    sigaction(SIGBUS, nullptr, &now);
    return (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == &on_bus_error;
}

}  // namespace

system::File system::duplicate(File file) {
    const int copy = fcntl(static_cast<int>(file), F_DUPFD_CLOEXEC, 0);
    if (copy < 0) fail("fcntl");
    return copy;
}

void system::close(File file) { ::close(static_cast<int>(file)); }

system::FileState system::state_of(File file) {
    struct stat now{};
    if (fstat(static_cast<int>(file), &now) != 0) fail("fstat");
    const timespec time = time_of(now);
    return {static_cast<uint64_t>(now.st_size), static_cast<int64_t>(time.tv_sec),
            static_cast<int64_t>(time.tv_nsec)};
}

const uint8_t* system::map_file(File file, size_t bytes) {
    void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, static_cast<int>(file), 0);
    if (data == MAP_FAILED) fail("mmap");
    ask_for_huge_pages(data, bytes);
    return static_cast<const uint8_t*>(data);
}

void system::unmap_file(const uint8_t* data, size_t bytes) {
    munmap(const_cast<uint8_t*>(data), bytes);
}

size_t system::read_at(File file, uint8_t* to, size_t bytes, uint64_t offset) {
    size_t done = 0;
    while (done < bytes) {
        const ssize_t count = pread(static_cast<int>(file), to + done, bytes - done,
                                    static_cast<off_t>(offset + done));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) fail("pread");
        done += static_cast<size_t>(count);
        if (count == 0 || done % kDirectBytes) break;  // the file ends
    }
    return done;
}

// A handler that was put on top of this one passes on what is not its own, as this one does: to come on top of it again
// would make a circle. So this one stays below, and does nothing while nothing is watched.
void system::watch_faults(FaultHandler handler) {
    fault_handler.store(handler, std::memory_order_release);
    if (installed) return;
    struct sigaction ours{};
    ours.sa_sigaction = &on_bus_error;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, nullptr, &previous);
    installed = sigaction(SIGBUS, &ours, nullptr) == 0;
}

void system::unwatch_faults() {
    if (!installed || !on_top()) return;
    sigaction(SIGBUS, &previous, nullptr);
    installed = false;
}

bool system::replace_by_zeros(uintptr_t begin, size_t bytes) {
    return mmap(reinterpret_cast<void*>(begin), bytes, PROT_READ,
                MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED;
}

}  // namespace sterna
