#include "runtime/cpu_detect.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/system/system.h"

namespace sterna {
namespace {

// Order is that of kFeatures.
enum class Feature {
    AVX2,  // with FMA, F16C, BMI1 and BMI2: every x86-64-v3 machine has them together
    FMA,
    F16C,
    BMI,
    BMI2,
    AVXVNNI,
    AVXVNNIINT8,
    AVX512F,
    AVX512BW,
    AVX512DQ,
    AVX512VL,
    AVX512VNNI,
    AVX512VBMI,
    AVX512BF16,
    AVX10_2,
    AMX_TILE,
    AMX_INT8,
    AMX_BF16,
};

// Register state that the OS must save: bits of XCR0 (Intel SDM vol. 1, section 13.3), and for tiles
// what the kernel says.
enum class State : uint8_t { kNone, kYmm, kZmm, kTile };
// kAvx10: bit n is set where the version of AVX10 is n or later.
enum class Leaf : uint8_t { k1Ecx, k7Ebx, k7Ecx, k7Edx, k71Eax, k71Edx, kAvx10, kCount };

struct FeatureRow {
    Feature feature;
    const char* name;
    Leaf leaf;
    uint8_t bit;
    State state;
};

// Bit positions: Intel SDM vol. 2A, CPUID; AMD64 APM vol. 3, appendix E.
constexpr FeatureRow kFeatures[] = {
    {Feature::AVX2, "avx2", Leaf::k7Ebx, 5, State::kYmm},
    {Feature::FMA, "fma", Leaf::k1Ecx, 12, State::kYmm},
    {Feature::F16C, "f16c", Leaf::k1Ecx, 29, State::kYmm},
    {Feature::BMI, "bmi", Leaf::k7Ebx, 3, State::kNone},
    {Feature::BMI2, "bmi2", Leaf::k7Ebx, 8, State::kNone},
    {Feature::AVXVNNI, "avxvnni", Leaf::k71Eax, 4, State::kYmm},
    {Feature::AVXVNNIINT8, "avxvnniint8", Leaf::k71Edx, 4, State::kYmm},
    {Feature::AVX512F, "avx512f", Leaf::k7Ebx, 16, State::kZmm},
    {Feature::AVX512BW, "avx512bw", Leaf::k7Ebx, 30, State::kZmm},
    {Feature::AVX512DQ, "avx512dq", Leaf::k7Ebx, 17, State::kZmm},
    {Feature::AVX512VL, "avx512vl", Leaf::k7Ebx, 31, State::kZmm},
    {Feature::AVX512VNNI, "avx512vnni", Leaf::k7Ecx, 11, State::kZmm},
    {Feature::AVX512VBMI, "avx512vbmi", Leaf::k7Ecx, 1, State::kZmm},
    {Feature::AVX512BF16, "avx512bf16", Leaf::k71Eax, 5, State::kZmm},
    {Feature::AVX10_2, "avx10_2", Leaf::kAvx10, 2, State::kZmm},
    {Feature::AMX_TILE, "amx_tile", Leaf::k7Edx, 24, State::kTile},
    {Feature::AMX_INT8, "amx_int8", Leaf::k7Edx, 25, State::kTile},
    {Feature::AMX_BF16, "amx_bf16", Leaf::k7Edx, 22, State::kTile},
};
constexpr size_t kFeatureCount = sizeof(kFeatures) / sizeof(kFeatures[0]);

constexpr bool table_in_enum_order() {
    for (size_t i = 0; i < kFeatureCount; ++i) {
        if (static_cast<size_t>(kFeatures[i].feature) != i) return false;
    }
    return kFeatureCount == static_cast<size_t>(Feature::AMX_BF16) + 1;
}
static_assert(table_in_enum_order());

constexpr uint32_t mask_of(Feature feature) { return 1u << static_cast<int>(feature); }

uint64_t read_xcr0() {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<uint64_t>(high) << 32) | low;
}

// Vendor and brand strings are padded with blanks or zeros on either side.
std::string trimmed(const char* text, size_t size) {
    std::string s(text, strnlen(text, size));
    const size_t first = s.find_first_not_of(' ');
    if (first == std::string::npos) return "";
    return s.substr(first, s.find_last_not_of(' ') - first + 1);
}

void read_names(CpuInfo& info) {
    uint32_t r[4] = {};
    if (!__get_cpuid(0, &r[0], &r[1], &r[2], &r[3])) return;
    const uint32_t vendor[3] = {r[1], r[3], r[2]};
    info.vendor = trimmed(reinterpret_cast<const char*>(vendor), sizeof(vendor));
    uint32_t brand[12] = {};
    for (uint32_t i = 0; i < 3; ++i) {
        uint32_t* b = brand + 4 * i;
        if (!__get_cpuid(0x80000002u + i, &b[0], &b[1], &b[2], &b[3])) return;
    }
    info.model = trimmed(reinterpret_cast<const char*>(brand), sizeof(brand));
}

void read_signature(CpuInfo& info, uint32_t eax) {
    const int family = eax >> 8 & 15, model = eax >> 4 & 15;
    info.stepping = eax & 15;
    info.family = family == 15 ? family + static_cast<int>(eax >> 20 & 255) : family;
    info.model_id =
        (family == 6 || family == 15) ? model + static_cast<int>(eax >> 12 & 0xF0) : model;
}

// A hypervisor may hide any bit; the features that others are built on decide.
uint32_t without_unsupported(uint32_t mask) {
    constexpr uint32_t kAvx2 = mask_of(Feature::AVX2) | mask_of(Feature::FMA) |
                               mask_of(Feature::F16C) | mask_of(Feature::BMI) |
                               mask_of(Feature::BMI2);
    constexpr uint32_t kScalar = mask_of(Feature::FMA) | mask_of(Feature::F16C) |
                                 mask_of(Feature::BMI) | mask_of(Feature::BMI2);
    constexpr uint32_t kAvx512 = mask_of(Feature::AVX512F) | mask_of(Feature::AVX512BW) |
                                 mask_of(Feature::AVX512DQ) | mask_of(Feature::AVX512VL) |
                                 mask_of(Feature::AVX512VNNI) | mask_of(Feature::AVX512VBMI) |
                                 mask_of(Feature::AVX512BF16) | mask_of(Feature::AVX10_2);
    constexpr uint32_t kTiles = mask_of(Feature::AMX_INT8) | mask_of(Feature::AMX_BF16);
    if ((mask & kAvx2) != kAvx2) mask &= kScalar;
    if (!(mask & mask_of(Feature::AVX512F))) mask &= ~kAvx512;
    if (!(mask & mask_of(Feature::AMX_TILE))) mask &= ~kTiles;
    return mask;
}

// CPUID, and where an emulator is preloaded what that carries out.
bool cpuid(uint32_t leaf, uint32_t subleaf, uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
    if (!__get_cpuid_count(leaf, subleaf, &a, &b, &c, &d)) return false;
    system::add_emulated(leaf, subleaf, a, d);
    return true;
}

}  // namespace

