#include "runtime/cpu_detect.h"

#if defined(__riscv) && __riscv_xlen == 64
#include <cstdint>

#include "runtime/system/system.h"

namespace sterna {
namespace {

// Bits of a vector register: the register vlenb, which may be read where there are vectors. By its number, as this file is
// compiled for CPUs without.
uint64_t vector_bits() {
    uint64_t bytes;
    asm("csrr %0, 0xC22" : "=r"(bytes));
    return 8 * bytes;
}

}  // namespace

CpuInfo detect_cpu() {
    CpuInfo info;
    if (!system::offers("v")) return info;
    info.features.emplace_back("v");
    for (const int bits : {256, 512})
        if (vector_bits() >= static_cast<uint64_t>(bits))
            info.features.emplace_back("vlen" + std::to_string(bits));
    return info;
}

bool may_use(std::string_view) { return true; }

}  // namespace sterna
#endif
