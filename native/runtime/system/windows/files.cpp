#include <cerrno>
#include <system_error>

#include "runtime/system/system.h"
#include "runtime/system/windows/api.h"

namespace sterna {
namespace {

[[noreturn]] void fail(const char* call) {
    const std::error_code error(static_cast<int>(GetLastError()), std::system_category());
    const std::error_condition known = error.default_error_condition();
    const int number = known.category() == std::generic_category() ? known.value() : EIO;
    throw std::system_error(number, std::generic_category(), call);
}

HANDLE handle_of(system::File file) { return reinterpret_cast<HANDLE>(file); }

std::atomic<system::FaultHandler> fault_handler{nullptr};
void* installed = nullptr;

// A page of a mapped file that its disk or server cannot give: ExceptionInformation has the kind of access, the address,
// and why. A file that is mapped cannot be cut.
LONG CALLBACK on_exception(EXCEPTION_POINTERS* exception) {
    const EXCEPTION_RECORD& record = *exception->ExceptionRecord;
    const system::FaultHandler handler = fault_handler.load(std::memory_order_acquire);
    // While one thread puts zeros in the place of a mapping, another one may meet the gap.
    const bool page = record.ExceptionCode == static_cast<DWORD>(EXCEPTION_IN_PAGE_ERROR) ||
                      record.ExceptionCode == static_cast<DWORD>(EXCEPTION_ACCESS_VIOLATION);
    if (!page || record.NumberParameters < 2 || !handler) return EXCEPTION_CONTINUE_SEARCH;
    return handler(record.ExceptionInformation[1]) ? EXCEPTION_CONTINUE_EXECUTION
                                                   : EXCEPTION_CONTINUE_SEARCH;
}

}  // namespace

system::File system::duplicate(File file) {
    HANDLE copy = nullptr;
    if (!DuplicateHandle(GetCurrentProcess(), handle_of(file), GetCurrentProcess(), &copy, 0, FALSE,
                         DUPLICATE_SAME_ACCESS))
        fail("DuplicateHandle");
    return reinterpret_cast<File>(copy);
}

void system::close(File file) { CloseHandle(handle_of(file)); }

system::FileState system::state_of(File file) {
    BY_HANDLE_FILE_INFORMATION now{};
    if (!GetFileInformationByHandle(handle_of(file), &now)) fail("GetFileInformationByHandle");
    constexpr uint64_t kPerSecond = 10'000'000;
    const uint64_t time = static_cast<uint64_t>(now.ftLastWriteTime.dwHighDateTime) << 32 |
                          now.ftLastWriteTime.dwLowDateTime;
    return {static_cast<uint64_t>(now.nFileSizeHigh) << 32 | now.nFileSizeLow,
            static_cast<int64_t>(time / kPerSecond), static_cast<int64_t>(time % kPerSecond * 100)};
}

const uint8_t* system::map_file(File file, size_t bytes) {
    const HANDLE mapping =
        CreateFileMappingW(handle_of(file), nullptr, PAGE_READONLY, 0, 0, nullptr);
    if (!mapping) fail("CreateFileMapping");
    const void* data = MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, bytes);
    const DWORD error = GetLastError();
    CloseHandle(mapping);  // the view keeps it
    SetLastError(error);
    if (!data) fail("MapViewOfFile");
    return static_cast<const uint8_t*>(data);
}

// Zeros may have taken its place.
void system::unmap_file(const uint8_t* data, size_t) {
    auto* const view = const_cast<uint8_t*>(data);
    if (!UnmapViewOfFile(view)) VirtualFree(view, 0, MEM_RELEASE);
}

system::File system::open_direct(File file) {
    const HANDLE direct = ReOpenFile(handle_of(file), GENERIC_READ, FILE_SHARE_READ,
                                     FILE_FLAG_NO_BUFFERING | FILE_FLAG_RANDOM_ACCESS);
    return direct == INVALID_HANDLE_VALUE ? -1 : reinterpret_cast<File>(direct);
}

size_t system::read_at(File file, uint8_t* to, size_t bytes, uint64_t offset) {
    constexpr size_t kMost = size_t{1} << 30;  // of one call
    size_t done = 0;
    while (done < bytes) {
        OVERLAPPED place{};
        place.Offset = static_cast<DWORD>(offset + done);
        place.OffsetHigh = static_cast<DWORD>((offset + done) >> 32);
        DWORD count = 0;
        const auto wanted = static_cast<DWORD>(bytes - done < kMost ? bytes - done : kMost);
        if (!ReadFile(handle_of(file), to + done, wanted, &count, &place)) {
            if (GetLastError() == ERROR_HANDLE_EOF) break;
            fail("ReadFile");
        }
        done += count;
        if (count == 0 || done % kDirectBytes) break;  // the file ends
    }
    return done;
}

void system::forget_read(File, uint64_t, size_t) {}

void system::watch_faults(FaultHandler handler) {
    fault_handler.store(handler, std::memory_order_release);
    if (!installed) installed = AddVectoredExceptionHandler(1, &on_exception);
}

void system::unwatch_faults() {
    if (installed) RemoveVectoredExceptionHandler(installed);
    installed = nullptr;
}

bool system::replace_by_zeros(uintptr_t begin, size_t bytes) {
    static std::atomic_flag taken;  // threads that fault at once take turns
    while (taken.test_and_set(std::memory_order_acquire)) YieldProcessor();
    auto* const view = reinterpret_cast<void*>(begin);
    MEMORY_BASIC_INFORMATION now{};
    bool done = VirtualQuery(view, &now, sizeof now) != 0 && now.State == MEM_COMMIT &&
                now.Type == MEM_PRIVATE;
    if (!done) {
        UnmapViewOfFile(view);
        done = VirtualAlloc(view, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READONLY) != nullptr;
    }
    taken.clear(std::memory_order_release);
    return done;
}

}  // namespace sterna
