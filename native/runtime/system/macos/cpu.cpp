#include "runtime/cpu.h"

#include <sys/sysctl.h>

#include <string>

#include "runtime/system/macos/sysctl.h"
#include "runtime/system/system.h"

namespace sterna {

// Threads are placed by their quality of service (begin_worker) alone.
bool system::read_affinity(std::span<uint64_t>) { return false; }

bool system::set_affinity(std::span<const uint64_t>) { return false; }

int system::current_cpu() { return -1; }

bool system::offers_tiles() { return false; }

bool system::grants_tiles() { return false; }

void system::add_emulated(uint32_t, uint32_t, uint32_t&, uint32_t&) {}

// Apple, "Determining Instruction Set Characteristics".
bool system::offers(std::string_view feature) {
    struct Row {
        std::string_view name;
        const char* key;
    };
    constexpr Row kRows[] = {
        {"dotprod", "hw.optional.arm.FEAT_DotProd"},
        {"i8mm", "hw.optional.arm.FEAT_I8MM"},
        {"bf16", "hw.optional.arm.FEAT_BF16"},
    };
    for (const Row& row : kRows)
        if (row.name == feature) return number_of(row.key) > 0;
    return false;
}

void system::name_cpu(CpuInfo& info) {
    char brand[128] = {};
    size_t size = sizeof brand - 1;
    if (sysctlbyname("machdep.cpu.brand_string", brand, &size, nullptr, 0) == 0) info.model = brand;
    info.vendor = "Apple";
}

}  // namespace sterna
