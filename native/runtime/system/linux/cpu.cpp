// The CPUs of a thread, and what Linux says of them.
#include "runtime/cpu.h"

#include <sched.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/system/system.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#endif

#if STERNA_TESTING
// Of tests/emulator/emulator.cpp, where that is preloaded: adds the features that it carries out.
extern "C" [[gnu::weak, gnu::visibility("default")]] void sterna_emulator_cpuid(uint32_t leaf,
                                                                                uint32_t subleaf,
                                                                                uint32_t* eax,
                                                                                uint32_t* edx);
#endif

namespace sterna {

bool system::read_affinity(std::span<uint64_t> words) {
    return sched_getaffinity(0, words.size_bytes(), reinterpret_cast<cpu_set_t*>(words.data())) ==
           0;
}

bool system::set_affinity(std::span<const uint64_t> words) {
    const auto* set = reinterpret_cast<const cpu_set_t*>(words.data());
    return sched_setaffinity(0, words.size_bytes(), set) == 0;
}

int system::current_cpu() { return sched_getcpu(); }

// arch_prctl codes and the tile-data state number: Linux, Documentation/arch/x86/xstate.rst.
#if defined(__x86_64__)

bool system::offers_tiles() {
    constexpr int kGetSupported = 0x1021, kTileData = 18;
    uint64_t supported = 0;
    return syscall(SYS_arch_prctl, kGetSupported, &supported) == 0 && (supported >> kTileData & 1);
}

bool system::grants_tiles() {
    constexpr int kRequest = 0x1023, kTileData = 18;
    static const bool granted = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
    return granted;
}

#else

bool system::offers_tiles() { return false; }

bool system::grants_tiles() { return false; }

#endif

void system::add_emulated(uint32_t leaf, uint32_t subleaf, uint32_t& eax, uint32_t& edx) {
#if STERNA_TESTING
    if (sterna_emulator_cpuid) sterna_emulator_cpuid(leaf, subleaf, &eax, &edx);
#endif
}

#if defined(__aarch64__)

// Linux, Documentation/arch/arm64/elf_hwcaps.rst. Bits are written out, since older headers lack some.
bool system::offers(std::string_view feature) {
    struct Row {
        std::string_view name;
        unsigned long type;
        int bit;
    };
    constexpr Row kRows[] = {
        {"dotprod", AT_HWCAP, 20}, {"i8mm", AT_HWCAP2, 13}, {"bf16", AT_HWCAP2, 14},
        {"sve", AT_HWCAP, 22},     {"sve2", AT_HWCAP2, 1},
    };
    for (const Row& row : kRows)
        if (row.name == feature) return getauxval(row.type) >> row.bit & 1;
    return false;
}

// The main identification register, which the system lets programs read where it says so: ARM ARM, MIDR_EL1.
void system::name_cpu(CpuInfo& info) {
    if (!(getauxval(AT_HWCAP) & HWCAP_CPUID)) return;
    uint64_t id;
    asm("mrs %0, MIDR_EL1" : "=r"(id));
    info.family = static_cast<int>(id >> 24 & 255);  // the maker
    info.model_id = static_cast<int>(id >> 4 & 4095);
    info.stepping = static_cast<int>((id >> 20 & 15) << 4 | (id & 15));
    struct Name {
        int id;
        const char* name;
    };
    constexpr Name kVendors[] = {{0x41, "ARM"},       {0x46, "Fujitsu"},  {0x48, "HiSilicon"},
                                 {0x4E, "NVIDIA"},    {0x51, "Qualcomm"}, {0x61, "Apple"},
                                 {0x6D, "Microsoft"}, {0xC0, "Ampere"}};
    constexpr Name kModels[] = {
        {0xD05, "Cortex-A55"},  {0xD08, "Cortex-A72"},  {0xD0B, "Cortex-A76"},
        {0xD0C, "Neoverse N1"}, {0xD0D, "Cortex-A77"},  {0xD40, "Neoverse V1"},
        {0xD41, "Cortex-A78"},  {0xD46, "Cortex-A510"}, {0xD47, "Cortex-A710"},
        {0xD48, "Cortex-X2"},   {0xD49, "Neoverse N2"}, {0xD4F, "Neoverse V2"}};
    for (const Name& vendor : kVendors)
        if (vendor.id == info.family) info.vendor = vendor.name;
    if (info.family == 0x41)
        for (const Name& model : kModels)
            if (model.id == info.model_id) info.model = model.name;
}

#else

#if defined(__riscv)

// Linux, Documentation/arch/riscv/hwprobe.rst: of all CPUs of this process, RISCV_HWPROBE_KEY_IMA_EXT_0 has the bit
// RISCV_HWPROBE_IMA_V. Before Linux 6.4 there is no such call; the letter V in AT_HWCAP says the same from 6.5 on.
bool system::offers(std::string_view feature) {
    if (feature != "v") return false;
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

bool system::offers(std::string_view) { return false; }

#endif

void system::name_cpu(CpuInfo&) {}

#endif

}  // namespace sterna
