// A file mapped read-only into memory; the process survives when the file is truncated or its disk fails.
//
// Reading a page that the file no longer has, or that the disk cannot read, is a fault (SIGBUS on Linux), which would end
// the process. While mappings exist, a handler replaces the whole mapping with zeros and marks it: all threads go on, with
// worthless results. So callers ask after a computation whether the mapping is still whole. Faults at other addresses, and
// signals that were sent, go to the previous handler.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "runtime/system/system.h"

namespace sterna {

// The file of a mapping has changed. what() is its path in the bytes of the file system.
struct ChangedFile : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Mappings are made and ended by one thread at a time, used by any number.
class MappedFile {
  public:
    // Maps all of an open file. Throws ChangedFile unless it has this many bytes, std::system_error, with a number of errno, if mapping fails.
    MappedFile(system::File file, size_t bytes, const std::string& path);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    const uint8_t* data() const { return data_; }
    // Throws ChangedFile if anything read so far may not be what the file had when it was mapped: a page was not there,
    // or the file's length or time are others. The end of a page that is cut in two reads as zeros without a signal.
    void require_whole() const;
    size_t bytes() const { return bytes_; }
    const std::string& path() const { return path_; }
    system::File file() const { return file_; }
    // When it was mapped.
    const system::FileState& state() const { return state_; }
    // The mapping that an address lies in, or null.
    static const MappedFile* of(const void* address);

  private:
    struct Slot;
    struct Slots;

    const std::string path_;
    const size_t bytes_;
    system::File file_ = -1;  // its own
    system::FileState state_;  // when it was mapped
    const uint8_t* data_ = nullptr;
    Slot* slot_ = nullptr;
};

}  // namespace sterna
