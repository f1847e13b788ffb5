#include "testing/core/faults.h"

#include <unistd.h>

#include "testing/core/checks.h"

namespace sterna::testing {

system::File file_of(std::FILE* stream) { return fileno(stream); }

void lose_page(system::File file, const uint8_t*) {
    require(ftruncate(static_cast<int>(file), 0) == 0, "a file can be cut");
}

}  // namespace sterna::testing
