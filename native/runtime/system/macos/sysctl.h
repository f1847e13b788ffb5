#pragma once
#include <sys/sysctl.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sterna::system {

// A number that the kernel has by name, of 4 or 8 bytes; 0 where it has none.
inline int64_t number_of(const char* name) {
    unsigned char bytes[8] = {};
    size_t size = sizeof bytes;
    if (sysctlbyname(name, bytes, &size, nullptr, 0) != 0) return 0;
    int32_t narrow;
    int64_t wide;
    memcpy(&narrow, bytes, sizeof narrow);
    memcpy(&wide, bytes, sizeof wide);
    return size == sizeof narrow ? narrow : wide;
}

}  // namespace sterna::system
