// How a test makes a page of a mapped file unreadable; core/posix and core/windows define it.
#pragma once
#include <cstdint>
#include <cstdio>

#include "runtime/system/system.h"

namespace sterna::testing {

system::File file_of(std::FILE* stream);
// After it, the first read of the mapping meets a page that is not there any more, or it has met one already.
void lose_page(system::File file, const uint8_t* data);

}  // namespace sterna::testing
