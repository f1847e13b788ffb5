#include <fcntl.h>
#include <sys/param.h>

#include "runtime/system/system.h"

namespace sterna {

// F_NOCACHE belongs to what open() made, which duplicates share, so the file is opened by its path.
system::File system::open_direct(File file) {
    char path[MAXPATHLEN];
    if (fcntl(static_cast<int>(file), F_GETPATH, path) != 0) return -1;
    const int direct = open(path, O_RDONLY | O_CLOEXEC);
    if (direct >= 0) fcntl(direct, F_NOCACHE, 1);
    return direct;
}

void system::forget_read(File, uint64_t, size_t) {}

}  // namespace sterna
