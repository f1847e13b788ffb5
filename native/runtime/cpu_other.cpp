#include "runtime/cpu_detect.h"

#if !defined(__x86_64__)
namespace sterna {

TileState tile_state() { return TileState::kAbsent; }

#if !defined(__aarch64__)
CpuInfo detect_cpu() { return {}; }

bool may_use(std::string_view) { return true; }
#endif

}  // namespace sterna
#endif
