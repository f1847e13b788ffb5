#include "files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <system_error>

namespace sterna {

// The handler's view of a mapping. Slots are never freed: a signal may come at any moment.
struct MappedFile::Slot {
    std::atomic<uintptr_t> begin{0}, end{0};  // none where `end` is 0
    std::atomic<bool> damaged{false};
    const MappedFile* file = nullptr;

    bool holds(uintptr_t address) const {
        return address < end.load(std::memory_order_acquire) &&
               address >= begin.load(std::memory_order_relaxed);
    }
};

namespace {

constexpr int kMostMappings = 1024;

#ifdef __APPLE__
timespec time_of(const struct stat& s) { return s.st_mtimespec; }
#else
timespec time_of(const struct stat& s) { return s.st_mtim; }
#endif

[[noreturn]] void fail(const std::string& what) {
    throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

// The handler of SIGBUS, and its data.
struct BusGuard {
    static MappedFile::Slot slots[kMostMappings];
    static int used;  // mappings
    static bool installed;
    static struct sigaction previous;

    static void handle(int signal, siginfo_t* info, void* context);
    static void pass_on(int signal, siginfo_t* info, void* context);
    static bool on_top() {
        struct sigaction now{};
        sigaction(SIGBUS, nullptr, &now);
        return (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == &handle;
    }
    // A handler that was put on top of this one passes on what is not its own, as this one does: to come on top of it
    // again would make a circle.
    static void install() {
        if (installed) return;
        struct sigaction ours{};
        ours.sa_sigaction = &handle;
        ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&ours.sa_mask);
        sigaction(SIGBUS, nullptr, &previous);
        installed = sigaction(SIGBUS, &ours, nullptr) == 0;
    }
    static void remove() {
        if (!installed || !on_top()) return;
        sigaction(SIGBUS, &previous, nullptr);
        installed = false;
    }
};

MappedFile::Slot BusGuard::slots[kMostMappings];
int BusGuard::used = 0;
bool BusGuard::installed = false;
struct sigaction BusGuard::previous{};

void BusGuard::handle(int signal, siginfo_t* info, void* context) {
    const int error = errno;
    const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    for (auto& slot : slots) {
        if (info->si_code <= 0 || !slot.holds(address)) continue;
        const uintptr_t begin = slot.begin, end = slot.end;
        slot.damaged = true;  // before anyone can read a zero
        void* zeros = mmap(reinterpret_cast<void*>(begin), end - begin, PROT_READ,
                           MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (zeros == MAP_FAILED) break;
        errno = error;
        return;
    }
    pass_on(signal, info, context);
    errno = error;
}

void BusGuard::pass_on(int signal, siginfo_t* info, void* context) {
    if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(signal, info, context);
    const bool sent = info->si_code <= 0;  // else it comes again, on return
    if (previous.sa_handler == SIG_IGN && sent) return;
    if (previous.sa_handler != SIG_IGN && previous.sa_handler != SIG_DFL)
        return previous.sa_handler(signal);
    std::signal(SIGBUS, SIG_DFL);
    if (sent) std::raise(SIGBUS);
}

MappedFile::MappedFile(int descriptor, size_t bytes, const std::string& path)
    : path_(path), bytes_(bytes) {
    struct stat now{};
    if (fstat(descriptor, &now) != 0) fail(path);
    if (now.st_size < 0 || static_cast<size_t>(now.st_size) != bytes) throw ChangedFile(path);
    for (auto& slot : BusGuard::slots)
        if (!slot.end && !slot_) slot_ = &slot;
    errno = EMFILE;
    if (!slot_) fail(path);
    descriptor_ = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (descriptor_ < 0) fail(path);
    void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor_, 0);
    if (data == MAP_FAILED) {
        const int error = errno;
        close(descriptor_);
        errno = error;
        fail(path);
    }
#ifdef MADV_HUGEPAGE
    madvise(data, bytes, MADV_HUGEPAGE);  // a wish: failure is fine
#endif
    data_ = static_cast<const uint8_t*>(data);
    time_ = time_of(now);
    slot_->file = this;
    slot_->damaged = false;
    slot_->begin = reinterpret_cast<uintptr_t>(data);
    slot_->end.store(slot_->begin + bytes, std::memory_order_release);
    ++BusGuard::used;
    BusGuard::install();
}

MappedFile::~MappedFile() {
    slot_->end = 0;
    munmap(const_cast<uint8_t*>(data_), bytes_);
    close(descriptor_);
    if (--BusGuard::used == 0) BusGuard::remove();
}

void MappedFile::require_whole() const {
    struct stat now{};
    const bool same = fstat(descriptor_, &now) == 0 && now.st_size >= 0 &&
                      static_cast<size_t>(now.st_size) == bytes_ &&
                      time_of(now).tv_sec == time_.tv_sec && time_of(now).tv_nsec == time_.tv_nsec;
    if (!same) slot_->damaged = true;  // permanently, even if the file is restored
    if (slot_->damaged) throw ChangedFile(path_);
}

const MappedFile* MappedFile::of(const void* address) {
    for (const auto& slot : BusGuard::slots)
        if (slot.holds(reinterpret_cast<uintptr_t>(address))) return slot.file;
    return nullptr;
}

}  // namespace sterna