CpuInfo detect_cpu() {
    CpuInfo info;
    read_names(info);
    uint32_t leaf[static_cast<int>(Leaf::kCount)] = {};
    auto at = [&](Leaf which) -> uint32_t& { return leaf[static_cast<int>(which)]; };
    uint32_t a, b, c, e;
    if (!__get_cpuid(1, &a, &b, &c, &e)) return info;
    read_signature(info, a);
    at(Leaf::k1Ecx) = c;
    constexpr uint32_t kOsXsave = 1u << 27, kAvx = 1u << 28;
    const bool avx = (c & kOsXsave) && (c & kAvx);
    if (cpuid(7, 0, a, b, c, e)) {
        at(Leaf::k7Ebx) = b;
        at(Leaf::k7Ecx) = c;
        at(Leaf::k7Edx) = e;
        if (a >= 1 && cpuid(7, 1, a, b, c, e)) {
            at(Leaf::k71Eax) = a;
            at(Leaf::k71Edx) = e;
        }
    }
    constexpr uint32_t kAvx10Listed = 1u << 19;
    if ((at(Leaf::k71Edx) & kAvx10Listed) && cpuid(0x24, 0, a, b, c, e)) {
        const uint32_t version = b & 255;
        at(Leaf::kAvx10) = (2u << (version < 30 ? version : 30)) - 1;
    }
    // Bits 1, 2: xmm, ymm; 5..7: mask registers, upper zmm. Not read are 17 and 18, tiles: Linux offers
    // that state only where it has set them.
    const uint64_t xcr0 = avx ? read_xcr0() : 0;
    const bool ymm = avx && (xcr0 & 0x6) == 0x6;
    const bool zmm = ymm && (xcr0 & 0xE0) == 0xE0;
    const bool tiles = ymm && system::offers_tiles();
    uint32_t mask = 0;  // bit i: Feature i
    for (const FeatureRow& row : kFeatures) {
        const bool saved = row.state == State::kNone || (row.state == State::kYmm && ymm) ||
                           (row.state == State::kZmm && zmm) ||
                           (row.state == State::kTile && tiles);
        const bool listed = at(row.leaf) >> row.bit & 1;
        if (saved && listed) mask |= mask_of(row.feature);
    }
    mask = without_unsupported(mask);
    for (const FeatureRow& row : kFeatures)
        if (mask & mask_of(row.feature)) info.features.emplace_back(row.name);
    return info;
}

bool may_use(std::string_view feature) {
    return feature.substr(0, 4) != "amx_" || system::grants_tiles();
}

TileState tile_state() {
    uint32_t a, b, c, d;
    const bool listed = cpuid(7, 0, a, b, c, d) && (d >> 24 & 1);
    if (!listed) return TileState::kAbsent;
    return has_feature("amx_tile") && system::grants_tiles() ? TileState::kGranted
                                                             : TileState::kRefused;
}

}  // namespace sterna
#endif
