#include "runtime/cpu_detect.h"

#if defined(__aarch64__)
#include <cstddef>
#include <cstdint>
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(_WIN32)
#include <windows.h>
#endif

namespace sterna {
namespace {

#if defined(__linux__)

// Linux, Documentation/arch/arm64/elf_hwcaps.rst. Bits are written out, since older headers lack some.
struct FeatureRow {
    const char* name;
    unsigned long type;
    int bit;
};
constexpr FeatureRow kFeatures[] = {
    {"dotprod", AT_HWCAP, 20}, {"i8mm", AT_HWCAP2, 13}, {"bf16", AT_HWCAP2, 14},
    {"sve", AT_HWCAP, 22},     {"sve2", AT_HWCAP2, 1},
};
bool is_there(const FeatureRow& row) { return getauxval(row.type) >> row.bit & 1; }

// The main identification register, which the system lets programs read where it says so: ARM ARM, MIDR_EL1.
void read_names(CpuInfo& info) {
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

#elif defined(__APPLE__)

struct FeatureRow {
    const char *name, *key;
};
constexpr FeatureRow kFeatures[] = {
    {"dotprod", "hw.optional.arm.FEAT_DotProd"},
    {"i8mm", "hw.optional.arm.FEAT_I8MM"},
    {"bf16", "hw.optional.arm.FEAT_BF16"},
};
bool is_there(const FeatureRow& row) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(row.key, &value, &size, nullptr, 0) == 0 && value;
}

void read_names(CpuInfo& info) {
    char brand[128] = {};
    size_t size = sizeof brand - 1;
    if (sysctlbyname("machdep.cpu.brand_string", brand, &size, nullptr, 0) == 0) info.model = brand;
    info.vendor = "Apple";
}

#elif defined(_WIN32)

// winnt.h: PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE, and PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE, which older headers lack.
struct FeatureRow {
    const char* name;
    DWORD feature;
};
constexpr FeatureRow kFeatures[] = {{"dotprod", 43}, {"i8mm", 66}};
bool is_there(const FeatureRow& row) { return IsProcessorFeaturePresent(row.feature); }

void read_names(CpuInfo&) {}

#else

struct FeatureRow {
    const char* name;
};
constexpr FeatureRow kFeatures[] = {{""}};
bool is_there(const FeatureRow&) { return false; }

void read_names(CpuInfo&) {}

#endif

}  // namespace

CpuInfo detect_cpu() {
    CpuInfo info;
    read_names(info);
    bool dotprod = false;
    for (const FeatureRow& row : kFeatures) {
        const bool found = is_there(row);
        if (row.name == std::string_view("dotprod")) dotprod = found;
        if (found && (dotprod || row.name != std::string_view("i8mm")))
            info.features.emplace_back(row.name);
    }
    return info;
}

bool may_use(std::string_view) { return true; }

}  // namespace sterna
#endif
