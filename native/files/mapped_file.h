// A file mapped read-only into memory that survives what happens to it.
//
// Reading a page of a mapping that its file has no longer, or that cannot be read from the disk, is SIGBUS, which ends
// a process. A handler, which is there as long as mappings are, puts zeros in the place of the whole mapping and marks
// it: every thread goes on, with results that are worth nothing. Whoever has computed with a mapping therefore asks
// afterwards whether it is still whole. Signals for other addresses, and those that were sent, go to the handler that
// was there before.
#pragma once
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <stdexcept>
#include <string>

namespace sterna {

// The file of a mapping is no longer what it was: what() is its path, as the system has it.
struct ChangedFile : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Mappings are made and ended by one thread at a time, used by any number.
class MappedFile {
  public:
    // Maps all of an open file. Throws ChangedFile unless it has so many bytes, std::system_error where it cannot be mapped.
    MappedFile(int descriptor, size_t bytes, const std::string& path);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    const uint8_t* data() const { return data_; }
    // Throws ChangedFile if anything read so far may not be what the file had when it was mapped: a page was not there,
    // or the file's length or time are others. The end of a page that is cut in two reads as zeros without a signal.
    void require_whole() const;
    // The mapping that an address lies in, or null.
    static const MappedFile* of(const void* address);

  private:
    friend struct BusGuard;
    struct Slot;

    const std::string path_;
    const size_t bytes_;
    int descriptor_ = -1;  // its own
    timespec time_{};  // time of the file's last change
    const uint8_t* data_ = nullptr;
    Slot* slot_ = nullptr;
};

}  // namespace sterna
