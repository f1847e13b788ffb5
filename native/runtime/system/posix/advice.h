// Where mappings of Linux and macOS differ.
#pragma once
#include <sys/stat.h>

#include <cstddef>
#include <ctime>

namespace sterna::system {

// The flag of a mapping for which the system sets nothing aside.
extern const int kAddressesOnly;
void ask_for_huge_pages(void* memory, size_t bytes);
timespec time_of(const struct stat& state);  // of the last change

}  // namespace sterna::system
