#include "testing/core/faults.h"

#include <io.h>

#include "runtime/system/windows/api.h"
#include "testing/core/checks.h"

namespace sterna::testing {

system::File file_of(std::FILE* stream) { return _get_osfhandle(_fileno(stream)); }

// A file that is mapped cannot be cut. What a disk or server does that fails, and its driver reports, can be said as well.
void lose_page(system::File, const uint8_t* data) {
    const ULONG_PTR what[] = {0, reinterpret_cast<ULONG_PTR>(data + 4096), 0};
    RaiseException(static_cast<DWORD>(EXCEPTION_IN_PAGE_ERROR), 0, 3, what);
}

}  // namespace sterna::testing
