// What the core asks of the operating system. The folders linux, macos and windows define it, posix what the first two
// share; CMake takes those of the system that is built for (cmake/common.cmake). Nothing else in native/ knows which
// system that is. Clocks need nothing here: std::chrono::steady_clock is the monotonic one on all three.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace sterna {

struct CpuInfo;
struct Machine;

namespace system {

// ---- threads

// Sleeps if the word has this value, until wake_all or earlier.
void sleep_while_equal(std::atomic<uint32_t>& word, uint32_t old);
void wake_all(std::atomic<uint32_t>& word);

// Threads that are started while it lives get no signals but those of faults, so that a crash handler can report them:
// another one taken there would not interrupt the system call that the main thread waits in.
class SignalsBlocked {
  public:
    SignalsBlocked();
    ~SignalsBlocked();
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

  private:
    alignas(16) unsigned char saved_[128];  // the system's mask
};

// Each worker of a pool calls it as it starts: a user waits for what it computes.
void begin_worker();

// The number of this process; a child made by fork has another one.
int64_t process_id();

// ---- CPUs

// The CPUs that the calling thread may use, a bit each; false where the system does not say, or refuses.
bool read_affinity(std::span<uint64_t> words);
bool set_affinity(std::span<const uint64_t> words);
// The CPU that the calling thread runs on; -1 where the system does not say.
int current_cpu();

// Cores, their kinds and their memory nodes. root: before every path, for tests on a made-up tree of files.
Machine read_machine(const std::string& root);
// CPUs' worth of time that this process is granted; 0 without such a limit.
double cpu_quota(const std::string& root);
// Bytes of a core's data caches, and of those that it shares, by level; none where the system does not say.
std::map<int, int64_t> data_caches(const std::string& root);

// Whether programs may use a feature of the CPU that no instruction tells: those of 64-bit ARM, "v" of RISC-V.
bool offers(std::string_view feature);
// Fills in the names of a CPU that has no instruction for them.
void name_cpu(CpuInfo& info);
// The tile registers of x86: whether the system saves them, and whether it lets this process use them, for which it may
// have to be asked, once.
bool offers_tiles();
bool grants_tiles();
// What an emulator of CPUs that is loaded for tests adds to registers that CPUID has filled.
void add_emulated(uint32_t leaf, uint32_t subleaf, uint32_t& eax, uint32_t& edx);

// ---- memory

// Where mappings begin, and the size of huge pages where the system has them.
constexpr size_t kHuge = size_t{2} << 20;

// Bytes of the machine's memory, those that this process may still take, and those that it has.
struct MemoryState {
    int64_t total = 0, available = 0, resident = 0;
};
MemoryState memory_state(const std::string& root);

size_t page_bytes();
// Zeros, in huge pages where that can be, which take no room until they are touched. `reserved`: the system is asked for
// as much, and what it obviously does not have is refused. Throws std::bad_alloc.
uint8_t* map_memory(size_t bytes, bool reserved);
void unmap_memory(uint8_t* memory, size_t bytes);
// Gives whole pages of a mapping back, which take room again when they are touched. True: they are zeros now; else zeros
// or what they were.
bool give_back(uint8_t* pages, size_t bytes);

// ---- files

// What changes when a file is written or cut.
struct FileState {
    uint64_t bytes = 0;
    int64_t seconds = 0, nanoseconds = 0;  // of the last change

    friend bool operator==(const FileState&, const FileState&) = default;
};

// An open file, as the system calls it: a descriptor, or a handle. Functions throw std::system_error with a number of
// errno.
using File = intptr_t;
File duplicate(File file);
void close(File file);
FileState state_of(File file);
const uint8_t* map_file(File file, size_t bytes);
void unmap_file(const uint8_t* data, size_t bytes);

// The same file, opened anew for reads that leave nothing in the system's cache; -1 where the system has no such reads of
// it. Places, lengths and memory of such reads are multiples of kDirectBytes.
constexpr size_t kDirectBytes = 4096;
File open_direct(File file);
// Reads at a place of the file, whatever its position; fewer bytes where the file ends. Place and length are multiples of
// kDirectBytes.
size_t read_at(File file, uint8_t* to, size_t bytes, uint64_t offset);
// What was read need not stay in the system's cache.
void forget_read(File file, uint64_t offset, size_t bytes);

// Reads of a mapped page that its file no longer has, or cannot give, call a handler while it is set; it returns whether
// they can be tried again. Else, and at other addresses, what was set before is called.
using FaultHandler = bool (*)(uintptr_t address);
void watch_faults(FaultHandler handler);
void unwatch_faults();
// Puts zeros in the place of a mapped file. May be called by a handler.
bool replace_by_zeros(uintptr_t begin, size_t bytes);

// ---- processes

// What a function returned in a child of this process, and the signal that ended the child, or 0: the function may use
// instructions that do not work. None where the system has no such children.
struct Apart {
    std::string result;
    int signal = 0;
};
std::optional<Apart> run_apart(std::string (*function)(const void*), const void* argument);

}  // namespace system
}  // namespace sterna
