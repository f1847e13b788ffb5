#include "runtime/cpu_detect.h"

#if !defined(__x86_64__)
namespace sterna {

TileState tile_state() { return TileState::kAbsent; }

#if !defined(__aarch64__) && !(defined(__riscv) && __riscv_xlen == 64)
CpuInfo detect_cpu() { return {}; }

bool may_use(std::string_view) { return true; }
#endif

}  // namespace sterna
#endif
