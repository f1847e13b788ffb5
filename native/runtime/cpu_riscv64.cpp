#include "runtime/cpu_detect.h"

#if defined(__riscv) && __riscv_xlen == 64
#include <cstdint>
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sterna {
namespace {

#if defined(__linux__)

// Linux, Documentation/arch/riscv/hwprobe.rst: of all CPUs of this process, RISCV_HWPROBE_KEY_IMA_EXT_0 has the bit
// RISCV_HWPROBE_IMA_V. Before Linux 6.4 there is no such call; the letter V in AT_HWCAP says the same from 6.5 on.
bool has_vectors() {
    constexpr long kHwprobe = 258;
    struct {
        int64_t key;
        uint64_t value;
    } pair{4, 0};
    if (syscall(kHwprobe, &pair, 1, 0, nullptr, 0) == 0 && pair.key == 4)
        return pair.value >> 2 & 1;
    return getauxval(AT_HWCAP) >> ('V' - 'A') & 1;
}

#else

bool has_vectors() { return false; }

#endif

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
    if (!has_vectors()) return info;
    info.features.emplace_back("v");
    for (const int bits : {256, 512})
        if (vector_bits() >= static_cast<uint64_t>(bits))
            info.features.emplace_back("vlen" + std::to_string(bits));
    return info;
}

bool may_use(std::string_view) { return true; }

}  // namespace sterna
#endif
